"""Paces a task that moves records, such as a backfill or a mirror job. The type to know is `Pacer`."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib.metadata import entry_points

from autothrottle.rate_limiters import BUILT_IN, RateLimiter, RateLimiters, RecordBatch, configured_limiters
from autothrottle_client.errors import Invalid

RATE_LIMITER_GROUP = "autothrottle.rate_limiters"
"""Group of the entry points that add limiters. The entry point's name is the limiter's name in `rate.limiters`."""

_LONGEST_WAIT = timedelta(seconds=0.25)
"""A pause is reconsidered after this time, because a limit may have changed."""


class Pacer:
    """All rate limiters of one task. Thread-safe.

        with Pacer({"record.rate.limit": 1_000}) as pacer:
            while True:
                pacer.pause()
                records = source.poll()
                pacer.accumulate(RecordBatch(records))

    A task that repeats failed batches calls `accumulate(RecordBatch())` for each of them, so that they are paced too.
    """

    def __init__(self, configs: Mapping[str, object] | None = None, limiters: Sequence[RateLimiter] = ()) -> None:
        """Configure and start the limiters.

        Args:
            configs: key -> value, as docs/rate-limiters.md lists them; values are numbers, texts or None.
            limiters: more limiters, configured and not started.

        Raises:
            Invalid: a key or a limiter is unknown, or a value is out of range. No limiter was started.
        """
        try:
            configured = configured_limiters(configs or {}, find_rate_limiter)
        except ValueError as error:
            raise Invalid(str(error)) from None
        self._limiters = RateLimiters((*configured, *limiters), time.monotonic)
        self._lock, self._closed = threading.Lock(), threading.Event()

    def pause(self) -> None:
        """Wait until every limiter allows the next batch, or the pacer is closed. Call it before each batch."""
        while (remaining := self.throttle_time()) and not self._closed.is_set():
            begin = time.monotonic()
            self._closed.wait(min(remaining, _LONGEST_WAIT).total_seconds())
            with self._lock:
                self._limiters.note_pause(time.monotonic() - begin)

    def accumulate(self, batch: RecordBatch) -> None:
        """Account for a batch. Call it after each batch, also after a failed one."""
        with self._lock:
            self._limiters.accumulate(batch)

    def throttle_time(self) -> timedelta:
        """Return the pause that is needed now: the longest of all limiters, never the sum."""
        with self._lock:
            return self._limiters.throttle_time()

    def metrics(self) -> Mapping[str, float]:
        """Return `record-rate-avg`, `record-rate-max` (records per second) and `throttled-ratio` (in [0, 1]).

        They cover the last 30 s.
        """
        with self._lock:
            return self._limiters.metrics()

    def close(self) -> None:
        """End a pause in progress and close all limiters. Idempotent."""
        self._closed.set()
        self._limiters.close()

    def __enter__(self) -> Pacer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def find_rate_limiter(name: str) -> type[RateLimiter]:
    """Return the class of a limiter that is built in or installed.

    Raises:
        KeyError: no limiter has this name.
        Invalid: its entry point cannot be loaded, or is not a RateLimiter.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    entry_point = entry_points(group=RATE_LIMITER_GROUP)[name]
    try:
        kind = entry_point.load()
    except (ImportError, AttributeError) as error:
        raise Invalid(
            f"rate limiter {name} cannot be loaded from {entry_point.value} ({error}); install it again"
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, RateLimiter)):
        raise Invalid(
            f"rate limiter {name} is {entry_point.value}, which is not a subclass of RateLimiter; derive it from it"
        )
    return kind
