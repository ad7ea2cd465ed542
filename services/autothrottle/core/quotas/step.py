"""The part of a cycle that concerns client quotas: sets those of operators and rules, and restores earlier values."""

from __future__ import annotations

from dataclasses import replace

from autothrottle.core.cluster.configs import ConfigResource, ResourceType
from autothrottle.core.cycle.decision import CycleDecision, CycleObservation, PurgeQuota, WakeUp, quotas_needed
from autothrottle.core.cycle.settings import PlannerSettings
from autothrottle.core.cycle.state import TermState
from autothrottle.core.operators.stored_map import unreadable_entries
from autothrottle.core.quotas.changes import QuotaState, quota_changes
from autothrottle.core.quotas.entities import entity_of_path
from autothrottle.core.quotas.temporary import TemporaryQuotas
from autothrottle.core.quotas.yield_step import yielding
from autothrottle.core.throttles.changes import recorded_first
from autothrottle.core.throttles.ownership import lost_finding, with_lost_records


def with_quotas(
    settings: PlannerSettings, term: TermState, cycle: CycleDecision, observation: CycleObservation
) -> tuple[TermState, CycleDecision]:
    """Add the changes of client quotas, the end of those that are over, and cycles for the next expiry and step.

    Nothing changes while paused, and until the quotas and their state can be read.
    """
    sources, at = term.sources, cycle.at
    quotas, state = sources.quotas, observation.quotas
    if quotas is None or sources.rules is None or cycle.pause is not None:
        return term, cycle
    is_recovering = recovering(term, cycle)
    if state is None:
        clock = observation.clock
        if term.yields.are_quotas_fresh(sources.rules, clock) or quotas_needed(term, sources, clock) is not None:
            return _with_unread_quotas(settings, term, cycle, is_recovering)
        state = QuotaState()
    if not isinstance(state, QuotaState):
        term = replace(term, yields=term.yields.with_reading(observation.clients, observation.clock))
        return term, replace(cycle, findings=(*cycle.findings, f"client quotas cannot be read: {state}"))
    ledger, lost = with_lost_records(
        state.ledger,
        {resource: entry for resource, entry in term.ledger.items() if resource.type is ResourceType.QUOTA},
        state.configs,
        state.unreadable,
    )
    of_throttles = {
        resource: entry for resource, entry in term.ledger.items() if resource.type is not ResourceType.QUOTA
    }
    term, state = replace(term, ledger={**of_throttles, **ledger}), replace(state, ledger=ledger)
    state = replace(state, unreadable={**state.unreadable, **_unreadable_quotas(quotas)})
    hold = not unreadable_entries(sources.rules).keys() <= sources.rules.keys()
    yields = yielding(term, cycle, state, observation, is_recovering)
    found = quota_changes(quotas, state, at, is_recovering, term.fence, term.cycles, yields.desired, hold)
    ends = {entity: one.end(at, is_recovering) for entity, one in quotas.items()}
    ended = {} if settings.shadow else {entity: reason for entity, reason in ends.items() if reason}
    times = [one.expire_time for e, one in quotas.items() if one.expire_time is not None and not ends[e]]
    expiry = (WakeUp("a client quota expires", min(times) - at),) if times else ()
    cycle = replace(
        cycle,
        changes=(*cycle.changes, *recorded_first(found.changes, ledger, lost)),
        refused=(*cycle.refused, *found.refused),
        findings=(*cycle.findings, *map(lost_finding, sorted(lost)), *found.findings, *yields.findings),
        wake_ups=(*cycle.wake_ups, *expiry, *(() if settings.shadow else yields.wake_ups)),
        actions=tuple(PurgeQuota(quotas[one], why, frozenset({one.resource})) for one, why in ended.items()),
    )
    may_own_quotas = bool(state.ledger or state.unreadable or found.changes)
    # A change may be refused, and a temporary quota may be removed, so the next cycle reads the quotas again.
    after = replace(yields.state, fresh_until=None) if found.changes or quotas else yields.state
    return replace(term, may_own_quotas=may_own_quotas, yields=after), cycle


def _with_unread_quotas(
    settings: PlannerSettings, term: TermState, cycle: CycleDecision, is_recovering: bool | None
) -> tuple[TermState, CycleDecision]:
    """Change no quota; at the end of a recovery, request a cycle that reads and restores them."""
    if is_recovering is not False or term.yields.stepped is None:
        return term, replace(cycle, findings=(*cycle.findings, *term.yields.findings))
    wake_ups = () if settings.shadow else (WakeUp("clients no longer yield"),)
    term = replace(term, yields=replace(term.yields, fresh_until=None))
    return term, replace(cycle, wake_ups=(*cycle.wake_ups, *wake_ups))


def _unreadable_quotas(quotas: TemporaryQuotas) -> dict[ConfigResource, str]:
    """The entities whose temporary quota cannot be read and has no last known value, and why."""
    return {
        entity.resource: problem
        for path, problem in unreadable_entries(quotas).items()
        if (entity := entity_of_path(path)) is not None and entity not in quotas
    }


def recovering(term: TermState, cycle: CycleDecision) -> bool | None:
    """Return whether a reassignment or a catch-up runs or is about to start; None: unknown."""
    if cycle.view.to_throttle.reassignments:
        return True
    return None if cycle.view.read.problems or not term.sources.catch_ups_are_known else False
