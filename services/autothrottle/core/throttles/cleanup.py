"""The clean-up of foreign throttles: they are reported first, and removed when that is due (`--cleanup-foreign`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cycle.decision import Contribution
from autothrottle.core.cycle.input import CycleInput, PlannerSettings
from autothrottle.core.throttles.changes import removal_of_foreign
from autothrottle.core.throttles.ownership import ForeignThrottles, foreign_throttles
from autothrottle.core.throttles.plan import Plan


@dataclass(frozen=True, slots=True)
class Cleanup:
    """The foreign throttles of a cycle without reassignments."""

    cycles: int = 0
    """Scheduled cycles with foreign throttles and without a reassignment, without a gap."""
    foreign: ForeignThrottles = field(default_factory=dict)
    """Foreign throttles to report, without those that this cycle removes."""
    contribution: Contribution = Contribution()  # noqa: RUF009 (frozen)


def clean_up(
    settings: PlannerSettings, foreign_cycles: int, cycle: CycleInput, plan: Plan, changed: frozenset[ConfigResource]
) -> Cleanup:
    """Return the foreign throttles, and their removal when that is due.

    Args:
        settings: the operator's configuration.
        foreign_cycles: `Cleanup.cycles` of the last cycle.
        cycle: the input of the cycle.
        plan: what may not be removed.
        changed: resources that the throttles of the cycle change. A resource gets one change per cycle, and the next
            cycle removes its other foreign throttles.
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
    changes = tuple(change for change in removals if change.resource not in changed)
    return Cleanup(cycles, foreign if settings.shadow else {}, Contribution(changes))
