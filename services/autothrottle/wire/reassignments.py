"""Reassignments that are asked for, and what Kafka refused of them, to messages and back.

What comes in from elsewhere is checked here, as far as that needs no cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from itertools import chain

from google.protobuf.timestamp_pb2 import Timestamp

from autothrottle.core.errors import Invalid
from autothrottle.core.flows import Progress, TopicProgress
from autothrottle.core.progress import remainder
from autothrottle.core.reassignment import MAX_PARTITIONS, Submitted, Targets, partitions, targets
from autothrottle.core.topology import Snapshot, TopicPartition, TopicReassignment, flows
from autothrottle.v1 import admin_pb2, discovery_pb2, planner_pb2, types_pb2
from autothrottle.wire.times import time_to_message


def targets_to_messages(wanted: Targets) -> list[types_pb2.PartitionTarget]:
    """Return targets as messages."""
    return [types_pb2.PartitionTarget(topic=t, partition=p, replicas=to) for (t, p), to in wanted.items()]


def targets_from_messages(messages: Collection[types_pb2.PartitionTarget]) -> Targets:
    """Return the targets that messages hold.

    Raises:
        Invalid: when they cannot be right in any cluster.
    """
    _demand_few(len(messages))
    return targets((m.topic, m.partition, tuple(m.replicas)) for m in messages)


def partitions_to_messages(rows: Iterable[TopicPartition]) -> list[types_pb2.TopicPartition]:
    """Return partitions as messages."""
    return [types_pb2.TopicPartition(topic=topic, partition=partition) for topic, partition in rows]


def partitions_from_messages(messages: Collection[types_pb2.TopicPartition]) -> tuple[TopicPartition, ...]:
    """Return the partitions that messages hold.

    Raises:
        Invalid: when there is none, one is named twice, or a number is out of range.
    """
    _demand_few(len(messages))
    return partitions((m.topic, m.partition) for m in messages)


def partitions_to_topics(rows: Iterable[TopicPartition]) -> list[discovery_pb2.TopicPartitions]:
    """Return partitions by topic."""
    topics: dict[str, list[int]] = {}
    for topic, partition in rows:
        topics.setdefault(topic, []).append(partition)
    return [discovery_pb2.TopicPartitions(topic=topic, partitions=found) for topic, found in topics.items()]


def partitions_from_topics(messages: Collection[discovery_pb2.TopicPartitions]) -> tuple[TopicPartition, ...]:
    """Return the partitions that messages name by topic.

    Raises:
        Invalid: when one is named twice, or a number is out of range.
    """
    _demand_few(sum(len(m.partitions) for m in messages))
    found = [(m.topic, partition) for m in messages for partition in m.partitions]
    return partitions(found) if found else ()


def refusals_to_messages(refused: Mapping[TopicPartition, str]) -> list[types_pb2.PartitionRefusal]:
    """Return what Kafka refused as messages."""
    return [types_pb2.PartitionRefusal(topic=t, partition=p, reason=why) for (t, p), why in refused.items()]


def refusals_from_messages(messages: Iterable[types_pb2.PartitionRefusal]) -> dict[TopicPartition, str]:
    """Return what Kafka refused."""
    return {(m.topic, m.partition): m.reason for m in messages}


def submitted_to_message(submitted: Submitted) -> planner_pb2.StartReassignmentResponse:
    """Return what became of a reassignment as a message."""
    return planner_pb2.StartReassignmentResponse(
        started=submitted.started,
        already_moving=submitted.already_moving,
        already_there=submitted.already_there,
        refused=refusals_to_messages(submitted.refused),
    )


def submitted_from_message(message: planner_pb2.StartReassignmentResponse) -> Submitted:
    """Return what became of a reassignment."""
    return Submitted(
        message.started, message.already_moving, message.already_there, refusals_from_messages(message.refused)
    )


def reassignments_to_list(snapshot: Snapshot, with_paths: bool = False) -> admin_pb2.ListReassignmentsResponse:
    """Return what a snapshot shows to be reassigned, and how far it has come, as a message."""
    progress = snapshot.progress or Progress()
    left = remainder(snapshot)
    return admin_pb2.ListReassignmentsResponse(
        topics=[_topic_to_message(one, progress.topics.get(one.topic)) for one in snapshot.reassignments],
        eta=_time(left.eta if left else None),
        eta_low=_time(left.eta_low if left else None),
        eta_high=_time(left.eta_high if left else None),
        paths=_paths_to_messages(snapshot, progress) if with_paths else (),
    )


def _paths_to_messages(snapshot: Snapshot, progress: Progress) -> list[admin_pb2.ReassignmentPath]:
    found = []
    for flow, count in sorted(flows(snapshot).items()):
        known = progress.flows.get(flow)
        found.append(
            admin_pb2.ReassignmentPath(
                leader=flow[0],
                follower=flow[1],
                partitions=count,
                bytes_left=known.bytes_left if known else None,
                bytes_per_second=known.landed_per_second if known else None,
                growth_bytes_per_second=known.grown_per_second if known else None,
            )
        )
    return found


def _topic_to_message(reassignment: TopicReassignment, progress: TopicProgress | None) -> admin_pb2.ReassigningTopic:
    return admin_pb2.ReassigningTopic(
        topic=reassignment.topic,
        partitions=reassignment.partitions,
        adding_replicas=sorted(set(chain.from_iterable(reassignment.adding_replicas))),
        removing_replicas=sorted(set(chain.from_iterable(reassignment.removing_replicas))),
        partitions_to_copy=sum(bool(pending) for _, _, _, pending in reassignment.rows()),
        bytes_landed=progress.bytes_landed if progress else None,
        bytes_left=progress.bytes_left if progress else None,
        eta=_time(progress.eta if progress else None),
        eta_low=_time(progress.eta_low if progress else None),
        eta_high=_time(progress.eta_high if progress else None),
    )


def _time(time: datetime | None) -> Timestamp | None:
    return None if time is None else time_to_message(time)


def _demand_few(count: int) -> None:
    if count > MAX_PARTITIONS:
        raise Invalid(f"{count} partitions are named; name at most {MAX_PARTITIONS} at a time")
