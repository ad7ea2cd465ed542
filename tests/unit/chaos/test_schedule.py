"""The seed alone determines the schedule, and many seeds cover all faults and edits."""

from collections import Counter

from tests.chaos.proxy import Timing
from tests.chaos.schedule import Edit, Fault, FaultKind, Target, schedule

SEEDS = range(1, 201)
OURS, LISTS = {Edit.RATE, Edit.NO_RATE}, {Edit.ENTRY_REMOVED, Edit.ENTRY_ADDED}
BROKERS = {Target.STATE_LEADER, Target.STATE_FOLLOWER, Target.ALL_BROKERS}
FOREIGN = {Edit.FOREIGN_RATE, Edit.FOREIGN_KEY}
SEVEN = (
    "seed 7, separate services: edit: our rate replaced; cut other planner (0.1 s, 3.0 s); "
    "SIGKILL leader before the commit (0.0 s, 0.5 s); edit: an entry of another partition added to our "
    "list; SIGSTOP leader after the commit (0.7 s, 0.3 s); edit: a config that is not a throttle, in the node of our "
    "throttles"
)


def test_equal_seeds_give_equal_schedules_and_different_seeds_different_ones() -> None:
    assert [schedule(seed) for seed in SEEDS] == [schedule(seed) for seed in SEEDS]
    assert len({str(schedule(seed)).partition(",")[2] for seed in SEEDS}) == len(SEEDS)


def test_schedule_of_a_known_seed_never_changes() -> None:
    """Otherwise the seed of an old bug report would no longer reproduce it."""
    assert str(schedule(7)) == SEVEN


def test_each_run_edits_our_rate_our_list_and_a_foreign_key() -> None:
    for seed in SEEDS:
        edits = {step for step in schedule(seed).steps if isinstance(step, Edit)}
        assert len(edits) == 3
        assert len(edits & OURS) == len(edits & LISTS) == len(edits & FOREIGN) == 1


def test_seeds_cover_every_fault_kind_target_timing_and_edit() -> None:
    steps = [step for seed in SEEDS for step in schedule(seed).steps]
    faults = [step for step in steps if isinstance(step, Fault)]
    assert {step for step in steps if isinstance(step, Edit)} == set(Edit)
    assert {fault.kind for fault in faults} == set(FaultKind)
    assert {fault.target for fault in faults} == set(Target) - BROKERS
    assert {fault.timing for fault in faults} == set(Timing) - {Timing.FORWARDED}
    assert Counter(schedule(seed).separate_services for seed in SEEDS)[False] > len(SEEDS) / 5


def test_most_kills_hit_a_transaction_and_some_cuts_follow_a_commit() -> None:
    faults = [fault for seed in SEEDS for fault in schedule(seed).faults]
    zookeeper = (Target.ZOOKEEPER_LEADER, Target.ZOOKEEPER_FOLLOWER)
    kills = [f for f in faults if f.kind in (FaultKind.KILL, FaultKind.STOP) and f.target not in zookeeper]
    inside = [f for f in kills if f.timing is not Timing.ANY]
    assert all(f.target in (Target.LEADER, Target.APPLIER) for f in inside)
    assert len(inside) > len(kills) / 2
    assert sum(f.kind is FaultKind.CUT and f.timing is Timing.ANSWER for f in faults) > len(SEEDS) / 4
