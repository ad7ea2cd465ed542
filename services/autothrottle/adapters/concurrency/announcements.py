"""Log lines about servers that a process waits for."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from functools import partial
from threading import Timer

from autothrottle_client.waiting import say_later

log = logging.getLogger(__name__)

PATIENCE = timedelta(seconds=0.9)
"""How long a server may be silent. The programs start in 0.7 s, so an operator sees the line within 2 s."""

_lock = threading.Lock()
_announced: set[str] = set()
"""Servers that have been announced. The connections of a process share one line about their server."""


def announce_later(server: str) -> Timer:
    """Log soon that this process waits for a server, once in a process; cancel the timer when it has answered.

    A program without a log prints the line to standard error, as `logging` does with warnings.
    """
    return say_later(partial(_announce, server), PATIENCE)


def _announce(server: str) -> None:
    with _lock:
        is_new = server not in _announced
        _announced.add(server)
    if is_new:
        log.warning("Waiting for %s ...", server)
