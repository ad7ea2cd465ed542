"""The seed alone determines the schedule of a run with an absence, and many seeds cover all of its events."""

from enum import Enum

import pytest

from tests.chaos.on_kafka.schedule import Call, ClientQuota, Request, TopicFault, absence_schedule
from tests.chaos.schedule import Edit, Fault, FaultKind, Target

SEEDS = range(1, 41)
SEVEN = (
    "seed 7, two of `run`: edit: a default quota of users, removed later; edit: a config that is not a throttle, "
    "in the node of our throttles; SIGSTOP leader (0.6 s, 63.8 s); SIGKILL all brokers (0.5 s, 44.3 s); edit: a "
    "pause and a resume; edit: our rate removed; delay applier (0.2 s, 2.8 s); edit: foreign records that are not"
    " ours; edit: the deletion of all records so far; SIGKILL leader (0.0 s, 1.8 s)"
)


def test_schedule_of_a_known_seed_never_changes() -> None:
    """Otherwise the seed of an old bug report would no longer reproduce it."""
    assert str(absence_schedule(7)) == SEVEN


@pytest.mark.parametrize(("is_long", "shortest", "longest"), [(False, 20.0, 60.0), (True, 300.0, 300.0)])
def test_all_brokers_are_away_once_in_each_run(is_long: bool, shortest: float, longest: float) -> None:
    for seed in SEEDS:
        absences = [f for f in absence_schedule(seed, is_long).faults if f.target is Target.ALL_BROKERS]
        assert [shortest <= fault.seconds <= longest for fault in absences] == [True]


def test_seeds_cover_both_kinds_of_absence_and_all_events() -> None:
    plans = [absence_schedule(seed) for seed in SEEDS]
    events: set[Enum] = {step for plan in plans for step in plan.steps if not isinstance(step, Fault)}
    assert events == {*Edit, *Call, *TopicFault, *ClientQuota}
    absences = [fault for plan in plans for fault in plan.faults if fault.target is Target.ALL_BROKERS]
    assert {fault.kind for fault in absences} == {FaultKind.KILL, FaultKind.STOP}


def test_many_runs_freeze_a_planner_for_longer_than_the_absence() -> None:
    frozen = 0
    for seed in SEEDS:
        faults = absence_schedule(seed).faults
        absence = next(fault for fault in faults if fault.target is Target.ALL_BROKERS)
        frozen += any(fault.kind is FaultKind.STOP and fault.seconds > absence.seconds for fault in faults)
    assert frozen >= len(SEEDS) / 3


def test_a_process_restarts_after_the_faults_of_the_state_topic() -> None:
    for seed in SEEDS:
        steps = absence_schedule(seed).steps
        last = max(number for number, step in enumerate(steps) if _is_topic_fault(step))
        restart = steps[last + 1]
        assert isinstance(restart, Fault)
        assert restart.kind in (FaultKind.KILL, FaultKind.TERMINATE)


def test_copies_follow_a_deletion_whose_snapshot_they_include() -> None:
    for seed in SEEDS:
        steps = absence_schedule(seed).steps
        for number, step in enumerate(steps):
            if step is TopicFault.COPIES:
                assert _is_deletion(steps[number - 1])


def _is_topic_fault(step: Fault | Enum) -> bool:
    return isinstance(step, TopicFault) or _is_deletion(step)


def _is_deletion(step: Fault | Enum) -> bool:
    return step is TopicFault.DELETION or (isinstance(step, Fault) and step.request == Request.SNAPSHOT.name)
