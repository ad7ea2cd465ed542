"""Log sizes are read in the background: at once when something moves, then now and then, and nobody waits for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from autothrottle.adapters import progress as progress_module
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.adapters.progress import ProgressReader
from autothrottle.core.errors import Unavailable
from autothrottle.core.flows import Flow, LandedMark, Progress
from autothrottle.core.progress import LogSizes
from autothrottle.core.topology import Assignment, TopicReassignment
from tests.builders import eventually, reassignment

FLOW = Flow(1001, 1002)
BROKERS = frozenset({1001, 1002})
MOVE = (reassignment("t", {0: (1001, (1001,), (1002,), (1001,))}),)
NEVER = timedelta(hours=1)
OFTEN = timedelta(milliseconds=5)

Wanted = Mapping[int, Mapping[str, Collection[int]]]


class Source(MemoryCluster):
    """A cluster in memory that remembers who was asked when, and may take its time."""

    def __init__(self) -> None:
        super().__init__(brokers=BROKERS)
        self.grow(1001, "t", 0, 100)
        self.grow(1002, "t", 0, 30)
        self.asked: list[tuple[float, Wanted]] = []
        """(when the call began on the monotonic clock, what was wanted)."""
        self.before: Callable[[], None] = lambda: None
        """Called before the answer."""
        self.after: Callable[[], None] = lambda: None
        """Called between the brokers' answers and the return."""

    def fetch_log_sizes(self, wanted: Wanted, timeout: timedelta) -> LogSizes:
        self.asked.append((time.monotonic(), wanted))
        self.before()
        sizes = super().fetch_log_sizes(wanted, timeout)
        self.after()
        return sizes


@contextmanager
def reading(source: Source, interval: timedelta = NEVER) -> Iterator[ProgressReader]:
    reader = ProgressReader(source, interval=interval)
    try:
        yield reader
    finally:
        reader.close()


def landed(progress: Progress) -> int:
    found = progress.flows.get(FLOW)
    return -1 if found is None else found.bytes_landed


def test_while_nothing_moves_nobody_is_asked_and_nothing_is_known() -> None:
    source = Source()
    with reading(source, OFTEN) as reader:
        reader.follow((), BROKERS)
        assert reader.progress == Progress()
    assert source.asked == []


def test_when_something_begins_to_move_it_is_read_at_once() -> None:
    source = Source()
    with reading(source) as reader:
        reader.follow(MOVE, BROKERS)
        eventually(lambda: landed(reader.progress) == 30)
        assert reader.progress.flows[FLOW].bytes_left == 70
    assert [wanted for _, wanted in source.asked] == [{1001: {"t": {0}}, 1002: {"t": {0}}}]


def test_what_is_known_not_to_have_moved_a_moment_ago_had_landed_nothing_then() -> None:
    source = Source()
    looked = datetime.now(UTC) - timedelta(seconds=1)
    with reading(source) as reader:
        reader.follow((), BROKERS, looked - timedelta(seconds=1))
        reader.follow(MOVE, BROKERS, looked)
        reader.follow(MOVE, BROKERS, looked + timedelta(seconds=1))
        eventually(lambda: landed(reader.progress) == 30)
        assert reader.progress.flows[FLOW].recent == (LandedMark(looked, 0),)


def test_what_moved_already_when_it_was_first_looked_at_may_have_landed_at_any_time() -> None:
    source = Source()
    with reading(source) as reader:
        reader.follow(MOVE, BROKERS)
        eventually(lambda: landed(reader.progress) == 30)
        assert reader.progress.flows[FLOW].recent == ()


LAGS = {("t", 0): Assignment((1001, 1002), 1001, (1001,))}
IN_SYNC = {("t", 0): Assignment((1001, 1002), 1001, (1001, 1002))}


def test_what_a_broker_lacks_that_catches_up_is_read_until_it_is_in_sync() -> None:
    source = Source()
    with reading(source, OFTEN) as reader:
        reader.follow((), BROKERS)
        reader.follow_catch_ups({1002}, LAGS)
        eventually(lambda: landed(reader.progress) == 30)
        assert reader.progress.flows[FLOW].bytes_left == 70
        source.grow(1002, "t", 0, 50)
        reader.follow((), BROKERS)
        eventually(lambda: landed(reader.progress) == 80)
        source.grow(1002, "t", 0, 20)
        reader.follow_catch_ups({1002}, IN_SYNC)
        eventually(lambda: landed(reader.progress) == 100 and not reader.progress.topics)


