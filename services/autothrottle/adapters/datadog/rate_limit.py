"""Datadog's rate limits, which its responses report."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from autothrottle.adapters.http.client import Failure

TOO_MANY_REQUESTS = 429

MAX_PAUSE_SECONDS = 300.0
"""Longest pause that a header can cause: a wrong value must not end the reading of loads for hours."""


class RateLimit:
    """Datadog's rate limit of one endpoint, as its last response reported it. Thread-safe."""

    _PERIOD_SECONDS = 60.0
    """Pause after a refusal without a time."""

    def __init__(self) -> None:
        self._until = -math.inf
        self._name = ""

    def check(self) -> None:
        """Raise Failure while the limit is used up."""
        seconds = self._until - time.monotonic()
        if seconds > 0:
            name = self._name.encode("unicode_escape").decode()  # a header may contain terminal escapes
            raise Failure(f"allows no request for {math.ceil(seconds)} s (rate limit {name})", TOO_MANY_REQUESTS)

    def note(self, status: int, headers: Mapping[str, str]) -> None:
        """Remember how long the limit is used up after a response."""
        fields = {name.lower(): value for name, value in headers.items()}
        if status != TOO_MANY_REQUESTS and _seconds(fields, "x-ratelimit-remaining") != 0:
            return
        times = (_seconds(fields, name) for name in ("x-ratelimit-reset", "retry-after", "x-ratelimit-period"))
        self._name = fields.get("x-ratelimit-name", "of the endpoint")[:50]
        pause = next((t for t in times if t is not None), self._PERIOD_SECONDS)
        self._until = time.monotonic() + min(pause, MAX_PAUSE_SECONDS)


def _seconds(fields: Mapping[str, str], name: str) -> float | None:
    """Return the seconds in a header; None: it is absent, or not a plain number of at most 5 digits."""
    text = fields.get(name, "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
