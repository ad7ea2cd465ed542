"""The sizes of topics from a sample whose names Datadog has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster, StorageMetrics
from autothrottle.core.placement.partition_map import PartitionReplicas, sizes_by_topic


def cluster(*topics: str) -> PlacementCluster:
    return PlacementCluster({1: PlacementBroker(1)}, tuple(PartitionReplicas(topic, 0, (1,)) for topic in topics))


def sizes(sample: StorageMetrics, *topics: str) -> dict[str, int | None]:
    return {entry.topic: entry.size for entry in cluster(*topics).with_storage(sample).partitions}


def sample_of_datadog(**topics: int) -> StorageMetrics:
    return StorageMetrics({(topic, 0): size for topic, size in topics.items()}, has_exact_names=False)


def test_sizes_belong_to_the_topics_whose_names_datadog_has_changed() -> None:
    """Datadog writes tags in lower case and joins underscores, so that the sizes of such topics were unknown."""
    sample = sample_of_datadog(**{"orders.v2": 7, "_transaction_state": 8, "x": 9, "__consumer_offsets": 5})
    assert sizes(sample, "Orders.V2", "__transaction_state", "x_", "__consumer_offsets", "new") == {
        "Orders.V2": 7,
        "__transaction_state": 8,
        "x_": 9,
        "__consumer_offsets": 5,
        "new": None,
    }


def test_topics_with_one_name_in_datadog_have_no_size_and_are_refused_by_name() -> None:
    """The size of a_b, or the larger one of both, was silently that of a_b, and a__b had none."""
    stored = cluster("a_b", "a__b", "other").with_storage(sample_of_datadog(a_b=7, other=3))
    assert {entry.topic: entry.size for entry in stored.partitions} == {"a_b": None, "a__b": None, "other": 3}
    stored.require_clear_sizes(["other"])
    with pytest.raises(Invalid, match="size of a_b is unknown: Datadog has one name, a_b, for the topics a__b, a_b"):
        stored.require_clear_sizes(["other", "a_b"])


def test_sizes_of_a_sample_with_the_names_of_kafka_are_those_of_their_topics() -> None:
    sample = sample_of_datadog(a_b=7, Orders=1)
    assert sizes(replace(sample, has_exact_names=True), "a_b", "a__b", "orders") == {
        "a_b": 7,
        "a__b": None,
        "orders": None,
    }
    assert sizes(sample_of_datadog(Orders=1, orders=2), "Orders", "orders", "new") == {
        "Orders": 1,
        "orders": 2,
        "new": None,
    }, "a sample with the names of all is exact"


def test_names_are_cut_as_datadog_cuts_tags() -> None:
    topics = ["t" * 249, "t" * 248]
    found, ambiguous = sizes_by_topic(topics, {("t" * 194, 0): 5})
    assert (found, {*ambiguous}) == ({}, {*topics})
    assert sizes_by_topic(topics[:1], {("t" * 194, 0): 5})[0] == {(topics[0], 0): 5}
