"""Log sizes of real brokers, in ZooKeeper mode and in KRaft mode, and the reassignment progress computed from them."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.snapshots import AdminSnapshots
from autothrottle.adapters.kafka_admin.sources import KafkaFetchSettings, KafkaLogSizes
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.kafka_common.progress_reader import GrowthReader, ProgressReader
from autothrottle.adapters.kafka_zookeeper.snapshots import ZooKeeperSnapshots
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper_state.ledger import ZooKeeperLedgerReader
from autothrottle.core.cluster.configs import FetchSettings
from autothrottle.core.cluster.flows import CopiedMark, Flow, FlowProgress
from autothrottle.core.cluster.snapshot import LogSizes, Snapshot, SnapshotRequest, TopicReassignment
from autothrottle.core.forecast.progress import remainder
from autothrottle.ports.kafka import SnapshotSource
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.kafka import KafkaCluster
from autothrottle_lab.servers.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.server_fixtures import repeat_on_kraft
from tests.system.zookeeper_tree import session

MB = 1_000_000
TIMEOUT = timedelta(seconds=30)
SIDES = {1001: "leader.replication.throttled", 1004: "follower.replication.throttled"}
FLOW = Flow(1001, 1004)
PRODUCED = 10 * MB
"""Bytes that clients produce to each partition of another topic during the reassignment."""


@contextlib.contextmanager
def admin(cluster: KafkaCluster) -> Iterator[KafkaAdmin]:
    opened = KafkaAdmin(KafkaSettings(tuple(cluster.bootstrap_servers.split(","))))
    try:
        yield opened
    finally:
        opened.close()


@contextlib.contextmanager
def topic(cluster: KafkaCluster, assignment: dict[int, list[int]], size: int) -> Iterator[str]:
    name = f"sizes-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, assignment)
    try:
        fill(cluster, name, size)
        yield name
    finally:
        cluster.delete_topic(name)


def on_disk(cluster: KafkaCluster, broker_id: int, name: str) -> dict[tuple[str, int], int]:
    return {row: size for row, size in cluster.log_bytes(broker_id).items() if row[0] == name}


def test_sizes_match_the_disk_and_carry_the_time_of_the_answer(each_cluster: KafkaCluster) -> None:
    assignment = {0: [1001, 1002], 1: [1002, 1003]}
    with topic(each_cluster, assignment, 20 * MB) as name, admin(each_cluster) as kafka:
        began = datetime.now(UTC)
        read = KafkaLogSizes(kafka).fetch_log_sizes({b: {name: [0, 1]} for b in (1001, 1002, 1003, 1004)}, TIMEOUT)
        ended = datetime.now(UTC)
        assert read.problems == {}
        for broker_id, logs in read.brokers.items():
            assert logs.sizes == on_disk(each_cluster, broker_id, name)
            assert began <= logs.at <= ended
        assert read.brokers.keys() == {1001, 1002, 1003, 1004}
        # A log of 20 MB has two segments of at most 16 MB; both count.
        assert all(size >= 20 * MB for logs in read.brokers.values() for size in logs.sizes.values())
        assert read.brokers[1002].sizes.keys() == {(name, 0), (name, 1)}
        assert read.brokers[1004].sizes == {}


def test_only_requested_log_sizes_are_returned(each_cluster: KafkaCluster) -> None:
    assignment = {0: [1001, 1002], 1: [1001, 1003]}
    with topic(each_cluster, assignment, 1 * MB) as name, admin(each_cluster) as kafka:
        read = KafkaLogSizes(kafka).fetch_log_sizes({1001: {name: [1], "never-made": [0]}}, TIMEOUT)
        assert read.brokers[1001].sizes.keys() == {(name, 1)}


def test_stopped_broker_fails_alone(each_cluster: KafkaCluster) -> None:
    with topic(each_cluster, {0: [1001, 1002]}, 1 * MB) as name, admin(each_cluster) as kafka:
        each_cluster.kill_broker(1005)
        try:
            wanted = {b: {name: [0]} for b in (1001, 1002, 1005)}
            read = KafkaLogSizes(kafka).fetch_log_sizes(wanted, timedelta(seconds=10))
        finally:
            each_cluster.start_broker(1005, within_seconds=180)
        assert read.brokers.keys() == {1001, 1002}
        assert read.problems.keys() == {1005}
        assert "1005" in read.problems[1005] or "127.0.0.1" in read.problems[1005]


@repeat_on_kraft
def test_hanging_broker_delays_only_its_own_answer(each_cluster: KafkaCluster) -> None:
    with topic(each_cluster, {0: [1001, 1002]}, 1 * MB) as name, admin(each_cluster) as kafka:
        sizes = KafkaLogSizes(kafka)
        wanted = {b: {name: [0]} for b in (1001, 1002, 1005)}

        def all_answer() -> LogSizes | None:
            read = sizes.fetch_log_sizes(wanted, TIMEOUT)
            return read if read.brokers.keys() == wanted.keys() else None

        eventually(all_answer, 60)  # the client is connected to all brokers
        process = each_cluster.brokers[1005]
        process.freeze()
        try:
            began = datetime.now(UTC)
            read = sizes.fetch_log_sizes(wanted, timedelta(seconds=20))
        finally:
            process.thaw()
        assert read.brokers.keys() == {1001, 1002}
        assert read.problems.keys() == {1005}
        assert max(logs.at for logs in read.brokers.values()) - began < timedelta(seconds=15)
        # Its session may have expired. Wait until it has registered again, before the next test.
        eventually(lambda: 1005 in kafka.brokers(timeout=TIMEOUT) and all_answer(), 120)


@contextlib.contextmanager
def throttled(cluster: KafkaCluster, name: str, rate: int) -> Iterator[None]:
    """Throttle the copying of partition 0 from broker 1001 to 1004; a context manager."""
    lists: dict[str, str | None] = {f"{side}.replicas": f"0:{broker_id}" for broker_id, side in SIDES.items()}
    cluster.set_configs_as_a_user(lists, topic=name)
    for broker_id, side in SIDES.items():
        cluster.set_configs_as_a_user({f"{side}.rate": str(rate)}, broker_id=broker_id)
    for broker_id, side in SIDES.items():  # a broker applies configs in order, so the rate is the last one
        eventually(lambda b=broker_id, s=side: cluster.described_configs(b).get(f"{s}.rate") == str(rate))  # type: ignore[misc]
    try:
        yield
    finally:
        cluster.set_configs_as_a_user(dict.fromkeys(lists), topic=name)
        for broker_id, side in SIDES.items():
            cluster.set_configs_as_a_user({f"{side}.rate": None}, broker_id=broker_id)


@contextlib.contextmanager
def slow_reassignment(cluster: KafkaCluster, name: str, rate: int) -> Iterator[None]:
    """Reassign partition 0 from broker 1001 to 1004 under a throttle; on exit, remove the throttle and wait."""
    try:
        with throttled(cluster, name, rate):
            cluster.reassign_through_bootstrap({(name, 0): [1004]})
            yield
    finally:
        cluster.wait_until_reassigned()


class Reader(ProgressReader):
    """Signals the first call of `follow`."""

    def __init__(self, kafka: KafkaAdmin) -> None:
        self.started = threading.Event()
        sizes, often = KafkaLogSizes(kafka), timedelta(seconds=1)
        super().__init__(sizes, GrowthReader(sizes, interval=often), interval=often)

    def follow(
        self,
        reassignments: tuple[TopicReassignment, ...],
        brokers: Collection[int],
        unchanged_until: datetime | None = None,
    ) -> None:
        super().follow(reassignments, brokers, unchanged_until)
        self.started.set()


@contextlib.contextmanager
def followed(kafka: KafkaAdmin) -> Iterator[Reader]:
    reader = Reader(kafka)
    try:
        yield reader
    finally:
        reader.close()


class FlowSamples:
    """The progress of the flow in successive snapshots."""

    def __init__(self, source: SnapshotSource) -> None:
        self.source = source
        self.seen: list[FlowProgress] = []
        self.snapshot = Snapshot.empty()

    def sample(self) -> FlowProgress | None:
        self.snapshot = self.source.fetch_snapshot(timeout=TIMEOUT)
        assert self.snapshot.progress is not None
        found = self.snapshot.progress.flows.get(FLOW)
        if found is not None:
            self.seen.append(found)
        return found

    def produced(self, after: datetime) -> dict[int, tuple[int, int]]:
        """Return broker id -> (led, received) of the flow's brokers; brokers not read since `after` are absent."""
        self.sample()
        assert self.snapshot.progress is not None
        read = self.snapshot.progress.growth.items()
        return {b: (growth.led, growth.received) for b, growth in read if b in SIDES and growth.at > after}


