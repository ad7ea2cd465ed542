"""The requests of operators in a cycle: what cannot be read of them, those that end, and the submission.

An override ends when it has expired, is marked for removal, or has had its reassignment. A catch-up ends in sync. A
reassignment is submitted once its throttles are in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.cycle.decision import (
    Action,
    ActionResult,
    Contribution,
    CycleDecision,
    CycleResults,
    PurgeCatchUp,
    PurgeOverride,
    WakeUp,
)
from autothrottle.core.cycle.input import CycleObservation, PlannerSettings, StepInput
from autothrottle.core.errors import AutothrottleError, Conflict, Unavailable
from autothrottle.core.operators.sources import Overrides, StoredOverride
from autothrottle.core.operators.submission import (
    CHECK_FIRST,
    SETTLED_AFTER,
    VISIBLE_WITHIN,
    SubmissionRequest,
    SubmissionState,
    some,
    unthrottled,
)
from autothrottle.core.records import Outcome, Pause, Submission

NOTHING_LEFT, MARKED, EXPIRED = "no reassignment is left", "it was marked for removal", "it has expired"
"""Reasons to purge an override."""


def requests(observation: CycleObservation, overrides: Overrides) -> Contribution:
    """Return what cannot be read of the operators' requests, and a cycle for the next expiry of an override.

    Args:
        observation: with the sources that apply.
        overrides: those that act now.
    """
    sources, at = observation.sources, observation.at
    expiry = sources.latest.overrides.next_expiry(at) if sources.latest.overrides else None
    return Contribution(
        findings=(*sources.findings, *dict.fromkeys([*overrides.warnings, *overrides.unreadable.values()])),
        wake_ups=() if expiry is None else (WakeUp("an override expires", expiry - at),),
    )


def ended_requests(
    settings: PlannerSettings, cycle: StepInput, finished_override: bool, writes: Contribution
) -> Contribution:
    """Return the removals of overrides and catch-ups that have ended; none while paused or in shadow mode.

    Args:
        settings: the operator's configuration.
        cycle: the input of the cycle.
        finished_override: whether the cluster override has had its reassignment.
        writes: all changes of this cycle, and those refused. If one is refused, the cluster override stays.
    """
    if cycle.sources.pause is not None or settings.shadow:
        return Contribution()
    actions: list[Action] = []
    cluster = cycle.overrides.cluster
    if finished_override and cluster is not None:
        actions.append(PurgeOverride(None, cluster.version, NOTHING_LEFT, writes.resources))
    return Contribution(actions=(*actions, *_purges(cycle), *_ended_catch_ups(cycle)))


def _purges(cycle: StepInput) -> Iterator[PurgeOverride]:
    """Yield the removals of overrides that are marked for removal or have expired."""
    overrides, all_overrides = cycle.overrides, cycle.sources.overrides
    marked: dict[int | None, StoredOverride] = {b: o for b, o in overrides.brokers.items() if o.rate == 0}
    expired = all_overrides.expired(cycle.at) if all_overrides else {}
    for reason, ended in ((MARKED, marked), (EXPIRED, expired)):
        for broker_or_all, override in ended.items():
            if broker_or_all not in overrides.unreadable:
                yield PurgeOverride(broker_or_all, override.version, reason)


def _ended_catch_ups(cycle: StepInput) -> Iterator[PurgeCatchUp]:
    for broker_id, rows in sorted(cycle.view.lagging.items()):
        if not rows and not _may_lag(cycle.view.snapshot, broker_id):
            yield PurgeCatchUp(cycle.sources.catch_ups[broker_id], frozenset({ConfigResource.broker(broker_id)}))


def _may_lag(snapshot: Snapshot, broker_id: int) -> bool:
    """Whether a topic that cannot be read may have replicas on a broker."""
    topics = snapshot.replicas.get(broker_id, {})
    return any(not problem.topic or problem.topic in topics for problem in snapshot.problems)


def is_after_reassignment(shadow: bool, decision: CycleDecision, results: CycleResults) -> bool:
    """Return whether an autoremove override has had its reassignment. An incomplete snapshot changes nothing."""
    view, overrides = decision.view, decision.overrides
    if view.snapshot.reassignments:
        return True
    finished = decision.plan.finished_override and overrides.cluster is not None
    purged = any(
        isinstance(result.action, PurgeOverride) and result.action.reason == NOTHING_LEFT and result.error is None
        for result in results.actions
    )
    purge_is_pending = decision.pause is not None or shadow or (finished and not purged)
    is_incomplete = bool(view.to_throttle.reassignments or view.snapshot.problems or None in overrides.unreadable)
    return decision.state.term.throttles.after_reassignment and (purge_is_pending or is_incomplete)


IN_SHADOW = "the planner runs in shadow mode and does not change Kafka; restart it without --shadow"

SubmissionEnd = tuple[SubmissionState, Submission | AutothrottleError | None, tuple[WakeUp, ...]]
"""The state after a cycle, the caller's answer (None: not yet), and the next checks."""


