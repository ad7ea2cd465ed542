"""Our state in a topic of Kafka 4, without a ZooKeeper: failover, outages of brokers, and harm done to the topic."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_admin.topic_log import TopicLog
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.kafka_state.topic import ReplicaChange
from autothrottle.core.errors import Conflict, Unavailable
from autothrottle.runtime.command_line import EXIT_FAILED, EXIT_USAGE
from autothrottle.v1 import admin_pb2_grpc
from autothrottle_client import AdminClient, AutothrottleError, ClusterState, Cycle
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers import kafka_kraft
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.processes import Process, scratch_directory
from tests.builders import eventually
from tests.server_fixtures import remove_throttles
from tests.system.recovery_watch import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    RecoveryWatch,
    admin_channel,
    submit,
)
from tests.system.test_throttlectl import address_of, throttlectl
from tests.system.version_matrix import SMALL_FETCHES

MB = 1_000_000
SECONDS = 60.0
"""Deadline of a step on a busy machine."""
DEFAULT_TOPIC = "__autothrottle_state"
DEFAULT_SESSION_SECONDS = 6.0
DESTINATION = 1003
FAST = ("--capacity=6MB/s", "--min-rate=2", "--metrics-window=6", "--interval=2")
_numbers = itertools.count(1)


class Replicas:
    """`autothrottle run` processes that share one state topic."""

    def __init__(self, cluster: KafkaCluster, directory: Path, topic: str, *flags: str) -> None:
        self.cluster, self.topic, self._directory = cluster, topic, directory
        self.flags = [f"--bootstrap-servers={cluster.bootstrap_servers}", f"--state-topic={topic}", *(flags or FAST)]
        self.stack = ExitStack()
        self.processes: dict[str, Process] = {}
        """gRPC address -> process."""

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()
        for process in self.processes.values():
            assert "Traceback" not in process.log.read_text(), process.log.read_text()

    def launch(self, *flags: str) -> Process:
        """Start a process, and do not wait."""
        number, listen = next(_numbers), ("--api-listen=127.0.0.1:0", "--grpc-listen=127.0.0.1:0")
        command = [sys.executable, "-m", "autothrottle", "run", *self.flags, *listen, *flags]
        process = Process(f"run-{number}", command, self._directory / f"run-{number}.log")
        return self.stack.enter_context(process)

    def start(self, count: int = 1) -> None:
        """Start processes; return when a leader has run a cycle."""
        for process in [self.launch() for _ in range(count)]:
            self.add(process)
        eventually(lambda: self.state() is not None, SECONDS)

    def add(self, process: Process) -> None:
        """Wait until a process answers calls."""
        self.processes[address_of(process)] = process

    def state(self) -> ClusterState | None:
        """Return the state of the leader; None: none leads, or it has not run a cycle in its term."""
        try:
            with AdminClient([a for a, process in self.processes.items() if process.running]) as admin:
                state = admin.state()
        except AutothrottleError:
            return None
        return state if state.last_cycle and state.last_cycle.term == state.term else None

    def leader(self) -> Process:
        """Return the process that leads."""
        state = self.state()
        assert state is not None, "no process leads"
        return self.processes[state.leader_address]

    def next_cycle(self, after: datetime, term: int = 0) -> Cycle:
        """Return the first cycle seen that started after this time without an error, in a later term."""
        cycles: list[Cycle] = []

        def has_run() -> bool:
            state = self.state()
            if state is not None and (cycle := state.last_cycle) is not None:
                cycles.append(cycle)
            return bool(cycles) and cycles[-1].start_time > after and cycles[-1].term > term and not cycles[-1].error

        eventually(has_run, SECONDS)
        return cycles[-1]

    def log(self) -> str:
        return "".join(process.log.read_text() for process in self.processes.values())

    def throttlectl(self, *arguments: str) -> str:
        return throttlectl(",".join(self.processes), *arguments)

    def kill(self) -> None:
        """Kill all processes."""
        for process in self.processes.values():
            process.kill()
        self.processes.clear()

    def stop(self) -> None:
        """End all processes by SIGTERM."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            if process.returncode != -signal.SIGKILL:
                assert process.wait(30.0) == 0, process.log_end()


