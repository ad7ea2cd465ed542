"""Ramps: between cycles the leader raises rates step by step to the targets of the last plan.

Each step is fenced like the writes of a cycle, and expects the config that the previous step left. A foreign change or
a new leader ends the ramp; the next cycle reads the current throttles. The type to know is `Ramps`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta

from autothrottle.core.cluster.configs import ConfigResource, ReplicaRole, ResourceType
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.control.changes import Change, Outcome, OutcomeStatus, next_steps, with_changes
from autothrottle.core.control.plan import Plan
from autothrottle.core.control.ramp import LONGEST_STEP, PACE, RISE
from autothrottle.core.errors import AutothrottleError, NotLeader
from autothrottle.planner.triggers import Triggers
from autothrottle.ports.kafka import ConfigWriter

log = logging.getLogger(__name__)

BUDGET = 10_000
"""Maximum number of config changes in `BUDGET_SPAN`. Every broker reads each change notification, and ZooKeeper's Java
client loses its connection at about 38,000 of them."""

BUDGET_SPAN = timedelta(minutes=15)
"""Time for which brokers keep a change notification."""

_RESERVE = BUDGET // 10
"""Changes that ramps leave for lowerings and replica lists."""

_STEP_TIMEOUT = timedelta(seconds=10)


class Ramps:
    """The rising rates of the last plan of a term. Only for the planner's thread."""

    def __init__(
        self,
        writer: ConfigWriter,
        triggers: Triggers,
        on_step: Callable[[Snapshot], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without ramps.

        Args:
            writer: writes the steps.
            triggers: receives the due time of the next step, and a request for a cycle when a step fails.
            on_step: called with the snapshot after a step.
            clock: monotonic, in seconds.
        """
        self._writer, self._triggers, self._on_step, self._clock = writer, triggers, on_step, clock
        self._plan, self._snapshot = Plan(), Snapshot.empty()
        self._raised: dict[LinkSide, float] = {}
        self._refused: frozenset[ConfigResource] = frozenset()
        """Excluded until the next cycle retries them: a broker that is down does not delay the others."""
        self._brokers = 1
        self._written: deque[tuple[float, int]] = deque()
        self._spent = 0

    def forget(self) -> None:
        """Stop all ramps: a new term begins, or writes are not allowed."""
        self._raised.clear()
        self._schedule(Plan(), Snapshot.empty())

    def pace(self, broker_id: int, role: ReplicaRole) -> timedelta:
        """Return the time since the last step of a rate, 0 while it must wait. The first step is due at once."""
        raised = self._raised.get((broker_id, role))
        interval = self._interval()
        if math.isinf(interval):
            return timedelta(0)
        if raised is None:
            return PACE
        # Wait for half of the interval, so that rates that started at different times rise together.
        elapsed = self._clock() - raised
        return timedelta(seconds=elapsed if elapsed >= interval / 2 else 0)

    def follow(self, plan: Plan, snapshot: Snapshot, wanted: Sequence[Change], outcomes: Sequence[Outcome]) -> None:
        """Continue from a cycle: its plan, its snapshot, and the changes that it wrote."""
        self._refused = _of(OutcomeStatus.REFUSED, outcomes)
        self._continue(plan, snapshot, wanted, outcomes)

    def _continue(self, plan: Plan, snapshot: Snapshot, wanted: Sequence[Change], outcomes: Sequence[Outcome]) -> None:
        done = _of(OutcomeStatus.APPLIED, outcomes)
        changed = [change for change in wanted if change.resource in done]
        now = self._clock()
        if edited := sum(bool(change.edits) for change in changed):
            self._written.append((now, edited))
            self._spent += edited
        for change in changed:
            self._raised |= {side: now for side in _raised(change)}
        self._schedule(plan, with_changes(snapshot, changed) if changed else snapshot)

    def step(self, fence: int, cycle: int) -> None:
        """Write the steps that are due. If one fails, request a cycle, which reads the current throttles."""
        steps = next_steps(self._plan, self._snapshot, fence, cycle, self.pace)
        wanted = [change for change in steps if change.resource not in self._refused]
        try:
            outcomes = self._writer.apply(fence, wanted, _STEP_TIMEOUT) if wanted else []
        except NotLeader as error:
            log.warning("The ramp ended: %s", error)
            return self.forget()
        except AutothrottleError as error:
            self.forget()
            return self._request_cycle(str(error))
        except Exception:  # a bug must not end the loop: no other planner can lead while we hold the term
            log.exception("a ramp step failed unexpectedly")
            self.forget()
            return self._request_cycle("the log has the traceback")
        if refused := [outcome for outcome in outcomes if outcome.status is OutcomeStatus.REFUSED]:
            self._refused |= _of(OutcomeStatus.REFUSED, outcomes)
            self._request_cycle(f"{refused[0].resource}: {refused[0].reason}")
        self._continue(self._plan, self._snapshot, wanted, outcomes)
        if wanted:
            self._on_step(self._snapshot)

    def _request_cycle(self, reason: str) -> None:
        log.warning("Ramp step failed; the next cycle retries it: %s", reason)
        self._triggers.request("a ramp step failed")

    def _schedule(self, plan: Plan, snapshot: Snapshot) -> None:
        self._plan, self._snapshot = plan, snapshot
        rising = self._rising()
        self._raised = {side: since for side, since in self._raised.items() if side in rising}
        if not rising:
            return self._triggers.step_in(None)
        self._brokers = max(1, len({broker_id for broker_id, _ in rising}))
        interval = self._interval()
        last = min(self._raised.get(side, self._clock()) for side in rising)
        longest = LONGEST_STEP.total_seconds()
        due = last + interval if interval <= longest else self._clock() + longest
        self._triggers.step_in(timedelta(seconds=max(0.0, due - self._clock())))

    def _rising(self) -> set[LinkSide]:
        """Link sides whose rate is below its target in the plan."""
        wanted = {(decision.broker_id, decision.role) for decision in self._plan.decisions}
        return {
            side
            for resource, entry in self._snapshot.ledger.items()
            if resource.type is ResourceType.BROKER and resource not in self._refused
            for role in ReplicaRole
            if (known := entry.keys.get(role.rate_key)) is not None and known.target is not None
            if (side := (resource.broker_id, role)) in wanted
        }

    def _interval(self) -> float:
        """Seconds between two steps; inf: no budget. More rising brokers or recent writes mean fewer, larger steps."""
        oldest = self._clock() - BUDGET_SPAN.total_seconds()
        while self._written and self._written[0][0] <= oldest:
            self._spent -= self._written.popleft()[1]
        steps = (BUDGET - _RESERVE - self._spent) // self._brokers
        if steps < 1:
            return math.inf
        return min(max(RISE.total_seconds() / (steps / 2), PACE.total_seconds()), LONGEST_STEP.total_seconds())


def _of(status: OutcomeStatus, outcomes: Sequence[Outcome]) -> frozenset[ConfigResource]:
    return frozenset(outcome.resource for outcome in outcomes if outcome.status is status)


def _raised(change: Change) -> list[LinkSide]:
    """Link sides that this change raises by a step, or whose rate it takes over as the start of a ramp."""
    ours = change.ledger.keys if change.ledger else {}
    return [
        (change.resource.broker_id, role)
        for role in ReplicaRole
        if change.resource.type is ResourceType.BROKER
        if (known := ours.get(role.rate_key)) is not None and known.target is not None
        if any(edit.key == role.rate_key for edit in change.edits)
    ]
