"""Progress to pieces of a snapshot's chunks and back, as columns: 10,000 flows are possible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

from autothrottle.core.errors import Incomplete
from autothrottle.core.flows import Flow, FlowProgress, Progress, TopicProgress
from autothrottle.v1 import discovery_pb2
from autothrottle.wire.times import time_from_message, time_to_message

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_FLOW_COLUMNS = ("leaders", "followers", "bytes_landed", "bytes_grown", "bytes_left", "times_us", "since_us")
_TOPIC_COLUMNS = ("topics", "topic_bytes_landed", "topic_bytes_left")


def progress_to_messages(progress: Progress, rows_per_message: int) -> Iterator[discovery_pb2.Progress]:
    """Yield the messages that together are one progress; the first has the times.

    Args:
        progress: what is sent.
        rows_per_message: how many flows or topics one message holds at most, > 0.
    """
    header = discovery_pb2.Progress()
    if progress.at is not None:
        header.read_time.CopyFrom(time_to_message(progress.at))
    if progress.eta is not None:
        header.eta.CopyFrom(time_to_message(progress.eta))
    yield header
    flows = iter(progress.flows.items())
    while rows := list(islice(flows, rows_per_message)):
        yield discovery_pb2.Progress(
            leaders=[flow.leader for flow, _ in rows],
            followers=[flow.follower for flow, _ in rows],
            bytes_landed=[count.bytes_landed for _, count in rows],
            bytes_grown=[count.bytes_grown for _, count in rows],
            bytes_left=[count.bytes_left for _, count in rows],
            times_us=[(count.at - _EPOCH) // _MICROSECOND for _, count in rows],
            since_us=[(count.since - _EPOCH) // _MICROSECOND for _, count in rows],
        )
    topics = iter(progress.topics.items())
    while named := list(islice(topics, rows_per_message)):
        yield discovery_pb2.Progress(
            topics=[topic for topic, _ in named],
            topic_bytes_landed=[count.bytes_landed for _, count in named],
            topic_bytes_left=[count.bytes_left for _, count in named],
        )


def progress_from_message(whole: discovery_pb2.Progress) -> Progress:
    """Return the progress that the merged messages hold.

    Raises:
        Incomplete: when a column is too short or too long.
    """
    _check(whole, _FLOW_COLUMNS)
    _check(whole, _TOPIC_COLUMNS)
    times = zip(_times(whole.times_us), _times(whole.since_us), strict=True)
    counts = zip(whole.bytes_landed, whole.bytes_grown, whole.bytes_left, times, strict=True)
    return Progress(
        flows={
            Flow(leader, follower): FlowProgress(landed, grown, left, at, since)
            for leader, follower, (landed, grown, left, (at, since)) in zip(
                whole.leaders, whole.followers, counts, strict=True
            )
        },
        topics={
            topic: TopicProgress(landed, left)
            for topic, landed, left in zip(whole.topics, whole.topic_bytes_landed, whole.topic_bytes_left, strict=True)
        },
        at=time_from_message(whole.read_time) if whole.HasField("read_time") else None,
        eta=time_from_message(whole.eta) if whole.HasField("eta") else None,
    )


def _times(microseconds: Iterable[int]) -> Iterator[datetime]:
    return (_EPOCH + timedelta(microseconds=us) for us in microseconds)


def _check(whole: discovery_pb2.Progress, columns: tuple[str, ...]) -> None:
    expected = len(getattr(whole, columns[0]))
    for column in columns:
        if (found := len(getattr(whole, column))) != expected:
            raise Incomplete(
                f"the column {column} of the progress has {found} values instead of {expected}; "
                "ask for the snapshot again"
            )
