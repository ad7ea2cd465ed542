"""The state of a cluster at one time: its reassignments and throttles, and the sizes of its logs.

This module defines the values that discovery serves; `plan` decides on them. Partitions are stored as columns by
topic, because 100,000 of them are normal. The types to know are `Snapshot` and `LogSizes`.

Source: KIP-455 (reassignments), KIP-73 (throttles).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import chain, pairwise, repeat
from operator import contains, itemgetter, lt
from typing import Any

from autothrottle.core.cluster.configs import (
    ConfigResource,
    LedgerEntry,
    LedgerKey,
    ReplicaRole,
    ResourceType,
    format_replicas,
    limiting_rate,
)
from autothrottle.core.cluster.flows import Flow, LinkSide, Progress, link_sides_of
from autothrottle.core.texts import excerpt
from autothrottle.core.units import BytesPerSecond

NO_LEADER = -1
"""Kafka's leader id for an offline partition."""


TopicPartition = tuple[str, int]
"""(topic, partition number)."""


def named(row: TopicPartition) -> str:
    """Return a partition as Kafka's tools write it.

    >>> named(("orders", 7))
    'orders-7'
    """
    return f"{row[0]}-{row[1]}"


class SharedValues(dict[Any, Any]):
    """Cache: value -> the first equal value. The broker ids of 1,000,000 partitions then take memory only once."""

    def __missing__(self, value: Any) -> Any:
        self[value] = value
        return value


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

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas before the reassignment, which stay if it is cancelled."""
        return tuple(b for b in self.replicas if b not in self.adding_replicas)


class ReplicaList(Set[str]):
    """The entries of one replica list, `partition:broker`, kept as Kafka's text.

    A set of the entries of 1,000,000 partitions takes 400 MB, and hardly any cycle needs it.

    >>> ReplicaList("0:1,0:2") == frozenset({"0:2", "0:1"})
    True
    """

    __slots__ = ("text",)

    def __init__(self, text: str = "") -> None:
        self.text = text

    @property
    def entries(self) -> frozenset[str]:
        return frozenset(self)

    def __iter__(self) -> Iterator[str]:
        return iter(self.text.split(",") if self.text else ())

    def __len__(self) -> int:
        return self.text.count(",") + 1 if self.text else 0

    def __contains__(self, entry: object) -> bool:
        return entry in self.entries

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ReplicaList) and self.text == other.text:
            return True
        return self.entries == (other.entries if isinstance(other, ReplicaList) else other)

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"ReplicaList({self.text!r})"


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


ReassignmentRow = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""(leader, isr, adding replicas, removing replicas) of one partition in reassignment."""


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

    @staticmethod
    def of_partitions(topic: str, rows: Mapping[int, ReassignmentRow]) -> TopicReassignment:
        """Return the reassignment of a topic from partition -> its row, at least one."""
        leaders, isr, adding, removing = zip(*(rows[partition] for partition in sorted(rows)), strict=True)
        return TopicReassignment(topic, tuple(sorted(rows)), leaders, isr, adding, removing)

    def by_partition(self) -> dict[int, ReassignmentRow]:
        """Return partition -> its row."""
        columns = zip(self.leaders, self.isr, self.adding_replicas, self.removing_replicas, strict=True)
        return dict(zip(self.partitions, columns, strict=True))

    def rows(self) -> Iterator[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
        """Yield (partition, leader, isr, pending); pending are the adding replicas outside the ISR."""
        columns = zip(self.partitions, self.leaders, self.isr, self.adding_replicas, strict=True)
        for partition, leader, isr, adding in columns:
            yield partition, leader, isr, tuple([b for b in adding if b not in isr])

    @cached_property
    def shape(self) -> tuple[int, int] | None:
        """(in-sync followers, replicas still to copy) of each partition; None: they differ, or one is offline."""
        isr_sizes, copies = set(map(len, self.isr)), set(map(len, self.adding_replicas))
        if len(isr_sizes) != 1 or len(copies) != 1 or NO_LEADER in self.leaders or not self._is_all_pending:
            return None
        return max(isr_sizes.pop() - 1, 0), copies.pop()

    @cached_property
    def sending(self) -> Mapping[int, tuple[int, int]]:
        """Leader -> (in-sync followers, replicas still to copy), summed over the partitions that it sends."""
        copies_of_leaders: dict[int, tuple[int, int]] = {}
        for leader, isr, adding in zip(self.leaders, self.isr, self.adding_replicas, strict=True):
            pending = sum(b not in isr for b in adding)
            if pending and leader != NO_LEADER:
                followers, copies = copies_of_leaders.get(leader, (0, 0))
                copies_of_leaders[leader] = followers + max(len(isr) - 1, 0), copies + pending
        return copies_of_leaders

    @cached_property
    def copying(self) -> Copying:
        """The partitions that still have replicas to copy."""
        partitions, leaders, isr, pending = self._pending_columns
        ascending = all(map(lt, partitions, partitions[1:]))
        return Copying(
            frozenset(leaders),
            frozenset(chain.from_iterable(pending)),
            _replica_list(partitions, isr, ascending),
            _replica_list(partitions, pending, ascending),
        )

    @cached_property
    def _is_all_pending(self) -> bool:
        """Whether no adding replica of any partition is in sync, as at the start of a reassignment."""
        sizes = set(map(len, self.adding_replicas))
        if sizes == {1}:  # the usual case, without a step of Python for each of 1,000,000 partitions
            return not any(map(contains, self.isr, chain.from_iterable(self.adding_replicas)))
        rows = zip(self.adding_replicas, self.isr, strict=True)
        return 0 not in sizes and not any(b in synced for adding, synced in rows for b in adding)

    @property
    def _pending_columns(self) -> _PendingColumns:
        # Works on columns, because a loop over 100,000 partitions takes twice as long.
        if self._is_all_pending:
            return self.partitions, self.leaders, self.isr, self.adding_replicas
        rows = [row for row in self.rows() if row[3]]
        return tuple(zip(*rows, strict=True)) if rows else ((), (), (), ())  # type: ignore[return-value]

    @cached_property
    def flows(self) -> Mapping[Flow, int]:
        """Flow -> the number of its partitions that are still to be copied."""
        _, leaders, _, pending = self._pending_columns
        senders = chain.from_iterable(map(repeat, leaders, map(len, pending)))
        counts = Counter(map(_new_flow, zip(senders, chain.from_iterable(pending), strict=True)))
        if NO_LEADER not in leaders:
            return counts
        return {flow: count for flow, count in counts.items() if flow.leader != NO_LEADER}


_PendingColumns = tuple[Sequence[int], Sequence[int], Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]]
"""(partitions, leaders, ISRs, replicas still to copy) of the partitions that have any."""

