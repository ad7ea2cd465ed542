"""Ends a process within 5 s of the request to stop, whichever dependency does not answer.

Parts close one after the other, and each may wait: for the current cycle, or for a call that it serves. All share one
deadline. Calls that are in progress after `CALLS` are cancelled, so that everything that waits for them fails and
closes at once. Sessions with the state store are dropped a little later: a planner whose cycle waits for another
service can still give up its leadership. The type to know is `Shutdown`.

The first SIGTERM, SIGINT or other signal that would end the process requests the stop, a second one forces it. SIGHUP
reads files again. Python runs a signal handler between two steps of
the main thread. A handler that needs a lock held by the main thread (`Event.set` during `Event.wait`) deadlocks.
Therefore the interpreter writes the signal's number into a pipe, and a separate thread reads it without any lock.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from datetime import timedelta
from types import FrameType
from typing import Any, Protocol, Self, TypeVar

from autothrottle.runtime.logs import FLUSH, flush_logs, log_last_line

log = logging.getLogger(__name__)

CALLS = timedelta(seconds=2)
"""Time from the request to stop until calls to other services, Kafka and Datadog are cancelled."""

SESSIONS = timedelta(seconds=2.5)
"""The same for sessions with the state store."""

_GRACE = timedelta(seconds=3)
"""Time from the request to stop until servers no longer wait for calls in progress."""

_LOGS = timedelta(seconds=4)
"""Time from the request to stop until the process no longer waits for the reader of its last log lines."""

_LIMIT = timedelta(seconds=4.5)
"""Time from the request to stop until the process ends without closing the rest. Only a defect takes so long."""

_EXIT_UNFINISHED = 1

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_ENDING = (
    "SIGQUIT",
    "SIGUSR1",
    "SIGUSR2",
    "SIGALRM",
    "SIGVTALRM",
    "SIGPROF",
    "SIGIO",
    "SIGPWR",
    "SIGSTKFLT",
    "SIGXCPU",
)
"""Further signals whose default action ends a process, as that of real-time signals does. Some systems lack some.

