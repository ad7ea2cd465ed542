"""The last part of a cycle: logs its results and findings, posts its events, and writes the decision log.

`narration` has the texts. The types to know are `Reporter` and `Journal`.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from autothrottle.core.cycle.contribution import PurgeCatchUp, PurgeOverride, PurgeQuota, Submit, WakeUp
from autothrottle.core.cycle.decision import CycleDecision
from autothrottle.core.cycle.results import ActionResult, CycleResults, Settled
from autothrottle.core.cycle.settings import PlannerSettings
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.exported_metrics import QUEUE_LENGTH, MetricSample
from autothrottle.core.forecast.eta import SHORTEST_SPAN
from autothrottle.core.operators import endings
from autothrottle.core.operators.overrides import override_owner
from autothrottle.core.operators.schedule import ScheduleWindow
from autothrottle.core.records import Cycle, ForeignThrottle, Pause, Submission
from autothrottle.core.scoring.decision_records import CycleSeen, LogSettings, ReassignmentSeen, decision_records
from autothrottle.core.texts import capitalized
from autothrottle.core.throttles.ownership import shown_foreign
from autothrottle.planner import narration
from autothrottle.planner.observe import LONGEST_METRICS_WAIT
from autothrottle.ports.telemetry import DecisionSink, Event, EventSink

log = logging.getLogger(__name__)

_FIRST_PROGRESS = SHORTEST_SPAN + timedelta(seconds=10)
"""Time from the start of a reassignment until its ETA is known."""

_FIRST_SIZES = timedelta(seconds=3)
"""Time from the start of a reassignment until its bytes left are known: one read every 2 s, and its answer."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What a term has already reported, so that it is logged once."""

    pause: Pause | None = None
    topics: frozenset[str] = frozenset()
    announced: tuple[str, ...] = ()
    lagging: Mapping[int, int] = field(default_factory=dict)
    """Broker that catches up -> number of its lagging replicas."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    would: tuple[str, ...] = ()
    findings: frozenset[str] = frozenset()
    foreign: tuple[ForeignThrottle, ...] = ()


class Reporter:
    """Reports the cycles of one planner. Only for the planner's thread."""

    def __init__(self, events: EventSink, settings: PlannerSettings, request: Callable[[WakeUp], None]) -> None:
        """Begin without a term.

        Args:
            events: receives the events, in the background.
            settings: the operator's configuration.
            request: requests a cycle.
        """
        self._settings, self._request = settings, request
        self._poster = EventPoster(events, min(settings.interval / 2, LONGEST_METRICS_WAIT), settings.cluster)
        self._reported = Reported()
        self._window: ScheduleWindow | None = None

    def stop(self) -> None:
        """Post the queued events for at most one second."""
        self._poster.stop()

    def queue_length(self) -> MetricSample:
        """Return the number of events that wait to be posted."""
        return QUEUE_LENGTH.sample(self._poster.waiting, "events")

    def begin_term(self, fence: int) -> None:
        """Forget what was reported."""
        log.info("Leading in term %d%s", fence, ", in shadow mode: nothing is written" * self._settings.shadow)
        self._reported = Reported(lagging=self._reported.lagging)

    def report_decision(self, decision: CycleDecision) -> tuple[str, ...]:
        """Log what concerns the input of a cycle, before anything is written; return the decision's findings."""
        if decision.clock_change is not None:
            log.warning("The clock was changed by %s; discarding earlier measurements", decision.clock_change)
        if decision.pause != self._reported.pause:
            log.warning("%s", "Resumed" if decision.pause is None else f"Paused: {decision.pause}")
            self._reported = replace(self._reported, pause=decision.pause)
        if decision.limits is not None:
            self._report_window(self._settings.schedule.window(decision.at))
        counts = {broker_id: len(rows) for broker_id, rows in decision.view.lagging.items() if rows}
        for broker_id, count in counts.items() if decision.error is None else ():
            if count != self._reported.lagging.get(broker_id):
                log.info("Broker %d catches up under throttle: %d replicas are out of sync", broker_id, count)
        if decision.error is None:
            self._reported = replace(self._reported, lagging=counts)
        stale = (narration.stale_line(decision.stale),) if decision.stale else ()
        foreign = (
            (narration.foreign_line(decision.foreign, self._settings.cleanup_foreign),) if decision.foreign else ()
        )
        return (*decision.findings, *stale, *foreign)

    def _report_window(self, window: ScheduleWindow | None) -> None:
        if window != self._window:
            share = "the usual share" if window is None else f"{window.max_ratio * 100:g} %"
            log.info("Schedule: from now on replication gets %s of the headroom", share)
        self._window = window

    def report(
        self, decision: CycleDecision, settled: Settled, results: CycleResults, findings: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Log a cycle and post its events; return the findings of its decision and of its results."""
        findings = self._report(decision, settled, findings)
        for line in narration.quota_lines(decision.changes, settled.outcomes):
            log.info("%s", line)
        for result in results.actions:
            if line := _action_line(result, settled):
                log.info("%s", line)
        return findings

    def _report(self, decision: CycleDecision, settled: Settled, findings: tuple[str, ...]) -> tuple[str, ...]:
        snapshot, reported, shadow = decision.view.to_throttle, self._reported, self._settings.shadow
        topics = frozenset(decision.view.read.topics)
        done = sorted(reported.topics - topics)
        if done:
            log.info("%s", narration.done_line(done))
        lines = tuple(narration.topic_lines(snapshot))
        if lines != reported.announced or decision.scheduled:
            for line in (*lines, *narration.progress_lines(decision.left)):
                log.info("%s", line)
        if topics and not reported.topics:
            self._announce_progress(decision.view.read.progress is not None)
        limits = decision.limits or self._settings.limits
        for line in narration.rate_lines(decision.plan, settled.applied, limits):
            log.info("%s", line)
        for line in narration.removal_lines(decision.plan, settled.applied):
            log.info("%s", line)
        would = tuple(narration.would_lines(decision.plan, decision.would, self._settings.limits)) if shadow else ()
        for line in would if would != reported.would else ():
            log.info("%s", line)
        defaults = snapshot.default_throttles
        findings = (
            *findings,
            *narration.default_lines(reported.defaults, defaults),
            *narration.default_in_force_lines(defaults, decision.changes, settled.outcomes),
            *decision.state.term.throttles.guards.findings,
        )
        shown = (*findings, *(f"{o.resource}: not written: {o.reason}" for o in settled.refused))
        for finding in shown:
            if finding not in reported.findings:
                log.warning("%s", capitalized(finding))
        foreign = shown_foreign(decision.foreign) if decision.foreign else ()
        if not shadow:
            events = narration.events(decision.plan, snapshot, settled.applied, done)
            events += [Event("Reassignment stalled", "\n".join(decision.stalled))] if decision.stalled else []
            ineffective = [
                text for text in decision.state.term.throttles.effect.findings if text not in reported.findings
            ]
            events += [Event("Throttle not in force", "\n".join(ineffective))] if ineffective else []
            if foreign and foreign != reported.foreign:
                events.append(narration.foreign_event(foreign, self._settings.cleanup_foreign))
            for event in events:
                self._poster.post(event)
        self._reported = replace(
            reported,
            topics=topics,
            announced=lines,
            defaults=defaults,
            would=would,
            findings=frozenset(shown),
            foreign=foreign,
        )
        return findings

    def _announce_progress(self, is_read: bool) -> None:
        """At the start of a reassignment: request a cycle for its first ETA, or log that the progress is unknown."""
        if is_read:
            if self._settings.finish_by is not None:
                self._request(WakeUp("first bytes left for the deadline", _FIRST_SIZES))
            self._request(WakeUp("first ETA of the reassignment", _FIRST_PROGRESS))
        else:
            log.info("%s", narration.UNKNOWN_PROGRESS)


def _action_line(result: ActionResult, settled: Settled) -> str:
    """The log line about a completed action; "": it was not completed, or has no line."""
    if not result.done or result.error is not None:
        return ""
    match result.action:
        case Submit() if isinstance(settled.answer, Submission):
            return f"Reassignment of {settled.answer.submitted} partitions submitted with its throttles in place"
        case PurgeOverride(broker_id, _, reason) if reason == endings.NOTHING_LEFT:
            return f"Throttle override removed: {reason}"
        case PurgeOverride(broker_id, _, reason) if reason == endings.EXPIRED:
            return f"Throttle override of {override_owner(broker_id)} removed: {reason}"
        case PurgeQuota(quota, reason):
            return f"Temporary quota of {quota.entity} ended: {reason}"
        case PurgeCatchUp(catch_up):
            return f"Broker {catch_up.broker_id} is in sync: its catch-up under throttle has ended"
    return ""


def cycle_record(
    decision: CycleDecision,
    settled: Settled,
    findings: tuple[str, ...],
    error: str,
    start: datetime,
    end: datetime,
    reason: str,
    settings: PlannerSettings,
) -> Cycle:
    """Return the record of a finished cycle.

    Args:
        decision: what it decided.
        settled: what became of it.
        findings: one sentence each.
        error: why it failed; "": it did not.
        start: UTC.
        end: UTC.
        reason: what started it.
        settings: the operator's configuration.
    """
    snapshot, left, term = decision.view.to_throttle, decision.left, decision.state.term
    sentence = narration.sentence(snapshot, decision.changes, settled.outcomes, left)
    if settings.shadow:
        sentence = narration.shadow_sentence(snapshot, decision.would, left)
    if decision.pause is not None:
        sentence = narration.paused_sentence(decision.pause, sentence)
    return Cycle(
        term=term.fence,
        number=term.cycles,
        start_time=start,
        end_time=end,
        reason=reason,
        sentence="" if error else sentence,
        topics=snapshot.topics,
        decisions=decision.plan.decisions,
        outcomes=narration.limited_reasons(settled.outcomes),
        findings=narration.limited_findings(findings),
        error=error,
        bytes_left=left.bytes_left if left else None,
        eta=left.eta if left else None,
        pause=decision.pause,
        shadow=settings.shadow,
        foreign_throttles=shown_foreign(decision.foreign) if decision.foreign else (),
        eta_low=left.eta_low if left else None,
        eta_high=left.eta_high if left else None,
        eta_is_static=left.eta_is_static if left else False,
    )


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
        self._cancelled = False

    def note_cancelled(self) -> None:
        """Record that the current reassignment was cancelled, at least in part."""
        self._cancelled = True

    def write(self, seen: CycleSeen) -> None:
        """Log a cycle whose snapshot was read."""
        if self._sink is None:
            return
        try:
            self._write(self._sink, seen)
        except Exception:  # a bug in the log must not end the planner's loop
            log.exception("Writing a cycle to the decision log failed")

    def _write(self, sink: DecisionSink, seen: CycleSeen) -> None:
        if seen.record.term != self._term:
            self._term, self._moving, self._cancelled = seen.record.term, ReassignmentSeen(), False
        previous = self._moving
        self._moving, ended = previous.observe(seen, self._settings.cluster, self._cancelled)
        if not self._moving.opening:
            self._cancelled = False
        decisions = decision_records(seen, self._settings, self._moving.reassignment_id)
        sink.append(decisions, ended)
