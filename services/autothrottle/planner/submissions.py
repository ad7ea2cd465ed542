"""Reassignments on their way into Kafka: throttled first, submitted when a cycle finds that everything stands.

A proposal is shown to the cycles as if it were moving; it is submitted by the first one that reads back all of its
throttles, and not before the brokers have had time to take them up. What was submitted is shown on until the cluster
itself shows it, so that no cycle takes its throttles away in between. The type to know is `Submissions`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta

from autothrottle.core.changes import Outcome
from autothrottle.core.errors import AutothrottleError, Conflict, NotLeader, Unavailable
from autothrottle.core.reassignment import (
    Proposal,
    Submitted,
    Targets,
    proposal,
    resources,
    unseen,
    unthrottled,
    with_proposed,
)
from autothrottle.core.topology import Snapshot, TopicPartition

SETTLED_AFTER = timedelta(seconds=1)
"""From the write of a throttle to the start of what it limits: a broker takes a config up 7 to 70 ms after it was
written, and one in KRaft mode that finds both in one piece of its log begins to fetch before it reads the config."""

SHOWN_WITHIN = timedelta(seconds=30)
"""So long a cluster may take to show what was submitted."""

_SHOWN = 5
"""How many problems an error names."""

Alter = Callable[[Targets], Mapping[TopicPartition, str]]
"""Submits targets and returns what Kafka refused."""

log = logging.getLogger(__name__)


class Submission:
    """One reassignment that a caller waits for; it ends once, with a result or an error. Thread-safe."""

    def __init__(self, fence: int, wanted: Targets) -> None:
        self.fence, self.wanted = fence, wanted
        self.proposal = Proposal({})
        self.stands_since: float | None = None
        self._begun = False
        self._end: Submitted | AutothrottleError | None = None
        self._changed = threading.Condition()

    @property
    def ended(self) -> bool:
        """Whether it is decided."""
        return self._end is not None

    @property
    def begun(self) -> bool:
        """Whether Kafka may have heard of it."""
        return self._begun

    @property
    def in_vain(self) -> bool:
        """Whether it was throttled, and Kafka has surely taken nothing of it."""
        refused = isinstance(self._end, AutothrottleError) and not isinstance(self._end, Unavailable)
        return refused or not self._begun

    def begin(self) -> bool:
        """Return whether it may be submitted; from then on nobody can give it up."""
        with self._changed:
            self._begun = self._end is None
            return self._begun

    def end(self, result: Submitted | AutothrottleError) -> None:
        """Tell the caller; only the first time counts."""
        with self._changed:
            self._end = self._end or result
            self._changed.notify_all()

    def withdraw(self, error: AutothrottleError) -> None:
        """Tell the caller why it is not submitted, unless Kafka may have heard of it."""
        with self._changed:
            if not self._begun:
                self._end = self._end or error
                self._changed.notify_all()

    def wait(self, timeout: timedelta) -> Submitted:
        """Return what became of it; given up when that takes longer.

        Raises:
            AutothrottleError: why it was not submitted.
            Unavailable: when the time is over.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.ended, timeout.total_seconds()):
                seconds = f"within {timeout.total_seconds():.3g} s"
                if self._begun:
                    raise Unavailable(
                        f"Kafka did not answer {seconds}: it is unknown whether it was submitted; {_LOOK}"
                    )
                self._end = Unavailable(f"the throttles did not stand {seconds}: nothing was submitted; try again")
            end = self._end
        if isinstance(end, Submitted):
            return end
        assert end is not None
        raise end


_LOOK = "look at what is being reassigned before you try again"