def test_what_brokers_lack_is_forgotten_when_nobody_asks_for_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_CATCH_UPS_SECONDS", 0.5)
    source = Source()
    with reading(source, OFTEN) as reader:
        reader.follow((), BROKERS)
        reader.follow_catch_ups({1002}, LAGS)
        eventually(lambda: landed(reader.progress) == 30 and "t" in reader.progress.topics)
        eventually(lambda: not reader.progress.topics)
        count = len(source.asked)
        last = reader.progress.at
        eventually(lambda: reader.progress.at != last)
        assert len(source.asked) <= count + 1


def test_a_move_beside_what_lags_is_read_with_it_and_goes_on_alone() -> None:
    source = Source()
    source.grow(1001, "u", 3, 500)
    source.grow(1002, "u", 3, 200)
    with reading(source, OFTEN) as reader:
        reader.follow(MOVE, BROKERS)
        reader.follow_catch_ups({1002}, {("u", 3): Assignment((1001, 1002), 1001, (1001,))})
        eventually(lambda: reader.progress.topics.keys() == {"t", "u"})
        assert reader.progress.topics["u"].bytes_left == 300
        reader.follow_catch_ups({1002}, {})
        eventually(lambda: reader.progress.topics.keys() == {"t"})


def test_that_nothing_lands_is_known_while_a_broker_that_is_to_catch_up_does_not_run() -> None:
    """Nothing was read, and its throttle was taken for replication: its leaders seemed to have no clients."""
    source = Source()
    with reading(source, OFTEN) as reader:
        reader.follow((), {1001})
        reader.follow_catch_ups({1002}, LAGS)
        eventually(lambda: reader.progress.at is not None, 5)
        assert (reader.progress.flows, source.asked) == ({}, [])
        reader.follow((), BROKERS)
        eventually(lambda: landed(reader.progress) == 0, 5)
        source.grow(1002, "t", 0, 50)
        eventually(lambda: landed(reader.progress) == 50, 5)
        assert reader.progress.flows[FLOW].recent[0].bytes_landed == 0, "what it held had landed before it went"


def test_before_it_is_known_which_brokers_run_none_is_taken_to_be_down() -> None:
    """A planner that asked a discovery which had just started was told that nothing had landed until then."""
    source = Source()
    with reading(source, OFTEN) as reader:
        reader.follow_catch_ups({1002}, LAGS)
        time.sleep(0.1)
        assert reader.progress == Progress()
        reader.follow((), BROKERS)
        eventually(lambda: landed(reader.progress) == 30, 5)


def test_what_a_broker_lacks_that_does_not_run_is_not_waited_for_by_a_move_of_the_same_topic() -> None:
    """Its sizes are unknown for as long as it is down, and so was all that was told of the topic."""
    source = Source()
    lags = {("t", 1): Assignment((1001, 1003), 1001, (1001,))}
    with reading(source, OFTEN) as reader:
        reader.follow(MOVE, BROKERS)
        reader.follow_catch_ups({1003}, lags)
        eventually(lambda: "t" in reader.progress.topics)
        assert reader.progress.topics["t"].bytes_left == 70
        source.grow(1001, "t", 1, 50)
        source.grow(1003, "t", 1, 20)
        reader.follow(MOVE, {*BROKERS, 1003})
        eventually(lambda: "t" in reader.progress.topics and reader.progress.topics["t"].bytes_left == 100)


def test_while_it_moves_it_is_read_again_and_again() -> None:
    source = Source()
    with reading(source, OFTEN) as reader:
        reader.follow(MOVE, BROKERS)
        eventually(lambda: landed(reader.progress) == 30)
        source.grow(1002, "t", 0, 50)
        eventually(lambda: landed(reader.progress) == 80)


def test_after_the_end_it_is_read_once_more_and_then_nobody_is_asked() -> None:
    source = Source()
    with reading(source, OFTEN) as reader:
        reader.follow(MOVE, BROKERS)
        eventually(lambda: landed(reader.progress) == 30)
        source.grow(1002, "t", 0, 70)
        reader.follow((), BROKERS)
        eventually(lambda: landed(reader.progress) == 100 and not reader.progress.topics)
        last, count = reader.progress.at, len(source.asked)
        eventually(lambda: reader.progress.at != last)
        assert len(source.asked) == count


def test_the_next_move_is_read_at_once_too() -> None:
    source = Source()
    with reading(source) as reader:
        reader.follow(MOVE, BROKERS)
        eventually(lambda: landed(reader.progress) == 30)
        reader.follow((), BROKERS)
        source.grow(1002, "t", 0, 5)
        reader.follow(MOVE, BROKERS)
        eventually(lambda: landed(reader.progress) == 35)


def test_a_broker_that_is_not_registered_is_not_asked() -> None:
    source = Source()
    both = (reassignment("t", {0: (1001, (1001,), (1002, 1003), ())}),)
    with reading(source) as reader:
        reader.follow(both, BROKERS)
        eventually(lambda: landed(reader.progress) == 30)
    assert source.asked[0][1].keys() == BROKERS