_new_flow = partial(tuple.__new__, Flow)
"""Creates a flow from a pair; `Flow` itself takes three times as long."""


class TopicReassignments(tuple[TopicReassignment, ...]):
    """The reassignments of a cluster, ordered by topic, with values that are derived from all of them.

    Successive snapshots share the object while no reassignment changes, so that these values are computed once.
    """

    @cached_property
    def flows(self) -> Mapping[Flow, int]:
        """Flow -> the number of its partitions that are still to be copied."""
        # Merges whole mappings, because a loop over 1,000,000 flows takes ten times as long.
        counts: dict[Flow, int] = {}
        for reassignment in self:
            flows = reassignment.flows
            common = {flow: counts[flow] + flows[flow] for flow in counts.keys() & flows.keys()}
            counts.update(flows)
            counts.update(common)
        return counts

    @cached_property
    def participants(self) -> Mapping[int, frozenset[ReplicaRole]]:
        """Broker id -> its roles."""
        copying = [reassignment.copying for reassignment in self]
        leaders = set[int]().union(*(topic.leaders for topic in copying))
        followers = set[int]().union(*(topic.followers for topic in copying))
        leaders.discard(NO_LEADER)
        sides = ((ReplicaRole.LEADER, leaders), (ReplicaRole.FOLLOWER, followers))
        return {b: frozenset(role for role, broker_ids in sides if b in broker_ids) for b in leaders | followers}

    @cached_property
    def link_sides(self) -> frozenset[LinkSide]:
        """The link sides that the participants use."""
        return frozenset((broker_id, role) for broker_id, roles in self.participants.items() for role in roles)

    @cached_property
    def is_offline(self) -> bool:
        """Whether a partition that is still to be copied has no leader."""
        return any(NO_LEADER in reassignment.copying.leaders for reassignment in self)

    @cached_property
    def sending(self) -> Mapping[int, tuple[int, int]]:
        """Leader -> (in-sync followers, replicas still to copy), summed over the partitions that it sends."""
        copies_of_leaders: dict[int, tuple[int, int]] = {}

        def add(leader: int, followers: int, copies: int) -> None:
            so_far = copies_of_leaders.get(leader, (0, 0))
            copies_of_leaders[leader] = so_far[0] + followers, so_far[1] + copies

        leaders: dict[tuple[int, int], list[Sequence[int]]] = {}
        for reassignment in self:
            if reassignment.shape is not None:
                leaders.setdefault(reassignment.shape, []).append(reassignment.leaders)
                continue
            for leader, (followers, copies) in reassignment.sending.items():
                add(leader, followers, copies)
        for (followers, copies), columns in leaders.items():
            for leader, count in Counter(chain.from_iterable(columns)).items():
                add(leader, count * followers, count * copies)
        return copies_of_leaders


