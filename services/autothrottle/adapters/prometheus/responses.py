"""Parses responses of Prometheus's HTTP API.

Source: prometheus.io/docs/prometheus/latest/querying/api.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from urllib3 import BaseHTTPResponse

from autothrottle.adapters.http.bounded_calls import Failure
from autothrottle.core.traffic.counters import Series

_MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The response to one query."""

    series: Sequence[tuple[Mapping[str, str], Sequence[tuple[float, float]], bool]]
    """Labels, samples (seconds since the epoch, value), and whether they are samples of a range vector."""
    warnings: tuple[str, ...] = ()
    """Of the server, for example that a part of its stores did not answer."""

    def as_series(self, mean_seconds: float | None, window_seconds: float, offset: float) -> list[Series]:
        """Return the series, with times on our clock.

        Args:
            mean_seconds: None: samples of a range vector are counters. Otherwise they are rates, see `Series`.
            window_seconds: the values of an instant vector are the rates of so many seconds.
            offset: the server's clock minus ours, seconds.
        """
        return [
            Series(
                labels,
                [(stamp - offset, value) for stamp, value in samples],
                mean_seconds if is_range else window_seconds,
            )
            for labels, samples, is_range in self.series
        ]


def read_query(response: BaseHTTPResponse) -> QueryResult:
    """Read the response to a query; raises Failure if it is an error."""
    body = response.data
    if response.status != 200:
        raise Failure(f"answers {response.status}{_reason(body)}", response.status)
    data = json.loads(body)
    try:
        if data["status"] != "success":
            raise Failure(f"answers{_reason(body)}")
        result, is_range = data["data"]["result"], data["data"]["resultType"] == "matrix"
        if data["data"]["resultType"] not in ("matrix", "vector"):
            raise Failure(f"answers a {data['data']['resultType']}; the query must return a vector")
        series = [(_labels(one), _samples(one, is_range), is_range) for one in result]
        warnings = tuple(str(text)[:_MAX_REASON] for text in data.get("warnings") or ())
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise Failure(f"answers in an unexpected format ({type(error).__name__})") from None
    return QueryResult(series, warnings)


def _labels(one: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in one["metric"].items()}


def _samples(one: Mapping[str, Any], is_range: bool) -> list[tuple[float, float]]:
    return [(float(stamp), float(value)) for stamp, value in (one["values"] if is_range else [one["value"]])]


def _reason(body: bytes) -> str:
    """Return the server's error message, which quotes the query where it is wrong."""
    try:
        return f": {json.loads(body)['error']}"[:_MAX_REASON]
    except (KeyError, TypeError, ValueError, RecursionError):
        return ""
