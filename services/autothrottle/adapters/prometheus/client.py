"""Sends concurrent instant queries to Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import cast
from urllib.parse import urlencode

from urllib3 import BaseHTTPResponse

from autothrottle.adapters.http.client import MAX_BODY_BYTES, Call, Failure, HttpClient
from autothrottle.adapters.prometheus.responses import QueryResult, read_query
from autothrottle.adapters.prometheus.settings import PrometheusSettings

_ADVICE = dict.fromkeys((401, 403), "; check prometheus-token-file or prometheus-user-file")


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
        super().__init__("prometheus-read", width, f"Prometheus at {settings.url}", _ADVICE, settings.ca_file)
        self._settings, self._note_headers, self._most_bytes = settings, note_headers, most_bytes

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
        headers = self._settings.headers()
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
