"""Texts in the nodes of metricsfetcher."""

from __future__ import annotations

import pytest

from autothrottle.adapters.memory import MemoryStorageMetrics
from autothrottle.adapters.zookeeper_state.storage_metrics import parse_partition_sizes, parse_storage_free
from autothrottle.core.errors import Invalid
from autothrottle.ports.services import StorageMetricsStore
from tests.contract.storage_metrics_contract import StorageMetricsContract


class TestMemoryStorageMetrics(StorageMetricsContract):
    @pytest.fixture
    def store(self) -> StorageMetricsStore:
        return MemoryStorageMetrics()


def test_one_bad_partition_tag_leaves_the_others_readable() -> None:
    """One non-integer partition tag in Datadog made the original's whole partitionmeta node unreadable.

    The entry is skipped with a problem (T15)."""
    sizes, problems = parse_partition_sizes(b'{"t":{"0":{"Size":5},"n/a":{"Size":6}},"u":{"1":{"Size":7}}}')
    assert sizes == {("t", 0): 5, ("u", 1): 7}
    assert problems == ["'t' partition 'n/a' in partitionmeta has no usable number or size; ignored"]


@pytest.mark.parametrize("value", ["null", "-1", '"5"', "true", "{}", "1e400", "NaN", "9" * 400, "9" * 5000])
def test_a_value_that_is_no_size_is_skipped(value: str) -> None:
    free, problems = parse_storage_free(f'{{"1":{{"StorageFree":{value}}},"2":{{"StorageFree":3.7}}}}'.encode())
    assert free == {2: 4}
    assert len(problems) == 1


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_node_that_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid, match="run metricsfetcher again"):
        parse_partition_sizes(data)


def test_a_topic_that_utf_8_cannot_hold_is_skipped() -> None:
    """A lone surrogate in one topic name would fail where the sizes are written. The other topics keep their sizes."""
    sizes, problems = parse_partition_sizes(b'{"\\ud800":{"0":{"Size":5}},"u":{"1":{"Size":7}}}')
    assert sizes == {("u", 1): 7}
    assert problems == ["'\\ud800' partition '0' in partitionmeta has no usable number or size; ignored"]
