"""When a cycle runs: once per interval, and at once when something happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

SPACING = timedelta(seconds=1)
"""Between the starts of two cycles that events start."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why a cycle runs."""

    reason: str
    """What happened, or `interval`."""
    scheduled: bool
    """Whether it is the interval's own cycle: only these count failures and idle intervals."""


class Triggers:
    """Collects what asks for a cycle; one thread waits. Thread-safe, and `request` never blocks."""

    def __init__(self, interval: timedelta, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval.total_seconds()
        self._clock = clock
        self._condition = threading.Condition()
        self._reasons: dict[str, float] = {}
        self._next_scheduled = clock()
        self._last_event = clock() - SPACING.total_seconds()
        self._stopped = False

    def request(self, reason: str, after: timedelta = timedelta(0)) -> None:
        """Ask for a cycle, now or in a while; requests that come together share one cycle."""
        due = self._clock() + after.total_seconds()
        with self._condition:
            self._reasons[reason] = min(due, self._reasons.get(reason, due))
            self._condition.notify_all()

    def restart(self) -> None:
        """Let the next scheduled cycle be due at once, and forget what was asked before."""
        with self._condition:
            self._reasons.clear()
            self._next_scheduled = self._clock()
            self._condition.notify_all()

    def stop(self) -> None:
        """Let `wait` return None from now on."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def poll(self) -> Trigger | None:
        """Return what is due now, as `wait` would; None: nothing is."""
        with self._condition:
            return self._due(self._clock())

    def wait(self) -> Trigger | None:
        """Block until a cycle is due; None: stopped."""
        with self._condition:
            while not self._stopped:
                now = self._clock()
                if (trigger := self._due(now)) is not None:
                    return trigger
                self._condition.wait(max(0.0, self._next_due() - now))
        return None

    def _due(self, now: float) -> Trigger | None:
        due = [reason for reason, when in self._reasons.items() if when <= now]
        if self._next_scheduled <= now:
            self._forget(due)
            # From now, not from when it was due: after a long cycle no two run back to back.
            self._next_scheduled = now + self._interval
            return Trigger("; ".join(due) or "interval", scheduled=True)
        if due and self._last_event + SPACING.total_seconds() <= now:
            self._forget(due)
            self._last_event = now
            return Trigger("; ".join(due), scheduled=False)
        return None

    def _forget(self, reasons: list[str]) -> None:
        for reason in reasons:
            del self._reasons[reason]

    def _next_due(self) -> float:
        if not self._reasons:
            return self._next_scheduled
        event = max(min(self._reasons.values()), self._last_event + SPACING.total_seconds())
        return min(self._next_scheduled, event)
