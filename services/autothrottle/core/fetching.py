"""How much a follower asks for at once, and whether its throttle can hold under that.

Source: KIP-73 (question 5), KIP-74; the defaults are Kafka's, 0.10.1 to 4.x.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autothrottle.core.loads import BytesPerSecond

DEFAULT_RESPONSE_BYTES = 10_485_760
DEFAULT_WINDOW_SECONDS = 11
DEFAULT_MIN_IN_SYNC_REPLICAS = 1


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """What one broker is configured to."""

    response_max_bytes: int = DEFAULT_RESPONSE_BYTES
    """`replica.fetch.response.max.bytes`, > 0."""
    window_seconds: int = DEFAULT_WINDOW_SECONDS
    """`replication.quota.window.num` x `replication.quota.window.size.seconds`, > 0."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """One reading of the settings that bound how replicas are fetched."""

    brokers: Mapping[int, FetchSettings] = field(default_factory=dict)
    """Broker id -> its settings; absent: it did not tell them."""
    min_in_sync_replicas: Mapping[str, int] = field(default_factory=dict)
    """Topic -> its `min.insync.replicas`; absent: unknown."""

    def of(self, broker_id: int) -> FetchSettings:
        """Return the settings of a broker; Kafka's defaults where it did not tell them."""
        return self.brokers.get(broker_id, FetchSettings())

    def least_in_sync(self, topic: str) -> int:
        """Return how many in-sync replicas acks=all needs in a topic; Kafka's default where that is unknown."""
        return self.min_in_sync_replicas.get(topic, DEFAULT_MIN_IN_SYNC_REPLICAS)


def fill_seconds(response_max_bytes: int, leaders: int, leader_quota: BytesPerSecond, network: BytesPerSecond) -> float:
    """Return how long the first responses to a follower take, of which each leader sends one: seconds.

    `#brokers x replica.fetch.response.max.bytes / min(QuotaLeader x #brokers, NetworkSpeed)`: KIP-73 wants it below the
    window of the quota, or the quota is exceeded before it can act.

    Args:
        response_max_bytes: of one response, > 0.
        leaders: how many brokers send to the follower, > 0.
        leader_quota: what each of them may send, > 0.
        network: what the follower's link carries, > 0.

    KIP-73's example: 500 nodes on a GbE network with a quota of 1 MB/s each fill it with 10 MB responses for 50 s.

    >>> fill_seconds(10_000_000, leaders=500, leader_quota=1_000_000, network=100_000_000)
    50.0
    """
    return leaders * response_max_bytes / min(leader_quota * leaders, network)


def largest_response(leaders: int, leader_quota: BytesPerSecond, network: BytesPerSecond, window_seconds: float) -> int:
    """Return the largest `replica.fetch.response.max.bytes` under which the quota holds.

    KIP-73's examples: 5 nodes with a leader quota of 1 MB/s and a window of 10 s on GbE, and 500 of them.

    >>> largest_response(leaders=5, leader_quota=1_000_000, network=100_000_000, window_seconds=10)
    10000000
    >>> largest_response(leaders=500, leader_quota=1_000_000, network=100_000_000, window_seconds=10)
    2000000
    """
    return int(window_seconds * min(leader_quota * leaders, network) / leaders)
