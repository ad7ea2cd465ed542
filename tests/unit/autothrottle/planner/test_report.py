"""Events are posted in the background, and the decision log gets every cycle."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from autothrottle.adapters.memory import MemoryCluster, MemoryDecisions, MemoryTracer
from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.records import CatchUp
from autothrottle.core.scoring.decision_records import SCHEMA_VERSION, DecisionRecord
from autothrottle.planner.loop import Trigger
from autothrottle.planner.report import EventPoster
from autothrottle.ports.telemetry import Event
from tests.builders import NOON, eventually, mb
from tests.unit.autothrottle.planner.bench import Bench


class BuggySink:
    """A sink that raises an unexpected error on the first event."""

    def __init__(self) -> None:
        self.posted: list[Event] = []

    def post_event(self, event: Event, timeout: timedelta) -> None:
        self.posted.append(event)
        if len(self.posted) == 1:
            raise KeyError("a field of the answer")


def test_a_bug_in_a_sink_loses_only_one_event(caplog: pytest.LogCaptureFixture) -> None:
    """The error ended the thread. All later events were dropped, and the planner's stop waited in vain."""
    sink = BuggySink()
    poster = EventPoster(sink, timedelta(seconds=10), "prod")
    events = [Event("first", "", ("cluster:prod",)), Event("second", "", ("cluster:prod",))]
    for event in events:
        poster.post(replace(event, tags=()))
    poster.stop()
    assert sink.posted == events
    assert "Posting event first failed unexpectedly" in caplog.text


class WaitingSink:
    """A sink that waits for a gate before it accepts an event."""

    def __init__(self) -> None:
        self.gate, self.waits, self.posted = threading.Event(), threading.Event(), list[Event]()

    def post_event(self, event: Event, timeout: timedelta) -> None:
        self.waits.set()
        self.gate.wait()
        self.posted.append(event)


def test_events_beyond_the_limit_are_dropped_and_a_stop_does_not_wait_for_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = WaitingSink()
    poster = EventPoster(sink, timedelta(milliseconds=10), "prod")
    events = [Event(f"event {n}", "") for n in range(EventPoster._LIMIT + 2)]
    poster.post(events[0])
    assert sink.waits.wait(10)
    for event in events[1:]:
        poster.post(replace(event, tags=()))
    poster.stop()
    assert "Event dropped, 100 events are already waiting: event 101" in caplog.text
    sink.gate.set()
    eventually(lambda: [event.title for event in sink.posted] == [event.title for event in events[:-1]])
    poster.stop()


def decision_of(decisions: list[DecisionRecord], broker_id: int, cycle: int) -> DecisionRecord:
    """The only record of a cycle for a broker."""
    (found,) = [record for record in decisions if (record.broker_id, record.cycle) == (broker_id, cycle)]
    return found


def test_a_cycle_logs_each_broker_and_role_with_the_input_of_the_decision() -> None:
    log, tracer = MemoryDecisions(), MemoryTracer()
    with Bench(decisions=log, tracer=tracer) as bench:
        bench.begin_reassignment()
        bench.cycle()
    assert [(record.broker_id, record.role) for record in log.decisions] == [(1001, "leader"), (1003, "follower")]
    record = decision_of(log.decisions, 1003, 1)
    assert (record.schema_version, record.cluster, record.cycle_id) == (SCHEMA_VERSION, "kafka", "kafka/1/1")
    assert (record.capacity, record.utilization, record.headroom) == (mb(100), mb(10), mb(81))
    assert (record.standing, record.rate_decided, record.rate_applied) == (None, mb(81), mb(81))
    assert (record.reason, record.outcome, record.policy) == ("headroom", "applied", "headroom")
    assert (record.measured_to, record.mean_throttle, record.replication) == (NOON, 0, None)
    assert (record.max_ratio, record.min_rate, record.change_threshold) == (0.9, mb(10), 0.1)
    assert (record.interval_seconds, record.shadow, record.reassignment_id) == (60.0, False, "kafka/1/1")
    assert record.trace_id == tracer.traces[0].trace_id


def test_a_refused_rate_is_logged_as_not_applied() -> None:
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.begin_reassignment()
        bench.cluster.refused[ConfigResource.broker(1003)] = "it is read-only"
        bench.cycle()
    record = decision_of(log.decisions, 1003, 1)
    assert (record.rate_decided, record.rate_applied, record.outcome) == (mb(81), None, "refused")


