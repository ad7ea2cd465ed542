"""The arithmetic of a rate limit."""

from __future__ import annotations

BURST_SECONDS = 1.0
"""A task that was slower than its limit may make up for this much time."""


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
