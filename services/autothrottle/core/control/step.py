"""A cycle as pure functions: `step` decides, `settle` records what became of the decision.

The planner reads a `CycleObservation`, calls `step`, carries out the `CycleDecision`, and calls `settle` with the
results. Both functions are pure: the same input gives the same output, and they change nothing. All that one cycle
knows of the previous ones is in `ControllerState`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from autothrottle.core.cluster.configs import ConfigResource, ResourceType
from autothrottle.core.cluster.fetch_settings import ClusterSettings
from autothrottle.core.cluster.snapshot import (
    Snapshot,
    link_sides_of_reassignments,
    participants,
)
from autothrottle.core.control import guards
from autothrottle.core.control.catch_up import lagging
from autothrottle.core.control.changes import (
    Applied,
    Change,
    ChangeSet,
    changes,
    recorded_first,
    removal_of_foreign,
    with_records,
)
from autothrottle.core.control.cycle import (
    Action,
    ActionResult,
    AdoptedSources,
    CycleDecision,
    CycleObservation,
    CycleResults,
    PurgeCatchUp,
    PurgeOverride,
    SettingsReading,
    Settled,
    SnapshotViews,
    Submit,
    WakeUp,
    adopted,
)
from autothrottle.core.control.guards import GuardState
from autothrottle.core.control.overrides import Overrides, StoredOverride
from autothrottle.core.control.ownership import foreign_throttles, lost_finding, with_lost_records
from autothrottle.core.control.pause import release_of_ours, stale_lists
from autothrottle.core.control.plan import HOLD_ALL, current_rates, had_reassignment, plan
from autothrottle.core.control.quota_step import with_quotas
from autothrottle.core.control.ramp_state import WriteHistory, applied
from autothrottle.core.control.settings import PlannerSettings
from autothrottle.core.control.state import ControllerState, TermState
from autothrottle.core.control.submission import (
    CHECK_FIRST,
    SETTLED_AFTER,
    VISIBLE_WITHIN,
    SubmissionState,
    Wanted,
    resources,
    some,
    unthrottled,
)
from autothrottle.core.errors import AutothrottleError, Conflict, NotLeader, Unavailable
from autothrottle.core.forecast.progress import remainder, with_static_eta
from autothrottle.core.policy.interface import PolicyObservation
from autothrottle.core.records import Outcome, Pause, PauseMode, Submission
from autothrottle.core.traffic.throttle_history import ThrottleHistory

IN_SHADOW = "the planner runs in shadow mode and does not change Kafka; restart it without --shadow"

CATCH_UP_POLL = timedelta(seconds=2)
"""Time to the next cycle while a broker catches up: Kafka sends no event when a replica outside a reassignment joins
the ISR."""

NOTHING_LEFT, MARKED, EXPIRED = "no reassignment is left", "it was marked for removal", "it has expired"
"""Reasons to purge an override."""

_MAX_CLOCK_DRIFT = timedelta(seconds=2)
"""Largest normal drift of the wall clock between two cycles. A larger one means that the clock was changed."""


# Deciding.


def step(settings: PlannerSettings, state: ControllerState, observation: CycleObservation) -> CycleDecision:
    """Return what to do in this cycle.

    An observation whose snapshot is an error changes no config. What could be read is kept for the next cycle.
    """
    at, clock = observation.at, observation.clock
    term, clock_change = _with_clock(state.term, at, clock)
    term = replace(term, cycles=term.cycles + 1, submissions=term.submissions.without(observation.cancelled))
    if observation.loads is not None:
        term = replace(term, loads=observation.loads)
    cycle = CycleDecision(state, at, observation.scheduled, clock_change=clock_change)
    adopted_sources = adopted(term.sources, observation.sources)
    term = replace(term, sources=adopted_sources.known)
    cycle = _with_sources(settings, cycle, adopted_sources, observation.wanted)
    read = adopted_sources.error or observation.snapshot
    if isinstance(read, AutothrottleError):
        return replace(cycle, state=replace(state, term=term), error=read)
    term, cycle, read, lost = _with_ledger(settings, term, cycle, read)
    term, cycle = _with_cluster(term, cycle, observation, read)
    if cycle.pause is not None:
        cycle = _paused(settings, cycle, term)
    else:
        term, cycle = _with_loads(settings, term, cycle, observation)
        term, cycle = _with_plan(settings, state, term, cycle, observation)
    term, cycle = _with_stalls(term, cycle, observation.settings)
    cycle = replace(cycle, changes=recorded_first(cycle.changes, term.ledger, lost))
    term, cycle = _with_cleanup(settings, term, cycle)
    term, cycle = with_quotas(settings, term, cycle, observation)
    cycle = _with_unreadable(cycle)
    if settings.shadow:
        cycle = replace(cycle, would=cycle.changes, changes=())
    term, cycle = _with_actions(settings, term, cycle, observation)
    return replace(cycle, state=ControllerState(term, state.written))


def _with_clock(term: TermState, at: datetime, clock: float) -> tuple[TermState, timedelta | None]:
    """Discard measurements when the wall clock was changed: their age is wrong then."""
    origin, before = at - timedelta(seconds=clock), term.clock_origin
    term = replace(term, clock_origin=origin)
    if before is None or abs(origin - before) <= _MAX_CLOCK_DRIFT:
        return term, None
    yields = replace(term.yields, stepped_at=term.yields.stepped_at and at)
    return replace(term, history=ThrottleHistory(), policy=None, guards=GuardState(), yields=yields), origin - before


def _with_sources(
    settings: PlannerSettings, cycle: CycleDecision, sources: AdoptedSources, wanted: Wanted | None
) -> CycleDecision:
    """Add the pause and the active overrides, and request a cycle for the next expiry of an override."""
    known, at = sources.known.overrides or Overrides(), cycle.at
    overrides, expiry = known.acting(at), known.next_expiry(at)
    warnings = dict.fromkeys([*overrides.warnings, *overrides.unreadable.values()])
    return replace(
        cycle,
        pause=sources.known.pause,
        overrides=overrides,
        findings=(*sources.findings, *warnings),
        wake_ups=() if expiry is None else (WakeUp("an override expires", expiry - at),),
        answer=obstacle_to_submissions(settings.shadow, sources.known.pause) if wanted else None,
    )


def _with_ledger(
    settings: PlannerSettings, term: TermState, cycle: CycleDecision, read: Snapshot
) -> tuple[TermState, CycleDecision, Snapshot, frozenset[ConfigResource]]:
    """Add the records of this term that the ledger has lost; return the snapshot with them, and their resources."""
    if settings.shadow:
        return term, cycle, read, frozenset()
    of_quotas = {resource: entry for resource, entry in term.ledger.items() if resource.type is ResourceType.QUOTA}
    written = {resource: entry for resource, entry in term.ledger.items() if resource not in of_quotas}
    ledger, lost = with_lost_records(read.ledger, written, read.throttles, read.unreadable_configs)
    if len(ledger) > len(read.ledger) or lost:
        read = replace(read, ledger=ledger)
    findings = tuple(lost_finding(resource) for resource in sorted(lost, key=lambda resource: resource.order))
    term = replace(term, ledger={**ledger, **of_quotas})
    return term, replace(cycle, findings=(*cycle.findings, *findings)), read, lost


def _with_cluster(
    term: TermState, cycle: CycleDecision, observation: CycleObservation, read: Snapshot
) -> tuple[TermState, CycleDecision]:
    """Add the cluster: the view of it, the bytes left, and what the term remembers of both."""
    before, answer = term.submissions, cycle.answer
    wanted = None if answer else observation.wanted
    try:
        submissions = before.observe(read, wanted, observation.clock)
    except AutothrottleError as error:
        answer, submissions = error, before.observe(read, None, observation.clock)
    view = SnapshotViews(
        read,
        submissions.proposal.start,
        submissions.submitted,
        lagging(read.assignments, term.sources.catch_ups),
    )
    withdrawn = term.withdrawn or (before.ticket not in (0, submissions.ticket) and before.in_vain)
    shows_catch_ups = any(view.lagging.values())
    term = replace(
        term,
        version=read.version,
        held=observation.held,
        submissions=submissions,
        withdrawn=((withdrawn and had_reassignment(view.to_throttle)) or shows_catch_ups) and not read.reassignments,
        history=term.history.observe(
            observation.at, current_rates(view.to_throttle), link_sides_of_reassignments(read)
        ),
    )
    problems = tuple(f"{problem.path}: {problem.reason}" for problem in read.problems)
    return term, replace(
        cycle,
        view=view,
        left=remainder(view.copying),
        findings=(*cycle.findings, *problems),
        answer=answer,
        ticket=submissions.ticket,
        needs=resources(read, submissions.proposal.start),
    )


def obstacle_to_submissions(shadow: bool, pause: Pause | None) -> Conflict | None:
    """Return why no reassignment can be submitted now; None: it can."""
    if shadow:
        return Conflict(IN_SHADOW)
    if pause is not None:
        return Conflict(f"nothing was submitted, since autothrottle is paused ({pause}); resume it first")
    return None


def _with_loads(
    settings: PlannerSettings, term: TermState, cycle: CycleDecision, observation: CycleObservation
) -> tuple[TermState, CycleDecision]:
    """Add the loads, and count the brokers without them, unless the policy needs no loads."""
    snapshot, known = cycle.view.to_throttle, term.loads
    if observation.loads is not None:
        sides = link_sides_of_reassignments(cycle.view.read)
        term = replace(term, history=term.history.measured(known.loads, sides))
    needing = participants(snapshot).keys() if settings.policy.fixed_rate is None else frozenset()
    missing = needing - known.loads.brokers.keys()
    if observation.scheduled:
        term = replace(term, failures={b: term.failures.get(b, 0) + 1 for b in missing})
    if known.error:
        found = [known.error]
    else:
        problems = known.loads.problems
        unknown = [f"broker {b}: {problems.get(b, 'unknown to the metrics source')}" for b in sorted(missing)]
        found = [*known.loads.warnings, *unknown]
    return term, replace(cycle, loads=known.loads, findings=(*cycle.findings, *found))


def _paused(settings: PlannerSettings, cycle: CycleDecision, term: TermState) -> CycleDecision:
    """Keep the current throttles, or remove ours, depending on the pause's mode."""
    assert cycle.pause is not None
    snapshot = cycle.view.to_throttle
    if cycle.pause.mode is PauseMode.KEEP:
        return replace(cycle, stale=stale_lists(snapshot, cycle.overrides, settings.limits.keep_throttles))
    return _with_changes(cycle, release_of_ours(snapshot, term.fence, term.cycles))


