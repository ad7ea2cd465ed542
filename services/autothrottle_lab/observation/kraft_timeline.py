"""The timeline of a reassignment in a KRaft cluster, from the records of its metadata log.

It applies the same rules as `observer.read_timeline` does to ZooKeeper's transactions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from autothrottle.core.cluster.configs import THROTTLE_KEYS
from autothrottle_lab.observation.metadata_log import ConfigWritten, MetadataRecord, MetadataState
from autothrottle_lab.observation.observer import Timeline, is_fully_throttled


def read_kraft_timeline(records: Iterable[MetadataRecord], after_offset: int) -> Timeline:
    """Return the timeline of the reassignment that started after an offset.

    `writes` counts config keys. `leader_changes` is 0, because the metadata log has no terms of autothrottle.

    Args:
        records: all records of the log, in order.
        after_offset: the last offset before the reassignment was submitted.
    """
    replay = _MetadataReplay()
    for record in records:
        replay.take(record, counts=record.offset > after_offset)
    return replay.timeline


@dataclass(slots=True)
class _MetadataReplay:
    """The state of partitions and configs after each record."""

    timeline: Timeline = field(default_factory=Timeline)
    state: MetadataState = field(default_factory=MetadataState)

    def take(self, record: MetadataRecord, counts: bool) -> None:
        change, timeline = record.change, self.timeline
        self.state.apply(change)
        timeline.writes += isinstance(change, ConfigWritten) and bool(timeline.started)
        if not counts:
            return
        if not timeline.started and self._is_reassigning():
            timeline.started = record.time
        if not timeline.started:
            return
        if not timeline.throttled and self._is_fully_throttled():
            timeline.throttled = record.time
        if not timeline.ended and not self._is_reassigning():
            timeline.ended = record.time
        if timeline.ended and not timeline.clean and not self._is_throttled():
            timeline.clean = record.time

    def _is_reassigning(self) -> bool:
        return any(state.adding_replicas or state.removing_replicas for state in self.state.partitions.values())

    def _is_throttled(self) -> bool:
        return any(config.keys() & THROTTLE_KEYS for config in self.state.configs.values())

    def _is_fully_throttled(self) -> bool:
        copies = [
            (partition, state.leader, state.isr, set(state.adding_replicas) - set(state.isr))
            for partition, state in self.state.partitions.items()
        ]
        return is_fully_throttled(copies, self.state.configs.__getitem__)
