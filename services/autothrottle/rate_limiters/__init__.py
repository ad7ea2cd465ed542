"""Rate limiters for tasks that move records, as KIP-731 describes them. Pure: the caller passes the clock and waits.

The client package and the services may use it. The types to know are `RateLimiter`, the interface for limiters of your
own, and `RateLimiters`, all limiters of one task. `TokenBucket` is the arithmetic.
"""

from autothrottle.rate_limiters.combined import BUILT_IN, RATE_LIMITERS, RateLimiters, configured_limiters
from autothrottle.rate_limiters.interface import Clock, ConfigKey, RateLimiter, RecordBatch, rate
from autothrottle.rate_limiters.limiters import (
    AmountRateLimiter,
    ByteRateLimiter,
    RecordBatchRateLimiter,
    RecordRateLimiter,
)
from autothrottle.rate_limiters.token_bucket import TokenBucket

__all__ = [
    "BUILT_IN",
    "RATE_LIMITERS",
    "AmountRateLimiter",
    "ByteRateLimiter",
    "Clock",
    "ConfigKey",
    "RateLimiter",
    "RateLimiters",
    "RecordBatch",
    "RecordBatchRateLimiter",
    "RecordRateLimiter",
    "TokenBucket",
    "configured_limiters",
    "rate",
]