def assert_growth_excludes_the_reassignment(cluster: KafkaCluster, samples: FlowSamples) -> None:
    """Produce to both brokers; their growth must contain these bytes, without those of the reassignment."""
    with topic(cluster, {0: [1001, 1004], 1: [1004, 1001]}, 1000) as other:
        created = datetime.now(UTC)
        eventually(lambda: samples.produced(created).keys() == SIDES.keys(), 60)
        known = samples.produced(created)
        size = on_disk(cluster, 1001, other)[other, 0]
        fill(cluster, other, PRODUCED)
        produced = on_disk(cluster, 1001, other)[other, 0] - size
        assert produced >= PRODUCED
        # Each broker leads one of the two partitions, and follows the other one.
        expected = {b: (led + produced, received + 2 * produced) for b, (led, received) in known.items()}

        def is_counted() -> bool:
            found = samples.produced(created)
            pairs = [(found[b], expected[b]) for b in SIDES]
            return all(abs(count - wanted) < MB for pair in pairs for count, wanted in zip(*pair, strict=True))

        eventually(is_counted, 60)


def follow_to_the_end(
    cluster: KafkaCluster, name: str, source: SnapshotSource, reader: Reader, until_eta: bool
) -> None:
    """Sample a slow reassignment to its end; with `until_eta`, keep it slow until its ETA is known."""
    size = on_disk(cluster, 1001, name)[name, 0]
    samples = FlowSamples(source)
    assert reader.started.wait(60)
    with slow_reassignment(cluster, name, 1 * MB):
        eventually(lambda: (found := samples.sample()) and found.bytes_copied > 0, 60)
        if until_eta:
            assert_growth_excludes_the_reassignment(cluster, samples)
        # Clients do not produce to this topic, so the bytes copied and left add up to the leader's log.
        assert {seen.bytes_copied + seen.bytes_left for seen in samples.seen} == {size}
        if until_eta:
            eventually(lambda: samples.sample() and (left := remainder(samples.snapshot)) and left.eta, 90)
            left = remainder(samples.snapshot)
            assert left is not None and left.eta is not None
            assert 0 < left.bytes_left < size
            assert left.at < left.eta < left.at + timedelta(minutes=10)
        assert (name, 0) in cluster.reassigning()
    eventually(lambda: (found := samples.sample()) and found.bytes_copied == size, 60)
    counts = [seen.bytes_copied for seen in samples.seen]
    assert counts == sorted(counts)
    assert len({seen.since for seen in samples.seen}) == 1
    # The reader saw the topic before the reassignment, so the count of copied bytes starts at 0.
    assert samples.seen[-1].recent[0] == CopiedMark(samples.seen[-1].since, 0)
    assert samples.seen[-1].bytes_left == 0
    assert samples.seen[-1].bytes_produced == 0
    eventually(lambda: samples.sample() and samples.snapshot.reassignments == (), 60)
    assert remainder(samples.snapshot) is None


