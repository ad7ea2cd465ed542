"""Ramps in progress: between cycles the leader raises rates step by step to the targets of the last plan.

A broker limits the mean over about 11 s. After a raise by d, it lets 11 s of d through at link speed, then nothing for
seconds, then the next burst, for most of a minute. With steps of one second, each burst is only a step's share. A step
has the same size however late it is: a larger one would be such a burst. A ramp is desired state: the ledger keeps its
target beside the current rate, so a new leader continues from the current rate. A lowering needs no ramp, and cancels
one.

Each step is fenced like the writes of a cycle, and expects the config that the previous step left. A foreign change or
a new leader ends the ramp; the next cycle reads the current throttles. The type to know is `RampState`;
`ownership.step` has the rule of a single rate.

Source: Kafka's SimpleRate (the window).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from autothrottle.core.cluster.configs import ConfigResource, ReplicaRole, ResourceType
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import Change, next_steps, with_changes
from autothrottle.core.throttles.ownership import LONGEST_PACE, PACE, RISE, Pace
from autothrottle.core.throttles.plan import Plan

BUDGET = 10_000
"""Maximum number of config changes in `BUDGET_SPAN`. Every broker reads each change notification, and ZooKeeper's Java
client loses its connection at about 38,000 of them."""

BUDGET_SPAN = timedelta(minutes=15)
"""Time for which brokers keep a change notification."""

_RESERVE = BUDGET // 10
"""Changes that ramps leave for lowerings and replica lists."""


@dataclass(frozen=True, slots=True)
class WriteHistory:
    """The config changes of the last 15 minutes, in every term: brokers keep the notifications of all leaders."""

    written: tuple[tuple[float, int], ...] = ()
    """(monotonic time in seconds, number of changes), ascending."""

    def add(self, now: float, count: int) -> WriteHistory:
        """Return the history with this many more changes."""
        oldest = now - BUDGET_SPAN.total_seconds()
        recent = tuple(entry for entry in self.written if entry[0] > oldest)
        return WriteHistory((*recent, (now, count)) if count else recent)

    def spent(self, now: float) -> int:
        """Return the number of changes in the last 15 minutes."""
        oldest = now - BUDGET_SPAN.total_seconds()
        return sum(count for at, count in self.written if at > oldest)


@dataclass(frozen=True, slots=True)
class RampState:
    """The rising rates of the last plan of a term. Times are monotonic, in seconds."""

    plan: Plan = Plan()  # noqa: RUF009 (frozen)
    snapshot: Snapshot = Snapshot.empty()  # noqa: RUF009 (frozen)
    """The cluster as the last write left it."""
    raised: Mapping[LinkSide, float] = field(default_factory=dict)
    """Rising link side -> time of its last step."""
    refused: frozenset[ConfigResource] = frozenset()
    """Excluded until the next cycle retries them: a broker that is down does not delay the others."""
    brokers: int = 1
    """Number of brokers with a rising rate, >= 1."""

    def pace(self, history: WriteHistory, now: float) -> Pace:
        """Return for each link side the time that its next step stands for, 0 while it must wait.

        This is the time since its last step, at most the planned time between two steps: a late step is not larger. The
        first step is due at once, also under a new leader.
        """
        return Pace(self.raised, self._interval(history, now), now)

    def steps(self, history: WriteHistory, now: float, fence: int, cycle: int) -> tuple[Change, ...]:
        """Return the changes of the steps that are due."""
        due = next_steps(self.plan, self.snapshot, fence, cycle, self.pace(history, now))
        return tuple(change for change in due if change.resource not in self.refused)

    def begin(self, plan: Plan, snapshot: Snapshot) -> RampState:
        """Return the state with the plan and the snapshot of a cycle, before its writes."""
        return replace(self, plan=plan, snapshot=snapshot, refused=frozenset())

    def after_writes(self, changes: Sequence[Change], outcomes: Sequence[Outcome], now: float) -> RampState:
        """Return the state after these changes were written."""
        changed = applied(changes, outcomes)
        refused = frozenset(outcome.resource for outcome in outcomes if outcome.status is OutcomeStatus.REFUSED)
        raised = {**self.raised, **{side: now for change in changed for side in _raised(change)}}
        after = replace(
            self,
            snapshot=with_changes(self.snapshot, changed) if changed else self.snapshot,
            refused=self.refused | refused,
        )
        rising = after._rising()
        return replace(
            after,
            raised={side: since for side, since in raised.items() if side in rising},
            brokers=max(1, len({broker_id for broker_id, _ in rising})),
        )

    def due_in(self, history: WriteHistory, now: float) -> timedelta | None:
        """Return the time until the next step; None: no rate rises."""
        rising = self._rising()
        if not rising:
            return None
        interval, longest = self._interval(history, now), LONGEST_PACE.total_seconds()
        last = min(self.raised.get(side, now) for side in rising)
        return timedelta(seconds=max(0.0, last + interval - now if interval <= longest else longest))

    def _rising(self) -> set[LinkSide]:
        """Link sides whose rate is below its target in the plan."""
        sides = {(decision.broker_id, decision.role) for decision in self.plan.decisions}
        return {
            side
            for side, record in self.snapshot.rate_records.items()
            if record.target is not None and side in sides and ConfigResource.broker(side[0]) not in self.refused
        }

    def _interval(self, history: WriteHistory, now: float) -> float:
        """Seconds between two steps; inf: no budget. More rising brokers or recent writes mean fewer, larger steps."""
        steps = (BUDGET - _RESERVE - history.spent(now)) // self.brokers
        if steps < 1:
            return math.inf
        return min(max(RISE.total_seconds() / (steps / 2), PACE.total_seconds()), LONGEST_PACE.total_seconds())


def applied(changes: Sequence[Change], outcomes: Sequence[Outcome]) -> tuple[Change, ...]:
    """Return the changes that were carried out."""
    done = {outcome.resource for outcome in outcomes if outcome.status is OutcomeStatus.APPLIED}
    return tuple(change for change in changes if change.resource in done)


def _raised(change: Change) -> list[LinkSide]:
    """Link sides that this change raises by a step, or whose rate it takes over as the start of a ramp."""
    keys = change.ledger.keys if change.ledger else {}
    return [
        (change.resource.broker_id, role)
        for role in ReplicaRole
        if change.resource.type is ResourceType.BROKER
        if (key := keys.get(role.rate_key)) is not None and key.target is not None
        if any(edit.key == role.rate_key for edit in change.edits)
    ]
