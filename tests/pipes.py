"""A full pipe that nothing reads, as of a stalled log collector."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def full_pipe(size: int = 4_096) -> Iterator[tuple[int, int]]:
    """Yield the reading and the writing end of a full pipe of this size in bytes. It has one long line."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, size)
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 512)
    os.set_blocking(writing, True)
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)
