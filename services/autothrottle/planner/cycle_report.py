"""The report of a cycle as one value, from what the cycle decided and what became of it. `CycleReport` is the type.

Log, events, trace, metrics and decision log each write a part of the report. Lines that the original program has too
keep its wording, including "source" and "destination".
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from types import MappingProxyType

from autothrottle.core.cluster.configs import ConfigResource, ReplicaRole, ResourceType, parse_rate
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cluster.moves import MoveOutcome
from autothrottle.core.cluster.snapshot import Snapshot, TopicPartition
from autothrottle.core.cycle.decision import (
    ActionResult,
    CycleDecision,
    CycleResults,
    PurgeCatchUp,
    PurgeOverride,
    PurgeQuota,
    Settled,
)
from autothrottle.core.cycle.input import ControllerState, CycleObservation, PlannerSettings, TermState
from autothrottle.core.cycle.requests import EXPIRED, NOTHING_LEFT
from autothrottle.core.errors import AutothrottleError, Invalid, NotLeader
from autothrottle.core.forecast.progress import Remainder, with_static_eta
from autothrottle.core.operators.sources import ScheduleWindow, override_owner
from autothrottle.core.operators.submission import SubmissionRequest
from autothrottle.core.policy.adaptive import OLD_SECONDS
from autothrottle.core.policy.interface import Limits
from autothrottle.core.records import (
    Basis,
    Cycle,
    Decision,
    ForeignThrottle,
    Outcome,
    OutcomeStatus,
    Pause,
    Reason,
    Submission,
    Throttle,
)
from autothrottle.core.texts import capitalized, first_lines, no_end_words
from autothrottle.core.throttles.changes import Applied, Change, RampState
from autothrottle.core.throttles.ownership import shown_foreign
from autothrottle.core.throttles.plan import Plan
from autothrottle.core.units import MEGABYTE, format_size
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
    ended: Mapping[TopicPartition, MoveOutcome] = field(default_factory=dict)
    """Partition whose reassignment has ended -> how, for topics whose end was not reported yet."""

    def begin_term(self) -> Reported:
        """Return the state at the start of a term."""
        return Reported(lagging=self.lagging, window=self.window)


@dataclass(slots=True)
class RunningCycle:
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
    observation: CycleObservation | None = None
    """None: nothing was read."""
    decision: CycleDecision | None = None
    """None: nothing was decided."""
    settled: Settled = Settled()  # noqa: RUF009 (frozen)
    results: CycleResults | None = None
    """None: the decision was not carried out to its end."""
    failure: AutothrottleError | None = None
    """An expected error that ended it."""
    bugs: list[Exception] = field(default_factory=list)
    """Unexpected errors that the log does not have yet."""
    has_failed_unexpectedly: bool = False
    error: str = ""
    """Why it failed; "": it did not."""
    access_problems: tuple[str, ...] = ()
    """A sentence for each credential whose changed file is faulty, and for each problem of the state store."""


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


def cycle_report(settings: PlannerSettings, reported: Reported, outcome: RunningCycle) -> CycleReport:
    """Return the report of a cycle.

    Args:
        settings: the operator's configuration.
        reported: what was reported already.
        outcome: what the cycle has done.
    """
    decision = outcome.decision or CycleDecision(outcome.state, outcome.start, outcome.is_scheduled)
    throttles = _throttles(settings, decision, outcome)
    if throttles is not None:
        remainder = with_static_eta(decision.remainder, decision.view.copying, throttles)
        decision = replace(decision, remainder=remainder)
    opening = _ReportPart(reported) if outcome.decision is None else _of_decision(settings, reported, decision)
    opening = replace(opening, findings=(*opening.findings, *outcome.access_problems))
    ending = replace(opening, lines=())
    if outcome.results is not None and outcome.results.are_written:
        ending = _of_results(settings, opening, decision, outcome.settled, outcome.results, throttles or ())
    return CycleReport(
        record=_record(settings, decision, outcome, ending.findings, throttles),
        decision=decision,
        term=outcome.state.term,
        settled=outcome.settled,
        lines=(*opening.lines, *_failure_lines(outcome), *ending.lines),
        events=ending.events,
        reported=ending.reported,
    )


def _throttles(
    settings: PlannerSettings, decision: CycleDecision, outcome: RunningCycle
) -> tuple[Throttle, ...] | None:
    """Return the throttles in Kafka after a cycle; None: the term has read none yet."""
    term, written = outcome.state, outcome.results or outcome.observation
    ramp = RampState(snapshot=decision.view.to_throttle) if settings.shadow else term.term.ramp
    if written is None or not ramp.snapshot.version:
        return None
    return ramp.throttles(term.written, written.at, written.clock)


def _of_decision(settings: PlannerSettings, reported: Reported, decision: CycleDecision) -> _ReportPart:
    """Report the input of a cycle, and the findings of its decision."""
    lines: list[LogLine] = []
    if decision.clock_change is not None:
        text = f"The clock was changed by {decision.clock_change}; discarding earlier measurements"
        lines.append(LogLine(logging.WARNING, text))
    if decision.pause != reported.pause:
        lines.append(LogLine(logging.WARNING, f"Paused: {decision.pause}" if decision.pause else "Resumed"))
    window = reported.window if decision.limits is None else decision.window
    if window != reported.window:
        lines.append(_window_line(window))
    lagging = reported.lagging
    if decision.error is None:
        lagging = {broker_id: len(rows) for broker_id, rows in decision.view.lagging.items() if rows}
        lines += _catch_up_lines(reported.lagging, lagging)
    stale = (stale_line(decision.stale),) if decision.stale else ()
    foreign = (foreign_line(decision.foreign, settings.cleanup_foreign),) if decision.foreign else ()
    ended = {**reported.ended, **decision.ended_moves}
    return _ReportPart(
        replace(reported, pause=decision.pause, window=window, lagging=lagging, ended=ended),
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


def _failure_lines(outcome: RunningCycle) -> Iterator[LogLine]:
    if isinstance(outcome.failure, NotLeader):
        yield LogLine(logging.WARNING, f"The cycle ended early: {outcome.failure}")
    elif outcome.failure is not None:
        yield LogLine(logging.ERROR, f"The cycle failed, nothing was removed: {outcome.failure}")
    for bug in outcome.bugs:
        yield LogLine(logging.ERROR, "The cycle failed unexpectedly", bug)


def _of_results(
    settings: PlannerSettings,
    opening: _ReportPart,
    decision: CycleDecision,
    settled: Settled,
    results: CycleResults,
    throttles: Sequence[Throttle],
) -> _ReportPart:
    """Report what was written and done; `throttles` are those in Kafka afterwards."""
    rising = {(t.broker_id, t.role): t for t in throttles if t.target_bytes_per_second is not None}
    reported, view = opening.reported, decision.view
    topics = frozenset(view.snapshot.topics).union(r.topic for r in view.unthrottled)
    announced = tuple(topic_lines(view.to_report))
    unsettled = {topic for topic, _ in decision.state.term.moves.unsettled}
    ended = {row: how for row, how in reported.ended.items() if row[0] not in topics and row[0] not in unsettled}
    done, otherwise = ended_topics(ended)
    would: tuple[str, ...] = ()
    if settings.shadow:
        would = tuple(would_lines(decision.plan, decision.would, settings.limits))
    findings = _findings(reported, opening.findings, decision, settled)
    shown = (*findings, *(f"{o.resource}: not written: {o.reason}" for o in settled.refused))
    if large_fetches := decision.state.term.throttles.guards.large_fetches:
        shown = (*shown, large_fetches)  # once in the log of a reassignment; `check` names it at any time
    foreign = shown_foreign(decision.foreign) if decision.foreign else ()
    texts = (
        *((done_line(done),) if done else ()),
        *((f"{_OTHERWISE}: {_bracketed(otherwise)}",) if otherwise else ()),
        *_progress_texts(reported, decision, announced),
        *rate_lines(decision.plan, settled.applied, decision.limits or settings.limits, rising),
        *removal_lines(decision.plan, settled.applied),
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
        ended={row: how for row, how in reported.ended.items() if row not in ended},
    )
    events: tuple[Event, ...] = ()
    if not settings.shadow:
        others = (Event(_OTHERWISE, f"{_OTHERWISE}: {_bracketed(otherwise)}"),) if otherwise else ()
        events = (*others, *_events(settings, reported, decision, settled, done, foreign, rising))
    return _ReportPart(next_reported, lines, findings, events)


def _findings(
    reported: Reported, findings: tuple[str, ...], decision: CycleDecision, settled: Settled
) -> tuple[str, ...]:
    """Return the findings of the decision and of its results."""
    defaults, guards = decision.view.to_throttle.default_throttles, decision.state.term.throttles.guards
    return (
        *findings,
        *default_lines(reported.defaults, defaults),
        *default_in_force_lines(defaults, decision.changes, settled.outcomes),
        *guards.stalled.values(),
    )


def _progress_texts(reported: Reported, decision: CycleDecision, announced: tuple[str, ...]) -> Iterator[str]:
    if announced != reported.announced or decision.scheduled:
        yield from announced
        if decision.remainder is not None:
            yield f"Bytes left to copy: {progress_words(decision.remainder)}"
    if decision.view.snapshot.topics and not reported.topics and decision.view.snapshot.progress is None:
        yield UNKNOWN_PROGRESS


def _events(
    settings: PlannerSettings,
    reported: Reported,
    decision: CycleDecision,
    settled: Settled,
    done: Sequence[str],
    foreign: tuple[ForeignThrottle, ...],
    rising: Mapping[LinkSide, Throttle],
) -> Iterator[Event]:
    yield from change_events(decision.plan, decision.view.to_throttle, settled.applied, done, rising)
    watch = decision.state.term.outages
    if outages := [text for text in watch.findings if text not in reported.findings]:
        yield Event("Reassignment waits for a broker that is down", "\n".join(outages))
    if decision.stalled:
        yield Event("Reassignment stalled", "\n".join(decision.stalled))
    ineffective = [
        text for text in decision.state.term.throttles.effect.ineffective.values() if text not in reported.findings
    ]
    if ineffective:
        yield Event("Throttle not in force", "\n".join(ineffective))
    if foreign and foreign != reported.foreign:
        yield foreign_event(foreign, settings.cleanup_foreign)


def _action_texts(decision: CycleDecision, settled: Settled, results: CycleResults) -> Iterator[str]:
    yield from quota_lines(decision.changes, settled.outcomes)
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
    settings: PlannerSettings,
    decision: CycleDecision,
    outcome: RunningCycle,
    findings: tuple[str, ...],
    throttles: tuple[Throttle, ...] | None,
) -> Cycle:
    remainder, term, settled = decision.remainder, decision.state.term, outcome.settled
    return Cycle(
        term=term.fence,
        number=term.cycles,
        start_time=outcome.start,
        end_time=outcome.end,
        reason=outcome.reason,
        sentence="" if outcome.error else _sentence(settings, decision, settled),
        topics=decision.view.to_report.topics,
        decisions=decision.plan.decisions or decision.unwritten,
        outcomes=limited_reasons(settled.outcomes),
        findings=limited_findings(findings),
        error=outcome.error,
        bytes_left=remainder.bytes_left if remainder else None,
        eta=remainder.eta if remainder else None,
        pause=decision.pause,
        shadow=settings.shadow,
        foreign_throttles=shown_foreign(decision.foreign) if decision.foreign else (),
        eta_low=remainder.eta_low if remainder else None,
        eta_high=remainder.eta_high if remainder else None,
        eta_is_static=remainder.eta_is_static if remainder else False,
        throttles=throttles or (),
        down_brokers=remainder.down if remainder else (),
        throttles_are_known=throttles is not None,
    )


def _sentence(settings: PlannerSettings, decision: CycleDecision, settled: Settled) -> str:
    """What a cycle did, or would have done in shadow mode, in one sentence."""
    snapshot, remainder = decision.view.to_report, decision.remainder
    if settings.shadow:
        action = f"{len(decision.would)} changes would be written" if decision.would else _UP_TO_DATE
        sentence = f"shadow: {_status(snapshot, remainder)}; {action}"
    else:
        sentence = written_sentence(snapshot, decision.changes, settled.outcomes, remainder)
    if decision.pause is None:
        return sentence
    return f"paused ({decision.pause.mode.value}): {sentence.replace(_UP_TO_DATE, 'nothing is written')}"


_KNOWN_BY = {
    Basis.GROWTH: "current, from log growth",
    Basis.COUNTED: "mean of the metric's interval, replication measured",
    Basis.GUESSED: "mean of the metric's interval, replication assumed at the throttle",
}
"""How the client load was determined."""

_REASONS = {
    Reason.BROKER_OVERRIDE: "broker override",
    Reason.CLUSTER_OVERRIDE: "override",
    Reason.MINIMUM: "no metrics: minimum rate",
    Reason.OVER_CAPACITY: "clients need the link: below the minimum rate",
    Reason.KEPT: "no metrics: current rate",
    Reason.FINISH_BY: "twice the rate that the deadline needs",
    Reason.STARVATION: "raised above the produce rate, or replication would never finish",
}
"""The reasons of a rate that do not follow from the client load."""

NOTHING_RISES: Mapping[LinkSide, Throttle] = MappingProxyType({})

_ITEMS_SHOWN = 5_000
"""Maximum number of topics, brokers or rates in a line or an event."""

_FINDINGS_SHOWN = 1_000
"""Maximum number of findings, and of reasons of refused changes, in the record of a cycle."""

_CUT = "the log has the reason"


_TOPICS_SHOWN = 20
"""Maximum number of topics in a finding."""

_OTHERWISE = "Reassignments that did not reach their target"

_FOREIGN_FOUND = "Foreign throttles, not set by autothrottle, exist while there are no reassignments:"

_FOREIGN_SHOWN = 20
"""Maximum number of foreign throttles in an event."""


def megabytes(rate: int) -> str:
    """Return a rate in MB/s with two decimals.

    >>> megabytes(139_830_000)
    '139.83'
    """
    return f"{rate / MEGABYTE:.2f}"


def _bracketed(items: Collection[object]) -> str:
    return f"[{' '.join(str(item) for item in islice(items, _ITEMS_SHOWN))}{_more(items, ' ')}]"


def _more(items: Collection[object], separator: str) -> str:
    """Say how many items are not shown; "": all are. The names of 100,000 topics do not fit into an event."""
    return f"{separator}and {len(items) - _ITEMS_SHOWN} more" if len(items) > _ITEMS_SHOWN else ""


def topic_lines(snapshot: Snapshot) -> list[str]:
    """Return the lines that list the topics in reassignment, and their leaders and followers."""
    if not snapshot.reassignments:
        return ["No topics undergoing reassignment"]
    roles = snapshot.participants
    leaders = sorted(b for b, roles_of_broker in roles.items() if ReplicaRole.LEADER in roles_of_broker)
    followers = sorted(b for b, roles_of_broker in roles.items() if ReplicaRole.FOLLOWER in roles_of_broker)
    rest = f"; {snapshot.unread_partitions} more partitions are being read" if snapshot.unread_partitions else ""
    return [
        f"Topics with ongoing reassignments: {_bracketed(snapshot.topics)}{rest}",
        f"Source brokers participating in replication: {_bracketed(leaders)}",
        f"Destination brokers participating in replication: {_bracketed(followers)}",
    ]


def rate_lines(
    plan: Plan, applied: Applied, limits: Limits, rising: Mapping[LinkSide, Throttle] = NOTHING_RISES
) -> list[str]:
    """Return the lines that list the decided rates, the reason of each, and how those that rise begin."""
    reported, lines = applied.reported, []
    for decision in plan.decisions:
        if (decision.broker_id, decision.role) in reported:
            where = f"broker {decision.broker_id} [{decision.role.value}]"
            rate = f"{megabytes(decision.rate_bytes_per_second)}MB/s"
            lines.append(f"Replication throttle rate for {where} ({_basis(decision, limits)}): {rate}")
            throttle = rising.get((decision.broker_id, decision.role))
            ramp = "" if throttle is None else f" to {megabytes(throttle.rate_bytes_per_second)}MB/s, {_rise(throttle)}"
            lines.append(f"Updated throttle on {where}{ramp}")
            lines += [f"Client load of {where}: {load}" for load in _client_load(decision)]
    return lines


def _rise(throttle: Throttle) -> str:
    """Where a rising throttle goes, and when it is there."""
    by = "" if throttle.arrival_time is None else f" by {throttle.arrival_time:%H:%M:%SZ}"
    return f"rising to {megabytes(throttle.target_bytes_per_second or 0)}MB/s{by}"


def _basis(decision: Decision, limits: Limits) -> str:
    if decision.override_bytes_per_second is not None:
        override = f"{megabytes(decision.override_bytes_per_second)}MB/s"
        return f"{_REASONS[decision.reason]} of {override}, limited by the capacity of the link"
    if decision.reason in _REASONS:
        return _REASONS[decision.reason]
    if decision.basis is Basis.STATIC:
        return "static"
    return f"based on a {limits.max_ratio[decision.role] * 100:g}% max free capacity utilization"


def _client_load(decision: Decision) -> list[str]:
    """The client load behind a rate, and how it was determined; empty if the rate has another reason."""
    if not decision.reason.is_measured or decision.basis not in _KNOWN_BY:
        return []
    load = "" if decision.client_bytes_per_second is None else f"{megabytes(decision.client_bytes_per_second)}MB/s, "
    age = decision.client_age_seconds or 0
    return [f"{load}{_KNOWN_BY[decision.basis]}" + (f", {age}s old" if age > OLD_SECONDS else "")]


def removal_lines(plan: Plan, applied: Applied) -> list[str]:
    """Return the lines for removed throttles, one per broker and topic."""
    lines = [f"Throttle removed on broker {broker_id}" for broker_id in _unthrottled(plan, applied)]
    return lines + [f"Throttled replicas removed on topic {topic}" for topic in applied.topics_cleared]


def _unthrottled(plan: Plan, applied: Applied) -> list[int]:
    throttled = {decision.broker_id for decision in plan.decisions}
    return sorted({b for (b, _), rate in applied.rates.items() if rate is None} - throttled)


def limited_findings(findings: Sequence[str]) -> tuple[str, ...]:
    """Return the first findings, and how many more there are: every response with the cycle contains them."""
    more = len(findings) - _FINDINGS_SHOWN
    return (*findings[:_FINDINGS_SHOWN], *([f"and {more} more findings, in the log"] if more > 0 else []))


def limited_reasons(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Return the outcomes; only the first refused ones keep their whole reason."""
    shown, limited = 0, []
    for outcome in outcomes:
        shown += outcome.status is OutcomeStatus.REFUSED
        is_cut = outcome.status is OutcomeStatus.REFUSED and shown > _FINDINGS_SHOWN
        limited.append(replace(outcome, reason=_CUT) if is_cut else outcome)
    return tuple(limited)