def test_a_reading_that_takes_long_is_followed_by_a_rest_of_nine_times_that() -> None:
    source = Source()
    source.before = lambda: time.sleep(0.05)
    with reading(source, OFTEN) as reader:
        reader.follow(MOVE, BROKERS)
        eventually(lambda: len(source.asked) >= 3)
    assert all(later - earlier >= 0.45 for (earlier, _), (later, _) in pairwise(source.asked))


def test_waiting_for_a_broker_that_does_not_answer_is_no_work_to_rest_from() -> None:
    source = Source()
    source.after = lambda: time.sleep(2.0)
    with reading(source, OFTEN) as reader:
        reader.follow(MOVE, BROKERS)
        eventually(lambda: len(source.asked) >= 2)
    (first, _), (second, _), *_ = source.asked
    assert second - first < 15  # and not 20


def test_a_broker_that_does_not_answer_is_told_once_and_the_others_are_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source()
    del source.log_bytes[1002]
    source.grow(1003, "t", 0, 10)
    both = (reassignment("t", {0: (1001, (1001,), (1002, 1003), ())}),)
    with caplog.at_level(logging.WARNING), reading(source, OFTEN) as reader:
        reader.follow(both, frozenset({1001, 1002, 1003}))
        eventually(lambda: len(source.asked) >= 4)
        assert reader.progress.flows.keys() == {Flow(1001, 1003)}
    assert [record.getMessage() for record in caplog.records] == [
        "the log sizes of brokers [1002] are unknown: broker 1002 does not answer"
    ]


def test_a_source_that_fails_is_told_once_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    source.unavailable(True)
    with caplog.at_level(logging.WARNING), reading(source, OFTEN) as reader:
        reader.follow(MOVE, BROKERS)
        eventually(lambda: len(source.asked) >= 3)
        assert reader.progress.flows == {}
        source.unavailable(False)
        eventually(lambda: landed(reader.progress) == 30)
    assert [record.getMessage() for record in caplog.records] == [
        "log sizes cannot be read, the bytes that are left are unknown: the cluster does not answer; try again"
    ]


def test_a_source_with_a_bug_does_not_end_the_reading(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        if len(source.asked) == 1:
            raise ZeroDivisionError("a bug")

    source = Source()
    source.before = fail
    with reading(source, OFTEN) as reader:
        reader.follow(MOVE, BROKERS)
        eventually(lambda: landed(reader.progress) == 30)
    assert "the reading of log sizes failed unexpectedly" in caplog.messages


def test_it_is_closed_also_while_it_rests() -> None:
    source = Source()
    with reading(source) as reader:
        reader.follow(MOVE, BROKERS)
        eventually(lambda: landed(reader.progress) == 30)
        reader.close()
        reader.close()


# The twin.


def test_a_cluster_in_memory_knows_no_sizes_until_it_is_told_to() -> None:
    source = Source()
    move(source)
    assert snapshot_progress(source) is None
    source.tell_progress()
    progress = snapshot_progress(source)
    assert progress is not None
    assert progress.flows[FLOW].bytes_left == 70
    source.grow(1002, "t", 0, 20)
    later = snapshot_progress(source)
    assert later is not None
    assert (landed(later), later.flows[FLOW].since) == (50, progress.flows[FLOW].since)


def test_a_broker_in_memory_that_answers_nobody_makes_its_own_flows_unknown() -> None:
    source = Source()
    source.add_topic("u", {0: [1001]})
    move(source)
    source.start_reassignment("u", {0: [1003]})
    source.tell_progress()
    source.grow(1001, "u", 0, 10)
    found = source.fetch_log_sizes({1001: {"u": [0]}, 1003: {"u": [0]}}, timedelta(seconds=1))
    assert found.brokers.keys() == {1001}
    assert found.problems == {1003: "broker 1003 does not answer"}
    progress = snapshot_progress(source)
    assert progress is not None
    assert progress.flows.keys() == {FLOW}


def move(source: Source) -> tuple[TopicReassignment, ...]:
    source.add_topic("t", {0: [1001]})
    source.start_reassignment("t", {0: [1002]})
    return source.fetch_snapshot(timeout=timedelta(seconds=1)).reassignments


def snapshot_progress(source: Source) -> Progress | None:
    return source.fetch_snapshot(timeout=timedelta(seconds=1)).progress


def test_a_cluster_in_memory_that_is_down_tells_no_sizes() -> None:
    source = Source()
    source.unavailable(True)
    with pytest.raises(Unavailable):
        source.fetch_log_sizes({1001: {"t": [0]}}, timedelta(seconds=1))