def _with_changes(cycle: CycleDecision, found: ChangeSet) -> CycleDecision:
    findings = (*cycle.findings, *found.findings)
    return replace(
        cycle, changes=found.changes, refused=found.refused, findings=findings, invalid_lists=found.invalid_lists
    )


def _with_plan(
    settings: PlannerSettings,
    state: ControllerState,
    term: TermState,
    cycle: CycleDecision,
    observation: CycleObservation,
) -> tuple[TermState, CycleDecision]:
    """Decide the throttles, apply the guards, and compute the changes."""
    view, at = cycle.view, observation.at
    snapshot = view.to_throttle
    limits = settings.schedule.limits(settings.limits, at)
    wake_ups = cycle.wake_ups
    if (change := settings.schedule.next_change(at)) is not None:
        wake_ups = (*wake_ups, WakeUp("the schedule changes the share of headroom", change - at))
    growth = snapshot.progress.growth if snapshot.progress else {}
    policy = (term.policy or settings.policy).observe(PolicyObservation(at, snapshot, cycle.loads, growth))
    wanted = plan(
        snapshot, cycle.loads, limits, cycle.overrides, term.failures, term.history, term.after_reassignment, policy
    )
    if term.withdrawn and not term.after_reassignment:
        wanted = replace(wanted, finished_override=False)
    if not term.sources.catch_ups_are_known:
        wanted = replace(wanted, hold=HOLD_ALL, finished_override=False)
    exempt = guards.below_min_isr(view.may_be_exempt, observation.settings.settings)
    in_window = settings.schedule.window(at) is not None
    guard_state, guarded = term.guards.observe(view.read.progress).apply(
        wanted, snapshot, limits, exempt, settings.finish_by, in_window, at
    )
    rates = {(d.broker_id, d.role): d.rate_bytes_per_second for d in guarded.plan.decisions}
    pace = None if settings.shadow else term.ramp.pace(state.written, observation.clock)
    found = changes(guarded.plan, snapshot, term.fence, term.cycles, pace)
    cycle = replace(
        cycle,
        limits=limits,
        plan=guarded.plan,
        left=with_static_eta(cycle.left, view.copying, rates),
        findings=(*cycle.findings, *guarded.findings),
        wake_ups=wake_ups,
    )
    return replace(term, policy=policy, guards=guard_state), _with_changes(cycle, found)


