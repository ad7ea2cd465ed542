"""Reassignments, assembled from topic nodes, partition states and `/admin/reassign_partitions`.

A reassignment may appear in `/admin/reassign_partitions`, in the adding and removing replicas of the topic's node
(KIP-455), or in both; it counts once. An unchanged reassignment stays the same object, because views of its columns
are computed once per object.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache, partial
from itertools import repeat
from typing import NamedTuple

from autothrottle.adapters.kafka_zookeeper.partition_states import PartitionStates
from autothrottle.adapters.zookeeper.codec import SharedIds, StateNode, TopicNode, parse_reassignments, parse_topic
from autothrottle.adapters.zookeeper.mirror import ParsedNodes
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.core.cluster.snapshot import (
    NO_LEADER,
    Assignment,
    SharedValues,
    TopicPartition,
    TopicReassignment,
    replicas_on,
)

OFFLINE = StateNode(NO_LEADER, ())
"""Stands for the state of a partition without a state node."""

_Replicas = tuple[int, ...]


class _Reassigning(NamedTuple):
    """The partitions of a topic that are being reassigned, as columns."""

    partitions: tuple[int, ...] = ()
    """Ascending."""
    adding: tuple[_Replicas | None, ...] = ()
    """Adding replicas; None: not in the topic's node."""
    removing: tuple[_Replicas, ...] = ()


class _Topic(NamedTuple):
    """A topic's assignment as columns: 1,000,000 partitions take 100 MB instead of 700 MB as maps."""

    partitions: tuple[int, ...]
    """Ascending."""
    replicas: tuple[_Replicas, ...]
    reassigning: _Reassigning


