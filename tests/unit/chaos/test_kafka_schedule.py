"""The seed alone determines the schedule of a run on Kafka, and many seeds cover all faults, edits and calls."""

from enum import Enum

from tests.chaos.on_kafka.schedule import Call, Request, schedule
from tests.chaos.proxy import Timing
from tests.chaos.schedule import SERVERS, Edit, Fault, FaultKind, Target

SEEDS = range(1, 201)


def test_equal_seeds_give_equal_schedules_and_different_seeds_different_ones() -> None:
    assert [schedule(seed) for seed in SEEDS] == [schedule(seed) for seed in SEEDS]
    assert len({str(schedule(seed)).partition(",")[2] for seed in SEEDS}) == len(SEEDS)


def test_seeds_cover_every_fault_request_timing_edit_and_call() -> None:
    steps = [step for seed in SEEDS for step in schedule(seed).steps]
    faults = [step for step in steps if isinstance(step, Fault)]
    actions: set[Enum] = {step for step in steps if not isinstance(step, Fault)}
    assert actions == {*Edit, *Call}
    assert {fault.kind for fault in faults} == set(FaultKind)
    assert {fault.timing for fault in faults} == set(Timing)
    assert {fault.request for fault in faults} == {"", *(request.name for request in Request)} - {Request.SNAPSHOT.name}
    brokers = [fault for fault in faults if fault.target in SERVERS]
    assert {fault.kind for fault in brokers} == {FaultKind.KILL, FaultKind.STOP, FaultKind.CUT, FaultKind.HOLD}
    assert sum(fault.target is Target.STATE_LEADER for fault in brokers) > len(SEEDS) / 3


def test_each_fault_with_a_timing_waits_for_a_request() -> None:
    faults = [fault for seed in SEEDS for fault in schedule(seed).faults]
    assert all(bool(fault.request) is (fault.timing is not Timing.ANY) for fault in faults)