class Submissions:
    """The submission in hand, and what was submitted and is not to be seen yet. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.withdrawn = False
        """Whether the cycle that looked last is the first after one that throttled a proposal in vain."""
        self._clock = clock
        self._lock = threading.Lock()
        self._current: Submission | None = None
        self._taken: Submission | None = None
        self._shown: Submission | None = None
        self._unseen: dict[TopicPartition, tuple[tuple[int, ...], float]] = {}

    def propose(self, fence: int, wanted: Targets) -> Submission:
        """Take a reassignment on.

        Raises:
            Conflict: when another one is in hand.
        """
        with self._lock:
            if self._current is not None and not self._current.ended:
                raise Conflict(
                    "another reassignment is being submitted: nothing was submitted; try again in some seconds"
                )
            self._current = Submission(fence, wanted)
            return self._current

    def fail(self, error: AutothrottleError) -> None:
        """Let the submission in hand fail, unless Kafka may have heard of it."""
        if current := self._current:
            current.withdraw(error)

    def begin_term(self, fence: int) -> None:
        """Forget what belongs to another term."""
        with self._lock:
            self._unseen.clear()
            self._taken = self._shown = None
        if (current := self._current) and current.fence != fence:
            current.withdraw(NotLeader("the term ended: nothing was submitted; ask the leader"))

    def forget(self, rows: Collection[TopicPartition]) -> None:
        """Show these no more: they were cancelled."""
        with self._lock:
            for row in rows:
                self._unseen.pop(row, None)

    @property
    def pending(self) -> bool:
        """Whether there is anything to show."""
        return bool(self._unseen or self._taken)

    @property
    def proposed(self) -> Collection[TopicPartition]:
        """What the last `show` showed that Kafka has not heard of."""
        return self._shown.proposal.start.keys() if self._shown else ()

    def take(self) -> list[TopicPartition]:
        """Return the partitions whose assignments the next `show` needs; what is proposed from now on waits."""
        with self._lock:
            self._taken = self._current if self._current is not None and not self._current.ended else None
            return sorted(self._unseen.keys() | (self._taken.wanted.keys() if self._taken else ()))

    def show(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with all that is to be throttled though the cluster does not show it moving.

        Args:
            snapshot: read after `take`, with the assignments of its partitions.
        """
        with self._lock:
            left = unseen(snapshot, {row: target for row, (target, _) in self._unseen.items()})
            oldest = self._clock() - SHOWN_WITHIN.total_seconds()
            self._unseen = {row: known for row, known in self._unseen.items() if row in left and known[1] >= oldest}
            current, before = self._taken, self._shown
        if current is not None and current.ended:
            current = None
        if current is not None:
            try:
                current.proposal = proposal(snapshot, current.wanted)
            except AutothrottleError as error:
                current.end(error)
                current = None
        self.withdrawn = before is not None and before is not current and before.in_vain
        self._shown = current
        started = {row: target for row, (target, _) in self._unseen.items()}
        return with_proposed(snapshot, {**started, **(current.proposal.start if current else {})})

    def advance(self, snapshot: Snapshot, refused: Sequence[Outcome], alter: Alter) -> timedelta | None:
        """Submit what stands; return after how long the next cycle should look, None: it need not.

        Args:
            snapshot: as it was read, before anything was written.
            refused: what the cycle could not write.
            alter: submits.

        Raises:
            NotLeader: when the term is over.
        """
        submission = self._shown
        if submission is None or submission.ended:
            return None if submission is None else timedelta(0)
        start, now = submission.proposal.start, self._clock()
        needed = resources(snapshot, start)
        missing = [f"{o.resource}: {o.reason}" for o in refused if o.resource in needed]
        if missing:
            submission.end(Conflict(f"nothing was submitted, since it could not be throttled: {_some(missing)}"))
            return timedelta(0)
        if needed and (unthrottled(snapshot, start) or submission.stands_since is None):
            submission.stands_since = now
        if needed and submission.stands_since is not None:
            left = SETTLED_AFTER.total_seconds() - (now - submission.stands_since)
            if left > 0:
                return timedelta(seconds=left)
        self._submit(submission, alter)
        return SHOWN_WITHIN if submission.begun else timedelta(0)

    def _submit(self, submission: Submission, alter: Alter) -> None:
        if not submission.begin():
            return
        found, start = submission.proposal, submission.proposal.start
        # Before it is sent: what Kafka may have heard of is to be throttled, whatever becomes of the answer.
        self._await(start)
        try:
            refused = alter(start) if start else {}
        except Unavailable as error:
            submission.end(Unavailable(f"it is unknown whether the reassignment was submitted: {error}; {_LOOK}"))
            return
        except AutothrottleError as error:
            self.forget(start.keys())
            submission.end(error)
            if isinstance(error, NotLeader):
                raise
            return
        self.forget(refused)
        taken = len(start) - len(refused)
        if start and not taken:
            submission.end(Conflict(f"Kafka took none of the partitions: {_some(list(refused.values()))}"))
            return
        log.info("Reassignment of %d partitions submitted, its throttles stand", taken)
        submission.end(Submitted(taken, len(found.moving), len(found.there), refused))

    def _await(self, start: Targets) -> None:
        with self._lock:
            self._unseen |= {row: (target, self._clock()) for row, target in start.items()}


def _some(problems: Sequence[str]) -> str:
    more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return "; ".join(problems[:_SHOWN]) + more