@pytest.fixture
def topic(kraft_cluster: KraftCluster) -> Iterator[str]:
    """The name of a state topic of its own on the shared cluster."""
    name = f"state-in-kafka-{next(_numbers)}"
    yield name
    if any(existing == name for existing, _ in kraft_cluster.partitions()):
        kraft_cluster.delete_topic(name)


@pytest.fixture
def cluster() -> Iterator[KraftCluster]:
    """Three brokers that a test may kill, freeze or stop."""
    with scratch_directory() as directory, KraftCluster(directory, broker_properties=SMALL_FETCHES) as cluster:
        yield cluster


class Reassignment:
    """A topic whose reassignment to one broker lasts until the test ends it; a context manager."""

    def __init__(self, cluster: KafkaCluster, replicas: Replicas, bytes_per_partition: int = 10 * MB) -> None:
        self.cluster, self.replicas, self.name = cluster, replicas, f"moving-{next(_numbers)}"
        cluster.create_topic(self.name, {p: [1001 + p % 2, 1002 - p % 2] for p in range(4)})
        fill(cluster, self.name, bytes_per_partition, record_bytes=20_000)
        self.configs = self.current_configs()

    def current_configs(self) -> dict[str, dict[str, str]]:
        """Return the configs without those of the state topic."""
        entities = self.cluster.stored_configs().items()
        return {entity: config for entity, config in entities if entity != f"topics/{self.replicas.topic}"}

    def __enter__(self) -> Reassignment:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.delete_topic(self.name)

    def start(self) -> None:
        """Submit it under a low override, so that its throttles are set before it begins."""
        self.replicas.throttlectl("set", "0.5MB/s")
        with admin_channel(next(iter(self.replicas.processes))) as channel:
            targets = {(self.name, p): (1001 + p % 2, DESTINATION) for p in range(4)}
            submit(admin_pb2_grpc.AdminServiceStub(channel), targets)
        eventually(self.is_throttled, SECONDS)

    def is_throttled(self) -> bool:
        configs = self.cluster.stored_configs()
        has_rate = FOLLOWER_RATE in configs.get(f"brokers/{DESTINATION}", {})
        return has_rate and FOLLOWER_REPLICAS in configs.get(f"topics/{self.name}", {})

    def is_moving(self) -> bool:
        return any(topic == self.name for topic, _ in self.cluster.reassigning())

    def finish(self) -> None:
        """Let it end; check that nothing is left over."""
        assert self.is_moving(), "the reassignment ended early"
        self.replicas.throttlectl("set", "500MB/s", "--beyond-capacity")
        self.cluster.wait_until_reassigned(SECONDS)
        self.replicas.throttlectl("remove", "--all")
        eventually(lambda: self.current_configs() == self.configs, SECONDS)


