"""A cycle as a pure function: `step` decides, and `settle` records what became of the decision.

The planner reads a `CycleObservation`, calls `step`, carries out the `CycleDecision`, and calls `settle` with the
results. Both functions are pure: the same input gives the same output, and they change nothing. All that one cycle
knows of the previous ones is in `ControllerState`.

Each concern is a function from its own small state and the `StepInput` to its `Contribution` and its next state. If a
concern needs the result of another one, that result is an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain

from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry, ResourceType
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.cycle.client_quotas import control_quotas
from autothrottle.core.cycle.decision import Contribution, CycleDecision, CycleResults, Settled, WakeUp
from autothrottle.core.cycle.input import (
    FIRST_LOADS,
    ControllerState,
    CycleObservation,
    PlannerSettings,
    SnapshotViews,
    StepInput,
    TermState,
)
from autothrottle.core.cycle.requests import (
    awaited_submission,
    ended_requests,
    is_after_reassignment,
    obstacle_to_submissions,
    requests,
    settled_submission,
    submission,
)
from autothrottle.core.cycle.throttling import ThrottleDecision, clean_up, decide_throttles
from autothrottle.core.errors import AutothrottleError, NotLeader
from autothrottle.core.forecast.eta import SHORTEST_SPAN
from autothrottle.core.forecast.progress import remainder
from autothrottle.core.operators.sources import Overrides, lagging
from autothrottle.core.operators.submission import SubmissionState, resources
from autothrottle.core.throttles.changes import Applied, applied, with_records
from autothrottle.core.throttles.ownership import lost_finding, with_lost_records
from autothrottle.core.traffic.replication import SEEN_WITHIN

_MAX_CLOCK_DRIFT = timedelta(seconds=2)
"""Largest normal drift of the wall clock between two cycles. A larger one means that the clock was changed."""

_SETTLING = timedelta(seconds=1)
"""Time to the next cycle while a broker may still show the replicas from before the end of a reassignment."""


def step(settings: PlannerSettings, state: ControllerState, observation: CycleObservation) -> CycleDecision:
    """Return what to do in this cycle.

    An observation whose snapshot is an error changes no config. What could be read is kept for the next cycle.
    """
    term, clock_change = _begun(state.term, observation)
    begun, pause = replace(state, term=term), term.sources.pause
    overrides = (term.sources.overrides or Overrides()).acting(observation.at)
    obstacle = obstacle_to_submissions(settings.shadow, pause) if observation.request else None
    operators = requests(observation, overrides)
    snapshot = observation.sources.error or observation.snapshot
    if isinstance(snapshot, AutothrottleError):
        return CycleDecision(
            begun,
            observation.at,
            observation.scheduled,
            pause=pause,
            overrides=overrides,
            findings=operators.findings,
            wake_ups=operators.wake_ups,
            answer=obstacle,
            clock_change=clock_change,
            error=snapshot,
        )
    moves, ended_moves = term.moves.observe(snapshot, observation.ended_partitions, observation.clock)
    begun = replace(begun, term=replace(term, moves=moves))
    snapshot, ledger, lost = _with_ledger(settings, term, snapshot)
    request = None if obstacle else observation.request
    submissions, refusal = awaited_submission(term.submissions, snapshot, request, observation.clock)
    unthrottled = tuple(r for r in snapshot.reassignments if r.topic == settings.state_topic)
    snapshot = snapshot.without_topic(settings.state_topic)
    lags = lagging(snapshot.assignments, term.sources.catch_ups)
    cycle = StepInput(
        observation,
        observation.at,
        observation.clock,
        term.fence,
        term.cycles,
        term.sources,
        overrides,
        term.loads,
        SnapshotViews(snapshot, submissions.proposal.start, submissions.submitted, lags, unthrottled),
        ledger,
        lost,
    )
    outages = term.outages.observe(snapshot, observation.at)
    findings = (*outages.findings, *operators.findings, *_findings(snapshot, lost))
    wake_ups = [*operators.wake_ups]
    if moves.is_settling(observation.clock):
        wake_ups.append(WakeUp("the replicas of an ended reassignment", _SETTLING))
    if _begins_copying(begun.term, cycle):
        begun = replace(begun, term=replace(begun.term, loads=replace(term.loads, begun_at=observation.clock)))
        wake_ups.append(WakeUp("first loads with counted copies", FIRST_LOADS))
    inputs = replace(operators, findings=findings, wake_ups=tuple(wake_ups), answer=obstacle or refusal)
    begun = replace(begun, term=replace(begun.term, outages=outages))
    decision = _decided(settings, begun, cycle, submissions, inputs)
    return replace(decision, ended_moves=ended_moves, clock_change=clock_change)


def _begun(term: TermState, observation: CycleObservation) -> tuple[TermState, timedelta | None]:
    """Count the cycle, and adopt its sources and loads; return how far the wall clock was changed.

    Measurements from before a change of the clock are discarded: their age is wrong then.
    """
    origin = observation.at - timedelta(seconds=observation.clock)
    drift = timedelta(0) if term.clock_origin is None else origin - term.clock_origin
    is_changed = abs(drift) > _MAX_CLOCK_DRIFT
    return replace(
        term,
        cycles=term.cycles + 1,
        clock_origin=origin,
        sources=observation.sources.latest,
        loads=term.loads if observation.loads is None else observation.loads,
        submissions=term.submissions.without(observation.cancelled),
        throttles=term.throttles.without_measurements() if is_changed else term.throttles,
        quotas=term.quotas.with_clock(observation.at) if is_changed else term.quotas,
    ), drift if is_changed else None


def _begins_copying(term: TermState, cycle: StepInput) -> bool:
    """Return whether loads of the present must be read again soon: they cover copies that are not counted yet."""
    if term.loads.begun_at is not None or term.clock_origin is None or not term.loads.are_current(term.clock_origin):
        return False
    begun = term.throttles.history.unthrottled
    if cycle.view.snapshot.link_sides - begun.keys():
        return True
    recently = cycle.at - SEEN_WITHIN - FIRST_LOADS / 2
    return cycle.observation.loads is not None and any(since > recently for since, _ in begun.values())


def _with_ledger(
    settings: PlannerSettings, term: TermState, snapshot: Snapshot
) -> tuple[Snapshot, Mapping[ConfigResource, LedgerEntry], frozenset[ConfigResource]]:
    """Return the snapshot, the ledger and the resources whose records of this term the stored ledger has lost."""
    if settings.shadow:
        return snapshot, term.ledger, frozenset()
    quotas = {resource: entry for resource, entry in term.ledger.items() if resource.type is ResourceType.QUOTA}
    throttles = {resource: entry for resource, entry in term.ledger.items() if resource not in quotas}
    ledger, lost = with_lost_records(snapshot.ledger, throttles, snapshot.throttles, snapshot.unreadable_configs)
    if len(ledger) > len(snapshot.ledger) or lost:
        snapshot = replace(snapshot, ledger=ledger)
    return snapshot, {**ledger, **quotas}, lost


def _findings(snapshot: Snapshot, lost: Collection[ConfigResource]) -> tuple[str, ...]:
    """Report the lost records, and what cannot be read of the cluster."""
    lost_records = map(lost_finding, sorted(lost, key=lambda resource: resource.order))
    return (*lost_records, *(f"{problem.path}: {problem.reason}" for problem in snapshot.problems))


def _decided(
    settings: PlannerSettings,
    state: ControllerState,
    cycle: StepInput,
    submissions: SubmissionState,
    inputs: Contribution,
) -> CycleDecision:
    """Return the decision of a cycle whose input could be read.

    Args:
        settings: the operator's configuration.
        state: what the term remembers.
        cycle: the input.
        submissions: with the reassignment that a caller waits for.
        inputs: what to report of the input.
    """
    term, view = state.term, cycle.view
    pace = None if settings.shadow else term.ramp.pace(state.written, cycle.clock)
    was_withdrawn = term.submissions.ticket not in (0, submissions.ticket) and term.submissions.in_vain
    throttle_state, throttles = decide_throttles(settings, term.throttles, cycle, pace, was_withdrawn)
    rates = throttles.contribution
    cleanup = clean_up(settings, term.foreign_cycles, cycle, throttles.plan, rates.changes)
    quota_state, ledger, quotas = control_quotas(settings, term.quotas, cycle, throttles)
    start = submissions.proposal.start
    needs = resources(view.snapshot, start) if start else frozenset[ConfigResource]()
    sent, submit = submission(submissions, needs, view.snapshot, cycle.clock)
    writes = merged(rates, cleanup.contribution, quotas)
    ended = ended_requests(settings, cycle, throttles.plan.finished_override, writes)
    unreadable = _unreadable(view.snapshot, writes)
    next_term = replace(
        term,
        version=view.snapshot.version,
        accepts_partial=not (view.snapshot.reassignments or view.snapshot.problems or writes.changes),
        ledger=ledger,
        isr_partitions=cycle.observation.isr_partitions,
        throttles=throttle_state,
        foreign_cycles=cleanup.cycles,
        submissions=sent,
        quotas=quota_state,
    )
    late = Contribution() if settings.shadow else _late_writes(cycle.at, with_records(ledger, writes.changes))
    total = merged(inputs, rates, cleanup.contribution, submit, ended, quotas, unreadable, late)
    decision = _with_throttles(settings, replace(state, term=next_term), cycle, throttles, total)
    return replace(decision, foreign=cleanup.foreign, ticket=submissions.ticket, needs=needs)


def _with_throttles(
    settings: PlannerSettings,
    state: ControllerState,
    cycle: StepInput,
    throttles: ThrottleDecision,
    total: Contribution,
) -> CycleDecision:
    """Return the decision with the throttles, and with the contributions of all concerns."""
    return CycleDecision(
        state,
        cycle.at,
        cycle.observation.scheduled,
        view=cycle.view,
        remainder=state.term.outages.in_remainder(remainder(cycle.view.copying), cycle.view.copying),
        pause=cycle.sources.pause,
        overrides=cycle.overrides,
        loads=throttles.loads,
        limits=throttles.limits,
        window=throttles.window,
        plan=throttles.plan,
        unwritten=throttles.unwritten,
        ramp=state.term.ramp.begin(throttles.plan, cycle.view.to_throttle, throttles.held_resources),
        changes=() if settings.shadow else total.changes,
        would=total.changes if settings.shadow else (),
        refused=total.refused,
        invalid_lists=throttles.invalid_lists,
        actions=total.actions,
        findings=total.findings,
        stale=throttles.stale,
        stalled=throttles.stalled,
        wake_ups=total.wake_ups,
        answer=total.answer,
    )


def _late_writes(at: datetime, ledger: Mapping[ConfigResource, LedgerEntry]) -> Contribution:
    """Return the cycle from which on a write of unknown outcome can no longer arrive."""
    times = [key.settles for entry in ledger.values() for key in entry.keys.values() if key.settles is not None]
    waits = [time - at for time in times if time > at]
    return Contribution(wake_ups=(WakeUp("late writes settle", min(waits)),) if waits else ())


def merged(*parts: Contribution) -> Contribution:
    """Return all contributions as one, in their order."""
    return Contribution(
        tuple(chain.from_iterable(part.changes for part in parts)),
        tuple(chain.from_iterable(part.refused for part in parts)),
        tuple(chain.from_iterable(part.actions for part in parts)),
        tuple(chain.from_iterable(part.findings for part in parts)),
        tuple(chain.from_iterable(part.wake_ups for part in parts)),
        next((part.answer for part in parts if part.answer is not None), None),
    )


def ramp_steps(state: ControllerState, at: datetime, clock: float) -> CycleDecision:
    """Return the ramp steps that are due between two cycles.

    There are none while paused, because the cycle that read the pause may have failed.

    Args:
        state: what the planner remembers.
        at: UTC.
        clock: monotonic time in seconds.
    """
    term = state.term
    is_paused = term.sources.pause is not None
    steps = () if is_paused else term.ramp.steps(state.written, at, clock, term.fence, term.cycles)
    view = SnapshotViews(term.ramp.snapshot)
    return CycleDecision(state, at, scheduled=False, view=view, ramp=term.ramp, changes=steps, between_cycles=True)


def _unreadable(snapshot: Snapshot, writes: Contribution) -> Contribution:
    """Return a finding for each config or ledger entry that cannot be read, unless its change was refused for that."""
    refused = {outcome.resource for outcome in writes.refused}
    unreadable = sorted(snapshot.unreadable_configs.items())
    return Contribution(
        findings=tuple(
            f"{problem.path}: {problem.reason}" for resource, problem in unreadable if resource not in refused
        )
    )


CATCH_UP_POLL = timedelta(seconds=2)
"""Time to the next cycle while a broker catches up: Kafka sends no event when a replica outside a reassignment joins
the ISR."""

_REST_OF_START = timedelta(seconds=20)
"""Longest time from a partial snapshot to the next cycle. Usually an event starts it as soon as the rest has been read.
No event comes if the rest ended meanwhile, or if another discovery replica sent its events before."""

_FIRST_ETA = SHORTEST_SPAN + timedelta(seconds=10)
"""Time from the start of a reassignment until its ETA is known."""

_FIRST_SIZES = timedelta(seconds=3)
"""Time from the start of a reassignment until its bytes left are known: one read every 2 s, and its answer."""


def settle(
    settings: PlannerSettings, decision: CycleDecision, results: CycleResults
) -> tuple[ControllerState, Settled]:
    """Return the state after the changes were written, and what to report of them.

    After a failed cycle the state keeps what `step` has learned, and counts one more failure. Ramp steps between cycles
    change only the histories and the ramps.
    """
    state, term = decision.state, decision.state.term
    ledger = decision.view.to_throttle.ledger
    contested = term.throttles.contests.contested
    settled = Settled(results.outcomes, Applied.of(decision.changes, results.outcomes, ledger, contested))
    if decision.error is None and results.are_written:
        state = _with_writes(settings, decision, settled, results)
        if decision.between_cycles:
            return state, settled
        submissions, answer, checks = settled_submission(decision, settled.refused, results)
        settled = replace(settled, answer=answer, wake_ups=(*_first_figures(settings, decision), *checks))
        after_reassignment = is_after_reassignment(settings.shadow, decision, results)
        throttles = replace(state.term.throttles, after_reassignment=after_reassignment)
        snapshot = decision.view.snapshot
        has_reassignments = bool(snapshot.reassignments) and not snapshot.unread_partitions
        term = replace(state.term, submissions=submissions, throttles=throttles, has_reassignments=has_reassignments)
    elif decision.ticket:
        term = replace(term, submissions=term.submissions.without(decision.view.proposed))
    error = decision.error or results.error
    if error is None and term.sources.catch_ups:
        settled = replace(settled, wake_ups=(*settled.wake_ups, WakeUp("a broker catches up", CATCH_UP_POLL)))
    if error is None:
        troubles = term.troubles + 1 if settled.refused else 0
    else:
        troubles = term.troubles + (not isinstance(error, NotLeader))
    return ControllerState(replace(term, troubles=troubles), state.written), settled


def _with_writes(
    settings: PlannerSettings, decision: CycleDecision, settled: Settled, results: CycleResults
) -> ControllerState:
    """Enter the written changes into the histories, and continue the ramps from them."""
    term, snapshot = decision.state.term, decision.view.to_throttle
    rates = {**snapshot.rates, **{side: rate or 0 for side, rate in settled.applied.rates.items()}}
    history = term.throttles.history.observe(results.at, rates, decision.view.snapshot.link_sides)
    term = replace(term, throttles=replace(term.throttles, history=history))
    if settings.shadow:
        return ControllerState(term, decision.state.written)
    changes = applied(decision.changes, settled.outcomes)
    ramp = decision.ramp.after_writes(decision.changes, settled.outcomes, results.clock)
    written = decision.state.written.add(results.clock, sum(bool(change.edits) for change in changes))
    return ControllerState(replace(term, ramp=ramp, ledger=with_records(term.ledger, changes)), written)


def _first_figures(settings: PlannerSettings, decision: CycleDecision) -> Iterator[WakeUp]:
    """Request cycles for the rest of a reassignment that has started, and for its first bytes left and first ETA."""
    snapshot, term = decision.view.snapshot, decision.state.term
    if snapshot.unread_partitions:
        yield WakeUp("the rest of the reassignments", _REST_OF_START)
    is_start = snapshot.reassignments and not snapshot.unread_partitions and not term.has_reassignments
    if is_start and snapshot.progress is not None:
        if settings.finish_by is not None:
            yield WakeUp("first bytes left for the deadline", _FIRST_SIZES)
        yield WakeUp("first ETA of the reassignment", _FIRST_ETA)
