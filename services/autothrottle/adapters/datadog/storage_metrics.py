"""Partition sizes and free storage from Datadog, for metricsfetcher."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from datadog_api_client.v1.api.metrics_api import MetricsApi

from autothrottle.adapters.datadog.client import DatadogClient, DatadogSettings, RateLimit
from autothrottle.core.cluster.configs import parse_broker_id
from autothrottle.core.errors import FIELD_ERRORS, Invalid, Unavailable
from autothrottle.core.placement.partition_map import TopicPartitionKey
from autothrottle.core.texts import encodable
from autothrottle.core.traffic.loads import is_byte_count
from autothrottle.ports.services import StorageMetrics

_TOPIC_OF_OFFSETS = "_consumer_offsets"
"""Datadog's integration strips the first underscore of `__consumer_offsets`."""


_MAX_BODY_BYTES = 256 * 1024 * 1024
"""Limit of a response: the series of all partitions, in the process of metricsfetcher alone."""

K = TypeVar("K")

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
        self._queries, self._progress, self._clock = queries, progress, clock
        self._client = DatadogClient("datadog-storage", 1, settings)

    def close(self) -> None:
        """End all running calls and threads."""
        self._client.close()

    def fetch_storage_metrics(self, timeout: timedelta, broker_ids: Collection[int] | None = None) -> StorageMetrics:
        deadline, queries = time.monotonic() + timeout.total_seconds(), self._queries
        self._client.fetch([self._client.check_key()], deadline)
        end, tag = int(self._clock()), queries.broker_id_tag
        name, query = "partition-size-query", f"{queries.partition_size}.rollup(avg, {queries.span_seconds})"
        series = self._series(name, query, end, deadline)
        sizes, size_problems = _values_by_key(series, name, "topic, partition", _partition_of)
        name, query = "broker-storage-query", f"{queries.broker_storage} by {{{tag}}}.fill(last)"
        series = self._series(name, query, end, deadline)
        free, free_problems = _values_by_key(series, name, tag, lambda tags: _number(tags.get(tag, "")))
        problems = (*size_problems, *free_problems)
        return StorageMetrics(sizes, free, datetime.fromtimestamp(end, UTC), problems)

    def _series(self, name: str, query: str, end: int, deadline: float) -> Sequence[_TaggedValue]:
        """Return the tags and the newest value of each series."""
        self._progress(f"Submitting {query}")
        metrics, start = MetricsApi(self._client.api), end - 2 * self._queries.span_seconds
        request = partial(metrics.query_metrics, _from=start, to=end, query=query)
        call = self._client.call(name, request, RateLimit(), most_bytes=_MAX_BODY_BYTES)
        answer: Any = self._client.fetch([call], deadline)[0]
        try:
            if answer.get("status", "ok") != "ok":
                raise Unavailable(f"Datadog ({name}) answers status {encodable(str(answer['status']))[:20]!r}")
            values = list(_newest_values(answer["series"] or ()))
        except FIELD_ERRORS as error:
            raise Unavailable(f"Datadog answers in an unexpected format ({type(error).__name__})") from None
        self._progress("success")
        return values


def _values_by_key(
    series: Sequence[_TaggedValue], name: str, tag_names: str, key_of: Callable[[Mapping[str, str]], K | None]
) -> tuple[dict[K, int], list[str]]:
    """Return key -> value, and a problem for each series without one of them."""
    values, problems = dict[K, int](), []
    for tags, value in series:
        key = key_of(tags)
        if key is not None and value is not None:
            values[key] = value
        else:
            problems.append(f"a series of {name} has no usable {tag_names} or value: {dict(tags)}")
    return values, problems


def _partition_of(tags: Mapping[str, str]) -> TopicPartitionKey | None:
    topic, number = tags.get("topic", ""), _number(tags.get("partition", ""))
    topic = f"_{topic}" if topic == _TOPIC_OF_OFFSETS else topic
    return (topic, number) if topic and number is not None else None


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
