"""Failures of Datadog, and of the metrics of one broker, with all services as separate processes.

Rates are kept for `--failure-threshold` cycles, and then lowered to the minimum. The first cycle after the failure uses
metrics again. A cycle waits for Datadog for at most two fifths of an interval.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autothrottle.core.units import MEGABYTE
from autothrottle_client import Cycle, PlannerClient, Reason
from autothrottle_lab.emulators.datadog import Fault, Late
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.system.simulated_recovery import INTERVAL_SECONDS, NEW, SURVIVORS, SimulatedRecovery

MINIMUM = 10 * MEGABYTE
PARTICIPATING = {NEW, *SURVIVORS}
MEASURED = {Reason.HEADROOM, Reason.UNCHANGED}
FAULTS: dict[str, Fault] = {
    "500": 500,
    "429 with Retry-After": 429,
    "garbage": "garbage",
    "half an answer": "half",
    "an answer after 60 s": Late(60),
    "never an answer": "hang",
}
BEFORE = datetime.min.replace(tzinfo=UTC)
SLACK_SECONDS = 1.0
"""Tolerance of the limit on the duration of a cycle, for a busy machine."""
SLACK_CYCLES = 1
"""Additional cycles until metrics are used again; on a busy machine, a query may time out."""
WITHIN = 30
"""Limit of cycles until an expected decision; two are usual."""


class Cycles:
    """The cycles of the leading planner, in order."""

    def __init__(self, cycles: Iterator[Cycle]) -> None:
        self._cycles = cycles
        self.all: list[Cycle] = []

    def next(self) -> Cycle:
        """Return the next scheduled cycle; cycles started by an event do not count failures."""
        while True:
            cycle = next(self._cycles)
            assert not cycle.error, cycle.error
            self.all.append(cycle)
            if "interval" in cycle.reason:
                return cycle

    def until(self, reasons: set[Reason], brokers: set[int] = PARTICIPATING, after: datetime = BEFORE) -> Cycle:
        """Return the next scheduled cycle that began after a time and decided the brokers' rates for these reasons."""
        for _ in range(WITHIN):
            cycle = self.next()
            if cycle.start_time > after and reasons_of(cycle, brokers) <= reasons:
                return cycle
        raise AssertionError(f"no cycle decided for {reasons}; the last one was {self.all[-1]}")

    def scheduled(self, after: datetime) -> list[Cycle]:
        """Return the scheduled cycles so far that began after a time."""
        return [cycle for cycle in self.all if "interval" in cycle.reason and cycle.start_time > after]


def reasons_of(cycle: Cycle, brokers: set[int]) -> set[Reason]:
    return {d.reason for d in cycle.decisions if d.broker_id in brokers}


def rates_of(cycle: Cycle) -> dict[int, int]:
    return {d.broker_id: d.rate_bytes_per_second for d in cycle.decisions}


def seconds_of(cycle: Cycle) -> float:
    return (cycle.end_time - cycle.start_time).total_seconds()


@pytest.fixture
def recovery(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[SimulatedRecovery]:
    # Large enough that the reassignment outlasts the test, so that the same brokers participate throughout.
    with SimulatedRecovery(zookeeper, tmp_path, {"orders": [100_000] * 3}, prefix="/datadog-faults") as built:
        yield built


def test_rates_are_kept_then_minimal_then_measured_for_every_datadog_fault(
    recovery: SimulatedRecovery, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        services = stack.enter_context(recovery.services(planners=1))
        recovery.wait_for_cycle(recovery.wait_for_term(), within_seconds=60)
        recovery.start_reassignment()
        recovery.wait_until_throttled(within_seconds=60)
        planner = stack.enter_context(PlannerClient([services.addresses["planner-1"]]))
        cycles = Cycles(stack.enter_context(planner.watch_cycles()))
        cycles.until(MEASURED)
        lines = [assert_all_fail_and_recover(recovery, cycles, name, fault) for name, fault in FAULTS.items()]
        assert_one_broker_fails_alone(recovery, cycles)
    with capsys.disabled():
        print(f"\nDuration of cycles while Datadog fails, s (interval {INTERVAL_SECONDS:g} s):", *lines, sep="\n")


def assert_all_fail_and_recover(recovery: SimulatedRecovery, cycles: Cycles, name: str, fault: Fault) -> str:
    """Let every query fail in one way, and heal it; return a line with the durations of the cycles."""
    failed = datetime.now(UTC)
    recovery.datadog.fail(fault, path="/api/v1/query")
    kept = cycles.until({Reason.KEPT})
    assert rates_of(kept) == rates_of(cycles.all[-2]), name
    assert any("metrics cannot be read" in finding for finding in kept.findings), name
    lowest = cycles.next()
    assert reasons_of(lowest, PARTICIPATING) == {Reason.MINIMUM}, name
    assert set(rates_of(lowest).values()) == {MINIMUM} and recovery.rate() == MINIMUM, name
    recovery.datadog.heal()
    healed = datetime.now(UTC)
    cycles.until(MEASURED, after=healed)
    assert len(cycles.scheduled(healed)) <= 1 + SLACK_CYCLES, name
    took = [seconds_of(cycle) for cycle in cycles.scheduled(failed)]
    assert statistics.median(took) < INTERVAL_SECONDS / 2 + SLACK_SECONDS, f"{name}: cycles took {took} s"
    return f"  {name:<22} {' '.join(f'{seconds:.2f}' for seconds in took)}"


def assert_one_broker_fails_alone(recovery: SimulatedRecovery, cycles: Cycles) -> None:
    others = PARTICIPATING - {NEW}
    recovery.datadog.host_of(NEW).dropped = ["tx", "rx"]
    kept = cycles.until({Reason.KEPT}, brokers={NEW})
    assert rates_of(kept)[NEW] == rates_of(cycles.all[-2])[NEW]
    assert reasons_of(kept, others) <= MEASURED
    lowest = cycles.next()
    assert reasons_of(lowest, {NEW}) == {Reason.MINIMUM} and recovery.rate() == MINIMUM
    assert reasons_of(lowest, others) <= MEASURED
    recovery.datadog.host_of(NEW).dropped = []
    restored = datetime.now(UTC)
    cycles.until(MEASURED, after=restored)
    assert len(cycles.scheduled(restored)) <= 1 + SLACK_CYCLES
