"""What a cluster looks like at one moment, as far as moving partitions and their throttles go.

Here live the values that discovery hands to everybody else; who decides what is in `plan`. Partitions are
columns by topic, since 100,000 of them are normal. The type to know is `Snapshot`.

Source: KIP-455 (reassignments), KIP-73 (throttles).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise

from autothrottle.core.configs import ConfigResource, ReplicaRole, format_replicas
from autothrottle.core.errors import Invalid
from autothrottle.core.flows import Flow, Progress
from autothrottle.core.ledger import LedgerEntry
from autothrottle.core.loads import Port

MAX_BROKER_ID = 2**31 - 1
"""Kafka keeps broker ids as a signed 32-bit number; the first one may be 0."""

TOPIC_NAME = r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}"
"""Kafka's rule for the names of topics, a regular expression; the text must end where the name does."""

NO_LEADER = -1
"""Kafka's leader id of a partition that is offline."""


def parse_broker_id(text: str) -> int:
    """Return the broker id that a text holds.

    Raises:
        Invalid: when it is no plain integer in 0..2^31-1.
    """
    # int() would take " 7", "+7", "1_000" and digits of other scripts as well.
    if text.isascii() and text.isdigit():
        # Of thousands of digits int() takes none.
        number = int(text.lstrip("0")[:11] or "0")
        if number <= MAX_BROKER_ID:
            return number
    raise Invalid(f"{text[:40]!r} is no broker id; give an integer in 0..{MAX_BROKER_ID}")


TopicPartition = tuple[str, int]
"""A topic's name and a partition number."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where one partition is, and where it is going."""

    replicas: tuple[int, ...]
    """Broker ids: while it is being reassigned those to come and those to go are among them."""
    leader: int
    """Broker id, or -1 while the partition is offline."""
    isr: tuple[int, ...]
    """In-sync replicas."""
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether it is being reassigned."""
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that it shall have, the preferred leader first."""
        return tuple(b for b in self.replicas if b not in self.removing_replicas)


@dataclass(frozen=True, slots=True)
class ReplicaList:
    """The entries of one replica list, `partition:broker`, and the same as Kafka's text."""

    entries: frozenset[str]
    text: str


@dataclass(frozen=True, slots=True)
class Copying:
    """What of a topic's move is still to be copied: who takes part, and the replicas between which it goes."""

    leaders: frozenset[int]
    """Ids of the brokers that send, -1 among them while a partition is offline."""
    followers: frozenset[int]
    """Ids of the brokers that receive."""
    leader_replicas: ReplicaList
    """The in-sync replicas of these partitions: each of them may come to lead."""
    follower_replicas: ReplicaList
    """The replicas that are filled."""