def seconds_since(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds()


def delete_records(cluster: KafkaCluster, topic: str) -> None:
    """Delete all records of a topic, like `kafka-delete-records.sh` with offset -1."""
    offset = {kafka.TopicPartition(topic, 0): -1}
    cluster._call_admin(lambda admin: admin.delete_records(offset))


# Failover.


def fail_over(replicas: Replicas, number: signal.Signals) -> float:
    """End the leader; return the seconds until the end of the next leader's first cycle."""
    state, leader = replicas.state(), replicas.leader()
    assert state is not None
    signalled = datetime.now(UTC)
    if number is signal.SIGKILL:
        leader.kill()
    else:
        leader.terminate()
    return seconds_since(signalled, replicas.next_cycle(signalled, state.term).end_time)


@pytest.mark.measures
@pytest.mark.parametrize("session", [3.0, pytest.param(DEFAULT_SESSION_SECONDS, marks=pytest.mark.repeat)])
def test_another_process_leads_after_sigkill_and_after_sigterm_of_the_leader(
    kraft_cluster: KraftCluster, topic: str, tmp_path: Path, session: float
) -> None:
    with Replicas(kraft_cluster, tmp_path, topic, *FAST, f"--session-timeout={session:g}") as replicas:
        replicas.start(3)
        killed = fail_over(replicas, signal.SIGKILL)
        terminated = fail_over(replicas, signal.SIGTERM)
        print(f"\nsession {session:g} s: SIGKILL {killed:.2f} s, SIGTERM {terminated:.2f} s to the next first cycle")
        assert killed <= session + 2
        assert terminated <= 1


# Harm done to the topic.


def test_state_survives_the_loss_of_the_topic_and_of_its_records_while_a_process_runs(
    kraft_cluster: KraftCluster, topic: str, tmp_path: Path
) -> None:
    with (
        Replicas(kraft_cluster, tmp_path, topic, *FAST, "--session-timeout=3") as replicas,
        Reassignment(kraft_cluster, replicas) as reassignment,
    ):
        replicas.start(2)
        reassignment.start()
        deleted = datetime.now(UTC)
        kraft_cluster._call_admin(lambda admin: admin.delete_topics([topic]))
        cycle = replicas.next_cycle(deleted)
        print(f"\ntopic deleted: next cycle after {seconds_since(deleted, cycle.end_time):.2f} s")
        assert f"Records of the state topic {topic} were lost. Restored " in replicas.log()
        assert "began anew without" not in replicas.log()
        assert reassignment.is_throttled()

        deleted = datetime.now(UTC)
        delete_records(kraft_cluster, topic)
        cycle = replicas.next_cycle(deleted)
        print(f"records deleted: next cycle after {seconds_since(deleted, cycle.end_time):.2f} s")
        replicas.add(replicas.launch())  # it begins with the leader's new snapshot
        assert reassignment.is_throttled()
        reassignment.finish()
        replicas.stop()


@pytest.mark.repeat
def test_topic_deleted_while_no_process_runs_begins_anew_and_throttles_count_as_foreign(
    kraft_cluster: KraftCluster, topic: str, tmp_path: Path
) -> None:
    with (
        Replicas(kraft_cluster, tmp_path, topic, *FAST, "--session-timeout=3") as replicas,
        Reassignment(kraft_cluster, replicas) as reassignment,
    ):
        replicas.start()
        replicas.throttlectl("set", "50MB/s", "--beyond-capacity", "--broker", "1004")
        reassignment.start()
        throttle = {key: str(50 * MB) for key in (LEADER_RATE, FOLLOWER_RATE)}
        eventually(lambda: kraft_cluster.stored_configs().get("brokers/1004") == throttle, SECONDS)
        replicas.kill()
        kraft_cluster.delete_topic(topic)
        replicas.start()
        replicas.throttlectl("set", "500MB/s", "--beyond-capacity", "--autoremove")
        kraft_cluster.wait_until_reassigned(SECONDS)
        message = "Foreign throttles, not set by autothrottle, exist while there are no reassignments: [brokers/1004]; "
        eventually(lambda: f"{message}they stay; --cleanup-foreign removes them" in replicas.log(), SECONDS)
        remaining = {**reassignment.configs, "brokers/1004": throttle}
        eventually(lambda: reassignment.current_configs() == remaining, SECONDS)
        replicas.stop()
        remove_throttles(kraft_cluster)


@pytest.mark.repeat
def test_records_deleted_while_no_process_runs_prevent_the_start(
    kraft_cluster: KraftCluster, topic: str, tmp_path: Path
) -> None:
    with Replicas(kraft_cluster, tmp_path, topic, *FAST, "--session-timeout=3") as replicas:
        replicas.start()
        replicas.throttlectl("set", "50MB/s", "--beyond-capacity", "--broker", "1004")
        eventually(lambda: FOLLOWER_RATE in kraft_cluster.described_configs(1004), SECONDS)
        replicas.kill()
        configs = kraft_cluster.stored_configs()
        delete_records(kraft_cluster, topic)
        process = replicas.launch()
        assert process.wait(SECONDS) == EXIT_FAILED
        assert process.log_end().endswith(
            "restore a backup with `autothrottle state import`, or begin without a ledger"
        ), process.log_end()
        assert f"The state topic {topic} lacks its beginning: the records before offset" in process.log_end()
        assert kraft_cluster.stored_configs() == configs
        remove_throttles(kraft_cluster)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("retention.ms", "604800000"),
        pytest.param("retention.bytes", "1000000000", marks=pytest.mark.repeat),
        pytest.param("cleanup.policy", "compact", marks=pytest.mark.repeat),
        pytest.param("min.insync.replicas", "1", marks=pytest.mark.repeat),
        pytest.param("unclean.leader.election.enable", "true", marks=pytest.mark.repeat),
    ],
)
def test_topic_with_a_setting_that_could_lose_records_is_refused(
    kraft_cluster: KraftCluster, topic: str, tmp_path: Path, setting: str, value: str
) -> None:
    kraft_cluster.create_topic(topic, {0: [1001, 1002, 1003]}, {setting: value})
    with Replicas(kraft_cluster, tmp_path, topic) as replicas:
        process = replicas.launch()
        assert process.wait(SECONDS) == EXIT_USAGE
    assert f"Topic {topic} has {setting}={value}, so records of our state could be lost" in process.log_end()
    assert re.search(rf"Fix: kafka-configs.sh .* --entity-name {topic} --add-config {setting}=\S+$", process.log_end())


