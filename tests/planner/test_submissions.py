"""Submitting a reassignment: never before its throttles stand, and nothing is left behind when it is not submitted."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest

from autothrottle.adapters.memory import MemoryCluster, MemoryElection
from autothrottle.core.configs import ConfigResource
from autothrottle.core.errors import Conflict, Invalid, Missing, NotLeader, Unavailable
from autothrottle.core.pause import Pause, PauseMode
from autothrottle.core.reassignment import Submitted, Targets, unthrottled
from autothrottle.core.topology import TopicPartition
from autothrottle.planner.submissions import Submissions
from autothrottle.ports.leadership import Term
from tests.builders import eventually, mb
from tests.planner.bench import ADDRESS, BROKERS, FOLLOWER, Bench

PATIENT = timedelta(seconds=60)
MOVE = {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
EXACT = ("0:1001,0:1002", "0:1003")
WANTED: Targets = {("t1", 0): (1001, 1003)}
BROKER_1003 = ConfigResource.broker(1003)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Its threads end with the planner, since that ends every submission."""
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.fixture
def bench(pool: ThreadPoolExecutor) -> Iterator[Bench]:
    """Leads, in virtual time; one partition of t1 is on 1001 and 1002."""
    with Bench() as made:
        lead(made)
        yield made


def lead(bench: Bench) -> None:
    bench.cluster.add_topic("t1", {0: (1001, 1002)})
    bench.election.join(ADDRESS, lambda: None)
    assert bench.election.term is not None
    bench.term = bench.election.term


def with_cluster(bench: Bench, cluster: MemoryCluster) -> None:
    """Let another cluster be the one."""
    bench.planner.stop()
    bench.cluster = cluster
    bench.planner = bench.another_planner()
    lead(bench)


def submitting(
    pool: ThreadPoolExecutor, bench: Bench, wanted: Targets = WANTED, timeout: timedelta = PATIENT
) -> Future[Submitted]:
    """Submit, and return when a cycle has throttled it."""
    waiting = pool.submit(bench.planner.submit_reassignment, wanted, timeout)

    def throttled() -> bool:
        bench.cycle("asked", after=0)
        return not unthrottled(bench.cluster.fetch_snapshot(partitions=wanted.keys(), timeout=PATIENT), wanted)

    eventually(lambda: throttled() or waiting.done())
    return waiting


# From the throttle to the end.


