"""Submissions: reassignments that are throttled first and then submitted to Kafka.

Cycles see a proposed reassignment as if it were in progress. The first cycle that reads back all of its throttles
submits it, after the brokers had time to apply them. A submitted reassignment stays in the cycles' view until the
snapshot contains it, so that no cycle removes its throttles in between. The type to know is `Submissions`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta

from autothrottle.core.cluster.snapshot import Snapshot, TopicPartition
from autothrottle.core.control.changes import Outcome
from autothrottle.core.control.submission import (
    ProposedReassignment,
    Submitted,
    Targets,
    proposal,
    resources,
    unseen,
    unthrottled,
    with_proposed,
)
from autothrottle.core.errors import AutothrottleError, Conflict, NotLeader, Unavailable

SETTLED_AFTER = timedelta(seconds=1)
"""Time from the write of a throttle to the submission. A broker applies a config 7 to 70 ms after the write. A KRaft
broker that reads both in one batch of its metadata log starts to fetch before it applies the config."""

VISIBLE_WITHIN = timedelta(seconds=30)
"""Time within which a submitted reassignment must appear in a snapshot."""

_SHOWN = 5
"""Maximum number of problems in an error."""

Alter = Callable[[Targets], Mapping[TopicPartition, str]]
"""Submits targets; returns the refused partitions, each with the reason."""

log = logging.getLogger(__name__)


class Submission:
    """A reassignment that a caller waits for. It ends once, with a result or an error. Thread-safe."""

    def __init__(self, fence: int, wanted: Targets) -> None:
        self.fence, self.wanted = fence, wanted
        self.proposal = ProposedReassignment({})
        self.throttled_since: float | None = None
        self._begun = False
        self._end: Submitted | AutothrottleError | None = None
        self._changed = threading.Condition()

    @property
    def ended(self) -> bool:
        return self._end is not None

    @property
    def begun(self) -> bool:
        """Whether Kafka may have received it."""
        return self._begun

    @property
    def throttled_in_vain(self) -> bool:
        """Whether it was throttled, but Kafka has certainly accepted nothing of it."""
        refused = isinstance(self._end, AutothrottleError) and not isinstance(self._end, Unavailable)
        return refused or not self._begun

    def begin(self) -> bool:
        """Return whether it may be submitted. If so, the caller can no longer withdraw it."""
        with self._changed:
            self._begun = self._end is None
            return self._begun

    def end(self, result: Submitted | AutothrottleError) -> None:
        """Set the result for the caller. Only the first call counts."""
        with self._changed:
            self._end = self._end or result
            self._changed.notify_all()

    def withdraw(self, error: AutothrottleError) -> None:
        """Set the error for the caller, unless Kafka may have received the reassignment."""
        with self._changed:
            if not self._begun:
                self._end = self._end or error
                self._changed.notify_all()

    def wait(self, timeout: timedelta) -> Submitted:
        """Wait for the result and return it; withdraw the reassignment on timeout.

        Raises:
            AutothrottleError: why it was not submitted.
            Unavailable: timeout; the message says whether it may have been submitted.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.ended, timeout.total_seconds()):
                seconds = f"within {timeout.total_seconds():.3g} s"
                if self._begun:
                    raise Unavailable(
                        f"Kafka did not answer {seconds}: the reassignment may have been submitted; {_CHECK_FIRST}"
                    )
                self._end = Unavailable(f"the throttles were not in place {seconds}: nothing was submitted; try again")
            end = self._end
        if isinstance(end, Submitted):
            return end
        assert end is not None
        raise end


_CHECK_FIRST = "list the reassignments before you try again"