def done_line(done: Sequence[str]) -> str:
    """Return the line that lists the topics whose reassignment is done."""
    return f"Topics done reassigning: {_bracketed(done)}"


def ended_topics(outcomes: Mapping[TopicPartition, MoveOutcome]) -> tuple[list[str], list[str]]:
    """Return the topics whose partitions all have their target replicas, and the others with what became of them.

    >>> done, cancelled = MoveOutcome.DONE, MoveOutcome.CANCELLED
    >>> ended_topics({("a", 0): done, ("b", 0): done, ("b", 1): cancelled, ("c", 0): cancelled})
    (['a'], ['b (1 done, 1 cancelled)', 'c (cancelled)'])
    """
    counts: dict[str, Counter[MoveOutcome]] = {}
    for (topic, _), outcome in outcomes.items():
        counts.setdefault(topic, Counter())[outcome] += 1
    done, others = [], []
    for topic, of_topic in sorted(counts.items()):
        if of_topic.keys() == {MoveOutcome.DONE}:
            done.append(topic)
        elif len(of_topic) == 1:
            others.append(f"{topic} ({next(iter(of_topic)).value})")
        else:
            parts = (f"{of_topic[outcome]} {outcome.value}" for outcome in MoveOutcome if of_topic[outcome])
            others.append(f"{topic} ({', '.join(parts)})")
    return done, others


