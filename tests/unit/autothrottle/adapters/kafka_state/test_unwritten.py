"""A process that only looks reads the whole state, and changes nothing."""

from __future__ import annotations

import time
from contextlib import closing

from autothrottle.adapters.kafka_state.log import StateLog
from autothrottle.adapters.kafka_state.records import StateEdit
from autothrottle.adapters.kafka_state.topic import ReplicaChange
from autothrottle.adapters.kafka_state.unwritten import UnwrittenTopic
from autothrottle.adapters.memory.state_topic import MemoryPartition, MemoryTopic


def new_log(partition: MemoryPartition, writes: bool) -> StateLog:
    topic = MemoryTopic(partition)
    return StateLog(topic if writes else UnwrittenTopic(topic), "state", "/a/term", 1.0)


def deadline() -> float:
    return time.monotonic() + 30


def test_a_reader_sees_later_edits_of_others_and_appends_nothing() -> None:
    partition = MemoryPartition()
    with closing(new_log(partition, writes=True)) as writer, closing(new_log(partition, writes=False)) as reader:
        for text in ("1", "2"):
            writer.append(StateEdit(texts={"/a/x": text}), deadline())
            records = len(partition.records)
            with reader.synced(deadline()) as tree:
                node = tree.node("/a/x")
            assert node is not None and node.text == text
            assert len(partition.records) == records


def test_a_topic_that_does_not_exist_is_empty_and_is_not_created() -> None:
    partition = MemoryPartition()
    with closing(new_log(partition, writes=False)) as reader:
        reader.prepare(deadline(), lambda: False)
        with reader.synced(deadline()) as tree:
            assert not list(tree.nodes())
    assert partition.topic_id is None


def test_a_reader_changes_no_replica() -> None:
    topic = UnwrittenTopic(MemoryTopic(partition := MemoryPartition()))
    partition.silent_brokers = {1}
    assert topic.fetch_repair(deadline(), is_stuck=True) is None
    assert topic.change_replicas(ReplicaChange((1, 2, 3), (2, 3), 1), deadline()) == (1, 2, 3)
    assert partition.replicas == [1, 2, 3]
