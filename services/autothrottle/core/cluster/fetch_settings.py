"""How much data a follower fetches at once, and whether its throttle can hold.

Source: KIP-73 (question 5), KIP-74; the defaults are Kafka's, 0.10.1 to 4.x. Brokers read fetch sizes only when they
start (KIP-576, which would change that, is not adopted).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autothrottle.core.units import BytesPerSecond

DEFAULT_RESPONSE_BYTES = 10_485_760
DEFAULT_WINDOW_SECONDS = 11
DEFAULT_MIN_IN_SYNC_REPLICAS = 1

SMALLEST_RESPONSE_BYTES = 65_536
"""Smallest recommended response. A fetch is cut where its size ends, so it should hold several batches of records."""

_FITTING_SECONDS = 0.05
_LARGE_SECONDS = 2 * _FITTING_SECONDS
"""Sizes that fit remain accepted while the rate falls to half."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The fetch and quota settings of one broker."""

    response_max_bytes: int = DEFAULT_RESPONSE_BYTES
    """`replica.fetch.response.max.bytes`, bytes, > 0."""
    window_seconds: int = DEFAULT_WINDOW_SECONDS
    """`replication.quota.window.num` x `replication.quota.window.size.seconds`, seconds, > 0."""


KAFKA_DEFAULTS = FetchSettings()
"""The settings of a broker that did not report them."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The settings that limit how replicas are fetched, all read at one time."""

    brokers: Mapping[int, FetchSettings] = field(default_factory=dict)
    """Broker id -> its settings; absent: the broker did not report them; see `KAFKA_DEFAULTS`."""
    min_in_sync_replicas: Mapping[str, int] = field(default_factory=dict)
    """Topic -> its `min.insync.replicas`; absent: unknown; see `DEFAULT_MIN_IN_SYNC_REPLICAS`."""


def fill_seconds(response_max_bytes: int, leaders: int, leader_quota: BytesPerSecond, network: BytesPerSecond) -> float:
    """Return how long a follower's first fetch responses take, one from each leader, in seconds.

    `#brokers x replica.fetch.response.max.bytes / min(QuotaLeader x #brokers, NetworkSpeed)`. KIP-73 requires this to
    be shorter than the quota window; otherwise the first responses exceed the quota before it can act.

    Args:
        response_max_bytes: size of one response, > 0.
        leaders: number of brokers that send to the follower, > 0.
        leader_quota: leader throttle of each of them, bytes/s, > 0.
        network: capacity of the follower's link, bytes/s, > 0.

    KIP-73's example: 500 nodes with a quota of 1 MB/s each and 10 MB responses fill a GbE link for 50 s.

    >>> fill_seconds(10_000_000, leaders=500, leader_quota=1_000_000, network=100_000_000)
    50.0
    """
    return leaders * response_max_bytes / min(leader_quota * leaders, network)


def largest_response(leaders: int, leader_quota: BytesPerSecond, network: BytesPerSecond, window_seconds: float) -> int:
    """Return the largest `replica.fetch.response.max.bytes` with which the quota holds, bytes.

    KIP-73's examples: 5 and 500 nodes on GbE, with a leader quota of 1 MB/s and a window of 10 s.

    >>> largest_response(leaders=5, leader_quota=1_000_000, network=100_000_000, window_seconds=10)
    10000000
    >>> largest_response(leaders=500, leader_quota=1_000_000, network=100_000_000, window_seconds=10)
    2000000
    """
    return int(window_seconds * min(leader_quota * leaders, network) / leaders)


def fitting_response(leaders: int, rate: BytesPerSecond) -> int:
    """Return the recommended `replica.fetch.response.max.bytes`, bytes: a power of 2, at least 64 KiB.

    The largest one up to `rate * 0.05 s / #leaders`. A quota is on or off: while it is on, the responses of all leaders
    to one round of fetches arrive at the speed of the link, and clients wait for them.

    Source: measured behind shaped links, docs/benchmarks.md (fetch sizes).

    Args:
        leaders: number of brokers that send to the follower, > 0.
        rate: throttle of the follower, bytes/s, >= 0.

    >>> fitting_response(leaders=4, rate=6_000_000), fitting_response(leaders=4, rate=1_000_000_000)
    (65536, 8388608)
    """
    response_bytes = int(rate * _FITTING_SECONDS / leaders)
    return max(SMALLEST_RESPONSE_BYTES, 1 << max(response_bytes, 1).bit_length() - 1)


def is_large_response(response_max_bytes: int, leaders: int, rate: BytesPerSecond) -> bool:
    """Return whether one round of responses takes more than 0.1 s of a follower's throttle, and smaller ones may fit.

    >>> is_large_response(10_485_760, leaders=3, rate=9_000_000), is_large_response(10_485_760, 3, 400_000_000)
    (True, False)
    """
    return response_max_bytes > SMALLEST_RESPONSE_BYTES and response_max_bytes * leaders > rate * _LARGE_SECONDS
