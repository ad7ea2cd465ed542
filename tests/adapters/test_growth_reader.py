"""The growth of logs is read in the background, of the brokers that take part, and a rise is told at once."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from autothrottle.adapters.growth import GrowthReader
from autothrottle.adapters.kafka_admin.snapshots import AdminSnapshots
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.adapters.progress import ProgressReader
from autothrottle.core.progress import LogSizes
from autothrottle.core.topology import TopicPartition
from autothrottle.ports.cluster import SnapshotEvent
from tests.adapters.kafka_in_memory import MemoryKafka, MemoryLedger
from tests.builders import eventually, mb, reassignment

BROKERS = frozenset({1001, 1002, 1003})
MOVE = (reassignment("t", {0: (1001, (1001,), (1002,), (1001,))}),)
OFTEN = timedelta(milliseconds=5)


class Source(MemoryCluster):
    """Brokers of which producers bring the leader so many bytes between two readings, as in 2 s."""

    def __init__(self) -> None:
        super().__init__(brokers=BROKERS)
        self.add_topic("t", {0: (1001, 1002)})
        self.add_topic("clients", {0: (1001,)})
        for broker_id in BROKERS:
            self.grow(broker_id, "t", 0, 100)
        self.grow(1001, "clients", 0, 100)
        self.time = datetime.now(UTC)
        self._now = lambda: self.time
        self.asked: list[frozenset[int]] = []
        self.leaders_asked = 0
        self.produced = 0
        """Bytes/s."""
        self.failure: Callable[[], None] = lambda: None

    def fetch_all_log_sizes(self, broker_ids: Collection[int], timeout: timedelta) -> LogSizes:
        self.failure()
        self.time += timedelta(seconds=2)
        self.grow(1001, "clients", 0, 2 * self.produced)
        found = super().fetch_all_log_sizes(broker_ids, timeout)
        self.asked.append(frozenset(broker_ids))
        return found

    def fetch_leaders(self, topics: Collection[str], timeout: timedelta) -> Mapping[TopicPartition, int]:
        self.leaders_asked += 1
        return super().fetch_leaders(topics, timeout)

    def read_on(self, readings: int) -> None:
        """Wait for so many more of them, complete ones."""
        wanted = len(self.asked) + readings + 1
        eventually(lambda: len(self.asked) >= wanted)


@contextmanager
def reading(source: Source) -> Iterator[GrowthReader]:
    reader = GrowthReader(source, interval=OFTEN)
    try:
        yield reader
    finally:
        reader.close()
    assert not any(thread.name == "log-growth" for thread in threading.enumerate())


def test_while_nothing_moves_nobody_is_asked() -> None:
    source = Source()
    with reading(source) as reader:
        reader.follow((), BROKERS)
        assert reader.growth == {}
    assert source.asked == []


def test_only_brokers_that_take_part_and_are_registered_are_asked_and_all_their_logs_count() -> None:
    source = Source()
    source.produced = 50
    with reading(source) as reader:
        reader.follow(MOVE, frozenset({1001, 1003}))
        eventually(lambda: reader.growth and reader.growth[1001].led >= 300)
        growth = reader.growth[1001]
    assert set(source.asked) == {frozenset({1001})}
    assert growth.led == growth.received
    assert growth.led % 100 == 0, "50 bytes/s in 2 s"
    assert source.leaders_asked == 1, "who leads is looked at now and then only"


def test_what_lands_in_the_destination_is_no_clients() -> None:
    source = Source()
    with reading(source) as reader:
        reader.follow(MOVE, BROKERS)
        eventually(lambda: 1002 in reader.growth)
        source.grow(1002, "t", 0, 5000)
        source.read_on(2)
        assert reader.growth[1002].received == 0


def test_a_topic_that_is_new_is_looked_up_at_once() -> None:
    source = Source()
    with reading(source) as reader:
        reader.follow(MOVE, BROKERS)
        source.read_on(2)
        source.add_topic("new", {0: (1001,)})
        source.grow(1001, "new", 0, 1)
        eventually(lambda: source.leaders_asked == 2)
        source.grow(1001, "new", 0, 70)
        eventually(lambda: reader.growth[1001].led == 70)


def test_when_clients_bring_more_it_is_told_once() -> None:
    source, told = Source(), list[str]()
    source.produced = mb(10)
    with reading(source) as reader:
        watch = reader.watch(told.append)
        reader.follow(MOVE, BROKERS)
        source.read_on(8)
        assert told == []
        source.produced = mb(15)
        eventually(lambda: told)
        source.read_on(20)
        assert told == ["more comes in for clients of broker 1001"]
        watch.close()


def test_brokers_that_do_not_answer_are_named_once_and_cost_the_others_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source()
    del source.log_bytes[1002]
    with caplog.at_level(logging.WARNING), reading(source) as reader:
        reader.follow(MOVE, BROKERS)
        eventually(lambda: 1001 in reader.growth)
        source.read_on(3)
    assert reader.growth.keys() == {1001}
    assert [record.message for record in caplog.records] == [
        "the growth of logs cannot be read, clients' load is known as late as the metrics: broker 1002 does not answer"
    ]


def test_a_bug_ends_one_reading_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    failures = iter([RuntimeError("a bug")])

    def fail() -> None:
        if (error := next(failures, None)) is not None:
            raise error

    source.failure = fail
    with reading(source) as reader:
        reader.follow(MOVE, BROKERS)
        eventually(lambda: 1001 in reader.growth)
    assert "the reading of all logs failed unexpectedly" in caplog.messages


def test_a_cluster_that_answers_nobody_is_read_on_when_it_does() -> None:
    source = Source()
    with reading(source) as reader:
        reader.follow(MOVE, BROKERS)
        eventually(lambda: 1001 in reader.growth)
        source.unavailable(True)
        source.grow(1001, "clients", 0, 700)
        source.unavailable(False)
        eventually(lambda: reader.growth[1001].led == 700)


def test_a_rise_is_an_event_that_starts_a_cycle() -> None:
    source, events = Source(), list[SnapshotEvent]()
    source.produced = mb(10)
    source.start_reassignment("t", {0: (1001, 1003)})
    with (
        contextlib.closing(ProgressReader(source, GrowthReader(source, interval=OFTEN))) as progress,
        contextlib.closing(
            AdminSnapshots(MemoryKafka(source), MemoryLedger(source), timedelta(milliseconds=20), progress=progress)
        ) as snapshots,
    ):
        watch = snapshots.watch_snapshots(events.append)
        source.read_on(8)
        source.produced = mb(15)
        eventually(lambda: any("more comes in for clients of broker 1001" in event.reason for event in events))
        (told,) = [event for event in events if "more comes in" in event.reason]
        seen = snapshots.fetch_snapshot(min_version=told.version, timeout=timedelta(seconds=30))
        watch.close()
    assert not told.urgent, "nothing moves unthrottled"
    assert seen.progress is not None
    assert seen.progress.growth[1001].led > mb(160)
