"""When brokers and pools reach their limits, from samples of storage and produce rates.

The function to know is `limit_forecasts`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from math import inf, isfinite

from autothrottle.core.capacity.growth import exhaustion
from autothrottle.core.capacity.packing import pool_offers
from autothrottle.core.capacity.pools import PoolMembers, Pools
from autothrottle.core.capacity.results import LimitForecast
from autothrottle.core.capacity.sizing import Dimension
from autothrottle.core.errors import Invalid
from autothrottle.core.placement.partition_map import sizes_by_topic


@dataclass(frozen=True, slots=True)
class HistorySample:
    """Storage and produce rates at one time."""

    time: datetime
    """UTC."""
    sizes: Mapping[str, int]
    """Topic -> bytes of one replica of each of its partitions."""
    rates: Mapping[str, float]
    """Topic -> bytes/s that clients produce; empty: not measured."""
    storage_free: Mapping[int, int]
    """Broker id -> free bytes."""
    storage_total: Mapping[int, int]
    """Broker id -> bytes of its log directories; absent: unknown."""


@dataclass(frozen=True, slots=True)
class PoolsInUse:
    """The pools of a cluster, with what their loads depend on."""

    pools: Pools
    members: PoolMembers
    replication: Mapping[str, int]
    """Topic -> its replication factor; absent: 1."""


@dataclass(slots=True)
class _DailyPeaks:
    """The largest value of each day."""

    peaks: dict[date, float] = field(default_factory=dict)

    def add(self, day: date, value: float) -> None:
        self.peaks[day] = max(self.peaks.get(day, value), value)

    def forecast(self, broker_id: int | None, pool: str, dimension: Dimension, limit: float) -> LimitForecast:
        last = max(self.peaks)
        days = (last - min(self.peaks)).days + 1
        series = [self.peaks.get(last - timedelta(days=back)) for back in range(days - 1, -1, -1)]
        result = LimitForecast(broker_id, pool, dimension.key, self.peaks[last] / limit if limit else inf)
        try:
            end = exhaustion(series, limit)
        except Invalid as error:
            return replace(result, problem=str(error))
        reached, earliest, latest = (_day(last, days) for days in (end.days, end.earliest, end.latest))
        midnight = datetime.combine(last, datetime.min.time(), UTC)
        limit_time = midnight + timedelta(days=end.days) if isfinite(end.days) else None
        return replace(result, limit_reached=reached, earliest=earliest, latest=latest, limit_time=limit_time)


def _day(last: date, days: float) -> str:
    """Return the day that is some days after the last peak; "": not within a year."""
    return (last + timedelta(days=round(days))).isoformat() if isfinite(days) else ""


def limit_forecasts(
    samples: Iterable[HistorySample], storage_share: float, pools: PoolsInUse | None = None
) -> Iterator[LimitForecast]:
    """Return when each broker and each pool reaches its limits.

    It reads each sample once. A broker without a known total, and a dimension of a pool without an offer or a load,
    have no forecast.

    Args:
        samples: the oldest first.
        storage_share: share of a broker's storage that may be used, in (0, 1].
        pools: None: only brokers have forecasts.
    """
    used: dict[int, _DailyPeaks] = defaultdict(_DailyPeaks)
    loads: dict[tuple[str, Dimension], _DailyPeaks] = defaultdict(_DailyPeaks)
    # A broker that is down in the last sample keeps its storage in its pool, and has no forecast of its own.
    totals: dict[int, int] = {}
    last_totals: Mapping[int, int] = {}
    for sample in samples:
        day, last_totals = sample.time.astimezone(UTC).date(), sample.storage_total
        totals |= last_totals
        for id, free in sample.storage_free.items():
            used[id].add(day, -float(free))
        for key, load in _pool_loads(sample, pools) if pools else ():
            loads[key].add(day, load)
    for id, total in sorted(last_totals.items()):
        if id in used:
            peaks = {day: total + free for day, free in used[id].peaks.items()}
            yield _DailyPeaks(peaks).forecast(id, "", Dimension.STORAGE, storage_share * total)
    for offer in pool_offers(pools.pools, pools.members, totals) if pools else ():
        for dimension, limit in offer.amounts.items():
            if (offer.name, dimension) in loads:
                yield loads[offer.name, dimension].forecast(None, offer.name, dimension, limit)


def _pool_loads(sample: HistorySample, pools: PoolsInUse) -> Iterator[tuple[tuple[str, Dimension], float]]:
    factors = pools.replication
    # A history of Datadog has its names of topics.
    stored_topics = chain.from_iterable(pools.members.topics.values())
    rows, _ = sizes_by_topic(stored_topics, {(topic, 0): size for topic, size in sample.sizes.items()})
    sizes = {topic: size for (topic, _), size in rows.items()}
    for pool in pools.pools.pools:
        topics: Sequence[str] = pools.members.topics[pool.name]
        stored = sum(sizes.get(topic, 0) * factors.get(topic, 1) for topic in topics)
        yield (pool.name, Dimension.STORAGE), float(stored)
        if sample.rates:
            rates = [(sample.rates.get(topic, 0.0), factors.get(topic, 1)) for topic in topics]
            yield (pool.name, Dimension.NETWORK_IN), sum(rate * factor for rate, factor in rates)
            yield (pool.name, Dimension.NETWORK_OUT), sum(rate * (factor - 1 + pool.fan_out) for rate, factor in rates)
