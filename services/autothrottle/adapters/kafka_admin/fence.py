"""A fence for a Kafka that does not know our terms.

As far as Kafka allows: right before each write, the term is checked in our ZooKeeper. Each write ends before our
session can expire, and before the leader's lease ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from autothrottle.adapters.zookeeper_state.ledger import Ledger
from autothrottle.core.errors import Unavailable
from autothrottle.ports.kafka import Term

_SHARE_OF_SESSION = 2 / 3
"""Maximum time from the start of the term check to the end of the write, as a share of the session timeout.

A leader without contact to ZooKeeper steps down after the same time.
"""

_LEASE_ENDED = (
    "the leader's lease ended before it was written: the leader had no contact to ZooKeeper, or the cycle took longer "
    "than the lease; the next cycle retries it"
)


class Fence:
    """Admits only writes of the newest term."""

    def __init__(self, terms: Ledger, session_timeout: timedelta, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare; `session_timeout` > 0 belongs to the session that holds the term."""
        self._terms, self._clock = terms, clock
        self.longest_write = session_timeout.total_seconds() * _SHARE_OF_SESSION
        """Seconds."""

    def admit(self, term: Term, deadline: float, too_late: str) -> float:
        """Check the term; return the time by which the write must be complete. No other leader can exist before it.

        Our own check alone does not ensure that: a leader without contact to ZooKeeper may lose its session right
        after it. Only its lease counts from the leader's last contact.

        The result is a time and not a duration, because a process that is stopped before its write must not get the
        full duration again.

        Args:
            term: the term that decided the write.
            deadline: on the monotonic clock, like the result.
            too_late: error message for the case that the check takes all the time.

        Raises:
            NotLeader: the term is over.
            Unavailable: the term cannot be checked, no time is left, or the lease has ended.
        """
        now = self._clock()
        deadline = min(deadline, now + self.longest_write, term.lease_end)
        if now < deadline:
            self._terms.check_term(term.fence, deadline)
        if (now := self._clock()) >= term.lease_end:
            raise Unavailable(_LEASE_ENDED)
        if now >= deadline:
            raise Unavailable(too_late)
        return deadline
