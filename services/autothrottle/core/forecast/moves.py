"""The running moves: partitions of one topic that are reassigned from the same brokers to the same brokers.

An operator cancels moves, and wants to know when each one ends. The type to know is `RunningMove`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from autothrottle.core.cluster.flows import Flow, FlowProgress, Progress
from autothrottle.core.cluster.snapshot import LogSizes, Snapshot, TopicReassignment
from autothrottle.core.forecast.eta import earlier, end_at, last_time, log_size, static_end
from autothrottle.core.records import RunningMove, Throttle

_Brokers = tuple[int, ...]


def running_moves(snapshot: Snapshot, sizes: LogSizes) -> tuple[RunningMove, ...]:
    """Return the moves of all reassignments, ordered by topic and first partition.

    A move ends when the slowest of its flows ends, and not later than its topic and all reassignments. At its start,
    before the copy rate is known, the throttles determine the end.

    Args:
        snapshot: the reassignments and their progress.
        sizes: sizes of the logs from `sizes_needed`; those of absent brokers are unknown.
    """
    progress = snapshot.progress or Progress()
    throttles = {side: Throttle(*side, rate) for side, rate in snapshot.rates.items()}
    moves: list[RunningMove] = []
    for reassignment in snapshot.reassignments:
        of_topic, topic_progress = list(_moves(reassignment, sizes)), progress.topics.get(reassignment.topic)
        topic_end = topic_progress.eta if topic_progress is not None else None
        for move, flows in of_topic:
            flows_end = _end(flows, progress) if len(of_topic) > 1 else topic_end
            measured = earlier(flows_end, topic_end) or topic_end
            end = measured or static_end(progress, flows, throttles)
            moves.append(replace(move, eta=earlier(end, progress.eta)))
    return tuple(moves)


def _moves(reassignment: TopicReassignment, sizes: LogSizes) -> Iterator[tuple[RunningMove, frozenset[Flow]]]:
    """Yield each move without its end, and its flows; those without a leader have the leader -1."""
    rows = zip(reassignment.rows(), reassignment.adding_replicas, reassignment.removing_replicas, strict=True)
    grouped: dict[tuple[_Brokers, _Brokers], list[tuple[int, int, _Brokers]]] = {}
    for (partition, leader, _, pending), adding, removing in rows:
        brokers = tuple(sorted(adding)), tuple(sorted(removing))
        grouped.setdefault(brokers, []).append((partition, leader, pending))
    for (adding, removing), partitions in grouped.items():
        sizes_left = [
            _bytes_left(sizes, (reassignment.topic, partition), leader, follower)
            for partition, leader, pending in partitions
            for follower in pending
        ]
        known_sizes = [size for size in sizes_left if size is not None]
        move = RunningMove(
            topic=reassignment.topic,
            partitions=tuple(partition for partition, _, _ in partitions),
            adding_replicas=adding,
            removing_replicas=removing,
            partitions_to_copy=sum(bool(pending) for _, _, pending in partitions),
            bytes_left=sum(known_sizes) if len(known_sizes) == len(sizes_left) else None,
        )
        yield move, frozenset(Flow(leader, follower) for _, leader, pending in partitions for follower in pending)


def _bytes_left(sizes: LogSizes, row: tuple[str, int], leader: int, follower: int) -> int | None:
    size = log_size(sizes, leader, row)
    if size is None or follower not in sizes.brokers:
        return None
    return max(0, size - (log_size(sizes, follower, row) or 0))


def _end(flows: frozenset[Flow], progress: Progress) -> datetime | None:
    """The end of the slowest flow; None: that of a flow is unknown."""
    if not flows:  # all replicas are in sync, so the controller completes it now
        return progress.at
    return last_time([_flow_end(progress.flows.get(flow)) for flow in flows])


def _flow_end(flow: FlowProgress | None) -> datetime | None:
    if flow is None:
        return None
    if not flow.bytes_left:
        return flow.at
    rate = (flow.copied_per_second or 0) - (flow.produced_per_second or 0)
    return end_at(flow.at, flow.bytes_left, rate)
