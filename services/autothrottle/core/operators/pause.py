"""The pause: while it lasts, no planner decides anything, even after a change of leader.

This module defines a pause and its effect on the current throttles; the state store keeps it. The type to know is
`Pause`.
"""

from __future__ import annotations

from dataclasses import replace

from autothrottle.core.cluster.configs import ResourceType
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.operators.overrides import Overrides
from autothrottle.core.throttles.changes import ChangeSet, changes
from autothrottle.core.throttles.plan import Plan, hold, replica_lists


def release_of_ours(snapshot: Snapshot, term: int, cycle: int = 0) -> ChangeSet:
    """Return the edits that restore the earlier value of each of our throttles, even during reassignments.

    Throttles that another party set for a reassignment are not ours and stay.
    """
    return changes(Plan(), replace(snapshot, reassignments=()), term, cycle)


def stale_lists(snapshot: Snapshot, overrides: Overrides, keep_throttles: bool = False) -> tuple[str, ...]:
    """Return the topics whose replica lists would change without the pause, by name.

    In these topics, new reassignments run without a throttle, or finished ones are still in the lists.

    Args:
        snapshot: the cluster with its current throttles.
        overrides: the overrides; brokers with an override have list entries of their own.
        keep_throttles: whether throttles would stay after the last reassignment.
    """
    lists = Plan(replicas=replica_lists(snapshot, overrides), hold=hold(snapshot, overrides, keep_throttles))
    change_set = changes(lists, snapshot, term=0)
    return tuple(c.resource.name for c in change_set.changes if c.resource.type is ResourceType.TOPIC and c.edits)
