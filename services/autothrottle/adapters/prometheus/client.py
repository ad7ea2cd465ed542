"""Sends concurrent instant queries to Prometheus, and parses the responses.

Source: prometheus.io/docs/prometheus/latest/querying/api.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, cast
from urllib.parse import urlencode

from urllib3 import BaseHTTPResponse

from autothrottle.adapters.credentials import CredentialFiles
from autothrottle.adapters.http.client import MAX_BODY_BYTES, Call, Failure, HttpClient, parse_json, read_body
from autothrottle.adapters.http.login import CurrentLogin, HttpLogin
from autothrottle.core.errors import FIELD_ERRORS, Invalid
from autothrottle.core.texts import encodable
from autothrottle.core.traffic.broker_matching import BrokerLabel
from autothrottle.core.traffic.counters import Series, SeriesKind, SeriesName
from autothrottle.core.traffic.exporters import Exporter

_MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """The server's address and credentials, and the queries."""

    url: str
    """`http[s]://host[:port][/path]`."""
    exporter: Exporter
    tx_query: str = ""
    """PromQL for the bytes sent by each broker: a range vector of counters, or an instant vector of rates in bytes/s.
    "": the query of the exporter."""
    rx_query: str = ""
    """The same for the bytes received."""
    selector: str = ""
    """Further matchers of the exporter's queries, for example `job="kafka"`."""
    ca_file: str = ""
    """PEM file with the authorities of the server's certificate; "": those of the system."""
    token_file: str = ""
    """File with a bearer token, read again when it changes, since it may expire; "": none."""
    user_file: str = ""
    """File with `user:password` for basic authentication; "": none."""
    headers_file: str = ""
    """File with further headers, see `HttpLogin`; "": none."""
    series_kind: SeriesKind | None = None
    """Kind of the series of `tx_query` and `rx_query`; None: as their names say."""
    window: timedelta = timedelta(seconds=120)
    """Length of the interval that the rates cover: whole seconds, >= 1."""
    delay: timedelta = timedelta(0)
    """Age of the newest samples: queries are made for this long ago."""
    broker_label: BrokerLabel | None = None
    broker_map: Mapping[str, int] = field(default_factory=dict)
    """Value of a label, or the host in it, -> broker id."""

    def queries(self) -> tuple[str, str]:
        """Return the queries for sent and for received bytes."""
        seconds = int(self.window.total_seconds())
        return (
            self.tx_query or self.exporter.query("tx", seconds, self.selector),
            self.rx_query or self.exporter.query("rx", seconds, self.selector),
        )

    @property
    def login(self) -> HttpLogin:
        """The files of the credentials."""
        return HttpLogin("prometheus", self.token_file, self.user_file, self.headers_file)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The response to one query."""

    series: Sequence[tuple[Mapping[str, str], Sequence[tuple[float, float]], bool]]
    """Labels, samples (seconds since the epoch, value), and whether they are samples of a range vector."""
    warnings: tuple[str, ...] = ()
    """Of the server, for example that a part of its stores did not answer."""
    failure: str = ""
    """Why an optional query has no series; "": it did not fail."""

    def as_series(
        self,
        mean_seconds: Callable[[Mapping[str, str]], float | None],
        window_seconds: float,
        offset: float,
        kind: SeriesKind | None = None,
    ) -> list[Series]:
        """Return the series, with times on our clock.

        Args:
            mean_seconds: labels -> None if the samples of their range vector are counters. Otherwise they are rates,
                see `Series`.
            window_seconds: the values of an instant vector are the rates of so many seconds.
            offset: the server's clock minus ours, seconds.
            kind: of all series, as the operator says; None: unknown.
        """
        return [
            Series(
                labels,
                [(stamp - offset, value) for stamp, value in samples],
                mean_seconds(labels) if is_range else window_seconds,
                "" if is_range else _fault_of_instant(labels, kind),
            )
            for labels, samples, is_range in self.series
        ]


def counted(labels: Mapping[str, str], kind: SeriesKind | None) -> float | None:
    """Return of how many seconds the samples of an operator's own range vector are the mean; None: it is a counter."""
    try:
        return _name_of(labels).of_kind(kind).mean_seconds
    except Invalid:  # the name does not say it: range vectors of counters are asked for
        return None


def _fault_of_instant(labels: Mapping[str, str], kind: SeriesKind | None) -> str:
    """Return why the value of an instant vector is not a rate; "": it is one, as far as its name says."""
    name = _name_of(labels)
    try:
        is_counter = bool(name.metric) and name.of_kind(kind).mean_seconds is None
    except Invalid:
        return ""
    return f"has the value of a counter ({name.metric}). Fix: query a range vector, {name.metric}[2m]" * is_counter


def _name_of(labels: Mapping[str, str]) -> SeriesName:
    """Return the name of a series of an operator's own query; other labels than the attribute are those of targets."""
    return SeriesName(labels.get("__name__", ""), {name: labels[name] for name in ("attribute",) if name in labels})


class PrometheusClient(HttpClient):
    """A client of one server. `close` ends its threads."""

    def __init__(
        self,
        settings: PrometheusSettings,
        width: int,
        note_headers: Callable[[Mapping[str, str]], None] = lambda headers: None,
        most_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """Prepare; this sends nothing.

        Args:
            settings: address and credentials.
            width: number of concurrent queries.
            note_headers: called with the headers of every response, from other threads.
            most_bytes: limit of one response.
        """
        login = settings.login
        super().__init__("prometheus-read", width, f"Prometheus at {settings.url}", login.advice, settings.ca_file)
        self._settings, self._note_headers, self._most_bytes = settings, note_headers, most_bytes
        self._login = CurrentLogin(login)

    @property
    def credentials(self) -> Sequence[CredentialFiles]:
        """The files that are read again when they change."""
        return self._login.credentials(self)

    def query(
        self, queries: Mapping[str, str], deadline: float, at: float | None = None, optional: Collection[str] = ()
    ) -> Mapping[str, QueryResult]:
        """Return name -> result of all queries.

        Args:
            queries: name -> PromQL.
            deadline: monotonic clock, seconds.
            at: evaluation time on the server's clock, seconds since the epoch; None: now.
            optional: names of queries whose failure is a result without series.

        Raises:
            Unavailable: another query failed; the message names it.
        """
        headers = self._login.headers()
        calls = [self._call(name, query, at, headers, name in optional) for name, query in queries.items()]
        return {
            call.name: QueryResult((), failure=str(self.error(call, answer)))
            if isinstance(answer, Failure)
            else cast(QueryResult, answer)
            for call, answer in zip(calls, self.fetch(calls, deadline), strict=True)
        }

    def _call(self, name: str, query: str, at: float | None, headers: Mapping[str, str], is_optional: bool) -> Call:
        parameters = urlencode({"query": query, **({} if at is None else {"time": f"{at:.3f}"})})
        url = f"{self._settings.url}/api/v1/query?{parameters}"
        return Call(name, partial(self.send, url, headers), self._read, is_optional)

    def _read(self, response: BaseHTTPResponse) -> QueryResult:
        self._note_headers(response.headers)
        return read_query(response, self._most_bytes)


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