def test_a_reassignment_is_logged_at_its_start_and_at_its_end() -> None:
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.cluster.tell_progress(bench.now)
        bench.cluster.grow(1001, "t1", 0, 1000)
        bench.cluster.grow(1003, "t1", 0, 0)
        bench.cycle()
        bench.begin_reassignment()
        bench.cycle("it started")
        bench.cluster.grow(1003, "t1", 0, 400)
        bench.cycle()
        bench.cluster.grow(1003, "t1", 0, 600)
        bench.cluster.finish("t1")
        bench.cycle("it ended")
        bench.cycle()
    opening, end = log.reassignments
    assert (opening.status, opening.resumed, opening.finish, opening.partitions) == ("moving", False, None, 1)
    assert (end.reassignment_id, end.status, end.cycle) == (opening.reassignment_id, "done", 4)
    assert end.start == NOON + timedelta(seconds=61)
    assert end.finish == NOON + timedelta(seconds=122)
    assert end.topics == ["t1"]
    assert [(path.leader, path.follower, path.bytes_landed) for path in end.paths] == [(1001, 1003, 1000)]
    assert (end.bytes_landed, end.bytes_left) == (1000, 600)


def test_a_reassignment_cancelled_by_the_planner_is_logged_as_cancelled() -> None:
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.begin_reassignment()
        bench.cycle()
        bench.cluster.electorate.depose()
        bench.election.term = bench.term
        bench.planner.cancel_reassignment([("t1", 0)], timedelta(seconds=1))
        bench.cycle("it was cancelled")
    assert [record.status for record in log.reassignments] == ["moving", "cancelled"]


def test_a_reassignment_that_ends_with_more_bytes_left_than_the_links_can_carry_is_logged_as_cancelled() -> None:
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.cluster.tell_progress(bench.now)
        bench.cluster.grow(1001, "t1", 0, mb(1_000_000))
        bench.cluster.grow(1003, "t1", 0, 0)
        bench.begin_reassignment()
        bench.cycle()
        bench.cluster.cancel("t1")
        bench.cycle("it ended")
    assert [record.status for record in log.reassignments] == ["moving", "cancelled"]


def test_a_reassignment_whose_partition_leader_changed_is_logged_as_done() -> None:
    """The bytes left of the old leader's flow counted as never copied, so the log said `cancelled`.

    Then `simulate --from-decisions` refused the log of every demo and of every upgrade.
    """
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.cluster.tell_progress(bench.now)
        for broker_id in (1001, 1002):
            bench.cluster.grow(broker_id, "t1", 0, mb(1000))
        bench.cluster.grow(1003, "t1", 0, 0)
        bench.begin_reassignment()
        bench.cycle()
        bench.cluster.move_leader("t1", 0, 1002)
        bench.cycle("the leader changed")
        bench.cluster.grow(1003, "t1", 0, mb(1000))
        bench.cluster.finish("t1")
        bench.cycle("it ended")
    assert [record.status for record in log.reassignments] == ["moving", "done"]


