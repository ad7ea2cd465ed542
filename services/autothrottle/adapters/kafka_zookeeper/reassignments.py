"""Reassignments, assembled from topic nodes, partition states and `/admin/reassign_partitions`.

A reassignment may appear in `/admin/reassign_partitions`, in the adding and removing replicas of the topic's node
(KIP-455), or in both; it counts once. An unchanged reassignment stays the same object, because views of its columns
are computed once per object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autothrottle.adapters.kafka_zookeeper.partition_states import PartitionStates
from autothrottle.adapters.zookeeper.codec import StateNode, TopicNode, parse_reassignments, parse_topic
from autothrottle.adapters.zookeeper.mirror import ParsedNodes
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.core.cluster.snapshot import NO_LEADER, Assignment, TopicPartition, TopicReassignment, replicas_on

OFFLINE = StateNode(NO_LEADER, ())
"""Stands for the state of a partition without a state node."""

_Reassignments = Mapping[int, tuple[tuple[int, ...] | None, tuple[int, ...]]]
"""Partition -> (adding replicas, removing replicas), ascending. Adding replicas None: not in the topic's node."""


class ReassignmentNodes:
    """The topics, and the reassignments of some of them. Absorbed changes appear after `assemble`."""

    def __init__(self, kafka: KafkaPaths, nodes: ParsedNodes, states: PartitionStates) -> None:
        self._kafka, self._nodes, self._states = kafka, nodes, states
        self._root = kafka.topics + "/"
        self._topics: dict[str, TopicNode] = {}
        self._targets: dict[str, dict[int, tuple[int, ...]]] = {}
        self._reassigning: dict[str, _Reassignments] = {}
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
        if (node := self._nodes.value(path, parse_topic)) is not None:
            self._topics[topic] = node
        elif path not in self._nodes.problems:
            self._topics.pop(topic, None)
        return topic

    def _absorb_reassignments(self, topic: str) -> None:
        """Determine which partitions of a topic are being reassigned, and follow their states."""
        known, reassigning = self._reassigning.get(topic, {}), self._reassigning_partitions(topic)
        self._states.follow(topic, reassigning.keys() - known.keys())
        self._states.forget(topic, known.keys() - reassigning.keys())
        if reassigning:
            self._reassigning[topic] = reassigning
        else:
            self._reassigning.pop(topic, None)

    def _reassigning_partitions(self, topic: str) -> _Reassignments:
        node = self._topics.get(topic)
        targets = self._targets.get(topic, {})
        adding = node.adding_replicas if node else {}
        removing = node.removing_replicas if node else {}
        return {
            p: (adding.get(p, () if p in removing else None), removing.get(p, ()))
            for p in sorted(adding.keys() | removing.keys() | targets.keys())
        }

    # Assembling reassignments.

    def touch(self, topics: Iterable[str]) -> None:
        """Mark topics for assembly because their states changed."""
        self._touched.update(topics)

    def assemble(self) -> None:
        """Assemble every marked topic."""
        while self._touched:
            self.assemble_topic(next(iter(self._touched)))

    def assemble_topic(self, topic: str) -> None:
        """Assemble a topic's reassignment; an unchanged one stays the same object."""
        self._touched.discard(topic)
        known = self.current.get(topic)
        if reassigning := self._reassigning.get(topic):
            states = self._states.of(topic)
            leaders, isr = zip(*[states.get(p, OFFLINE) for p in reassigning], strict=True)
            found = self._reassignment(topic, reassigning, leaders, isr)
            self.current[topic] = known if known is not None and known == found else found
        else:
            self.current.pop(topic, None)

    def _reassignment(
        self, topic: str, reassigning: _Reassignments, leaders: tuple[int, ...], isr: tuple[tuple[int, ...], ...]
    ) -> TopicReassignment:
        targets = self._targets.get(topic, {})
        # Targets outside the ISR: the controller has not written the adding replicas yet, or is too old to do so.
        adding = [
            _outside(targets.get(p, ()), synced) if named is None else named
            for (p, (named, _)), synced in zip(reassigning.items(), isr, strict=True)
        ]
        return TopicReassignment(
            topic=topic,
            partitions=tuple(reassigning),
            leaders=leaders,
            isr=isr,
            adding_replicas=tuple(adding),
            removing_replicas=tuple([removing for _, removing in reassigning.values()]),
        )

    # Where partitions are.

    def has(self, row: TopicPartition) -> bool:
        return row[0] in self._topics and row[1] in self._topics[row[0]].replicas

    def assignment(self, row: TopicPartition, state: StateNode) -> Assignment:
        """Return the current replicas of an existing partition and its reassignment."""
        (topic, partition), node = row, self._topics[row[0]]
        replicas, target = node.replicas[partition], self._targets.get(topic, {}).get(partition)
        adding, removing = node.adding_replicas.get(partition, ()), node.removing_replicas.get(partition, ())
        if target is not None and not (adding or removing):  # the controller has not started it
            adding = tuple(b for b in target if b not in replicas)
            removing = tuple(b for b in replicas if b not in target)
            replicas = (*target, *removing)
        return Assignment(replicas, state.leader, state.isr, adding, removing)

    def replicas_on(self, broker_ids: frozenset[int]) -> dict[int, dict[str, tuple[int, ...]]]:
        """Return broker -> topic -> its partitions on that broker. Any thread may call this."""
        topics = list(self._topics.items()) if broker_ids else []
        return replicas_on(broker_ids, ((topic, node.replicas.items()) for topic, node in topics))


def _outside(replicas: tuple[int, ...], isr: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(b for b in replicas if b not in isr)
