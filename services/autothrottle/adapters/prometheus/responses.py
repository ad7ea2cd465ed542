"""Parses responses of Prometheus's HTTP API.

Source: prometheus.io/docs/prometheus/latest/querying/api.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from urllib3 import BaseHTTPResponse

from autothrottle.adapters.http.client import MAX_BODY_BYTES, Failure, parse_json, read_body
from autothrottle.core.errors import FIELD_ERRORS
from autothrottle.core.texts import encodable
from autothrottle.core.traffic.counters import Series

_MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The response to one query."""

    series: Sequence[tuple[Mapping[str, str], Sequence[tuple[float, float]], bool]]
    """Labels, samples (seconds since the epoch, value), and whether they are samples of a range vector."""
    warnings: tuple[str, ...] = ()
    """Of the server, for example that a part of its stores did not answer."""
    failure: str = ""
    """Why an optional query has no series; "": it did not fail."""

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


def read_query(response: BaseHTTPResponse, limit: int = MAX_BODY_BYTES) -> QueryResult:
    """Read the response to a query, at most `limit` bytes; raises Failure if it is an error.

    A value, a time or a label that cannot be read concerns its own series alone: it becomes NaN.
    """
    body = read_body(response, limit)
    if response.status != 200:
        raise Failure(f"answers {response.status}{_reason(body)}", response.status)
    data = parse_json(body, limit)
    try:
        if data["status"] != "success":
            raise Failure(f"answers{_reason(body)}")
        result, kind = data["data"]["result"], data["data"]["resultType"]
        if kind not in ("matrix", "vector"):
            raise Failure(f"answers a {encodable(str(kind), 40)}; the query must return a vector")
        entries = [entry for entry in result if isinstance(entry, dict) and isinstance(entry.get("metric"), dict)]
        if result and not entries:
            raise TypeError("no series has labels")
        series = [(_labels(entry), _samples(entry, kind == "matrix"), kind == "matrix") for entry in entries]
        warnings = tuple(encodable(str(text), _MAX_REASON) for text in data.get("warnings") or ())
    except FIELD_ERRORS as error:
        raise Failure(f"answers in an unexpected format ({type(error).__name__})") from None
    return QueryResult(series, warnings)


def _labels(entry: Mapping[str, Any]) -> dict[str, str]:
    return {encodable(str(name), None): encodable(str(value), None) for name, value in entry["metric"].items()}


def _samples(entry: Mapping[str, Any], is_range: bool) -> list[tuple[float, float]]:
    try:
        return [
            (_number(stamp), _number(value)) for stamp, value in (entry["values"] if is_range else [entry["value"]])
        ]
    except FIELD_ERRORS:
        return [(math.nan, math.nan)]


def _number(value: Any) -> float:
    """Return a number or the number in a text; anything else is NaN, which no broker may have."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (OverflowError, TypeError, ValueError):
        return math.nan


def _reason(body: bytes) -> str:
    """Return the server's error message, which quotes the query where it is wrong."""
    try:
        return encodable(f": {parse_json(body)['error']}", _MAX_REASON)
    except FIELD_ERRORS:
        return ""
