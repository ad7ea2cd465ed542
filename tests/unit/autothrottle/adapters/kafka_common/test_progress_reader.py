"""Log sizes are read in the background: at once when a reassignment starts, then periodically, without any waits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from autothrottle.adapters.kafka_common import progress_reader as progress_module
from autothrottle.adapters.kafka_common.progress_reader import ProgressReader
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.cluster.flows import CopiedMark, Flow, Progress
from autothrottle.core.cluster.snapshot import Assignment, LogSizes, TopicReassignment
from autothrottle.core.errors import Unavailable
from autothrottle.ports.kafka import PartitionsOfBrokers
from tests.builders import at_once, eventually, reassignment

FLOW = Flow(1001, 1002)
BROKERS = frozenset({1001, 1002})
REASSIGNMENT = (reassignment("t", {0: (1001, (1001,), (1002,), (1001,))}),)
NEVER = timedelta(hours=1)
OFTEN = timedelta(milliseconds=5)


class Source(MemoryCluster):
    """An in-memory cluster that records its calls and may delay its answers."""

    def __init__(self) -> None:
        super().__init__(brokers=BROKERS)
        self.grow(1001, "t", 0, 100)
        self.grow(1002, "t", 0, 30)
        self.calls: list[tuple[float, PartitionsOfBrokers]] = []
        """(start of the call on the monotonic clock, wanted logs)."""
        self.before: Callable[[], None] = lambda: None
        """Called before the answer."""
        self.after: Callable[[], None] = lambda: None
        """Called between the brokers' answers and the return."""

    def fetch_log_sizes(self, partitions: PartitionsOfBrokers, timeout: timedelta) -> LogSizes:
        self.calls.append((time.monotonic(), partitions))
        self.before()
        sizes = super().fetch_log_sizes(partitions, timeout)
        self.after()
        return sizes


@contextmanager
def reader_of(source: Source, interval: timedelta = NEVER) -> Iterator[ProgressReader]:
    reader = ProgressReader(source, interval=interval)
    try:
        yield reader
    finally:
        reader.close()


def copied(progress: Progress) -> int:
    found = progress.flows.get(FLOW)
    return -1 if found is None else found.bytes_copied


def test_without_reassignments_no_broker_is_queried() -> None:
    source = Source()
    with reader_of(source, OFTEN) as reader:
        reader.follow((), BROKERS)
        assert reader.progress == Progress()
    assert source.calls == []


def test_new_reassignment_is_read_at_once() -> None:
    source = Source()
    with reader_of(source) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        at_once(lambda: copied(reader.progress) == 30)
        assert reader.progress.flows[FLOW].bytes_left == 70
    assert [wanted for _, wanted in source.calls] == [{1001: {"t": {0}}, 1002: {"t": {0}}}]


def test_new_reassignment_had_copied_nothing_at_its_latest_unchanged_time() -> None:
    source = Source()
    unchanged_until = datetime.now(UTC) - timedelta(seconds=1)
    with reader_of(source) as reader:
        reader.follow((), BROKERS, unchanged_until - timedelta(seconds=1))
        reader.follow(REASSIGNMENT, BROKERS, unchanged_until)
        reader.follow(REASSIGNMENT, BROKERS, unchanged_until + timedelta(seconds=1))
        eventually(lambda: copied(reader.progress) == 30)
        assert reader.progress.flows[FLOW].recent == (CopiedMark(unchanged_until, 0),)


def test_reassignment_of_unknown_start_has_no_copy_history() -> None:
    source = Source()
    with reader_of(source) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        eventually(lambda: copied(reader.progress) == 30)
        assert reader.progress.flows[FLOW].recent == ()


LAGGING = {("t", 0): Assignment((1001, 1002), 1001, (1001,))}
IN_SYNC = {("t", 0): Assignment((1001, 1002), 1001, (1001, 1002))}


def test_lag_of_a_catching_up_broker_is_read_until_it_is_in_sync() -> None:
    source = Source()
    with reader_of(source, OFTEN) as reader:
        reader.follow((), BROKERS)
        reader.follow_catch_ups({1002}, LAGGING)
        eventually(lambda: copied(reader.progress) == 30)
        assert reader.progress.flows[FLOW].bytes_left == 70
        source.grow(1002, "t", 0, 50)
        reader.follow((), BROKERS)
        eventually(lambda: copied(reader.progress) == 80)
        source.grow(1002, "t", 0, 20)
        reader.follow_catch_ups({1002}, IN_SYNC)
        eventually(lambda: copied(reader.progress) == 100 and not reader.progress.topics)


