"""Partition sizes and free storage from Datadog, for metricsfetcher."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any

from datadog_api_client.v1.api.authentication_api import AuthenticationApi
from datadog_api_client.v1.api.metrics_api import MetricsApi

from autothrottle.adapters.datadog.client import DatadogApiClient, datadog_call
from autothrottle.adapters.datadog.failures import raise_failure
from autothrottle.adapters.datadog.rate_limit import RateLimit
from autothrottle.adapters.datadog.settings import DatadogSettings
from autothrottle.adapters.http.bounded_calls import Call, Exchanges
from autothrottle.core.cluster.broker_ids import parse_broker_id
from autothrottle.core.errors import FIELD_ERRORS, Invalid, Unavailable
from autothrottle.core.placement.partition_map import TopicPartitionKey
from autothrottle.core.texts import encodable
from autothrottle.core.traffic.loads import is_byte_count
from autothrottle.ports.services import StorageMetrics

_TOPIC_OF_OFFSETS = "_consumer_offsets"
"""Datadog's integration strips the first underscore of `__consumer_offsets`."""


_MAX_BODY_BYTES = 256 * 1024 * 1024
"""Limit of a response: the series of all partitions, in the process of metricsfetcher alone."""

_TaggedValue = tuple[Mapping[str, str], int | None]
"""The tags of a series and its newest value; None: it is not a number of bytes."""


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

    def _series(self, name: str, query: str, end: int, deadline: float) -> Sequence[_TaggedValue]:
        """Return the tags and the newest value of each series."""
        metrics, start = MetricsApi(self._client), end - 2 * self._queries.span_seconds
        self._progress(f"Submitting {query}")
        send = partial(metrics.query_metrics, _from=start, to=end, query=query)
        call = datadog_call(name, send, RateLimit(), _MAX_BODY_BYTES)
        answer = self._answer(call, deadline)
        try:
            if answer.get("status", "ok") != "ok":
                raise Unavailable(f"Datadog ({name}) answers status {encodable(str(answer['status']))[:20]!r}")
            values = list(_newest_values(answer["series"] or ()))
        except FIELD_ERRORS as error:
            raise Unavailable(f"Datadog answers in an unexpected format ({type(error).__name__})") from None
        self._progress("success")
        return values

    def _answer(self, call: Call, deadline: float) -> Any:
        try:
            answers = self._calls.run([call], deadline, stop_at_failure=True)
        finally:
            self._client.drop_idle_connections()
        raise_failure(self._settings, [call], answers)
        return answers[0]

    def _partition_sizes(self, series: Sequence[_TaggedValue]) -> tuple[dict[TopicPartitionKey, int], list[str]]:
        sizes, problems = {}, []
        for tags, value in series:
            topic = tags.get("topic", "")
            topic = f"_{topic}" if topic == _TOPIC_OF_OFFSETS else topic
            number = _number(tags.get("partition", ""))
            if topic and number is not None and value is not None:
                sizes[topic, number] = value
            else:
                problems.append(
                    f"a series of partition-size-query has no usable topic, partition or value: {dict(tags)}"
                )
        return sizes, problems

    def _storage_free(self, series: Sequence[_TaggedValue]) -> tuple[dict[int, int], list[str]]:
        free, problems, tag = {}, [], self._queries.broker_id_tag
        for tags, value in series:
            number = _number(tags.get(tag, ""))
            if number is not None and value is not None:
                free[number] = value
            else:
                problems.append(f"a series of broker-storage-query has no usable {tag} or value: {dict(tags)}")
        return free, problems


def _newest_values(series: Any) -> Iterator[_TaggedValue]:
    """Yield the tags and the newest value of each series that has one."""
    for entry in series:
        fields = entry if isinstance(entry, dict) else {"pointlist": [None]}
        tags = fields.get("tag_set") or str(fields.get("scope", "")).split(",")
        texts = [encodable(str(tag), None) for tag in tags] if isinstance(tags, list) else []
        value = _newest(fields.get("pointlist") or ())
        if value is not None:
            size = round(value) if is_byte_count(value) else None
            yield dict(tag.strip().partition(":")[::2] for tag in texts), size


def _newest(points: Any) -> float | None:
    """Return the newest value of a series; None: all points are null; NaN: a point cannot be read."""
    try:
        values = [value for _, value in sorted(points, key=itemgetter(0)) if value is not None]
    except (IndexError, KeyError, TypeError, ValueError):
        return math.nan
    if not values:
        return None
    newest = values[-1]
    return newest if isinstance(newest, int | float) and not isinstance(newest, bool) else math.nan


def _number(text: str) -> int | None:
    try:
        return parse_broker_id(text)
    except Invalid:
        return None
