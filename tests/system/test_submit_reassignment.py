"""`throttlectl reassign` on real Kafka: throttles are set before a byte is copied, and removed at the end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from autothrottle_lab.observation.metadata_log import ConfigWritten, PartitionWritten
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_kraft import KraftCluster
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.system.recovery_watch import admin_backend_options, running_services

SECONDS = 300.0
MB = 1_000_000
RATE = 1 * MB
"""Rate of every broker, bytes/s: the minimum rate, because the brokers have no metrics."""

PARTITIONS, PARTITION_BYTES = 4, 5 * MB
DESTINATION = 1005
SPARE = 11 * RATE + 2 * MB
"""Bytes that a quota meter may let through at once: one unused window, and one fetch response of each leader.

Without a throttle, all bytes of the topic arrive within a second.
"""

COMMAND = (sys.executable, "-m", "autothrottle_client.throttlectl")

Configs = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Backend:
    """A cluster, and the services' options to access it."""

    name: str
    cluster: KafkaCluster
    options: Mapping[str, str]
    zookeeper: ZooKeeperServer

    def mark(self) -> int:
        """Return the current end of the cluster's history: a metadata offset or a zxid."""
        if isinstance(self.cluster, KraftCluster):
            return self.cluster.metadata.last_offset()
        return self.zookeeper.last_zxid()

    def configs_at_the_start(self, topic: str, mark: int) -> tuple[Configs, datetime, datetime]:
        """Return (configs written before the reassignment, time of the last write, start of the reassignment)."""
        history = self._records(mark) if isinstance(self.cluster, KraftCluster) else self._transactions(mark)
        written: dict[str, dict[str, str]] = {}
        last: datetime | None = None
        for at, entity, config in history:
            if config is not None:
                written.setdefault(entity, {}).update(config)
                last = at
            elif entity == topic:
                assert last is not None, "no config was written before the reassignment"
                return written, last, at
        raise AssertionError("the reassignment has not started")

    def _records(self, mark: int) -> Iterator[tuple[datetime, str, Mapping[str, str] | None]]:
        assert isinstance(self.cluster, KraftCluster)
        for record in self.cluster.metadata.records(mark):
            if isinstance(record.change, ConfigWritten) and record.change.value is not None:
                yield record.time, record.change.entity, {record.change.key: record.change.value}
            elif isinstance(record.change, PartitionWritten) and record.change.state.adding_replicas:
                yield record.time, record.change.partition[0], None

    def _transactions(self, mark: int) -> Iterator[tuple[datetime, str, Mapping[str, str] | None]]:
        for transaction in self.zookeeper.transactions(mark):
            for operation in transaction.operations:
                data = operation.data or b""
                value = json.loads(data) if data.startswith(b"{") else {}
                if re.match(r"/config/(brokers|topics)/", operation.path):
                    yield transaction.time, operation.path.removeprefix("/config/"), value["config"]
                elif operation.path == "/admin/reassign_partitions" and value:
                    for row in value["partitions"]:
                        yield transaction.time, row["topic"], None
                elif operation.path.startswith("/brokers/topics/") and any(value.get("adding_replicas", {}).values()):
                    yield transaction.time, operation.path.split("/")[3], None


@pytest.fixture(
    params=[
        pytest.param("znode", marks=pytest.mark.xdist_group("kafka_cluster")),
        pytest.param("admin-zookeeper", marks=[pytest.mark.xdist_group("kafka_cluster"), pytest.mark.repeat]),
        pytest.param("admin-kraft", marks=pytest.mark.xdist_group("kraft_cluster")),
    ]
)
def backend(request: pytest.FixtureRequest, zookeeper: ZooKeeperServer) -> Backend:
    if request.param == "admin-kraft":
        kraft: KraftCluster = request.getfixturevalue("kraft_cluster")
        return Backend(request.param, kraft, admin_backend_options(kraft), zookeeper)
    cluster: ZooKeeperModeCluster = request.getfixturevalue("kafka_cluster")
    options = admin_backend_options(cluster) if request.param == "admin-zookeeper" else {}
    return Backend(request.param, cluster, options, zookeeper)


