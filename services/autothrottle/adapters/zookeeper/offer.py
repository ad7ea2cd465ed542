"""A snapshot that is offered while its owner has not read all of it, and who waits for the rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autothrottle.core.topology import Snapshot

_LOOK_SECONDS = 0.02
"""Between two looks whether what is offered is outdated."""


class Offer:
    """One thread offers and waits meanwhile, others take. Thread-safe."""

    def __init__(self, to_take_seconds: float = 0.5, to_return_seconds: float = 2.0) -> None:
        """Offer nothing yet.

        Args:
            to_take_seconds: how long the owner waits for somebody who takes what is offered, >= 0.
            to_return_seconds: how long for the same one to come for the whole, >= 0.
        """
        self._to_take, self._to_return = to_take_seconds, to_return_seconds
        self._changed = threading.Condition()
        self._snapshot: Snapshot | None = None
        self._is_taken = False
        self._waiting = 0

    def make(self, snapshot: Snapshot, is_outdated: Callable[[], bool] = lambda: False) -> None:
        """Offer a snapshot; return when it is no use to wait with the rest of the reading.

        That is when somebody waits for the whole; when nobody takes what is offered; when whoever took it does not come
        for the whole; or when it is outdated. Until then the rest would only be in the way of those who act on it.
        """
        with self._changed:
            self._snapshot, self._is_taken = snapshot, False
            self._changed.notify_all()
            deadline = time.monotonic() + self._to_take
            while not (self._is_taken or self._waiting or is_outdated()) and time.monotonic() < deadline:
                self._changed.wait(_LOOK_SECONDS)
            deadline = time.monotonic() + (self._to_return if self._is_taken else 0)
            while not (self._waiting or is_outdated()) and time.monotonic() < deadline:
                self._changed.wait(_LOOK_SECONDS)
            if is_outdated():
                self._snapshot = None

    def is_declined(self) -> bool:
        """Return whether somebody waits for the whole."""
        with self._changed:
            return self._waiting > 0

    def withdraw(self) -> None:
        """Offer nothing any more."""
        with self._changed:
            self._snapshot = None

    def stands(self) -> bool:
        """Return whether there is an offer."""
        with self._changed:
            return self._snapshot is not None

    def take(self, min_version: int) -> Snapshot | None:
        """Return what is offered, when it is of this version at least; else None."""
        with self._changed:
            if self._snapshot is None or self._snapshot.version < min_version:
                return None
            self._is_taken = True
            self._changed.notify_all()
            return self._snapshot

    def wait(self, seconds: float) -> None:
        """Return when there is an offer, or after so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._snapshot is not None, seconds)

    @contextmanager
    def declined(self) -> Iterator[None]:
        """Wait for the whole meanwhile."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1
