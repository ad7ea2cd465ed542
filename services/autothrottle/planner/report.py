"""The last part of a cycle: writes its report to the log, the events, the trace, the metrics and the decision log.

`cycle_report` makes the report. The types to know are `Reporter`, `PlannerMetrics` and `Journal`.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from autothrottle.core import exported_metrics as exported
from autothrottle.core.cluster.configs import ResourceType
from autothrottle.core.cycle.decision import CycleDecision, CycleResults
from autothrottle.core.cycle.input import PlannerSettings
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.exported_metrics import QUEUE_LENGTH, ExportedMetric, MetricSample
from autothrottle.core.operators.sources import unreadable_entries
from autothrottle.core.records import Cycle, Decision, Outcome, OutcomeStatus, Throttle
from autothrottle.core.scoring.cycle_records import RampStep, ReplayInput, UnpackedCycle
from autothrottle.core.scoring.decision_records import LogSettings, ReassignmentSeen, RecordSource, decision_records
from autothrottle.planner.calls import LONGEST_METRICS_WAIT
from autothrottle.planner.cycle_report import CycleReport, Reported
from autothrottle.ports.telemetry import Attribute, DecisionSink, Event, EventSink, Span

log = logging.getLogger(__name__)


class Reporter:
    """Logs the cycles of one planner and posts their events. Only for the planner's thread."""

    def __init__(self, events: EventSink, settings: PlannerSettings) -> None:
        """Begin without a term.

        Args:
            events: receives the events, in the background.
            settings: the operator's configuration.
        """
        self._is_shadow = settings.shadow
        self._poster = EventPoster(events, min(settings.interval / 2, LONGEST_METRICS_WAIT), settings.cluster)
        self.reported = Reported()

    def stop(self) -> None:
        """Post the queued events for at most one second."""
        self._poster.stop()

    def queue_length(self) -> MetricSample:
        """Return the number of events that wait to be posted."""
        return QUEUE_LENGTH.sample(self._poster.waiting, "events")

    def begin_term(self, fence: int) -> None:
        """Forget what was reported."""
        log.info("Leading in term %d%s", fence, ", in shadow mode: nothing is written" * self._is_shadow)
        self.reported = self.reported.begin_term()

    def report(self, report: CycleReport) -> None:
        """Log a cycle and post its events."""
        for line in report.lines:
            log.log(line.level, "%s", line.text, exc_info=line.cause)
        for event in report.events:
            self._poster.post(event)
        self.reported = report.reported


