"""The nodes of metricsfetcher, in the format that the original programs read and write.

`partitionmeta` holds `{"topic":{"0":{"Size":1.5e9}}}`, `brokermetrics` holds `{"1001":{"StorageFree":1.2e12}}`, each
as JSON or as gzip of JSON. `sampled` holds the time of the sample, and whether its topics have Kafka's names or those
of Datadog; the original programs ignore it. One transaction writes all three nodes. `sampled` counts only while all
three nodes are of the same transaction, because the original metricsfetcher writes the other two alone.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import ZnodeStat

from autothrottle.adapters.zookeeper.codec import compact_json
from autothrottle.adapters.zookeeper.session import translated_errors
from autothrottle.core.cluster.configs import broker_id_of
from autothrottle.core.errors import Invalid, Missing, Unavailable
from autothrottle.core.placement.cluster import StorageMetrics
from autothrottle.core.placement.partition_map import TopicPartitionKey
from autothrottle.core.texts import encodable, json_integer
from autothrottle.core.traffic.loads import is_byte_count

MAX_REQUEST_BYTES = 1_000_000
"""ZooKeeper drops a connection that sends over 1,048,575 bytes at once (jute.maxbuffer); the rest is for the paths."""

_MAX_JSON_BYTES = 256_000_000
"""Limit of a decompressed node: 10 times the map of a million partitions."""

_PARTITIONS, _BROKERS, _SAMPLED = "partitionmeta", "brokermetrics", "sampled"


class ZooKeeperStorageMetrics:
    """The last sample of metricsfetcher; a `StorageMetricsStore`."""

    def __init__(self, client: KazooClient, prefix: str = "topicmappr") -> None:
        self._client = client
        self._root = "".join(f"/{part}" for part in prefix.split("/") if part)

    def fetch_storage_metrics(self, timeout: timedelta, broker_ids: Collection[int] | None = None) -> StorageMetrics:
        with translated_errors("reading the nodes of metricsfetcher"):
            partitions, partitions_stat = self._node(_PARTITIONS, timeout)
            brokers, brokers_stat = self._node(_BROKERS, timeout)
            sampled, is_exact = self._sampled(partitions_stat, brokers_stat, timeout)
        sizes, size_problems = parse_partition_sizes(partitions)
        free, free_problems = parse_storage_free(brokers)
        if not sizes:
            raise Missing(f"No partition meta: {self._path(_PARTITIONS)} names no partition; run metricsfetcher")
        return StorageMetrics(sizes, free, sampled, (*size_problems, *free_problems), has_exact_names=is_exact)

    def write_storage_metrics(self, metrics: StorageMetrics, compress: bool, timeout: timedelta) -> None:
        if not metrics.sizes or not metrics.storage_free or metrics.sampled is None:
            raise Invalid("the sample has no partition, no broker or no time; the stored sample stays")
        contents = {
            _PARTITIONS: _packed(format_partition_sizes(metrics.sizes), compress),
            _BROKERS: _packed(format_storage_free(metrics.storage_free), compress),
            _SAMPLED: compact_json(
                {"time": metrics.sampled.astimezone(UTC).isoformat(), "exact_names": metrics.has_exact_names}
            ),
        }
        size = sum(map(len, contents.values()))
        if size > MAX_REQUEST_BYTES:
            fix = "" if compress else "turn compression on, or "
            raise Invalid(
                f"the sample of {len(metrics.sizes)} partitions takes {size} bytes, and ZooKeeper accepts "
                f"{MAX_REQUEST_BYTES}; the stored sample stays. Fix: {fix}let topicmappr read the sizes from the "
                "brokers with --metrics-source kafka"
            )
        with translated_errors("writing the nodes of metricsfetcher"):
            self._client.ensure_path_async(self._root or "/").get(timeout=timeout.total_seconds())
            self._write(contents, timeout)

    def _write(self, contents: Mapping[str, bytes], timeout: timedelta) -> None:
        transaction = self._client.transaction()
        for name, data in contents.items():
            path = self._path(name)
            if self._client.exists_async(path).get(timeout=timeout.total_seconds()) is None:
                transaction.create(path, data)
            else:
                transaction.set_data(path, data)
        for result in transaction.commit_async().get(timeout=timeout.total_seconds()):
            if isinstance(result, Exception):
                raise Unavailable(f"another process changed the nodes below {self._root or '/'}: run it again")

    def _node(self, name: str, timeout: timedelta) -> tuple[bytes, ZnodeStat]:
        path = self._path(name)
        try:
            data, stat = self._client.get_async(path).get(timeout=timeout.total_seconds())
        except NoNodeError:
            raise Missing(
                f"Error fetching metrics metadata: {path} does not exist. Fix: run metricsfetcher, or give "
                "--metrics-source kafka"
            ) from None
        return _unpacked(data, path), stat

    def _sampled(self, partitions: ZnodeStat, brokers: ZnodeStat, timeout: timedelta) -> tuple[datetime, bool]:
        """Return the time of the sample, and whether its topics have Kafka's names.

        If the original program wrote the nodes, the time is that of the older write, and the names are Datadog's.
        """
        written = min(partitions.mtime, brokers.mtime) / 1000
        try:
            data, stat = self._client.get_async(self._path(_SAMPLED)).get(timeout=timeout.total_seconds())
            if stat.mzxid == partitions.mzxid == brokers.mzxid:
                value = json.loads(data)
                sampled = datetime.fromisoformat(value["time"]).astimezone(UTC)
                return sampled, value.get("exact_names") is True
        except (NoNodeError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
            pass
        return datetime.fromtimestamp(written, UTC), False

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def _packed(data: bytes, compress: bool) -> bytes:
    # mtime 0: the same sample gives the same bytes.
    return gzip.compress(data, mtime=0) if compress else data


def _unpacked(data: bytes, path: str) -> bytes:
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        decompressor = zlib.decompressobj(wbits=31)
        plain = decompressor.decompress(data, _MAX_JSON_BYTES)
    except zlib.error as error:
        raise Invalid(f"{path} is damaged gzip ({error}); run metricsfetcher again") from None
    if not decompressor.eof:
        raise Invalid(f"{path} is cut off, or over {_MAX_JSON_BYTES} bytes of JSON; run metricsfetcher again")
    return plain


def format_partition_sizes(sizes: Mapping[TopicPartitionKey, int]) -> bytes:
    """Format `partitionmeta`, ordered by topic and partition."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for topic, partition in sorted(sizes):
        topics.setdefault(topic, {})[str(partition)] = {"Size": sizes[topic, partition]}
    return compact_json(topics)


