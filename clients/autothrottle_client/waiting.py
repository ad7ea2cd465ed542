"""A sign of life while a program waits for a server that does not answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from threading import Timer

PATIENCE = timedelta(seconds=1.4)
"""How long a service may be silent. throttlectl starts in 0.3 s, so an operator sees the line within 2 s."""

SLOW = timedelta(seconds=5)
"""How long a connected service may take for an answer: an estimate measures for 2 s."""


def say_later(say: Callable[[], None], patience: timedelta = PATIENCE) -> Timer:
    """Call `say` in its own thread after a time; cancel the timer when the server has answered."""
    timer = Timer(patience.total_seconds(), say)
    timer.daemon = True
    timer.start()
    return timer
