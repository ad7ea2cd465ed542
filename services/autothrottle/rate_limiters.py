"""Rate limiters for tasks that move records, as KIP-731 describes them. Pure: the caller passes the clock and waits.

The client package and the services may use it. The types to know are `RateLimiter`, the interface for limiters of your
own, and `RateLimiters`, all limiters of one task. `TokenBucket` is the arithmetic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import isfinite
from typing import Any, ClassVar, NamedTuple

Clock = Callable[[], float]
"""Returns seconds, from any monotonic clock."""

BURST_SECONDS = 1.0
"""A task that was slower than its limit may make up for this much time."""

NO_PAUSE = timedelta(0)

_DEFAULT = ("RecordRateLimiter", "RecordBatchRateLimiter")

_WINDOW_SECONDS = 30
"""Span of the metrics."""


class RecordBatch:
    """The records of one poll or one send. A failed one counts as a batch without records."""

    __slots__ = ("_size", "_size_of", "records")

    def __init__(
        self, records: Collection[Any] = (), size_bytes: int | None = None, size_of: Callable[[Any], int] = len
    ) -> None:
        """Describe a batch.

        Args:
            records: of any type.
            size_bytes: of all records; None: the sum of `size_of`, computed if a limiter asks for it.
            size_of: returns the bytes of one record.
        """
        self.records, self._size, self._size_of = records, size_bytes, size_of

    @property
    def size_bytes(self) -> int:
        """Bytes of all records."""
        if self._size is None:
            self._size = sum(map(self._size_of, self.records))
        return self._size


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of a limiter's configuration."""

    name: str
    documentation: str
    """Meaning, unit and default, as one phrase."""
    parse: Callable[[str, object], Any]
    """Returns the value for (name, given value). Raises ValueError with the value, the range and the fix."""
    default: Any = None

    def value(self, configs: Mapping[str, object]) -> Any:
        """Return the parsed value, or the default if the key is absent or None."""
        given = configs.get(self.name)
        return self.default if given is None else self.parse(self.name, given)


def rate(name: str, given: object) -> float:
    """Parse a rate per second, as a number or its text.

    >>> rate("record.rate.limit", "0.5")
    0.5

    Raises:
        ValueError: it is not a finite number above 0.
    """
    try:
        number = float(given) if isinstance(given, (int, float, str)) and not isinstance(given, bool) else 0.0
    except (ValueError, OverflowError):
        number = 0.0
    if not (isfinite(number) and number > 0):
        raise ValueError(
            f"{name} is {str(given)[:60]!r}; it must be a number above 0, per second. Fix: give for example 1000, or "
            "leave it out for no limit"
        )
    return number


class RateLimiter(ABC):
    """Limits one rate of one task. Its life: `configure`, `start`, batches, `close`. One thread at a time calls it.

    Before each batch, the task pauses for the `throttle_time` of all its limiters. After each batch, also a failed one,
    it calls `accumulate`.
    """

    @classmethod
    @abstractmethod
    def config(cls) -> tuple[ConfigKey, ...]:
        """Return the keys that `configure` reads."""

    @abstractmethod
    def configure(self, configs: Mapping[str, object]) -> None:
        """Read the configuration: key -> value. It may contain keys of other limiters.

        Raises:
            ValueError: a value is out of range; the message names the key, the value, the range and the fix.
        """

    @abstractmethod
    def start(self, clock: Clock) -> None:
        """Start limiting, by this clock. Without it, nothing is limited."""

    @abstractmethod
    def accumulate(self, batch: RecordBatch) -> None:
        """Account for a batch that was moved, or whose move failed."""

    @abstractmethod
    def throttle_time(self) -> timedelta:
        """Return how long to pause now in order to reach the limit, >= 0. It is 0 below the limit."""

    def close(self) -> None:  # noqa: B027 (most limiters hold nothing)
        """Release what `start` opened. Idempotent."""