Those of faults in native code are left: after them, nothing can be closed in order.
"""


class _Closeable(Protocol):
    def close(self) -> None: ...


_Part = TypeVar("_Part", bound=_Closeable)


class Shutdown(ExitStack):
    """Closes the parts of a process in reverse order, within a deadline that begins with the request to stop."""

    def __init__(self, requested: threading.Event | None = None) -> None:
        """Prepare; `requested` is the request to stop. The end of the context requests it, too."""
        super().__init__()
        self.requested = requested or threading.Event()
        self.failed = False
        """Whether a failure is the reason to stop."""
        self._cancels: dict[timedelta, list[Callable[[], None]]] = {CALLS: [], SESSIONS: []}
        self._lock = threading.Lock()
        self._began = float("inf")
        self._ended = threading.Event()
        self._older_threads = frozenset(threading.enumerate())

    def fail(self) -> None:
        """Request the stop because of a failure."""
        self.failed = True
        self.requested.set()

    def closing(self, part: _Part) -> _Part:
        """Return a part, and close it at the end."""
        self.callback(part.close)
        return part

    def cancellable(self, client: _Part) -> _Part:
        """Return a client whose calls fail when it is closed: at the end, or when calls in progress are cancelled."""
        self.cancel_after(CALLS, client.close)
        return self.closing(client)

    def cancel_after(self, limit: timedelta, cancel: Callable[[], None]) -> None:
        """Call `cancel` in another thread if the process still closes its parts after `CALLS` or `SESSIONS`."""
        with self._lock:
            if (waiting := self._cancels.get(limit)) is not None:
                waiting.append(cancel)
                return
        cancel()  # the time has passed

    def grace(self) -> timedelta:
        """Return how long a closing server may wait for calls in progress."""
        return max(timedelta(0), self._time_left(_GRACE))

    def __enter__(self) -> Self:
        threading.Thread(target=self._enforce, name="shutdown", daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        """Close the parts, and wait for the threads that would keep the process running."""
        self.requested.set()
        try:
            return super().__exit__(*error)
        finally:
            for thread in _blocking_threads() - self._older_threads:
                thread.join()
            flush_logs(max(timedelta(0), min(FLUSH, self._time_left(_LOGS))))
            self._ended.set()

    def _time_left(self, limit: timedelta) -> timedelta:
        return limit - timedelta(seconds=max(0.0, time.monotonic() - self._began))

    def _enforce(self) -> None:
        self.requested.wait()
        self._began = time.monotonic()
        for limit, what in (
            (CALLS, "cancelling calls to other services, Kafka and Datadog"),
            (SESSIONS, "dropping the sessions with the state store, which expire there"),
        ):
            if self._ended.wait(self._time_left(limit).total_seconds()):
                return
            self._cancel(limit, what)
        if not self._ended.wait(self._time_left(_LIMIT).total_seconds()):
            log_last_line(
                log,
                logging.ERROR,
                "Not stopped after %g s: ending the process. Fix: report this line. Running: %s",
                _LIMIT.total_seconds(),
                places(_blocking_threads() - self._older_threads | {threading.main_thread()}),
            )
            os._exit(_EXIT_UNFINISHED)

    def _cancel(self, limit: timedelta, what: str) -> None:
        with self._lock:
            cancels = self._cancels.pop(limit)
        if cancels:
            log.warning("Not stopped after %g s: %s", limit.total_seconds(), what)
        for cancel in cancels:
            with suppress(RuntimeError):  # no further thread can start
                threading.Thread(target=cancel, name="shutdown-cancel", daemon=True).start()


def _blocking_threads() -> frozenset[threading.Thread]:
    """The threads that Python waits for before a process ends."""
    return frozenset(thread for thread in threading.enumerate() if not thread.daemon)


def places(threads: Iterable[threading.Thread]) -> str:
    """Where these threads are, for example `MainThread in autothrottle.planner.loop.stop`."""
    frames = sys._current_frames()
    return ", ".join(f"{thread.name} in {_place(frames.get(thread.ident or 0))}" for thread in threads)


def _place(frame: FrameType | None) -> str:
    """The innermost function of autothrottle in a stack."""
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("autothrottle"):
        frame = frame.f_back
    return f"{frame.f_globals['__name__']}.{frame.f_code.co_name}" if frame else "other code"


def stop_on_signals(read_again: Callable[[], None] = lambda: None) -> threading.Event:
    """Return an event that the first signal sets whose default action ends a process; the second ends it immediately.

    The exit status is then 128 plus the signal, as in a shell: 143 or 130. Signals that are ignored at the start stay
    ignored, such as SIGHUP under nohup, except for SIGTERM and SIGINT. Call it once, from the main thread.

    Args:
        read_again: reads files again at SIGHUP, in another thread.
    """
    stop = threading.Event()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for signum in (*STOP_SIGNALS, signal.SIGHUP, *_further_signals()):
        if signum in STOP_SIGNALS or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _ignore)
    arguments = (reading, stop, read_again)
    threading.Thread(target=_stop_or_exit, args=arguments, name="signals", daemon=True).start()
    return stop


def _further_signals() -> list[int]:
    numbers = {int(getattr(signal, name)) for name in _ENDING if hasattr(signal, name)}
    if hasattr(signal, "SIGRTMIN"):
        numbers |= {*range(signal.SIGRTMIN, signal.SIGRTMAX + 1)}
    return sorted(numbers)


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    """Replace the default action of ending the process; the pipe delivers the signal."""


def _stop_or_exit(reading: int, stop: threading.Event, read_again: Callable[[], None]) -> None:
    ending = {*STOP_SIGNALS, *_further_signals()}
    while True:
        for signum in os.read(reading, 64):
            if signum == signal.SIGHUP:
                read_again()
                log.info("SIGHUP: reading the files of credentials and pools again. Other options need a restart")
            if signum not in ending:
                continue  # another signal: the pipe receives every signal that Python handles
            if stop.is_set():
                _exit_at_once(signum)
            stop.set()
            if signum not in STOP_SIGNALS:
                log.warning("%s: stopping, as at SIGTERM", _name(signum))


def _exit_at_once(signum: int) -> None:
    log_last_line(log, logging.WARNING, "%s again: exiting at once", _name(signum))
    os._exit(128 + signum)


def _name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # most real-time signals have none
        return f"Signal {signum}"
