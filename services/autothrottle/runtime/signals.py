"""How a process is asked to stop: SIGTERM or SIGINT ask, a second one insists.

Python runs a signal's function between two steps of the main thread, so one that takes a lock which the main
thread holds (`Event.set` while the main thread is in `Event.wait`) waits for ever. Here the interpreter
writes the signal's number into a pipe, and a thread of its own reads it; no lock is touched in between.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals() -> threading.Event:
    """Return an event that is set by the first SIGTERM or SIGINT; the second ends the process at once.

    The exit status is then 143 or 130, as a shell has it. Call it once, from the main thread.
    """
    stop = threading.Event()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for signum in STOP_SIGNALS:
        signal.signal(signum, _noted)
    threading.Thread(target=_obey, args=(reading, stop), name="signals", daemon=True).start()
    return stop


def _noted(_signum: int, _frame: FrameType | None) -> None:
    """Do nothing: the pipe has the signal already, and this only replaces the default of dying."""


def _obey(reading: int, stop: threading.Event) -> None:
    while True:
        for signum in os.read(reading, 64):
            if signum not in STOP_SIGNALS:
                continue  # somebody else's signal: the pipe hears all that Python handles
            if stop.is_set():
                _exit_at_once(signum)
            stop.set()


def _exit_at_once(signum: int) -> None:
    name = signal.Signals(signum).name
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{name} again: exiting at once\n".encode())
    os._exit(128 + signum)
