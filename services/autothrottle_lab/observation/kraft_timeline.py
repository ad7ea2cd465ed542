"""The timeline of a reassignment in a KRaft cluster, from the records of its metadata log.

It applies the same rules as `observer.read_timeline` does to ZooKeeper's transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autothrottle.core.cluster.configs import THROTTLE_KEYS
from autothrottle_lab.observation.metadata_log import ConfigWritten, MetadataRecord, MetadataState
from autothrottle_lab.observation.observer import Timeline, is_fully_throttled
from autothrottle_lab.servers.kafka import Partition


def read_kraft_timeline(records: Iterable[MetadataRecord], after_offset: int) -> Timeline:
    """Return the timeline of the reassignment that started after an offset.

    `writes` counts config keys. `leader_changes` is 0, because the metadata log has no terms of autothrottle.

    Args:
        records: all records of the log, in order.
        after_offset: the last offset before the reassignment was submitted.
    """
    timeline, state = Timeline(), MetadataState()
    for record in records:
        state.apply(record.change)
        if record.offset <= after_offset:
            continue
        timeline.writes += isinstance(record.change, ConfigWritten) and bool(timeline.started)
        reassigning = any(p.adding_replicas or p.removing_replicas for p in state.partitions.values())
        if not timeline.started and reassigning:
            timeline.started = record.time
        if not timeline.started:
            continue
        if not timeline.throttled and is_fully_throttled(_copies(state), state.configs.__getitem__):
            timeline.throttled = record.time
        if not timeline.ended and not reassigning:
            timeline.ended = record.time
        is_throttled = any(config.keys() & THROTTLE_KEYS for config in state.configs.values())
        if timeline.ended and not timeline.clean and not is_throttled:
            timeline.clean = record.time
    return timeline


def _copies(state: MetadataState) -> list[tuple[Partition, int, Sequence[int], set[int]]]:
    """Return (partition, leader, ISR, adding replicas that are out of sync) of each partition."""
    return [
        (partition, p.leader, p.isr, set(p.adding_replicas) - set(p.isr)) for partition, p in state.partitions.items()
    ]
