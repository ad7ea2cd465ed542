"""Prometheus as the source of loads."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

from autothrottle.adapters.credentials import CredentialFiles
from autothrottle.adapters.http.client import ServerClock
from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.prometheus.client import PrometheusClient, PrometheusSettings, QueryResult, counted
from autothrottle.core.cluster.configs import parse_broker_id
from autothrottle.core.errors import Invalid
from autothrottle.core.traffic.broker_matching import BrokerMatching, host_of
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.counters import Series
from autothrottle.core.traffic.exporters import QUOTA_SECONDS
from autothrottle.core.traffic.loads import Loads
from autothrottle.core.traffic.series_loads import SeriesReading

TX_QUERY, RX_QUERY = "prometheus-tx-query", "prometheus-rx-query"
BROKERS_QUERY, _DEVICES, _QUOTAS = "kafka_broker_info", "network devices", "quota rates"
_TARGETS = "targets"

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
            BROKERS_QUERY: BROKERS_QUERY,
            _DEVICES: settings.exporter.devices_query(settings.selector),
            _QUOTAS: settings.exporter.quota_rates_query(int(settings.window.total_seconds()), settings.selector),
        }
        self._queries = {name: query for name, query in queries.items() if query}
        self._client = PrometheusClient(settings, len(self._queries), self._server.note)

    @property
    def credentials(self) -> Sequence[CredentialFiles]:
        """The files that are read again when they change."""
        return self._client.credentials

    def close(self) -> None:
        """End all running calls and threads."""
        self._client.close()

    def fetch_loads(self, timeout: timedelta) -> Loads:
        deadline = time.monotonic() + timeout.total_seconds() * _TIME_FOR_CALLS
        registered, warnings = self._hosts.read(timeout / 4)
        try:
            results, now = self._fetch(deadline)
            if self._server.corrected():
                results, now = self._fetch(deadline)
            warnings += self._server.warnings(f"Prometheus at {self._settings.url}")
            return self._loads(results, now, registered, warnings, deadline)
        finally:
            self._client.drop_idle_connections()

    def _fetch(self, deadline: float) -> tuple[Mapping[str, QueryResult], float]:
        """Make all queries for one time; return their results, and the time on the server's clock."""
        now = self._server.now() - self._settings.delay.total_seconds()
        return self._client.query(self._queries, deadline, now, optional=(_QUOTAS,)), now

    def _other_targets(
        self, matching: BrokerMatching, series: Mapping[str, Sequence[Series]], now: float, deadline: float
    ) -> Sequence[str]:
        """Return names of targets if the exporter's filter by name hides brokers; (): it hides none."""
        settings = self._settings
        brokers = [{matching.broker_of(one.labels) for one in of_query} for of_query in series.values()]
        if all(found and found >= matching.registered.keys() for found in brokers):
            return ()
        query = settings.exporter.targets_query(int(settings.window.total_seconds()), settings.selector)
        if not query or (settings.tx_query and settings.rx_query):
            return ()
        result = self._client.query({_TARGETS: query}, deadline, now, optional=(_TARGETS,))[_TARGETS]
        return sorted(filter(None, (labels.get(settings.exporter.broker_filter) for labels, _, _ in result.series)))

    def _loads(
        self,
        results: Mapping[str, QueryResult],
        now: float,
        registered: Mapping[int, tuple[str, ...]],
        warnings: tuple[str, ...],
        deadline: float,
    ) -> Loads:
        settings, window, offset = self._settings, self._settings.window.total_seconds(), self._server.offset
        matching = BrokerMatching(
            settings.broker_map,
            settings.broker_label,
            reported_addresses(results[BROKERS_QUERY], registered),
            registered,
        )
        presets = {TX_QUERY: ("tx", settings.tx_query), RX_QUERY: ("rx", settings.rx_query)}
        names = {name: settings.exporter.names_of(way) for name, (way, own) in presets.items() if not own}
        own = partial(counted, kind=settings.series_kind)
        series = {
            name: results[name].as_series(
                settings.exporter.mean_seconds if name in names else own, window, offset, settings.series_kind
            )
            for name in presets
        }
        devices = results[_DEVICES].as_series(lambda labels: None, window, offset) if _DEVICES in results else []
        facts = [device for device in devices if device.labels.get("__name__") in settings.exporter.facts]
        speeds = [device for device in devices if device.labels.get("__name__") not in settings.exporter.facts]
        quotas = results[_QUOTAS].as_series(lambda labels: QUOTA_SECONDS, QUOTA_SECONDS, offset)
        targets = self._other_targets(matching, series, now, deadline)
        loads = SeriesReading(
            matching, self._limits, now - offset, series, speeds, facts, settings.exporter, names, quotas, targets
        ).loads()
        if failure := results[_QUOTAS].failure:
            warnings += (f"{failure}; the loads count without the throttled replication of the brokers' quotas",)
        return replace(loads, warnings=warnings + loads.warnings)


def reported_addresses(result: QueryResult, registered: Mapping[int, Collection[str]]) -> dict[str, int]:
    """Return address -> broker id from `kafka_broker_info{id,address}`.

    An address that is reported for two brokers is left out. An address whose host is registered for another broker is
    left out, too: the exporter of one broker must not claim the series of another one.
    """
    owners: dict[str, set[int]] = {}
    for broker_id, hosts in registered.items():
        for host in hosts:
            owners.setdefault(host_of(host), set()).add(broker_id)
    broker_ids: dict[str, set[int]] = {}
    for labels, _, _ in result.series:
        address = labels.get("address", "")
        try:
            broker_id = parse_broker_id(labels.get("id", ""))
        except Invalid:
            continue
        if address and broker_id in owners.get(host_of(address), {broker_id}):
            broker_ids.setdefault(address, set()).add(broker_id)
    return {address: min(ids) for address, ids in broker_ids.items() if len(ids) == 1}