class EventPoster:
    """Posts events from its own thread: a slow sink never delays a cycle."""

    _LIMIT = 100
    _STOP_SECONDS = 1.0

    def __init__(self, sink: EventSink, timeout: timedelta, cluster: str) -> None:
        """Start the thread.

        Args:
            sink: destination of the events.
            timeout: of one post.
            cluster: name of the Kafka cluster; each event has it as a tag.
        """
        self._sink, self._timeout, self._tag = sink, timeout, f"cluster:{cluster}"
        self._waiting: queue.Queue[tuple[Event, contextvars.Context] | None] = queue.Queue(self._LIMIT)
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def post(self, event: Event) -> None:
        """Queue an event with the cluster's tag. With `_LIMIT` events in the queue it is dropped and logged."""
        try:
            tagged = replace(event, tags=(*event.tags, self._tag))
            self._waiting.put_nowait((tagged, contextvars.copy_context()))  # Keeps the event in the cycle's trace.
        except queue.Full:
            log.warning("Event dropped, %d events are already waiting: %s", self._LIMIT, event.title)

    @property
    def waiting(self) -> int:
        """Number of queued events."""
        return self._waiting.qsize()

    def stop(self) -> None:
        """Post the queued events for at most one second; the rest is lost. With a full queue, do not wait."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
            self._thread.join(self._STOP_SECONDS)

    def _run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            event, context = waiting
            try:
                context.run(self._sink.post_event, event, self._timeout)
            except AutothrottleError as error:
                log.warning("Event was not posted (%s): %s", error, event.title)
            except Exception:  # a bug must not end the thread: all later events would be lost
                log.exception("Posting event %s failed unexpectedly", event.title)


class Journal:
    """Writes one planner's decisions. It never fails or delays a cycle."""

    def __init__(self, sink: DecisionSink | None, settings: LogSettings) -> None:
        """Begin without state.

        Args:
            sink: receives the records; None: nothing is logged.
            settings: fields that all records share.
        """
        self._sink, self._settings = sink, settings
        self._term = 0
        self._moving = ReassignmentSeen()
        self._steps: tuple[RampStep, ...] = ()
        self._last_cycle = 0
        """The last cycle of the term whose inputs are logged; 0: none, or a bug has changed the state after it."""

    def note_step(self, at: datetime, clock: float, results: CycleResults) -> None:
        """Record the results of ramp steps between two cycles."""
        if self._sink is not None:
            self._steps += (RampStep(at, clock, results),)

    def note_bug(self) -> None:
        """Record that the state was changed after an unexpected error, so that a replay cannot continue here."""
        self._last_cycle, self._steps = 0, ()

    def write(self, report: CycleReport, trace_id: str, cycle: ReplayInput | None = None) -> None:
        """Log a cycle; without decisions, if its snapshot was not read.

        Args:
            report: the report of the cycle.
            trace_id: id of its trace.
            cycle: what its functions got; None: they have not all ended.
        """
        if self._sink is None:
            return
        try:
            logged = None if cycle is None else self._logged(report, cycle)
            view = report.decision.view
            if not view.snapshot.version:
                self._sink.append((), (), logged)
                return
            history, rates = report.term.throttles.history, report.settled.applied.rates
            source = RecordSource(
                report.record,
                view.snapshot,
                view.copying,
                report.decision.loads,
                history,
                rates,
                trace_id=trace_id,
                ended_moves=report.decision.ended_moves,
                unsettled_moves=report.term.moves.unsettled,
            )
            self._write(self._sink, source, logged)
        except Exception:  # a bug in the log must not end the planner's loop
            log.exception("Writing a cycle to the decision log failed")

    def _logged(self, report: CycleReport, cycle: ReplayInput) -> UnpackedCycle:
        """Return a cycle with the ramp steps since the previous one, for the log."""
        term, number = report.record.term, report.record.number
        previous = self._last_cycle if number > 1 else 0
        written = cycle.written if previous == 0 else None
        steps, self._steps, self._last_cycle = self._steps if previous else (), (), number
        inputs = replace(cycle, steps=steps, written=written)
        return UnpackedCycle(self._settings.cluster, term, number, inputs, report.decision, previous)

    def _write(self, sink: DecisionSink, cycle: RecordSource, logged: UnpackedCycle | None) -> None:
        if cycle.record.term != self._term:
            self._term, self._moving = cycle.record.term, ReassignmentSeen()
        self._moving, ended = self._moving.observe(cycle, self._settings.cluster)
        decisions = decision_records(cycle, self._settings, self._moving.reassignment_id)
        sink.append(decisions, ended, logged)


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
        self._last: CycleReport | None = None
        """The last cycle without an error."""
        self._throttles: tuple[Throttle, ...] = ()
        """The throttles in Kafka as of the last cycle without an error, or of the last ramp step after it."""

    def note_idle(self) -> None:
        """Note that no cycle is due: a term begins, or this planner does not lead."""
        self._succeeded_at, self._last = self._clock(), None

    def note_cycle(self, report: CycleReport) -> None:
        """Note a finished cycle. A failed one leaves the throttles in place, so the earlier ones remain exported."""
        record = report.record
        self._cycles["failed" if record.error else "ok"] += 1
        self._duration = record.end_time - record.start_time
        self.note_writes(record.outcomes)
        if record.error:
            return
        self._last, self._throttles = report, record.throttles
        self._succeeded_at = self._clock()

    def note_throttles(self, throttles: tuple[Throttle, ...]) -> None:
        """Note the throttles in Kafka after a ramp step."""
        self._throttles = throttles

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
            pools = self._broker_pools()
            for throttle in self._throttles:
                labels = throttle.broker_id, throttle.role.value, pools.get(throttle.broker_id, "")
                yield exported.THROTTLE.sample(throttle.rate_bytes_per_second, *labels)
            yield from _of_brokers(last, self._now(), pools)


