"""Rates on their way up: between two cycles the leader raises them step by step to what the last plan wants.

Each step is fenced as a cycle's writes are, and expects what the step before it left: whoever meddles, or leads, ends
the ramp, and the next cycle sees what stands. The type to know is `Ramps`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta

from autothrottle.core.changes import Change, Outcome, OutcomeStatus, carried_out, next_steps
from autothrottle.core.configs import ConfigResource, ReplicaRole, ResourceType
from autothrottle.core.errors import AutothrottleError, NotLeader
from autothrottle.core.loads import Port
from autothrottle.core.plan import Plan
from autothrottle.core.ramp import LONGEST_STEP, PACE, RISE
from autothrottle.core.topology import Snapshot
from autothrottle.planner.triggers import Triggers
from autothrottle.ports.cluster import ConfigWriter

log = logging.getLogger(__name__)

BUDGET = 10_000
"""Config changes in `BUDGET_SPAN`: every broker reads each, and ZooKeeper's Java client loses its connection when
about 38,000 are there."""

BUDGET_SPAN = timedelta(minutes=15)
"""So long brokers keep the notification of a change."""

_RESERVE = BUDGET // 10
"""What raises leave to lowerings and lists."""

_STEP_TIMEOUT = timedelta(seconds=10)


class Ramps:
    """The rates that rise, of the last plan of one term; for the planner's own thread."""

    def __init__(
        self,
        writer: ConfigWriter,
        triggers: Triggers,
        stood: Callable[[Snapshot], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raise nothing yet.

        Args:
            writer: writes the steps.
            triggers: told when the next step is due, and that a cycle is when a step failed.
            stood: called with the cluster as it is after a step.
            clock: monotonic, in seconds.
        """
        self._writer, self._triggers, self._stood, self._clock = writer, triggers, stood, clock
        self._plan, self._snapshot = Plan(), Snapshot.empty()
        self._raised: dict[Port, float] = {}
        self._refused: frozenset[ConfigResource] = frozenset()
        """Left alone until the next cycle has tried them again: a broker that is down holds up nobody."""
        self._brokers = 1
        self._written: deque[tuple[float, int]] = deque()
        self._spent = 0

    def forget(self) -> None:
        """Raise nothing any more: another term begins, or nothing may be written."""
        self._raised.clear()
        self._follow(Plan(), Snapshot.empty())

    def pace(self, broker_id: int, role: ReplicaRole) -> timedelta:
        """Return how long ago a rate was raised by a step, 0 while it has to wait; the first step is due at once."""
        raised = self._raised.get((broker_id, role))
        interval = self._interval()
        if math.isinf(interval):
            return timedelta(0)
        if raised is None:
            return PACE
        # Not before half of it is over, so that rates which began at different times rise together.
        elapsed = self._clock() - raised
        return timedelta(seconds=elapsed if elapsed >= interval / 2 else 0)

    def took(self, plan: Plan, snapshot: Snapshot, wanted: Sequence[Change], outcomes: Sequence[Outcome]) -> None:
        """Take over what a cycle wants, what it found, and what it has written of that."""
        self._refused = _of(OutcomeStatus.REFUSED, outcomes)
        self._note(plan, snapshot, wanted, outcomes)

    def _note(self, plan: Plan, snapshot: Snapshot, wanted: Sequence[Change], outcomes: Sequence[Outcome]) -> None:
        done = _of(OutcomeStatus.APPLIED, outcomes)
        changed = [change for change in wanted if change.resource in done]
        now = self._clock()
        if edited := sum(bool(change.edits) for change in changed):
            self._written.append((now, edited))
            self._spent += edited
        for change in changed:
            self._raised |= {port: now for port in _raised(change)}
        self._follow(plan, carried_out(snapshot, changed) if changed else snapshot)

    def step(self, fence: int, cycle: int) -> None:
        """Write the steps that are due; when one fails a cycle is asked for, which sees what stands."""
        steps = next_steps(self._plan, self._snapshot, fence, cycle, self.pace)
        wanted = [change for change in steps if change.resource not in self._refused]
        try:
            outcomes = self._writer.apply(fence, wanted, _STEP_TIMEOUT) if wanted else []
        except NotLeader as error:
            log.warning("The ramp ends: %s", error)
            return self.forget()
        except AutothrottleError as error:
            self.forget()
            return self._ask_for_a_cycle(str(error))
        except Exception:  # a bug must not end the loop: nobody else leads while we hold the term
            log.exception("a step of a ramp failed unexpectedly")
            self.forget()
            return self._ask_for_a_cycle("the log has the traceback")
        if refused := [outcome for outcome in outcomes if outcome.status is OutcomeStatus.REFUSED]:
            self._refused |= _of(OutcomeStatus.REFUSED, outcomes)
            self._ask_for_a_cycle(f"{refused[0].resource}: {refused[0].reason}")
        self._note(self._plan, self._snapshot, wanted, outcomes)
        if wanted:
            self._stood(self._snapshot)

    def _ask_for_a_cycle(self, reason: str) -> None:
        log.warning("A step of a rate on its way up was not written, a cycle looks after it: %s", reason)
        self._triggers.request("a step of a ramp failed")

    def _follow(self, plan: Plan, snapshot: Snapshot) -> None:
        self._plan, self._snapshot = plan, snapshot
        rising = self._rising()
        self._raised = {port: since for port, since in self._raised.items() if port in rising}
        if not rising:
            return self._triggers.step_in(None)
        self._brokers = max(1, len({broker_id for broker_id, _ in rising}))
        interval = self._interval()
        last = min(self._raised.get(port, self._clock()) for port in rising)
        longest = LONGEST_STEP.total_seconds()
        due = last + interval if interval <= longest else self._clock() + longest
        self._triggers.step_in(timedelta(seconds=max(0.0, due - self._clock())))

    def _rising(self) -> set[Port]:
        """The ports whose rate is a step to what the plan wants."""
        wanted = {(decision.broker_id, decision.role) for decision in self._plan.decisions}
        return {
            port
            for resource, entry in self._snapshot.ledger.items()
            if resource.type is ResourceType.BROKER and resource not in self._refused
            for role in ReplicaRole
            if (known := entry.keys.get(role.rate_key)) is not None and known.target is not None
            if (port := (resource.broker_id, role)) in wanted
        }

    def _interval(self) -> float:
        """Seconds between two steps: the more brokers rise, and the more was written, the fewer and larger they are."""
        forgotten = self._clock() - BUDGET_SPAN.total_seconds()
        while self._written and self._written[0][0] <= forgotten:
            self._spent -= self._written.popleft()[1]
        steps = (BUDGET - _RESERVE - self._spent) // self._brokers
        if steps < 1:
            return math.inf
        return min(max(RISE.total_seconds() / (steps / 2), PACE.total_seconds()), LONGEST_STEP.total_seconds())


def _of(status: OutcomeStatus, outcomes: Sequence[Outcome]) -> frozenset[ConfigResource]:
    return frozenset(outcome.resource for outcome in outcomes if outcome.status is status)


def _raised(change: Change) -> list[Port]:
    """The ports that a change raises by a step, or takes a rate over for that shall rise."""
    ours = change.ledger.keys if change.ledger else {}
    return [
        (change.resource.broker_id, role)
        for role in ReplicaRole
        if change.resource.type is ResourceType.BROKER
        if (known := ours.get(role.rate_key)) is not None and known.target is not None
        if any(edit.key == role.rate_key for edit in change.edits)
    ]
