from __future__ import annotations

import time

import pytest

from autothrottle.adapters.kafka_state.topic import LostTail, OutOfLog, Records
from autothrottle.adapters.kafka_state.unwritten import UnwrittenTopic
from autothrottle.adapters.memory.state_topic import MemoryPartition, MemoryTopic


def read(topic: MemoryTopic | UnwrittenTopic, offset: int, epoch: int) -> Records:
    topic_id, _ = topic.locate(time.monotonic() + 10)
    return topic.read(topic_id, offset, epoch, 0.0, time.monotonic() + 10)


def test_reader_of_lost_records_is_told_even_if_the_log_has_grown_again() -> None:
    partition = MemoryPartition()
    partition.create()
    partition.append([b"a", b"b", b"c"])
    topic = MemoryTopic(partition)
    assert [record.epoch for record in read(topic, 0, -1).records] == [0, 0, 0]
    partition.truncate(1)
    for reader in (topic, UnwrittenTopic(MemoryTopic(partition))):
        with pytest.raises(LostTail):
            read(reader, 3, 0)
        assert not read(reader, 1, 0).records, "nothing of this was lost"
    partition.append([b"d"] * 5)
    with pytest.raises(LostTail):
        read(topic, 3, 0)
    assert [record.epoch for record in read(topic, 1, 0).records] == [1] * 5
    partition.delete_before(4)
    assert len(read(topic, 4, 1).records) == 2
    with pytest.raises(OutOfLog) as caught:
        read(topic, 3, 1)
    assert not isinstance(caught.value, LostTail)
