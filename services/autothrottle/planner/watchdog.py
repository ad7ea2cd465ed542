"""Watches the thread of the planner's loop: a loop that does not turn must not keep its term.

The thread says which part of its work it enters. A part that computes may be blocked for 5 s. A call to another service
has its own time-out, and 2 s more. Time in which the thread uses the CPU does not count as blocked, since a cycle of a
million partitions computes for seconds, and longer on a busy machine. Its CPU time has a limit that grows with the
cluster. Time in which the whole process was stopped does not count. The type to know is `Watchdog`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

PATIENCE = timedelta(seconds=5)
"""Longest time in which a part is blocked, and the CPU time of a part in a small cluster."""

_CALL_SLACK = timedelta(seconds=2)
"""Time by which a call may exceed its time-out, on a busy machine."""

_PARTITIONS_PER_CPU_SECOND = 50_000
"""A part may use one second more for so many partitions. The whole pure cycle takes 5 s for a million."""

_PROGRESS_SECONDS = 0.05
"""A thread that uses so much CPU time within `PATIENCE` is not blocked: 1 % of a CPU."""

_POLL_SECONDS = 0.2

_LONGEST_STEP_SECONDS = 1.0
"""Longer gaps between two polls are stops of the process or of the machine, which do not count."""

_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What the thread does since it has entered this part."""

    name: str
    blocked_seconds: float
    """Limit of the time without CPU time."""
    cpu_seconds: float
    """Limit of the CPU time."""


@dataclass(slots=True)
class _Progress:
    """The progress of a part, as the watchdog sees it."""

    part: _Part | None
    cpu_at_start: float
    cpu: float
    """CPU time at the last progress."""
    at: float
    """Time of the last progress."""


class Watchdog:
    """Calls `on_stall` when the watched thread exceeds a limit, and `on_recovery` when it rests again afterwards.

    Both calls come from the watchdog's thread, one after the other.
    """

    def __init__(self, on_stall: Callable[[str], None], on_recovery: Callable[[], None]) -> None:
        """Watch nothing yet. `on_stall` receives the part, and for how long it was blocked or busy."""
        self._on_stall, self._on_recovery = on_stall, on_recovery
        self._part: _Part | None = None
        self._cpu_clock: int | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="planner-watchdog", daemon=True)
        self.stall = ""
        """Where the thread is stuck; "": it turns."""
        self.abandoned_fence = 0
        """Terms up to this one are given up although their cycle may still run; it must not write."""

    def start(self) -> None:
        """Watch the calling thread until `close`."""
        # Not on macOS; then every part counts as blocked.
        clock_of = getattr(time, "pthread_getcpuclockid", None)
        self._cpu_clock = clock_of(threading.get_ident()) if clock_of else None
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)

    def enter(self, part: str, partitions: int = 0) -> None:
        """Note that the thread begins a part that computes; `partitions`: the size of its input."""
        patience = PATIENCE.total_seconds()
        self._part = _Part(part, patience, patience + partitions / _PARTITIONS_PER_CPU_SECOND)

    def rest(self) -> None:
        """Note that the thread waits for work."""
        self._part = None

    @contextmanager
    def waiting(self, part: str, timeout: timedelta) -> Iterator[None]:
        """Note that the thread waits for a call with this time-out; its earlier part begins anew afterwards."""
        earlier, limit = self._part, (timeout + _CALL_SLACK).total_seconds()
        self._part = _Part(part, limit, limit)
        try:
            yield
        finally:
            if earlier is not None:
                self._part = _Part(earlier.name, earlier.blocked_seconds, earlier.cpu_seconds)
            else:
                self._part = None

    def _run(self) -> None:
        last, clock, progress = time.monotonic(), 0.0, _Progress(None, 0.0, 0.0, 0.0)
        while not self._closed.wait(_POLL_SECONDS):
            now = time.monotonic()
            clock, last = clock + min(now - last, _LONGEST_STEP_SECONDS), now
            part, cpu = self._part, self._cpu_time()
            if part is not progress.part:
                progress = _Progress(part, cpu, cpu, clock)
            elif cpu - progress.cpu >= _PROGRESS_SECONDS:
                progress.cpu, progress.at = cpu, clock
            if self.stall and part is None:
                self.stall = ""
                self._on_recovery()
            elif not self.stall and (stall := _stall(progress, cpu, clock)):
                self.stall = stall
                self._on_stall(stall)

    def _cpu_time(self) -> float:
        try:
            return 0.0 if self._cpu_clock is None else time.clock_gettime(self._cpu_clock)
        except OSError:  # the thread has ended
            return 0.0


def _stall(progress: _Progress, cpu: float, clock: float) -> str:
    """Return the part and the limit that it exceeds; "": none."""
    part = progress.part
    if part is None:
        return ""
    if clock - progress.at > part.blocked_seconds:
        return f"{part.name}, blocked for {part.blocked_seconds:g} s"
    if cpu - progress.cpu_at_start > part.cpu_seconds:
        return f"{part.name}, busy for {part.cpu_seconds:g} s of CPU time"
    return ""
