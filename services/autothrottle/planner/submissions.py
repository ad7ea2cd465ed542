"""Callers that wait for their reassignment to be submitted. The type to know is `Submissions`.

A caller proposes a reassignment and waits. Cycles see its `SubmissionRequest`, throttle it and, when its throttles are
in place, claim it: from then on its caller can no longer withdraw it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from concurrent.futures import Future
from datetime import timedelta

from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import AutothrottleError, Conflict, NotLeader, Unavailable
from autothrottle.core.operators.submission import CHECK_FIRST, SubmissionRequest, Targets
from autothrottle.core.records import Submission


class Submissions:
    """The current submission, and cancellations for the next cycle. Thread-safe.

    A submission ends once, with a result or an error. Its future is running from the claim on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets = self._fence = 0
        self._current: tuple[SubmissionRequest, Future[Submission]] | None = None
        """The last proposal and its end; guarded by `_lock`."""
        self._cancelled: frozenset[TopicPartition] = frozenset()

    def propose(self, fence: int, targets: Targets) -> Future[Submission]:
        """Propose a reassignment; the caller then waits for its end.

        Raises:
            Conflict: another submission is in progress.
        """
        with self._lock:
            if self._open() is not None:
                raise Conflict("another submission is in progress: nothing was submitted; try again in a few seconds")
            self._tickets, self._fence = self._tickets + 1, fence
            end = Future[Submission]()
            self._current = SubmissionRequest(self._tickets, targets), end
            return end

    def wait(self, end: Future[Submission], timeout: timedelta) -> Submission:
        """Wait for the result and return it; withdraw the reassignment on timeout.

        Raises:
            AutothrottleError: why it was not submitted.
            Unavailable: timeout; the message says whether it may have been submitted.
        """
        seconds = timeout.total_seconds()
        try:
            return end.result(seconds)
        except TimeoutError:
            pass
        with self._lock:
            if end.running():
                raise Unavailable(
                    f"Kafka did not answer within {seconds:.3g} s: the reassignment may have been submitted; "
                    f"{CHECK_FIRST}"
                )
            if not end.done():
                end.set_exception(
                    Unavailable(
                        f"the throttles were not in place within {seconds:.3g} s: nothing was submitted; try again"
                    )
                )
        return end.result()

    def fail(self, error: AutothrottleError) -> None:
        """Fail the current submission, unless Kafka may have received it."""
        with self._lock:
            if (end := self._open()) and not end.running():
                end.set_exception(error)

    def begin_term(self, fence: int) -> None:
        """Forget the cancellations of the previous term, and fail its submission."""
        self.take_cancelled()
        if self._fence != fence:
            self.fail(NotLeader("the term ended: nothing was submitted; call the leader"))

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
    def request(self) -> SubmissionRequest | None:
        """The reassignment that a caller waits for; None: no caller waits."""
        current = self._current
        return current[0] if current is not None and not current[1].done() else None

    def claim(self, ticket: int) -> bool:
        """Return whether this reassignment may be submitted. If so, the caller can no longer withdraw it."""
        with self._lock:
            end = self._open(ticket)
            return end is not None and (end.running() or end.set_running_or_notify_cancel())

    def answer(self, ticket: int, result: Submission | AutothrottleError) -> None:
        """Set the result for the caller. Only the first call counts."""
        with self._lock:
            if end := self._open(ticket):
                if isinstance(result, Submission):
                    end.set_result(result)
                else:
                    end.set_exception(result)

    def _open(self, ticket: int | None = None) -> Future[Submission] | None:
        """Return the end of the current submission if it has not ended, and has this ticket if one is given."""
        if self._current is None or self._current[1].done() or ticket not in (None, self._current[0].ticket):
            return None
        return self._current[1]
