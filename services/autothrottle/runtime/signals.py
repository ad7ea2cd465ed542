"""Stopping a process: the first SIGTERM or SIGINT requests it, a second one forces it.

Python runs a signal handler between two steps of the main thread. A handler that needs a lock held by the main
thread (`Event.set` during `Event.wait`) deadlocks. Therefore the interpreter writes the signal's number into a pipe,
and a separate thread reads it without any lock.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType

from autothrottle.runtime.logs import log_last_line

log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals() -> threading.Event:
    """Return an event that the first SIGTERM or SIGINT sets; the second ends the process immediately.

    The exit status is then 143 or 130, as in a shell. Call it once, from the main thread.
    """
    stop = threading.Event()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for signum in STOP_SIGNALS:
        signal.signal(signum, _ignore)
    threading.Thread(target=_stop_or_exit, args=(reading, stop), name="signals", daemon=True).start()
    return stop


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    """Replace the default action of ending the process; the pipe delivers the signal."""


def _stop_or_exit(reading: int, stop: threading.Event) -> None:
    while True:
        for signum in os.read(reading, 64):
            if signum not in STOP_SIGNALS:
                continue  # another signal: the pipe receives every signal that Python handles
            if stop.is_set():
                _exit_at_once(signum)
            stop.set()


def _exit_at_once(signum: int) -> None:
    log_last_line(log, logging.WARNING, "%s again: exiting at once", signal.Signals(signum).name)
    os._exit(128 + signum)
