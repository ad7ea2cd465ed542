"""Log growth of the participating brokers is read in the background, and a rise is reported at once."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from autothrottle.adapters.kafka_admin.snapshots import AdminSnapshots
from autothrottle.adapters.kafka_common.progress_reader import GrowthReader, ProgressReader
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.cluster.snapshot import LogSizes, SnapshotRequest, TopicPartition
from autothrottle.ports.kafka import PartitionsOfBrokers, SnapshotEvent
from tests.builders import at_once, eventually, mb, reassignment
from tests.unit.autothrottle.adapters.kafka_admin.kafka_in_memory import MemoryKafka, MemoryLedger

BROKERS = frozenset({1001, 1002, 1003})
REASSIGNMENT = (reassignment("t", {0: (1001, (1001,), (1002,), (1001,))}),)
OFTEN = timedelta(milliseconds=5)


class Source(MemoryCluster):
    """A cluster whose clock advances 2 s per read, while producers send `produced` bytes/s to one partition."""

    def __init__(self) -> None:
        super().__init__(brokers=BROKERS)
        self.add_topic("t", {0: (1001, 1002)})
        self.add_topic("clients", {0: (1001,)})
        for broker_id in BROKERS:
            self.grow(broker_id, "t", 0, 100)
        self.grow(1001, "clients", 0, 100)
        self.time = datetime.now(UTC)
        self._clock = lambda: self.time
        self.queried: list[frozenset[int]] = []
        self.leader_reads = 0
        self.produced = 0
        """Bytes/s."""
        self.failure: Callable[[], None] = lambda: None

    def fetch_log_sizes(self, partitions: PartitionsOfBrokers, timeout: timedelta) -> LogSizes:
        if None not in partitions.values():  # progress alone
            return super().fetch_log_sizes(partitions, timeout)
        self.failure()
        self.time += timedelta(seconds=2)
        self.grow(1001, "clients", 0, 2 * self.produced)
        found = super().fetch_log_sizes(partitions, timeout)
        self.queried.append(frozenset(partitions))
        return found

    def fetch_leaders(self, topics: Collection[str], timeout: timedelta) -> Mapping[TopicPartition, int]:
        self.leader_reads += 1
        return super().fetch_leaders(topics, timeout)

    def await_reads(self, reads: int) -> None:
        """Wait for this many more complete reads."""
        wanted = len(self.queried) + reads + 1
        eventually(lambda: len(self.queried) >= wanted)


@contextmanager
def reader_of(source: Source) -> Iterator[GrowthReader]:
    reader = GrowthReader(source, interval=OFTEN)
    try:
        yield reader
    finally:
        reader.close()
    assert not any(thread.name == "log-growth" for thread in threading.enumerate())


def test_without_reassignments_no_broker_is_queried() -> None:
    source = Source()
    with reader_of(source) as reader:
        reader.follow((), BROKERS)
        assert reader.growth == {}
    assert source.queried == []


def test_all_logs_of_registered_participants_are_read() -> None:
    source = Source()
    source.produced = 50
    with reader_of(source) as reader:
        reader.follow(REASSIGNMENT, frozenset({1001, 1003}))
        eventually(lambda: reader.growth and reader.growth[1001].led >= 300)
        growth = reader.growth[1001]
    assert set(source.queried) == {frozenset({1001})}
    assert growth.led == growth.received
    assert growth.led % 100 == 0, "50 bytes/s for 2 s"
    assert source.leader_reads == 1, "leaders are read only periodically"


def test_replicated_bytes_do_not_count_as_produced() -> None:
    source = Source()
    with reader_of(source) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        eventually(lambda: 1002 in reader.growth)
        source.grow(1002, "t", 0, 5000)
        source.await_reads(2)
        assert reader.growth[1002].received == 0


def test_leaders_of_a_new_topic_are_read_at_once() -> None:
    source = Source()
    with reader_of(source) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        source.await_reads(2)
        source.add_topic("new", {0: (1001,)})
        source.grow(1001, "new", 0, 1)
        at_once(lambda: source.leader_reads == 2)
        source.grow(1001, "new", 0, 70)
        at_once(lambda: reader.growth[1001].led == 70)


def test_risen_produce_rate_is_reported_once() -> None:
    source, lines = Source(), list[str]()
    source.produced = mb(10)
    with reader_of(source) as reader:
        watch = reader.watch(lines.append)
        reader.follow(REASSIGNMENT, BROKERS)
        source.await_reads(8)
        assert lines == []
        source.produced = mb(15)
        eventually(lambda: lines)
        source.await_reads(20)
        assert lines == ["produce rate rose on broker 1001"]
        watch.close()


def test_silent_broker_is_logged_once_and_others_are_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source()
    del source.log_bytes[1002]
    with caplog.at_level(logging.WARNING), reader_of(source) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        eventually(lambda: 1001 in reader.growth)
        source.await_reads(3)
    assert reader.growth.keys() == {1001}
    assert [record.message for record in caplog.records] == [
        "Log growth cannot be read, falling back to delayed metrics for the client load: broker 1002 does not answer"
    ]


def test_bug_ends_only_one_read(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    failures = iter([RuntimeError("a bug")])

    def fail() -> None:
        if (error := next(failures, None)) is not None:
            raise error

    source.failure = fail
    with reader_of(source) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        eventually(lambda: 1001 in reader.growth)
    assert "Reading log sizes failed unexpectedly, trying again" in caplog.messages


def test_reading_resumes_after_the_cluster_was_unavailable() -> None:
    source = Source()
    with reader_of(source) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        eventually(lambda: 1001 in reader.growth)
        source.unavailable(True)
        source.grow(1001, "clients", 0, 700)
        source.unavailable(False)
        eventually(lambda: reader.growth[1001].led == 700)


def test_risen_produce_rate_is_an_event_that_starts_a_cycle() -> None:
    source, events = Source(), list[SnapshotEvent]()
    source.produced = mb(10)
    source.submit_reassignment("t", {0: (1001, 1003)})
    with (
        contextlib.closing(ProgressReader(source, GrowthReader(source, interval=OFTEN))) as progress,
        contextlib.closing(
            AdminSnapshots(MemoryKafka(source), MemoryLedger(source), timedelta(milliseconds=20), progress=progress)
        ) as snapshots,
    ):
        watch = snapshots.watch_snapshots(events.append)
        source.await_reads(8)
        source.produced = mb(15)
        eventually(lambda: any("produce rate rose on broker 1001" in event.reason for event in events))
        (rise,) = [event for event in events if "produce rate rose" in event.reason]
        seen = snapshots.fetch_snapshot(SnapshotRequest(min_version=rise.version), timeout=timedelta(seconds=30))
        watch.close()
    assert not rise.urgent, "no bytes move unthrottled"
    assert seen.progress is not None
    assert seen.progress.growth[1001].led > mb(160)
