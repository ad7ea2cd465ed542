"""The metrics of `topicmappr forecast`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from autothrottle.core.capacity.results import LimitForecast
from autothrottle.core.errors import Unavailable


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
            kind, name = ("pool", each.pool) if each.broker_id is None else ("broker", str(each.broker_id))
            gauges[kind].labels(cluster, name, each.resource).set(seconds)
    try:
        write_to_textfile(path, registry)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}. Fix: give a writable --prom-file") from None
