"""Request quotas of a real process with ZooKeeper: a caller above its quota is held to it, and the other is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from autothrottle_client import AdminClient
from autothrottle_lab.servers.processes import Process, scratch_directory
from autothrottle_lab.servers.services import Deployment
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.request_caller import responses
from tests.system.zookeeper_tree import Tree, session

TOKENS = {name: name * 4 for name in ("loud", "quiet", "services")}
ROLES = {"loud": "viewer", "quiet": "operator", "services": "service"}
QUOTA, SECONDS = 20, 5.0


@pytest.fixture
def address(zookeeper: ZooKeeperServer) -> Iterator[str]:
    """The gRPC address of a process with one token for each caller."""
    with ExitStack() as stack:
        tree = Tree(stack.enter_context(session(zookeeper)))
        tree.client.ensure_path(tree.kafka.reassign_partitions.rpartition("/")[0])
        directory = stack.enter_context(scratch_directory())
        yield started(zookeeper, tree, directory, stack)


def started(zookeeper: ZooKeeperServer, tree: Tree, directory: Path, stack: ExitStack) -> str:
    tokens = directory / "tokens"
    tokens.write_text("".join(f"{name} {token} {ROLES[name]}\n" for name, token in TOKENS.items()))
    options = {
        "zk-prefix": tree.kafka.prefix,
        "zk-config-prefix": tree.own.prefix,
        "api-listen": "127.0.0.1:0",
        "api-tokens-file": str(tokens),
    }
    process: Process = Deployment(zookeeper.connect, "http://127.0.0.1:1", directory, options).process("run", "run", {})
    stack.callback(process.stop)
    process.start()
    process.wait_until(lambda: "gRPC API:" in process.log_end(200), 60.0)
    return str(re.findall(r"gRPC API: (\S+)", process.log_end(200))[-1])


def test_a_caller_at_ten_times_its_quota_is_held_to_it(address: str) -> None:
    with AdminClient(address, token=TOKENS["quiet"]) as quiet:
        quiet.set_request_quota(QUOTA, "loud")
        quiet.set_request_quota(100 * QUOTA, "quiet")
        eventually(lambda: quiet.list_overrides() and quiet.throttle_times.counted)
    loud_one, quiet_one = responses(
        (address, TOKENS["loud"], 10 * QUOTA, 10, SECONDS), (address, TOKENS["quiet"], QUOTA, 1, SECONDS)
    )
    # The quota of one second comes on top when a caller starts, and the machine may be busy.
    assert QUOTA * 0.7 < loud_one.rate(SECONDS) <= QUOTA * (SECONDS + 1) / SECONDS + 1
    assert quiet_one.refused == 0  # the loud one is refused if a call would wait for more than a second
    assert min(loud_one.latencies[-10:]) > min(quiet_one.latencies)
