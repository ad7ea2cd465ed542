"""The exported metrics of a planner, derived from its last cycle. The type to know is `PlannerMetrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from autothrottle.core import exported_metrics as exported
from autothrottle.core.cluster.configs import ResourceType
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cycle.decision import CycleDecision
from autothrottle.core.exported_metrics import ExportedMetric, MetricSample
from autothrottle.core.operators.overrides import Overrides
from autothrottle.core.operators.stored_map import unreadable_entries
from autothrottle.core.records import Cycle, Decision, Outcome, OutcomeStatus
from autothrottle.core.traffic.loads import Loads
from autothrottle.planner.cycle_report import CycleReport


@dataclass(frozen=True, slots=True)
class _LastCycle:
    """The parts of the last cycle without an error that are exported."""

    record: Cycle
    loads: Loads
    overrides: Overrides
    failures: Mapping[int, int]
    produced: Mapping[LinkSide, float]
    stalled: int
    ineffective: int
    invalid: Mapping[str, int]


class PlannerMetrics:
    """The metrics of one planner. Its thread notes cycles and writes; any thread reads samples, without waiting."""

    def __init__(
        self,
        interval: timedelta,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        broker_pools: Callable[[], Mapping[int, str]] = dict,
    ) -> None:
        self._interval, self._now, self._clock, self._broker_pools = interval, now, clock, broker_pools
        self._cycles = Counter({"ok": 0, "failed": 0})
        self._writes = Counter({(resource, status): 0 for resource in ResourceType for status in OutcomeStatus})
        self._succeeded_at = clock()
        self._duration = timedelta(0)
        self._last: _LastCycle | None = None

    def note_idle(self) -> None:
        """Note that no cycle is due: a term begins, or this planner does not lead."""
        self._succeeded_at, self._last = self._clock(), None

    def note_cycle(self, report: CycleReport) -> None:
        """Note a finished cycle. A failed one leaves the throttles in place, so the earlier ones remain exported."""
        record, decision = report.record, report.decision
        self._cycles["failed" if record.error else "ok"] += 1
        self._duration = record.end_time - record.start_time
        self.note_writes(record.outcomes)
        if record.error:
            return
        throttles, invalid = report.term.throttles, _invalid_resources(decision)
        self._last = _LastCycle(
            record,
            decision.loads,
            decision.overrides,
            throttles.failures,
            produced=throttles.guards.growth,
            stalled=len(throttles.guards.stalled),
            ineffective=len(throttles.effect.ineffective),
            invalid=invalid,
        )
        self._succeeded_at = self._clock()

    def note_writes(self, outcomes: Iterable[Outcome]) -> None:
        """Count the outcomes of config changes."""
        self._writes.update((outcome.resource.type, outcome.status) for outcome in outcomes)

    def samples(self, fence: int) -> Iterator[MetricSample]:
        """Return the current samples.

        Args:
            fence: number of the term that this planner leads; 0: it does not lead.
        """
        yield exported.LEADER.sample(fence > 0)
        for result, count in self._cycles.items():
            yield exported.CYCLES.sample(count, result)
        for (resource, status), count in self._writes.items():
            yield exported.CONFIG_WRITES.sample(count, resource.value, status.value)
        if fence:
            yield exported.TERM.sample(fence)
            yield exported.CYCLE_INTERVAL.sample(self._interval.total_seconds())
            yield exported.CYCLE_AGE.sample(self._clock() - self._succeeded_at)
        last = self._last
        if fence and last is not None and last.record.term == fence:
            yield exported.CYCLE_DURATION.sample(self._duration.total_seconds())
            yield from _of_cycle(last, self._now())
            yield from _of_brokers(last, self._now(), self._broker_pools())


def _of_cycle(last: _LastCycle, now: datetime) -> Iterator[MetricSample]:
    record, overrides = last.record, last.overrides
    yield exported.PAUSED.sample(record.pause is not None)
    yield exported.OVERRIDES.sample(overrides.cluster is not None, "cluster")
    yield exported.OVERRIDES.sample(len(overrides.brokers), "broker")
    yield exported.FOREIGN_THROTTLES.sample(len(record.foreign_throttles))
    yield exported.TOPICS.sample(len(record.topics))
    yield exported.STALLED.sample(last.stalled)
    yield exported.INEFFECTIVE.sample(last.ineffective)
    for kind, count in last.invalid.items():
        yield exported.INVALID_RESOURCES.sample(count, kind)
    if record.bytes_left is not None:
        yield exported.BYTES_LEFT.sample(record.bytes_left)
    for bound, eta in (("expected", record.eta), ("earliest", record.eta_low), ("latest", record.eta_high)):
        if eta is not None:
            yield exported.ETA.sample(_seconds(eta - now), bound)


def _invalid_resources(decision: CycleDecision) -> Mapping[str, int]:
    """Kind of resource -> the number of those that could not be read."""
    sources, snapshot = decision.state.term.sources, decision.view.snapshot
    return {
        "topology": len(snapshot.problems),
        "config": len(snapshot.unreadable_configs) + decision.invalid_lists,
        "override": len(decision.overrides.unreadable) + len(decision.overrides.warnings),
        "catch_up": len(unreadable_entries(sources.catch_ups)),
        "quota": len(unreadable_entries(sources.quotas or {})),
        "yield_rule": len(unreadable_entries(sources.rules or {})),
        "load": len(decision.loads.problems),
    }


def _of_brokers(last: _LastCycle, now: datetime, pools: Mapping[int, str]) -> Iterator[MetricSample]:
    for decision in last.record.decisions:
        broker_id, role, pool = decision.broker_id, decision.role.value, pools.get(decision.broker_id, "")
        for metric, value in _of_side(decision, last):
            if value is not None:
                yield metric.sample(value, broker_id, role, pool)
    for broker_id in dict.fromkeys(decision.broker_id for decision in last.record.decisions):
        pool = pools.get(broker_id, "")
        yield exported.METRICS_FAILURES.sample(last.failures.get(broker_id, 0), broker_id, pool)
        if load := last.loads.brokers.get(broker_id):
            oldest = min(load.outbound.end, load.inbound.end)
            yield exported.METRICS_AGE.sample(_seconds(now - oldest), broker_id, pool)


def _of_side(decision: Decision, last: _LastCycle) -> Iterator[tuple[ExportedMetric, float | None]]:
    """The values of a link side; None: unknown."""
    load, role = last.loads.brokers.get(decision.broker_id), decision.role
    yield (
        exported.THROTTLE,
        decision.current_rate_bytes_per_second if last.record.shadow else decision.rate_bytes_per_second,
    )
    quota_rate = last.loads.quota_rates.get((decision.broker_id, role))
    yield exported.QUOTA_RATE, quota_rate.rate if quota_rate else None
    yield exported.CAPACITY, load.capacity.of(role) if load else None
    yield exported.UTILIZATION, load.of(role).rate if load else None
    yield exported.HEADROOM, decision.headroom_bytes_per_second
    yield exported.CLIENT_LOAD, decision.client_bytes_per_second
    is_read = last.record.bytes_left is not None
    yield exported.PRODUCE_RATE, last.produced.get((decision.broker_id, role), 0.0) if is_read else None


def _seconds(time: timedelta) -> float:
    return max(0.0, time.total_seconds())
