"""What the process of the tests uses: a test compares it before and after."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path


def open_descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/dev/fd"))


def usage() -> tuple[int, int]:
    """Return the numbers of descriptors and threads, without those that earlier tests left to the garbage collector."""
    gc.collect()
    return open_descriptors(), threading.active_count()


def resident_bytes() -> int:
    """Return the bytes of this process in RAM, on Linux."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