class ReassignmentNodes:
    """The topics, and the reassignments of some of them. Absorbed changes appear after `assemble`."""

    def __init__(self, kafka: KafkaPaths, nodes: ParsedNodes, states: PartitionStates) -> None:
        self._kafka, self._nodes, self._states = kafka, nodes, states
        self._root = kafka.topics + "/"
        self._topics: dict[str, _Topic] = {}
        self._shared, self._shared_ids = SharedValues(), SharedIds()
        self._targets: dict[str, dict[int, tuple[int, ...]]] = {}
        self._reassigning: dict[str, _Reassigning] = {}
        self._touched: set[str] = set()
        self.current: dict[str, TopicReassignment] = {}
        """Topic -> its reassignment, as last assembled."""

    @property
    def reassignments(self) -> tuple[TopicReassignment, ...]:
        """All reassignments, ordered by topic."""
        return tuple(self.current[topic] for topic in sorted(self.current))

    # Absorbing nodes.

    def absorb(self, paths: Iterable[str]) -> None:
        """Read the current content of topic nodes and of the list of reassignments from the mirror."""
        touched: set[str] = set()
        for path in paths:
            if path == self._kafka.reassign_partitions:
                touched |= self._absorb_targets(path)
            else:
                touched.add(self._absorb_topic(path))
        for topic in touched:
            self._absorb_reassignments(topic)
        self._touched |= touched

    def _absorb_targets(self, path: str) -> set[str]:
        parsed = self._nodes.value(path, parse_reassignments)
        if parsed is None:
            if path in self._nodes.problems:
                return set()
            parsed = {}
        targets: dict[str, dict[int, tuple[int, ...]]] = {}
        for (topic, partition), replicas in parsed.items():
            targets.setdefault(topic, {})[partition] = replicas
        touched = self._targets.keys() | targets.keys()
        self._targets = targets
        return set(touched)

    def _absorb_topic(self, path: str) -> str:
        topic = path.removeprefix(self._root)
        if (node := self._nodes.value(path, partial(parse_topic, shared=self._shared_ids))) is not None:
            self._topics[topic] = self._columns(node)
        elif path not in self._nodes.problems:
            self._topics.pop(topic, None)
        return topic

    def _columns(self, node: TopicNode) -> _Topic:
        adding, removing = node.adding_replicas, node.removing_replicas
        partitions = tuple(adding)
        if partitions != tuple(removing):
            partitions = tuple(sorted(adding.keys() | removing.keys()))
            adding, removing = ({p: replicas.get(p, ()) for p in partitions} for replicas in (adding, removing))
        return _Topic(
            _shared_partitions(tuple(node.replicas)),
            tuple(node.replicas.values()),
            _Reassigning(
                _shared_partitions(partitions),
                self._shared_column(adding.values()),
                self._shared_column(removing.values()),
            ),
        )

    def _shared_column(self, column: Collection[_Replicas]) -> tuple[_Replicas, ...]:
        """The same column; other partitions share replicas of one broker, since most add and remove only one."""
        if set(map(len, column)) <= {0, 1}:
            return tuple(map(self._shared.__getitem__, column))
        return tuple(column)

    def _absorb_reassignments(self, topic: str) -> None:
        """Determine which partitions of a topic are being reassigned, and follow their states."""
        known = frozenset(self._reassigning.get(topic, _Reassigning()).partitions)
        reassigning = self._with_targets(topic)
        self._states.follow(topic, frozenset(reassigning.partitions) - known)
        self._states.forget(topic, known.difference(reassigning.partitions))
        if reassigning.partitions:
            self._reassigning[topic] = reassigning
        else:
            self._reassigning.pop(topic, None)

    def _with_targets(self, topic: str) -> _Reassigning:
        """The partitions in the topic's node and in the list of reassignments."""
        known, targets = self._topics.get(topic), self._targets.get(topic, {})
        own = known.reassigning if known else _Reassigning()
        if targets.keys() <= frozenset(own.partitions):
            return own
        adding = dict(zip(own.partitions, own.adding, strict=True))
        removing = dict(zip(own.partitions, own.removing, strict=True))
        partitions = tuple(sorted(targets.keys() | adding.keys()))
        return _Reassigning(
            partitions, tuple([adding.get(p) for p in partitions]), tuple([removing.get(p, ()) for p in partitions])
        )

    # Assembling reassignments.

    def touch(self, topics: Iterable[str]) -> None:
        """Mark topics for assembly because their states changed."""
        self._touched.update(topics)

    def assemble(self, unread: Collection[str] = ()) -> None:
        """Assemble every marked topic, except those whose states are not read yet."""
        for topic in self._touched.difference(unread):
            self.assemble_topic(topic)

    def assemble_topic(self, topic: str) -> None:
        """Assemble a topic's reassignment; an unchanged one stays the same object."""
        self._touched.discard(topic)
        known = self.current.get(topic)
        if reassigning := self._reassigning.get(topic):
            states = self._states.of(topic)
            leaders, isr = zip(*map(states.get, reassigning.partitions, repeat(OFFLINE)), strict=True)
            found = TopicReassignment(
                topic=topic,
                partitions=reassigning.partitions,
                leaders=leaders,
                isr=isr,
                adding_replicas=self._adding(topic, reassigning, isr),
                removing_replicas=reassigning.removing,
            )
            self.current[topic] = known if known is not None and known == found else found
        else:
            self.current.pop(topic, None)

    def _adding(self, topic: str, reassigning: _Reassigning, isr: tuple[_Replicas, ...]) -> tuple[_Replicas, ...]:
        # Targets outside the ISR: the controller has not written the adding replicas yet, or is too old to do so.
        targets = self._targets.get(topic, {})
        named = tuple([replicas for replicas in reassigning.adding if replicas is not None])
        if len(named) == len(reassigning.adding):
            return named
        return tuple(
            [
                _outside(targets.get(p, ()), synced) if replicas is None else replicas
                for p, replicas, synced in zip(reassigning.partitions, reassigning.adding, isr, strict=True)
            ]
        )

    # Where partitions are.

    def has(self, row: TopicPartition) -> bool:
        return row[0] in self._topics and _index(self._topics[row[0]].partitions, row[1]) is not None

    def assignment(self, row: TopicPartition, state: StateNode) -> Assignment:
        """Return the current replicas of an existing partition and its reassignment."""
        (topic, partition), known = row, self._topics[row[0]]
        index, own_index = _index(known.partitions, partition), _index(known.reassigning.partitions, partition)
        assert index is not None
        replicas, target = known.replicas[index], self._targets.get(topic, {}).get(partition)
        adding, removing = _Replicas(), _Replicas()
        if own_index is not None:
            adding, removing = known.reassigning.adding[own_index] or (), known.reassigning.removing[own_index]
        if target is not None and not (adding or removing):  # the controller has not started it
            adding = tuple(b for b in target if b not in replicas)
            removing = tuple(b for b in replicas if b not in target)
            replicas = (*target, *removing)
        return Assignment(replicas, state.leader, state.isr, adding, removing)

    def replicas_on(self, broker_ids: frozenset[int]) -> dict[int, dict[str, tuple[int, ...]]]:
        """Return broker -> topic -> its partitions on that broker. Any thread may call this."""
        topics = list(self._topics.items()) if broker_ids else []
        return replicas_on(
            broker_ids, ((topic, zip(known.partitions, known.replicas, strict=True)) for topic, known in topics)
        )


def _index(partitions: Sequence[int], partition: int) -> int | None:
    """The index of a partition in an ascending column; None: it is absent."""
    index = bisect_left(partitions, partition)
    return index if index < len(partitions) and partitions[index] == partition else None


@lru_cache(maxsize=256)  # most topics have the partitions 0 to n - 1
def _shared_partitions(partitions: tuple[int, ...]) -> tuple[int, ...]:
    return partitions


def _outside(replicas: tuple[int, ...], isr: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(b for b in replicas if b not in isr)
