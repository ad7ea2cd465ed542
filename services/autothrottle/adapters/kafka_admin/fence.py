"""A fence for a Kafka that does not know our terms.

As far as Kafka allows: right before each write, the term is checked in our ZooKeeper, and each write ends before our
session can expire.
"""

from __future__ import annotations

import time
from datetime import timedelta

from autothrottle.adapters.zookeeper_state.ledger import Ledger
from autothrottle.core.errors import Unavailable

_SHARE_OF_SESSION = 2 / 3
"""Maximum time from the start of the term check to the end of the write, as a share of the session timeout.

A leader without contact to ZooKeeper steps down after the same time.
"""


class Fence:
    """Admits only writes of the newest term."""

    def __init__(self, ledger: Ledger, session_timeout: timedelta) -> None:
        """Prepare; `session_timeout` > 0 belongs to the session that holds the term."""
        self._ledger = ledger
        self.longest_write = session_timeout.total_seconds() * _SHARE_OF_SESSION
        """Seconds."""

    def admit(self, term: int, deadline: float, too_late: str) -> float:
        """Check the term; return the time by which the write must be complete. No other leader can exist before it.

        The result is a time and not a duration, because a process that is stopped before its write must not get the
        full duration again.

        Args:
            term: the fence of the term that decided the write.
            deadline: on the monotonic clock, like the result.
            too_late: error message for the case that the check takes all the time.

        Raises:
            NotLeader: the term is over.
            Unavailable: the term cannot be checked, or no time is left.
        """
        deadline = min(deadline, time.monotonic() + self.longest_write)
        self._ledger.check_term(term, deadline)
        if time.monotonic() >= deadline:
            raise Unavailable(too_late)
        return deadline
