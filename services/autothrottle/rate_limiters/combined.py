"""All limiters of one task: their configuration, their combined pause and the task's metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from autothrottle.rate_limiters.interface import Clock, ConfigKey, RateLimiter, RecordBatch
from autothrottle.rate_limiters.limiters import NO_PAUSE, ByteRateLimiter, RecordBatchRateLimiter, RecordRateLimiter

BUILT_IN: Mapping[str, type[RateLimiter]] = {
    kind.__name__: kind for kind in (RecordRateLimiter, RecordBatchRateLimiter, ByteRateLimiter)
}
"""Name in `rate.limiters` -> class."""

_DEFAULT = ("RecordRateLimiter", "RecordBatchRateLimiter")

_WINDOW_SECONDS = 30
"""Span of the metrics."""


def _names(name: str, given: object) -> tuple[str, ...]:
    entries = given.split(",") if isinstance(given, str) else given
    if not isinstance(entries, Sequence) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f"{name} is {str(given)[:60]!r}; it must be a list of names. Fix: {','.join(_DEFAULT)}")
    names = tuple(entry.strip() for entry in entries if entry.strip())
    if len(set(names)) < len(names):
        raise ValueError(f"{name} names a limiter twice: {', '.join(names)[:200]}. Fix: name each limiter once")
    return names


RATE_LIMITERS = ConfigKey(
    "rate.limiters", f"Names of the enabled limiters. Default: {', '.join(_DEFAULT)}", _names, _DEFAULT
)
"""The key that lists the limiters."""


def configured_limiters(
    configs: Mapping[str, object], find: Callable[[str], type[RateLimiter]] = BUILT_IN.__getitem__
) -> tuple[RateLimiter, ...]:
    """Return the limiters that a configuration enables, configured and not started.

    Args:
        configs: key -> value: `rate.limiters` and the keys of these limiters.
        find: returns the class of a limiter. It raises KeyError if no limiter has this name.

    Raises:
        ValueError: a limiter or a key is unknown, or a value is out of range.
    """
    kinds = [_limiter_type(name, find) for name in RATE_LIMITERS.value(configs)]
    key_names = {key.name for kind in kinds for key in kind.config()} | {RATE_LIMITERS.name}
    for name in configs:
        if name not in key_names:
            raise ValueError(
                f"{name[:60]!r} is not a key of the enabled limiters; they have {', '.join(sorted(key_names))}. "
                f"Fix: remove it, or add its limiter to {RATE_LIMITERS.name}"
            )
    limiters = tuple(kind() for kind in kinds)
    for limiter in limiters:
        limiter.configure(configs)
    return limiters


def _limiter_type(name: str, find: Callable[[str], type[RateLimiter]]) -> type[RateLimiter]:
    try:
        return find(name)
    except KeyError:
        raise ValueError(
            f"{RATE_LIMITERS.name} names {name[:60]!r}, which is not installed; built in are {', '.join(BUILT_IN)}. "
            "Fix: correct the name, or install the package that has it"
        ) from None


class _Second(NamedTuple):
    """What one second of the task's time contained."""

    number: int
    records: int
    paused: float


class RateLimiters:
    """The limiters of one task. They pause for the longest single pause, never for the sum. Not thread-safe."""

    def __init__(self, limiters: Sequence[RateLimiter], clock: Clock) -> None:
        """Start the limiters. If one of them fails, those that have started are closed."""
        self._limiters, self._clock, self._start = tuple(limiters), clock, clock()
        self._seconds: deque[_Second] = deque(maxlen=_WINDOW_SECONDS)
        self._second, self._records, self._paused = 0, 0, 0.0
        try:
            for limiter in self._limiters:
                limiter.start(clock)
        except BaseException:
            self.close()
            raise

    def accumulate(self, batch: RecordBatch) -> None:
        """Account for a batch, also a failed one."""
        for limiter in self._limiters:
            limiter.accumulate(batch)
        self._advance()
        self._records += len(batch.records)

    def throttle_time(self) -> timedelta:
        """Return the longest pause that a limiter needs now; 0 without limiters."""
        longest = NO_PAUSE
        for limiter in self._limiters:
            if (pause := limiter.throttle_time()) > longest:
                longest = pause
        return longest

    def note_pause(self, seconds: float) -> None:
        """Count a pause that has just ended, for the metrics."""
        self._advance()
        self._paused += seconds

    def metrics(self) -> Mapping[str, float]:
        """Return KIP-731's metrics of the last 30 s.

        `record-rate-avg`: records per second. `record-rate-max`: most records in one second. `throttled-ratio`: share
        of the time spent in pauses, in [0, 1].
        """
        self._advance()
        recent = [second for second in self._seconds if second.number > self._second - _WINDOW_SECONDS]
        recent.append(_Second(self._second, self._records, self._paused))
        first = max(0, self._second - _WINDOW_SECONDS + 1)
        elapsed = max(1.0, self._clock() - self._start - first)
        return {
            "record-rate-avg": sum(second.records for second in recent) / elapsed,
            "record-rate-max": float(max(second.records for second in recent)),
            "throttled-ratio": min(1.0, sum(second.paused for second in recent) / elapsed),
        }

    def close(self) -> None:
        """Close all limiters. Idempotent."""
        for limiter in self._limiters:
            limiter.close()

    def _advance(self) -> None:
        second = int(self._clock() - self._start)
        if second != self._second:
            self._seconds.append(_Second(self._second, self._records, self._paused))
            self._second, self._records, self._paused = second, 0, 0.0