def _replica_list(partitions: Sequence[int], replicas: Sequence[tuple[int, ...]], ordered: bool) -> ReplicaList:
    """Return a replica list; if `ordered`, it skips sorting, which would dominate for 100,000 partitions."""
    if ordered and len(sizes := set(map(len, replicas))) == 1:
        columns = list(zip(*map(sorted, replicas), strict=True))
        if all(all(map(lt, low, high)) for low, high in pairwise(columns)):  # no broker is listed twice
            entries_of_partition = ",".join(["%d:%d"] * sizes.pop()).__mod__
            pairs = chain.from_iterable((partitions, column) for column in columns)
            return ReplicaList(",".join(map(entries_of_partition, zip(*pairs, strict=True))))
    rows = zip(partitions, map(sorted, replicas), strict=True)
    entries = [f"{partition}:{b}" for partition, broker_ids in rows for b in broker_ids]
    in_order = ordered and sum(map(len, map(frozenset, replicas))) == len(entries)
    return ReplicaList(",".join(entries) if in_order else format_replicas(frozenset(entries)))


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the cluster that could not be read, and the fix."""

    path: str
    """The znode or config resource."""
    reason: str
    """One sentence that names the value and the fix."""
    topic: str = ""
    """The only topic that it concerns; "": it may concern any topic, or the path is that of one config."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """What a snapshot must contain, in addition to the reassignments, throttles and brokers."""

    min_version: int = 0
    """Minimum version of the snapshot; 0: any."""
    replicas_of: Collection[int] = ()
    """Ids of the brokers whose replicas it lists."""
    partitions: Collection[TopicPartition] = ()
    """The partitions whose assignments it contains, in reassignment or not."""
    catching_up: Collection[int] = ()
    """Ids of the brokers that catch up. While they run, later snapshots report progress for their out-of-sync replicas
    of `partitions`, as for a reassignment to them. This ends one minute after the last request that named the broker.
    """
    accept_partial: bool = False
    """Whether it may lack topics that are still being read, see `Snapshot.unread_partitions`."""


ANY_SNAPSHOT = SnapshotRequest()


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
    """One for each topic in reassignment, ordered by name; stored as `TopicReassignments`."""
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
    """Link sides of brokers that catch up; `sources.with_lagging` shows their lagging replicas as reassignments.
    Until these replicas are in sync, redundancy is reduced, so only client traffic limits the catch-up."""
    unread_partitions: int = 0
    """Partitions in reassignment that are still being read. Their topics are absent, and one of the `problems` concerns
    all topics, so that nothing is removed."""

    def __post_init__(self) -> None:
        if not isinstance(self.reassignments, TopicReassignments):
            object.__setattr__(self, "reassignments", TopicReassignments(self.reassignments))

    @staticmethod
    def empty() -> Snapshot:
        """Return a snapshot that knows nothing; older than any other."""
        return Snapshot(version=0)

    def with_unread(self, path: str, partitions: int) -> Snapshot:
        """Return the snapshot of a cluster whose other partitions in reassignment are still being read.

        Args:
            path: of all topics.
            partitions: the number of these partitions.
        """
        rest = f"{partitions} more partitions in reassignment are still being read"
        problem = Problem(path, f"{rest}; the next cycle throttles them, and no throttle is removed until then")
        return replace(self, unread_partitions=partitions, problems=(*self.problems, problem))

    def without_topic(self, topic: str) -> Snapshot:
        """Return the snapshot without the reassignment, the replicas and the assignments of a topic.

        Its throttles and ledger entry stay, so that a list of ours is removed from it.
        """
        changed: dict[str, Any] = {}  # without changes, the snapshot keeps its derived values
        if topic in self.topics:
            changed["reassignments"] = tuple(r for r in self.reassignments if r.topic != topic)
        if any(topic in topics for topics in self.replicas.values()):
            changed["replicas"] = {
                broker_id: {name: rows for name, rows in topics.items() if name != topic}
                for broker_id, topics in self.replicas.items()
            }
        if any(name == topic for name, _ in self.assignments):
            changed["assignments"] = {row: value for row, value in self.assignments.items() if row[0] != topic}
        return replace(self, **changed) if changed else self

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """Names of the topics in reassignment."""
        return tuple(r.topic for r in self.reassignments)

    @cached_property
    def participants(self) -> Mapping[int, frozenset[ReplicaRole]]:
        """Broker id -> its roles, for the brokers that take part in a reassignment.

        The leader of every partition that is still being copied has the leader role. Each adding replica outside the
        ISR has the follower role, even while the partition has no leader.
        """
        return self._all.participants

    @cached_property
    def link_sides(self) -> frozenset[LinkSide]:
        """The link sides that the participants use."""
        return self._all.link_sides

    @cached_property
    def rates(self) -> Mapping[LinkSide, BytesPerSecond]:
        """Link side -> its current throttle, bytes/s; absent: not throttled."""
        return {
            (resource.broker_id, role): rate
            for resource, keys in self.throttles.items()
            if resource.type is ResourceType.BROKER
            for role in ReplicaRole
            if (rate := limiting_rate(keys.get(role.rate_key, ""))) is not None
        }

    @cached_property
    def previous_rates(self) -> Mapping[LinkSide, BytesPerSecond]:
        """Link side -> the rate that a new rate is compared with, bytes/s; absent: no such rate.

        Usually it is the current rate. During a ramp it is the ramp's target. If another party edited our rate, it is
        the rate that we wrote, so that small edits are repaired, too.
        """
        rates: dict[LinkSide, BytesPerSecond | None] = dict(self.rates)
        for (broker_id, role), record in self.rate_records.items():
            current = self.throttles.get(ConfigResource.broker(broker_id), {}).get(role.rate_key)
            if record.target is not None or not record.is_ours(current):
                rates[broker_id, role] = limiting_rate(record.final_rate or "")
        return {side: rate for side, rate in rates.items() if rate is not None}

    @cached_property
    def rate_records(self) -> Mapping[LinkSide, LedgerKey]:
        """Link side -> the ledger's record of its rate; absent: the rate is not ours."""
        return {
            (resource.broker_id, role): records[role.rate_key]
            for resource, records in self.records.items()
            if resource.type is ResourceType.BROKER
            for role in ReplicaRole
            if role.rate_key in records
        }

    @cached_property
    def records(self) -> Mapping[ConfigResource, Mapping[str, LedgerKey]]:
        """Resource -> the ledger's records of its throttle keys that are ours; absent: it has no entry."""
        return {resource: entry.records(self.throttles.get(resource, {})) for resource, entry in self.ledger.items()}

    @cached_property
    def in_sync_followers(self) -> Mapping[int, float]:
        """Leader -> in-sync followers of its partitions in reassignment, per replica to copy."""
        return {leader: followers / copies for leader, (followers, copies) in self._all.sending.items()}

    @property
    def flows(self) -> Mapping[Flow, int]:
        """Flow -> the number of its partitions that are still to be copied."""
        return self._all.flows

    @cached_property
    def running_flows(self) -> Mapping[Flow, int]:
        """The flows without those to brokers that shall catch up but are down.

        Such brokers are throttled before they start; until then they copy nothing, and their flows have no counts.
        """
        if not self._waiting:
            return self.flows
        return {flow: count for flow, count in self.flows.items() if flow.follower not in self._waiting}

    @cached_property
    def uncounted_sides(self) -> frozenset[LinkSide]:
        """The link sides with one of the `flows` whose progress is unknown."""
        return self._uncounted_sides(lambda: self.flows)

    @cached_property
    def running_uncounted_sides(self) -> frozenset[LinkSide]:
        """The link sides with one of the `running_flows` whose progress is unknown."""
        return self._uncounted_sides(lambda: self.running_flows)

    def _uncounted_sides(self, flows: Callable[[], Mapping[Flow, int]]) -> frozenset[LinkSide]:
        counts = self.progress.flows if self.progress else {}
        if not counts and not self._all.is_offline and not self._waiting:
            return self.link_sides  # without the flows: 1,000,000 of them take a second
        return link_sides_of(flows().keys() - counts.keys())

    @property
    def _all(self) -> TopicReassignments:
        assert isinstance(self.reassignments, TopicReassignments)
        return self.reassignments

    @cached_property
    def _waiting(self) -> frozenset[int]:
        """Brokers that shall catch up but are down."""
        followers = {broker_id for broker_id, role in self.catching_up if role is ReplicaRole.FOLLOWER}
        return frozenset(followers - self.brokers)


