"""The election in memory, with the fence that all writes are checked against."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.memory.outages import Outages
from autothrottle.core.errors import NotLeader
from autothrottle.ports.kafka import Term
from autothrottle.ports.state_store import Leader


class MemoryElectorate(Outages):
    """The state that all candidates share: who leads, and the fence that every write is checked against.

    During an outage only `leader` fails, and terms continue.
    """

    _outage = "the election does not answer; try again"

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._candidates: list[MemoryElection] = []
        self._resting: list[MemoryElection] = []
        """Candidates that have resigned, in that order."""
        self._leader: Leader | None = None
        self._terms = 0
        """Number of terms, also of those before `wipe`."""

    @property
    def fence(self) -> int:
        """The fence of the newest term; 0 before the first term."""
        return self._leader.fence if self._leader else 0

    def wipe(self) -> None:
        """Delete the store: the leader's session and all terms end, and a candidate leads in an empty store."""
        self._leader = None
        self.depose()

    def check(self, fence: int) -> None:
        """Check that a term is the newest one.

        Raises:
            NotLeader: the term is over.
        """
        if fence != self.fence:
            address = self._leader.address if self._leader else ""
            raise NotLeader(f"term {fence} is over, the newest is {self.fence}; do not write any more", address)

    def begin_term(self, address: str = "") -> int:
        """Begin a term that no candidate holds, as if another planner led; return its fence."""
        with self._lock:
            losers = [c for c in self._candidates if c.term]
            self._leader = Leader(self._next_fence(), address, datetime.now(UTC))
            for loser in losers:
                loser.term = None
        _notify(losers)
        return self.fence

    def depose(self) -> None:
        """End the leader's session: it becomes the last candidate, and the next one leads."""
        with self._lock:
            leaders = [c for c in self._candidates if c.term]
            for leader in leaders:
                leader.term = None
                self._candidates.remove(leader)
                self._candidates.append(leader)
        _notify(leaders)
        self._elect()

    def _next_fence(self) -> int:
        self._terms += 1
        return self._terms

    def _read(self) -> Leader | None:
        self._raise_if_down()
        return self._leader

    def _elect(self) -> None:
        with self._lock:
            if not self._candidates and self._resting:
                self._candidates.append(self._resting.pop(0))
            if not self._candidates or any(c.term for c in self._candidates):
                return
            winner = self._candidates[0]
            winner.led_since = time.monotonic()
            self._leader = Leader(self._next_fence(), winner.address, datetime.now(UTC), winner.host)
            winner.term = Term(self.fence)
        _notify([winner])

    def _add(self, candidate: MemoryElection) -> None:
        with self._lock:
            if candidate not in self._candidates:
                candidate.has_waited = bool(self._candidates)
                self._candidates.append(candidate)
        self._elect()

    def _resign(self, candidate: MemoryElection, pause: timedelta) -> bool:
        with self._lock:
            is_new = candidate.has_waited and time.monotonic() - candidate.led_since < pause.total_seconds()
            if candidate.term is None or is_new or len(self._candidates) < 2:
                return False
            candidate.term = None
            self._candidates.remove(candidate)
            self._resting.append(candidate)
        timer = threading.Timer(pause.total_seconds(), self._end_rest, (candidate,))
        timer.daemon = True
        timer.start()
        _notify([candidate])
        self._elect()
        return True

    def _end_rest(self, candidate: MemoryElection) -> None:
        with self._lock:
            if candidate not in self._resting:
                return
            self._resting.remove(candidate)
        self._add(candidate)

    def _remove(self, candidate: MemoryElection) -> None:
        with self._lock:
            if candidate in self._candidates:
                self._candidates.remove(candidate)
            if candidate in self._resting:
                self._resting.remove(candidate)
            led, candidate.term = candidate.term is not None, None
        if led:
            _notify([candidate])
        self._elect()


def _notify(candidates: Iterable[MemoryElection]) -> None:
    for candidate in candidates:
        candidate.on_change()


class MemoryElection:
    """One candidate of an electorate (an `Election`); the first to join leads."""

    def __init__(self, electorate: MemoryElectorate) -> None:
        self._electorate = electorate
        self.term: Term | None = None
        self.address, self.host = "", ""
        self.on_change: Callable[[], None] = lambda: None
        self.has_waited = False
        """Whether another candidate led or waited when it joined."""
        self.led_since = 0.0

    def leader(self) -> Leader | None:
        return self._electorate._read()

    def join(self, address: str, on_change: Callable[[], None], host: str = "") -> None:
        self.address, self.host, self.on_change = address, host, on_change
        self._electorate._add(self)

    def resign(self, pause: timedelta) -> bool:
        return self._electorate._resign(self, pause)

    def leave(self) -> None:
        self._electorate._remove(self)