def test_catch_ups_are_dropped_unless_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_CATCH_UPS_SECONDS", 0.5)
    source = Source()
    with reader_of(source, OFTEN) as reader:
        reader.follow((), BROKERS)
        reader.follow_catch_ups({1002}, LAGGING)
        eventually(lambda: copied(reader.progress) == 30 and "t" in reader.progress.topics)
        eventually(lambda: not reader.progress.topics)
        count = len(source.calls)
        last = reader.progress.at
        eventually(lambda: reader.progress.at != last)
        assert len(source.calls) <= count + 1


def test_reassignment_is_read_with_and_without_a_concurrent_catch_up() -> None:
    source = Source()
    source.grow(1001, "u", 3, 500)
    source.grow(1002, "u", 3, 200)
    with reader_of(source, OFTEN) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        reader.follow_catch_ups({1002}, {("u", 3): Assignment((1001, 1002), 1001, (1001,))})
        eventually(lambda: reader.progress.topics.keys() == {"t", "u"})
        assert reader.progress.topics["u"].bytes_left == 300
        reader.follow_catch_ups({1002}, {})
        eventually(lambda: reader.progress.topics.keys() == {"t"})


def test_nothing_is_copied_while_the_catching_up_broker_is_down() -> None:
    """Nothing was read, and its throttle counted as replication traffic. Its leaders seemed to have no clients."""
    source = Source()
    with reader_of(source, OFTEN) as reader:
        reader.follow((), {1001})
        reader.follow_catch_ups({1002}, LAGGING)
        eventually(lambda: reader.progress.at is not None, 5)
        assert (reader.progress.flows, source.calls) == ({}, [])
        reader.follow((), BROKERS)
        eventually(lambda: copied(reader.progress) == 0, 5)
        source.grow(1002, "t", 0, 50)
        eventually(lambda: copied(reader.progress) == 50, 5)
        assert reader.progress.flows[FLOW].recent[0].bytes_copied == 0, "its old bytes were copied before it went down"


def test_no_broker_counts_as_down_before_the_brokers_are_known() -> None:
    """A planner that queried a discovery which had just started learned that nothing had been copied until then."""
    source = Source()
    with reader_of(source, OFTEN) as reader:
        reader.follow_catch_ups({1002}, LAGGING)
        time.sleep(0.1)
        assert reader.progress == Progress()
        reader.follow((), BROKERS)
        eventually(lambda: copied(reader.progress) == 30, 5)


def test_catch_up_of_a_broker_that_is_down_does_not_hide_the_topics_progress() -> None:
    """The sizes of its logs are unknown while it is down. They made the progress of the whole topic unknown."""
    source = Source()
    lagging = {("t", 1): Assignment((1001, 1003), 1001, (1001,))}
    with reader_of(source, OFTEN) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        reader.follow_catch_ups({1003}, lagging)
        eventually(lambda: "t" in reader.progress.topics)
        assert reader.progress.topics["t"].bytes_left == 70
        source.grow(1001, "t", 1, 50)
        source.grow(1003, "t", 1, 20)
        reader.follow(REASSIGNMENT, {*BROKERS, 1003})
        eventually(lambda: "t" in reader.progress.topics and reader.progress.topics["t"].bytes_left == 100)


def test_reassignment_is_read_periodically() -> None:
    source = Source()
    with reader_of(source, OFTEN) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        eventually(lambda: copied(reader.progress) == 30)
        source.grow(1002, "t", 0, 50)
        eventually(lambda: copied(reader.progress) == 80)


def test_completed_reassignment_is_read_once_more() -> None:
    source = Source()
    with reader_of(source, OFTEN) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        eventually(lambda: copied(reader.progress) == 30)
        source.grow(1002, "t", 0, 70)
        reader.follow((), BROKERS)
        eventually(lambda: copied(reader.progress) == 100 and not reader.progress.topics)
        last, count = reader.progress.at, len(source.calls)
        eventually(lambda: reader.progress.at != last)
        assert len(source.calls) == count


def test_next_reassignment_is_read_at_once() -> None:
    source = Source()
    with reader_of(source) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        at_once(lambda: copied(reader.progress) == 30)
        reader.follow((), BROKERS)
        source.grow(1002, "t", 0, 5)
        reader.follow(REASSIGNMENT, BROKERS)
        at_once(lambda: copied(reader.progress) == 35)


