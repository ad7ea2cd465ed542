"""The throttles of a cycle: the plan with its guards, and the changes to Kafka. The type is `ThrottleDecision`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.flows import Progress
from autothrottle.core.cycle.decision import Contribution, WakeUp
from autothrottle.core.cycle.input import PlannerSettings, StepInput, ThrottleState
from autothrottle.core.operators.sources import ScheduleWindow
from autothrottle.core.policy.interface import Limits, PolicyObservation
from autothrottle.core.records import Decision, PauseMode
from autothrottle.core.texts import id_ranges, without_numbers
from autothrottle.core.throttles import guards
from autothrottle.core.throttles.changes import (
    Change,
    ChangeSet,
    changes,
    recorded_first,
    release_of_ours,
    removal_of_foreign,
    stale_lists,
)
from autothrottle.core.throttles.foreign_edits import NO_CONTESTS, Contests
from autothrottle.core.throttles.guards import (
    EffectObservation,
    ThrottleEffect,
    in_sync_rates,
    throttled_link_sides,
)
from autothrottle.core.throttles.ownership import ForeignThrottles, Pace, foreign_throttles
from autothrottle.core.throttles.plan import HOLD_ALL, Plan, had_reassignment, plan
from autothrottle.core.traffic.loads import Loads


@dataclass(frozen=True, slots=True)
class ThrottleDecision:
    """The throttles that a cycle decided."""

    contribution: Contribution = Contribution()  # noqa: RUF009 (frozen)
    plan: Plan = Plan()  # noqa: RUF009 (frozen)
    loads: Loads = Loads()  # noqa: RUF009 (frozen)
    """The loads that the plan is based on."""
    limits: Limits | None = None
    """The operator's limits at this time; None: no rates were decided."""
    window: ScheduleWindow | None = None
    """The schedule's window at this time; also None if no rates were decided."""
    invalid_lists: int = 0
    """Topics with a foreign replica list that no broker applies."""
    stale: tuple[str, ...] = ()
    """Topics whose replica lists are stale because of a pause."""
    stalled: tuple[str, ...] = ()
    """New stalls, one sentence each."""
    unwritten: tuple[Decision, ...] = ()
    """While paused: the rates that would be written otherwise, with their measurements."""
    held_resources: frozenset[ConfigResource] = frozenset()
    """Resources with edits by another party that stay for now."""


def decide_throttles(
    settings: PlannerSettings, state: ThrottleState, cycle: StepInput, pace: Pace | None, was_withdrawn: bool
) -> tuple[ThrottleState, ThrottleDecision]:
    """Return the state after the decision, and the throttles of a cycle.

    Args:
        settings: the operator's configuration.
        state: what the term remembers.
        cycle: the input of the cycle.
        pace: how far rates may rise in this cycle; None: to their targets.
        was_withdrawn: whether a submission has ended of which Kafka has certainly accepted nothing.
    """
    observed = _observed(state, cycle, was_withdrawn)
    decided, throttles = _planned(settings, observed, cycle)
    if cycle.sources.pause is None:
        decided, throttles = _with_changes(decided, cycle, throttles, pace)
    else:
        # Missing metrics count only while throttles depend on them, and edits only while they are undone.
        decided = replace(decided, failures=observed.failures, contests=NO_CONTESTS)
        throttles = _paused(settings, cycle, throttles)
    snapshot, reading = cycle.view.to_throttle, cycle.observation.settings
    participating = frozenset(snapshot.participants), frozenset(snapshot.topics)
    broker_settings = reading.settings if reading.complete_for == participating else None
    guard_state, stalled = decided.guards.watch(throttles.plan, snapshot, cycle.observation.scheduled, broker_settings)
    effect = _effect(decided, cycle, throttles)
    findings = (*throttles.contribution.findings, *effect.ineffective.values())
    contribution = replace(throttles.contribution, findings=findings)
    next_state = replace(decided, guards=guard_state, effect=effect)
    return next_state, replace(throttles, stalled=stalled, contribution=contribution)


def _effect(state: ThrottleState, cycle: StepInput, throttles: ThrottleDecision) -> ThrottleEffect:
    """Return which throttles are not in force. A pause decides no replica lists, so that nothing can be judged."""
    if cycle.sources.pause is not None:
        return ThrottleEffect()
    # A link side that also copies our own state, without a throttle, is not judged.
    snapshot, contribution = cycle.view.to_report, throttles.contribution
    sides = throttled_link_sides(
        snapshot, throttles.plan, contribution.changes, contribution.refused, throttles.held_resources
    )
    settings, quota_rates = cycle.observation.settings.settings, throttles.loads.quota_rates
    in_sync = in_sync_rates(snapshot, quota_rates, state.guards.growth, throttles.loads)
    progress = snapshot.progress or Progress()
    observation = EffectObservation(cycle.at, sides, state.history, progress, settings, quota_rates, in_sync)
    return state.effect.observe(observation)


