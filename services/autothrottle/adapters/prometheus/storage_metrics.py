"""Partition sizes and free storage from Prometheus, for metricsfetcher."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.prometheus.client import PrometheusClient, PrometheusSettings, QueryResult
from autothrottle.adapters.prometheus.metrics import BROKERS_QUERY, reported_addresses
from autothrottle.core.cluster.configs import parse_broker_id
from autothrottle.core.errors import Invalid
from autothrottle.core.placement.cluster import StorageMetrics
from autothrottle.core.placement.partition_map import TopicPartitionKey
from autothrottle.core.traffic.broker_matching import HOST_LABELS, BrokerMatching
from autothrottle.core.traffic.exporters import FREE_STORAGE_QUERY, PARTITION_SIZE_QUERY
from autothrottle.core.traffic.loads import is_byte_count

_MAX_BODY_BYTES = 256 * 1024 * 1024
"""Limit of a response: the series of a million partitions, in the process of metricsfetcher alone."""

STORAGE_QUERY, SIZE_QUERY = "prometheus-storage-query", "prometheus-size-query"


class PrometheusStorageMetrics:
    """Prometheus as the source of metricsfetcher; a `StorageMetricsSource`. `close` ends its threads."""

    def __init__(
        self,
        settings: PrometheusSettings,
        storage_query: str = FREE_STORAGE_QUERY,
        size_query: str = PARTITION_SIZE_QUERY,
        hosts: BrokerHosts | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; this sends nothing.

        Args:
            settings: address, credentials and how to find the broker of a series.
            storage_query: PromQL for free bytes. The volumes of one broker are added up, if a label tells them apart.
            size_query: PromQL for bytes, with the labels topic and partition. The largest replica counts.
            hosts: the brokers' hosts; None: labels must name the broker.
            clock: seconds since the epoch.
        """
        self._settings, self._hosts, self._clock = settings, hosts, clock
        self._queries = {STORAGE_QUERY: storage_query, SIZE_QUERY: size_query, BROKERS_QUERY: BROKERS_QUERY}
        self._client = PrometheusClient(settings, len(self._queries), most_bytes=_MAX_BODY_BYTES)

    def close(self) -> None:
        """End all running calls and threads."""
        self._client.close()

    def fetch_storage_metrics(self, timeout: timedelta, broker_ids: Collection[int] | None = None) -> StorageMetrics:
        deadline, settings = time.monotonic() + timeout.total_seconds(), self._settings
        registered, warnings = self._hosts.read(timeout / 4) if self._hosts else ({}, ())
        sampled = datetime.fromtimestamp(int(self._clock()), UTC)
        results = self._client.query(self._queries, deadline)
        addresses = reported_addresses(results[BROKERS_QUERY], registered)
        matching = BrokerMatching(settings.broker_map, settings.broker_label, addresses, registered)
        free, free_problems = _storage_free(results[STORAGE_QUERY], matching)
        sizes, size_problems = _partition_sizes(results[SIZE_QUERY])
        partial = [
            f"Prometheus ({name}) warns: {text}"
            for name in (STORAGE_QUERY, SIZE_QUERY)
            for text in results[name].warnings
        ]
        return StorageMetrics(sizes, free, sampled, (*warnings, *free_problems, *size_problems), tuple(partial))


_TARGET_LABELS = frozenset(
    {*HOST_LABELS, "job", "endpoint", "service", "container", "namespace", "metrics_path", "cluster", "prometheus"}
    | {"prometheus_replica", "replica", "monitor", "receive", "tenant_id", "__name__"}
)
"""Labels that name a target or a server: series that differ in nothing else are of one volume."""
_Reading = tuple[str, int]
"""What a series says of its volume, without the labels of its target, and its free bytes."""
_SAME_SHARE = 0.01
"""Two readings of one volume differ by no more: it fills while they are taken."""


def _storage_free(result: QueryResult, matching: BrokerMatching) -> tuple[dict[int, int], list[str]]:
    """Return the free bytes of each broker, the sum of its volumes; one that two targets report counts once.

    If the bytes of one volume are unknown or not clear, so is the sum of its broker.
    """
    devices: dict[int, dict[str, list[_Reading]]] = defaultdict(lambda: defaultdict(list))
    unclear: set[int] = set()
    problems = []
    for labels, value in _values(result):
        broker_id = matching.broker_of(labels)
        if broker_id is None or value is None:
            reason = "belongs to no known broker" if broker_id is None else "has no usable value"
            problems.append(f"a series of {STORAGE_QUERY} {reason}: {dict(labels)}")
            unclear.update(() if broker_id is None else (broker_id,))
        else:
            own = ", ".join(f"{name}={text}" for name, text in sorted(labels.items()) if name not in _TARGET_LABELS)
            devices[broker_id][labels.get("device", "")].append((own, value))
    sums: dict[int, int] = {}
    for broker_id, readings in devices.items():
        volumes = [volume for device, of_device in readings.items() for volume in _volumes(device, of_device)]
        if disputed := next((volume for volume in volumes if not _is_same(volume[1])), None):
            own, sizes = disputed
            problems.append(
                f"broker {broker_id} has series of {STORAGE_QUERY} with {min(sizes)} and {max(sizes)} free bytes, and "
                f"no label tells their volumes apart ({own or 'no label'}), so that its free storage is unknown. Fix: "
                "keep the label with the volume in the query"
            )
        elif broker_id not in unclear:
            sums[broker_id] = sum(min(sizes) for _, sizes in volumes)
    too_large = [broker_id for broker_id, total in sums.items() if not is_byte_count(total)]
    problems += [f"broker {b} has {sums.pop(b)} free bytes in {STORAGE_QUERY}; give at most 2^63-1" for b in too_large]
    return sums, problems


def _volumes(device: str, readings: Sequence[_Reading]) -> list[tuple[str, list[int]]]:
    """Return each volume of one device, as its labels, with the values of its series.

    Several mount points of a device are one volume, and have the same free bytes. Those of tmpfs are several volumes.
    """
    if device and _is_same([value for _, value in readings]):
        return [(readings[0][0], [value for _, value in readings])]
    volumes: dict[str, list[int]] = defaultdict(list)
    for own, value in readings:
        volumes[own].append(value)
    return list(volumes.items())


def _is_same(sizes: Sequence[int]) -> bool:
    return max(sizes) - min(sizes) <= _SAME_SHARE * max(sizes)


def _partition_sizes(result: QueryResult) -> tuple[dict[TopicPartitionKey, int], list[str]]:
    sizes: dict[TopicPartitionKey, int] = {}
    problems = []
    for labels, value in _values(result):
        try:
            row = labels["topic"], parse_broker_id(labels["partition"])
        except (Invalid, KeyError):
            row = "", 0
        if not row[0] or value is None:
            problems.append(f"a series of {SIZE_QUERY} has no usable topic, partition or value: {dict(labels)}")
        else:
            sizes[row] = max(value, sizes.get(row, 0))
    return sizes, problems


def _values(result: QueryResult) -> Iterator[tuple[Mapping[str, str], int | None]]:
    """Yield the labels and the newest value of each series; None: it is not a number of bytes."""
    for labels, samples, _ in result.series:
        value = samples[-1][1] if samples else math.nan
        yield labels, round(value) if is_byte_count(value) else None