def test_topic_with_two_partitions_is_refused(kraft_cluster: KraftCluster, topic: str, tmp_path: Path) -> None:
    kraft_cluster.create_topic(topic, {p: [1001, 1002, 1003] for p in range(2)})
    with Replicas(kraft_cluster, tmp_path, topic) as replicas:
        process = replicas.launch()
        assert process.wait(SECONDS) == EXIT_USAGE
    assert f"Topic {topic} has 2 partitions and must have 1" in process.log_end()


@pytest.mark.repeat
def test_compaction_of_the_topic_of_a_running_leader_is_reported_with_its_fix(
    kraft_cluster: KraftCluster, topic: str, tmp_path: Path
) -> None:
    """Kafka refuses our records then, because they have no key. The log had a traceback per second, and no fix."""
    with Replicas(kraft_cluster, tmp_path, topic, *FAST, "--session-timeout=3") as replicas:
        replicas.start()
        kraft_cluster.set_configs_as_a_user({"cleanup.policy": "compact"}, topic=topic)
        fix = f"--entity-name {topic} --add-config cleanup.policy=delete"
        eventually(lambda: fix in replicas.log(), SECONDS)
        time.sleep(5)
        assert replicas.log().count("The election is interrupted") <= 3
        assert replicas.log().count(fix) == 1
        restored = datetime.now(UTC)
        kraft_cluster.set_configs_as_a_user({"cleanup.policy": "delete"}, topic=topic)
        print(f"\nnext cycle after {seconds_since(restored, replicas.next_cycle(restored).end_time):.2f} s")
        replicas.stop()


# Outages of brokers.


def state_leader(cluster: KafkaCluster, topic: str) -> int:
    """Return the broker that leads the state topic."""
    return cluster.partitions([topic])[topic, 0].leader


def can_append(log: TopicLog) -> bool:
    """Append an empty record; return whether it is committed."""
    try:
        log.append([b"{}"], time.monotonic() + 2.0)
    except Unavailable:  # the broker that was asked does not know the new leader yet
        return False
    return True


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_lost_replica_of_the_topic_is_replaced(kraft_cluster: KraftCluster, topic: str, role: str) -> None:
    """Until the session of the lost broker ended, no record was committed although two replicas were in sync."""
    kraft_cluster.create_topic(topic, {0: [1001, 1002, 1003]}, {"min.insync.replicas": "2"})
    with closing(TopicLog(KafkaSettings(tuple(kraft_cluster.bootstrap_servers.split(","))), topic)) as log:

        def repair(is_stuck: bool) -> str:
            if (change := log.fetch_repair(time.monotonic() + SECONDS, is_stuck)) is None:
                return ""
            assert {*log.change_replicas(change, time.monotonic() + SECONDS)} == {*change.new_replicas}
            return str(change)

        leader = state_leader(kraft_cluster, topic)
        lost = leader if role == "leader" else {1001: 1002}.get(leader, 1001)
        assert not repair(is_stuck=True), "all answer"
        outdated = ReplicaChange((1001, 1002), (1001, 1002, 1004), None)
        with pytest.raises(Conflict):
            log.change_replicas(outdated, time.monotonic() + SECONDS)
        kraft_cluster.set_configs_as_a_user({"cordoned.log.dirs": "*"}, broker_id=1004)
        kraft_cluster.brokers[lost].freeze()
        try:
            assert not repair(is_stuck=False)
            assert repair(is_stuck=True).endswith(f", because broker {lost} does not answer")
            eventually(lambda: can_append(log), SECONDS)
            assert lost not in kraft_cluster.partitions([topic])[topic, 0].replicas
            eventually(lambda: repair(is_stuck=False).endswith(", so that it has three again"), SECONDS)
        finally:
            kraft_cluster.brokers[lost].thaw()
            kraft_cluster.set_configs_as_a_user({"cordoned.log.dirs": None}, broker_id=1004)
        eventually(lambda: len(kraft_cluster.partitions([topic])[topic, 0].isr) == 3, SECONDS)
        kept = {1001, 1002, 1003} - {lost}
        assert {*kraft_cluster.partitions([topic])[topic, 0].replicas} == {*kept, 1005}, "1004 was cordoned"
        assert not repair(is_stuck=False), "three are enough"


