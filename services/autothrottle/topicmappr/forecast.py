"""`topicmappr forecast`: when brokers and pools reach their limits, from the history of metricsfetcher."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from math import inf, isfinite
from typing import Any

from autothrottle.core.capacity.growth import Exhaustion, exhaustion
from autothrottle.core.capacity.packing import DIMENSIONS, pool_offers
from autothrottle.core.capacity.pools import PoolMembers, Pools
from autothrottle.core.capacity.sizing import Dimension
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.texts import escape_unprintable
from autothrottle.ports.services import HistorySample, PlacementCluster
from autothrottle.topicmappr.report import table


@dataclass(frozen=True, slots=True)
class LimitForecast:
    """When a resource of a broker or pool reaches its limit."""

    kind: str
    """`broker` or `pool`."""
    name: str
    dimension: Dimension
    use: float
    """Last daily peak as a share of the limit."""
    last: date
    """The day of this peak."""
    exhaustion: Exhaustion | None
    problem: str = ""
    """Why there is no forecast."""


def broker_forecasts(samples: Sequence[HistorySample], limit: float) -> Iterator[LimitForecast]:
    """Return when each broker of the last sample has used a share of its storage; one without a total has none."""
    for id, total in sorted(samples[-1].storage_total.items()):
        peaks = [
            (sample.time, float(total - sample.storage_free[id])) for sample in samples if id in sample.storage_free
        ]
        yield _forecast("broker", str(id), Dimension.STORAGE, peaks, limit * total)


def pool_forecasts(
    samples: Sequence[HistorySample], pools: Pools, members: PoolMembers, cluster: PlacementCluster
) -> Iterator[LimitForecast]:
    """Return when each pool reaches each of its limits; a dimension without an offer or a load has no forecast."""
    factors = {entry.topic: len(entry.replicas) for entry in cluster.partitions}
    # A broker that is down in the last sample keeps its storage.
    totals = {id: total for sample in samples for id, total in sample.storage_total.items()}
    offers = pool_offers(pools, members, totals)
    for pool, offer in zip(pools.pools, offers, strict=True):
        loads: dict[Dimension, list[tuple[datetime, float]]] = {dimension: [] for dimension in DIMENSIONS}
        for sample in samples:
            topics = members.topics[pool.name]
            stored = sum(sample.sizes.get(topic, 0) * factors.get(topic, 1) for topic in topics)
            loads[Dimension.STORAGE].append((sample.time, float(stored)))
            if sample.rates:
                received = sum(sample.rates.get(topic, 0.0) * factors.get(topic, 1) for topic in topics)
                sent = sum(
                    sample.rates.get(topic, 0.0) * (factors.get(topic, 1) - 1 + pool.fan_out) for topic in topics
                )
                loads[Dimension.NETWORK_IN].append((sample.time, received))
                loads[Dimension.NETWORK_OUT].append((sample.time, sent))
        for dimension, limit in offer.amounts.items():
            if loads[dimension]:
                yield _forecast("pool", pool.name, dimension, loads[dimension], limit)


def _forecast(
    kind: str, name: str, dimension: Dimension, values: Iterable[tuple[datetime, float]], limit: float
) -> LimitForecast:
    peaks: dict[date, float] = {}
    for time, value in values:
        day = time.astimezone(UTC).date()
        peaks[day] = max(peaks.get(day, 0.0), value)
    last = max(peaks)
    days = (last - min(peaks)).days + 1
    series = [peaks.get(last - timedelta(days=back)) for back in range(days - 1, -1, -1)]
    use = peaks[last] / limit if limit else inf
    try:
        return LimitForecast(kind, name, dimension, use, last, exhaustion(series, limit))
    except Invalid as error:
        return LimitForecast(kind, name, dimension, use, last, None, str(error))


def forecast_report(forecasts: Sequence[LimitForecast]) -> str:
    """Return the forecasts as a table, the first to be exhausted first."""
    head = ("", "resource", "use of the limit", "limit reached", "80 % between")
    ordered = sorted(forecasts, key=lambda each: each.exhaustion.days if each.exhaustion else inf)
    rows = [
        (
            escape_unprintable(f"{each.kind} {each.name}"),
            each.dimension.value,
            f"{each.use:.1%}",
            _day(each, each.exhaustion.days) if each.exhaustion else each.problem,
            f"{_day(each, each.exhaustion.earliest)} and {_day(each, each.exhaustion.latest)}"
            if each.exhaustion and isfinite(each.exhaustion.days)
            else "-",
        )
        for each in ordered
    ]
    return "\n".join(table([head, *rows]))


def _day(forecast: LimitForecast, days: float) -> str:
    return (forecast.last + timedelta(days=round(days))).isoformat() if isfinite(days) else "not within a year"


def forecast_values(forecasts: Iterable[LimitForecast]) -> list[dict[str, Any]]:
    """Return the forecasts as a JSON value; an absent date: not within a year, or too few days are measured."""
    return [
        {
            each.kind: each.name,
            "resource": each.dimension.name.lower(),
            "use": each.use,
            "limit_reached": _date(each, "days"),
            "earliest": _date(each, "earliest"),
            "latest": _date(each, "latest"),
            "problem": each.problem,
        }
        for each in forecasts
    ]


def _date(forecast: LimitForecast, bound: str) -> str | None:
    days = getattr(forecast.exhaustion, bound, inf)
    return _day(forecast, days) if isfinite(days) else None


def write_metrics(path: str, cluster: str, forecasts: Iterable[LimitForecast], now: datetime) -> None:
    """Write the seconds until each limit for node_exporter's textfile collector; +Inf: not within a year.

    Raises:
        Unavailable: the file cannot be written.
    """
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    registry = CollectorRegistry()
    gauges = {
        kind: Gauge(
            f"autothrottle_{kind}_exhaustion_seconds",
            f"Time until a {kind} reaches the limit of a resource",
            ("cluster", kind, "resource"),
            registry=registry,
        )
        for kind in ("pool", "broker")
    }
    for each in forecasts:
        if each.exhaustion:
            midnight = datetime.combine(each.last, datetime.min.time(), UTC)
            seconds = each.exhaustion.days * 86_400 - (now - midnight).total_seconds()
            gauges[each.kind].labels(cluster, each.name, each.dimension.name.lower()).set(max(seconds, 0.0))
    try:
        write_to_textfile(path, registry)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}. Fix: give a writable --prom-file") from None
