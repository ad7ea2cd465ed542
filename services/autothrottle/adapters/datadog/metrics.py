"""Datadog as the source of loads and the sink of events."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from datadog_api_client.v1.api.events_api import EventsApi
from datadog_api_client.v1.api.metrics_api import MetricsApi
from datadog_api_client.v1.api.tags_api import TagsApi
from datadog_api_client.v1.model.event_create_request import EventCreateRequest

from autothrottle.adapters.datadog.bounded_calls import Call, Exchanges, Failure
from autothrottle.adapters.datadog.client import CONCURRENT_POSTS, CONCURRENT_READS, DatadogApiClient
from autothrottle.adapters.datadog.failures import raise_failure, without_keys
from autothrottle.adapters.datadog.load_reading import LoadReading
from autothrottle.adapters.datadog.series import MetricSeries, MetricWindow
from autothrottle.adapters.datadog.settings import DatadogSettings
from autothrottle.adapters.datadog.tags import TagCache, tags_by_host
from autothrottle.core.errors import Unavailable
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.loads import Loads
from autothrottle.ports.telemetry import Event

EVENT_TITLE_PREFIX = "[kafka-autothrottle] "
EVENT_TAGS = ("name:kafka-autothrottle", "name:autothrottle")
MAX_EVENT_TEXT = 4_000
"""Datadog's limit on the text of an event, in characters."""

_TIME_FOR_CALLS = 0.95
"""Share of a timeout for the calls; the rest is for parsing the responses."""


class DatadogMetrics:
    """Datadog (a `LoadSource` and an `EventSink`). `close` ends its threads."""

    def __init__(
        self,
        settings: DatadogSettings,
        capacity_limits: CapacityLimits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._limits = capacity_limits
        self._clock = clock
        self._client = DatadogApiClient(settings)
        self._reads = Exchanges(CONCURRENT_READS, "datadog-read")
        self._posts = Exchanges(CONCURRENT_POSTS, "datadog-post")
        self._tags = TagCache(settings)

    def close(self) -> None:
        """End all running calls and threads."""
        self._reads.close()
        self._posts.close()
        self._client.close()

    def fetch_loads(self, timeout: timedelta) -> Loads:
        deadline = _deadline(timeout)
        end = int(self._clock()) - self._settings.delay_seconds
        window = MetricWindow(end - self._settings.window_seconds, end)
        try:
            outbound, inbound = self._fetch_series(window, deadline)
            hosts = {*outbound.by_host, *inbound.by_host}
            unreadable = self._fetch_missing_tags(hosts, deadline)
        finally:
            self._client.drop_idle_connections()
        tags = {host: self._tags.of(host) for host in hosts}
        return LoadReading(self._settings, self._limits, window, outbound, inbound, tags, unreadable).loads()

    def post_event(self, event: Event, timeout: timedelta) -> None:
        tags = list(dict.fromkeys([*EVENT_TAGS, *self._settings.event_tags, *event.tags]))
        text = event.text if len(event.text) <= MAX_EVENT_TEXT else event.text[: MAX_EVENT_TEXT - 4] + " ..."
        body = EventCreateRequest(title=EVENT_TITLE_PREFIX + event.title, text=text, tags=tags)
        call = Call("event", lambda: EventsApi(self._client).create_event(body=body))
        try:
            answers = self._posts.run([call], _deadline(timeout), stop_at_failure=True)
        finally:
            self._client.drop_idle_connections()
        raise_failure(self._settings, [call], answers)

    def _fetch_series(self, window: MetricWindow, deadline: float) -> tuple[MetricSeries, MetricSeries]:
        """Fetch both queries and, if due, the tags of all hosts, concurrently."""
        queries = {"net-tx-query": self._settings.net_tx_query, "net-rx-query": self._settings.net_rx_query}
        calls = [self._query(name, query, window) for name, query in queries.items()]
        if self._tags.is_due():
            calls.append(Call("host tags", lambda: TagsApi(self._client).list_host_tags()))
        answers = self._reads.run(calls, deadline, stop_at_failure=True)
        raise_failure(self._settings, calls, answers)
        try:
            if len(answers) > len(queries):
                self._tags.replace(tags_by_host(answers[2]))
            outbound, inbound = (
                MetricSeries.of(name, answer) for name, answer in zip(queries, answers[:2], strict=True)
            )
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            # Only the type: the text could quote the response.
            kind = type(error).__name__
            raise Unavailable(f"Datadog answers in an unexpected format ({kind})") from None
        return outbound, inbound

    def _query(self, name: str, query: str, window: MetricWindow) -> Call:
        rolled_up = f"{query}.rollup(avg, {self._settings.window_seconds})"
        metrics = MetricsApi(self._client)
        return Call(name, lambda: metrics.query_metrics(_from=window.start, to=window.end, query=rolled_up))

    def _fetch_missing_tags(self, hosts: set[str], deadline: float) -> dict[str, str]:
        """Look up the hosts of unknown broker id; return host -> why its tags could not be read."""
        missing = sorted(host for host in hosts if not self._tags.of(host).broker_ids)
        calls = [self._host_tags(host) for host in missing]
        unreadable: dict[str, str] = {}
        for host, answer in zip(missing, self._reads.run(calls, deadline, stop_at_failure=False), strict=True):
            if isinstance(answer, Failure):
                if answer.status != 404:
                    unreadable[host] = without_keys(self._settings, answer.reason)
                continue
            found = answer.get("tags") if isinstance(answer, dict) else None
            if isinstance(found, list):
                self._tags.put(host, [str(tag) for tag in found])
            else:
                unreadable[host] = "answers in an unexpected format"
        return unreadable

    def _host_tags(self, host: str) -> Call:
        return Call(host, lambda: TagsApi(self._client).get_host_tags(host_name=host))


def _deadline(timeout: timedelta) -> float:
    return time.monotonic() + timeout.total_seconds() * _TIME_FOR_CALLS