@pytest.mark.repeat
@pytest.mark.measures
@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_next_cycle_follows_the_loss_of_a_broker_of_the_state_topic_before_its_session_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, role: str
) -> None:
    """With Kafka's defaults. It took 10.7 s, since Kafka waits for a lost replica until its session of 9 s ends."""
    monkeypatch.setitem(cast(dict[str, object], kafka_kraft._PROPERTIES), "broker.session.timeout.ms", 9_000)
    with (
        scratch_directory() as directory,
        KraftCluster(directory, (1001, 1002, 1003, 1004)) as cluster,
        Replicas(cluster, tmp_path, DEFAULT_TOPIC) as replicas,
    ):
        replicas.start(2)
        leader = state_leader(cluster, DEFAULT_TOPIC)
        followers = [b for b in cluster.partitions([DEFAULT_TOPIC])[DEFAULT_TOPIC, 0].replicas if b != leader]
        lost = leader if role == "leader" else followers[0]
        other = followers[1]
        replicas.throttlectl("set", "50MB/s", "--beyond-capacity", "--broker", str(other))
        with AdminClient(list(replicas.processes)) as admin:
            admin.set_override(40 * MB, broker_id=other)  # its cycle writes to the ledger
            lost_at = datetime.now(UTC)
            if how == "killed":
                cluster.kill_broker(lost)
            else:
                cluster.brokers[lost].freeze()
        eventually(lambda: lost not in cluster.partitions([DEFAULT_TOPIC])[DEFAULT_TOPIC, 0].replicas, SECONDS)
        dropped_at = datetime.now(UTC)
        cycle = replicas.next_cycle(lost_at)
        delay = seconds_since(lost_at, cycle.start_time)
        print(f"\n{role} {how}: it is dropped after {seconds_since(lost_at, dropped_at):.2f} s")
        print(
            f"the next cycle begins after {delay:.2f} s and ends after {seconds_since(lost_at, cycle.end_time):.2f} s"
        )
        eventually(lambda: cluster.described_configs(other).get(FOLLOWER_RATE) == str(40 * MB), SECONDS)
        eventually(lambda: len(cluster.partitions([DEFAULT_TOPIC])[DEFAULT_TOPIC, 0].isr) == 3, SECONDS)
        print(f"three replicas are in sync again after {seconds_since(lost_at, datetime.now(UTC)):.2f} s")
        assert delay <= 8, "before the session of 9 s ends"
        cluster.brokers[lost].thaw()


@pytest.mark.repeat
@pytest.mark.measures
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_sigterm_ends_all_processes_within_5_seconds_while_all_brokers_are_down(
    cluster: KraftCluster, tmp_path: Path, how: str
) -> None:
    with Replicas(cluster, tmp_path, DEFAULT_TOPIC) as replicas:
        replicas.start(2)
        for broker in cluster.brokers.values():
            broker.kill() if how == "killed" else broker.freeze()
        for wait_seconds, process in zip((0.5, 7.0), list(replicas.processes.values()), strict=True):
            time.sleep(wait_seconds)
            began = time.monotonic()
            process.terminate()
            assert process.wait(30.0) == 0, process.log_end()
            seconds = time.monotonic() - began
            print(f"\nall brokers {how}: ended {seconds:.2f} s after SIGTERM")
            assert seconds <= 5