def change_events(
    plan: Plan,
    snapshot: Snapshot,
    applied: Applied,
    done: Sequence[str],
    rising: Mapping[LinkSide, Throttle] = NOTHING_RISES,
) -> list[Event]:
    """Return the events of a cycle; none if it changed no rate and no reassignment ended."""
    events = [Event("Topics done reassigning", done_line(done))] if done else []
    roles = snapshot.participants
    written = applied.reported
    in_reassignment = [d for d in plan.decisions if d.role in roles.get(d.broker_id, ())]
    out_of_band = [d for d in plan.decisions if d.role not in roles.get(d.broker_id, ())]
    if any((d.broker_id, d.role) in written for d in in_reassignment):
        text = (
            f"Replication throttles changes for brokers [ID, role, rate]: {_listed(in_reassignment, rising)}\n"
            f"Topics currently undergoing replication: {_bracketed(snapshot.topics)}"
        )
        events.append(Event("Broker replication throttle set", text))
    if any((d.broker_id, d.role) in written for d in out_of_band):
        text = f"Replication throttle overrides for brokers [ID, role, rate]: {_listed(out_of_band, rising)}"
        events.append(Event("Broker level throttle override(s) configured", text))
    brokers = _unthrottled(plan, applied)
    if brokers or (applied.topics_cleared and not snapshot.reassignments):
        text = (
            f"Replication throttle removed on the following brokers: {_bracketed(brokers)}\n"
            f"Throttled replicas removed on the following topics: {_bracketed(applied.topics_cleared)}"
        )
        events.append(Event("Broker replication throttle removed", text))
    return events


