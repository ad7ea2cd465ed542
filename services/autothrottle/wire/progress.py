"""Progress to pieces of a snapshot's chunks and back, as columns: 10,000 flows are possible."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate, islice, pairwise

from autothrottle.core.errors import Incomplete
from autothrottle.core.flows import Flow, FlowProgress, LandedMark, Progress, TopicProgress
from autothrottle.core.growth import GrowthMark, LogGrowth
from autothrottle.v1 import discovery_pb2
from autothrottle.wire.times import time_from_message, time_to_message

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_FLOW_COLUMNS = (
    "leaders",
    "followers",
    "bytes_landed",
    "bytes_grown",
    "bytes_left",
    "times_us",
    "since_us",
    "recent_counts",
)
_RECENT_COLUMNS = ("recent_ages_us", "recent_bytes_before")
_TOPIC_COLUMNS = (
    "topics",
    "topic_bytes_landed",
    "topic_bytes_left",
    "topic_etas_us",
    "topic_eta_lows_us",
    "topic_eta_highs_us",
)
_GROWTH_COLUMNS = (
    "growth_brokers",
    "growth_led",
    "growth_received",
    "growth_times_us",
    "growth_since_us",
    "growth_recent_counts",
)
_GROWTH_RECENT_COLUMNS = ("growth_recent_ages_us", "growth_recent_led_before", "growth_recent_received_before")


def progress_to_messages(progress: Progress, rows_per_message: int) -> Iterator[discovery_pb2.Progress]:
    """Yield the messages that together are one progress; the first has the times.

    Args:
        progress: what is sent.
        rows_per_message: how many flows, topics or brokers one message holds at most, > 0.
    """
    header = discovery_pb2.Progress()
    if progress.at is not None:
        header.read_time.CopyFrom(time_to_message(progress.at))
    if progress.eta is not None:
        header.eta.CopyFrom(time_to_message(progress.eta))
    if progress.eta_low is not None:
        header.eta_low.CopyFrom(time_to_message(progress.eta_low))
    if progress.eta_high is not None:
        header.eta_high.CopyFrom(time_to_message(progress.eta_high))
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
            recent_counts=[len(count.recent) for _, count in rows],
            recent_ages_us=[(count.at - mark.at) // _MICROSECOND for _, count in rows for mark in count.recent],
            recent_bytes_before=[count.bytes_landed - mark.bytes_landed for _, count in rows for mark in count.recent],
        )
    topics = iter(progress.topics.items())
    while named := list(islice(topics, rows_per_message)):
        yield discovery_pb2.Progress(
            topics=[topic for topic, _ in named],
            topic_bytes_landed=[count.bytes_landed for _, count in named],
            topic_bytes_left=[count.bytes_left for _, count in named],
            topic_etas_us=[_microseconds(count.eta) for _, count in named],
            topic_eta_lows_us=[_microseconds(count.eta_low) for _, count in named],
            topic_eta_highs_us=[_microseconds(count.eta_high) for _, count in named],
        )
    brokers = iter(progress.growth.items())
    while grown := list(islice(brokers, rows_per_message)):
        yield discovery_pb2.Progress(
            growth_brokers=[broker_id for broker_id, _ in grown],
            growth_led=[growth.led for _, growth in grown],
            growth_received=[growth.received for _, growth in grown],
            growth_times_us=[_microseconds(growth.at) for _, growth in grown],
            growth_since_us=[_microseconds(growth.since) for _, growth in grown],
            growth_recent_counts=[len(growth.recent) for _, growth in grown],
            growth_recent_ages_us=[(g.at - mark.at) // _MICROSECOND for _, g in grown for mark in g.recent],
            growth_recent_led_before=[g.led - mark.led for _, g in grown for mark in g.recent],
            growth_recent_received_before=[g.received - mark.received for _, g in grown for mark in g.recent],
        )


def progress_from_message(whole: discovery_pb2.Progress) -> Progress:
    """Return the progress that the merged messages hold.

    Raises:
        Incomplete: when a column is too short or too long.
    """
    _check(whole, _FLOW_COLUMNS)
    _check(whole, _TOPIC_COLUMNS)
    return Progress(
        flows=dict(_flows(whole)),
        topics={
            topic: TopicProgress(landed, left, _maybe(eta), _maybe(low), _maybe(high))
            for topic, landed, left, eta, low, high in zip(
                *(getattr(whole, column) for column in _TOPIC_COLUMNS), strict=True
            )
        },
        at=time_from_message(whole.read_time) if whole.HasField("read_time") else None,
        eta=time_from_message(whole.eta) if whole.HasField("eta") else None,
        eta_low=time_from_message(whole.eta_low) if whole.HasField("eta_low") else None,
        eta_high=time_from_message(whole.eta_high) if whole.HasField("eta_high") else None,
        growth=dict(_growth(whole)),
    )


def _flows(whole: discovery_pb2.Progress) -> Iterator[tuple[Flow, FlowProgress]]:
    edges = _edges(whole, "recent_counts", _RECENT_COLUMNS)
    marks = list(zip(whole.recent_ages_us, whole.recent_bytes_before, strict=True))
    known = _Times()
    times = zip(whole.times_us, whole.since_us, pairwise(edges), strict=True)
    counts = zip(whole.bytes_landed, whole.bytes_grown, whole.bytes_left, times, strict=True)
    for leader, follower, (landed, grown, left, (at, since, (first, last))) in zip(
        whole.leaders, whole.followers, counts, strict=True
    ):
        recent = tuple([LandedMark(known[at - age], landed - before) for age, before in marks[first:last]])
        yield Flow(leader, follower), FlowProgress(landed, grown, left, known[at], known[since], recent)


def _growth(whole: discovery_pb2.Progress) -> Iterator[tuple[int, LogGrowth]]:
    _check(whole, _GROWTH_COLUMNS)
    edges = _edges(whole, "growth_recent_counts", _GROWTH_RECENT_COLUMNS)
    marks = list(zip(*(getattr(whole, column) for column in _GROWTH_RECENT_COLUMNS), strict=True))
    known = _Times()
    times = zip(whole.growth_times_us, whole.growth_since_us, pairwise(edges), strict=True)
    for broker_id, led, received, (at, since, (first, last)) in zip(
        whole.growth_brokers, whole.growth_led, whole.growth_received, times, strict=True
    ):
        recent = tuple(
            GrowthMark(known[at - age], led - led_before, received - received_before)
            for age, led_before, received_before in marks[first:last]
        )
        yield broker_id, LogGrowth(led, received, known[at], known[since], recent)


def _edges(whole: discovery_pb2.Progress, counts: str, columns: tuple[str, ...]) -> list[int]:
    """Where the earlier counts of each row begin and end in their columns."""
    numbers = getattr(whole, counts)
    if min(numbers, default=0) < 0:
        raise Incomplete(f"the column {counts} of the progress has a number < 0; ask for the snapshot again")
    edges = list(accumulate(numbers, initial=0))
    _check(whole, columns, edges[-1])
    return edges


class _Times(dict[int, datetime]):
    """Microseconds since 1970 -> that time, made once: the flows to one destination are counted at the same ones."""

    def __missing__(self, microseconds: int) -> datetime:
        found = self[microseconds] = _EPOCH + timedelta(microseconds=microseconds)
        return found


def _microseconds(time: datetime | None) -> int:
    """Since 1970; 0: unknown."""
    return 0 if time is None else (time - _EPOCH) // _MICROSECOND


def _maybe(microseconds: int) -> datetime | None:
    return _EPOCH + timedelta(microseconds=microseconds) if microseconds else None


def _check(whole: discovery_pb2.Progress, columns: tuple[str, ...], rows: int | None = None) -> None:
    expected = len(getattr(whole, columns[0])) if rows is None else rows
    for column in columns:
        if (found := len(getattr(whole, column))) != expected:
            raise Incomplete(
                f"the column {column} of the progress has {found} values instead of {expected}; "
                "ask for the snapshot again"
            )
