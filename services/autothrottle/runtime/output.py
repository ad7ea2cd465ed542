"""Handling of a closed standard output, as in `| head`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

EXIT_BROKEN_PIPE = 141
"""Exit status for a closed output; shells report it for a command ended by SIGPIPE."""


def discard_output() -> None:
    """Discard buffered output, otherwise the interpreter fails a second time when it flushes at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