def _observed(state: ThrottleState, cycle: StepInput, was_withdrawn: bool) -> ThrottleState:
    """Return the state with the current throttles of the snapshot."""
    view = cycle.view
    withdrawn = (state.withdrawn or was_withdrawn) and had_reassignment(view.to_throttle)
    shows_catch_ups = any(view.lagging.values())
    sides = view.snapshot.link_sides
    return replace(
        state,
        withdrawn=(withdrawn or shows_catch_ups) and not view.snapshot.reassignments,
        history=state.history.observe(cycle.at, view.to_throttle.rates, sides),
    )


def _measured(state: ThrottleState, cycle: StepInput, without_load: Collection[int]) -> ThrottleState:
    """Return the state with the new loads, and with the number of failures of brokers without them."""
    history, failures = state.history, state.failures
    capacities = {**state.capacities, **cycle.loads.loads.capacities}
    if cycle.observation.loads is not None:
        history = history.measured(cycle.loads.loads, cycle.view.snapshot.link_sides)
    if cycle.observation.scheduled:
        failures = {b: failures.get(b, 0) + 1 for b in without_load}
    return replace(state, history=history, failures=failures, capacities=capacities)


def _without_load(settings: PlannerSettings, cycle: StepInput) -> frozenset[int]:
    """The participants without a load; none if the policy needs no loads."""
    if settings.policy.fixed_rate is not None:
        return frozenset()
    return frozenset(cycle.view.to_throttle.participants.keys() - cycle.loads.loads.brokers.keys())


def _load_findings(cycle: StepInput, without_load: Collection[int]) -> tuple[str, ...]:
    if cycle.loads.error:
        return (cycle.loads.error,)
    loads = cycle.loads.loads
    # Of a broker that is down, its outage is the only finding.
    running = sorted(cycle.view.snapshot.brokers.intersection(without_load))
    return (*loads.warnings, *_by_problem({b: loads.problems.get(b, "unknown to the metrics source") for b in running}))


def _by_problem(problems: Mapping[int, str]) -> Iterator[str]:
    """Yield a sentence for each problem, with its brokers. Numbers may differ: a faulty option concerns 1,000 hosts."""
    brokers_of_problem: dict[str, list[int]] = {}
    for broker_id, problem in problems.items():
        brokers_of_problem.setdefault(without_numbers(problem), []).append(broker_id)
    for broker_ids in brokers_of_problem.values():
        first = f"broker {broker_ids[0]}: {problems[broker_ids[0]]}"
        listed = f"{len(broker_ids)} brokers [{id_ranges(broker_ids)}] have no usable load"
        yield first if len(broker_ids) == 1 else f"{listed}, such as {first}"


def _paused(settings: PlannerSettings, cycle: StepInput, planned: ThrottleDecision) -> ThrottleDecision:
    """Keep the current throttles, or remove ours, depending on the pause's mode. Of the plan only report the rates."""
    pause, snapshot = cycle.sources.pause, cycle.view.to_throttle
    assert pause is not None
    findings = _load_findings(cycle, _without_load(settings, cycle))
    paused = ThrottleDecision(Contribution(findings=findings), loads=planned.loads, unwritten=planned.plan.decisions)
    if pause.mode is PauseMode.KEEP:
        return replace(paused, stale=stale_lists(snapshot, cycle.overrides, settings.limits.keep_throttles))
    change_set = release_of_ours(snapshot, cycle.at, cycle.fence, cycle.number)
    contribution = _contribution(cycle, change_set, findings)
    return replace(paused, contribution=contribution, invalid_lists=change_set.invalid_lists)


def _planned(
    settings: PlannerSettings, state: ThrottleState, cycle: StepInput
) -> tuple[ThrottleState, ThrottleDecision]:
    """Decide the rates and the replica lists, and apply the guards."""
    at, snapshot, observation = cycle.at, cycle.view.to_throttle, cycle.observation
    window = settings.schedule.window(at)
    limits = settings.limits if window is None else window.limits(settings.limits)
    without_load = _without_load(settings, cycle)
    planned_state, unguarded = _plan(settings, _measured(state, cycle, without_load), cycle, limits)
    exempt = guards.below_min_isr(cycle.view.may_be_exempt, observation.settings.settings)
    guard_state, guarded = planned_state.guards.observe(cycle.view.snapshot.progress).apply(
        unguarded, snapshot, limits, exempt, settings.finish_by, window is not None, at
    )
    findings = (*_load_findings(cycle, without_load), *guarded.findings)
    contribution = Contribution(findings=findings, wake_ups=_schedule_wake_ups(settings, cycle))
    return replace(planned_state, guards=guard_state), ThrottleDecision(
        contribution, guarded.plan, cycle.loads.loads, limits, window
    )


