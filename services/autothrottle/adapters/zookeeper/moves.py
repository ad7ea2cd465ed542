"""What moves, put together from three kinds of nodes: the topics, the partitions' states, `/admin/reassign_partitions`.

Both forms of reassignments are read and counted once: `/admin/reassign_partitions`, and the adding and removing
replicas in a topic's node (KIP-455). What follows from the columns of a topic is worked out once for each object, so a
reassignment that is as it was stays the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autothrottle.adapters.zookeeper.codec import StateNode, TopicNode, parse_reassignments, parse_topic
from autothrottle.adapters.zookeeper.parsed import ParsedNodes
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.adapters.zookeeper.states import PartitionStates
from autothrottle.core.topology import NO_LEADER, Assignment, TopicPartition, TopicReassignment, replicas_on

OFFLINE = StateNode(NO_LEADER, ())
"""The state of a partition that has none."""

_Moves = Mapping[int, tuple[tuple[int, ...] | None, tuple[int, ...]]]
"""Partition -> (adding replicas or None: not known from the topic's node, removing replicas), ascending."""


class Moves:
    """The topics, and the reassignments of those that move. What was absorbed shows after `put_together`."""

    def __init__(self, kafka: KafkaPaths, nodes: ParsedNodes, states: PartitionStates) -> None:
        self._kafka, self._nodes, self._states = kafka, nodes, states
        self._root = kafka.topics + "/"
        self._topics: dict[str, TopicNode] = {}
        self._targets: dict[str, dict[int, tuple[int, ...]]] = {}
        self._moves: dict[str, _Moves] = {}
        self._touched: set[str] = set()
        self._before: dict[str, TopicNode] = {}
        self.presumed: dict[str, TopicReassignment] = {}
        """Topics that began to move, as they are presumed to be."""
        self.moving: dict[str, TopicReassignment] = {}
        """Topic -> its reassignment, as it was put together last."""

    @property
    def reassignments(self) -> tuple[TopicReassignment, ...]:
        """What moves, ordered by topic."""
        return tuple(self.moving[topic] for topic in sorted(self.moving))

    @property
    def begun(self) -> set[str]:
        """The topics that began to move and were not put together since."""
        return self._moves.keys() - self.moving.keys()

    # Taking over what nodes say.

    def absorb(self, paths: Iterable[str]) -> None:
        """Take over what the nodes of topics, and the list of reassignments, say now."""
        touched: set[str] = set()
        for path in paths:
            if path == self._kafka.reassign_partitions:
                touched |= self._absorb_targets(path)
            else:
                touched.add(self._absorb_topic(path))
        for topic in touched:
            self.presumed.pop(topic, None)
            self._absorb_moves(topic)
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
        if topic in self._topics and topic not in self._moves:
            self._before[topic] = self._topics[topic]
        if (node := self._nodes.value(path, parse_topic)) is not None:
            self._topics[topic] = node
        elif path not in self._nodes.problems:
            self._topics.pop(topic, None)
        return topic

    def _absorb_moves(self, topic: str) -> None:
        """Work out which partitions of a topic move, and follow the states of these."""
        known, moves = self._moves.get(topic, {}), self._moving_partitions(topic)
        self._states.follow(topic, moves.keys() - known.keys())
        self._states.forget(topic, known.keys() - moves.keys())
        if moves:
            self._moves[topic] = moves
        else:
            self._moves.pop(topic, None)

    def _moving_partitions(self, topic: str) -> _Moves:
        node = self._topics.get(topic)
        targets = self._targets.get(topic, {})
        adding = node.adding_replicas if node else {}
        removing = node.removing_replicas if node else {}
        return {
            p: (adding.get(p, () if p in removing else None), removing.get(p, ()))
            for p in sorted(adding.keys() | removing.keys() | targets.keys())
        }

    # Putting it together.

    def touch(self, topics: Iterable[str]) -> None:
        """Let these be put together anew: their states changed."""
        self._touched.update(topics)

    def put_together(self) -> None:
        """Put together whatever was touched."""
        while self._touched:
            self.put_topic_together(next(iter(self._touched)))
        self.presumed.clear()
        self._before.clear()

    def put_topic_together(self, topic: str) -> None:
        """Put together what is known of a topic's reassignment; one that is as it was stays the same object."""
        self._touched.discard(topic)
        known = self.moving.get(topic) or self.presumed.pop(topic, None)
        if moves := self._moves.get(topic):
            states = self._states.of(topic)
            leaders, isr = zip(*[states.get(p, OFFLINE) for p in moves], strict=True)
            found = self._reassignment(topic, moves, leaders, isr)
            self.moving[topic] = known if known is not None and known == found else found
        else:
            self.moving.pop(topic, None)

    def presume(self) -> None:
        """Put together what began to move, as it is presumed to be while nobody has read the partitions' states.

        When a partition begins to move all replicas that it had are taken to be in sync, and the first one to lead. One
        that is behind, and throttled as a leader for it, leads nothing that it could delay. To be asked only when it is
        known that what has begun since the last time did not move then.
        """
        for topic in self.begun - self.presumed.keys():
            self.presumed[topic] = self._presumption(topic)

    def as_presumed(self) -> tuple[tuple[TopicReassignment, ...], frozenset[str]] | None:
        """Return what moves, with the topics of it that are presumed; None: more than these is not read yet."""
        if not (self.presumed and self.presumed.keys() >= self._states.unread_topics):
            return None
        for topic in self._touched - self.presumed.keys():
            self.put_topic_together(topic)
        shown = {**self.moving, **self.presumed}
        return tuple(shown[topic] for topic in sorted(shown)), frozenset(self.presumed)

    def _presumption(self, topic: str) -> TopicReassignment:
        moves, before, known = self._moves[topic], self._before.get(topic), self._states.of(topic)
        # A loop for each kind of value, and no object for a state: there are 100,000.
        if before is not None:
            isr = [before.replicas.get(p, ()) for p in moves]
        else:
            replicas = self._topics[topic].replicas if topic in self._topics else {}
            isr = [_outside(replicas.get(p, ()), adding or ()) for p, (adding, _) in moves.items()]
        leaders = [held[0] if held else NO_LEADER for held in isr]
        for number, partition in enumerate(moves if known else ()):
            if partition in known:
                leaders[number], isr[number] = known[partition]
        return self._reassignment(topic, moves, tuple(leaders), tuple(isr))

    def _reassignment(
        self, topic: str, moves: _Moves, leaders: tuple[int, ...], isr: tuple[tuple[int, ...], ...]
    ) -> TopicReassignment:
        targets = self._targets.get(topic, {})
        # A target outside of the ISR: the controller has not said yet what it adds, or is too old to say.
        adding = [
            _outside(targets.get(p, ()), synced) if named is None else named
            for (p, (named, _)), synced in zip(moves.items(), isr, strict=True)
        ]
        return TopicReassignment(
            topic=topic,
            partitions=tuple(moves),
            leaders=leaders,
            isr=isr,
            adding_replicas=tuple(adding),
            removing_replicas=tuple([removing for _, removing in moves.values()]),
        )

    # Where partitions are.

    def has(self, row: TopicPartition) -> bool:
        """Return whether there is such a partition."""
        return row[0] in self._topics and row[1] in self._topics[row[0]].replicas

    def assignment(self, row: TopicPartition, state: StateNode) -> Assignment:
        """Return where a partition is that there is, and where it is going."""
        (topic, partition), node = row, self._topics[row[0]]
        replicas, target = node.replicas[partition], self._targets.get(topic, {}).get(partition)
        adding, removing = node.adding_replicas.get(partition, ()), node.removing_replicas.get(partition, ())
        if target is not None and not (adding or removing):  # the controller has not begun with it
            adding = tuple(b for b in target if b not in replicas)
            removing = tuple(b for b in replicas if b not in target)
            replicas = (*target, *removing)
        return Assignment(replicas, state.leader, state.isr, adding, removing)

    def replicas_on(self, broker_ids: frozenset[int]) -> dict[int, dict[str, tuple[int, ...]]]:
        """Return broker -> topic -> its partitions there; any thread may ask."""
        topics = list(self._topics.items()) if broker_ids else []
        return replicas_on(broker_ids, ((topic, node.replicas.items()) for topic, node in topics))


def _outside(replicas: tuple[int, ...], isr: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(b for b in replicas if b not in isr)