def obstacle_to_submissions(shadow: bool, pause: Pause | None) -> Conflict | None:
    """Return why no reassignment can be submitted now; None: it can."""
    if shadow:
        return Conflict(IN_SHADOW)
    if pause is not None:
        return Conflict(f"nothing was submitted, since autothrottle is paused ({pause}); resume it first")
    return None


def awaited_submission(
    state: SubmissionState, snapshot: Snapshot, request: SubmissionRequest | None, clock: float
) -> tuple[SubmissionState, AutothrottleError | None]:
    """Return the state with the reassignment that a caller waits for, or why it cannot be submitted.

    Args:
        state: what the term remembers.
        snapshot: has the assignments of all these partitions.
        request: the reassignment that a caller waits for; None: no caller waits.
        clock: monotonic time in seconds.
    """
    try:
        return state.observe(snapshot, request, clock), None
    except AutothrottleError as error:
        return state.observe(snapshot, None, clock), error


def submission(
    state: SubmissionState, needs: frozenset[ConfigResource], snapshot: Snapshot, clock: float
) -> tuple[SubmissionState, Contribution]:
    """Return the action that submits the reassignment, once the brokers have applied all its throttles.

    Args:
        state: with the reassignment that a caller waits for.
        needs: the resources of its throttles.
        snapshot: the cluster as read.
        clock: monotonic time in seconds.
    """
    if not state.ticket or not _is_throttled(state, needs, snapshot, clock):
        return state, Contribution()
    start = state.proposal.start
    # Before sending: anything that Kafka may have received must be throttled, whatever the answer is.
    return state.with_sent(start, clock), Contribution(actions=(SubmissionRequest(state.ticket, start, needs),))


def _is_throttled(state: SubmissionState, needs: frozenset[ConfigResource], snapshot: Snapshot, clock: float) -> bool:
    since = state.throttled_since
    settled = since is not None and clock - since >= SETTLED_AFTER.total_seconds()
    return not needs or (settled and not unthrottled(snapshot, state.proposal.start))


def settled_submission(decision: CycleDecision, refused: Sequence[Outcome], results: CycleResults) -> SubmissionEnd:
    """Return the submission after the cycle, with the answer for its caller and the time of the next check."""
    state, start = decision.state.term.submissions, decision.view.proposed
    if not decision.ticket:
        return state, None, ()
    result = next((result for result in results.actions if isinstance(result.action, SubmissionRequest)), None)
    if result is not None:
        return _sent(state, result, decision.state.term.throttles.guards.large_fetches)
    waiting = state.without(start)
    missing = [f"{o.resource}: {o.reason}" for o in refused if o.resource in decision.needs]
    if missing:
        answer = Conflict(f"nothing was submitted, since it could not be throttled: {some(missing)}")
        return waiting, answer, _check_after(timedelta(0))
    since, clock = waiting.throttled_since, results.clock
    if since is None or unthrottled(decision.view.snapshot, start):
        since = clock
    delay = SETTLED_AFTER - timedelta(seconds=clock - since)
    return replace(waiting, throttled_since=since), None, _check_after(max(delay, timedelta(0)))


def _sent(state: SubmissionState, result: ActionResult, large_fetches: str) -> SubmissionEnd:
    """Return the submission after Kafka has answered, or after its caller had withdrawn it."""
    assert isinstance(result.action, SubmissionRequest)
    start = result.action.targets
    if not result.done:
        return state.without(start), None, _check_after(timedelta(0))
    check = _check_after(VISIBLE_WITHIN)
    if isinstance(result.error, Unavailable):
        message = f"the reassignment may have been submitted: {result.error}; {CHECK_FIRST}"
        return replace(state, in_vain=False), Unavailable(message), check
    if result.error is not None:
        return state.without(start), result.error, check
    accepted_state, accepted = state.without(result.refused), len(start) - len(result.refused)
    if start and not accepted:
        return accepted_state, Conflict(f"Kafka refused all partitions: {some(result.refused.values())}"), check
    return replace(accepted_state, in_vain=False), _answer(state, accepted, result, large_fetches), check


def _answer(state: SubmissionState, accepted: int, result: ActionResult, large_fetches: str) -> Submission:
    proposal, warnings = state.proposal, (large_fetches,) if large_fetches else ()
    return Submission(accepted, len(proposal.moving), len(proposal.in_place), result.refused, warnings)


def _check_after(delay: timedelta) -> tuple[WakeUp, ...]:
    return (WakeUp("checking a submitted reassignment", delay, urgent=True),)
