"""Prometheus as the source of loads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import cast
from urllib.parse import urlencode

import urllib3
from urllib3 import BaseHTTPResponse

from autothrottle.adapters.http.bounded_calls import Call, Exchanges, Failure, first_failure
from autothrottle.adapters.http.connections import cut_by_exchanges, drop_idle_connections, get
from autothrottle.adapters.http.server_clock import ServerClock
from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.prometheus.responses import QueryResult, read_query
from autothrottle.adapters.prometheus.settings import PrometheusSettings
from autothrottle.core.cluster.snapshot import parse_broker_id
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.traffic.broker_matching import BrokerMatching
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.loads import Loads
from autothrottle.core.traffic.series_loads import SeriesReading

TX_QUERY, RX_QUERY = "prometheus-tx-query", "prometheus-rx-query"
_BROKERS, _SPEEDS = "kafka_broker_info", "device speeds"

_TIME_FOR_CALLS = 0.95
"""Share of a timeout for the calls; the rest is for parsing the responses."""


class PrometheusMetrics:
    """Prometheus (a `LoadSource`). `close` ends its threads."""

    def __init__(
        self,
        settings: PrometheusSettings,
        capacity_limits: CapacityLimits,
        hosts: BrokerHosts,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._limits = capacity_limits
        self._hosts = hosts
        self._server = ServerClock(clock)
        tx_query, rx_query = settings.queries()
        queries = {
            TX_QUERY: tx_query,
            RX_QUERY: rx_query,
            _BROKERS: _BROKERS,
            _SPEEDS: settings.exporter.speed_query(settings.selector),
        }
        self._queries = {name: query for name, query in queries.items() if query}
        self._reads = Exchanges(len(self._queries), "prometheus-read")
        self._pools = cut_by_exchanges(
            urllib3.PoolManager(maxsize=len(self._queries), ca_certs=settings.ca_file or None)
        )

    def close(self) -> None:
        """End all running calls and threads."""
        self._reads.close()
        self._pools.clear()

    def fetch_loads(self, timeout: timedelta) -> Loads:
        deadline = time.monotonic() + timeout.total_seconds() * _TIME_FOR_CALLS
        registered, warnings = self._hosts.read(timeout / 4)
        try:
            results, now = self._fetch(deadline)
            if self._server.corrected():
                results, now = self._fetch(deadline)
        finally:
            drop_idle_connections(self._pools)
        warnings += self._server.warnings(f"Prometheus at {self._settings.url}")
        return self._loads(results, now, registered, warnings)

    def _fetch(self, deadline: float) -> tuple[Mapping[str, QueryResult], float]:
        """Make all queries for one time; return their results, and the time on the server's clock."""
        now = self._server.now() - self._settings.delay.total_seconds()
        headers = self._settings.headers()
        calls = [self._call(name, query, now, headers) for name, query in self._queries.items()]
        answers = self._reads.run(calls, deadline, stop_at_failure=True)
        if failed := first_failure(calls, answers):
            raise self._error(*failed)
        return {call.name: cast(QueryResult, answer) for call, answer in zip(calls, answers, strict=True)}, now

    def _call(self, name: str, query: str, now: float, headers: Mapping[str, str]) -> Call:
        url, parameters = f"{self._settings.url}/api/v1/query", urlencode({"query": query, "time": f"{now:.3f}"})
        return Call(name, partial(get, self._pools, f"{url}?{parameters}", headers), self._read)

    def _read(self, response: BaseHTTPResponse) -> QueryResult:
        self._server.note(response.headers)
        return read_query(response)

    def _error(self, call: Call, failure: Failure) -> Unavailable:
        reason = failure.reason
        if failure.status in (401, 403):
            reason += "; check prometheus-token-file or prometheus-user-file"
        return Unavailable(f"Prometheus at {self._settings.url} ({call.name}) {reason}")

    def _loads(
        self,
        results: Mapping[str, QueryResult],
        now: float,
        registered: Mapping[int, tuple[str, ...]],
        warnings: tuple[str, ...],
    ) -> Loads:
        settings, window, offset = self._settings, self._settings.window.total_seconds(), self._server.offset
        matching = BrokerMatching(settings.broker_map, settings.broker_label, _addresses(results[_BROKERS]), registered)
        means = {TX_QUERY: settings.tx_query, RX_QUERY: settings.rx_query}
        series = {
            name: results[name].as_series(None if own else settings.exporter.mean_seconds, window, offset)
            for name, own in means.items()
        }
        speeds = results[_SPEEDS].as_series(None, window, offset) if _SPEEDS in results else ()
        loads = SeriesReading(matching, self._limits, now - offset, series, speeds).loads()
        return Loads(loads.brokers, loads.problems, warnings + loads.warnings)


def _addresses(result: QueryResult) -> dict[str, int]:
    """Return address -> broker id from `kafka_broker_info{id,address}`."""
    found: dict[str, int] = {}
    for labels, _, _ in result.series:
        try:
            found[labels.get("address", "")] = parse_broker_id(labels.get("id", ""))
        except Invalid:
            continue
    found.pop("", None)
    return found