def _with_unreadable(cycle: CycleDecision) -> CycleDecision:
    """Add a finding for each config or ledger entry that cannot be read, unless its change was refused for that."""
    refused = {outcome.resource for outcome in cycle.refused}
    unreadable = sorted(cycle.view.read.unreadable_configs.items())
    findings = (f"{problem.path}: {problem.reason}" for resource, problem in unreadable if resource not in refused)
    return replace(cycle, findings=(*cycle.findings, *findings))


def _with_stalls(term: TermState, cycle: CycleDecision, reading: SettingsReading) -> tuple[TermState, CycleDecision]:
    """Add the new stalls under this plan, and remember all that persist."""
    snapshot = cycle.view.to_throttle
    complete = _complete_settings(reading, snapshot)
    guard_state, stalled = term.guards.watch(cycle.plan, snapshot, cycle.scheduled, complete)
    return replace(term, guards=guard_state), replace(cycle, stalled=stalled)


def _complete_settings(reading: SettingsReading, snapshot: Snapshot) -> ClusterSettings | None:
    """The settings, if they were read for all participants."""
    wanted = frozenset(participants(snapshot)), frozenset(snapshot.topics)
    return reading.settings if reading.complete_for == wanted else None


def _with_cleanup(settings: PlannerSettings, term: TermState, cycle: CycleDecision) -> tuple[TermState, CycleDecision]:
    """Find foreign throttles without a reassignment, and remove them when that is due; they are reported first."""
    if cycle.pause is not None:
        return term, cycle
    snapshot = cycle.view.to_throttle
    foreign = {} if snapshot.reassignments or cycle.plan.hold else foreign_throttles(snapshot)
    if not foreign:
        return replace(term, foreign_cycles=0), cycle
    # The cycle that finds them first is not a whole interval after their start.
    cycles = term.foreign_cycles + cycle.scheduled
    term, is_due = replace(term, foreign_cycles=cycles), settings.cleanup_foreign and cycles > settings.cleanup_after
    if is_due:
        # A resource gets one change per cycle. The next cycle removes its other foreign throttles.
        ours = {change.resource for change in cycle.changes}
        removals = removal_of_foreign(snapshot, term.fence, term.cycles)
        cycle = replace(cycle, changes=(*cycle.changes, *(r for r in removals if r.resource not in ours)))
    if settings.shadow or not is_due:
        cycle = replace(cycle, foreign=foreign)
    return term, cycle


