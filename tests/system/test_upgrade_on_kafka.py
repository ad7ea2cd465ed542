"""An upgrade from an earlier version beside real Kafka 4, and the way back, as docs/upgrade.md says."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import grpc
import pytest

from autothrottle.adapters.decision_log.files import LoggedDecisions
from autothrottle.v1 import admin_pb2_grpc, planner_pb2, planner_pb2_grpc
from autothrottle_client import ClusterState
from autothrottle_lab.servers.kafka import Partition
from autothrottle_lab.servers.processes import Process
from tests.builders import eventually
from tests.paths import ROOT
from tests.system.recovery_watch import FOLLOWER_RATE, RecoveryWatch, admin_channel, submit
from tests.system.test_throttlectl import address_of, throttlectl
from tests.system.version_matrix import (
    DESTINATION,
    MB,
    OVERRIDE,
    STEADY_SECONDS,
    TARGETS,
    TOPIC,
    Environment,
    Release,
    run_process,
    state_of,
)

EARLIER = "7251ec756d657907bb1f257141e69b01f40670ca"
"""A version that keeps its state in ZooKeeper only. Its README has the command below for Kafka 4."""

ZOOKEEPER_PORT = 2181
"""The command names no ZooKeeper, so the state is in the one at localhost:2181."""


def missing_requirement() -> str:
    """Return why the test cannot run; "": it can."""
    command = ["git", "-C", str(ROOT), "cat-file", "-e", f"{EARLIER}^{{commit}}"]
    try:
        status = subprocess.run(command, capture_output=True, check=False).returncode
    except OSError:
        return "git is not installed. Fix on Debian and Ubuntu: apt-get install git"
    if status:
        return f"this clone lacks commit {EARLIER[:8]}. Fix: git fetch --unshallow"
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", ZOOKEEPER_PORT)) == 0:
            return f"a server listens on localhost:{ZOOKEEPER_PORT}. Fix: stop it"
    return ""


def earlier_sources(directory: Path, commit: str = EARLIER) -> Mapping[str, str]:
    """Unpack an earlier version; return the environment in which Python imports it."""
    command = ["git", "-C", str(ROOT), "archive", commit, "services", "clients"]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    directory.mkdir()
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archive, check=True)
    return {"PYTHONPATH": f"{directory / 'services'}:{directory / 'clients'}"}


class LeaderWatch:
    """Asks each process all the time whether it leads; a context manager."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, int]] = []
        """(address, term) of each answer of a leader, in order."""
        self._channels: dict[str, grpc.Channel] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leader watch", daemon=True)

    def __enter__(self) -> LeaderWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        for channel in self._channels.values():
            channel.close()

    def add(self, address: str) -> None:
        """Ask this process, too."""
        self._channels = {**self._channels, address: grpc.insecure_channel(address)}

    def leaderships(self) -> list[tuple[str, int]]:
        """Return (address, term) of the successive leaders. One that leads again after another is there twice."""
        return [pair for pair, _ in groupby(self.answers)]

    def _run(self) -> None:
        while not self._ending.wait(0.05):
            for address, channel in self._channels.items():
                try:
                    request = planner_pb2.GetStateRequest(without_cycle=True)
                    state = planner_pb2_grpc.PlannerServiceStub(channel).GetState(request, timeout=5)
                except grpc.RpcError:
                    continue  # it has ended
                if state.leading:
                    self.answers.append((address, state.term))


def wait_for_leader(process: Process, address: str) -> ClusterState:
    """Return the state as soon as this process leads and has run a cycle."""
    states: list[ClusterState] = []

    def leads() -> bool:
        states.extend(state for state in [state_of([address])] if state is not None)
        return bool(states) and states[-1].leader_address == address

    process.wait_until(leads, 60)
    return states[-1]


def stop(process: Process) -> None:
    process.terminate()
    assert process.wait(30) == 0, process.log_end()
    assert "Traceback" not in process.log.read_text(), process.log_end()


