"""A pause: until somebody resumes it nothing is decided, whoever leads.

Here is what a pause is and what it means for what stands; where it is kept is a port. The type to know is `Pause`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from autothrottle.core.changes import ChangeSet, changes
from autothrottle.core.configs import ResourceType
from autothrottle.core.overrides import Overrides
from autothrottle.core.plan import Plan, replica_lists
from autothrottle.core.topology import Snapshot


class PauseMode(Enum):
    """What becomes of our throttles while it is paused."""

    KEEP = "keep"
    """They stay as they stand, replica lists too, whatever moves."""
    CLEAR = "clear"
    """They are given back to what stood before: what moves goes on without throttles."""


@dataclass(frozen=True, slots=True)
class Pause:
    """That nothing is decided, with who said so."""

    mode: PauseMode
    author: str = ""
    """Who paused it; empty when unknown."""
    time: datetime | None = None
    """When, UTC; None: unknown."""
    reason: str = ""
    """Why, as it was given."""

    def __str__(self) -> str:
        since = f", since {self.time:%Y-%m-%dT%H:%M:%SZ}" if self.time else ""
        by = f", by {self.author}" if self.author else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.mode.value}{since}{by}{why}"


def taken_back(snapshot: Snapshot, term: int, cycle: int = 0) -> ChangeSet:
    """Return the edits that give every throttle of ours back to what stood before, moves or not.

    Throttles that others set for what moves are none of ours and stay.
    """
    return changes(Plan(), replace(snapshot, reassignments=()), term, cycle)


def stale_lists(snapshot: Snapshot, overrides: Overrides, keep_throttles: bool = False) -> tuple[str, ...]:
    """Return the topics whose replica lists would change if it were not paused, by name.

    There new partitions move without a throttle, or partitions that have arrived are throttled still.

    Args:
        snapshot: the cluster, with what stands on it.
        overrides: rates set by operators, whose brokers have entries of their own.
        keep_throttles: whether throttles would stay when nothing moves.
    """
    hold = bool(snapshot.problems or overrides.unreadable or (keep_throttles and not snapshot.reassignments))
    wanted = Plan(replicas=replica_lists(snapshot, overrides), hold=hold)
    found = changes(wanted, snapshot, term=0).changes
    return tuple(c.resource.name for c in found if c.resource.type is ResourceType.TOPIC and c.edits)
