"""The state of a cluster at one time: its reassignments and throttles.

This module defines the values that discovery serves; `plan` decides on them. Partitions are stored as columns by
topic, because 100,000 of them are normal. The type to know is `Snapshot`.

Source: KIP-455 (reassignments), KIP-73 (throttles).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise

from autothrottle.core.cluster.configs import ConfigResource, ReplicaRole, format_replicas
from autothrottle.core.cluster.flows import Flow, LinkSide, Progress, link_sides_of
from autothrottle.core.cluster.ledger import LedgerEntry
from autothrottle.core.errors import Invalid

MAX_BROKER_ID = 2**31 - 1
"""Kafka stores broker ids as signed 32-bit integers; 0 is valid."""

TOPIC_NAME = r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}"
"""Kafka's rule for topic names, as a regular expression to be matched against the whole text."""

NO_LEADER = -1
"""Kafka's leader id for an offline partition."""


def parse_broker_id(text: str) -> int:
    """Return the broker id in a text.

    Raises:
        Invalid: the text is not a plain integer in 0..2^31-1.
    """
    # int() would also accept " 7", "+7", "1_000" and digits of other scripts.
    if text.isascii() and text.isdigit():
        # int() rejects texts of thousands of digits.
        number = int(text.lstrip("0")[:11] or "0")
        if number <= MAX_BROKER_ID:
            return number
    raise Invalid(f"{text[:40]!r} is not a broker id; give an integer in 0..{MAX_BROKER_ID}")


TopicPartition = tuple[str, int]
"""(topic, partition number)."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The replicas of one partition, and its reassignment."""

    replicas: tuple[int, ...]
    """Broker ids, including the adding and removing replicas."""
    leader: int
    """Broker id, or -1 while the partition is offline."""
    isr: tuple[int, ...]
    """In-sync replicas."""
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether the partition is being reassigned."""
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment, the preferred leader first."""
        return tuple(b for b in self.replicas if b not in self.removing_replicas)


@dataclass(frozen=True, slots=True)
class ReplicaList:
    """The entries of one replica list, `partition:broker`, and the same list as Kafka's text."""

    entries: frozenset[str]
    text: str


@dataclass(frozen=True, slots=True)
class Copying:
    """The partitions of a topic that still have replicas to copy: their brokers and their replicas."""

    leaders: frozenset[int]
    """Broker ids of the leaders; includes -1 while a partition is offline."""
    followers: frozenset[int]
    """Broker ids of the adding replicas outside the ISR."""
    leader_replicas: ReplicaList
    """The in-sync replicas of these partitions; each of them may become leader."""
    follower_replicas: ReplicaList
    """The adding replicas outside the ISR."""


