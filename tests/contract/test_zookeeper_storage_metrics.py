"""The nodes of metricsfetcher in a real ZooKeeper."""

from __future__ import annotations

import gzip
import json
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from autothrottle.adapters.zookeeper_state.storage_metrics import ZooKeeperStorageMetrics
from autothrottle.core.errors import Invalid
from autothrottle.core.placement.cluster import StorageMetrics
from autothrottle.ports.services import StorageMetricsStore
from tests.contract.storage_metrics_contract import SAMPLE, TIMEOUT, StorageMetricsContract


@pytest.fixture
def prefix() -> str:
    return f"/storage-{uuid4().hex}/nested"


@pytest.fixture
def store(client: KazooClient, prefix: str) -> ZooKeeperStorageMetrics:
    return ZooKeeperStorageMetrics(client, prefix)


class TestZooKeeperStorageMetrics(StorageMetricsContract):
    @pytest.fixture
    def store(self, client: KazooClient, prefix: str) -> StorageMetricsStore:
        return ZooKeeperStorageMetrics(client, prefix)


def reads_like_the_original(data: bytes) -> object:
    """Try gunzip, else plain, as the original's reader."""
    with suppress(OSError):
        data = gzip.decompress(data)
    return json.loads(data)


@pytest.mark.parametrize("compress", [True, False])
def test_the_original_reads_our_nodes(
    client: KazooClient, store: ZooKeeperStorageMetrics, prefix: str, compress: bool
) -> None:
    store.write_storage_metrics(SAMPLE, compress, TIMEOUT)
    assert reads_like_the_original(client.get(f"{prefix}/partitionmeta")[0]) == {
        "a.b": {"0": {"Size": 1_500_000_000}, "10": {"Size": 0}},
        "t": {"2": {"Size": 7}},
    }
    assert reads_like_the_original(client.get(f"{prefix}/brokermetrics")[0]) == {
        "1001": {"StorageFree": 1_200_000_000_000},
        "1002": {"StorageFree": 0},
    }


@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["gzip", "plain"])
def test_we_read_the_nodes_of_the_original(
    client: KazooClient, store: ZooKeeperStorageMetrics, prefix: str, pack: type[bytes]
) -> None:
    client.create(f"{prefix}/partitionmeta", pack(b'{"t":{"0":{"Size":1.5e9}}}'), makepath=True)
    client.create(f"{prefix}/brokermetrics", pack(b'{"1001":{"StorageFree":1.2e12}}'))
    found = store.fetch_storage_metrics(TIMEOUT)
    assert (found.sizes, found.storage_free) == ({("t", 0): 1_500_000_000}, {1001: 1_200_000_000_000})
    assert found.sampled is not None and abs(found.sampled - datetime.now(UTC)) < timedelta(minutes=5)
    assert not found.has_exact_names, "the original reads Datadog"


def test_time_of_the_sample_counts_only_while_the_original_has_written_nothing(
    client: KazooClient, store: ZooKeeperStorageMetrics, prefix: str
) -> None:
    """A new node of the original beside our old time would look too old, or an old node beside our new time too young.

    The time of a sample counts only if one transaction wrote all three nodes."""
    store.write_storage_metrics(SAMPLE, False, TIMEOUT)
    client.set(f"{prefix}/brokermetrics", b'{"1001":{"StorageFree":5}}')
    sampled = store.fetch_storage_metrics(TIMEOUT).sampled
    assert sampled != SAMPLE.sampled
    assert sampled is not None and abs(sampled - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_map_over_the_limit_of_zookeeper_is_refused_and_the_stored_one_stays(store: ZooKeeperStorageMetrics) -> None:
    store.write_storage_metrics(SAMPLE, True, TIMEOUT)
    sizes = random.Random(1)
    large = StorageMetrics(
        {(f"topic-{n // 100}", n % 100): sizes.getrandbits(45) for n in range(300_000)}, {1: 1}, SAMPLE.sampled
    )
    with pytest.raises(Invalid, match=r"ZooKeeper accepts 1000000.*--metrics-source kafka"):
        store.write_storage_metrics(large, True, TIMEOUT)
    assert store.fetch_storage_metrics(TIMEOUT) == SAMPLE
