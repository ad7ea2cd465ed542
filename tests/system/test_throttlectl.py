"""`throttlectl` with two `autothrottle run` processes on a real ZooKeeper, before and after the leader is killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from kazoo.client import KazooClient

from autothrottle.core.cluster.configs import FOLLOWER_RATE, LEADER_RATE
from autothrottle_lab.servers.processes import Process
from autothrottle_lab.servers.zookeeper import ZooKeeperServer

SECONDS = 60.0
FLAGS = (
    "--api-listen=127.0.0.1:0",
    "--grpc-listen=127.0.0.1:0",
    "--datadog-url=http://127.0.0.1:1",
    "--zk-prefix=/kafka",
    "--session-timeout=4",
)
KEYS = {"AUTOTHROTTLE_API_KEY": "k1", "AUTOTHROTTLE_APP_KEY": "k2"}
COMMAND = (sys.executable, "-m", "autothrottle_client.throttlectl")


def throttlectl(address: str, *arguments: str) -> str:
    command = [*COMMAND, *arguments, "--addr", address, "--timeout", "30"]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout


def address_of(process: Process) -> str:
    """Wait until the gRPC API listens, and return its address."""

    def found() -> list[str]:
        return re.findall(r" gRPC API: (\S+)$", process.log.read_text(), re.MULTILINE)

    process.wait_until(lambda: bool(found()), SECONDS)
    return found()[0]


def cycles(log: Path) -> list[dict[str, object]]:
    """Return the cycles that `throttlectl watch` has printed so far, from complete lines."""
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("}\n")]


def rates(client: KazooClient) -> Sequence[str | None]:
    """Return the leader and follower rates of broker 1001."""
    path = "/kafka/config/brokers/1001"
    config = json.loads(client.get(path)[0])["config"] if client.exists(path) else {}
    return [config.get(LEADER_RATE), config.get(FOLLOWER_RATE)]


def test_override_stays_and_a_watch_continues_when_the_leader_is_killed(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    run = [sys.executable, "-m", "autothrottle", "run", f"--zk-addr={fresh_zookeeper.connect}", *FLAGS]
    with ExitStack() as stack:
        client = KazooClient(fresh_zookeeper.connect)
        stack.callback(client.close)
        stack.callback(client.stop)
        client.start()
        for path in ("/kafka/brokers/topics", "/kafka/config/brokers", "/kafka/config/changes"):
            client.ensure_path(path)
        client.create("/kafka/brokers/ids/1001", b"{}", makepath=True)
        first = stack.enter_context(Process("first", run, tmp_path / "first.log", KEYS))
        leader = address_of(first)
        first.wait_until(lambda: "Leading in term" in first.log.read_text(), SECONDS)
        second = stack.enter_context(Process("second", run, tmp_path / "second.log", KEYS))
        both = f"{leader},{address_of(second)}"

        log = tmp_path / "watch.log"
        command = [*COMMAND, "watch", "--addr", both, "--output", "json"]
        watch = stack.enter_context(Process("watch", command, log))
        answer = throttlectl(both, "set", "50MB/s", "--broker", "1001")
        assert answer.startswith("broker 1001: throttle set to 50MB/s; acts ")
        # The interval is 180 s, so only a cycle that the override starts can write the rates now.
        first.wait_until(lambda: rates(client) == ["50000000", "50000000"], SECONDS)
        watch.wait_until(lambda: bool(cycles(log)), SECONDS)
        assert json.loads(throttlectl(address_of(second), "state", "--output=json"))["leader_address"] == leader

        earlier = int(str(cycles(log)[-1]["term"]))
        first.kill()
        watch.wait_until(lambda: cycles(log)[-1]["term"] == earlier + 1, SECONDS)
        state = json.loads(throttlectl(both, "state", "--output", "json"))
        assert (state["term"], state["leader_address"]) == (earlier + 1, address_of(second))
        assert throttlectl(both, "remove", "--all") == "broker 1001: throttle removed\n"
        second.wait_until(lambda: rates(client) == [None, None], SECONDS)
        order = [(cycle["term"], cycle["number"]) for cycle in cycles(log)]
        assert len(set(order)) == len(order), "each cycle is printed once"
        assert log.read_text().count("lost the leader, locating it again") == 1
