"""Log sizes of real brokers, in ZooKeeper mode and without ZooKeeper, and the progress of a move that they give."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.growth import GrowthReader
from autothrottle.adapters.kafka_admin.client import KafkaAdmin, KafkaSettings
from autothrottle.adapters.kafka_admin.fetch_settings import KafkaFetchSettings
from autothrottle.adapters.kafka_admin.log_sizes import KafkaLogSizes
from autothrottle.adapters.kafka_admin.snapshots import AdminSnapshots
from autothrottle.adapters.progress import ProgressReader
from autothrottle.adapters.zookeeper.ledger_reader import LedgerReader
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.snapshots import ZooKeeperSnapshots
from autothrottle.core.fetching import FetchSettings
from autothrottle.core.flows import Flow, FlowProgress, LandedMark
from autothrottle.core.progress import LogSizes, remainder
from autothrottle.core.topology import Snapshot, TopicReassignment
from autothrottle.lab.kafka import KafkaCluster
from autothrottle.lab.kafka_zookeeper import ZooKeeperModeCluster
from autothrottle.lab.traffic import fill
from autothrottle.lab.zookeeper import ZooKeeperServer
from autothrottle.ports.cluster import SnapshotSource
from tests.builders import eventually
from tests.system.zookeeper_tree import session

MB = 1_000_000
TIMEOUT = timedelta(seconds=30)
SIDES = {1001: "leader.replication.throttled", 1004: "follower.replication.throttled"}
FLOW = Flow(1001, 1004)
BESIDE = 10 * MB
"""What clients bring to each partition while the move goes on."""


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


def test_sizes_are_those_on_disk_and_each_has_the_time_of_its_answer(each_cluster: KafkaCluster) -> None:
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
        # Two segments of 16 MB: all of them count.
        assert all(size >= 20 * MB for logs in read.brokers.values() for size in logs.sizes.values())
        assert read.brokers[1002].sizes.keys() == {(name, 0), (name, 1)}
        assert read.brokers[1004].sizes == {}


def test_only_what_is_wanted_is_told(each_cluster: KafkaCluster) -> None:
    assignment = {0: [1001, 1002], 1: [1001, 1003]}
    with topic(each_cluster, assignment, 1 * MB) as name, admin(each_cluster) as kafka:
        read = KafkaLogSizes(kafka).fetch_log_sizes({1001: {name: [1], "never-made": [0]}}, TIMEOUT)
        assert read.brokers[1001].sizes.keys() == {(name, 1)}


def test_a_broker_that_is_down_costs_only_itself(each_cluster: KafkaCluster) -> None:
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


def test_a_broker_that_hangs_delays_nobodys_answer_but_its_own(each_cluster: KafkaCluster) -> None:
    with topic(each_cluster, {0: [1001, 1002]}, 1 * MB) as name, admin(each_cluster) as kafka:
        sizes = KafkaLogSizes(kafka)
        wanted = {b: {name: [0]} for b in (1001, 1002, 1005)}

        def all_answer() -> LogSizes | None:
            read = sizes.fetch_log_sizes(wanted, TIMEOUT)
            return read if read.brokers.keys() == wanted.keys() else None

        eventually(all_answer, 60)  # connected to all
        process = each_cluster.brokers[1005].process
        process.freeze()
        try:
            began = datetime.now(UTC)
            read = sizes.fetch_log_sizes(wanted, timedelta(seconds=20))
        finally:
            process.thaw()
        assert read.brokers.keys() == {1001, 1002}
        assert read.problems.keys() == {1005}
        assert max(logs.at for logs in read.brokers.values()) - began < timedelta(seconds=15)
        # Its session may have been over: it registers anew before the next test.
        eventually(lambda: 1005 in kafka.brokers(timeout=TIMEOUT) and all_answer(), 120)


@contextlib.contextmanager
def throttled(cluster: KafkaCluster, name: str, rate: int) -> Iterator[None]:
    """Throttle the copying of the one partition from 1001 to 1004 for as long as this lasts."""
    lists: dict[str, str | None] = {f"{side}.replicas": f"0:{broker_id}" for broker_id, side in SIDES.items()}
    for broker_id, side in SIDES.items():
        cluster.set_configs_as_a_user({f"{side}.rate": str(rate)}, broker_id=broker_id)
    cluster.set_configs_as_a_user(lists, topic=name)
    try:
        yield
    finally:
        cluster.set_configs_as_a_user(dict.fromkeys(lists), topic=name)
        for broker_id, side in SIDES.items():
            cluster.set_configs_as_a_user({f"{side}.rate": None}, broker_id=broker_id)


@contextlib.contextmanager
def slow_move(cluster: KafkaCluster, name: str, rate: int) -> Iterator[None]:
    """Move the one partition from 1001 to 1004, throttled for as long as this lasts; then let it end."""
    try:
        with throttled(cluster, name, rate):
            cluster.reassign_through_bootstrap({(name, 0): [1004]})
            yield
    finally:
        cluster.wait_until_reassigned()


class Reader(ProgressReader):
    """Says when it was first told what moves."""

    def __init__(self, kafka: KafkaAdmin) -> None:
        self.told = threading.Event()
        sizes, often = KafkaLogSizes(kafka), timedelta(seconds=1)
        super().__init__(sizes, GrowthReader(sizes, interval=often), interval=often)

    def follow(
        self,
        reassignments: tuple[TopicReassignment, ...],
        brokers: Collection[int],
        unmoved_until: datetime | None = None,
    ) -> None:
        super().follow(reassignments, brokers, unmoved_until)
        self.told.set()


@contextlib.contextmanager
def followed(kafka: KafkaAdmin) -> Iterator[Reader]:
    reader = Reader(kafka)
    try:
        yield reader
    finally:
        reader.close()


class Watched:
    """What the snapshots of a source say of the one flow."""

    def __init__(self, source: SnapshotSource) -> None:
        self.source = source
        self.seen: list[FlowProgress] = []
        self.snapshot = Snapshot.empty()

    def look(self) -> FlowProgress | None:
        self.snapshot = self.source.fetch_snapshot(timeout=TIMEOUT)
        assert self.snapshot.progress is not None
        found = self.snapshot.progress.flows.get(FLOW)
        if found is not None:
            self.seen.append(found)
        return found

    def grown(self, after: datetime) -> dict[int, tuple[int, int]]:
        """(led, received) of both ends, as they were read after a moment; a broker that was not is absent."""
        self.look()
        assert self.snapshot.progress is not None
        read = self.snapshot.progress.growth.items()
        return {b: (growth.led, growth.received) for b, growth in read if b in SIDES and growth.at > after}


def clients_bring_more_than_lands(cluster: KafkaCluster, watched: Watched) -> None:
    """Produce to both ends; what the move itself brings is no growth of theirs."""
    with topic(cluster, {0: [1001, 1004], 1: [1004, 1001]}, 1000) as beside:
        created = datetime.now(UTC)
        eventually(lambda: watched.grown(created).keys() == SIDES.keys(), 60)
        known = watched.grown(created)
        size = on_disk(cluster, 1001, beside)[beside, 0]
        fill(cluster, beside, BESIDE)
        produced = on_disk(cluster, 1001, beside)[beside, 0] - size
        assert produced >= BESIDE
        # Each leads one of both partitions and holds the other one, too.
        expected = {b: (led + produced, received + 2 * produced) for b, (led, received) in known.items()}

        def are_counted() -> bool:
            found = watched.grown(created)
            ends = [(found[b], expected[b]) for b in SIDES]
            return all(abs(count - wanted) < MB for end in ends for count, wanted in zip(*end, strict=True))

        eventually(are_counted, 60)


def follow_to_the_end(
    cluster: KafkaCluster, name: str, source: SnapshotSource, reader: Reader, until_eta: bool
) -> None:
    """Follow a slow move until its ETA is known, or only until something has landed, and then to its end."""
    size = on_disk(cluster, 1001, name)[name, 0]
    watched = Watched(source)
    assert reader.told.wait(60)
    with slow_move(cluster, name, 1 * MB):
        eventually(lambda: (found := watched.look()) and found.bytes_landed > 0, 60)
        if until_eta:
            clients_bring_more_than_lands(cluster, watched)
        # Nothing is produced: what has landed and what is left are the leader's log, of one reading.
        assert {seen.bytes_landed + seen.bytes_left for seen in watched.seen} == {size}
        if until_eta:
            eventually(lambda: watched.look() and (left := remainder(watched.snapshot)) and left.eta, 90)
            left = remainder(watched.snapshot)
            assert left is not None and left.eta is not None
            assert 0 < left.bytes_left < size
            assert left.at < left.eta < left.at + timedelta(minutes=10)
        assert (name, 0) in cluster.reassigning()
    eventually(lambda: (found := watched.look()) and found.bytes_landed == size, 60)
    counts = [seen.bytes_landed for seen in watched.seen]
    assert counts == sorted(counts)
    assert len({seen.since for seen in watched.seen}) == 1
    # It was seen not to move before: what landed, landed since.
    assert watched.seen[-1].recent[0] == LandedMark(watched.seen[-1].since, 0)
    assert watched.seen[-1].bytes_left == 0
    assert watched.seen[-1].bytes_grown == 0
    eventually(lambda: watched.look() and watched.snapshot.reassignments == (), 60)
    assert remainder(watched.snapshot) is None


def test_the_progress_of_a_move_is_in_every_snapshot_until_it_has_all_landed(
    each_cluster: KafkaCluster, zookeeper: ZooKeeperServer
) -> None:
    own = OwnPaths(f"/progress-{uuid.uuid4().hex[:8]}")
    with (
        topic(each_cluster, {0: [1001]}, 120 * MB) as name,
        admin(each_cluster) as kafka,
        session(zookeeper) as client,
        contextlib.closing(LedgerReader(client, own)) as ledger,
        followed(kafka) as reader,
        contextlib.closing(AdminSnapshots(kafka, ledger, timedelta(seconds=1), progress=reader)) as source,
    ):
        follow_to_the_end(each_cluster, name, source, reader, until_eta=True)


def test_so_it_is_in_zookeeper_mode(kafka_cluster: ZooKeeperModeCluster, zookeeper: ZooKeeperServer) -> None:
    own = OwnPaths(f"/progress-{uuid.uuid4().hex[:8]}")
    with (
        topic(kafka_cluster, {0: [1001]}, 60 * MB) as name,
        admin(kafka_cluster) as kafka,
        session(zookeeper) as client,
        followed(kafka) as reader,
        contextlib.closing(ZooKeeperSnapshots(client, KafkaPaths(""), own, reader)) as source,
    ):
        follow_to_the_end(kafka_cluster, name, source, reader, until_eta=False)


def test_what_a_broker_lacks_that_catches_up_is_in_every_snapshot_until_it_is_in_sync(
    each_cluster: KafkaCluster, zookeeper: ZooKeeperServer
) -> None:
    own = OwnPaths(f"/progress-{uuid.uuid4().hex[:8]}")
    with (
        topic(each_cluster, {0: [1001, 1004]}, 10 * MB) as name,
        admin(each_cluster) as kafka,
        session(zookeeper) as client,
        contextlib.closing(LedgerReader(client, own)) as ledger,
        followed(kafka) as reader,
        contextlib.closing(AdminSnapshots(kafka, ledger, timedelta(seconds=1), progress=reader)) as source,
    ):
        each_cluster.wait_until_in_sync([name])

        def look() -> FlowProgress | None:
            asked = source.fetch_snapshot(partitions=[(name, 0)], catching_up=[1004], timeout=TIMEOUT)
            assert asked.reassignments == () and asked.progress is not None
            return asked.progress.flows.get(FLOW)

        with throttled(each_cluster, name, 1 * MB):
            each_cluster.stop_broker(1004)
            try:
                fill(each_cluster, name, 40 * MB)
                assert look() is None, "it is down, and nobody knows what it has"
            finally:
                each_cluster.start_broker(1004)
            eventually(lambda: (found := look()) and 0 < found.bytes_landed < found.bytes_left, 60)
        each_cluster.wait_until_in_sync([name])
        eventually(lambda: (found := look()) and found.bytes_left == 0 and found.at > found.since, 60)
        last = look()
        assert last is not None
        assert 30 * MB < last.bytes_landed - last.recent[0].bytes_landed <= 42 * MB, "the 10 MB of before did not land"


def test_a_snapshot_waits_for_no_broker_that_tells_no_sizes(
    kafka_cluster: ZooKeeperModeCluster, zookeeper: ZooKeeperServer
) -> None:
    own = OwnPaths(f"/progress-{uuid.uuid4().hex[:8]}")
    nobody = KafkaAdmin(KafkaSettings(("127.0.0.1:9",)))
    with (
        topic(kafka_cluster, {0: [1001]}, 60 * MB) as name,
        contextlib.closing(nobody),
        session(zookeeper) as client,
        followed(nobody) as reader,
        contextlib.closing(ZooKeeperSnapshots(client, KafkaPaths(""), own, reader)) as source,
        slow_move(kafka_cluster, name, 1 * MB),
    ):
        eventually(lambda: source.fetch_snapshot(timeout=TIMEOUT).reassignments)
        began = time.monotonic()
        for _ in range(5):
            snapshot = source.fetch_snapshot(timeout=TIMEOUT)
            assert snapshot.progress is not None and snapshot.progress.flows == {}
            assert remainder(snapshot) is None
        assert time.monotonic() - began < 15


def test_the_settings_in_force_of_brokers_and_topics_are_told_and_those_of_nobody_are_not(
    each_cluster: KafkaCluster,
) -> None:
    plain, strict = (f"settings-{uuid.uuid4().hex[:8]}" for _ in range(2))
    each_cluster.create_topic(plain, {0: [1001]})
    each_cluster.create_topic(strict, {0: [1001, 1002]}, {"min.insync.replicas": "2"})
    with admin(each_cluster) as kafka:
        found = KafkaFetchSettings(kafka).fetch_settings([1001, 1002, 4711], [plain, strict, "nobody-s"], TIMEOUT)
    assert found.brokers == {b: FetchSettings(524_288, 11) for b in (1001, 1002)}, "as these brokers are configured"
    assert found.min_in_sync_replicas == {plain: 1, strict: 2}
    for name in (plain, strict):
        each_cluster.delete_topic(name)