def test_it_is_submitted_when_a_cycle_has_read_back_that_everything_stands(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    waiting = submitting(pool, bench)
    assert bench.rates() == MOVE and bench.lists() == EXACT
    assert bench.cluster.submissions == [], "the brokers have not taken the throttles up yet"
    bench.cycle("something else happened", after=0.9)
    assert bench.cluster.submissions == [] and not waiting.done()
    bench.cycle("a submitted reassignment is looked after", after=0.1)
    assert bench.cluster.submissions == [WANTED]
    assert waiting.result(30) == Submitted(1)
    assert bench.cycle("a reassignment of [t1] started").sentence == "1 topics in reassignment; what stands is right"
    bench.cluster.join_isr("t1", 0, 1003)
    bench.cluster.finish("t1")
    bench.cycle("the reassignment of [t1] ended")
    assert bench.is_clean()
    assert bench.cluster.topics["t1"][0].replicas == (1001, 1003)


def test_with_its_own_thread_a_planner_submits_by_itself() -> None:
    with Bench(real_time=True) as real:
        real.cluster.add_topic("t1", {0: (1001, 1002)})
        real.planner.start(ADDRESS)
        assert real.planner.submit_reassignment(WANTED, PATIENT) == Submitted(1)
        assert real.rates() == MOVE and real.lists() == EXACT
        real.cluster.finish("t1")
        eventually(real.is_clean)
        assert real.planner.submit_reassignment(WANTED, PATIENT) == Submitted(0, already_there=1)


def test_a_throttle_that_somebody_takes_away_before_is_set_again_first(bench: Bench, pool: ThreadPoolExecutor) -> None:
    submitting(pool, bench)
    bench.cluster.set_config_as_user(BROKER_1003, FOLLOWER.rate_key, None)
    bench.cycle("a submitted reassignment is looked after")
    assert bench.rate(1003, FOLLOWER) == 81.0
    assert bench.cluster.submissions == [], "what was just written has to be taken up first"
    bench.cycle("a submitted reassignment is looked after")
    assert bench.cluster.submissions == [WANTED]


def test_what_copies_nothing_needs_no_throttle(bench: Bench, pool: ThreadPoolExecutor) -> None:
    bench.cluster.add_topic("t2", {0: (1001, 1002), 1: (1001, 1002)})
    wanted: Targets = {("t2", 0): (1001,), ("t2", 1): (1002, 1001)}
    waiting = pool.submit(bench.planner.submit_reassignment, wanted, PATIENT)
    eventually(lambda: bench.cycle("asked", after=0) and waiting.done())
    assert waiting.result(30) == Submitted(2)
    assert bench.cluster.submissions == [wanted] and bench.cluster.writes == []


def test_another_move_keeps_its_throttles_meanwhile(bench: Bench, pool: ThreadPoolExecutor) -> None:
    bench.cluster.add_topic("t2", {0: (1002, 1001)})
    bench.cluster.start_reassignment("t2", {0: (1002, 1004)})
    bench.cycle()
    waiting = pool.submit(bench.planner.submit_reassignment, WANTED, PATIENT)
    eventually(lambda: bench.cycle("asked", after=0).topics == ("t1", "t2"))
    bench.cycle("a submitted reassignment is looked after")
    assert waiting.result(30) == Submitted(1)
    assert bench.lists() == EXACT and bench.lists("t2") == ("0:1001,0:1002", "0:1004")


def test_what_is_proposed_while_the_cluster_is_read_waits_for_the_next_cycle() -> None:
    """The snapshot on its way lacks its partitions: they seemed not to exist."""
    submissions = Submissions(clock=lambda: 0.0)
    cluster = MemoryCluster(brokers=BROKERS)
    cluster.add_topic("t1", {0: (1001, 1002)})
    rows = submissions.take()
    submission = submissions.propose(1, WANTED)
    snapshot = cluster.fetch_snapshot(partitions=rows, timeout=PATIENT)
    assert submissions.show(snapshot) is snapshot
    assert not submission.ended
    assert submissions.take() == list(WANTED)
    shown = submissions.show(cluster.fetch_snapshot(partitions=list(WANTED), timeout=PATIENT))
    assert shown.topics == ("t1",) and not submission.ended


# When it does not come to it.


def test_what_cannot_be_throttled_is_not_submitted_and_the_rest_is_taken_back(
    bench: Bench, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="autothrottle.planner")
    bench.cluster.refuse(BROKER_1003, "broker 1003 does not answer")
    waiting = submitting(pool, bench)
    with pytest.raises(Conflict) as caught:
        waiting.result(30)
    assert str(caught.value) == (
        "nothing was submitted, since it could not be throttled: brokers/1003: broker 1003 does not answer"
    )
    assert bench.cluster.writes, "the others were throttled by then"
    bench.cycle("a submitted reassignment is looked after")
    assert bench.is_clean() and bench.cluster.submissions == []
    assert not any("Topics done reassigning" in message for message in caplog.messages)


def test_a_planner_that_dies_between_throttle_and_submission_leaves_nothing_behind(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    waiting = submitting(pool, bench)
    assert bench.rates() == MOVE
    successor = bench.another_planner()
    try:
        dead, bench.planner = bench.planner, successor
        bench.term = Term(bench.electorate.begin_term("127.0.0.1:4004"))
        bench.cycle()
        assert bench.is_clean() and bench.cluster.submissions == []
        dead.stop()
    finally:
        successor.stop()
    with pytest.raises(Unavailable, match="nothing was submitted"):
        waiting.result(30)


@pytest.mark.parametrize("mode", PauseMode)
def test_a_pause_ends_what_is_to_be_submitted_and_no_override_that_waits_for_it(
    bench: Bench, pool: ThreadPoolExecutor, mode: PauseMode
) -> None:
    bench.overrides.set_override(None, mb(5), True)
    waiting = submitting(pool, bench)
    bench.pauses.set_pause(Pause(mode))
    bench.cycle("it was paused or resumed")
    with pytest.raises(Conflict, match="nothing was submitted, since autothrottle is paused"):
        waiting.result(30)
    assert bench.is_clean() is (mode is PauseMode.CLEAR)
    bench.pauses.remove_pause()
    for _ in range(2):
        bench.cycle()
    assert bench.is_clean() and bench.cluster.submissions == []
    assert bench.overrides.read_overrides().cluster is not None


def test_a_term_that_is_over_submits_nothing(bench: Bench, pool: ThreadPoolExecutor) -> None:
    waiting = submitting(pool, bench)
    bench.electorate.begin_term("127.0.0.1:4004")
    assert "is over" in bench.cycle("a submitted reassignment is looked after").error
    with pytest.raises(NotLeader, match="is over"):
        waiting.result(30)
    assert bench.cluster.submissions == []


def test_a_submission_of_an_earlier_term_is_not_carried_on(bench: Bench, pool: ThreadPoolExecutor) -> None:
    waiting = submitting(pool, bench)
    bench.term = Term(bench.electorate.begin_term(ADDRESS))
    bench.cycle()
    with pytest.raises(NotLeader, match="nothing was submitted"):
        waiting.result(30)
    assert bench.is_clean() and bench.cluster.submissions == []


def test_a_caller_that_gives_up_has_submitted_nothing_and_ended_no_override_that_waits_for_it(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    bench.overrides.set_override(None, mb(50), autoremove=True)
    waiting = submitting(pool, bench, timeout=timedelta(seconds=2))
    with pytest.raises(Unavailable, match=r"the throttles did not stand within .*: nothing was submitted"):
        waiting.result(30)
    bench.cycle("a reassignment was given up")
    assert bench.is_clean() and bench.cluster.submissions == []
    assert bench.overrides.read_overrides().cluster is not None


def test_a_cluster_that_cannot_be_read_submits_nothing(bench: Bench, pool: ThreadPoolExecutor) -> None:
    waiting = submitting(pool, bench)
    bench.cluster.unavailable(True)
    bench.cycle("a submitted reassignment is looked after")
    with pytest.raises(Unavailable, match="nothing was submitted: the cluster does not answer"):
        waiting.result(30)
    bench.cluster.unavailable(False)
    bench.cycle("trying again")
    assert bench.is_clean() and bench.cluster.submissions == []


def test_a_reassignment_in_the_way_is_a_conflict_and_the_throttles_are_taken_back(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    bench.cluster.refuse_reassignments("another reassignment is under way; wait until it is over")
    waiting = submitting(pool, bench)
    bench.cycle("a submitted reassignment is looked after")
    with pytest.raises(Conflict, match="another reassignment is under way"):
        waiting.result(30)
    bench.cycle("a submitted reassignment is looked after")
    assert bench.is_clean()


def test_a_broker_that_goes_away_meanwhile_ends_it(bench: Bench, pool: ThreadPoolExecutor) -> None:
    waiting = submitting(pool, bench)
    bench.cluster.brokers.remove(1003)
    bench.cycle("a submitted reassignment is looked after")
    with pytest.raises(Invalid, match="broker 1003, to which t1-0 is to move, is unknown or down"):
        waiting.result(30)
    assert bench.is_clean(), "the same cycle has taken its throttles back"


def test_a_planner_that_stops_tells_whoever_waits(bench: Bench, pool: ThreadPoolExecutor) -> None:
    waiting = submitting(pool, bench)
    bench.planner.stop()
    with pytest.raises(Unavailable, match="the planner stops: nothing was submitted"):
        waiting.result(30)


def test_a_planner_that_stops_while_kafka_is_asked_does_not_say_that_nothing_was_submitted(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    class Slow(MemoryCluster):
        def alter_reassignments(
            self, fence: int, targets: Mapping[TopicPartition, tuple[int, ...] | None], timeout: timedelta
        ) -> Mapping[TopicPartition, str]:
            bench.planner.stop()
            return super().alter_reassignments(fence, targets, timeout)

    with_cluster(bench, Slow(bench.electorate, BROKERS))
    waiting = submitting(pool, bench)
    bench.cycle("a submitted reassignment is looked after")
    assert waiting.result(30) == Submitted(1)
    assert bench.cluster.submissions == [WANTED]


def test_only_one_is_submitted_at_a_time(bench: Bench, pool: ThreadPoolExecutor) -> None:
    submitting(pool, bench)
    with pytest.raises(Conflict, match="another reassignment is being submitted: nothing was submitted; try again"):
        bench.planner.submit_reassignment({("t1", 0): (1001, 1004)}, PATIENT)


def test_an_override_with_autoremove_outlives_what_was_not_submitted(bench: Bench, pool: ThreadPoolExecutor) -> None:
    bench.overrides.set_override(None, mb(50), autoremove=True)
    bench.cycle()
    bench.cluster.refuse(BROKER_1003, "broker 1003 does not answer")
    with pytest.raises(Conflict):
        submitting(pool, bench).result(30)
    bench.cluster.refuse(BROKER_1003, "")
    for _ in range(3):
        bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is not None

    waiting = submitting(pool, bench)
    bench.cycle("a submitted reassignment is looked after")
    assert waiting.result(30) == Submitted(1)
    bench.cycle()
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is None


def test_an_override_with_autoremove_goes_with_a_move_that_was_over_before_a_cycle_saw_it(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    bench.overrides.set_override(None, mb(50), autoremove=True)
    waiting = submitting(pool, bench)
    bench.cycle("a submitted reassignment is looked after")
    assert waiting.result(30) == Submitted(1)
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is None


def test_an_override_with_autoremove_outlives_it_too_when_its_lists_go_a_cycle_later(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    """Only the first cycle knew that they were of no reassignment; when its write was refused the next one did not."""
    bench.overrides.set_override(None, mb(50), autoremove=True)
    waiting = submitting(pool, bench)
    bench.cluster.brokers.remove(1003)
    bench.cluster.refuse(ConfigResource.topic("t1"), "not now")
    bench.cycle("a submitted reassignment is looked after")
    with pytest.raises(Invalid):
        waiting.result(30)
    bench.cluster.refuse(ConfigResource.topic("t1"), "")
    for _ in range(3):
        bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is not None


def test_an_override_with_autoremove_outlives_what_kafka_has_refused(bench: Bench, pool: ThreadPoolExecutor) -> None:
    """What was sent to Kafka counted as a reassignment, whatever Kafka said."""
    bench.overrides.set_override(None, mb(50), autoremove=True)
    waiting = submitting(pool, bench)
    bench.cluster.refuse_reassignments("another one is in the way")
    bench.cycle("a submitted reassignment is looked after")
    with pytest.raises(Conflict):
        waiting.result(30)
    bench.cluster.refuse_reassignments("")
    for _ in range(3):
        bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is not None


# Until it is seen.


def test_the_throttles_stay_until_the_cluster_shows_what_was_submitted(bench: Bench, pool: ThreadPoolExecutor) -> None:
    bench.cluster.slow_controller(True)
    waiting = submitting(pool, bench)
    bench.cycle("a submitted reassignment is looked after")
    assert waiting.result(30) == Submitted(1)
    for _ in range(5):
        bench.cycle("something else happened", after=5)
        assert bench.rates() == MOVE and bench.lists() == EXACT
    bench.cluster.take_up()
    bench.cycle("a reassignment of [t1] started")
    assert bench.rates() == MOVE and bench.lists() == EXACT
    bench.cluster.cancel("t1")
    bench.cycle("the reassignment of [t1] ended")
    assert bench.is_clean(), "once it was seen only the cluster's word counts"


def test_what_the_cluster_never_shows_is_not_throttled_for_ever(bench: Bench, pool: ThreadPoolExecutor) -> None:
    bench.cluster.slow_controller(True)
    submitting(pool, bench)
    bench.cycle("a submitted reassignment is looked after")
    bench.cycle("something else happened", after=30)
    assert bench.rates() == MOVE
    bench.cycle("a submitted reassignment is looked after", after=1)
    assert bench.is_clean()


def test_without_an_answer_it_is_unknown_whether_it_was_submitted_and_the_throttles_stay(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    class Deaf(MemoryCluster):
        def alter_reassignments(
            self, fence: int, targets: Mapping[TopicPartition, tuple[int, ...] | None], timeout: timedelta
        ) -> Mapping[TopicPartition, str]:
            super().alter_reassignments(fence, targets, timeout)
            raise Unavailable("Kafka does not answer")

    with_cluster(bench, Deaf(bench.electorate, BROKERS))
    bench.cluster.slow_controller(True)
    waiting = submitting(pool, bench)
    bench.cycle("a submitted reassignment is looked after")
    with pytest.raises(
        Unavailable, match="it is unknown whether the reassignment was submitted: Kafka does not answer"
    ):
        waiting.result(30)
    bench.cycle("something else happened")
    assert bench.rates() == MOVE
    bench.cluster.take_up()
    bench.cycle("a reassignment of [t1] started")
    assert bench.rates() == MOVE
    assert bench.planner.submit_reassignment(WANTED, PATIENT) == Submitted(0, already_moving=1), "it can be repeated"


def test_what_kafka_refuses_is_told_and_not_throttled(bench: Bench, pool: ThreadPoolExecutor) -> None:
    class Choosy(MemoryCluster):
        def alter_reassignments(
            self, fence: int, targets: Mapping[TopicPartition, tuple[int, ...] | None], timeout: timedelta
        ) -> Mapping[TopicPartition, str]:
            taken = {row: to for row, to in targets.items() if row[1] != 1}
            super().alter_reassignments(fence, taken, timeout)
            return {row: "the controller does not like it" for row in targets if row not in taken}

    with_cluster(bench, Choosy(bench.electorate, BROKERS))
    bench.cluster.add_topic("t2", {0: (1001,), 1: (1001,)})
    waiting = submitting(pool, bench, {("t2", 0): (1002,), ("t2", 1): (1002,)})
    assert bench.lists("t2") == ("0:1001,1:1001", "0:1002,1:1002")
    bench.cycle("a submitted reassignment is looked after")
    assert waiting.result(30) == Submitted(1, refused={("t2", 1): "the controller does not like it"})
    bench.cycle("a reassignment of [t2] started")
    assert bench.lists("t2") == ("0:1001", "0:1002")

    waiting = submitting(pool, bench, {("t2", 1): (1002,)})
    bench.cycle("a submitted reassignment is looked after")
    with pytest.raises(Conflict, match=r"Kafka took none of the partitions: the controller does not like it$"):
        waiting.result(30)


def test_of_many_that_kafka_refuses_the_first_five_are_told(bench: Bench, pool: ThreadPoolExecutor) -> None:
    bench.cluster.add_topic("t2", dict.fromkeys(range(7), (1001,)))
    waiting = submitting(pool, bench, {("t2", n): (1002,) for n in range(7)})
    bench.cluster.alter_reassignments = lambda fence, targets, timeout: {  # type: ignore[method-assign]
        (topic, n): f"not {n}" for topic, n in targets
    }
    bench.cycle("a submitted reassignment is looked after")
    with pytest.raises(Conflict, match=r"none of the partitions: not 0; not 1; not 2; not 3; not 4 and 2 more$"):
        waiting.result(30)


# What is asked for.


def test_a_look_changes_nothing(bench: Bench) -> None:
    bench.cluster.add_topic("t2", {0: (1002,), 1: (1002,)})
    bench.cluster.start_reassignment("t2", {0: (1003,)})
    wanted: Targets = {**WANTED, ("t2", 0): (1003,), ("t2", 1): (1002,)}
    assert bench.planner.submit_reassignment(wanted, PATIENT, validate_only=True) == Submitted(1, 1, 1)
    bench.cycle()
    assert bench.cluster.submissions == [] and bench.lists() == (None, None)


def test_what_is_wrong_is_refused_before_a_cycle(bench: Bench) -> None:
    with pytest.raises(Missing, match="t9-0 does not exist"):
        bench.planner.submit_reassignment({("t9", 0): (1001,)}, PATIENT)
    with pytest.raises(Invalid, match="broker 1009"):
        bench.planner.submit_reassignment({("t1", 0): (1009,)}, PATIENT)


def test_a_planner_that_does_not_lead_names_the_one_that_does(bench: Bench) -> None:
    other = bench.another_planner()
    idle = MemoryElection(bench.electorate)
    planner = type(other)(bench.ports(idle), bench.settings, bench.now, lambda: bench.seconds)
    try:
        for call in (
            lambda: planner.submit_reassignment(WANTED, PATIENT),
            lambda: planner.cancel_reassignment(list(WANTED), PATIENT),
        ):
            with pytest.raises(NotLeader) as caught:
                call()
            assert caught.value.leader_address == ADDRESS
    finally:
        planner.stop()
        other.stop()


def test_a_cancelled_reassignment_leaves_nothing_behind(bench: Bench, pool: ThreadPoolExecutor) -> None:
    waiting = submitting(pool, bench)
    bench.cycle("a submitted reassignment is looked after")
    waiting.result(30)
    assert bench.planner.cancel_reassignment([*WANTED, ("t1", 7)], PATIENT) == {
        ("t1", 7): "t1-7 does not exist; name a partition that does"
    }
    bench.cycle("a reassignment was cancelled")
    assert bench.is_clean()
    assert bench.cluster.topics["t1"][0].replicas == (1001, 1002)
    with pytest.raises(Missing, match="nothing was cancelled: t1-0 is not being reassigned"):
        bench.planner.cancel_reassignment(list(WANTED), PATIENT)
    with pytest.raises(Missing, match=r"t9-4 does not exist; name a partition that does; and 3 more$"):
        bench.planner.cancel_reassignment([("t9", n) for n in range(8)], PATIENT)


def test_what_is_cancelled_before_it_was_seen_is_not_throttled_any_more(bench: Bench, pool: ThreadPoolExecutor) -> None:
    waiting = submitting(pool, bench)
    bench.cycle("a submitted reassignment is looked after")
    waiting.result(30)
    bench.planner.cancel_reassignment(list(WANTED), PATIENT)
    bench.cycle("a reassignment was cancelled", after=0)
    assert bench.is_clean()
