"""Time left until a deadline, at least 1 ms: some libraries wait forever if the timeout is 0 s."""

from __future__ import annotations

import time
from datetime import timedelta

_LEAST_SECONDS = 0.001


def seconds_left(deadline: float) -> float:
    """Return the seconds until a deadline of `time.monotonic`, at least 0.001."""
    return max(_LEAST_SECONDS, deadline - time.monotonic())


def time_left(deadline: float) -> timedelta:
    """Return the time until a deadline of `time.monotonic`, at least 1 ms."""
    return timedelta(seconds=seconds_left(deadline))