def _with_changes(
    state: ThrottleState, cycle: StepInput, planned: ThrottleDecision, pace: Pace | None
) -> tuple[ThrottleState, ThrottleDecision]:
    """Add the changes that the plan needs, without those that another party would edit again at once."""
    snapshot, writer = cycle.view.to_throttle, (cycle.fence, cycle.number)
    change_set = changes(planned.plan, snapshot, cycle.at, *writer, pace)
    owned = snapshot.ledger if snapshot.reassignments else ()
    contests = state.contests.observe(change_set.repaired, owned, writer, cycle.clock)
    if contests.contested.union(contests.held_resources).intersection(change_set.repaired):
        change_set = changes(planned.plan, snapshot, cycle.at, *writer, pace, contests)
    findings = (*planned.contribution.findings, *contests.findings())
    wake_ups = (*planned.contribution.wake_ups, *_restoration(contests, cycle.clock))
    contribution = _contribution(cycle, change_set, findings, wake_ups)
    return replace(state, contests=contests), replace(
        planned,
        contribution=contribution,
        invalid_lists=change_set.invalid_lists,
        held_resources=contests.held_resources,
    )


def _restoration(contests: Contests, clock: float) -> Iterator[WakeUp]:
    """Request the cycle that restores what another party has edited again and again."""
    if (wait := contests.next_restoration(clock)) is not None:
        yield WakeUp("throttles that another program has edited", wait)


def _plan(
    settings: PlannerSettings, state: ThrottleState, cycle: StepInput, limits: Limits
) -> tuple[ThrottleState, Plan]:
    """Return the plan without its guards, and the state with what the policy has learned."""
    snapshot, loads = cycle.view.to_throttle, cycle.loads.loads
    growth = snapshot.progress.growth if snapshot.progress else {}
    policy = (state.policy or settings.policy).observe(PolicyObservation(cycle.at, snapshot, loads, growth))
    desired = plan(
        snapshot,
        loads,
        limits,
        cycle.overrides,
        state.failures,
        state.history,
        state.after_reassignment,
        policy,
        state.capacities,
    )
    if state.withdrawn and not state.after_reassignment:
        desired = replace(desired, finished_override=False)
    if not cycle.sources.catch_ups_are_known:
        desired = replace(desired, hold=HOLD_ALL, finished_override=False)
    return replace(state, policy=policy), desired


def _schedule_wake_ups(settings: PlannerSettings, cycle: StepInput) -> tuple[WakeUp, ...]:
    change = settings.schedule.next_change(cycle.at) if settings.schedule.windows else None
    if change is None:
        return ()
    return (WakeUp("the schedule changes the share of headroom", change - cycle.at),)


def _contribution(
    cycle: StepInput, change_set: ChangeSet, findings: tuple[str, ...] = (), wake_ups: tuple[WakeUp, ...] = ()
) -> Contribution:
    return Contribution(
        changes=recorded_first(change_set.changes, cycle.ledger, cycle.lost),
        refused=change_set.refused,
        findings=(*findings, *change_set.findings),
        wake_ups=wake_ups,
    )


@dataclass(frozen=True, slots=True)
class Cleanup:
    """The foreign throttles of a cycle without reassignments."""

    cycles: int = 0
    """Scheduled cycles with foreign throttles and without a reassignment, without a gap."""
    foreign: ForeignThrottles = field(default_factory=dict)
    """Foreign throttles to report, without those that this cycle removes."""
    contribution: Contribution = Contribution()  # noqa: RUF009 (frozen)


def clean_up(
    settings: PlannerSettings, foreign_cycles: int, cycle: StepInput, plan: Plan, decided: Sequence[Change]
) -> Cleanup:
    """Return the foreign throttles, and their removal when that is due.

    Args:
        settings: the operator's configuration.
        foreign_cycles: `Cleanup.cycles` of the last cycle.
        cycle: the input of the cycle.
        plan: what may not be removed.
        decided: the changes of the throttles in this cycle. A resource gets one change per cycle, and the next cycle
            removes its other foreign throttles.
    """
    if cycle.sources.pause is not None:
        return Cleanup(foreign_cycles)
    snapshot = cycle.view.to_throttle
    foreign = {} if snapshot.reassignments or plan.hold else foreign_throttles(snapshot)
    if not foreign:
        return Cleanup()
    # The cycle that finds them first is not a whole interval after their start.
    cycles = foreign_cycles + cycle.observation.scheduled
    if not settings.cleanup_foreign or cycles <= settings.cleanup_after:
        return Cleanup(cycles, foreign)
    removals = removal_of_foreign(snapshot, cycle.fence, cycle.number)
    changed = {change.resource for change in decided}
    rest = tuple(change for change in removals if change.resource not in changed)
    return Cleanup(cycles, foreign if settings.shadow else {}, Contribution(rest))
