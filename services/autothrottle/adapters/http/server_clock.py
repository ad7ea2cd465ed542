"""The clock of a server, whose samples have times on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime

_MAX_OFFSET_SECONDS = 2.0
"""Difference between the clocks that is not corrected: the Date header has whole seconds."""
_MAX_CORRECTED_SECONDS = 3600.0
"""Largest difference that is corrected. A larger one is an error of a clock or a proxy, not the time of samples."""


class ServerClock:
    """A server's clock, which the Date headers of its responses show. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Assume our own clock, which returns seconds since the epoch, until the first response."""
        self._clock = clock
        self._lock = threading.Lock()
        self._noted = 0.0
        self._refused = 0.0
        self.offset = 0.0
        """The server's clock minus ours, seconds; 0: at most 2 s."""

    def now(self) -> float:
        """Return the time on the server's clock, seconds since the epoch."""
        return self._clock() + self.offset

    def note(self, headers: Mapping[str, str]) -> None:
        """Remember the time of a response; one without a valid Date header changes nothing.

        A time that differs by more than an hour is only reported, see `warnings`.
        """
        try:
            sent = parsedate_to_datetime(headers["date"]).timestamp()
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        offset = sent - self._clock()
        with self._lock:
            if abs(offset) <= _MAX_CORRECTED_SECONDS:
                self._noted, self._refused = offset, 0.0
            else:
                self._refused = offset

    def corrected(self) -> bool:
        """Correct the offset by the last response; return whether it has changed."""
        with self._lock:
            changed = abs(self._noted - self.offset) > _MAX_OFFSET_SECONDS
            if changed:
                self.offset = self._noted if abs(self._noted) > _MAX_OFFSET_SECONDS else 0.0
            return changed

    def warnings(self, server: str) -> tuple[str, ...]:
        """Return warnings that name the server if its clock differs from ours."""
        with self._lock:
            refused, offset = self._refused, self.offset
        warnings = []
        if refused:
            warnings.append(
                f"the Date header of {server} differs by {refused:+.0f} s from the clock of this host. It is ignored, "
                f"because it differs by more than {_MAX_CORRECTED_SECONDS:.0f} s. Fix: correct the clock of the server "
                "or of this host, or the proxy between them"
            )
        if offset:
            warnings.append(
                f"the clock of {server} differs by {offset:+.0f} s from the clock of this host. Its samples are used, "
                "with this difference. Fix: synchronise both clocks"
            )
        return tuple(warnings)
