"""What happens in a run is told by its seed alone, and over many seeds everything happens often enough."""

from collections import Counter

from autothrottle.lab.chaos.proxy import Moment
from autothrottle.lab.chaos.schedule import Deed, Edit, Target, schedule

SEEDS = range(1, 201)
OURS, LISTS = {Edit.RATE, Edit.NO_RATE}, {Edit.ENTRY_REMOVED, Edit.ENTRY_ADDED}
FOREIGN = {Edit.FOREIGN_RATE, Edit.FOREIGN_KEY}
SEVEN = (
    "seed 7, services apart: edit: another rate in place of ours; cut other planner (0.1 s, 3.0 s); "
    "SIGKILL leader before the commit (0.0 s, 0.5 s); edit: an entry of another partition added to our "
    "list; SIGSTOP leader after the commit (0.7 s, 0.3 s); edit: a key that is no throttle, beside our "
    "keys"
)


def test_a_seed_always_gives_the_same_schedule_and_another_seed_another() -> None:
    assert [schedule(seed) for seed in SEEDS] == [schedule(seed) for seed in SEEDS]
    assert len({str(schedule(seed)).partition(",")[2] for seed in SEEDS}) == len(SEEDS)


def test_a_known_seed_stays_what_it_is() -> None:
    """Or the seed of a report from last year would play something else."""
    assert str(schedule(7)) == SEVEN


def test_in_each_run_somebody_edits_a_key_of_ours_a_list_of_ours_and_what_is_not_ours() -> None:
    for seed in SEEDS:
        edits = {step for step in schedule(seed).steps if isinstance(step, Edit)}
        assert len(edits) == 3
        assert len(edits & OURS) == len(edits & LISTS) == len(edits & FOREIGN) == 1


def test_every_fault_of_every_target_and_every_edit_comes_up() -> None:
    steps = [step for seed in SEEDS for step in schedule(seed).steps]
    faults = [step for step in steps if not isinstance(step, Edit)]
    assert {step for step in steps if isinstance(step, Edit)} == set(Edit)
    assert {fault.deed for fault in faults} == set(Deed)
    assert {fault.target for fault in faults} == set(Target)
    assert {fault.moment for fault in faults} == set(Moment)
    assert Counter(schedule(seed).apart for seed in SEEDS)[False] > len(SEEDS) / 5


def test_most_kills_and_stops_aim_at_an_apply_and_some_cuts_at_the_moment_after_a_commit() -> None:
    faults = [fault for seed in SEEDS for fault in schedule(seed).faults]
    zookeeper = (Target.ZOOKEEPER_LEADER, Target.ZOOKEEPER_FOLLOWER)
    kills = [f for f in faults if f.deed in (Deed.KILL, Deed.STOP) and f.target not in zookeeper]
    inside = [f for f in kills if f.moment is not Moment.ANY]
    assert all(f.target in (Target.LEADER, Target.APPLIER) for f in inside)
    assert len(inside) > len(kills) / 2
    assert sum(f.deed is Deed.CUT and f.moment is Moment.ANSWER for f in faults) > len(SEEDS) / 4