def logged_terms(decisions: Path) -> set[int]:
    """Return the terms in the decision log."""
    log = LoggedDecisions(str(decisions))
    identifiers = {record.reassignment_id for record in log.reassignments()}
    return {record.term for identifier in identifiers for record in log.decisions(identifier)}


@pytest.mark.repeat
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("localhost-2181")
def test_an_upgrade_and_the_way_back_keep_throttles_overrides_and_decisions(tmp_path: Path) -> None:
    if problem := missing_requirement():
        pytest.skip(problem)
    earlier, decisions = earlier_sources(tmp_path / "earlier"), tmp_path / "decisions"
    with (
        Environment(Release("4.3.1"), "zookeeper", tmp_path, ZOOKEEPER_PORT) as environment,
        LeaderWatch() as leaders,
        ExitStack() as stack,
    ):
        cluster = environment.cluster
        environment.create_topic()
        configs, sources = environment.configs(), {p: s.replicas for p, s in cluster.partitions([TOPIC]).items()}

        def start(name: str, variables: Mapping[str, str]) -> tuple[Process, str]:
            flags = ["--kafka-backend=admin", f"--bootstrap-servers={cluster.bootstrap_servers}"]
            flags += ["--metrics-source=kafka", f"--decisions={decisions}", f"--decisions-spool={tmp_path / name}"]
            process = stack.enter_context(run_process(name, flags, tmp_path, variables))
            address = address_of(process)
            leaders.add(address)
            return process, address

        def reassign(address: str, targets: Mapping[Partition, Sequence[int]]) -> None:
            with admin_channel(address) as channel:
                submit(admin_pb2_grpc.AdminServiceStub(channel), targets)
            watch.wait_until(lambda s: bool(s.moving) and not s.unthrottled, 30, "all replicas are throttled")

        def finish(address: str) -> None:
            assert watch.samples[-1].moving
            throttlectl(address, "set", "500MB/s", "--beyond-capacity")
            watch.wait_until(lambda s: not s.moving, 120, "the reassignment ends")
            eventually(lambda: environment.configs() == configs)

        watch = stack.enter_context(RecoveryWatch(cluster, TOPIC))
        old, old_address = start("old", earlier)
        first = wait_for_leader(old, old_address)
        reassign(old_address, TARGETS)
        throttlectl(old_address, "set", f"{OVERRIDE // MB}MB/s")
        eventually(lambda: cluster.described_configs(DESTINATION).get(FOLLOWER_RATE) == str(OVERRIDE))

        new, new_address = start("new", {})
        time.sleep(STEADY_SECONDS)
        assert leaders.leaderships() == [(old_address, first.term)]
        stop(old)
        second = wait_for_leader(new, new_address)
        assert second.term > first.term
        assert [override.rate_bytes_per_second for override in second.overrides] == [OVERRIDE]
        assert cluster.described_configs(DESTINATION)[FOLLOWER_RATE] == str(OVERRIDE)
        finish(new_address)

        throttlectl(new_address, "pause", "--clear")
        stop(new)
        returned, returned_address = start("returned", earlier)
        throttlectl(returned_address, "resume")
        third = wait_for_leader(returned, returned_address)
        assert third.term == first.term + 2, "the earlier version numbers a term by its znode's version alone"
        assert [override.rate_bytes_per_second for override in third.overrides] == [500 * MB]
        throttlectl(returned_address, "set", f"{OVERRIDE // MB}MB/s")
        reassign(returned_address, sources)
        finish(returned_address)
        stop(returned)
        assert environment.configs() == configs
        assert watch.unthrottled_seconds() == 0
        terms = [(old_address, first.term), (new_address, second.term), (returned_address, third.term)]
        assert leaders.leaderships() == terms
        assert logged_terms(decisions) == {first.term, second.term, third.term}
        ends = [r for r in LoggedDecisions(str(decisions)).reassignments() if r.term == second.term and r.finish]
        assert [end.status for end in ends] == ["done"], "it completed under another leader than it began under"