def _with_actions(
    settings: PlannerSettings, term: TermState, cycle: CycleDecision, observation: CycleObservation
) -> tuple[TermState, CycleDecision]:
    """Add what follows the changes: submitting the proposal, purging overrides, ending catch-ups."""
    actions: list[Action] = []
    submissions = term.submissions
    if submissions.ticket and _is_throttled(submissions, cycle, observation.clock):
        start = submissions.proposal.start
        actions.append(Submit(submissions.ticket, start, cycle.needs))
        # Before sending: anything that Kafka may have received must be throttled, whatever the answer is.
        term = replace(term, submissions=submissions.with_sent(start, observation.clock))
    if cycle.pause is None and not settings.shadow:
        actions += _purges(term, cycle)
        actions += [
            PurgeCatchUp(term.sources.catch_ups[b], frozenset({ConfigResource.broker(b)}))
            for b, rows in sorted(cycle.view.lagging.items())
            if not rows and not _may_lag(cycle.view.read, b)
        ]
    return term, replace(cycle, actions=(*actions, *cycle.actions))


def _may_lag(snapshot: Snapshot, broker_id: int) -> bool:
    """Whether a topic that cannot be read may have replicas on a broker."""
    topics = snapshot.replicas.get(broker_id, {})
    return any(not problem.topic or problem.topic in topics for problem in snapshot.problems)