def test_snapshots_report_progress_until_all_bytes_are_replicated(
    each_cluster: KafkaCluster, zookeeper: ZooKeeperServer
) -> None:
    own = OwnPaths(f"/progress-{uuid.uuid4().hex[:8]}")
    with (
        topic(each_cluster, {0: [1001]}, 120 * MB) as name,
        admin(each_cluster) as kafka,
        session(zookeeper) as client,
        contextlib.closing(ZooKeeperLedgerReader(client, own)) as ledger,
        followed(kafka) as reader,
        contextlib.closing(AdminSnapshots(kafka, ledger, timedelta(seconds=1), progress=reader)) as source,
    ):
        follow_to_the_end(each_cluster, name, source, reader, until_eta=True)


def test_zookeeper_snapshots_report_progress_until_all_bytes_are_replicated(
    kafka_cluster: ZooKeeperModeCluster, zookeeper: ZooKeeperServer
) -> None:
    own = OwnPaths(f"/progress-{uuid.uuid4().hex[:8]}")
    with (
        topic(kafka_cluster, {0: [1001]}, 60 * MB) as name,
        admin(kafka_cluster) as kafka,
        session(zookeeper) as client,
        followed(kafka) as reader,
        contextlib.closing(ZooKeeperSnapshots(client, KafkaPaths(""), own, reader)) as source,
    ):
        follow_to_the_end(kafka_cluster, name, source, reader, until_eta=False)


