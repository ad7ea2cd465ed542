"""Partition sizes and free storage from Datadog, for metricsfetcher."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from datadog_api_client.v1.api.authentication_api import AuthenticationApi
from datadog_api_client.v1.api.metrics_api import MetricsApi

from autothrottle.adapters.datadog.client import DatadogApiClient, datadog_call
from autothrottle.adapters.datadog.failures import raise_failure
from autothrottle.adapters.datadog.rate_limit import RateLimit
from autothrottle.adapters.datadog.settings import DatadogSettings
from autothrottle.adapters.http.bounded_calls import Call, Exchanges
from autothrottle.core.cluster.snapshot import parse_broker_id
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.placement.partition_map import TopicPartitionKey
from autothrottle.ports.placement import StorageMetrics

_TOPIC_OF_OFFSETS = "_consumer_offsets"
"""Datadog's integration strips the first underscore of `__consumer_offsets`."""


@dataclass(frozen=True, slots=True)
class StorageQueries:
    """The queries for storage."""

    broker_storage: str
    """Free bytes; it is grouped by `broker_id_tag`."""
    broker_id_tag: str
    partition_size: str
    """Bytes by topic and partition."""
    span_seconds: int
    """Length of the rollup; a query covers twice as much."""


class DatadogStorageMetrics:
    """Datadog as the source of metricsfetcher; a `StorageMetricsSource`. `close` ends its threads."""

    def __init__(
        self,
        settings: DatadogSettings,
        queries: StorageQueries,
        progress: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; this sends nothing.

        Args:
            settings: address and keys.
            queries: the queries.
            progress: called with a line before and after each query.
            clock: seconds since the epoch.
        """
        self._settings, self._queries, self._progress, self._clock = settings, queries, progress, clock
        self._client = DatadogApiClient(settings)
        self._calls = Exchanges(1, "datadog-storage")

    def close(self) -> None:
        """End all running calls and threads."""
        self._calls.close()
        self._client.close()

    def fetch_storage_metrics(self, timeout: timedelta) -> StorageMetrics:
        deadline, queries = time.monotonic() + timeout.total_seconds(), self._queries
        self._answer(
            datadog_call("validate", lambda: AuthenticationApi(self._client).validate(), RateLimit()), deadline
        )
        end = int(self._clock())
        partitions = f"{queries.partition_size}.rollup(avg, {queries.span_seconds})"
        brokers = f"{queries.broker_storage} by {{{queries.broker_id_tag}}}.fill(last)"
        sizes, size_problems = self._partition_sizes(self._series("partition-size-query", partitions, end, deadline))
        free, free_problems = self._storage_free(self._series("broker-storage-query", brokers, end, deadline))
        problems = (*size_problems, *free_problems)
        return StorageMetrics(sizes, free, datetime.fromtimestamp(end, UTC), problems)

    def _series(self, name: str, query: str, end: int, deadline: float) -> list[tuple[Mapping[str, str], float]]:
        """Return the tags and the newest value of each series."""
        metrics, start = MetricsApi(self._client), end - 2 * self._queries.span_seconds
        self._progress(f"Submitting {query}")
        call = datadog_call(name, lambda: metrics.query_metrics(_from=start, to=end, query=query), RateLimit())
        answer = self._answer(call, deadline)
        try:
            if answer.get("status", "ok") != "ok":
                raise Unavailable(f"Datadog ({name}) answers status {str(answer['status'])[:20]!r}")
            found = list(_newest_values(answer["series"] or ()))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise Unavailable(f"Datadog answers in an unexpected format ({type(error).__name__})") from None
        self._progress("success")
        return found

    def _answer(self, call: Call, deadline: float) -> Any:
        try:
            answers = self._calls.run([call], deadline, stop_at_failure=True)
        finally:
            self._client.drop_idle_connections()
        raise_failure(self._settings, [call], answers)
        return answers[0]

    def _partition_sizes(
        self, series: list[tuple[Mapping[str, str], float]]
    ) -> tuple[dict[TopicPartitionKey, int], list[str]]:
        sizes, problems = {}, []
        for tags, value in series:
            topic = tags.get("topic", "")
            topic = f"_{topic}" if topic == _TOPIC_OF_OFFSETS else topic
            number = _number(tags.get("partition", ""))
            if topic and number is not None:
                sizes[topic, number] = round(value)
            else:
                problems.append(f"a series of partition-size-query has no usable topic and partition: {dict(tags)}")
        return sizes, problems

    def _storage_free(self, series: list[tuple[Mapping[str, str], float]]) -> tuple[dict[int, int], list[str]]:
        free, problems, tag = {}, [], self._queries.broker_id_tag
        for tags, value in series:
            number = _number(tags.get(tag, ""))
            if number is not None:
                free[number] = round(value)
            else:
                problems.append(f"a series of broker-storage-query has no usable {tag}: {dict(tags)}")
        return free, problems


def _newest_values(series: Any) -> Iterator[tuple[Mapping[str, str], float]]:
    """Yield the tags and the newest value of each series that has one."""
    for one in series:
        values = [value for _, value in sorted(one["pointlist"] or ()) if value is not None and value >= 0]
        if values:
            tags = one.get("tag_set") or str(one.get("scope", "")).split(",")
            yield dict(tag.strip().partition(":")[::2] for tag in tags), float(values[-1])


def _number(text: str) -> int | None:
    try:
        return parse_broker_id(text)
    except Invalid:
        return None
