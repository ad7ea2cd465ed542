"""The results about pools and forecasts, as `topicmappr` computes them and the placement service sends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf

from autothrottle.core.placement.partition_map import MapChange, TopicPartitionKey


@dataclass(frozen=True, slots=True)
class PoolDifference:
    """What differs between a pool and the cluster."""

    name: str
    owner: str
    total_partitions: int
    changed_partitions: int
    copied_bytes: int
    """Bytes that brokers have to copy; partitions of unknown size count as 0."""
    lost_brokers: tuple[int, ...] = ()
    """Brokers that are not in the cluster, and whose replicas stay."""
    refusals: tuple[str, ...] = ()
    """Why the pool cannot be made as its file says."""
    messages: tuple[str, ...] = ()
    """Sentences about the brokers and the plan."""
    unsized_partitions: int = 0
    """Partitions to copy whose size is unknown, so that `copied_bytes` is a lower bound."""
    changes: tuple[MapChange, ...] | None = None
    """Each partition that changes; None: the placement service does not send them."""


@dataclass(frozen=True, slots=True)
class PoolsDifference:
    """What differs between a pools file and the cluster."""

    drift: bool
    pools: tuple[PoolDifference, ...]
    targets: Mapping[TopicPartitionKey, tuple[int, ...]] = field(default_factory=dict)
    """Partition that changes -> its new replicas; an argument of `AdminClient.submit_reassignment`."""
    topics_in_no_pool: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """How full a pool is; 1 is what its limits allow."""

    pool: str
    brokers: int
    topics: int
    storage: float | None = None
    """Now; None: unknown."""
    network_in: float | None = None
    """Now, like `network_out`; None: unknown, as from the placement service."""
    network_out: float | None = None
    peak_storage: float | None = None
    """On the last recorded day, like the other peaks; None: unknown."""
    peak_network_in: float | None = None
    peak_network_out: float | None = None
    limit: str = ""
    """The resource that is the fullest, now or at its peak; "": unknown."""


@dataclass(frozen=True, slots=True)
class PoolsStatus:
    """How full the pools are."""

    pools: tuple[PoolStatus, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LimitForecast:
    """When a resource of a broker or pool reaches its limit."""

    broker_id: int | None
    """None: it is about a pool."""
    pool: str
    resource: str
    use: float
    """Highest use on the last recorded day; 1 is the limit."""
    limit_reached: str = ""
    """YYYY-MM-DD, like `earliest` and `latest` (80 %); "": not within a year, or the forecast failed."""
    earliest: str = ""
    latest: str = ""
    problem: str = ""
    """Why the forecast failed; "": it did not."""
    limit_time: datetime | None = None
    """UTC; None: not within a year, or the forecast failed, or the placement service computed it."""

    def seconds(self, now: datetime) -> float | None:
        """Return the time until the limit is reached, >= 0; inf: not within a year, None: no forecast."""
        if self.problem:
            return None
        return inf if self.limit_time is None else max((self.limit_time - now).total_seconds(), 0.0)


@dataclass(frozen=True, slots=True)
class TimedForecasts:
    """When brokers and pools reach their limits."""

    compute_time: datetime
    """UTC."""
    forecasts: tuple[LimitForecast, ...]
