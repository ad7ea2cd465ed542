"""`topicmappr forecast`: when brokers and pools reach their limits, from the history of metricsfetcher."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from math import inf, isfinite

from autothrottle.core.capacity.forecasts import LimitForecast
from autothrottle.core.errors import Unavailable
from autothrottle.core.texts import escape_unprintable
from autothrottle.topicmappr.report import table


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
    day = forecast.day(days)
    return day.isoformat() if day else "not within a year"


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
        if (seconds := each.seconds(now)) is not None:
            gauges[each.kind].labels(cluster, each.name, each.dimension.key).set(seconds)
    try:
        write_to_textfile(path, registry)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}. Fix: give a writable --prom-file") from None
