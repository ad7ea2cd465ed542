"""Standard output that nobody reads any more, as behind `| head`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

EXIT_BROKEN_PIPE = 141
"""The exit status then, as a shell has it of a command that SIGPIPE ended."""


def discard_output() -> None:
    """Let what is still buffered go nowhere: it must not fail a second time when the interpreter ends."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
