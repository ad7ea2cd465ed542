"""The client quotas of a cycle: sets those of operators and rules, and restores earlier values.

A quota is owned like a rate: the ledger has the value before ours, and a value that another party sets is not changed
when ours ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry, LedgerKey, ResourceType
from autothrottle.core.cycle.decision import Contribution, PurgeQuota, WakeUp
from autothrottle.core.cycle.input import CycleInput, PlannerSettings, QuotaControlState
from autothrottle.core.operators.sources import KnownSources, unreadable_entries
from autothrottle.core.quotas.entities import QuotaState, entity_of_path
from autothrottle.core.quotas.keys import TemporaryQuotas, format_value
from autothrottle.core.quotas.yield_step import DesiredQuotas, YieldDecision, yielding
from autothrottle.core.quotas.yielding import YieldRules
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import Change, ChangeSet, change_of, recorded_first
from autothrottle.core.throttles.decision import ThrottleDecision
from autothrottle.core.throttles.ownership import desired_rate, lost_finding, with_lost_records


def quota_changes(
    temporary: TemporaryQuotas,
    state: QuotaState,
    at: datetime,
    is_recovering: bool | None,
    term: int,
    cycle: int,
    yielding: DesiredQuotas | None = None,
    hold: bool = False,
) -> ChangeSet:
    """Return the edits that set the quotas in force, and restore all others that are in the ledger.

    Args:
        temporary: all temporary quotas.
        state: the current quotas of their entities, and the ledger.
        at: UTC.
        is_recovering: whether a reassignment or a catch-up runs; None: unknown.
        term: the term that writes, for the ledger.
        cycle: the cycle that writes, for the ledger.
        yielding: the quotas of clients that yield to a recovery; a temporary quota beats them. None: no client does.
        hold: whether nothing may be restored, because an unreadable rule may need it.
    """
    in_force = {
        entity.resource: {str(key): format_value(key, value) for key, value in quota.values.items()}
        for entity, quota in temporary.items()
        if not quota.end(at, is_recovering)
    }
    yielded = yielding or {}
    desired = {**yielded, **{r: {**yielded.get(r, {}), **values} for r, values in in_force.items()}}
    changes: list[Change] = []
    refused: list[Outcome] = []
    findings: list[str] = []
    for resource in sorted(
        desired.keys() | state.ledger.keys() | state.unreadable.keys(), key=lambda resource: resource.path
    ):
        if problem := state.unreadable.get(resource):
            refused.append(Outcome(resource, OutcomeStatus.REFUSED, problem))
            continue
        current, entry = state.configs.get(resource, {}), state.ledger.get(resource)
        ledger_keys, values = entry.keys if entry else {}, desired.get(resource, {})
        if ledger_keys and _is_in_force(values, current, ledger_keys):
            continue
        keys = {
            key: desired_rate(values.get(key), current.get(key), ledger_keys.get(key), hold=hold)
            for key in sorted({*values, *ledger_keys})
        }
        findings += [f"{resource}, {key}: {quota.finding}" for key, quota in keys.items() if quota.finding]
        change = change_of(resource, keys, current, entry, term, cycle)
        changes += [change] if change is not None else []
    return ChangeSet(tuple(changes), tuple(refused), tuple(findings))


def _is_in_force(values: Mapping[str, str], current: Mapping[str, str], ledger_keys: Mapping[str, LedgerKey]) -> bool:
    """Return whether all keys are as we wrote them: the usual case, detected without deciding each key."""
    return values.keys() == ledger_keys.keys() and all(
        current.get(key) == text and ledger_keys[key].written == text and ledger_keys[key].intent is None
        for key, text in values.items()
    )


Ledger = Mapping[ConfigResource, LedgerEntry]


def quotas_needed(
    state: QuotaControlState, ledger: Ledger, sources: KnownSources, clock: float
) -> frozenset[ConfigResource] | None:
    """Return the quota entities whose state a cycle needs, beside those in the ledger; None: it needs no quotas.

    Args:
        state: what the term remembers.
        ledger: of throttles and quotas.
        sources: those that apply in the cycle.
        clock: monotonic time in seconds.
    """
    if sources.quotas is None or sources.rules is None or sources.pause is not None:
        return None
    if not sources.quotas and state.yields.are_quotas_fresh(sources.rules, clock):
        return None
    targets = state.yields.requested(sources.rules)
    if not (sources.quotas or targets or state.may_own_quotas):
        return None
    resources = {entity.resource for entity in sources.quotas}
    resources |= {resource for resource in ledger if resource.type is ResourceType.QUOTA}
    return frozenset(resources.union(*((target.resource, *target.fallbacks) for target in targets)))


def control_quotas(
    settings: PlannerSettings, state: QuotaControlState, cycle: CycleInput, throttles: ThrottleDecision
) -> tuple[QuotaControlState, Ledger, Contribution]:
    """Return the changes of client quotas, the end of those that are over, and cycles for the next expiry and step.

    Nothing changes while paused, and until the quotas and their state can be read. The second value is the ledger with
    the quotas as read.
    """
    sources, reading = cycle.sources, cycle.observation.quotas
    if sources.quotas is None or sources.rules is None or sources.pause is not None:
        return state, cycle.ledger, Contribution()
    if reading is None:
        is_due = quotas_needed(state, cycle.ledger, sources, cycle.clock) is not None
        if is_due or state.yields.are_quotas_fresh(sources.rules, cycle.clock):
            return _without_reading(settings, state, cycle)
        if not (state.may_own_quotas or sources.rules or unreadable_entries(sources.quotas)):
            return QuotaControlState(may_own_quotas=False), cycle.ledger, Contribution()
        reading = QuotaState()
    if not isinstance(reading, QuotaState):
        yields = state.yields.with_reading(cycle.observation.clients, cycle.clock)
        finding = f"client quotas cannot be read: {reading}"
        return replace(state, yields=yields), cycle.ledger, Contribution(findings=(finding,))
    return _controlled(settings, state, cycle, throttles, reading, sources.quotas, sources.rules)


def _controlled(
    settings: PlannerSettings,
    state: QuotaControlState,
    cycle: CycleInput,
    throttles: ThrottleDecision,
    reading: QuotaState,
    temporary: TemporaryQuotas,
    rules: YieldRules,
) -> tuple[QuotaControlState, Ledger, Contribution]:
    entries = {resource: entry for resource, entry in cycle.ledger.items() if resource.type is ResourceType.QUOTA}
    ledger, lost = with_lost_records(reading.ledger, entries, reading.configs, reading.unreadable)
    unreadable = {**reading.unreadable, **_unreadable_quotas(temporary)}
    current = replace(reading, ledger=ledger, unreadable=unreadable)
    hold = not unreadable_entries(rules).keys() <= rules.keys()
    yields = yielding(state.yields, cycle, throttles, current)
    change_set = quota_changes(
        temporary, current, cycle.at, cycle.is_recovering, cycle.fence, cycle.number, yields.desired, hold
    )
    wake_ups = (*_expiries(temporary, cycle), *(() if settings.shadow else yields.wake_ups))
    contribution = Contribution(
        changes=recorded_first(change_set.changes, ledger, lost),
        refused=change_set.refused,
        actions=() if settings.shadow else _purges(temporary, cycle),
        findings=(*map(lost_finding, sorted(lost)), *change_set.findings, *yields.findings),
        wake_ups=wake_ups,
    )
    throttle_entries = {r: entry for r, entry in cycle.ledger.items() if r.type is not ResourceType.QUOTA}
    return _next_state(current, change_set, temporary, yields), {**throttle_entries, **ledger}, contribution


def _next_state(
    reading: QuotaState, change_set: ChangeSet, temporary: TemporaryQuotas, yields: YieldDecision
) -> QuotaControlState:
    may_own_quotas = bool(reading.ledger or reading.unreadable or change_set.changes)
    # A change may be refused, and a temporary quota may be removed, so the next cycle reads the quotas again.
    is_stale = bool(change_set.changes or temporary)
    return QuotaControlState(may_own_quotas, replace(yields.state, fresh_until=None) if is_stale else yields.state)


def _expiries(temporary: TemporaryQuotas, cycle: CycleInput) -> tuple[WakeUp, ...]:
    """Return the cycle for the next expiry of a quota in force."""
    times = [
        quota.expire_time
        for quota in temporary.values()
        if quota.expire_time is not None and not quota.end(cycle.at, cycle.is_recovering)
    ]
    return (WakeUp("a client quota expires", min(times) - cycle.at),) if times else ()


def _purges(temporary: TemporaryQuotas, cycle: CycleInput) -> tuple[PurgeQuota, ...]:
    ends = ((e, quota, quota.end(cycle.at, cycle.is_recovering)) for e, quota in temporary.items())
    return tuple(PurgeQuota(quota, reason, frozenset({e.resource})) for e, quota, reason in ends if reason)


def _without_reading(
    settings: PlannerSettings, state: QuotaControlState, cycle: CycleInput
) -> tuple[QuotaControlState, Ledger, Contribution]:
    """Change no quota; at the end of a recovery, request a cycle that reads and restores them."""
    if cycle.is_recovering is not False or state.yields.stepped is None:
        return state, cycle.ledger, Contribution(findings=state.yields.findings)
    wake_ups = () if settings.shadow else (WakeUp("clients no longer yield"),)
    due = replace(state, yields=replace(state.yields, fresh_until=None))
    return due, cycle.ledger, Contribution(wake_ups=wake_ups)


def _unreadable_quotas(quotas: TemporaryQuotas) -> dict[ConfigResource, str]:
    """The entities whose temporary quota cannot be read and has no last known value, and why."""
    return {
        entity.resource: problem
        for path, problem in unreadable_entries(quotas).items()
        if (entity := entity_of_path(path)) is not None and entity not in quotas
    }
