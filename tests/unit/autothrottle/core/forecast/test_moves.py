"""The moves that operators see: their partitions, bytes left and ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from autothrottle.core.cluster.flows import CopiedMark, Flow, FlowProgress, Progress, TopicProgress
from autothrottle.core.cluster.snapshot import BrokerLogSizes, LogSizes, Snapshot, TopicReassignment
from autothrottle.core.forecast.moves import running_moves
from tests.builders import NOON, mb

MINUTE = timedelta(minutes=1)


def flow(bytes_left: int, rate: int) -> FlowProgress:
    """The progress of a flow that has copied at this rate for a minute."""
    return FlowProgress(60 * rate, 0, bytes_left, NOON, NOON - MINUTE, (CopiedMark(NOON - MINUTE, 0),))


def moving(*topics: str, end: datetime | None = None, progress: bool = True) -> Snapshot:
    """Partitions 0, 1, 2 and 5 move from 1 to 2 and 3, where 1 leads; partition 4 is in sync already."""
    rows = {
        **dict.fromkeys((0, 1, 5), (1, (1,), (2,), (1,))),
        2: (1, (1,), (3,), (1,)),
        4: (1, (1, 2), (2,), (1,)),
    }
    flows = {Flow(1, 2): flow(mb(120), mb(2)), Flow(1, 3): flow(mb(600), mb(5))} if progress else {}
    topic_progress = {topic: TopicProgress(0, mb(720), end) for topic in topics} if progress else {}
    return Snapshot(
        version=1,
        brokers=frozenset((1, 2, 3)),
        reassignments=tuple(TopicReassignment.of_partitions(topic, rows) for topic in topics),
        progress=Progress(flows, topic_progress, NOON) if progress else None,
    )


def sizes(**logs: int) -> LogSizes:
    """The sizes of the logs `b1_p0` of topic t on brokers 1 to 3."""
    of_brokers: dict[int, dict[tuple[str, int], int]] = {1: {}, 2: {}, 3: {}}
    for name, size in logs.items():
        broker_id, partition = (int(part[1:]) for part in name.split("_"))
        of_brokers[broker_id]["t", partition] = size
    return LogSizes({b: BrokerLogSizes(NOON, of_broker) for b, of_broker in of_brokers.items()})


def test_partitions_with_the_same_brokers_are_one_move_with_its_own_end() -> None:
    copied = sizes(b1_p0=mb(50), b1_p1=mb(50), b1_p5=mb(50), b2_p0=mb(30), b1_p2=mb(600))
    first, second = running_moves(moving("t", end=NOON + 5 * MINUTE), copied)
    assert (first.topic, first.partitions, first.partitions_to_copy) == ("t", (0, 1, 4, 5), 3)
    assert (first.adding_replicas, first.removing_replicas, first.bytes_left) == ((2,), (1,), mb(120))
    assert first.eta == NOON + MINUTE
    assert (second.partitions, second.adding_replicas, second.bytes_left) == ((2,), (3,), mb(600))
    assert second.eta == NOON + 2 * MINUTE


def test_a_move_ends_not_later_than_its_topic() -> None:
    ends = [move.eta for move in running_moves(moving("t", end=NOON + MINUTE / 2), LogSizes())]
    assert ends == [NOON + MINUTE / 2] * 2


def test_what_is_not_known_is_absent() -> None:
    for move in running_moves(moving("t", progress=False), sizes(b2_p0=1)):
        assert (move.bytes_left, move.eta) == (None, None)


def test_a_move_whose_leader_has_changed_ends_not_later_than_all_reassignments() -> None:
    """After a leader died, a list of moves had one that ended half an hour after "all done".

    The new flow has copied little yet, and the end of its topic is unknown.
    """
    snapshot = moving("t")
    assert snapshot.progress is not None
    snapshot = replace(snapshot, progress=replace(snapshot.progress, eta=NOON + MINUTE / 2))
    assert [move.eta for move in running_moves(snapshot, LogSizes())] == [NOON + MINUTE / 2] * 2