def test_the_next_term_logs_a_reassignment_that_completes_under_it_as_done(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.begin_reassignment()
        bench.cycle()
        bench.term = type(bench.term)(bench.electorate.begin_term("other"))
        bench.planner.run_cycle(bench.term, Trigger("interval", scheduled=True))
        bench.cluster.finish("t1")
        bench.planner.run_cycle(bench.term, Trigger("it ended", scheduled=False))
    assert [(record.term, record.status) for record in log.reassignments] == [(1, "moving"), (2, "moving"), (2, "done")]
    assert "Topics done reassigning: [t1]" in caplog.messages


@pytest.mark.parametrize(
    ("end", "status", "line"),
    [
        (lambda cluster: cluster.cancel("t1"), "cancelled", "[t1 (cancelled)]"),
        (lambda cluster: cluster.delete_topic("t1"), "deleted", "[t1 (deleted)]"),
        (lambda cluster: cluster.add_topic("t1", {0: (1002, 1004)}), "changed", "[t1 (changed)]"),
    ],
)
def test_a_reassignment_that_did_not_reach_its_target_is_logged_as_what_became_of_it(
    end: Callable[[MemoryCluster], None], status: str, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A cancelled reassignment of another tool was announced as done, and so was a deleted topic."""
    caplog.set_level("INFO")
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.begin_reassignment()
        bench.cycle()
        end(bench.cluster)
        bench.cycle("it ended")
        events = [event.text for event in bench.posted()]
    assert [record.status for record in log.reassignments] == ["moving", status]
    sentence = f"Reassignments that did not reach their target: {line}"
    assert sentence in caplog.messages and sentence in events
    assert not any("done reassigning" in text for text in (*caplog.messages, *events))


def test_one_cancelled_partition_of_two_makes_the_end_of_their_topic_mixed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.cluster.add_topic("t2", {0: (1001, 1002), 1: (1001, 1002)})
        bench.cluster.submit_reassignment("t2", {0: (1001, 1003), 1: (1001, 1004)})
        bench.cycle()
        bench.cluster.cancel("t2", 1)
        bench.cycle("one was cancelled")
        bench.cluster.finish("t2")
        bench.cycle("it ended")
    assert [record.status for record in log.reassignments] == ["moving", "mixed"]
    assert "Reassignments that did not reach their target: [t2 (1 done, 1 cancelled)]" in caplog.messages


def start_catch_up(bench: Bench) -> None:
    """Start a catch-up of 1003 with a topic that 1001 leads."""
    bench.cluster.tell_progress(bench.now)
    bench.cluster.add_topic("behind", {0: (1001, 1003)})
    bench.cluster.leave_isr("behind", 0, 1003)
    bench.catch_ups.put(1003, CatchUp(1003))


def test_a_reassignment_to_a_broker_that_also_catches_up_from_the_same_leader_is_logged_as_done() -> None:
    """The lag of the catch-up counted as bytes left of the reassignment, which was then logged as cancelled."""
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        start_catch_up(bench)
        bench.begin_reassignment()
        for topic, held, lacks in (("behind", 5_000, 40_000), ("t1", 0, 1_000)):
            bench.cluster.grow(1001, topic, 0, mb(held + lacks))
            bench.cluster.grow(1003, topic, 0, mb(held))
        bench.cycle()
        bench.cluster.grow(1003, "t1", 0, mb(400))
        bench.cluster.grow(1003, "behind", 0, mb(400))
        bench.cycle()
        bench.cluster.grow(1003, "t1", 0, mb(600))
        bench.cluster.grow(1003, "behind", 0, mb(600))
        bench.cluster.finish("t1")
        bench.cycle("it ended")
        bench.cycle()
    _, end = log.reassignments
    assert (end.status, end.topics) == ("done", ["t1"])
    assert [path.bytes_landed for path in end.paths] == [mb(2_000)], "the sum of both on this path"
    assert end.bytes_left == 0, "the share of the reassignment is unknown"


def test_unknown_bytes_left_of_a_catch_up_make_the_leaders_bytes_left_unknown() -> None:
    """A leader sent a reassignment and a catch-up. Only the bytes of the reassignment were logged, as if complete."""
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        start_catch_up(bench)
        bench.cluster.add_topic("moves", {0: (1001, 1002)})
        bench.cluster.submit_reassignment("moves", {0: (1001, 1004)})
        for broker_id, topic, size in ((1001, "behind", 1000), (1001, "moves", 1000), (1004, "moves", 0)):
            bench.cluster.grow(broker_id, topic, 0, mb(size))
        bench.cycle()
        bench.cluster.grow(1003, "behind", 0, mb(200))
        bench.cycle()
    first, second = decision_of(log.decisions, 1001, 1), decision_of(log.decisions, 1001, 2)
    assert (first.bytes_landed, first.bytes_left) == (None, None)
    assert second.bytes_left == mb(1800)


def test_the_next_term_logs_the_reassignment_as_resumed() -> None:
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.begin_reassignment()
        bench.cycle()
        bench.term = type(bench.term)(bench.electorate.begin_term("other"))
        bench.planner.run_cycle(bench.term, Trigger("interval", scheduled=True))
    first, second = log.reassignments
    assert (first.resumed, second.resumed) == (True, True)
    assert (second.term, second.reassignment_id) == (2, "kafka/2/1")


class BrokenSink:
    """A decision log with a bug."""

    def append(self, decisions: object, reassignments: object, cycle: object = None) -> None:
        raise ZeroDivisionError


def test_a_bug_in_the_decision_log_does_not_fail_the_cycle() -> None:
    with Bench(decisions=BrokenSink()) as bench:
        bench.begin_reassignment()
        assert bench.cycle().error == ""
        assert bench.rates()


def test_a_cycle_without_a_snapshot_logs_no_decision() -> None:
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.begin_reassignment()
        bench.cluster.unavailable(True)
        bench.cycle()
    assert (log.decisions, log.reassignments) == ([], [])
