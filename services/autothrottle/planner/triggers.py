"""Decides when a cycle runs: once per interval, and immediately on events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from autothrottle.ports.telemetry import Origin

SPACING = timedelta(seconds=1)
"""Minimum time between the starts of two event cycles."""

URGENT_SPACING = timedelta(seconds=0.2)
"""`SPACING` while bytes move unthrottled: a controller starts a reassignment partition by partition."""

_MAX_ORIGINS = 32
"""Maximum number of links in the trace of a cycle."""

_MAX_REASON = 200
"""Longest reason, in characters."""

_MAX_REQUESTS = 8
"""Immediate requests to keep with their own reason. More of them share one."""

_MORE = "and more requests"


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why a cycle runs."""

    reason: str
    """What happened, or `interval`."""
    scheduled: bool
    """Whether this is the regular cycle of an interval. Only those count failures and idle intervals."""
    origins: tuple[Origin, ...] = ()
    """The newest traced calls that requested the cycle."""
    step: bool = False
    """Whether only the next ramp step is due, not a cycle."""


class _Request(NamedTuple):
    due: float
    urgent: bool
    origins: tuple[Origin, ...] = ()


class Triggers:
    """Collects requests for cycles; one thread waits for them. Thread-safe; `request` never blocks."""

    def __init__(self, interval: timedelta, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval.total_seconds()
        self._clock = clock
        self._condition = threading.Condition()
        self._requests: dict[str, _Request] = {}
        self._next_scheduled = clock()
        self._last_event = clock() - SPACING.total_seconds()
        self._step_due: float | None = None
        self._stopped = False

    def request(
        self,
        reason: str,
        after: timedelta = timedelta(0),
        urgent: bool = False,
        origin: Origin | None = None,
    ) -> None:
        """Request a cycle now or after a delay. Requests that are due together share one cycle.

        Any number of callers takes bounded memory: a reason is cut, and beyond a few reasons they share one. A delayed
        request is the planner's own and keeps its time.
        """
        due = self._clock() + after.total_seconds()
        origins = () if origin is None else (origin,)
        reason = reason if len(reason) <= _MAX_REASON else f"{reason[: _MAX_REASON - 3]}..."
        with self._condition:
            if not after and reason not in self._requests and len(self._requests) >= _MAX_REQUESTS:
                reason = _MORE
            known = self._requests.get(reason)
            if known is not None:
                due, urgent = min(due, known.due), urgent or known.urgent
                origins = (*known.origins, *origins)[-_MAX_ORIGINS:]
            self._requests[reason] = _Request(due, urgent, origins)
            self._condition.notify_all()

    def step_in(self, delay: timedelta | None) -> None:
        """Schedule the next ramp step, replacing any other; None: no step."""
        with self._condition:
            self._step_due = None if delay is None else self._clock() + delay.total_seconds()
            self._condition.notify_all()

    def restart(self) -> None:
        """Make a scheduled cycle due at once, and drop all earlier requests."""
        with self._condition:
            self._requests.clear()
            self._step_due = None
            self._next_scheduled = self._clock()
            self._condition.notify_all()

    def stop(self) -> None:
        """Make `wait` return None from now on."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def poll(self) -> Trigger | None:
        """Return the trigger that is due now, as `wait` does; None: nothing is due."""
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
        due = [reason for reason, request in self._requests.items() if request.due <= now]
        scheduled = self._next_scheduled <= now
        if scheduled:
            # From now, not from the due time: otherwise two cycles run back to back after a long one.
            self._next_scheduled = now + self._interval
        elif any(self._earliest(self._requests[reason]) <= now for reason in due):
            self._last_event = now
        elif self._step_due is not None and self._step_due <= now:
            self._step_due = None
            return Trigger("ramp step", scheduled=False, step=True)
        else:
            return None
        origins = [origin for reason in due for origin in self._requests.pop(reason).origins]
        return Trigger("; ".join(due) or "interval", scheduled, tuple(origins[-_MAX_ORIGINS:]))

    def _earliest(self, request: _Request) -> float:
        """The earliest time at which the requested cycle may run."""
        spacing = URGENT_SPACING if request.urgent else SPACING
        return max(request.due, self._last_event + spacing.total_seconds())

    def _next_due(self) -> float:
        steps = [] if self._step_due is None else [self._step_due]
        return min([self._next_scheduled, *steps, *map(self._earliest, self._requests.values())])
