"""A reassignment is submitted only after its throttles are in place, and cleaned up if it is not submitted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest

from autothrottle.adapters.memory import MemoryCluster, MemoryElection
from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.snapshot import ANY_SNAPSHOT, Snapshot, SnapshotRequest, TopicPartition
from autothrottle.core.errors import Conflict, Invalid, Missing, NotLeader, Unavailable
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.operators.submission import Targets, unthrottled
from autothrottle.core.records import Pause, PauseMode, Submission
from autothrottle.planner.calls import Submissions
from autothrottle.ports.kafka import Term
from tests.builders import eventually, mb
from tests.unit.autothrottle.planner.bench import ADDRESS, BROKERS, FOLLOWER, Bench

TIMEOUT = timedelta(seconds=60)
RATES = {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
EXACT = ("0:1001,0:1002", "0:1003")
WANTED: Targets = {("t1", 0): (1001, 1003)}
BROKER_1003 = ConfigResource.broker(1003)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """A pool whose threads end when the planner stops, since that ends every submission."""
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.fixture
def bench(pool: ThreadPoolExecutor) -> Iterator[Bench]:
    """A leading planner in virtual time; t1 has one partition on 1001 and 1002."""
    with Bench() as made:
        lead(made)
        yield made


def lead(bench: Bench) -> None:
    bench.cluster.add_topic("t1", {0: (1001, 1002)})
    bench.election.join(ADDRESS, lambda: None)
    assert bench.election.term is not None
    bench.term = bench.election.term


def replace_cluster(bench: Bench, cluster: MemoryCluster) -> None:
    """Restart the planner on another cluster, and make it the leader."""
    bench.planner.stop()
    bench.cluster = cluster
    bench.planner = bench.new_planner()
    lead(bench)


def submit(
    pool: ThreadPoolExecutor, bench: Bench, wanted: Targets = WANTED, timeout: timedelta = TIMEOUT
) -> Future[Submission]:
    """Submit in another thread; return once a cycle has throttled the partitions."""
    waiting = pool.submit(bench.planner.submit_reassignment, wanted, timeout)

    def throttled() -> bool:
        bench.cycle("requested", after=0)
        request = SnapshotRequest(partitions=wanted.keys())
        return not unthrottled(bench.cluster.fetch_snapshot(request, timeout=TIMEOUT), wanted)

    eventually(lambda: throttled() or waiting.done())
    return waiting


# From the throttle to the end.


def test_a_reassignment_is_submitted_after_a_cycle_reads_back_its_throttles(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    waiting = submit(pool, bench)
    assert bench.rates() == RATES and bench.lists() == EXACT
    assert bench.cluster.submissions == [], "the brokers have not applied the throttles yet"
    bench.cycle("another event", after=0.9)
    assert bench.cluster.submissions == [] and not waiting.done()
    bench.cycle("checking a submitted reassignment", after=0.1)
    assert bench.cluster.submissions == [WANTED]
    assert waiting.result(30) == Submission(1)
    assert (
        bench.cycle("a reassignment of [t1] started").sentence == "1 topics in reassignment; throttles are up to date"
    )
    bench.cluster.join_isr("t1", 0, 1003)
    bench.cluster.finish("t1")
    bench.cycle("the reassignment of [t1] ended")
    assert bench.is_clean()
    assert bench.cluster.topics["t1"][0].replicas == (1001, 1003)


def test_the_planner_thread_submits_without_further_events() -> None:
    with Bench(real_time=True) as real:
        real.cluster.add_topic("t1", {0: (1001, 1002)})
        real.planner.start(ADDRESS)
        assert real.planner.submit_reassignment(WANTED, TIMEOUT) == Submission(1)
        assert real.rates() == RATES and real.lists() == EXACT
        real.cluster.finish("t1")
        eventually(real.is_clean)
        assert real.planner.submit_reassignment(WANTED, TIMEOUT) == Submission(0, already_there=1)


def test_a_throttle_removed_by_a_user_is_set_again_before_the_submission(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    submit(pool, bench)
    bench.cluster.set_config_as_user(BROKER_1003, FOLLOWER.rate_key, None)
    bench.cycle("checking a submitted reassignment")
    assert bench.rate(1003, FOLLOWER) == 81.0
    assert bench.cluster.submissions == [], "the brokers must first apply the new write"
    bench.cycle("checking a submitted reassignment")
    assert bench.cluster.submissions == [WANTED]


def test_a_reassignment_that_copies_nothing_needs_no_throttle(bench: Bench, pool: ThreadPoolExecutor) -> None:
    bench.cluster.add_topic("t2", {0: (1001, 1002), 1: (1001, 1002)})
    wanted: Targets = {("t2", 0): (1001,), ("t2", 1): (1002, 1001)}
    waiting = pool.submit(bench.planner.submit_reassignment, wanted, TIMEOUT)
    eventually(lambda: bench.cycle("requested", after=0) and waiting.done())
    assert waiting.result(30) == Submission(2)
    assert bench.cluster.submissions == [wanted] and bench.cluster.writes == []


def test_another_reassignment_keeps_its_throttles_during_a_submission(bench: Bench, pool: ThreadPoolExecutor) -> None:
    bench.cluster.add_topic("t2", {0: (1002, 1001)})
    bench.cluster.submit_reassignment("t2", {0: (1002, 1004)})
    bench.cycle()
    waiting = pool.submit(bench.planner.submit_reassignment, WANTED, TIMEOUT)
    eventually(lambda: bench.cycle("requested", after=0).topics == ("t1", "t2"))
    bench.cycle("checking a submitted reassignment")
    assert waiting.result(30) == Submission(1)
    assert bench.lists() == EXACT and bench.lists("t2") == ("0:1001,0:1002", "0:1004")


class ProposingCluster(MemoryCluster):
    """A cluster during whose first read a caller proposes a reassignment."""

    propose: Callable[[], Future[Submission]] | None = None
    submission: Future[Submission] | None = None

    def fetch_snapshot(self, request: SnapshotRequest = ANY_SNAPSHOT, *, timeout: timedelta) -> Snapshot:
        found = super().fetch_snapshot(request, timeout=timeout)
        if self.propose and not self.submission:
            self.submission = self.propose()
        return found


def test_a_proposal_during_a_snapshot_read_waits_for_the_next_cycle() -> None:
    """The snapshot in progress lacked the partitions of the proposal, so they seemed not to exist."""
    with Bench() as bench:
        bench.cluster = cluster = ProposingCluster(bench.electorate, BROKERS)
        bench.planner.stop()
        bench.planner = bench.new_planner()
        cluster.add_topic("t1", {0: (1001, 1002)})
        assert bench.cycle().topics == ()
        cluster.propose = partial(bench.planner._submissions.propose, bench.term.fence, WANTED)
        assert bench.cycle().topics == ()
        assert cluster.submission is not None and not cluster.submission.done()
        assert bench.cycle().topics == ("t1",)
        assert not cluster.submission.done()


# Submissions that fail.


def test_a_refused_throttle_prevents_the_submission_and_the_other_throttles_are_removed(
    bench: Bench, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="autothrottle.planner")
    bench.cluster.refused[BROKER_1003] = "broker 1003 does not answer"
    waiting = submit(pool, bench)
    with pytest.raises(Conflict) as caught:
        waiting.result(30)
    assert str(caught.value) == (
        "nothing was submitted, since it could not be throttled: brokers/1003: broker 1003 does not answer"
    )
    assert bench.cluster.writes, "the other brokers were throttled"
    bench.cycle("checking a submitted reassignment")
    assert bench.is_clean() and bench.cluster.submissions == []
    assert not any("Topics done reassigning" in message for message in caplog.messages)


def test_throttles_are_cleaned_up_if_the_planner_dies_before_the_submission(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    waiting = submit(pool, bench)
    assert bench.rates() == RATES
    successor = bench.new_planner()
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
def test_a_pause_fails_the_submission_and_keeps_the_waiting_autoremove_override(
    bench: Bench, pool: ThreadPoolExecutor, mode: PauseMode
) -> None:
    bench.overrides.set_override(None, StoredOverride(mb(5), autoremove=True))
    waiting = submit(pool, bench)
    bench.pauses.set_pause(Pause(mode))
    bench.cycle("paused or resumed")
    with pytest.raises(Conflict, match="nothing was submitted, since autothrottle is paused"):
        waiting.result(30)
    assert bench.is_clean() is (mode is PauseMode.CLEAR)
    bench.pauses.remove_pause()
    for _ in range(2):
        bench.cycle()
    assert bench.is_clean() and bench.cluster.submissions == []
    assert bench.overrides.read_overrides().cluster is not None


def test_an_outdated_term_submits_nothing(bench: Bench, pool: ThreadPoolExecutor) -> None:
    waiting = submit(pool, bench)
    bench.electorate.begin_term("127.0.0.1:4004")
    assert "is over" in bench.cycle("checking a submitted reassignment").error
    with pytest.raises(NotLeader, match="is over"):
        waiting.result(30)
    assert bench.cluster.submissions == []


def test_a_submission_of_an_earlier_term_fails(bench: Bench, pool: ThreadPoolExecutor) -> None:
    waiting = submit(pool, bench)
    bench.term = Term(bench.electorate.begin_term(ADDRESS))
    bench.cycle()
    with pytest.raises(NotLeader, match="nothing was submitted"):
        waiting.result(30)
    assert bench.is_clean() and bench.cluster.submissions == []


def test_a_timed_out_submission_submits_nothing_and_keeps_the_waiting_autoremove_override(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    bench.overrides.set_override(None, StoredOverride(mb(50), autoremove=True))
    waiting = submit(pool, bench, timeout=timedelta(seconds=2))
    with pytest.raises(Unavailable, match=r"the throttles were not in place within .*: nothing was submitted"):
        waiting.result(30)
    bench.cycle("a submission timed out")
    assert bench.is_clean() and bench.cluster.submissions == []
    assert bench.overrides.read_overrides().cluster is not None


def test_nothing_is_submitted_if_the_cluster_cannot_be_read(bench: Bench, pool: ThreadPoolExecutor) -> None:
    waiting = submit(pool, bench)
    bench.cluster.unavailable(True)
    bench.cycle("checking a submitted reassignment")
    with pytest.raises(Unavailable, match="nothing was submitted: the cluster does not answer"):
        waiting.result(30)
    bench.cluster.unavailable(False)
    bench.cycle("retrying after a failure")
    assert bench.is_clean() and bench.cluster.submissions == []


def test_a_conflicting_reassignment_fails_the_submission_and_its_throttles_are_removed(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    bench.cluster.conflict = "another reassignment is under way; wait until it is over"
    waiting = submit(pool, bench)
    bench.cycle("checking a submitted reassignment")
    with pytest.raises(Conflict, match="another reassignment is under way"):
        waiting.result(30)
    bench.cycle("checking a submitted reassignment")
    assert bench.is_clean()


def test_a_submission_fails_if_an_adding_broker_goes_down(bench: Bench, pool: ThreadPoolExecutor) -> None:
    waiting = submit(pool, bench)
    bench.cluster.brokers.remove(1003)
    bench.cycle("checking a submitted reassignment")
    with pytest.raises(Invalid, match="broker 1003, a target replica of t1-0, is unknown or down"):
        waiting.result(30)
    assert bench.is_clean(), "the same cycle removes its throttles"


def test_stopping_the_planner_fails_the_waiting_submission(bench: Bench, pool: ThreadPoolExecutor) -> None:
    waiting = submit(pool, bench)
    bench.planner.stop()
    with pytest.raises(Unavailable, match="the planner is stopping: nothing was submitted"):
        waiting.result(30)


def test_a_stop_during_the_request_to_kafka_still_returns_its_result(bench: Bench, pool: ThreadPoolExecutor) -> None:
    class StoppingCluster(MemoryCluster):
        def submit_reassignments(
            self, term: Term, targets: Mapping[TopicPartition, tuple[int, ...]], timeout: timedelta
        ) -> Mapping[TopicPartition, str]:
            bench.planner.stop()
            return super().submit_reassignments(term, targets, timeout)

    replace_cluster(bench, StoppingCluster(bench.electorate, BROKERS))
    waiting = submit(pool, bench)
    bench.cycle("checking a submitted reassignment")
    assert waiting.result(30) == Submission(1)
    assert bench.cluster.submissions == [WANTED]


def test_only_one_submission_runs_at_a_time(bench: Bench, pool: ThreadPoolExecutor) -> None:
    submit(pool, bench)
    with pytest.raises(Conflict, match="another submission is in progress: nothing was submitted; try again"):
        bench.planner.submit_reassignment({("t1", 0): (1001, 1004)}, TIMEOUT)


def test_an_autoremove_override_stays_after_a_failed_submission(bench: Bench, pool: ThreadPoolExecutor) -> None:
    bench.overrides.set_override(None, StoredOverride(mb(50), autoremove=True))
    bench.cycle()
    bench.cluster.refused[BROKER_1003] = "broker 1003 does not answer"
    with pytest.raises(Conflict):
        submit(pool, bench).result(30)
    bench.cluster.refused[BROKER_1003] = ""
    for _ in range(3):
        bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is not None

    waiting = submit(pool, bench)
    bench.cycle("checking a submitted reassignment")
    assert waiting.result(30) == Submission(1)
    bench.cycle()
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is None


def test_an_autoremove_override_ends_with_a_reassignment_that_no_snapshot_showed(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    bench.overrides.set_override(None, StoredOverride(mb(50), autoremove=True))
    waiting = submit(pool, bench)
    bench.cycle("checking a submitted reassignment")
    assert waiting.result(30) == Submission(1)
    bench.cluster.finish("t1")
    bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is None


def test_an_autoremove_override_stays_if_the_lists_of_a_failed_submission_are_removed_a_cycle_later(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    """The first cycle knew that the lists belonged to a failed submission, but their removal was refused.

    The next cycle took them for the lists of a finished reassignment.
    """
    bench.overrides.set_override(None, StoredOverride(mb(50), autoremove=True))
    waiting = submit(pool, bench)
    bench.cluster.brokers.remove(1003)
    bench.cluster.refused[ConfigResource.topic("t1")] = "not now"
    bench.cycle("checking a submitted reassignment")
    with pytest.raises(Invalid):
        waiting.result(30)
    bench.cluster.refused[ConfigResource.topic("t1")] = ""
    for _ in range(3):
        bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is not None


def test_an_autoremove_override_stays_after_kafka_refused_the_reassignment(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    """A reassignment counted as soon as it was sent to Kafka, even if Kafka refused it."""
    bench.overrides.set_override(None, StoredOverride(mb(50), autoremove=True))
    waiting = submit(pool, bench)
    bench.cluster.conflict = "another one is in progress"
    bench.cycle("checking a submitted reassignment")
    with pytest.raises(Conflict):
        waiting.result(30)
    bench.cluster.conflict = ""
    for _ in range(3):
        bench.cycle()
    assert bench.is_clean() and bench.overrides.read_overrides().cluster is not None


# Between the submission and the first snapshot that shows it.


def test_throttles_stay_until_a_snapshot_shows_the_submitted_reassignment(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    bench.cluster.slow_controller = True
    waiting = submit(pool, bench)
    bench.cycle("checking a submitted reassignment")
    assert waiting.result(30) == Submission(1)
    for _ in range(5):
        bench.cycle("another event", after=5)
        assert bench.rates() == RATES and bench.lists() == EXACT
    bench.cluster.process_submissions()
    bench.cycle("a reassignment of [t1] started")
    assert bench.rates() == RATES and bench.lists() == EXACT
    bench.cluster.cancel("t1")
    bench.cycle("the reassignment of [t1] ended")
    assert bench.is_clean(), "after that only the snapshot counts"


def test_throttles_of_a_reassignment_that_no_snapshot_shows_are_removed_after_a_timeout(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    bench.cluster.slow_controller = True
    submit(pool, bench)
    bench.cycle("checking a submitted reassignment")
    bench.cycle("another event", after=30)
    assert bench.rates() == RATES
    bench.cycle("checking a submitted reassignment", after=1)
    assert bench.is_clean()


def test_without_an_answer_of_kafka_the_outcome_is_unknown_and_the_throttles_stay(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    class UnansweringCluster(MemoryCluster):
        def submit_reassignments(
            self, term: Term, targets: Mapping[TopicPartition, tuple[int, ...]], timeout: timedelta
        ) -> Mapping[TopicPartition, str]:
            super().submit_reassignments(term, targets, timeout)
            raise Unavailable("Kafka does not answer")

    replace_cluster(bench, UnansweringCluster(bench.electorate, BROKERS))
    bench.cluster.slow_controller = True
    waiting = submit(pool, bench)
    bench.cycle("checking a submitted reassignment")
    with pytest.raises(Unavailable, match="the reassignment may have been submitted: Kafka does not answer"):
        waiting.result(30)
    bench.cycle("another event")
    assert bench.rates() == RATES
    bench.cluster.process_submissions()
    bench.cycle("a reassignment of [t1] started")
    assert bench.rates() == RATES
    assert bench.planner.submit_reassignment(WANTED, TIMEOUT) == Submission(0, already_in_progress=1), (
        "retrying is safe"
    )


def test_partitions_that_kafka_refuses_are_returned_and_unthrottled(bench: Bench, pool: ThreadPoolExecutor) -> None:
    class PartlyRefusingCluster(MemoryCluster):
        def submit_reassignments(
            self, term: Term, targets: Mapping[TopicPartition, tuple[int, ...]], timeout: timedelta
        ) -> Mapping[TopicPartition, str]:
            accepted = {row: to for row, to in targets.items() if row[1] != 1}
            super().submit_reassignments(term, accepted, timeout)
            return {row: "the controller refused it" for row in targets if row not in accepted}

    replace_cluster(bench, PartlyRefusingCluster(bench.electorate, BROKERS))
    bench.cluster.add_topic("t2", {0: (1001,), 1: (1001,)})
    waiting = submit(pool, bench, {("t2", 0): (1002,), ("t2", 1): (1002,)})
    assert bench.lists("t2") == ("0:1001,1:1001", "0:1002,1:1002")
    bench.cycle("checking a submitted reassignment")
    assert waiting.result(30) == Submission(1, refused={("t2", 1): "the controller refused it"})
    bench.cycle("a reassignment of [t2] started")
    assert bench.lists("t2") == ("0:1001", "0:1002")

    waiting = submit(pool, bench, {("t2", 1): (1002,)})
    bench.cycle("checking a submitted reassignment")
    with pytest.raises(Conflict, match=r"Kafka refused all partitions: the controller refused it$"):
        waiting.result(30)


def test_an_error_names_the_first_five_refused_partitions(bench: Bench, pool: ThreadPoolExecutor) -> None:
    bench.cluster.add_topic("t2", dict.fromkeys(range(7), (1001,)))
    waiting = submit(pool, bench, {("t2", n): (1002,) for n in range(7)})
    bench.cluster.submit_reassignments = lambda term, targets, timeout: {  # type: ignore[method-assign]
        (topic, n): f"not {n}" for topic, n in targets
    }
    bench.cycle("checking a submitted reassignment")
    with pytest.raises(Conflict, match=r"refused all partitions: not 0; not 1; not 2; not 3; not 4 and 2 more$"):
        waiting.result(30)


# Requests.


def test_validate_only_changes_nothing(bench: Bench) -> None:
    bench.cluster.add_topic("t2", {0: (1002,), 1: (1002,)})
    bench.cluster.submit_reassignment("t2", {0: (1003,)})
    wanted: Targets = {**WANTED, ("t2", 0): (1003,), ("t2", 1): (1002,)}
    assert bench.planner.submit_reassignment(wanted, TIMEOUT, validate_only=True) == Submission(1, 1, 1)
    bench.cycle()
    assert bench.cluster.submissions == [] and bench.lists() == (None, None)


def test_an_invalid_request_is_refused_without_a_cycle(bench: Bench) -> None:
    with pytest.raises(Missing, match="t9-0 does not exist"):
        bench.planner.submit_reassignment({("t9", 0): (1001,)}, TIMEOUT)
    with pytest.raises(Invalid, match="broker 1009"):
        bench.planner.submit_reassignment({("t1", 0): (1009,)}, TIMEOUT)


def test_a_planner_that_does_not_lead_names_the_leader(bench: Bench) -> None:
    other = bench.new_planner()
    idle = MemoryElection(bench.electorate)
    planner = type(other)(bench.dependencies(idle), bench.settings, bench.now, lambda: bench.seconds)
    try:
        for call in (
            lambda: planner.submit_reassignment(WANTED, TIMEOUT),
            lambda: planner.cancel_reassignment(list(WANTED), TIMEOUT),
        ):
            with pytest.raises(NotLeader) as caught:
                call()
            assert caught.value.leader_address == ADDRESS
    finally:
        planner.stop()
        other.stop()


def test_a_cancelled_reassignment_is_cleaned_up(bench: Bench, pool: ThreadPoolExecutor) -> None:
    waiting = submit(pool, bench)
    bench.cycle("checking a submitted reassignment")
    waiting.result(30)
    assert bench.planner.cancel_reassignment([*WANTED, ("t1", 7)], TIMEOUT) == {
        ("t1", 7): "t1-7 does not exist; name a partition that does"
    }
    bench.cycle("a reassignment was cancelled")
    assert bench.is_clean()
    assert bench.cluster.topics["t1"][0].replicas == (1001, 1002)
    with pytest.raises(Missing, match="nothing was cancelled: t1-0 is not being reassigned"):
        bench.planner.cancel_reassignment(list(WANTED), TIMEOUT)
    with pytest.raises(Missing, match=r"t9-4 does not exist; name a partition that does and 3 more$"):
        bench.planner.cancel_reassignment([("t9", n) for n in range(8)], TIMEOUT)


def test_a_reassignment_cancelled_before_a_snapshot_shows_it_is_cleaned_up(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    waiting = submit(pool, bench)
    bench.cycle("checking a submitted reassignment")
    waiting.result(30)
    bench.planner.cancel_reassignment(list(WANTED), TIMEOUT)
    bench.cycle("a reassignment was cancelled", after=0)
    assert bench.is_clean()


def test_a_time_out_after_the_request_has_left_says_that_kafka_may_have_received_it() -> None:
    submissions = Submissions()
    end = submissions.propose(1, WANTED)
    assert submissions.claim(1) and submissions.claim(1)
    submissions.fail(Conflict("too late"))
    with pytest.raises(Unavailable, match="the reassignment may have been submitted"):
        submissions.wait(end, timedelta(0))
    submissions.answer(1, Submission(1))
    assert submissions.wait(end, timedelta(0)) == Submission(1)


def test_a_submission_that_timed_out_cannot_be_claimed() -> None:
    submissions = Submissions()
    end = submissions.propose(1, WANTED)
    with pytest.raises(Unavailable, match="nothing was submitted"):
        submissions.wait(end, timedelta(0))
    assert not submissions.claim(1) and submissions.request is None
    submissions.answer(1, Submission(1))
    assert submissions.propose(1, WANTED) is not end


# The topic of our own state.


def test_own_state_moves_without_a_throttle_one_replica_at_a_time(pool: ThreadPoolExecutor) -> None:
    """Discovery hid the topic. A plan that moved it was refused as a whole: "state-0 does not exist"."""
    with Bench(state_topic="state") as bench:
        lead(bench)
        bench.cluster.add_topic("state", {0: (1001, 1002)})
        wanted: Targets = {("state", 0): (1004, 1003)}

        def submit_to_kafka() -> Submission:
            waiting = pool.submit(bench.planner.submit_reassignment, wanted, TIMEOUT)
            eventually(lambda: bench.cycle("requested", after=0) and waiting.done())
            return waiting.result(30)

        first = submit_to_kafka()
        assert (first.submitted, first.postponed) == (1, 1)
        assert first.warnings == (
            "the replicas of autothrottle's own state are exchanged one at a time: state-0 now gets [1001, 1004]. When "
            "that is done, submit the same reassignment again for [1004, 1003]",
        )
        cycle = bench.cycle("a reassignment of [state] started")
        assert (cycle.topics, cycle.sentence) == (("state",), "1 topics in reassignment; throttles are up to date")
        assert bench.planner.submit_reassignment(wanted, TIMEOUT).already_in_progress == 1
        bench.cluster.finish("state")
        assert submit_to_kafka() == Submission(1)
        assert bench.cluster.submissions == [{("state", 0): (1001, 1004)}, wanted]
        bench.planner.cancel_reassignment([("state", 0)], TIMEOUT)
        assert {*bench.cluster.topics["state"][0].replicas} == {1001, 1004}
        assert bench.cluster.writes == []


def test_own_state_waits_for_the_throttles_of_the_others_in_its_submission(pool: ThreadPoolExecutor) -> None:
    with Bench(state_topic="state") as bench:
        lead(bench)
        bench.cluster.add_topic("state", {0: (1001, 1002)})
        wanted: Targets = {**WANTED, ("state", 0): (1001, 1003)}
        waiting = pool.submit(bench.planner.submit_reassignment, wanted, TIMEOUT)
        eventually(lambda: bench.cycle("requested", after=0) and bench.lists() == EXACT)
        bench.cycle("another event", after=0)
        assert bench.cluster.submissions == []
        bench.cycle("checking a submitted reassignment")
        assert waiting.result(30) == Submission(2)
        assert bench.cluster.submissions == [wanted]
        assert ConfigResource.topic("state") not in bench.cluster.configs