def _listed(decisions: Sequence[Decision], rising: Mapping[LinkSide, Throttle]) -> str:
    shown = (f"[{d.broker_id}, {d.role.value}, {_listed_rate(d, rising)}]" for d in decisions[:_ITEMS_SHOWN])
    return ", ".join(shown) + _more(decisions, ", ")


def _listed_rate(decision: Decision, rising: Mapping[LinkSide, Throttle]) -> str:
    throttle = rising.get((decision.broker_id, decision.role))
    if throttle is None:
        return megabytes(decision.rate_bytes_per_second)
    return f"{megabytes(throttle.rate_bytes_per_second)}, {_rise(throttle)}"


_UP_TO_DATE = "throttles are up to date"

UNKNOWN_PROGRESS = (
    "Bytes left to copy are unknown, since log sizes are unknown; in ZooKeeper mode set --bootstrap-servers"
)


def written_sentence(
    snapshot: Snapshot, changes: Sequence[Change], outcomes: Sequence[Outcome], remainder: Remainder | None = None
) -> str:
    """Return what a cycle did and, if known, the bytes left, in one sentence."""
    count = {status: sum(o.status is status for o in outcomes) for status in OutcomeStatus}
    status = _status(snapshot, remainder)
    if not changes and not outcomes:
        return f"{status}; {_UP_TO_DATE}"
    refused = f", {count[OutcomeStatus.REFUSED]} refused" if count[OutcomeStatus.REFUSED] else ""
    return f"{status}; {count[OutcomeStatus.APPLIED]} of {len(changes)} changes written{refused}"