def replicas_on(
    broker_ids: frozenset[int], topics: Iterable[tuple[str, Iterable[tuple[int, Sequence[int]]]]]
) -> dict[int, dict[str, tuple[int, ...]]]:
    """Return broker id -> topic -> its partitions with a replica there, ascending.

    It makes one pass for all brokers, because there may be 100,000 partitions and 1,000 brokers.

    Args:
        broker_ids: the requested brokers; each is a key of the result.
        topics: (topic, (partition, broker ids of its replicas) of each partition).
    """
    topics_of_brokers: dict[int, dict[str, tuple[int, ...]]] = {b: {} for b in sorted(broker_ids)}
    for topic, partitions in topics if broker_ids else ():
        partitions_of_brokers: dict[int, list[int]] = {}
        for partition, replicas in partitions:
            for broker_id in broker_ids.intersection(replicas):
                partitions_of_brokers.setdefault(broker_id, []).append(partition)
        for broker_id, numbers in partitions_of_brokers.items():
            topics_of_brokers[broker_id][topic] = tuple(sorted(numbers))
    return topics_of_brokers


_SHOWN = 100
"""Maximum number of topics in a sentence."""

Difference = tuple[str, bool]
"""(what happened, in one sentence; whether bytes move unthrottled until a cycle has handled it)."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One view of the cluster."""

    brokers: frozenset[int] = frozenset()
    """Ids of the registered brokers."""
    reassignments: Mapping[str, TopicReassignment] = field(default_factory=dict)
    """Topic -> its reassignment."""