class Submissions:
    """The current submission, and submitted reassignments that no snapshot contains yet. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.withdrawn = False
        """Whether the last `show` was the first one after a submission that was throttled in vain."""
        self._clock = clock
        self._lock = threading.Lock()
        self._current: Submission | None = None
        self._taken: Submission | None = None
        self._shown: Submission | None = None
        self._unseen: dict[TopicPartition, tuple[tuple[int, ...], float]] = {}

    def propose(self, fence: int, wanted: Targets) -> Submission:
        """Propose a reassignment.

        Raises:
            Conflict: another submission is in progress.
        """
        with self._lock:
            if self._current is not None and not self._current.ended:
                raise Conflict("another submission is in progress: nothing was submitted; try again in a few seconds")
            self._current = Submission(fence, wanted)
            return self._current

    def fail(self, error: AutothrottleError) -> None:
        """Fail the current submission, unless Kafka may have received it."""
        if current := self._current:
            current.withdraw(error)

    def begin_term(self, fence: int) -> None:
        """Forget the submissions of the previous term."""
        with self._lock:
            self._unseen.clear()
            self._taken = self._shown = None
        if (current := self._current) and current.fence != fence:
            current.withdraw(NotLeader("the term ended: nothing was submitted; call the leader"))

    def forget(self, rows: Collection[TopicPartition]) -> None:
        """Stop showing these partitions: they were cancelled or refused."""
        with self._lock:
            for row in rows:
                self._unseen.pop(row, None)

    @property
    def pending(self) -> bool:
        """Whether `show` has anything to add."""
        return bool(self._unseen or self._taken)

    @property
    def proposed(self) -> Collection[TopicPartition]:
        """Partitions of the last `show` that were not submitted yet."""
        return self._shown.proposal.start.keys() if self._shown else ()

    def take(self) -> list[TopicPartition]:
        """Return the partitions whose assignments the next `show` needs. Later proposals wait for the next cycle."""
        with self._lock:
            self._taken = self._current if self._current is not None and not self._current.ended else None
            return sorted(self._unseen.keys() | (self._taken.wanted.keys() if self._taken else ()))

    def show(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot plus reassignments that must be throttled but are not in the snapshot.

        Args:
            snapshot: read after `take`, with the assignments of the partitions that it returned.
        """
        with self._lock:
            left = unseen(snapshot, {row: target for row, (target, _) in self._unseen.items()})
            oldest = self._clock() - VISIBLE_WITHIN.total_seconds()
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
        self.withdrawn = before is not None and before is not current and before.throttled_in_vain
        self._shown = current
        started = {row: target for row, (target, _) in self._unseen.items()}
        return with_proposed(snapshot, {**started, **(current.proposal.start if current else {})})

    def advance(self, snapshot: Snapshot, refused: Sequence[Outcome], alter: Alter) -> timedelta | None:
        """Submit the proposal if its throttles are in place; return the delay of the next check, None: none needed.

        Args:
            snapshot: as read, before the cycle's writes.
            refused: the cycle's refused changes.
            alter: submits to Kafka.

        Raises:
            NotLeader: the term is over.
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
        if needed and (unthrottled(snapshot, start) or submission.throttled_since is None):
            submission.throttled_since = now
        if needed and submission.throttled_since is not None:
            left = SETTLED_AFTER.total_seconds() - (now - submission.throttled_since)
            if left > 0:
                return timedelta(seconds=left)
        self._submit(submission, alter)
        return VISIBLE_WITHIN if submission.begun else timedelta(0)

    def _submit(self, submission: Submission, alter: Alter) -> None:
        if not submission.begin():
            return
        found, start = submission.proposal, submission.proposal.start
        # Before sending: anything that Kafka may have received must be throttled, whatever the answer is.
        self._remember(start)
        try:
            refused = alter(start) if start else {}
        except Unavailable as error:
            submission.end(Unavailable(f"the reassignment may have been submitted: {error}; {_CHECK_FIRST}"))
            return
        except AutothrottleError as error:
            self.forget(start.keys())
            submission.end(error)
            if isinstance(error, NotLeader):
                raise
            return
        self.forget(refused)
        accepted = len(start) - len(refused)
        if start and not accepted:
            submission.end(Conflict(f"Kafka refused all partitions: {_some(list(refused.values()))}"))
            return
        log.info("Reassignment of %d partitions submitted with its throttles in place", accepted)
        submission.end(Submitted(accepted, len(found.moving), len(found.there), refused))

    def _remember(self, start: Targets) -> None:
        with self._lock:
            self._unseen |= {row: (target, self._clock()) for row, target in start.items()}


def _some(problems: Sequence[str]) -> str:
    more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return "; ".join(problems[:_SHOWN]) + more