def _status(snapshot: Snapshot, remainder: Remainder | None) -> str:
    topics = f"{len(snapshot.topics)} topics in reassignment" if snapshot.topics else "no reassignments"
    return topics if remainder is None else f"{topics}, left: {progress_words(remainder)}"


def quota_lines(changes: Sequence[Change], outcomes: Sequence[Outcome]) -> list[str]:
    """Return one line for each entity whose client quotas were set or restored."""
    done = {o.resource for o in outcomes if o.status is OutcomeStatus.APPLIED}
    lines = []
    for change in changes:
        edits = [edit for edit in change.edits if edit.writes]
        if change.resource.type is ResourceType.QUOTA and change.resource in done and edits:
            verb = "set" if change.records else "restored"
            values = (f"{edit.key} {'not set' if edit.value is None else edit.value}" for edit in edits)
            lines.append(f"Quota of {change.resource} {verb}: {', '.join(values)}")
    return lines


def stale_line(topics: Sequence[str]) -> str:
    """Return the line that lists topics whose replica lists are stale because of a pause."""
    more = f" and {len(topics) - _TOPICS_SHOWN} more" if len(topics) > _TOPICS_SHOWN else ""
    return (
        f"Paused: the throttled replicas of topics {_bracketed(topics[:_TOPICS_SHOWN])}{more} do not match the "
        "reassignments. Unlisted replicas are unthrottled, completed ones are still throttled; resume to update them"
    )


