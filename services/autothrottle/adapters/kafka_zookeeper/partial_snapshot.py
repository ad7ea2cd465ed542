"""Hands out a snapshot before its reader has read everything, and tracks callers that need the complete one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autothrottle.core.cluster.snapshot import Snapshot

_POLL_SECONDS = 0.02
"""Interval between checks whether the offered snapshot is outdated."""


class Offer:
    """One thread offers a snapshot and waits; other threads take it. Thread-safe."""

    def __init__(self, to_take_seconds: float = 0.5, to_return_seconds: float = 2.0) -> None:
        """Start without an offer.

        Args:
            to_take_seconds: how long `make` waits until a caller takes the snapshot, >= 0.
            to_return_seconds: how long `make` then waits until that caller returns for the complete snapshot, >= 0.
        """
        self._take_seconds, self._return_seconds = to_take_seconds, to_return_seconds
        self._changed = threading.Condition()
        self._snapshot: Snapshot | None = None
        self._is_taken = False
        self._awaiting_complete = 0

    def make(self, snapshot: Snapshot, is_outdated: Callable[[], bool] = lambda: False) -> None:
        """Offer a snapshot, and wait while reading on would only slow down the callers that act on it.

        Returns as soon as one of these holds: a caller waits for the complete snapshot, the offer is not taken in
        time, the caller that took it does not return in time, or the offer is outdated. An outdated offer is withdrawn.
        """
        with self._changed:
            self._snapshot, self._is_taken = snapshot, False
            self._changed.notify_all()
            deadline = time.monotonic() + self._take_seconds
            while not (self._is_taken or self._awaiting_complete or is_outdated()) and time.monotonic() < deadline:
                self._changed.wait(_POLL_SECONDS)
            deadline = time.monotonic() + (self._return_seconds if self._is_taken else 0)
            while not (self._awaiting_complete or is_outdated()) and time.monotonic() < deadline:
                self._changed.wait(_POLL_SECONDS)
            if is_outdated():
                self._snapshot = None

    def is_complete_awaited(self) -> bool:
        """Return whether a caller waits for the complete snapshot."""
        with self._changed:
            return self._awaiting_complete > 0

    def withdraw(self) -> None:
        """Withdraw the offer, if any."""
        with self._changed:
            self._snapshot = None

    def is_open(self) -> bool:
        with self._changed:
            return self._snapshot is not None

    def take(self, min_version: int) -> Snapshot | None:
        """Return the offered snapshot if it has at least this version, else None."""
        with self._changed:
            if self._snapshot is None or self._snapshot.version < min_version:
                return None
            self._is_taken = True
            self._changed.notify_all()
            return self._snapshot

    def wait(self, seconds: float) -> None:
        """Wait for an offer, at most this long."""
        with self._changed:
            self._changed.wait_for(lambda: self._snapshot is not None, seconds)

    @contextmanager
    def awaiting_complete(self) -> Iterator[None]:
        """While the context is open, this caller waits for the complete snapshot."""
        with self._changed:
            self._awaiting_complete += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._awaiting_complete -= 1
