"""The built-in limiters. Each limits one amount: records, batches or bytes per second."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar

from autothrottle.rate_limiters.interface import Clock, ConfigKey, RateLimiter, RecordBatch, rate
from autothrottle.rate_limiters.token_bucket import TokenBucket

NO_PAUSE = timedelta(0)


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
