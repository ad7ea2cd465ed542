"""The priority of a process and its cyclic garbage collector.

On a busy shared host, services that answer operators yield to services that decide.

The collector runs rarely, because our objects hardly ever form reference cycles. A snapshot of 100,000 partitions
consists of about a million objects. By default, every 700 new objects start a collection, and some collections visit
all objects: a quarter to a half of the time of reading a snapshot. Reference counting still frees unused objects at
once.
"""

from __future__ import annotations

import gc
import os
import time
from contextlib import suppress
from pathlib import Path

NICENESS = 15
"""Beside a process of normal priority this niceness gets a 30th of a CPU; on an idle CPU it gets all of it."""

_AUTOGROUP = Path("/proc/self/autogroup")

_AT_START = os.getpriority(os.PRIO_PROCESS, 0)
"""Niceness of this process before `give_way`."""

_NEW_OBJECTS = 50_000
"""Net number of new objects (about 5 MB) that starts a collection of the youngest generation."""

_TRIES, _PAUSE_SECONDS = 5, 0.15
"""Linux accepts one change of an autogroup per tenth of a second on the whole host."""


def give_way(niceness: int = NICENESS) -> None:
    """Lower the priority of this process, so that a cycle does not wait for 50 concurrent operators.

    If Linux groups processes by session (`kernel.sched_autogroup_enabled`), niceness counts only within a group. If
    the session belongs to this process alone, its group gets the same niceness. In a container or a systemd unit with
    a CPU weight, that weight counts.

    Args:
        niceness: 1 to 19; a lower priority stays.
    """
    os.nice(max(0, niceness - os.getpriority(os.PRIO_PROCESS, 0)))
    if os.getsid(0) != os.getpid():
        return  # the session may contain processes that must keep their priority
    for _ in range(_TRIES):
        try:
            _AUTOGROUP.write_text(str(niceness))
        except BlockingIOError:
            time.sleep(_PAUSE_SECONDS)
        except OSError:
            return  # the kernel has no autogroups
        else:
            return


def take_back() -> None:
    """Undo `give_way` in all threads, so that a busy host does not delay the end of this process.

    An unprivileged process keeps its lower priority.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) == _AT_START:
        return
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):  # the thread has ended
                os.setpriority(os.PRIO_PROCESS, int(task.name), _AT_START)
        if os.getsid(0) == os.getpid():
            _AUTOGROUP.write_text(str(_AT_START))


def collect_rarely() -> None:
    """Tune the collector for large snapshots, and exempt all existing objects from collection.

    Call it once, after the imports and before the service starts.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 50, 100)