def format_storage_free(storage_free: Mapping[int, int]) -> bytes:
    """Format `brokermetrics`, ordered by broker id."""
    return compact_json({str(broker): {"StorageFree": storage_free[broker]} for broker in sorted(storage_free)})


def parse_partition_sizes(data: bytes) -> tuple[dict[TopicPartitionKey, int], list[str]]:
    """Return (topic, partition) -> bytes, and a problem for each entry that is not a size.

    Raises:
        Invalid: the data is not a JSON object.
    """
    sizes: dict[TopicPartitionKey, int] = {}
    problems = []
    for topic, partitions in _items(_object(data, _PARTITIONS)):
        for name, meta in _items(partitions):
            # A broker id and a partition number have the same range.
            partition, size = broker_id_of(name), _bytes(meta, "Size")
            if partition is None or size is None or encodable(topic, None) != topic or not topic:
                problems.append(f"{topic!r} partition {name!r} in {_PARTITIONS} has no usable number or size; ignored")
            else:
                sizes[topic, partition] = size
    return sizes, problems


def parse_storage_free(data: bytes) -> tuple[dict[int, int], list[str]]:
    """Return broker id -> free bytes, and a problem for each entry that has none.

    Raises:
        Invalid: the data is not a JSON object.
    """
    free: dict[int, int] = {}
    problems = []
    for name, metrics in _items(_object(data, _BROKERS)):
        broker, size = broker_id_of(name), _bytes(metrics, "StorageFree")
        if broker is None or size is None:
            problems.append(f"broker {name!r} in {_BROKERS} has no usable id or StorageFree; ignored")
        else:
            free[broker] = size
    return free, problems


def _object(data: bytes, what: str) -> Any:
    try:
        value = json.loads(data, parse_int=json_integer)
    except (ValueError, RecursionError):
        raise Invalid(f"{what} is not JSON; run metricsfetcher again") from None
    if not isinstance(value, dict):
        raise Invalid(f"{what} is not a JSON object; run metricsfetcher again")
    return value


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    return iter(value.items()) if isinstance(value, dict) else iter([("", None)])


def _bytes(value: Any, key: str) -> int | None:
    number = value.get(key) if isinstance(value, dict) else None
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return round(number) if is_byte_count(number) else None