@pytest.mark.repeat
@pytest.mark.parametrize("brokers", [(1001,), (1001, 1002)])
def test_cluster_of_one_or_two_brokers_holds_the_state(tmp_path: Path, brokers: tuple[int, ...]) -> None:
    with (
        scratch_directory() as directory,
        KraftCluster(directory, brokers) as cluster,
        Replicas(cluster, tmp_path, DEFAULT_TOPIC, *FAST, "--session-timeout=3") as replicas,
    ):
        replicas.start(2)
        assert len(cluster.partitions([DEFAULT_TOPIC])[DEFAULT_TOPIC, 0].replicas) == len(brokers)
        assert cluster.described_topic_configs(DEFAULT_TOPIC)["min.insync.replicas"] == "1"
        replicas.throttlectl("set", "50MB/s", "--beyond-capacity", "--broker", "1001")
        eventually(lambda: cluster.described_configs(1001).get(FOLLOWER_RATE) == str(50 * MB), SECONDS)
        fail_over(replicas, signal.SIGTERM)
        if len(brokers) > 1:
            lost = datetime.now(UTC)
            cluster.kill_broker(state_leader(cluster, DEFAULT_TOPIC))
            seconds = seconds_since(lost, replicas.next_cycle(lost).end_time)
            print(f"\none of two brokers killed: next cycle after {seconds:.2f} s")
            cluster.start_broker(next(b for b in brokers if not cluster.brokers[b].running))
        replicas.throttlectl("remove", "--all")
        eventually(lambda: FOLLOWER_RATE not in cluster.described_configs(1001), SECONDS)
        replicas.stop()


@pytest.mark.repeat
def test_newcomer_sees_a_leader_and_the_first_throttle_within_a_minute(cluster: KraftCluster, tmp_path: Path) -> None:
    """The shortest command, and then Kafka's own tool; only the addresses differ, because others may use the ports."""
    cluster.create_topic("moving", {p: [1001 + p % 2, 1002 - p % 2] for p in range(4)})
    fill(cluster, "moving", 30 * MB, record_bytes=20_000)
    with Replicas(cluster, tmp_path, DEFAULT_TOPIC) as replicas, RecoveryWatch(cluster, "moving") as watch:
        replicas.flags = [f"--bootstrap-servers={cluster.bootstrap_servers}", "--capacity=1000MB/s"]
        began = time.monotonic()
        process = replicas.launch()
        address = address_of(process)
        eventually(lambda: shows_a_leader(address), SECONDS)
        leads = time.monotonic()
        cluster.reassign_through_tool({("moving", p): (1001 + p % 2, DESTINATION) for p in range(4)})
        sample = watch.wait_until(
            lambda s: (DESTINATION, FOLLOWER_RATE) in s.rates and bool(s.lists[1]), SECONDS, "throttled"
        )
        print(f"\na leader after {leads - began:.1f} s, the first throttle after {sample.at - began:.1f} s")
        assert sample.at - began <= 60
        process.stop()


def shows_a_leader(address: str) -> bool:
    """Whether `throttlectl state` names a leader."""
    try:
        return re.search(r"^leader +127", throttlectl(address, "state"), re.MULTILINE) is not None
    except subprocess.CalledProcessError:
        return False


@pytest.mark.repeat
def test_topic_that_must_not_be_created_is_reported_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    for key, value in properties.items():
        monkeypatch.setitem(cast(dict[str, object], kafka_kraft._PROPERTIES), key, value)
    with scratch_directory() as directory, KraftCluster(directory) as cluster:
        allow_all_but_create(cluster)
        with Replicas(cluster, tmp_path, DEFAULT_TOPIC) as replicas:
            process = replicas.launch()
            assert process.wait(SECONDS) == EXIT_USAGE
    assert f"Kafka answers for topic {DEFAULT_TOPIC}: TopicAuthorizationFailed" in process.log_end()
    command = f"kafka-topics.sh --bootstrap-server {cluster.bootstrap_servers} --create --topic {DEFAULT_TOPIC} "
    assert f"Or create the topic yourself: {command}--partitions 1 --replication-factor 3 " in process.log_end()


