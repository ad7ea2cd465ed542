"""Answers of the placement service about pools, capacity and forecasts, and their text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.core.texts import excerpt, first_lines
from autothrottle.core.units import copy_words
from autothrottle.v1 import placement_pb2
from autothrottle_client.model import from_message
from autothrottle_client.placement import partition_targets
from autothrottle_client.reassignments import Partition
from autothrottle_client.tables import rows_table
from autothrottle_client.texts import span

_SHOWN_TOPICS = 10
_SHOWN_REFUSALS = 3


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


@dataclass(frozen=True, slots=True)
class PoolsDifference:
    """What differs between the server's pools file and the cluster."""

    drift: bool
    pools: tuple[PoolDifference, ...]
    targets: Mapping[Partition, tuple[int, ...]] = field(default_factory=dict)
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
    peak_storage: float | None = None
    """On the last recorded day, like the other peaks; None: unknown."""
    peak_network_in: float | None = None
    peak_network_out: float | None = None
    limit: str = ""
    """The fullest resource; "": unknown."""


@dataclass(frozen=True, slots=True)
class PoolsStatus:
    """How full the pools are."""

    pools: tuple[PoolStatus, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CapacitySizing:
    """The brokers of one instance type that a workload needs."""

    name: str
    brokers: int
    counts: Mapping[str, int]
    """Resource -> the brokers that it alone needs."""
    limit: str
    """The resource that needs the most brokers."""
    recovery_seconds: float
    """0: no loss is planned for."""
    price_per_month: float


@dataclass(frozen=True, slots=True)
class CapacityChoice:
    """The cheapest choice if one input is larger."""

    input: str
    factor: float
    sizing: CapacitySizing


@dataclass(frozen=True, slots=True)
class CapacityAnswer:
    """How many brokers a workload needs."""

    instances: tuple[CapacitySizing, ...]
    cheapest: str
    """Name of the instance type that costs least."""
    larger: tuple[CapacityChoice, ...] = ()
    stored_bytes: float = 0.0
    notes: tuple[str, ...] = ()
    """Instance types that are absent, one sentence each."""


@dataclass(frozen=True, slots=True)
class ExhaustionForecast:
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


@dataclass(frozen=True, slots=True)
class ForecastAnswer:
    """When brokers and pools reach their limits."""

    compute_time: datetime
    forecasts: tuple[ExhaustionForecast, ...]


def difference_from_message(message: placement_pb2.PlanPoolsResponse) -> PoolsDifference:
    """Return what differs, with the targets of the changed partitions."""
    return from_message(PoolsDifference, message, targets=partition_targets(message.partitions))


def difference_text(difference: PoolsDifference) -> str:
    """Return a line for each pool, the sentences about it, and the topics in no pool."""
    lines = [line for pool in difference.pools for line in _pool_lines(pool)]
    if topics := difference.topics_in_no_pool:
        lines.append(f"in no pool: {excerpt(topics, _SHOWN_TOPICS)}")
    return "\n".join(lines)


def _pool_lines(pool: PoolDifference) -> Iterable[str]:
    state = "waits for lost brokers" if pool.lost_brokers else "as its file says"
    if pool.changed_partitions:
        state = f"{pool.changed_partitions} change, {copy_words(pool.copied_bytes, pool.unsized_partitions)}"
    if pool.refusals:
        state = "refused"
    yield f"{pool.name}: {pool.total_partitions} partitions: {state}"
    yield from (f"  {line}" for line in first_lines(pool.refusals, _SHOWN_REFUSALS, "reason"))
    yield from (f"  {message}" for message in pool.messages)


def status_text(status: PoolsStatus) -> str:
    """Return the use of the pools as a table."""
    return rows_table(
        {
            "POOL": pool.pool,
            "BROKERS": str(pool.brokers),
            "TOPICS": str(pool.topics),
            "STORAGE": _share(pool.storage),
            "PEAK STORAGE": _share(pool.peak_storage),
            "PEAK NETWORK IN": _share(pool.peak_network_in),
            "PEAK NETWORK OUT": _share(pool.peak_network_out),
            "LIMITED BY": pool.limit.replace("_", " ") or "-",
        }
        for pool in status.pools
    )


def _share(use: float | None) -> str:
    return "-" if use is None else f"{use:.1%}"


def capacity_text(answer: CapacityAnswer) -> str:
    """Return the brokers of each instance type as a table, and the cheapest choice."""
    rows = rows_table(
        {
            "INSTANCE TYPE": sizing.name,
            **{name.upper().replace("_", " "): str(count) for name, count in sorted(sizing.counts.items())},
            "BROKERS": str(sizing.brokers),
            "LIMIT": sizing.limit.replace("_", " "),
            "COPY TIME": span(sizing.recovery_seconds) if sizing.recovery_seconds else "-",
            "PER MONTH": f"{sizing.price_per_month:,.0f}",
        }
        for sizing in answer.instances
    )
    larger = rows_table(
        {
            "INPUT": choice.input,
            "FACTOR": f"x{choice.factor:g}",
            "CHEAPEST": f"{choice.sizing.brokers} x {choice.sizing.name}",
            "PER MONTH": f"{choice.sizing.price_per_month:,.0f}",
        }
        for choice in answer.larger
    )
    return f"{rows}\ncheapest: {answer.cheapest}\n{larger}".rstrip()


def forecast_text(answer: ForecastAnswer) -> str:
    """Return the forecasts as a table, the first to be exhausted first."""
    ordered = sorted(answer.forecasts, key=lambda forecast: (not forecast.limit_reached, forecast.limit_reached))
    return rows_table(
        {
            "OF": f"pool {forecast.pool}" if forecast.broker_id is None else f"broker {forecast.broker_id}",
            "RESOURCE": forecast.resource.replace("_", " "),
            "USE": f"{forecast.use:.1%}",
            "LIMIT REACHED": forecast.limit_reached or forecast.problem or "not within a year",
            "80 % BETWEEN": f"{forecast.earliest} and {forecast.latest or 'later'}" if forecast.earliest else "-",
        }
        for forecast in ordered
    )
