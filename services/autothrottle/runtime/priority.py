"""Who waits where services share a host and it is busy: those that answer operators, not those that decide."""

from __future__ import annotations

import os
import time
from pathlib import Path

NICENESS = 15
"""Beside one of the usual priority it gets a 30th of a CPU, and all of one that nobody else wants."""

_AUTOGROUP = Path("/proc/self/autogroup")
_TRIES, _PAUSE_SECONDS = 5, 0.15
"""Linux takes one change of a group in a tenth of a second, of the whole host."""


def give_way(niceness: int = NICENESS) -> None:
    """Let this process wait for others of the host: a cycle does not wait for 50 operators who call at once.

    Where Linux groups processes by session (`kernel.sched_autogroup_enabled`) a niceness counts only within one: the
    group of a session that is this process's own is made as nice. In a container or a unit of systemd with a CPU weight
    that weight counts.

    Args:
        niceness: 1 to 19.
    """
    os.nice(niceness)
    if os.getsid(0) != os.getpid():
        return  # others that are to go first may be in the session
    for _ in range(_TRIES):
        try:
            _AUTOGROUP.write_text(str(niceness))
        except BlockingIOError:
            time.sleep(_PAUSE_SECONDS)
        except OSError:
            return  # there are no such groups
        else:
            return
