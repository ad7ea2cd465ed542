"""The requests of operators in a cycle: what cannot be read of them, and those that end by themselves.

An override ends when it has expired, is marked for removal, or has had its reassignment. A catch-up ends in sync.
"""

from __future__ import annotations

from collections.abc import Iterator

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.cycle.decision import (
    Action,
    Contribution,
    CycleDecision,
    CycleResults,
    PurgeCatchUp,
    PurgeOverride,
    WakeUp,
)
from autothrottle.core.cycle.input import CycleInput, CycleObservation, PlannerSettings
from autothrottle.core.operators.overrides import Overrides, StoredOverride

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
    settings: PlannerSettings, cycle: CycleInput, finished_override: bool, changed: frozenset[ConfigResource]
) -> Contribution:
    """Return the removals of overrides and catch-ups that have ended; none while paused or in shadow mode.

    Args:
        settings: the operator's configuration.
        cycle: the input of the cycle.
        finished_override: whether the cluster override has had its reassignment.
        changed: the resources that this cycle changes. If one is refused, the cluster override stays.
    """
    if cycle.sources.pause is not None or settings.shadow:
        return Contribution()
    actions: list[Action] = []
    cluster = cycle.overrides.cluster
    if finished_override and cluster is not None:
        actions.append(PurgeOverride(None, cluster.version, NOTHING_LEFT, changed))
    return Contribution(actions=(*actions, *_purges(cycle), *_ended_catch_ups(cycle)))


def _purges(cycle: CycleInput) -> Iterator[PurgeOverride]:
    """Yield the removals of overrides that are marked for removal or have expired."""
    overrides, all_overrides = cycle.overrides, cycle.sources.overrides
    marked: dict[int | None, StoredOverride] = {
        b: override for b, override in overrides.brokers.items() if override.rate == 0
    }
    expired = all_overrides.expired(cycle.at) if all_overrides else {}
    for reason, ended in ((MARKED, marked), (EXPIRED, expired)):
        for broker_or_all, override in ended.items():
            if broker_or_all not in overrides.unreadable:
                yield PurgeOverride(broker_or_all, override.version, reason)


def _ended_catch_ups(cycle: CycleInput) -> Iterator[PurgeCatchUp]:
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
