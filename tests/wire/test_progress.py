"""Progress on the wire: as it was sent, however it is cut, and no column too short."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.errors import Incomplete
from autothrottle.core.flows import Flow, FlowProgress, LandedMark, Progress, TopicProgress
from autothrottle.core.growth import GrowthMark, LogGrowth
from autothrottle.v1.admin_pb2 import ListReassignmentsResponse
from autothrottle.v1.discovery_pb2 import GetSnapshotResponse
from autothrottle.v1.discovery_pb2 import Progress as ProgressMessage
from autothrottle.wire.progress import progress_from_message, progress_to_messages
from autothrottle.wire.reassignments import reassignments_to_list
from autothrottle.wire.snapshots import snapshot_from_chunks, snapshot_to_chunks
from tests import builders
from tests.builders import NOON
from tests.wire.strategies import progresses

ONE = Progress(
    flows={
        Flow(1001, 1004): FlowProgress(
            30, 5, 70, NOON, NOON - timedelta(minutes=3), (LandedMark(NOON - timedelta(seconds=2), 10),)
        )
    },
    topics={"t": TopicProgress(30, 70)},
    at=NOON,
    eta=NOON + timedelta(minutes=7),
    growth={
        1001: LogGrowth(9, 20, NOON, NOON - timedelta(minutes=3), (GrowthMark(NOON - timedelta(seconds=2), 4, 5),))
    },
)


def sent(progress: Progress, rows: int) -> ProgressMessage:
    """The messages as they come out of the wire, merged."""
    whole = ProgressMessage()
    for message in progress_to_messages(progress, rows):
        whole.MergeFrom(ProgressMessage.FromString(message.SerializeToString()))
    return whole


@given(progress=progresses, rows=st.integers(1, 4))
def test_progress_arrives_as_it_was_sent_however_it_is_cut(progress: Progress, rows: int) -> None:
    arrived = progress_from_message(sent(progress, rows))
    assert arrived == progress
    assert list(arrived.flows) == list(progress.flows)


@pytest.mark.parametrize(
    "column",
    [
        "followers",
        "bytes_landed",
        "bytes_grown",
        "bytes_left",
        "times_us",
        "since_us",
        "recent_counts",
        "recent_ages_us",
        "recent_bytes_before",
        "growth_led",
        "growth_received",
        "growth_times_us",
        "growth_since_us",
        "growth_recent_counts",
        "growth_recent_ages_us",
        "growth_recent_led_before",
        "growth_recent_received_before",
    ],
)
def test_a_column_of_flows_or_brokers_that_is_too_short_is_incomplete(column: str) -> None:
    message = sent(ONE, 10)
    getattr(message, column).pop()
    with pytest.raises(Incomplete, match=f"the column {column} of the progress has 0 values instead of 1"):
        progress_from_message(message)


@pytest.mark.parametrize("column", ["topic_bytes_landed", "topic_bytes_left"])
def test_a_column_of_topics_that_is_too_short_is_incomplete(column: str) -> None:
    message = sent(ONE, 10)
    getattr(message, column).pop()
    with pytest.raises(Incomplete, match=f"the column {column} of the progress has 0 values instead of 1"):
        progress_from_message(message)


def test_a_progress_without_any_reading_is_not_an_absent_one() -> None:
    def arrived(progress: Progress | None) -> Progress | None:
        chunks = snapshot_to_chunks(builders.snapshot(progress=progress))
        return snapshot_from_chunks(GetSnapshotResponse.FromString(c.SerializeToString()) for c in chunks).progress

    assert arrived(Progress()) == Progress()
    assert arrived(None) is None


def test_ten_thousand_flows_are_spread_over_chunks_of_bounded_size() -> None:
    count = FlowProgress(2**40, 2**40, 2**40, NOON, NOON)
    flows = {Flow(leader, follower): count for leader in range(100) for follower in range(1000, 1100)}
    snapshot = builders.snapshot(
        progress=Progress(flows, {f"topic-{n}": TopicProgress(1, 1) for n in range(1000)}, NOON)
    )
    chunks = list(snapshot_to_chunks(snapshot))
    assert max(chunk.ByteSize() for chunk in chunks) < 400_000
    assert snapshot_from_chunks(chunks) == snapshot


def test_who_lists_reassignments_is_told_how_far_each_topic_has_come() -> None:
    rows: dict[int, builders.Row] = {0: (1001, (1001,), (1004,), ())}
    known, other = builders.reassignment("t", rows), builders.reassignment("u", rows)
    listed = reassignments_to_list(builders.snapshot(known, other, progress=ONE))
    first, second = ListReassignmentsResponse.FromString(listed.SerializeToString()).topics
    assert (first.topic, first.bytes_landed, first.bytes_left) == ("t", 30, 70)
    assert not second.HasField("bytes_left") and not second.HasField("bytes_landed")
    assert listed.eta.ToDatetime(tzinfo=NOON.tzinfo) == NOON + timedelta(minutes=7)
    unknown = reassignments_to_list(builders.snapshot(known))
    assert not unknown.topics[0].HasField("bytes_left") and not unknown.HasField("eta")
