"""What a whole chain of services does while Datadog fails, in every way that it can, and while one broker is missing.

Rates stand for `--failure-threshold` cycles, then every broker has the minimum; the cycle after the failure measures
again. No cycle waits for Datadog longer than two fifths of an interval.
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
PORTS = {NEW, *SURVIVORS}
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
"""Of the limit on a cycle, for a machine that does much else."""
SLACK_CYCLES = 1
"""Of the one cycle that a recovery takes: a reading may be too slow on such a machine, and counts as none."""
WITHIN = 30
"""Cycles that may pass until something is seen; two do."""


class Watched:
    """The cycles of the planner that leads, one by one."""

    def __init__(self, cycles: Iterator[Cycle]) -> None:
        self._cycles = cycles
        self.all: list[Cycle] = []

    def next(self) -> Cycle:
        """Return the next scheduled cycle; those that an event starts count no failure."""
        while True:
            cycle = next(self._cycles)
            assert not cycle.error, cycle.error
            self.all.append(cycle)
            if "interval" in cycle.reason:
                return cycle

    def until(self, reasons: set[Reason], brokers: set[int] = PORTS, after: datetime = BEFORE) -> Cycle:
        """Return the next that began after a time and decided these brokers' rates for no other reasons."""
        for _ in range(WITHIN):
            cycle = self.next()
            if cycle.start_time > after and reasons_of(cycle, brokers) <= reasons:
                return cycle
        raise AssertionError(f"no cycle decided for {reasons}; the last one was {self.all[-1]}")

    def scheduled(self, after: datetime) -> list[Cycle]:
        """Return the scheduled cycles that have been seen and began after a time."""
        return [cycle for cycle in self.all if "interval" in cycle.reason and cycle.start_time > after]


def reasons_of(cycle: Cycle, brokers: set[int]) -> set[Reason]:
    return {d.reason for d in cycle.decisions if d.broker_id in brokers}


def rates_of(cycle: Cycle) -> dict[int, int]:
    return {d.broker_id: d.rate_bytes_per_second for d in cycle.decisions}


def seconds_of(cycle: Cycle) -> float:
    return (cycle.end_time - cycle.start_time).total_seconds()


@pytest.fixture
def recovery(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[SimulatedRecovery]:
    # More than can be copied meanwhile, so that the same brokers take part from beginning to end.
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
        watched = Watched(stack.enter_context(planner.watch_cycles()))
        watched.until(MEASURED)
        lines = [assert_all_fail_and_recover(recovery, watched, name, fault) for name, fault in FAULTS.items()]
        assert_one_broker_fails_alone(recovery, watched)
    with capsys.disabled():
        print(f"\nSeconds of each cycle while Datadog fails, interval {INTERVAL_SECONDS:g} s:", *lines, sep="\n")


def assert_all_fail_and_recover(recovery: SimulatedRecovery, watched: Watched, name: str, fault: Fault) -> str:
    """Let every query fail in one way, and heal it; return how long the cycles took, in words."""
    failed = datetime.now(UTC)
    recovery.datadog.fail(fault, path="/api/v1/query")
    kept = watched.until({Reason.KEPT})
    assert rates_of(kept) == rates_of(watched.all[-2]), name
    assert any("metrics cannot be read" in finding for finding in kept.findings), name
    lowest = watched.next()
    assert reasons_of(lowest, PORTS) == {Reason.MINIMUM}, name
    assert set(rates_of(lowest).values()) == {MINIMUM} and recovery.rate() == MINIMUM, name
    recovery.datadog.heal()
    healed = datetime.now(UTC)
    watched.until(MEASURED, after=healed)
    assert len(watched.scheduled(healed)) <= 1 + SLACK_CYCLES, name
    took = [seconds_of(cycle) for cycle in watched.scheduled(failed)]
    assert statistics.median(took) < INTERVAL_SECONDS / 2 + SLACK_SECONDS, f"{name}: cycles took {took} s"
    return f"  {name:<22} {' '.join(f'{seconds:.2f}' for seconds in took)}"


def assert_one_broker_fails_alone(recovery: SimulatedRecovery, watched: Watched) -> None:
    others = PORTS - {NEW}
    recovery.datadog.drop_host(NEW)
    kept = watched.until({Reason.KEPT}, brokers={NEW})
    assert rates_of(kept)[NEW] == rates_of(watched.all[-2])[NEW]
    assert reasons_of(kept, others) <= MEASURED
    lowest = watched.next()
    assert reasons_of(lowest, {NEW}) == {Reason.MINIMUM} and recovery.rate() == MINIMUM
    assert reasons_of(lowest, others) <= MEASURED
    recovery.datadog.restore_host(NEW)
    restored = datetime.now(UTC)
    watched.until(MEASURED, after=restored)
    assert len(watched.scheduled(restored)) <= 1 + SLACK_CYCLES