@dataclass(frozen=True)
class TopicReassignment:
    """The partitions of one topic that are being reassigned, as columns of equal length.

    Without slots: what follows from the columns is worked out once, since most topics are the same cycle after cycle.
    """

    topic: str
    partitions: tuple[int, ...]
    """Partition numbers, ascending."""
    leaders: tuple[int, ...]
    """Broker id of the current leader, or -1 while the partition is offline."""
    isr: tuple[tuple[int, ...], ...]
    """In-sync replicas of each partition."""
    adding_replicas: tuple[tuple[int, ...], ...]
    """Broker ids that each partition moves to; empty for a move that only removes or reorders."""
    removing_replicas: tuple[tuple[int, ...], ...]
    """Broker ids that each partition will leave."""

    def rows(self) -> Iterator[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
        """Yield (partition, leader, isr, pending) where pending are adding replicas outside of the ISR."""
        columns = zip(self.partitions, self.leaders, self.isr, self.adding_replicas, strict=True)
        for partition, leader, isr, adding in columns:
            yield partition, leader, isr, tuple([b for b in adding if b not in isr])

    @cached_property
    def sending(self) -> Mapping[int, tuple[int, int]]:
        """Leader -> (in-sync followers, replicas still to be copied) of the partitions that it sends, added up."""
        found: dict[int, tuple[int, int]] = {}
        for leader, isr, adding in zip(self.leaders, self.isr, self.adding_replicas, strict=True):
            pending = sum(b not in isr for b in adding)
            if pending and leader != NO_LEADER:
                followers, copies = found.get(leader, (0, 0))
                found[leader] = followers + max(len(isr) - 1, 0), copies + pending
        return found

    @cached_property
    def copying(self) -> Copying:
        """What is still to be copied."""
        # By columns, since a loop over 100,000 partitions takes twice as long.
        partitions, leaders, isr, pending = self.partitions, self.leaders, self.isr, self.adding_replicas
        if not all(pending) or any(b in synced for b, synced in self._additions()):
            rows = [row for row in self.rows() if row[3]]
            partitions, leaders, isr, pending = zip(*rows, strict=True) if rows else ((), (), (), ())
        ascending = all(a < b for a, b in pairwise(partitions))
        return Copying(
            frozenset(leaders),
            frozenset(chain.from_iterable(pending)),
            _replica_list(partitions, isr, ascending),
            _replica_list(partitions, pending, ascending),
        )

    def _additions(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield each adding replica with the ISR of its partition."""
        return ((b, isr) for adding, isr in zip(self.adding_replicas, self.isr, strict=True) for b in adding)

    @cached_property
    def flows(self) -> Mapping[Flow, int]:
        """Each flow and the number of its partitions that are still to be copied."""
        counts: dict[Flow, int] = {}
        for _, leader, _, pending in self.rows():
            for follower in pending if leader != NO_LEADER else ():
                flow = Flow(leader, follower)
                counts[flow] = counts.get(flow, 0) + 1
        return counts


def _replica_list(partitions: Sequence[int], replicas: Sequence[tuple[int, ...]], ordered: bool) -> ReplicaList:
    """The list of some partitions' replicas; to order 100,000 that are in their order takes longer than all else."""
    columns = zip(partitions, map(sorted, replicas), strict=True)
    entries = [f"{partition}:{b}" for partition, held in columns for b in held]
    distinct = frozenset(entries)
    in_order = ordered and len(distinct) == len(entries)
    return ReplicaList(distinct, ",".join(entries) if in_order else format_replicas(distinct))


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the cluster that could not be read, and what to do about it."""

    path: str
    """The znode or resource."""
    reason: str
    """One sentence that names the value and the fix."""


@dataclass(frozen=True)
class Snapshot:
    """A cluster at one moment; immutable, and the only thing that a cycle decides on.

    Without slots: who takes part is asked for several times a cycle and worked out once.
    """

    version: int
    """Grows with every change of the cluster; comparable between discovery replicas of one cluster."""
    brokers: frozenset[int] = frozenset()
    """Ids of the registered brokers."""
    reassignments: tuple[TopicReassignment, ...] = ()
    """One for each topic in reassignment, ordered by name."""
    throttles: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    """Resource -> the throttle keys that stand on it; absent: none stands."""
    default_throttles: Mapping[str, str] = field(default_factory=dict)
    """Rate keys at Kafka's `<default>` broker level; never ours, in force on brokers without a value of their own."""
    ledger: Mapping[ConfigResource, LedgerEntry] = field(default_factory=dict)
    """Resource -> what we wrote there; absent: nothing there is ours."""
    replicas: Mapping[int, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    """Broker id -> topic -> its partitions with a replica there; only brokers that were asked for."""
    assignments: Mapping[TopicPartition, Assignment] = field(default_factory=dict)
    """Partition -> where it is; only of those that were asked for: one that is not here does not exist."""
    unreadable_configs: Mapping[ConfigResource, Problem] = field(default_factory=dict)
    """Resource -> why its config cannot be read: it is left as it is."""
    problems: tuple[Problem, ...] = ()
    """Parts of the topology that cannot be read: while there are any, nothing is removed."""
    presumed: frozenset[str] = frozenset()
    """Topics that only begin to move, and whose partitions' states nobody has read yet: all replicas that they had are
    taken to be in sync, and the first one to lead. A snapshot that knows them follows."""
    progress: Progress | None = None
    """How far the moves have come, as of some seconds ago; None: nobody reads log sizes."""
    catching_up: frozenset[Port] = frozenset()
    """Ports through which brokers catch up, where what they lack is shown as if it moved (`catch_up.with_lagging`):
    until it is there it is less safe than it should be, and nothing slows it down but clients."""

    @staticmethod
    def empty() -> Snapshot:
        """A cluster of which nothing is known; older than any other."""
        return Snapshot(version=0)

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of the topics in reassignment."""
        return tuple(r.topic for r in self.reassignments)

    @cached_property
    def _flows(self) -> Mapping[Flow, int]:
        """What `flows` returns."""
        counts: Counter[Flow] = Counter()
        for reassignment in self.reassignments:
            counts.update(reassignment.flows)
        return counts

    @cached_property
    def _running_flows(self) -> Mapping[Flow, int]:
        """What `running_flows` returns."""
        waiting = {
            broker_id
            for broker_id, role in self.catching_up
            if role is ReplicaRole.FOLLOWER and broker_id not in self.brokers
        }
        if not waiting:
            return self._flows
        return {flow: count for flow, count in self._flows.items() if flow.follower not in waiting}

    @cached_property
    def _participants(self) -> Mapping[int, frozenset[ReplicaRole]]:
        """What `participants` returns."""
        copying = [reassignment.copying for reassignment in self.reassignments]
        leaders = set[int]().union(*(topic.leaders for topic in copying))
        followers = set[int]().union(*(topic.followers for topic in copying))
        leaders.discard(NO_LEADER)
        sides = ((ReplicaRole.LEADER, leaders), (ReplicaRole.FOLLOWER, followers))
        return {b: frozenset(role for role, held in sides if b in held) for b in leaders | followers}


def flows(snapshot: Snapshot) -> Mapping[Flow, int]:
    """Return each flow and the number of its partitions that are still to be copied."""
    return snapshot._flows


def running_flows(snapshot: Snapshot) -> Mapping[Flow, int]:
    """Return the `flows` but for those to brokers that are to catch up and are down: nobody counts them.

    They are throttled before such a broker starts; until then it copies nothing.
    """
    return snapshot._running_flows


def participants(snapshot: Snapshot) -> Mapping[int, frozenset[ReplicaRole]]:
    """Return the brokers that take part in a move and the roles that each holds.

    The leader of every partition that is still being copied holds the leader role; each adding replica that
    is not in the ISR holds the follower role, also while the partition has no leader.
    """
    return snapshot._participants


def moving_ports(snapshot: Snapshot) -> frozenset[Port]:
    """Return the `participants` of a move by the ports that they use."""
    return frozenset((broker_id, role) for broker_id, roles in participants(snapshot).items() for role in roles)


def replicas_on(
    broker_ids: frozenset[int], topics: Iterable[tuple[str, Iterable[tuple[int, Sequence[int]]]]]
) -> dict[int, dict[str, tuple[int, ...]]]:
    """Return broker -> topic -> its partitions with a replica there, in order.

    One pass for all brokers, since there may be 100,000 partitions and 1,000 brokers.

    Args:
        broker_ids: those that are asked for; each is in the answer.
        topics: (topic, (partition, broker ids of its replicas) of each).
    """
    found: dict[int, dict[str, tuple[int, ...]]] = {b: {} for b in sorted(broker_ids)}
    for topic, partitions in topics if broker_ids else ():
        held: dict[int, list[int]] = {}
        for partition, replicas in partitions:
            for broker_id in broker_ids.intersection(replicas):
                held.setdefault(broker_id, []).append(partition)
        for broker_id, numbers in held.items():
            found[broker_id][topic] = tuple(sorted(numbers))
    return found
