"""Partition sizes and free storage from Datadog, for metricsfetcher."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any

from datadog_api_client.v1.api.metrics_api import MetricsApi

from autothrottle.adapters.datadog.client import DatadogClient, DatadogSettings, RateLimit
from autothrottle.adapters.datadog.series import NO_VALUE
from autothrottle.core.cluster.configs import parse_broker_id
from autothrottle.core.errors import FIELD_ERRORS, Invalid, Unavailable
from autothrottle.core.placement.cluster import StorageMetrics
from autothrottle.core.placement.partition_map import TopicPartitionKey
from autothrottle.core.texts import encodable, excerpt
from autothrottle.core.traffic.loads import is_byte_count

_TOPIC_OF_OFFSETS = "_consumer_offsets"
"""Datadog's integration strips the first underscore of `__consumer_offsets`."""


_STALE_MILLISECONDS = 600_000
"""A series that ended so long before another one of its broker is not reported any more."""

_MAX_BODY_BYTES = 256 * 1024 * 1024
"""Limit of a response: the series of all partitions, in the process of metricsfetcher alone."""

_TaggedValue = tuple[Mapping[str, str], float, int | None]
"""The tags of a series, the time of its newest point, and its value; None: it is not a number of bytes."""


@dataclass(frozen=True, slots=True)
class StorageQueries:
    """The queries for storage."""

    broker_storage: str
    """Free bytes; it is grouped by `broker_id_tag`, host and device: Datadog would combine the devices of a group."""
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
        sizes, size_problems = _sizes(series, name)
        name, query = "broker-storage-query", f"{queries.broker_storage} by {{{tag},host,device}}.fill(last)"
        series = self._series(name, query, end, deadline)
        free, free_problems = _free_storage(series, name, tag.lower())
        problems = (*size_problems, *free_problems)
        return StorageMetrics(sizes, free, datetime.fromtimestamp(end, UTC), problems, has_exact_names=False)

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


def _sizes(series: Sequence[_TaggedValue], name: str) -> tuple[dict[TopicPartitionKey, int], list[str]]:
    """Return the bytes of the largest replica of each partition, and a problem for each series without any."""
    sizes, problems = dict[TopicPartitionKey, int](), []
    for tags, _, value in series:
        key = _partition_of(tags)
        if key is not None and value is not None:
            sizes[key] = max(value, sizes.get(key, 0))
        else:
            problems.append(f"a series of {name} has no usable topic, partition or value: {dict(tags)}")
    return sizes, problems


def _free_storage(series: Sequence[_TaggedValue], name: str, tag: str) -> tuple[dict[int, int], list[str]]:
    """Return the free bytes of each broker, the sum of its devices, and problems.

    Series that ended before the broker's newest one are those of its earlier host or of a device that has gone. If a
    device has no usable value, or two hosts report now, the sum is unknown.
    """
    of_brokers: dict[int, list[_TaggedValue]] = defaultdict(list)
    problems, unreadable = [], set[int]()
    for tags, at, value in series:
        broker_id = _number(tags.get(tag, ""))
        if broker_id is None or value is None:
            problems.append(f"a series of {name} has no usable {tag} or value: {dict(tags)}")
            unreadable.update(() if broker_id is None else (broker_id,))
        else:
            of_brokers[broker_id].append((tags, at, value))
    free: dict[int, int] = {}
    for broker_id, readable in of_brokers.items():
        newest = max(at for _, at, _ in readable)
        current = [(tags, value or 0) for tags, at, value in readable if at >= newest - _STALE_MILLISECONDS]
        hosts = sorted({tags.get("host", "") for tags, _ in current})
        if len(hosts) > 1:
            problems.append(
                f"broker {broker_id} has series of {name} from the hosts {excerpt(hosts, 3)}, so that its free storage "
                "is unknown. Fix: choose the cluster in the scope of the query"
            )
        elif broker_id not in unreadable:
            free[broker_id] = sum({tags.get("device", ""): value for tags, value in current}.values())
    return free, problems


def _partition_of(tags: Mapping[str, str]) -> TopicPartitionKey | None:
    topic, number = tags.get("topic", ""), _number(tags.get("partition", ""))
    topic = f"_{topic}" if topic == _TOPIC_OF_OFFSETS else topic
    return (topic, number) if topic not in ("", NO_VALUE) and number is not None else None


def _newest_values(series: Any) -> Iterator[_TaggedValue]:
    """Yield the tags and the newest value of each series that has one."""
    for entry in series:
        fields = entry if isinstance(entry, dict) else {"pointlist": [None]}
        tags = fields.get("tag_set") or str(fields.get("scope", "")).split(",")
        texts = [encodable(str(tag), None) for tag in tags] if isinstance(tags, list) else []
        newest = _newest(fields.get("pointlist") or ())
        if newest is not None:
            at, value = newest
            size = round(value) if is_byte_count(value) else None
            yield dict(tag.strip().partition(":")[::2] for tag in texts), at, size


def _newest(points: Any) -> tuple[float, float] | None:
    """Return the newest point of a series; None: all points are null; a value of NaN: a point cannot be read."""
    try:
        newest = max(((at, value) for at, value in points if value is not None), key=itemgetter(0), default=None)
        if newest is None:
            return None
        at, value = float(newest[0]), newest[1]
    except (IndexError, KeyError, OverflowError, TypeError, ValueError):
        return -math.inf, math.nan
    return at, value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _number(text: str) -> int | None:
    try:
        return parse_broker_id(text)
    except Invalid:
        return None