def allow_all_but_create(cluster: KraftCluster) -> None:
    """Give everybody the rights of the brokers and of autothrottle, but not that of creating the topic."""
    admin = kafka.admin
    cluster_acls = ("CLUSTER_ACTION", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER", "ALTER_CONFIGS")
    topic_acls = ("DESCRIBE", "READ", "WRITE", "DELETE", "DESCRIBE_CONFIGS")
    resources = {
        admin.ResourcePattern(admin.ResourceType.CLUSTER, "kafka-cluster"): cluster_acls,
        admin.ResourcePattern(admin.ResourceType.TOPIC, DEFAULT_TOPIC): topic_acls,
    }
    allowed = admin.ACLPermissionType.ALLOW
    acls = [
        admin.ACL("User:ANONYMOUS", "*", admin.ACLOperation[operation], allowed, resource)
        for resource, operations in resources.items()
        for operation in operations
    ]
    cluster._call_admin(lambda client: client.create_acls(acls))


# High availability.

KILL_SECONDS = 20.0
PACE = "3MB/s"
"""Override that makes a recovery take half a minute."""


class Killer:
    """Kills one of three processes every 20 s, and starts it again 2 s later; a context manager."""

    def __init__(self, replicas: Replicas, cluster: KafkaCluster) -> None:
        self.replicas, self.kills, self.leaders_killed = replicas, 0, 0
        self._flags = [f"--bootstrap-servers={cluster.bootstrap_servers}", "--capacity=1000MB/s", "--cluster-name=lab"]
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer", daemon=True)
        self.takeovers: list[float] = []
        """Seconds from the SIGKILL of a leader to the first cycle of the next one."""

    def __enter__(self) -> Killer:
        self.replicas.flags = self._flags
        self.replicas.start(3)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(KILL_SECONDS):
            self._kill_one()

    def _kill_one(self) -> None:
        """Kill the leader two times of three, else the process that runs for the longest time."""
        self.kills += 1
        state = self.replicas.state()
        victim = next(iter(self.replicas.processes))
        is_leader = state is not None and self.kills % 3 != 0
        if state is not None and is_leader:
            victim = state.leader_address
        killed_at = datetime.now(UTC)
        self.replicas.processes.pop(victim).kill()
        if state is not None and is_leader:
            self.leaders_killed += 1
            self.takeovers.append(seconds_since(killed_at, self.replicas.next_cycle(killed_at, state.term).end_time))
        self.replicas.add(self.replicas.launch())


def recover_while_processes_die(cluster: KraftCluster, directory: Path, kills: int) -> None:
    """Reassign back and forth while processes are killed; check that throttles stay, and that nothing is left over."""
    sides = ({p: (1001, 1002) for p in range(4)}, {p: (1003, 1004) for p in range(4)})
    cluster.create_topic("paced", sides[0])
    fill(cluster, "paced", 20 * MB, record_bytes=20_000)
    with Replicas(cluster, directory, DEFAULT_TOPIC) as replicas:
        configs, recoveries, unthrottled = cluster.stored_configs(), 0, list[float]()
        with Killer(replicas, cluster) as killer:
            replicas.throttlectl("set", PACE)
            while killer.kills < kills:
                recoveries += 1
                targets = {("paced", p): to for p, to in sides[recoveries % 2].items()}
                with RecoveryWatch(cluster, "paced") as watch:
                    cluster.reassign_through_bootstrap(targets)
                    watch.wait_until(lambda s: not s.moving and not s.rates and not any(s.lists), 180, "clean")
                unthrottled.append(watch.unthrottled_seconds())
                print(
                    f"recovery {recoveries}: {unthrottled[-1]:.1f} s unthrottled, {len(watch.samples)} samples, "
                    f"{killer.kills} kills",
                    flush=True,
                )
        replicas.throttlectl("remove", "--all")
        print(
            f"{killer.kills} kills, {killer.leaders_killed} of leaders, next cycle after at most "
            f"{max(killer.takeovers):.1f} s; {recoveries} recoveries, {sum(unthrottled):.1f} s unthrottled"
        )
        without_state = {e: c for e, c in cluster.stored_configs().items() if e != f"topics/{DEFAULT_TOPIC}"}
        assert without_state == configs
        assert sum(unthrottled) == 0
        replicas.stop()


@pytest.mark.repeat
@pytest.mark.timeout(600)
def test_recoveries_stay_throttled_while_processes_are_killed(tmp_path: Path) -> None:
    with (
        scratch_directory() as directory,
        KraftCluster(directory, (1001, 1002, 1003, 1004), broker_properties=SMALL_FETCHES) as cluster,
    ):
        recover_while_processes_die(cluster, tmp_path, kills=3)