def _is_throttled(submissions: SubmissionState, cycle: CycleDecision, clock: float) -> bool:
    """Whether the brokers have applied all throttles of the proposal."""
    since = submissions.throttled_since
    settled = since is not None and clock - since >= SETTLED_AFTER.total_seconds()
    return not cycle.needs or (settled and not unthrottled(cycle.view.read, submissions.proposal.start))


def _purges(term: TermState, cycle: CycleDecision) -> list[Action]:
    """Removals of overrides that have finished, are marked for removal or have expired."""
    overrides, found = cycle.overrides, list[Action]()
    if cycle.plan.finished_override and overrides.cluster is not None:
        written = frozenset({c.resource for c in cycle.changes} | {o.resource for o in cycle.refused})
        found.append(PurgeOverride(None, overrides.cluster.version, NOTHING_LEFT, written))
    marked = {b: one for b, one in overrides.brokers.items() if one.rate == 0}
    expired = term.sources.overrides.expired(cycle.at) if term.sources.overrides else dict[int | None, StoredOverride]()
    for reason, purged in ((MARKED, marked), (EXPIRED, expired)):
        found += [
            PurgeOverride(broker_or_all, one.version, reason)
            for broker_or_all, one in purged.items()
            if broker_or_all not in overrides.unreadable
        ]
    return found


# Settling.


def settle(
    settings: PlannerSettings, decision: CycleDecision, results: CycleResults
) -> tuple[ControllerState, Settled]:
    """Return the state after the cycle, and what to report of it.

    After a failed cycle the state keeps what `step` has learned, and counts one more failure.
    """
    state, term = decision.state, decision.state.term
    ledger = decision.view.to_throttle.ledger
    settled = Settled(results.outcomes, Applied.of(decision.changes, results.outcomes, ledger))
    if decision.error is None and results.are_written:
        state = _with_writes(settings, decision, settled, results)
        submissions, settled = _submitted(decision, settled, results)
        term = replace(state.term, submissions=submissions)
        term = replace(term, after_reassignment=_after_reassignment(settings, decision, results))
    elif decision.ticket:
        term = replace(term, submissions=term.submissions.without(decision.view.proposed))
    error = decision.error or results.error
    if error is not None:
        troubles = term.troubles + (not isinstance(error, NotLeader))
    else:
        troubles = term.troubles + 1 if settled.refused else 0
        if term.sources.catch_ups:
            settled = replace(settled, wake_ups=(*settled.wake_ups, WakeUp("a broker catches up", CATCH_UP_POLL)))
    return ControllerState(replace(term, troubles=troubles), state.written), settled


def _with_writes(
    settings: PlannerSettings, decision: CycleDecision, settled: Settled, results: CycleResults
) -> ControllerState:
    """Enter the written changes into the histories, and continue the ramps from them."""
    term, snapshot = decision.state.term, decision.view.to_throttle
    rates = current_rates(snapshot) | {side: rate or 0 for side, rate in settled.applied.rates.items()}
    history = term.history.observe(results.at, rates, link_sides_of_reassignments(decision.view.read))
    term = replace(term, history=history)
    if settings.shadow:
        return ControllerState(term, decision.state.written)
    term = replace(term, ledger=with_records(term.ledger, applied(decision.changes, settled.outcomes)))
    ramp = term.ramp.after_cycle(decision.plan, snapshot, decision.changes, settled.outcomes, results.clock)
    written = _with_written(decision.state.written, decision.changes, settled.outcomes, results.clock)
    return ControllerState(replace(term, ramp=ramp), written)


def _with_written(
    history: WriteHistory, wanted: Sequence[Change], outcomes: Sequence[Outcome], clock: float
) -> WriteHistory:
    return history.add(clock, sum(bool(change.edits) for change in applied(wanted, outcomes)))


