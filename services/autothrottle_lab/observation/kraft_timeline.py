"""The timeline of a reassignment in a KRaft cluster, from the records of its metadata log.

It applies the same rules as `observer.read_timeline` does to ZooKeeper's transactions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    THROTTLE_KEYS,
    parse_replicas,
)
from autothrottle_lab.observation.metadata_log import ConfigWritten, MetadataRecord, PartitionWritten, TopicDeleted
from autothrottle_lab.observation.observer import Timeline
from autothrottle_lab.servers.kafka import Partition, PartitionState


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
    partitions: dict[Partition, PartitionState] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    def take(self, record: MetadataRecord, counts: bool) -> None:
        change, timeline = record.change, self.timeline
        if isinstance(change, PartitionWritten):
            self.partitions[change.partition] = change.state
        elif isinstance(change, TopicDeleted):
            self.configs.pop(f"topics/{change.topic}", None)
            self.partitions = {p: state for p, state in self.partitions.items() if p[0] != change.topic}
        elif isinstance(change, ConfigWritten):
            self._set(change)
            timeline.writes += bool(timeline.started)
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

    def _set(self, change: ConfigWritten) -> None:
        if change.value is None:
            self.configs[change.entity].pop(change.key, None)
        else:
            self.configs[change.entity][change.key] = change.value

    def _is_reassigning(self) -> bool:
        return any(state.adding_replicas or state.removing_replicas for state in self.partitions.values())

    def _is_throttled(self) -> bool:
        return any(config.keys() & THROTTLE_KEYS for config in self.configs.values())

    def _is_fully_throttled(self) -> bool:
        """Whether all throttles of the reassignment are set, and the throttled replicas are exactly those it needs."""
        lists: dict[tuple[str, str], set[str]] = defaultdict(set)
        rates: set[tuple[int, str]] = set()
        for (topic, partition), state in self.partitions.items():
            if pending := set(state.adding_replicas) - set(state.isr):
                lists[topic, LEADER_REPLICAS] |= {f"{partition}:{b}" for b in state.isr}
                lists[topic, FOLLOWER_REPLICAS] |= {f"{partition}:{b}" for b in pending}
                rates |= {(state.leader, LEADER_RATE), *((b, FOLLOWER_RATE) for b in pending)}
        return (
            bool(rates)
            and all(key in self.configs[f"brokers/{broker_id}"] for broker_id, key in rates)
            and all(
                parse_replicas(self.configs[f"topics/{topic}"].get(key, "")) == entries
                for (topic, key), entries in lists.items()
            )
        )