@pytest.fixture
def running(backend: Backend, tmp_path: Path) -> Iterator[str]:
    """All services in one process, without metrics and with an interval longer than the test; its gRPC address."""
    options = {
        "zk-addr": backend.zookeeper.connect,
        "zk-config-prefix": f"submitting-{backend.name}",
        "session-timeout": "10",
        "min-rate": str(RATE // MB),
        **backend.options,
    }
    with running_services(options, tmp_path, SECONDS) as address:
        yield address


@pytest.fixture
def topic(backend: Backend) -> Iterator[str]:
    """A topic whose partitions each have replicas on two of the first three brokers."""
    name = f"submitted-{backend.name}"
    backend.cluster.create_topic(name, {p: [1001 + p % 3, 1001 + (p + 1) % 3] for p in range(PARTITIONS)})
    try:
        fill(backend.cluster, name, PARTITION_BYTES)
        yield name
    finally:
        backend.cluster.delete_topic(name)


@pytest.fixture
def plan(topic: str, tmp_path: Path) -> Path:
    """A plan that replaces the second replica of each partition by the destination."""
    rows = [{"topic": topic, "partition": p, "replicas": [1001 + p % 3, DESTINATION]} for p in range(PARTITIONS)]
    rows[0]["log_dirs"] = ["/data/1", "/data/2"]  # as in a rollback file of Kafka 4.2
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return path


def throttlectl(address: str, *arguments: str, status: int = 0) -> tuple[str, str]:
    command = [*COMMAND, *arguments, "--addr", address, "--timeout", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout, done.stderr


def needed(topic: str) -> Mapping[str, Mapping[str, str]]:
    """Return the configs that the plan's reassignment needs before it starts."""
    leader, follower = "leader.replication.throttled", "follower.replication.throttled"
    entries = sorted((p, b) for p in range(PARTITIONS) for b in (1001 + p % 3, 1001 + (p + 1) % 3))
    lists = {
        f"{leader}.replicas": ",".join(f"{p}:{b}" for p, b in entries),
        f"{follower}.replicas": ",".join(f"{p}:{DESTINATION}" for p in range(PARTITIONS)),
    }
    leaders = {f"brokers/{1001 + p % 3}": {f"{leader}.rate": str(RATE)} for p in range(PARTITIONS)}
    return {**leaders, f"brokers/{DESTINATION}": {f"{follower}.rate": str(RATE)}, f"topics/{topic}": lists}


def contains(configs: Configs, wanted: Configs) -> bool:
    return all(values.items() <= configs.get(entity, {}).items() for entity, values in wanted.items())


@dataclass(frozen=True, slots=True)
class Sample:
    """The bytes copied, and then the configs, read between two moments."""

    begin: float
    end: float
    bytes_copied: int
    throttled: bool


class Watch:
    """Samples the destination's disk and the throttles as often as possible; a context manager."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._cluster, self._topic, self._wanted = cluster, topic, needed(topic)
        self.samples: list[Sample] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="submission watch", daemon=True)

    def __enter__(self) -> Watch:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(0.02):
            self._sample()

    def _sample(self) -> None:
        begin = time.monotonic()
        logs = self._cluster.log_bytes(DESTINATION)
        copied = sum(size for (topic, _), size in logs.items() if topic == self._topic)
        throttled = contains(self._cluster.stored_configs(), self._wanted)
        self.samples.append(Sample(begin, time.monotonic(), copied, throttled))

    def copied_before_the_throttle(self) -> int:
        """Return the most bytes in any sample without complete throttles, which it read after the bytes."""
        first = next(index for index, sample in enumerate(self.samples) if sample.throttled)
        return max(sample.bytes_copied for sample in self.samples[:first])

    def most_above_the_rate(self) -> int:
        """Return the largest excess of the bytes copied over what the rate allows since it was set."""
        first = next(index for index, sample in enumerate(self.samples) if sample.throttled)
        # The rate may have been set at any time since the previous sample.
        since, copying = self.samples[first - 1].begin, [s for s in self.samples[first:] if s.bytes_copied]
        return max(round(s.bytes_copied - RATE * (s.end - since)) for s in copying)


@pytest.mark.timeout(900)
def test_reassignment_is_throttled_before_a_byte_is_copied_and_leaves_no_config(
    backend: Backend, running: str, topic: str, plan: Path
) -> None:
    before, mark = backend.cluster.stored_configs(), backend.mark()
    with Watch(backend.cluster, topic) as watch:
        output, _ = throttlectl(running, "reassign", str(plan), "--output", "json")
    submitted, *followed, arrived = map(json.loads, output.splitlines())
    assert (submitted["submitted"], submitted["refused"], arrived) == (PARTITIONS, {}, {"arrived": PARTITIONS})
    assert followed[-1]["done"] == followed[-1]["partitions"] == PARTITIONS

    written, throttled_at, began_at = backend.configs_at_the_start(topic, mark)
    assert contains(written, needed(topic)), written
    assert watch.copied_before_the_throttle() == 0
    copied = max(sample.bytes_copied for sample in watch.samples)
    excess = watch.most_above_the_rate()
    ahead = (began_at - throttled_at).total_seconds()
    print(
        f"\n{backend.name}: throttles set {ahead:.2f} s before the reassignment started; copied 0 bytes before, "
        f"{copied / MB:.1f} MB in all, at most {excess / MB:.2f} MB more than rate x time"
    )
    assert copied >= PARTITIONS * PARTITION_BYTES
    assert excess <= SPARE
    eventually(lambda: backend.cluster.stored_configs() == before, SECONDS)
    states = backend.cluster.partitions([topic])
    assert {number: state.replicas for (_, number), state in states.items()} == {
        p: (1001 + p % 3, DESTINATION) for p in range(PARTITIONS)
    }
    again, _ = throttlectl(running, "reassign", str(plan))
    assert again == f"nothing to do: all {PARTITIONS} partitions already have these replicas\n"


@pytest.mark.timeout(900)
def test_cancelled_reassignment_leaves_no_config(backend: Backend, running: str, topic: str, plan: Path) -> None:
    before = backend.cluster.stored_configs()
    replicas = {partition: state.replicas for partition, state in backend.cluster.partitions([topic]).items()}
    throttlectl(running, "set", "200kB/s")  # slow enough to cancel the reassignment before it ends
    output, _ = throttlectl(running, "reassign", str(plan), "--no-wait")
    assert output == f"{PARTITIONS} partitions submitted, throttled from the first byte\n"
    if backend.name == "znode":
        _, refusal = throttlectl(running, "cancel", str(plan), status=2)
        assert "cannot be cancelled through ZooKeeper" in refusal and "--kafka-backend admin" in refusal
        throttlectl(running, "set", "100MB/s", "--beyond-capacity")
        backend.cluster.wait_until_reassigned(SECONDS)
    else:
        cancelled, _ = throttlectl(running, "cancel", str(plan))
        assert cancelled.endswith(f"\nreassignment of {PARTITIONS} of {PARTITIONS} partitions cancelled\n")
        assert throttlectl(running, "reassignments")[0] == "no partitions are being reassigned\n"
        left = backend.cluster.partitions([topic])
        assert {partition: state.replicas for partition, state in left.items()} == replicas
        throttlectl(running, "cancel", str(plan), status=3)
    throttlectl(running, "remove")
    eventually(lambda: backend.cluster.stored_configs() == before, SECONDS)


@pytest.mark.timeout(600)
def test_plan_that_takes_something_away_is_refused_and_the_rest_submitted(
    backend: Backend, running: str, tmp_path: Path
) -> None:
    """A plan from three replicas to one was submitted without a word, and every producer with acks=all failed."""
    name, three = f"kept-{backend.name}", [1001, 1002, 1003]
    targets = {0: [1001], 1: [1001, 1002, 1009], 2: [1002, 1001, DESTINATION]}

    def file_of(*partitions: int) -> str:
        rows = [{"topic": name, "partition": p, "replicas": targets[p]} for p in partitions]
        path = tmp_path / f"{len(rows)}.json"
        path.write_text(json.dumps({"version": 1, "partitions": rows}))
        return str(path)

    def replicas() -> dict[int, list[int]]:
        return {p: list(state.replicas) for (_, p), state in backend.cluster.partitions([name]).items()}

    backend.cluster.create_topic(name, dict.fromkeys(targets, three), {"min.insync.replicas": "2"})
    try:
        plan = file_of(0, 1, 2)
        dead = (
            f"broker 1009, a target replica of {name}-1, is unknown or down; the registered brokers are "
            f"[1001, 1002, 1003, 1004, {DESTINATION}]; start the broker, or name another"
        )
        # Without the Admin API, the settings of topics are unknown.
        effect = (
            ", below min.insync.replicas=2, so that producers with acks=all fail" if backend.name != "znode" else ""
        )
        cut = f"{name}-0 would have 1 replica instead of 3{effect}; to submit it nevertheless: --allow-fewer-replicas"
        for command in (["estimate", plan], ["reassign", plan, "--dry-run"], ["reassign", plan]):
            assert throttlectl(running, *command, status=2)[1].splitlines() == [
                "throttlectl: 2 partitions are refused:",
                f"  {dead}",
                f"  {cut}",
                "  to leave refused partitions out and submit the 1 other partition: --skip-refused",
            ]
        assert replicas() == dict.fromkeys(targets, three)
        output, left_out = throttlectl(running, "reassign", plan, "--skip-refused")
        assert output.splitlines()[-1] == "1 partitions arrived"
        assert f"left out: {dead}" in left_out and f"left out: {cut}" in left_out
        assert replicas() == {0: three, 1: three, 2: targets[2]}
        assert throttlectl(running, "reassign", file_of(0), status=1)[1] == f"throttlectl: {cut}\n"
        throttlectl(running, "reassign", file_of(0), "--allow-fewer-replicas")
        assert replicas()[0] == targets[0]
        if backend.name == "admin-kraft":
            backend.cluster.set_configs_as_a_user({"cordoned.log.dirs": "*"}, broker_id=DESTINATION)
            targets[1] = [1002, 1001, DESTINATION]
            cordoned = f"broker {DESTINATION}, a target replica of {name}-1, is cordoned"
            refusal = f"throttlectl: {cordoned}; to submit it nevertheless: --allow-cordoned\n"
            assert throttlectl(running, "reassign", file_of(1), status=1)[1] == refusal
            throttlectl(running, "reassign", file_of(1), "--dry-run", "--allow-cordoned")
    finally:
        if backend.name == "admin-kraft":
            backend.cluster.set_configs_as_a_user({"cordoned.log.dirs": None}, broker_id=DESTINATION)
        backend.cluster.delete_topic(name)