def would_lines(plan: Plan, would: Sequence[Change], limits: Limits) -> list[str]:
    """Return the lines that list what a cycle in shadow mode would have written."""
    outcomes = [Outcome(change.resource, OutcomeStatus.APPLIED) for change in would]
    done, lines = Applied.of(would, outcomes), []
    for decision in plan.decisions:
        if done.rates.get((decision.broker_id, decision.role)) is not None:
            where = f"broker {decision.broker_id} [{decision.role.value}]"
            rate = megabytes(decision.rate_bytes_per_second)
            lines.append(f"Shadow: would throttle {where} ({_basis(decision, limits)}) to {rate}MB/s")
    lines += [f"Shadow: would remove the throttle on broker {b}" for b in _unthrottled(plan, done)]
    for change in would:
        if change.resource.type is ResourceType.TOPIC:
            verb = "set" if change.records else "remove"
            lines.append(f"Shadow: would {verb} the throttled replicas on topic {change.resource.name}")
    lines += [f"Shadow: would write: {line}" for line in quota_lines(would, outcomes)]
    return lines


def progress_words(remainder: Remainder) -> str:
    """Return the bytes left to copy and the remaining time, in words.

    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 11, 2, 12, tzinfo=UTC)
    >>> progress_words(Remainder(41_200_000_000, 0, noon + timedelta(minutes=12), noon))
    '41.20 GB, about 12 min'
    >>> low, high = noon + timedelta(minutes=11), noon + timedelta(minutes=14)
    >>> progress_words(Remainder(41_200_000_000, 0, noon + timedelta(minutes=12), noon, low, high))
    '41.20 GB, about 12 min (11 min to 14 min)'
    >>> progress_words(Remainder(41_200_000_000, 0, noon + timedelta(minutes=12), noon, eta_is_static=True))
    '41.20 GB, about 12 min at these throttles'
    """
    if remainder.down:
        least = "at least " if remainder.unknown_flows else ""
        return f"{least}{format_size(remainder.bytes_left)}, {no_end_words(remainder.down)}"
    if remainder.unknown_flows:
        return f"at least {format_size(remainder.bytes_left)} ({remainder.unknown_flows} flows unknown)"
    return format_size(remainder.bytes_left) + (
        "" if remainder.eta is None else f", about {_duration(remainder.eta - remainder.at)}{_eta_interval(remainder)}"
    )


