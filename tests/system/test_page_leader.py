"""The event stream of a real gateway while the leading planner hangs and another one takes over."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.system.simulated_recovery import SimulatedRecovery

SEEN_SECONDS = 2.0
"""Time from the start of a term until the page shows its leader."""


def leaders(response: http.client.HTTPResponse) -> Iterator[Any]:
    """Yield the leader in each event `now` that has no problem."""
    while line := response.readline().decode():
        if line.startswith('data: {"cluster"'):
            current = json.loads(line.removeprefix("data: "))
            if current["leader"] and not current["problem"]:
                yield current["leader"]["address"]


@pytest.mark.repeat
def test_a_new_leader_is_seen_within_two_seconds_of_its_term(fresh_zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """Admin waited for the frozen planner for 5 s, and the gateway for 1.5 s, so that each reading began with it again.

    The second freeze stops the planner that answered admin last.
    """
    with ExitStack() as stack:
        recovery = stack.enter_context(SimulatedRecovery(fresh_zookeeper, tmp_path, {"t": [100_000] * 10}))
        services = stack.enter_context(recovery.services(planners=2))
        options = {"admin-addr": services.addresses["admin"], "api-listen": "127.0.0.1:0"}
        gateway = recovery.deployment().process("gateway", "gateway", options)
        stack.callback(gateway.stop)
        gateway.start()
        gateway.wait_until(lambda: "Admin API:" in gateway.log_end(400), 60.0)
        (address,) = re.findall(r"Admin API: (\S+)", gateway.log_end(400))
        recovery.wait_for_cycle(recovery.wait_for_term())
        stream = stack.enter_context(closing(http.client.HTTPConnection(address, timeout=60)))
        stream.request("GET", "/page/events")
        shown = leaders(stream.getresponse())
        for _ in range(2):
            leader = recovery.leader()
            while next(shown) != leader.address:
                pass
            starts: list[float] = []

            def note_next_term(fence: int = leader.fence, starts: list[float] = starts) -> None:
                recovery.wait_for_term(fence)
                starts.append(time.monotonic())

            watcher = threading.Thread(target=note_next_term)
            watcher.start()
            planner = services.planner(leader.address)
            planner.freeze()
            try:
                while next(shown) == leader.address:
                    pass
                seen = time.monotonic()
                watcher.join()
            finally:
                planner.thaw()
            assert seen - starts[0] < SEEN_SECONDS
