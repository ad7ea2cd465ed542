"""A bulk job in a thread, for tests of its rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_WINDOW_SECONDS = 0.5
_STEP_SECONDS = 0.05


class PacedJob:
    """Moves batches until it ends; a context manager."""

    def __init__(self, move: Callable[[], int]) -> None:
        """Prepare the job.

        Args:
            move: pauses, moves one batch and returns its bytes.
        """
        self._move, self._ending = move, threading.Event()
        self._moved: list[tuple[float, int]] = []
        self._failures: list[Exception] = []
        self._thread = threading.Thread(target=self._run, name="paced job", daemon=True)

    def __enter__(self) -> PacedJob:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(timeout=30)
        assert self._failures == []

    def rate(self, begin: float, end: float) -> float:
        """Return the bytes per second between two moments of `time.monotonic()`."""
        return sum(size for at, size in list(self._moved) if begin <= at < end) / (end - begin)

    def seconds_until(self, since: float, holds: Callable[[float], bool], within_seconds: float = 20.0) -> float:
        """Wait until the rate of half a second holds; return the seconds from a moment to the start of this span."""
        begin = since
        while begin < since + within_seconds:
            time.sleep(max(0.0, begin + _WINDOW_SECONDS - time.monotonic()))
            if holds(self.rate(begin, begin + _WINDOW_SECONDS)):
                return begin - since
            begin += _STEP_SECONDS
        raise AssertionError(f"the rate did not change within {within_seconds:g} s")

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                size = self._move()
                self._moved.append((time.monotonic(), size))
        except Exception as error:
            self._failures.append(error)
