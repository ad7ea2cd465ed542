"""The answer to one query: the series of each host, and what one of them says of its broker."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from autothrottle.adapters.datadog.points import newest_point
from autothrottle.core.errors import Invalid, Missing, Unavailable
from autothrottle.core.loads import Utilization


@dataclass(frozen=True, slots=True)
class Window:
    """The span of a query, seconds since the epoch."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _HostSeries:
    points: tuple[tuple[float, float | None], ...]
    interval: float | None


@dataclass(frozen=True, slots=True)
class Series:
    """The answer to one query."""

    query_name: str
    by_host: Mapping[str, Sequence[_HostSeries]]
    without_host: tuple[str, ...]
    """Scopes of series that name no host."""

    @classmethod
    def of(cls, query_name: str, answer: Any) -> Series:
        """Read an answer; raises TypeError, ValueError and the like when it has another form."""
        if answer.get("status", "ok") != "ok":
            raise Unavailable(f"Datadog ({query_name}) answers status {str(answer['status'])[:20]!r}")
        by_host: dict[str, list[_HostSeries]] = {}
        without_host = []
        for series in answer["series"] or ():
            scope = str(series.get("scope", ""))
            host = _host_of(scope)
            if host is None:
                without_host.append(scope)
            else:
                points = tuple((stamp / 1000, _number(value)) for stamp, value in series["pointlist"] or ())
                by_host.setdefault(host, []).append(_HostSeries(points, _number(series.get("interval"))))
        return cls(query_name, by_host, tuple(without_host))

    def utilization(self, broker_id: int, host: str, window: Window) -> Utilization:
        """Return what the host's one series says; raises Missing or Invalid when it says nothing usable."""
        who = f"broker {broker_id} (host {host})"
        found = self.by_host.get(host, ())
        if not found:
            raise Missing(f"{who} has no series in --{self.query_name}: check its Datadog agent and the query")
        if len(found) > 1:
            raise Invalid(f"{who} has {len(found)} series in --{self.query_name}: group it by {{host}} alone")
        point = newest_point(found[0].points, found[0].interval, window.start, window.end)
        if point is None:
            seconds = window.end - window.start
            raise Missing(
                f"{who} has no point but null in --{self.query_name} over the last {seconds} s: "
                "check its Datadog agent, or use a longer --metrics-window"
            )
        if not (0 <= point.value < 2**63):
            raise Invalid(f"{who} has {point.value} bytes/s in --{self.query_name}; a rate is >= 0: check the query")
        return Utilization(round(point.value), _utc(point.start), _utc(point.end))


def _host_of(scope: str) -> str | None:
    for tag in scope.split(","):
        name, _, value = tag.strip().partition(":")
        if name == "host" and value:
            return value.lower()
    return None


def _number(value: object) -> float | None:
    """Return a number as it is and what is none as NaN, so that only the broker concerned is refused."""
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else math.nan  # type: ignore[arg-type]


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
