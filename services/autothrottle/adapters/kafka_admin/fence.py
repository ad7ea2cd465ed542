"""The fence in front of a Kafka that knows nothing of our terms.

As far as Kafka allows: right before each write the term is checked in our ZooKeeper, and each write ends before our
session can.
"""

from __future__ import annotations

import time
from datetime import timedelta

from autothrottle.adapters.zookeeper.ledger import Ledger
from autothrottle.core.errors import Unavailable

_SHARE_OF_SESSION = 2 / 3
"""A write ends so long after the check of the term began; a leader without contact steps down as early."""


class Fence:
    """Lets writes of the newest term pass."""

    def __init__(self, ledger: Ledger, session_timeout: timedelta) -> None:
        """Prepare; `session_timeout` > 0 is that of the session that holds the term."""
        self._ledger = ledger
        self.longest_write = session_timeout.total_seconds() * _SHARE_OF_SESSION
        """Seconds."""

    def passed(self, term: int, deadline: float, too_late: str) -> float:
        """Return until when a write may be sent and be over: as long nobody else can lead.

        It is a moment and no duration: a process that is stopped between this and its write must not count anew.

        Args:
            term: the fence of the term that decided it.
            deadline: of `time.monotonic`, as what is returned.
            too_late: what to say when the check has taken all of the time.

        Raises:
            NotLeader: when the term is over.
            Unavailable: when that cannot be told, or no time is left.
        """
        deadline = min(deadline, time.monotonic() + self.longest_write)
        self._ledger.check_term(term, deadline)
        if time.monotonic() >= deadline:
            raise Unavailable(too_late)
        return deadline