def _submitted(decision: CycleDecision, settled: Settled, results: CycleResults) -> tuple[SubmissionState, Settled]:
    """Return the submission after the cycle, with the answer for its caller and the time of the next check."""
    submissions, start = decision.state.term.submissions, decision.view.proposed
    if not decision.ticket:
        return submissions, settled
    tried = next((one for one in results.actions if isinstance(one.action, Submit)), None)
    if tried is not None:
        return _sent(submissions, settled, tried, decision.state.term.guards.large_fetches)
    submissions = submissions.without(start)
    missing = [f"{o.resource}: {o.reason}" for o in settled.refused if o.resource in decision.needs]
    if missing:
        answer = Conflict(f"nothing was submitted, since it could not be throttled: {some(missing)}")
        return submissions, _checked_after(timedelta(0), replace(settled, answer=answer))
    since, clock = submissions.throttled_since, results.clock
    if since is None or unthrottled(decision.view.read, start):
        since = clock
    left = SETTLED_AFTER - timedelta(seconds=clock - since)
    return replace(submissions, throttled_since=since), _checked_after(max(left, timedelta(0)), settled)


def _sent(
    submissions: SubmissionState, settled: Settled, tried: ActionResult, large_fetches: str
) -> tuple[SubmissionState, Settled]:
    """Return the submission after Kafka has answered, or after its caller had withdrawn it."""
    assert isinstance(tried.action, Submit)
    start, found = tried.action.start, submissions.proposal
    if not tried.done:
        return submissions.without(start), _checked_after(timedelta(0), settled)
    settled = _checked_after(VISIBLE_WITHIN, settled)
    if isinstance(tried.error, Unavailable):
        answer = Unavailable(f"the reassignment may have been submitted: {tried.error}; {CHECK_FIRST}")
        return replace(submissions, in_vain=False), replace(settled, answer=answer)
    if tried.error is not None:
        return submissions.without(start), replace(settled, answer=tried.error)
    submissions, accepted = submissions.without(tried.refused), len(start) - len(tried.refused)
    if start and not accepted:
        refusal = Conflict(f"Kafka refused all partitions: {some(tried.refused.values())}")
        return submissions, replace(settled, answer=refusal)
    warnings = (large_fetches,) if large_fetches else ()
    done = Submission(accepted, len(found.moving), len(found.there), tried.refused, warnings)
    return replace(submissions, in_vain=False), replace(settled, answer=done)


def _checked_after(delay: timedelta, settled: Settled) -> Settled:
    wake_up = WakeUp("checking a submitted reassignment", delay, urgent=True)
    return replace(settled, wake_ups=(*settled.wake_ups, wake_up))


def _after_reassignment(settings: PlannerSettings, decision: CycleDecision, results: CycleResults) -> bool:
    """Whether an autoremove override has had its reassignment. An incomplete snapshot changes nothing."""
    before, view, overrides = decision.state.term.after_reassignment, decision.view, decision.overrides
    if view.read.reassignments:
        return True
    finished = decision.plan.finished_override and overrides.cluster is not None
    purged = any(
        isinstance(one.action, PurgeOverride) and one.action.reason == NOTHING_LEFT and one.error is None
        for one in results.actions
    )
    purge_is_pending = decision.pause is not None or settings.shadow or (finished and not purged)
    is_incomplete = bool(view.to_throttle.reassignments or view.read.problems or None in overrides.unreadable)
    return before and (purge_is_pending or is_incomplete)


# Between cycles.


def ramp_steps(state: ControllerState, clock: float) -> tuple[Change, ...]:
    """Return the ramp steps that are due; none while paused, because the cycle that read the pause may have failed."""
    term = state.term
    if term.sources.pause is not None:
        return ()
    return term.ramp.steps(state.written, clock, term.fence, term.cycles)


def settle_ramp(
    state: ControllerState, wanted: tuple[Change, ...], outcomes: tuple[Outcome, ...], at: datetime, clock: float
) -> ControllerState:
    """Return the state after ramp steps were written."""
    term = state.term
    ramp = term.ramp.after_writes(wanted, outcomes, clock)
    if wanted:
        snapshot = ramp.snapshot
        history = term.history.observe(at, current_rates(snapshot), link_sides_of_reassignments(snapshot))
        term = replace(term, history=history, ledger=with_records(term.ledger, applied(wanted, outcomes)))
    return ControllerState(replace(term, ramp=ramp), _with_written(state.written, wanted, outcomes, clock))
