"""When a cycle runs: once per interval, and at once when something happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from autothrottle.ports.tracing import Origin

SPACING = timedelta(seconds=1)
"""Between the starts of two cycles that events start."""

URGENT_SPACING = timedelta(seconds=0.2)
"""The same while bytes move unthrottled: a controller takes a reassignment up partition by partition."""

_MOST_ORIGINS = 32
"""Of one cycle, in its trace."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why a cycle runs."""

    reason: str
    """What happened, or `interval`."""
    scheduled: bool
    """Whether it is the interval's own cycle: only these count failures and idle intervals."""
    origins: tuple[Origin, ...] = ()
    """The traced calls that asked for it, the newest ones."""
    step: bool = False
    """Whether no cycle is due, but the next step of rates on their way up."""


class _Request(NamedTuple):
    due: float
    urgent: bool
    origins: tuple[Origin, ...] = ()


class Triggers:
    """Collects what asks for a cycle; one thread waits. Thread-safe, and `request` never blocks."""

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
        """Ask for a cycle, now or in a while; requests that come together share one cycle."""
        due = self._clock() + after.total_seconds()
        origins = () if origin is None else (origin,)
        with self._condition:
            known = self._requests.get(reason)
            if known is not None:
                due, urgent = min(due, known.due), urgent or known.urgent
                origins = (*known.origins, *origins)[-_MOST_ORIGINS:]
            self._requests[reason] = _Request(due, urgent, origins)
            self._condition.notify_all()

    def step_in(self, delay: timedelta | None) -> None:
        """Let the next step be due in a while, in place of any other; None: there is none."""
        with self._condition:
            self._step_due = None if delay is None else self._clock() + delay.total_seconds()
            self._condition.notify_all()

    def restart(self) -> None:
        """Let the next scheduled cycle be due at once, and forget what was asked before."""
        with self._condition:
            self._requests.clear()
            self._step_due = None
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
        due = [reason for reason, request in self._requests.items() if request.due <= now]
        scheduled = self._next_scheduled <= now
        if scheduled:
            # From now, not from when it was due: after a long cycle no two run back to back.
            self._next_scheduled = now + self._interval
        elif any(self._earliest(self._requests[reason]) <= now for reason in due):
            self._last_event = now
        elif self._step_due is not None and self._step_due <= now:
            self._step_due = None
            return Trigger("a step", scheduled=False, step=True)
        else:
            return None
        origins = [origin for reason in due for origin in self._requests.pop(reason).origins]
        return Trigger("; ".join(due) or "interval", scheduled, tuple(origins[-_MOST_ORIGINS:]))

    def _earliest(self, request: _Request) -> float:
        """When the cycle that is asked for may run."""
        spacing = URGENT_SPACING if request.urgent else SPACING
        return max(request.due, self._last_event + spacing.total_seconds())

    def _next_due(self) -> float:
        steps = [] if self._step_due is None else [self._step_due]
        return min([self._next_scheduled, *steps, *map(self._earliest, self._requests.values())])