@dataclass(frozen=True)
class TopicReassignment:
    """The partitions of one topic that are being reassigned, as columns of equal length.

    The class has no slots, so that values derived from the columns are cached: most topics stay equal between cycles.
    """

    topic: str
    partitions: tuple[int, ...]
    """Partition numbers, ascending."""
    leaders: tuple[int, ...]
    """Broker id of each current leader; -1 while the partition is offline."""
    isr: tuple[tuple[int, ...], ...]
    """In-sync replicas of each partition."""
    adding_replicas: tuple[tuple[int, ...], ...]
    """Broker ids that each partition adds; empty if the reassignment only removes or reorders."""
    removing_replicas: tuple[tuple[int, ...], ...]
    """Broker ids that each partition removes."""

    def rows(self) -> Iterator[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
        """Yield (partition, leader, isr, pending); pending are the adding replicas outside the ISR."""
        columns = zip(self.partitions, self.leaders, self.isr, self.adding_replicas, strict=True)
        for partition, leader, isr, adding in columns:
            yield partition, leader, isr, tuple([b for b in adding if b not in isr])

    @cached_property
    def sending(self) -> Mapping[int, tuple[int, int]]:
        """Leader -> (in-sync followers, replicas still to copy), summed over the partitions that it sends."""
        found: dict[int, tuple[int, int]] = {}
        for leader, isr, adding in zip(self.leaders, self.isr, self.adding_replicas, strict=True):
            pending = sum(b not in isr for b in adding)
            if pending and leader != NO_LEADER:
                followers, copies = found.get(leader, (0, 0))
                found[leader] = followers + max(len(isr) - 1, 0), copies + pending
        return found

    @cached_property
    def copying(self) -> Copying:
        """The partitions that still have replicas to copy."""
        # Works on columns, because a loop over 100,000 partitions takes twice as long.
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
        """Flow -> the number of its partitions that are still to be copied."""
        counts: dict[Flow, int] = {}
        for _, leader, _, pending in self.rows():
            for follower in pending if leader != NO_LEADER else ():
                flow = Flow(leader, follower)
                counts[flow] = counts.get(flow, 0) + 1
        return counts


def _replica_list(partitions: Sequence[int], replicas: Sequence[tuple[int, ...]], ordered: bool) -> ReplicaList:
    """Return a replica list; if `ordered`, it skips sorting, which would dominate for 100,000 partitions."""
    columns = zip(partitions, map(sorted, replicas), strict=True)
    entries = [f"{partition}:{b}" for partition, held in columns for b in held]
    distinct = frozenset(entries)
    in_order = ordered and len(distinct) == len(entries)
    return ReplicaList(distinct, ",".join(entries) if in_order else format_replicas(distinct))


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the cluster that could not be read, and the fix."""

    path: str
    """The znode or config resource."""
    reason: str
    """One sentence that names the value and the fix."""
    topic: str = ""
    """The only topic that it concerns; "": it may concern any topic, or the path is that of one config."""


@dataclass(frozen=True)
class Snapshot:
    """The state of a cluster at one time; immutable.

    The class has no slots, so that derived values are cached: a cycle asks several times for the participants.
    """

    version: int
    """Grows with every change of the cluster; comparable between discovery processes of one cluster."""
    brokers: frozenset[int] = frozenset()
    """Ids of the registered brokers."""
    reassignments: tuple[TopicReassignment, ...] = ()
    """One for each topic in reassignment, ordered by name."""
    throttles: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    """Resource -> its current throttle keys and values; absent: it has none."""
    default_throttles: Mapping[str, str] = field(default_factory=dict)
    """Rate keys at Kafka's `<default>` broker level; always foreign, in force on brokers without their own value."""
    ledger: Mapping[ConfigResource, LedgerEntry] = field(default_factory=dict)
    """Resource -> what we wrote there; absent: we own nothing there."""
    replicas: Mapping[int, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    """Broker id -> topic -> its partitions with a replica there; contains only the requested brokers."""
    assignments: Mapping[TopicPartition, Assignment] = field(default_factory=dict)
    """Partition -> its assignment; contains only requested partitions. An absent requested one does not exist."""
    unreadable_configs: Mapping[ConfigResource, Problem] = field(default_factory=dict)
    """Resource -> why its config cannot be read; such a config is left unchanged."""
    problems: tuple[Problem, ...] = ()
    """Parts of the topology that cannot be read. Their last known values apply, and what they may need stays."""
    progress: Progress | None = None
    """Progress of the reassignments as of some seconds ago; None: log sizes are not read."""
    catching_up: frozenset[LinkSide] = frozenset()
    """Link sides of brokers that catch up; `catch_up.with_lagging` shows their lagging replicas as reassignments.
    Until these replicas are in sync, redundancy is reduced, so only client traffic limits the catch-up."""

    @staticmethod
    def empty() -> Snapshot:
        """Return a snapshot that knows nothing; older than any other."""
        return Snapshot(version=0)

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of the topics in reassignment."""
        return tuple(r.topic for r in self.reassignments)

    @cached_property
    def _flows(self) -> Mapping[Flow, int]:
        counts: Counter[Flow] = Counter()
        for reassignment in self.reassignments:
            counts.update(reassignment.flows)
        return counts

    @cached_property
    def _running_flows(self) -> Mapping[Flow, int]:
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
        copying = [reassignment.copying for reassignment in self.reassignments]
        leaders = set[int]().union(*(topic.leaders for topic in copying))
        followers = set[int]().union(*(topic.followers for topic in copying))
        leaders.discard(NO_LEADER)
        sides = ((ReplicaRole.LEADER, leaders), (ReplicaRole.FOLLOWER, followers))
        return {b: frozenset(role for role, held in sides if b in held) for b in leaders | followers}


def flows(snapshot: Snapshot) -> Mapping[Flow, int]:
    """Return flow -> the number of its partitions that are still to be copied."""
    return snapshot._flows


def running_flows(snapshot: Snapshot) -> Mapping[Flow, int]:
    """Return the `flows` without those to brokers that shall catch up but are down.

    Such brokers are throttled before they start; until then they copy nothing, and their flows have no counts.
    """
    return snapshot._running_flows


def link_sides_without_counts(snapshot: Snapshot, moving: Mapping[Flow, int]) -> frozenset[LinkSide]:
    """Return the link sides with a flow of `moving` whose progress is unknown."""
    known = snapshot.progress.flows if snapshot.progress else {}
    return link_sides_of(moving.keys() - known.keys())


def participants(snapshot: Snapshot) -> Mapping[int, frozenset[ReplicaRole]]:
    """Return broker id -> its roles, for the brokers that take part in a reassignment.

    The leader of every partition that is still being copied has the leader role. Each adding replica outside the ISR
    has the follower role, even while the partition has no leader.
    """
    return snapshot._participants


def link_sides_of_reassignments(snapshot: Snapshot) -> frozenset[LinkSide]:
    """Return the link sides that the `participants` use."""
    return frozenset((broker_id, role) for broker_id, roles in participants(snapshot).items() for role in roles)


def replicas_on(
    broker_ids: frozenset[int], topics: Iterable[tuple[str, Iterable[tuple[int, Sequence[int]]]]]
) -> dict[int, dict[str, tuple[int, ...]]]:
    """Return broker id -> topic -> its partitions with a replica there, ascending.

    It makes one pass for all brokers, because there may be 100,000 partitions and 1,000 brokers.

    Args:
        broker_ids: the requested brokers; each is a key of the result.
        topics: (topic, (partition, broker ids of its replicas) of each partition).
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
