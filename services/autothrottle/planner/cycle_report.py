"""The report of a cycle as one value, from what the cycle decided and what became of it. `CycleReport` is the type.

`narration` has the texts. Log, events, trace, metrics and decision log each write a part of the report.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from autothrottle.core.cycle.decision import (
    ActionResult,
    CycleDecision,
    CycleResults,
    PurgeCatchUp,
    PurgeOverride,
    PurgeQuota,
    Settled,
)
from autothrottle.core.cycle.input import ControllerState, PlannerSettings, TermState
from autothrottle.core.errors import AutothrottleError, NotLeader
from autothrottle.core.operators.overrides import override_owner
from autothrottle.core.operators.requests import EXPIRED, NOTHING_LEFT
from autothrottle.core.operators.schedule import ScheduleWindow
from autothrottle.core.operators.submission import SubmissionRequest
from autothrottle.core.records import Cycle, ForeignThrottle, Pause, Submission
from autothrottle.core.texts import capitalized
from autothrottle.core.throttles.ownership import shown_foreign
from autothrottle.planner import narration
from autothrottle.ports.telemetry import Event


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log."""

    level: int
    text: str
    cause: BaseException | None = None
    """The exception whose traceback is logged; None: none is."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What was reported already, so that it is logged once. A term begins with the window and the lagging replicas."""

    pause: Pause | None = None
    topics: frozenset[str] = frozenset()
    announced: tuple[str, ...] = ()
    lagging: Mapping[int, int] = field(default_factory=dict)
    """Broker that catches up -> number of its lagging replicas."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    would: tuple[str, ...] = ()
    findings: frozenset[str] = frozenset()
    foreign: tuple[ForeignThrottle, ...] = ()
    window: ScheduleWindow | None = None
    """The active window of the schedule."""

    def begin_term(self) -> Reported:
        """Return the state at the start of a term."""
        return Reported(lagging=self.lagging, window=self.window)


@dataclass(frozen=True, slots=True)
class CycleOutcome:
    """What one cycle has done, as far as it went."""

    state: ControllerState
    """The state after the cycle."""
    start: datetime
    """UTC."""
    end: datetime
    """UTC."""
    reason: str
    """What started it."""
    is_scheduled: bool
    decision: CycleDecision | None = None
    """None: nothing was decided."""
    settled: Settled = Settled()  # noqa: RUF009 (frozen)
    results: CycleResults | None = None
    """None: the decision was not carried out to its end."""
    failure: AutothrottleError | None = None
    """An expected error that ended it."""
    bugs: tuple[Exception, ...] = ()
    """Unexpected errors."""
    error: str = ""
    """Why it failed; "": it did not."""


@dataclass(frozen=True, slots=True)
class CycleReport:
    """All that is reported of one cycle."""

    record: Cycle
    decision: CycleDecision
    term: TermState
    """The state after the cycle."""
    settled: Settled = Settled()  # noqa: RUF009 (frozen)
    lines: tuple[LogLine, ...] = ()
    """The lines of the log, in their order."""
    events: tuple[Event, ...] = ()
    reported: Reported = Reported()
    """What the next report need not repeat."""


@dataclass(frozen=True, slots=True)
class _ReportPart:
    """A part of a report."""

    reported: Reported
    lines: tuple[LogLine, ...] = ()
    findings: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()


def cycle_report(settings: PlannerSettings, reported: Reported, outcome: CycleOutcome) -> CycleReport:
    """Return the report of a cycle.

    Args:
        settings: the operator's configuration.
        reported: what was reported already.
        outcome: what the cycle has done.
    """
    decision = outcome.decision or CycleDecision(outcome.state, outcome.start, outcome.is_scheduled)
    opening = _ReportPart(reported) if outcome.decision is None else _of_decision(settings, reported, decision)
    ending = replace(opening, lines=())
    if outcome.results is not None and outcome.results.are_written:
        ending = _of_results(settings, opening, decision, outcome.settled, outcome.results)
    return CycleReport(
        record=_record(settings, decision, outcome, ending.findings),
        decision=decision,
        term=outcome.state.term,
        settled=outcome.settled,
        lines=(*opening.lines, *_failure_lines(outcome), *ending.lines),
        events=ending.events,
        reported=ending.reported,
    )


def _of_decision(settings: PlannerSettings, reported: Reported, decision: CycleDecision) -> _ReportPart:
    """Report the input of a cycle, and the findings of its decision."""
    lines: list[LogLine] = []
    if decision.clock_change is not None:
        text = f"The clock was changed by {decision.clock_change}; discarding earlier measurements"
        lines.append(LogLine(logging.WARNING, text))
    if decision.pause != reported.pause:
        lines.append(LogLine(logging.WARNING, f"Paused: {decision.pause}" if decision.pause else "Resumed"))
    window = reported.window if decision.limits is None else settings.schedule.window(decision.at)
    if window != reported.window:
        lines.append(_window_line(window))
    lagging = reported.lagging
    if decision.error is None:
        lagging = {broker_id: len(rows) for broker_id, rows in decision.view.lagging.items() if rows}
        lines += _catch_up_lines(reported.lagging, lagging)
    stale = (narration.stale_line(decision.stale),) if decision.stale else ()
    foreign = (narration.foreign_line(decision.foreign, settings.cleanup_foreign),) if decision.foreign else ()
    return _ReportPart(
        replace(reported, pause=decision.pause, window=window, lagging=lagging),
        tuple(lines),
        (*decision.findings, *stale, *foreign),
    )


def _window_line(window: ScheduleWindow | None) -> LogLine:
    share = "the usual share" if window is None else f"{window.max_ratio * 100:g} %"
    return LogLine(logging.INFO, f"Schedule: from now on replication gets {share} of the headroom")


def _catch_up_lines(reported: Mapping[int, int], lagging: Mapping[int, int]) -> Iterator[LogLine]:
    for broker_id, count in lagging.items():
        if count != reported.get(broker_id):
            text = f"Broker {broker_id} catches up under throttle: {count} replicas are out of sync"
            yield LogLine(logging.INFO, text)


def _failure_lines(outcome: CycleOutcome) -> Iterator[LogLine]:
    if isinstance(outcome.failure, NotLeader):
        yield LogLine(logging.WARNING, f"The cycle ended early: {outcome.failure}")
    elif outcome.failure is not None:
        yield LogLine(logging.ERROR, f"The cycle failed, nothing was removed: {outcome.failure}")
    for bug in outcome.bugs:
        yield LogLine(logging.ERROR, "The cycle failed unexpectedly", bug)


def _of_results(
    settings: PlannerSettings, opening: _ReportPart, decision: CycleDecision, settled: Settled, results: CycleResults
) -> _ReportPart:
    """Report what was written and done."""
    reported, snapshot = opening.reported, decision.view.snapshot
    topics, announced = frozenset(snapshot.topics), tuple(narration.topic_lines(decision.view.to_throttle))
    done = sorted(reported.topics - topics)
    would: tuple[str, ...] = ()
    if settings.shadow:
        would = tuple(narration.would_lines(decision.plan, decision.would, settings.limits))
    findings = _findings(reported, opening.findings, decision, settled)
    shown = (*findings, *(f"{o.resource}: not written: {o.reason}" for o in settled.refused))
    foreign = shown_foreign(decision.foreign) if decision.foreign else ()
    texts = (
        *((narration.done_line(done),) if done else ()),
        *_progress_texts(reported, decision, announced),
        *_rate_texts(settings, decision, settled),
        *(would if would != reported.would else ()),
    )
    lines = (
        *(LogLine(logging.INFO, text) for text in texts),
        *(LogLine(logging.WARNING, capitalized(finding)) for finding in shown if finding not in reported.findings),
        *(LogLine(logging.INFO, text) for text in _action_texts(decision, settled, results)),
    )
    next_reported = replace(
        reported,
        topics=topics,
        announced=announced,
        defaults=decision.view.to_throttle.default_throttles,
        would=would,
        findings=frozenset(shown),
        foreign=foreign,
    )
    events = () if settings.shadow else tuple(_events(settings, reported, decision, settled, done, foreign))
    return _ReportPart(next_reported, lines, findings, events)


def _findings(
    reported: Reported, findings: tuple[str, ...], decision: CycleDecision, settled: Settled
) -> tuple[str, ...]:
    """Return the findings of the decision and of its results."""
    defaults = decision.view.to_throttle.default_throttles
    return (
        *findings,
        *narration.default_lines(reported.defaults, defaults),
        *narration.default_in_force_lines(defaults, decision.changes, settled.outcomes),
        *decision.state.term.throttles.guards.findings,
    )


def _progress_texts(reported: Reported, decision: CycleDecision, announced: tuple[str, ...]) -> Iterator[str]:
    if announced != reported.announced or decision.scheduled:
        yield from announced
        yield from narration.progress_lines(decision.remainder)
    if decision.view.snapshot.topics and not reported.topics and decision.view.snapshot.progress is None:
        yield narration.UNKNOWN_PROGRESS


def _rate_texts(settings: PlannerSettings, decision: CycleDecision, settled: Settled) -> Iterator[str]:
    yield from narration.rate_lines(decision.plan, settled.applied, decision.limits or settings.limits)
    yield from narration.removal_lines(decision.plan, settled.applied)


def _events(
    settings: PlannerSettings,
    reported: Reported,
    decision: CycleDecision,
    settled: Settled,
    done: Sequence[str],
    foreign: tuple[ForeignThrottle, ...],
) -> Iterator[Event]:
    yield from narration.events(decision.plan, decision.view.to_throttle, settled.applied, done)
    if decision.stalled:
        yield Event("Reassignment stalled", "\n".join(decision.stalled))
    ineffective = [text for text in decision.state.term.throttles.effect.findings if text not in reported.findings]
    if ineffective:
        yield Event("Throttle not in force", "\n".join(ineffective))
    if foreign and foreign != reported.foreign:
        yield narration.foreign_event(foreign, settings.cleanup_foreign)


def _action_texts(decision: CycleDecision, settled: Settled, results: CycleResults) -> Iterator[str]:
    yield from narration.quota_lines(decision.changes, settled.outcomes)
    for result in results.actions:
        if text := _action_text(result, settled):
            yield text


def _action_text(result: ActionResult, settled: Settled) -> str:
    """The log line about a completed action; "": it was not completed, or has no line."""
    if not result.done or result.error is not None:
        return ""
    match result.action:
        case SubmissionRequest() if isinstance(settled.answer, Submission):
            return f"Reassignment of {settled.answer.submitted} partitions submitted with its throttles in place"
        case PurgeOverride(broker_id, _, reason) if reason == NOTHING_LEFT:
            return f"Throttle override removed: {reason}"
        case PurgeOverride(broker_id, _, reason) if reason == EXPIRED:
            return f"Throttle override of {override_owner(broker_id)} removed: {reason}"
        case PurgeQuota(quota, reason):
            return f"Temporary quota of {quota.entity} ended: {reason}"
        case PurgeCatchUp(catch_up):
            return f"Broker {catch_up.broker_id} is in sync: its catch-up under throttle has ended"
    return ""


def _record(
    settings: PlannerSettings, decision: CycleDecision, outcome: CycleOutcome, findings: tuple[str, ...]
) -> Cycle:
    remainder, term, settled = decision.remainder, decision.state.term, outcome.settled
    return Cycle(
        term=term.fence,
        number=term.cycles,
        start_time=outcome.start,
        end_time=outcome.end,
        reason=outcome.reason,
        sentence="" if outcome.error else _sentence(settings, decision, settled),
        topics=decision.view.to_throttle.topics,
        decisions=decision.plan.decisions,
        outcomes=narration.limited_reasons(settled.outcomes),
        findings=narration.limited_findings(findings),
        error=outcome.error,
        bytes_left=remainder.bytes_left if remainder else None,
        eta=remainder.eta if remainder else None,
        pause=decision.pause,
        shadow=settings.shadow,
        foreign_throttles=shown_foreign(decision.foreign) if decision.foreign else (),
        eta_low=remainder.eta_low if remainder else None,
        eta_high=remainder.eta_high if remainder else None,
        eta_is_static=remainder.eta_is_static if remainder else False,
    )


def _sentence(settings: PlannerSettings, decision: CycleDecision, settled: Settled) -> str:
    snapshot, remainder = decision.view.to_throttle, decision.remainder
    if settings.shadow:
        sentence = narration.shadow_sentence(snapshot, decision.would, remainder)
    else:
        sentence = narration.sentence(snapshot, decision.changes, settled.outcomes, remainder)
    return sentence if decision.pause is None else narration.paused_sentence(decision.pause, sentence)