@repeat_on_kraft
def test_snapshots_report_the_missing_bytes_of_a_broker_until_it_is_in_sync(
    each_cluster: KafkaCluster, zookeeper: ZooKeeperServer
) -> None:
    own = OwnPaths(f"/progress-{uuid.uuid4().hex[:8]}")
    with (
        topic(each_cluster, {0: [1001, 1004]}, 10 * MB) as name,
        admin(each_cluster) as kafka,
        session(zookeeper) as client,
        contextlib.closing(ZooKeeperLedgerReader(client, own)) as ledger,
        followed(kafka) as reader,
        contextlib.closing(AdminSnapshots(kafka, ledger, timedelta(seconds=1), progress=reader)) as source,
    ):
        each_cluster.wait_until_in_sync([name])

        def progress() -> FlowProgress | None:
            snapshot = source.fetch_snapshot(
                SnapshotRequest(partitions=[(name, 0)], catching_up=[1004]), timeout=TIMEOUT
            )
            assert snapshot.reassignments == () and snapshot.progress is not None
            return snapshot.progress.flows.get(FLOW)

        with throttled(each_cluster, name, 1 * MB):
            each_cluster.stop_broker(1004)
            try:
                fill(each_cluster, name, 40 * MB)
                assert progress() is None, "a stopped broker has no progress"
            finally:
                each_cluster.start_broker(1004)
            eventually(lambda: (found := progress()) and 0 < found.bytes_copied < found.bytes_left, 60)
        each_cluster.wait_until_in_sync([name])
        eventually(lambda: (found := progress()) and found.bytes_left == 0 and found.at > found.since, 60)
        last = progress()
        assert last is not None
        assert 30 * MB < last.bytes_copied - last.recent[0].bytes_copied <= 42 * MB, "the first 10 MB are not included"


def test_snapshot_does_not_wait_for_a_broker_without_log_sizes(
    kafka_cluster: ZooKeeperModeCluster, zookeeper: ZooKeeperServer
) -> None:
    own = OwnPaths(f"/progress-{uuid.uuid4().hex[:8]}")
    unreachable = KafkaAdmin(KafkaSettings(("127.0.0.1:9",)))
    with (
        topic(kafka_cluster, {0: [1001]}, 60 * MB) as name,
        contextlib.closing(unreachable),
        session(zookeeper) as client,
        followed(unreachable) as reader,
        contextlib.closing(ZooKeeperSnapshots(client, KafkaPaths(""), own, reader)) as source,
        slow_reassignment(kafka_cluster, name, 1 * MB),
    ):
        eventually(lambda: source.fetch_snapshot(timeout=TIMEOUT).reassignments)
        began = time.monotonic()
        for _ in range(5):
            snapshot = source.fetch_snapshot(timeout=TIMEOUT)
            assert snapshot.progress is not None and snapshot.progress.flows == {}
            assert remainder(snapshot) is None
        assert time.monotonic() - began < 15


def test_fetch_settings_are_returned_for_existing_brokers_and_topics_only(
    each_cluster: KafkaCluster,
) -> None:
    plain, strict = (f"settings-{uuid.uuid4().hex[:8]}" for _ in range(2))
    each_cluster.create_topic(plain, {0: [1001]})
    each_cluster.create_topic(strict, {0: [1001, 1002]}, {"min.insync.replicas": "2"})
    with admin(each_cluster) as kafka:
        found = KafkaFetchSettings(kafka).fetch_settings([1001, 1002, 4711], [plain, strict, "missing-topic"], TIMEOUT)
    assert found.brokers == {b: FetchSettings(524_288, 11) for b in (1001, 1002)}, "the lab's broker configuration"
    assert found.min_in_sync_replicas == {plain: 1, strict: 2}
    for name in (plain, strict):
        each_cluster.delete_topic(name)
