"""The timeline of throttles, from the records of a KRaft controller."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from autothrottle_lab.observation.metadata_log import (
    Change,
    ConfigWritten,
    MetadataRecord,
    PartitionWritten,
    TopicDeleted,
)
from autothrottle_lab.observation.observer import Timeline, read_kraft_timeline
from autothrottle_lab.servers.kafka import PartitionState

START = datetime(2026, 1, 1, tzinfo=UTC)
LEADER_RATE = ("brokers/1", "leader.replication.throttled.rate")
FOLLOWER_RATE = ("brokers/2", "follower.replication.throttled.rate")
LEADER_LIST = ("topics/t", "leader.replication.throttled.replicas")
FOLLOWER_LIST = ("topics/t", "follower.replication.throttled.replicas")

BEFORE = PartitionWritten(("t", 0), PartitionState((1,), (), (), 1, (1,)))
REASSIGNING = PartitionWritten(("t", 0), PartitionState((2, 1), (2,), (1,), 1, (1,)))
DONE = PartitionWritten(("t", 0), PartitionState((2,), (), (), 2, (2,)))
THROTTLE = [
    ConfigWritten(*LEADER_RATE, "5"),
    ConfigWritten(*FOLLOWER_RATE, "5"),
    ConfigWritten(*LEADER_LIST, "0:1"),
    ConfigWritten(*FOLLOWER_LIST, "0:2"),
]
REMOVAL = [ConfigWritten(change.entity, change.key, None) for change in THROTTLE]


def timeline(*changes: Change) -> Timeline:
    """Return the timeline of a reassignment of t-0. Changes have offsets from 0 on, and are one second apart."""
    records = [MetadataRecord(n, START + timedelta(seconds=n), change) for n, change in enumerate(changes)]
    return read_kraft_timeline(records, after_offset=0)


def test_throttled_is_the_time_of_the_last_throttle_or_list_write() -> None:
    found = timeline(BEFORE, REASSIGNING, *THROTTLE, DONE, *REMOVAL)
    assert found.started == START + timedelta(seconds=1)
    assert found.seconds(found.throttled) == 4
    assert found.seconds(found.ended) == 5
    assert found.seconds(found.clean) == 9
    assert found.writes == 8


@pytest.mark.parametrize("missing", range(4))
def test_reassignment_without_all_rates_and_lists_is_not_throttled(missing: int) -> None:
    throttle = [change for number, change in enumerate(THROTTLE) if number != missing]
    assert timeline(BEFORE, REASSIGNING, *throttle, DONE).throttled is None


@pytest.mark.parametrize("entries", ["", "0:1", "0:2,0:3", "*"])
def test_reassignment_with_inexact_throttled_replicas_is_not_throttled(entries: str) -> None:
    assert timeline(BEFORE, REASSIGNING, *THROTTLE[:3], ConfigWritten(*FOLLOWER_LIST, entries), DONE).throttled is None


def test_timeline_with_a_throttle_left_is_not_clean() -> None:
    assert timeline(BEFORE, REASSIGNING, *THROTTLE, DONE, *REMOVAL[:3]).clean is None


def test_deletion_of_a_topic_removes_its_throttled_replicas() -> None:
    found = timeline(BEFORE, REASSIGNING, *THROTTLE, TopicDeleted("t"), *REMOVAL[:2])
    assert found.seconds(found.ended) == 5
    assert found.seconds(found.clean) == 7


def test_throttles_set_before_the_reassignment_apply_but_are_not_counted_as_writes() -> None:
    records: list[Change] = [BEFORE, *THROTTLE, REASSIGNING, DONE]
    found = read_kraft_timeline(
        [MetadataRecord(n, START + timedelta(seconds=n), change) for n, change in enumerate(records)], after_offset=4
    )
    assert (found.seconds(found.throttled), found.writes) == (0, 0)