class SnapshotDifferences:
    """Compares each view of the cluster with the previous ones; not thread-safe."""

    def __init__(self) -> None:
        self._views: list[ClusterView] = []

    def since_last_view(self, view: ClusterView) -> list[Difference]:
        """Return what changed since the last call."""
        views, self._views = self._views, [view]
        if not views:
            # A watcher that subscribed before the first view was complete would otherwise never hear of these.
            return [(f"reassignment found: {_names(sorted(view.reassignments))}", True)] if view.reassignments else []
        return list(dict.fromkeys(item for old in views for item in _view_differences(old, view)))

    def note_handed_out(self, view: ClusterView) -> None:
        """Record a view that was handed out since the last call; the next call reports differences from it too."""
        if self._views and view != self._views[0]:
            self._views.append(view)


def _view_differences(old: ClusterView, new: ClusterView) -> Iterator[Difference]:
    if started := sorted(new.reassignments.keys() - old.reassignments.keys()):
        yield f"reassignment started: {_names(started)}", True
    if ended := sorted(old.reassignments.keys() - new.reassignments.keys()):
        yield f"reassignment ended: {_names(ended)}", False
    for topic in sorted(new.reassignments.keys() & old.reassignments.keys()):
        old_reassignment, new_reassignment = old.reassignments[topic], new.reassignments[topic]
        if new_reassignment is not old_reassignment and new_reassignment != old_reassignment:
            yield from _reassignment_differences(old_reassignment, new_reassignment)
    if appeared := sorted(new.brokers - old.brokers):
        yield f"brokers registered: {appeared}", False
    if gone := sorted(old.brokers - new.brokers):
        yield f"brokers gone: {gone}", False