def _of_cycle(last: CycleReport, now: datetime) -> Iterator[MetricSample]:
    record, overrides, throttles = last.record, last.decision.overrides, last.term.throttles
    yield exported.PAUSED.sample(record.pause is not None)
    yield exported.OVERRIDES.sample(overrides.cluster is not None, "cluster")
    yield exported.OVERRIDES.sample(len(overrides.brokers), "broker")
    yield exported.FOREIGN_THROTTLES.sample(len(record.foreign_throttles))
    yield exported.TOPICS.sample(len(record.topics))
    yield exported.STALLED.sample(len(throttles.guards.stalled))
    yield exported.INEFFECTIVE.sample(len(throttles.effect.ineffective))
    yield exported.CONTESTED.sample(len(throttles.contests.contested))
    for kind, count in _invalid_resources(last.decision).items():
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
        "topology": len(snapshot.problems) - (snapshot.unread_partitions > 0),
        "config": len(snapshot.unreadable_configs) + decision.invalid_lists,
        "override": len(decision.overrides.unreadable) + len(decision.overrides.warnings),
        "catch_up": len(unreadable_entries(sources.catch_ups)),
        "quota": len(unreadable_entries(sources.quotas or {})),
        "yield_rule": len(unreadable_entries(sources.rules or {})),
        "load": len(decision.loads.problems),
    }


def _of_brokers(last: CycleReport, now: datetime, pools: Mapping[int, str]) -> Iterator[MetricSample]:
    for decision in last.record.decisions:
        broker_id, role, pool = decision.broker_id, decision.role.value, pools.get(decision.broker_id, "")
        for metric, value in _of_side(decision, last):
            if value is not None:
                yield metric.sample(value, broker_id, role, pool)
    for broker_id in dict.fromkeys(decision.broker_id for decision in last.record.decisions):
        pool = pools.get(broker_id, "")
        yield exported.METRICS_FAILURES.sample(last.term.throttles.failures.get(broker_id, 0), broker_id, pool)
        if load := last.decision.loads.brokers.get(broker_id):
            oldest = min(load.outbound.end, load.inbound.end)
            yield exported.METRICS_AGE.sample(_seconds(now - oldest), broker_id, pool)


def _of_side(decision: Decision, last: CycleReport) -> Iterator[tuple[ExportedMetric, float | None]]:
    """The values of a link side; None: unknown."""
    load, role = last.decision.loads.brokers.get(decision.broker_id), decision.role
    yield exported.THROTTLE_TARGET, decision.rate_bytes_per_second if last.record.pause is None else None
    quota_rate = last.decision.loads.quota_rates.get((decision.broker_id, role))
    yield exported.QUOTA_RATE, quota_rate.rate if quota_rate else None
    yield exported.CAPACITY, load.capacity.of(role) if load else None
    yield exported.UTILIZATION, load.of(role).rate if load else None
    yield exported.HEADROOM, decision.headroom_bytes_per_second
    yield exported.CLIENT_LOAD, decision.client_bytes_per_second
    is_read = last.record.bytes_left is not None
    yield (
        exported.PRODUCE_RATE,
        last.term.throttles.guards.growth.get((decision.broker_id, role), 0.0) if is_read else None,
    )


def _seconds(time: timedelta) -> float:
    return max(0.0, time.total_seconds())


def describe_cycle(span: Span, record: Cycle, scheduled: bool, cluster: str) -> None:
    """Add the cycle's attributes to its root span."""
    span.describe(
        {
            "cluster": cluster,
            "term": record.term,
            "number": record.number,
            "reason": record.reason,
            "scheduled": scheduled,
            "topics": len(record.topics),
            "sentence": record.sentence,
            "error": record.error,
            **({} if record.bytes_left is None else {"bytes_left": record.bytes_left}),
            **_eta(record),
        }
    )
    if record.error:
        span.fail(record.error)


def _eta(record: Cycle) -> Mapping[str, Attribute]:
    """The ETA and its interval, without unknown values."""
    times = {"eta": record.eta, "eta_low": record.eta_low, "eta_high": record.eta_high}
    found: dict[str, Attribute] = {name: time.isoformat() for name, time in times.items() if time is not None}
    return found | {"eta_is_static": record.eta_is_static} if found else {}
