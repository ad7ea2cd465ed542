"""The interface of a rate limiter. Source: KIP-731."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import isfinite
from typing import Any

Clock = Callable[[], float]
"""Returns seconds, from any monotonic clock."""


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
