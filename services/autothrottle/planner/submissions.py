"""Callers that wait for their reassignment to be submitted. The type to know is `Submissions`.

A caller proposes a reassignment and waits. Cycles see it as `Wanted`, throttle it and, when its throttles are in place,
claim it: from then on its caller can no longer withdraw it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from datetime import timedelta

from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.control.submission import CHECK_FIRST, Targets, Wanted
from autothrottle.core.errors import AutothrottleError, Conflict, NotLeader, Unavailable
from autothrottle.core.records import Submission


class SubmissionTicket:
    """One caller's reassignment. It ends once, with a result or an error. Thread-safe."""

    def __init__(self, fence: int, wanted: Wanted) -> None:
        self.fence, self.wanted = fence, wanted
        self._claimed = False
        self._end: Submission | AutothrottleError | None = None
        self._changed = threading.Condition()

    @property
    def ended(self) -> bool:
        return self._end is not None

    def claim(self) -> bool:
        """Return whether it may be submitted. If so, the caller can no longer withdraw it."""
        with self._changed:
            self._claimed = self._end is None
            return self._claimed

    def end(self, result: Submission | AutothrottleError) -> None:
        """Set the result for the caller. Only the first call counts."""
        with self._changed:
            self._end = self._end or result
            self._changed.notify_all()

    def withdraw(self, error: AutothrottleError) -> None:
        """Set the error for the caller, unless Kafka may have received the reassignment."""
        with self._changed:
            if not self._claimed:
                self._end = self._end or error
                self._changed.notify_all()

    def wait(self, timeout: timedelta) -> Submission:
        """Wait for the result and return it; withdraw the reassignment on timeout.

        Raises:
            AutothrottleError: why it was not submitted.
            Unavailable: timeout; the message says whether it may have been submitted.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.ended, timeout.total_seconds()):
                seconds = f"within {timeout.total_seconds():.3g} s"
                if self._claimed:
                    raise Unavailable(
                        f"Kafka did not answer {seconds}: the reassignment may have been submitted; {CHECK_FIRST}"
                    )
                self._end = Unavailable(f"the throttles were not in place {seconds}: nothing was submitted; try again")
            end = self._end
        if isinstance(end, Submission):
            return end
        assert end is not None
        raise end


class Submissions:
    """The current submission, and cancellations for the next cycle. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets = 0
        self._current: SubmissionTicket | None = None
        self._cancelled: frozenset[TopicPartition] = frozenset()

    def propose(self, fence: int, targets: Targets) -> SubmissionTicket:
        """Propose a reassignment.

        Raises:
            Conflict: another submission is in progress.
        """
        with self._lock:
            if self._current is not None and not self._current.ended:
                raise Conflict("another submission is in progress: nothing was submitted; try again in a few seconds")
            self._tickets += 1
            self._current = SubmissionTicket(fence, Wanted(self._tickets, targets))
            return self._current

    def fail(self, error: AutothrottleError) -> None:
        """Fail the current submission, unless Kafka may have received it."""
        if current := self._current:
            current.withdraw(error)

    def begin_term(self, fence: int) -> None:
        """Forget the cancellations of the previous term, and fail its submission."""
        self.take_cancelled()
        if (current := self._current) and current.fence != fence:
            current.withdraw(NotLeader("the term ended: nothing was submitted; call the leader"))

    def cancel(self, rows: Collection[TopicPartition]) -> None:
        """Let the next cycle forget that these partitions were submitted."""
        with self._lock:
            self._cancelled = self._cancelled.union(rows)

    def take_cancelled(self) -> frozenset[TopicPartition]:
        """Return the partitions that were cancelled since the last call."""
        with self._lock:
            cancelled, self._cancelled = self._cancelled, frozenset()
            return cancelled

    @property
    def wanted(self) -> Wanted | None:
        """The reassignment that a caller waits for; None: no caller waits."""
        current = self._current
        return current.wanted if current is not None and not current.ended else None

    def claim(self, ticket: int) -> bool:
        """Return whether this reassignment may be submitted; see `Submission.claim`."""
        current = self._current
        return current is not None and current.wanted.ticket == ticket and current.claim()

    def answer(self, ticket: int, result: Submission | AutothrottleError) -> None:
        """End a submission."""
        if (current := self._current) and current.wanted.ticket == ticket:
            current.end(result)
