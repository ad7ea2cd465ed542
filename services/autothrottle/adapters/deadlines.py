"""What is left until a deadline on the monotonic clock, never nothing: to some libraries 0 s means to wait for ever."""

from __future__ import annotations

import time
from datetime import timedelta

_LEAST_SECONDS = 0.001


def seconds_left(deadline: float) -> float:
    """Return the seconds until a deadline of `time.monotonic`, at least 1 ms."""
    return max(_LEAST_SECONDS, deadline - time.monotonic())


def time_left(deadline: float) -> timedelta:
    """Return the same as a duration."""
    return timedelta(seconds=seconds_left(deadline))