def _eta_interval(remainder: Remainder) -> str:
    """The interval of the ETA, or its assumption."""
    if remainder.eta_is_static:
        return " at these throttles"
    if remainder.eta_low is None:
        return ""
    latest = "unknown" if remainder.eta_high is None else _duration(remainder.eta_high - remainder.at)
    return f" ({_duration(remainder.eta_low - remainder.at)} to {latest})"


def _duration(time: timedelta) -> str:
    minutes = round(time.total_seconds() / 60)
    if minutes < 2:
        return f"{max(0, round(time.total_seconds()))} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def default_lines(old_defaults: Mapping[str, str], defaults: Mapping[str, str]) -> list[str]:
    """Return the lines on changes of the throttles at Kafka's `<default>` level since the last cycle."""
    lines = []
    for role in ReplicaRole:
        old, new = old_defaults.get(role.rate_key), defaults.get(role.rate_key)
        if new is not None and new != old:
            lines.append(
                f"Kafka's <default> {role.value} throttle is {_shown_rate(new)}: it limits brokers without their own "
                "throttle, and autothrottle does not change it; remove it with kafka-configs --entity-default if it is "
                "not needed"
            )
        elif new is None and old is not None:
            lines.append(f"Kafka's <default> {role.value} throttle of {_shown_rate(old)} was removed")
    return lines