def test_unregistered_broker_is_not_queried() -> None:
    source = Source()
    both = (reassignment("t", {0: (1001, (1001,), (1002, 1003), ())}),)
    with reader_of(source) as reader:
        reader.follow(both, BROKERS)
        eventually(lambda: copied(reader.progress) == 30)
    assert source.calls[0][1].keys() == BROKERS


def test_long_read_is_followed_by_nine_times_its_duration_of_rest() -> None:
    source = Source()
    source.before = lambda: time.sleep(0.05)
    with reader_of(source, OFTEN) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        eventually(lambda: len(source.calls) >= 3)
    assert all(later - earlier >= 0.45 for (earlier, _), (later, _) in pairwise(source.calls))


def test_waiting_for_a_silent_broker_does_not_lengthen_the_rest() -> None:
    source = Source()
    source.after = lambda: time.sleep(2.0)
    with reader_of(source, OFTEN) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        eventually(lambda: len(source.calls) >= 2)
    (first, _), (second, _), *_ = source.calls
    assert second - first < 15, "20 s if the wait counted as work"


def test_silent_broker_is_logged_once_and_others_are_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source()
    del source.log_bytes[1002]
    source.grow(1003, "t", 0, 10)
    both = (reassignment("t", {0: (1001, (1001,), (1002, 1003), ())}),)
    with caplog.at_level(logging.WARNING), reader_of(source, OFTEN) as reader:
        reader.follow(both, frozenset({1001, 1002, 1003}))
        eventually(lambda: len(source.calls) >= 4)
        assert reader.progress.flows.keys() == {Flow(1001, 1003)}
    assert [record.getMessage() for record in caplog.records] == [
        "The log sizes of brokers [1002] are unknown: broker 1002 does not answer"
    ]


def test_failing_source_is_logged_once_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    source.unavailable(True)
    with caplog.at_level(logging.WARNING), reader_of(source, OFTEN) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        eventually(lambda: len(source.calls) >= 3)
        assert reader.progress.flows == {}
        source.unavailable(False)
        eventually(lambda: copied(reader.progress) == 30)
    assert [record.getMessage() for record in caplog.records] == [
        "Log sizes cannot be read, so the bytes left to copy are unknown: the cluster does not answer; try again"
    ]


def test_bug_in_the_source_does_not_end_reading(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        if len(source.calls) == 1:
            raise ZeroDivisionError("a bug")

    source = Source()
    source.before = fail
    with reader_of(source, OFTEN) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        eventually(lambda: copied(reader.progress) == 30)
    assert "Reading log sizes failed unexpectedly, trying again" in caplog.messages


def test_reader_closes_during_its_rest() -> None:
    source = Source()
    with reader_of(source) as reader:
        reader.follow(REASSIGNMENT, BROKERS)
        eventually(lambda: copied(reader.progress) == 30)
        reader.close()
        reader.close()


# The in-memory twin.


def test_memory_cluster_has_no_progress_until_enabled() -> None:
    source = Source()
    start_reassignment(source)
    assert snapshot_progress(source) is None
    source.tell_progress()
    progress = snapshot_progress(source)
    assert progress is not None
    assert progress.flows[FLOW].bytes_left == 70
    source.grow(1002, "t", 0, 20)
    later = snapshot_progress(source)
    assert later is not None
    assert (copied(later), later.flows[FLOW].since) == (50, progress.flows[FLOW].since)


def test_memory_broker_that_is_silent_makes_its_flows_unknown() -> None:
    source = Source()
    source.add_topic("u", {0: [1001]})
    start_reassignment(source)
    source.submit_reassignment("u", {0: [1003]})
    source.tell_progress()
    source.grow(1001, "u", 0, 10)
    found = source.fetch_log_sizes({1001: {"u": [0]}, 1003: {"u": [0]}}, timedelta(seconds=1))
    assert found.brokers.keys() == {1001}
    assert found.problems == {1003: "broker 1003 does not answer"}
    progress = snapshot_progress(source)
    assert progress is not None
    assert progress.flows.keys() == {FLOW}


def start_reassignment(source: Source) -> tuple[TopicReassignment, ...]:
    source.add_topic("t", {0: [1001]})
    source.submit_reassignment("t", {0: [1002]})
    return source.fetch_snapshot(timeout=timedelta(seconds=1)).reassignments


def snapshot_progress(source: Source) -> Progress | None:
    return source.fetch_snapshot(timeout=timedelta(seconds=1)).progress


def test_unavailable_memory_cluster_has_no_log_sizes() -> None:
    source = Source()
    source.unavailable(True)
    with pytest.raises(Unavailable):
        source.fetch_log_sizes({1001: {"t": [0]}}, timedelta(seconds=1))