class TokenBucket:
    """A bucket of tokens that refills at the limit. It may be overdrawn, because amounts are known only afterwards.

    Invariant: a caller that waits as `wait` says before each amount never exceeds `limit * elapsed + last amount`. It
    reaches the limit if each amount takes at most its share of the time. It does not wait while the amounts of every
    span of time that ends now are within the limit. Not thread-safe.

    >>> bucket = TokenBucket(limit=100.0, now=0.0)
    >>> bucket.take(150.0, now=0.0)
    >>> bucket.wait(now=0.0), bucket.wait(now=1.0), bucket.wait(now=2.0)
    (1.5, 0.5, 0.0)
    """

    __slots__ = ("_at", "_limit", "_tokens")

    def __init__(self, limit: float, now: float) -> None:
        """Start with an empty bucket, so that the first second is limited too.

        Args:
            limit: tokens per second, > 0.
            now: seconds, from any monotonic clock.
        """
        self._limit, self._at, self._tokens = limit, now, 0.0

    def take(self, amount: float, now: float) -> None:
        """Take tokens for an amount >= 0 that was moved since the last call. The time of the move counts in full."""
        self._tokens += (now - self._at) * self._limit - amount
        self._at = now

    def wait(self, now: float) -> float:
        """Return the seconds until the debt is refilled, >= 0. The bucket keeps at most one burst of tokens."""
        self.take(0.0, now)
        if self._tokens < 0:
            return -self._tokens / self._limit
        self._tokens = min(self._tokens, BURST_SECONDS * self._limit)
        return 0.0

    def change_limit(self, limit: float, now: float) -> None:
        """Use another limit from now on. The current wait does not grow, and saved tokens are dropped.

        >>> bucket = TokenBucket(limit=100.0, now=0.0)
        >>> bucket.take(150.0, now=0.0)
        >>> bucket.change_limit(10.0, now=0.0)
        >>> bucket.wait(now=0.0)
        1.5
        >>> bucket.change_limit(30.0, now=0.0)
        >>> bucket.wait(now=0.0)
        0.5
        """
        self.take(0.0, now)
        self._tokens = min(0.0, max(self._tokens, self._tokens * limit / self._limit))
        self._limit = limit


class AmountRateLimiter(RateLimiter):
    """Base of limiters of one amount per second. Without a limit, it does nothing."""

    key: ClassVar[ConfigKey]
    """The key of the limit."""

    def __init__(self) -> None:
        self._limit: float | None = None
        self._clock: Clock | None = None
        self._bucket: TokenBucket | None = None

    @abstractmethod
    def amount(self, batch: RecordBatch) -> float:
        """Return the limited amount of a batch, >= 0."""

    @classmethod
    def config(cls) -> tuple[ConfigKey, ...]:
        return (cls.key,)

    @property
    def limit(self) -> float | None:
        """The limit per second; None: no limit."""
        return self._limit

    def configure(self, configs: Mapping[str, object]) -> None:
        self.change_limit(self.key.value(configs))

    def start(self, clock: Clock) -> None:
        self._clock = clock
        self.change_limit(self._limit)

    def change_limit(self, limit: float | None) -> None:
        """Use another limit per second from now on; None: no limit. The current pause does not grow."""
        self._limit = limit
        if self._clock is None or limit is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(limit, self._clock())
        else:
            self._bucket.change_limit(limit, self._clock())

    def accumulate(self, batch: RecordBatch) -> None:
        if self._bucket is not None and self._clock is not None:
            self._bucket.take(self.amount(batch), self._clock())

    def throttle_time(self) -> timedelta:
        if self._bucket is None or self._clock is None:
            return NO_PAUSE
        seconds = self._bucket.wait(self._clock())
        return timedelta(0, seconds) if seconds else NO_PAUSE


class RecordRateLimiter(AmountRateLimiter):
    """Limits records per second."""

    key = ConfigKey("record.rate.limit", "Records per second of the task, above 0. Default: no limit", rate)

    def amount(self, batch: RecordBatch) -> float:
        return len(batch.records)


class RecordBatchRateLimiter(AmountRateLimiter):
    """Limits batches per second, including failed ones: the rate of polls and sends."""

    key = ConfigKey("record.batch.rate.limit", "Batches per second of the task, above 0. Default: no limit", rate)

    def amount(self, batch: RecordBatch) -> float:
        return 1.0


class ByteRateLimiter(AmountRateLimiter):
    """Limits bytes per second."""

    key = ConfigKey("byte.rate.limit", "Bytes per second of the task, above 0. Default: no limit", rate)

    def amount(self, batch: RecordBatch) -> float:
        return batch.size_bytes


BUILT_IN: Mapping[str, type[RateLimiter]] = {
    kind.__name__: kind for kind in (RecordRateLimiter, RecordBatchRateLimiter, ByteRateLimiter)
}
"""Name in `rate.limiters` -> class."""


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