def _names(topics: Sequence[str]) -> str:
    """The topics; the reason of a cycle, which contains them, is in every response with the cycle."""
    return f"[{excerpt(topics, _SHOWN, ' ')}]"


def _reassignment_differences(old: TopicReassignment, new: TopicReassignment) -> Iterator[Difference]:
    """What changed in a topic's reassignment: one sentence per kind of change."""
    old_partitions, new_partitions = set(old.partitions), set(new.partitions)

    def changed(column: Callable[[TopicReassignment], Iterable[object]]) -> bool:
        old_values, new_values = (dict(zip(r.partitions, column(r), strict=True)) for r in (old, new))
        return any(old_values[p] != new_values[p] for p in old_partitions & new_partitions)

    if new_partitions - old_partitions or changed(lambda r: r.adding_replicas):
        yield f"reassignment of {new.topic} grew", True
    if old_partitions - new_partitions:
        yield f"reassignment of partitions of {new.topic} ended", False
    if changed(lambda r: r.leaders):
        yield f"leader of {new.topic} changed", True
    if changed(lambda r: map(frozenset, r.isr)):
        yield f"ISR of {new.topic} changed", False


REMEMBERED = timedelta(minutes=8)
"""How long the earlier counts of a flow are kept: a metric may be 2 minutes late, cover 2, and be used for 2 more."""

SET_BACK = timedelta(seconds=1)
"""A sample older than the last one by more than this means that the clock was set back. Counts with times in the
future would block all counting until then, so they are discarded."""

MAX_BROKER_BYTES = 2**51
"""Largest sum of the logs on one broker, 2 PB: sums over 4,000 brokers fit into a signed 64-bit integer."""


@dataclass(frozen=True, slots=True)
class BrokerLogSizes:
    """The sizes of the logs on one broker at one time."""

    at: datetime
    """When the broker reported them, UTC."""
    sizes: Mapping[TopicPartition, int]
    """(topic, partition) -> size of the log, bytes; absent: the broker has no replica."""


@dataclass(frozen=True, slots=True)
class LogSizes:
    """One sample of log sizes."""

    brokers: Mapping[int, BrokerLogSizes] = field(default_factory=dict)
    """Broker id -> its logs; absent: the broker was not queried, or see `problems`."""
    problems: Mapping[int, str] = field(default_factory=dict)
    """Broker id -> why it did not answer, in one sentence."""

    def usable(self) -> LogSizes:
        """Return the sizes without the brokers that report a size outside its range, which are problems."""
        problems = {b: reason for b, logs in self.brokers.items() if (reason := _size_problem(b, logs))}
        if not problems:
            return self
        brokers = {b: logs for b, logs in self.brokers.items() if b not in problems}
        return LogSizes(brokers, {**self.problems, **problems})


def _size_problem(broker_id: int, logs: BrokerLogSizes) -> str:
    if min(logs.sizes.values(), default=0) < 0:
        (topic, partition), size = min(logs.sizes.items(), key=itemgetter(1))
        return f"broker {broker_id} reports {size} bytes for {topic} {partition}; a size is >= 0"
    total = sum(logs.sizes.values())
    if total > MAX_BROKER_BYTES:
        return f"broker {broker_id} reports {total} bytes of logs; at most {MAX_BROKER_BYTES} are plausible"
    return ""