def default_in_force_lines(
    defaults: Mapping[str, str], changes: Sequence[Change], outcomes: Sequence[Outcome]
) -> list[str]:
    """Return the lines that name brokers to which Kafka's `<default>` applies again, since our throttle was removed."""
    done = {o.resource for o in outcomes if o.status is OutcomeStatus.APPLIED}
    return [
        f"broker {change.resource.broker_id} [{role.value}]: its own throttle was removed, so Kafka's <default> of "
        f"{_shown_rate(defaults[role.rate_key])} applies again"
        for change in changes
        if change.resource in done and change.resource.type is ResourceType.BROKER
        for role in ReplicaRole
        if role.rate_key in defaults and any(e.key == role.rate_key and e.value is None for e in change.edits)
    ]


def _shown_rate(value: str) -> str:
    """A foreign rate. It may be malformed: Kafka does not validate values in ZooKeeper."""
    try:
        return f"{megabytes(parse_rate(value))}MB/s"
    except Invalid:
        return repr(value)


def foreign_line(foreign: Mapping[ConfigResource, Mapping[str, str]], cleanup: bool) -> str:
    """Return the line that reports foreign throttles while there are no reassignments."""
    return f"{_FOREIGN_FOUND} {_bracketed(foreign)}; {_cleanup_policy(cleanup)}"


def foreign_event(foreign: Sequence[ForeignThrottle], cleanup: bool) -> Event:
    """Return the event that reports new or changed foreign throttles."""
    lines = [f"{throttle.resource}, {throttle.key}: {throttle.value}" for throttle in foreign]
    text = "\n".join([_FOREIGN_FOUND, *first_lines(lines, _FOREIGN_SHOWN), _cleanup_policy(cleanup)])
    return Event("Foreign throttles found", text)


def _cleanup_policy(cleanup: bool) -> str:
    if cleanup:
        return "they are removed after --cleanup-after intervals"
    return "they stay; --cleanup-foreign removes them"
