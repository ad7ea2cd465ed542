"""The tags of a broker: the topics that it holds, and its pools. The function to know is `broker_tags`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.core.texts import datadog_tag


@dataclass(frozen=True, slots=True)
class BrokerTags:
    """The tags of one broker, as Datadog stores them."""

    tags: tuple[str, ...]
    """In order, each once."""
    topics_left_out: int = 0
    """Topics without a tag, because the broker holds too many."""


def broker_tags(
    partitions: Iterable[PartitionReplicas], pools: Mapping[str, Iterable[int]], most_topics: int
) -> Mapping[int, BrokerTags]:
    """Return broker id -> its tags, for each broker that holds a replica or is in a pool.

    Args:
        partitions: of the cluster. The topics with the most bytes on a broker have tags; unknown sizes count as 0.
        pools: name -> its brokers.
        most_topics: largest number of topics with a tag on each broker, >= 0.

    >>> partitions = [PartitionReplicas("Orders", 0, (1, 2), 9), PartitionReplicas("logs", 0, (2,), 5)]
    >>> broker_tags(partitions, {"main": [2]}, most_topics=1)[2]
    BrokerTags(tags=('pool:main', 'topic:orders'), topics_left_out=1)
    """
    stored: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for entry in partitions:
        for id in entry.replicas:
            stored[id][entry.topic] += entry.size or 0
    names: dict[int, list[str]] = defaultdict(list)
    for name, ids in pools.items():
        for id in ids:
            names[id].append(name)
    return {
        id: _tags(names.get(id, ()), stored.get(id, {}), most_topics)
        for id in sorted({*stored, *names})
        if id >= 0  # a replica of an unknown broker
    }


def _tags(pools: Iterable[str], topics: Mapping[str, int], most_topics: int) -> BrokerTags:
    largest = sorted(topics, key=lambda topic: (-topics[topic], topic))[:most_topics]
    tags = {*(f"pool:{name}" for name in pools), *(f"topic:{topic}" for topic in largest)}
    return BrokerTags(tuple(sorted(set(map(datadog_tag, tags)))), len(topics) - len(largest))
