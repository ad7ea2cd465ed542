"""Datadog as the source of loads and the sink of events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial

from datadog_api_client.v1.api.events_api import EventsApi
from datadog_api_client.v1.api.metrics_api import MetricsApi
from datadog_api_client.v1.api.tags_api import TagsApi
from datadog_api_client.v1.model.event_create_request import EventCreateRequest

from autothrottle.adapters.datadog.client import DatadogClient, DatadogSettings, RateLimit
from autothrottle.adapters.datadog.load_reading import HostTags, LoadReading, TagCache, host_tags, with_tags
from autothrottle.adapters.datadog.series import MetricSeries, MetricWindow
from autothrottle.adapters.http.client import Call, Failure, ServerClock
from autothrottle.core.errors import FIELD_ERRORS, Invalid, Unavailable
from autothrottle.core.texts import encodable
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.loads import Loads
from autothrottle.ports.telemetry import Event

EVENT_TITLE_PREFIX = "[kafka-autothrottle] "
EVENT_TAGS = ("name:kafka-autothrottle", "name:autothrottle")
MAX_EVENT_TEXT = 4_000
"""Datadog's limit on the text of an event, in characters."""

_CONCURRENT_READS = 24
"""1,000 hosts at 45 ms a request take 2 s."""
_CONCURRENT_POSTS = 2

_MAX_TAGS_BYTES = 1_000_000
"""Limit of the tags of one host: those of many hosts are read at the same time."""

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
        self._server = ServerClock(clock)
        self._reads = DatadogClient("datadog-read", _CONCURRENT_READS, settings)
        self._posts = DatadogClient("datadog-post", _CONCURRENT_POSTS, settings)
        self._tags = TagCache(settings)
        self._query_limit, self._tags_limit, self._events_limit = RateLimit(), RateLimit(), RateLimit()

    def close(self) -> None:
        """End all running calls and threads."""
        self._reads.close()
        self._posts.close()

    def fetch_loads(self, timeout: timedelta) -> Loads:
        deadline = _deadline(timeout)
        try:
            window, outbound, inbound = self._fetch_series(deadline)
            if self._server.corrected():
                window, outbound, inbound = self._fetch_series(deadline)
            tags = self._tags_in(outbound, inbound)
            unreadable = self._fetch_missing_tags([host for host in tags if not tags[host].broker_ids], deadline)
        finally:
            self._reads.drop_idle_connections()
        tags = {host: host_tags if host_tags.broker_ids else self._tags.of(host) for host, host_tags in tags.items()}
        loads = LoadReading(self._settings, self._limits, window, outbound, inbound, tags, unreadable).loads()
        return replace(loads, warnings=self._server.warnings("Datadog") + loads.warnings)

    def check_api_key(self, timeout: timedelta) -> None:
        """Check the API key; the first query checks the application key.

        Raises:
            Invalid: Datadog rejects the key.
            Unavailable: Datadog does not answer within `timeout`, or answers with an error.
        """
        call = self._reads.check_key()
        (answer,) = self._reads.run([call], _deadline(timeout), stop_at_failure=True)
        if isinstance(answer, Failure) and answer.status in (401, 403):
            raise Invalid(
                f"Datadog rejects api-key (status {answer.status} from {self._settings.url}); give a key of this "
                "organization, or set datadog-url to the site of the key, for example https://api.datadoghq.eu"
            )
        if isinstance(answer, Failure):
            raise self._reads.error(call, answer)

    def post_event(self, event: Event, timeout: timedelta) -> None:
        configured = self._settings.event_tags
        names = {tag.partition(":")[0] for tag in configured}
        own = (tag for tag in event.tags if tag.partition(":")[0] not in names)  # a configured `cluster` wins
        tags = list(dict.fromkeys([*EVENT_TAGS, *configured, *own]))
        text = event.text if len(event.text) <= MAX_EVENT_TEXT else event.text[: MAX_EVENT_TEXT - 4] + " ..."
        body = EventCreateRequest(title=EVENT_TITLE_PREFIX + event.title, text=text, tags=tags)
        request = partial(EventsApi(self._posts.api).create_event, body=body)
        try:
            self._posts.fetch([self._posts.call("event", request, self._events_limit)], _deadline(timeout))
        finally:
            self._posts.drop_idle_connections()

    def _fetch_series(self, deadline: float) -> tuple[MetricWindow, MetricSeries, MetricSeries]:
        """Fetch both queries concurrently, for the window until now."""
        end = int(self._server.now()) - self._settings.delay_seconds
        window = MetricWindow(end - self._settings.window_seconds, end, self._server.offset)
        queries = {"net-tx-query": self._settings.net_tx_query, "net-rx-query": self._settings.net_rx_query}
        calls = [self._query(name, query, window) for name, query in queries.items()]
        answers = self._reads.fetch(calls, deadline)
        try:
            outbound, inbound = (MetricSeries.of(name, answer) for name, answer in zip(queries, answers, strict=True))
        except FIELD_ERRORS as error:
            # Only the type: the text could quote the response.
            kind = type(error).__name__
            raise Unavailable(f"Datadog answers in an unexpected format ({kind})") from None
        return window, outbound, inbound

    def _query(self, name: str, query: str, window: MetricWindow) -> Call:
        rolled_up = f"{with_tags(query, self._settings)}.rollup(avg, {self._settings.window_seconds})"
        metrics = MetricsApi(self._reads.api)
        request = partial(metrics.query_metrics, _from=window.start, to=window.end, query=rolled_up)
        return self._reads.call(name, request, self._query_limit, self._server.note)

    def _tags_in(self, *queried: MetricSeries) -> dict[str, HostTags]:
        """Return host -> the tags in its series."""
        hosts = {host for series in queried for host in series.by_host}
        tags = {host: [tag for series in queried for tag in series.tags.get(host, ())] for host in hosts}
        return {host: host_tags(its_tags, self._settings) for host, its_tags in tags.items()}

    def _fetch_missing_tags(self, hosts: Iterable[str], deadline: float) -> dict[str, str]:
        """Look up hosts whose series have no broker id; return host -> why its tags could not be read."""
        missing = sorted(host for host in hosts if not self._tags.of(host).broker_ids)
        calls = [self._host_tags(host) for host in missing]
        unreadable: dict[str, str] = {}
        for host, answer in zip(missing, self._reads.run(calls, deadline, stop_at_failure=False), strict=True):
            if isinstance(answer, Failure):
                if answer.status != 404:
                    unreadable[host] = self._reads.shown(answer.reason)
                continue
            tags = answer.get("tags") if isinstance(answer, dict) else None
            if isinstance(tags, list):
                self._tags.put(host, [encodable(str(tag), None) for tag in tags])
            else:
                unreadable[host] = "answers in an unexpected format"
        return unreadable

    def _host_tags(self, host: str) -> Call:
        request = partial(TagsApi(self._reads.api).get_host_tags, host_name=host)
        return self._reads.call(host, request, self._tags_limit, most_bytes=_MAX_TAGS_BYTES)


def _deadline(timeout: timedelta) -> float:
    return time.monotonic() + timeout.total_seconds() * _TIME_FOR_CALLS
