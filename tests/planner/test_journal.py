from datetime import timedelta

from autothrottle.adapters.memory import MemoryDecisions, MemoryTracer
from autothrottle.core.catch_up import CatchUp
from autothrottle.core.configs import ConfigResource
from autothrottle.core.decisions import SCHEMA_VERSION, DecisionRecord
from autothrottle.planner.triggers import Trigger
from tests.builders import NOON, mb
from tests.planner.bench import Bench


def one(decisions: list[DecisionRecord], broker_id: int, cycle: int) -> DecisionRecord:
    """The record of a cycle for a broker."""
    (found,) = [record for record in decisions if (record.broker_id, record.cycle) == (broker_id, cycle)]
    return found


def test_a_cycle_logs_each_broker_and_role_with_what_it_was_decided_on() -> None:
    log, tracer = MemoryDecisions(), MemoryTracer()
    with Bench(decisions=log, tracer=tracer) as bench:
        bench.begin_move()
        bench.cycle()
    assert [(record.broker_id, record.role) for record in log.decisions] == [(1001, "leader"), (1003, "follower")]
    record = one(log.decisions, 1003, 1)
    assert (record.schema_version, record.cluster, record.cycle_id) == (SCHEMA_VERSION, "kafka", "kafka/1/1")
    assert (record.capacity, record.utilization, record.headroom) == (mb(100), mb(10), mb(81))
    assert (record.standing, record.rate_decided, record.rate_applied) == (None, mb(81), mb(81))
    assert (record.reason, record.outcome, record.policy) == ("headroom", "applied", "headroom")
    assert (record.measured_to, record.mean_throttle, record.replication) == (NOON, 0, None)
    assert (record.max_ratio, record.min_rate, record.change_threshold) == (0.9, mb(10), 0.1)
    assert (record.interval_seconds, record.shadow, record.reassignment_id) == (60.0, False, "kafka/1/1")
    assert record.trace_id == tracer.traces[0].trace_id


def test_what_was_refused_is_logged_as_not_applied() -> None:
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.begin_move()
        bench.cluster.refuse(ConfigResource.broker(1003), "it is read-only")
        bench.cycle()
    record = one(log.decisions, 1003, 1)
    assert (record.rate_decided, record.rate_applied, record.outcome) == (mb(81), None, "refused")


def test_a_reassignment_is_logged_when_it_is_seen_and_when_it_is_over() -> None:
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.cluster.tell_progress(bench.now)
        bench.cluster.grow(1001, "t1", 0, 1000)
        bench.cluster.grow(1003, "t1", 0, 0)
        bench.cycle()
        bench.begin_move()
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


def test_a_reassignment_that_was_cancelled_here_is_logged_as_cancelled() -> None:
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.begin_move()
        bench.cycle()
        bench.cluster.electorate.depose()
        bench.election.term = bench.term
        bench.planner.cancel_reassignment([("t1", 0)], timedelta(seconds=1))
        bench.cycle("it was cancelled")
    assert [record.status for record in log.reassignments] == ["moving", "cancelled"]


def test_a_reassignment_that_ends_with_more_left_than_links_carry_was_cancelled() -> None:
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.cluster.tell_progress(bench.now)
        bench.cluster.grow(1001, "t1", 0, mb(1_000_000))
        bench.cluster.grow(1003, "t1", 0, 0)
        bench.begin_move()
        bench.cycle()
        bench.cluster.cancel("t1")
        bench.cycle("it ended")
    assert [record.status for record in log.reassignments] == ["moving", "cancelled"]


def catch_up(bench: Bench) -> None:
    """Let 1003 catch up with a topic that 1001 leads."""
    bench.cluster.tell_progress(bench.now)
    bench.cluster.add_topic("behind", {0: (1001, 1003)})
    bench.cluster.leave_isr("behind", 0, 1003)
    bench.catch_ups.start_catch_up(CatchUp(1003))


def test_a_move_to_a_broker_that_catches_up_from_the_same_leader_is_done_when_it_is_over() -> None:
    """What the broker still lacked of other topics was taken for what is missing of the move: it was cancelled."""
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        catch_up(bench)
        bench.begin_move()
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
    assert [path.bytes_landed for path in end.paths] == [mb(2_000)], "through the path, of both"
    assert end.bytes_left == 0, "nobody knows which part was the move's"


def test_what_is_left_of_a_catch_up_is_logged_as_unknown_while_it_is() -> None:
    """Of a leader that sends a move and a catch-up only the move's bytes were logged, as if that were all it sends."""
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        catch_up(bench)
        bench.cluster.add_topic("moves", {0: (1001, 1002)})
        bench.cluster.start_reassignment("moves", {0: (1001, 1004)})
        for broker_id, topic, size in ((1001, "behind", 1000), (1001, "moves", 1000), (1004, "moves", 0)):
            bench.cluster.grow(broker_id, topic, 0, mb(size))
        bench.cycle()
        bench.cluster.grow(1003, "behind", 0, mb(200))
        bench.cycle()
    first, second = one(log.decisions, 1001, 1), one(log.decisions, 1001, 2)
    assert (first.bytes_landed, first.bytes_left) == (None, None)
    assert second.bytes_left == mb(1800)


def test_the_next_term_says_that_it_goes_on() -> None:
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.begin_move()
        bench.cycle()
        bench.term = type(bench.term)(bench.electorate.begin_term("other"))
        bench.planner.run_cycle(bench.term, Trigger("interval", scheduled=True))
    first, second = log.reassignments
    assert (first.resumed, second.resumed) == (True, True)
    assert (second.term, second.reassignment_id) == (2, "kafka/2/1")


class BrokenSink:
    """A sink with a bug."""

    def append(self, decisions: object, reassignments: object) -> None:
        raise ZeroDivisionError


def test_a_bug_in_the_log_ends_no_cycle() -> None:
    with Bench(decisions=BrokenSink()) as bench:
        bench.begin_move()
        assert bench.cycle().error == ""
        assert bench.rates()


def test_a_cycle_that_cannot_read_the_cluster_logs_nothing() -> None:
    log = MemoryDecisions()
    with Bench(decisions=log) as bench:
        bench.begin_move()
        bench.cluster.unavailable(True)
        bench.cycle()
    assert (log.decisions, log.reassignments) == ([], [])
