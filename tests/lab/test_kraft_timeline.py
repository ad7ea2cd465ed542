"""When throttles stood and when they were gone, judged from a controller's records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from autothrottle.lab.kafka import PartitionState
from autothrottle.lab.kraft_timeline import read_kraft_timeline
from autothrottle.lab.metadata_log import Change, ConfigWritten, MetadataRecord, PartitionWritten, TopicDeleted
from autothrottle.lab.observer import Timeline

START = datetime(2026, 1, 1, tzinfo=UTC)
LEADER_RATE = ("brokers/1", "leader.replication.throttled.rate")
FOLLOWER_RATE = ("brokers/2", "follower.replication.throttled.rate")
LEADER_LIST = ("topics/t", "leader.replication.throttled.replicas")
FOLLOWER_LIST = ("topics/t", "follower.replication.throttled.replicas")

BEFORE = PartitionWritten(("t", 0), PartitionState((1,), (), (), 1, (1,)))
MOVING = PartitionWritten(("t", 0), PartitionState((2, 1), (2,), (1,), 1, (1,)))
DONE = PartitionWritten(("t", 0), PartitionState((2,), (), (), 2, (2,)))
THROTTLE = [
    ConfigWritten(*LEADER_RATE, "5"),
    ConfigWritten(*FOLLOWER_RATE, "5"),
    ConfigWritten(*LEADER_LIST, "0:1"),
    ConfigWritten(*FOLLOWER_LIST, "0:2"),
]
REMOVAL = [ConfigWritten(change.entity, change.key, None) for change in THROTTLE]


def timeline(*changes: Change) -> Timeline:
    """Return the timeline of a move of t-0; the first change is at offset 0, and each takes a second."""
    records = [MetadataRecord(n, START + timedelta(seconds=n), change) for n, change in enumerate(changes)]
    return read_kraft_timeline(records, after_offset=0)


def test_a_throttle_stands_when_the_last_rate_and_list_do() -> None:
    found = timeline(BEFORE, MOVING, *THROTTLE, DONE, *REMOVAL)
    assert found.started == START + timedelta(seconds=1)
    assert found.seconds(found.throttled) == 4
    assert found.seconds(found.ended) == 5
    assert found.seconds(found.clean) == 9
    assert found.writes == 8


@pytest.mark.parametrize("missing", range(4))
def test_without_a_rate_or_a_list_it_does_not_stand(missing: int) -> None:
    throttle = [change for number, change in enumerate(THROTTLE) if number != missing]
    assert timeline(BEFORE, MOVING, *throttle, DONE).throttled is None


@pytest.mark.parametrize("entries", ["", "0:1", "0:2,0:3", "*"])
def test_a_list_that_is_not_exact_does_not_count_as_standing(entries: str) -> None:
    assert timeline(BEFORE, MOVING, *THROTTLE[:3], ConfigWritten(*FOLLOWER_LIST, entries), DONE).throttled is None


def test_a_throttle_that_is_left_is_never_clean() -> None:
    assert timeline(BEFORE, MOVING, *THROTTLE, DONE, *REMOVAL[:3]).clean is None


def test_a_topic_that_is_deleted_takes_its_lists_along() -> None:
    found = timeline(BEFORE, MOVING, *THROTTLE, TopicDeleted("t"), *REMOVAL[:2])
    assert found.seconds(found.ended) == 5
    assert found.seconds(found.clean) == 7


def test_what_was_written_before_the_move_stands_and_is_not_counted() -> None:
    records: list[Change] = [BEFORE, *THROTTLE, MOVING, DONE]
    found = read_kraft_timeline(
        [MetadataRecord(n, START + timedelta(seconds=n), change) for n, change in enumerate(records)], after_offset=4
    )
    assert (found.seconds(found.throttled), found.writes) == (0, 0)
