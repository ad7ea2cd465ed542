"""The in-memory twin of every port, shipped so that nobody needs a mock: same contract, no outside.

What a controller, a user or a fault would do to the real thing is a method here. Callbacks run in the thread
of whoever made the change, after it is made. The types to know are `MemoryCluster` and `MemoryElectorate`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.subscriptions import Subscriptions
from autothrottle.core.audit import MAX_AUDIT_RECORDS, AuditAction, AuditRecord
from autothrottle.core.catch_up import CatchUp
from autothrottle.core.changes import Change, Edit, Outcome, OutcomeStatus
from autothrottle.core.configs import RATE_KEYS, THROTTLE_KEYS, ConfigResource
from autothrottle.core.decisions import DecisionRecord, ReassignmentRecord
from autothrottle.core.errors import Conflict, Incomplete, NotLeader, Unavailable
from autothrottle.core.fetching import ClusterSettings
from autothrottle.core.flows import Progress
from autothrottle.core.ledger import LedgerEntry
from autothrottle.core.loads import BrokerLoad, BytesPerSecond, Loads
from autothrottle.core.members import Member, ordered
from autothrottle.core.overrides import Override, Overrides, demand_version, validate_broker_id, validate_rate
from autothrottle.core.pause import Pause
from autothrottle.core.progress import BrokerLogSizes, LogSizes, ProgressHistory
from autothrottle.core.topology import (
    NO_LEADER,
    Assignment,
    Problem,
    Snapshot,
    TopicPartition,
    TopicReassignment,
)
from autothrottle.ports.cluster import SnapshotEvent, Watch
from autothrottle.ports.leadership import Leader, Term
from autothrottle.ports.metrics import Event
from autothrottle.ports.tracing import Attribute, Origin


class MemoryElectorate:
    """What all candidates share: who stands, who leads, and the fence that every write is checked against."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._candidates: list[MemoryElection] = []
        self._leader: Leader | None = None
        self._down = False

    @property
    def fence(self) -> int:
        """The newest term; 0 before the first."""
        return self._leader.fence if self._leader else 0

    def check(self, fence: int) -> None:
        """Return while a term is the newest one.

        Raises:
            NotLeader: when it is over.
        """
        if fence != self.fence:
            address = self._leader.address if self._leader else ""
            raise NotLeader(f"term {fence} is over, the newest is {self.fence}; do not write any more", address)

    def begin_term(self, address: str = "") -> int:
        """Let a term begin that no candidate holds, as if another planner led; returns its fence."""
        with self._lock:
            losers = [c for c in self._candidates if c.term]
            self._leader = Leader(self.fence + 1, address, datetime.now(UTC))
            for loser in losers:
                loser.term = None
        _tell(losers)
        return self.fence

    def depose(self) -> None:
        """End the leader's session: it stands again behind all others, and the next one leads."""
        with self._lock:
            leaders = [c for c in self._candidates if c.term]
            for leader in leaders:
                leader.term = None
                self._candidates.remove(leader)
                self._candidates.append(leader)
        _tell(leaders)
        self._elect()

    def unavailable(self, down: bool) -> None:
        """Whether the election answers nobody; terms go on meanwhile."""
        self._down = down

    def _read(self) -> Leader | None:
        if self._down:
            raise Unavailable("the election does not answer; try again")
        return self._leader

    def _elect(self) -> None:
        with self._lock:
            if not self._candidates or any(c.term for c in self._candidates):
                return
            winner = self._candidates[0]
            self._leader = Leader(self.fence + 1, winner.address, datetime.now(UTC))
            winner.term = Term(self.fence)
        _tell([winner])

    def _add(self, candidate: MemoryElection) -> None:
        with self._lock:
            if candidate not in self._candidates:
                self._candidates.append(candidate)
        self._elect()

    def _remove(self, candidate: MemoryElection) -> None:
        with self._lock:
            if candidate in self._candidates:
                self._candidates.remove(candidate)
            led, candidate.term = candidate.term is not None, None
        if led:
            _tell([candidate])
        self._elect()


def _tell(candidates: Iterable[MemoryElection]) -> None:
    for candidate in candidates:
        candidate.on_change()


class MemoryElection:
    """One candidate's part in an electorate (an `Election`); the first that joined leads."""

    def __init__(self, electorate: MemoryElectorate) -> None:
        self._electorate = electorate
        self.term: Term | None = None
        self.address = ""
        self.on_change: Callable[[], None] = lambda: None

    def leader(self) -> Leader | None:
        return self._electorate._read()

    def join(self, address: str, on_change: Callable[[], None]) -> None:
        self.address, self.on_change = address, on_change
        self._electorate._add(self)

    def leave(self) -> None:
        self._electorate._remove(self)


class MemoryMembers:
    """The list of members that all processes share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._joined: list[Member] = []
        self._down = False

    def unavailable(self, down: bool) -> None:
        """Whether the list answers nobody; who joins or leaves meanwhile does so all the same."""
        self._down = down

    def _read(self) -> tuple[Member, ...]:
        if self._down:
            raise Unavailable("the members cannot be read; try again")
        with self._lock:
            return ordered(self._joined)

    def _add(self, member: Member) -> None:
        with self._lock:
            self._joined.append(member)

    def _remove(self, member: Member) -> None:
        with self._lock:
            self._joined.remove(member)


class MemoryMembership:
    """One process's part in the list (a `Membership`); it has no session that could be lost."""

    def __init__(self, everybody: MemoryMembers) -> None:
        self._everybody = everybody
        self._member: Member | None = None

    def join(self, member: Member) -> None:
        self._member = member
        self._everybody._add(member)

    def leave(self) -> None:
        left, self._member = self._member, None
        if left is not None:
            self._everybody._remove(left)

    def members(self, timeout: timedelta) -> tuple[Member, ...]:
        return self._everybody._read()


@dataclass(frozen=True, slots=True)
class MemoryPartition:
    """One partition as the controller has it."""

    replicas: tuple[int, ...]
    """Broker ids; while it is being reassigned those to be removed are last."""
    leader: int
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether it is being reassigned."""
        return bool(self.adding or self.removing)


class MemoryCluster:
    """A Kafka cluster with its controller and its other users.

    It is a `SnapshotSource`, a `LogSizeSource`, a `FetchSettingsSource`, a `ConfigWriter` and a `Reassigner`.
    """

    def __init__(self, electorate: MemoryElectorate | None = None, brokers: Iterable[int] = ()) -> None:
        """Make a cluster without topics.

        Args:
            electorate: whose terms fence the writes; None: one of its own, see `begin_term`.
            brokers: ids of the registered brokers.
        """
        self.electorate = electorate or MemoryElectorate()
        self.brokers = set(brokers)
        self.topics: dict[str, dict[int, MemoryPartition]] = {}
        self.configs: dict[ConfigResource, dict[str, str]] = {}
        """Resource -> its dynamic configs, those included that are no throttles."""
        self.default_configs: dict[str, str] = {}
        """The brokers' `<default>` level: config key -> value."""
        self.ledger: dict[ConfigResource, LedgerEntry] = {}
        self.unreadable_configs: dict[ConfigResource, Problem] = {}
        self.problems: list[Problem] = []
        self.notifications: list[str] = []
        """The entity paths that brokers were told to read again, in order."""
        self.writes: list[Change] = []
        """The changes that were applied, in order."""
        self.submissions: list[Mapping[TopicPartition, tuple[int, ...] | None]] = []
        """The reassignments that were submitted through the port, in order; None: cancelled."""
        self.log_bytes: dict[int, dict[TopicPartition, int]] = {}
        """Broker id -> (topic, partition) -> bytes of the log there; a broker that is absent answers nobody."""
        self.settings = ClusterSettings()
        """What brokers and topics are configured to; of those that are absent nothing is told."""
        self.version = 1
        self._history: ProgressHistory | None = None
        self._now: Callable[[], datetime] = lambda: datetime.now(UTC)
        self._taken = 0
        self._conflict = ""
        self._slow_controller = False
        self._lock = threading.RLock()
        self._watches: Subscriptions[SnapshotEvent] = Subscriptions()
        self._refused: dict[ConfigResource, str] = {}
        self._down = False
        self._incomplete = ""

    # The ports.

    def is_registered(self, broker_id: int, timeout: timedelta) -> bool:
        with self._lock:
            self._answer()
            return broker_id in self.brokers

    def fetch_snapshot(
        self,
        *,
        min_version: int = 0,
        replicas_of: Collection[int] = (),
        partitions: Collection[TopicPartition] = (),
        timeout: timedelta,
    ) -> Snapshot:
        with self._lock:
            self._answer()
            if self._incomplete:
                raise Incomplete(self._incomplete)
            if self.version < min_version:
                raise Unavailable(f"the cluster is at version {self.version}, before {min_version}; try again")
            return Snapshot(
                version=self.version,
                brokers=frozenset(self.brokers),
                reassignments=tuple(self._reassignments()),
                throttles=self._throttles(),
                default_throttles={k: v for k, v in self.default_configs.items() if k in RATE_KEYS},
                ledger=dict(self.ledger),
                replicas={b: self._replicas_of(b) for b in replicas_of},
                assignments={row: found for row in partitions if (found := self._assignment(row))},
                unreadable_configs=dict(self.unreadable_configs),
                problems=tuple(self.problems),
                progress=self._progress(),
            )

    def watch_snapshots(self, notify: Callable[[SnapshotEvent], None]) -> Watch:
        return self._watches.add(notify)

    def fetch_log_sizes(self, wanted: Mapping[int, Mapping[str, Collection[int]]], timeout: timedelta) -> LogSizes:
        with self._lock:
            self._answer()
            return LogSizes(
                brokers={
                    b: BrokerLogSizes(self._now(), self._logs(b, wanted[b]))
                    for b in wanted.keys() & self.log_bytes.keys()
                },
                problems={b: f"broker {b} does not answer" for b in wanted.keys() - self.log_bytes.keys()},
            )

    def fetch_settings(
        self, broker_ids: Collection[int], topics: Collection[str], timeout: timedelta
    ) -> ClusterSettings:
        with self._lock:
            self._answer()
            return ClusterSettings(
                {b: one for b, one in self.settings.brokers.items() if b in broker_ids},
                {t: count for t, count in self.settings.min_in_sync_replicas.items() if t in topics},
            )

    def apply(self, fence: int, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        outcomes = []
        for change in changes:
            with self._lock:
                self._answer()
                self.electorate.check(fence)
                outcomes.append(self._apply(change))
        return tuple(outcomes)

    def alter_reassignments(
        self, fence: int, targets: Mapping[TopicPartition, tuple[int, ...] | None], timeout: timedelta
    ) -> Mapping[TopicPartition, str]:
        with self._lock:
            self._answer()
            self.electorate.check(fence)
            if self._conflict:
                raise Conflict(self._conflict)
            refused = {row: reason for row, to in targets.items() if (reason := self._refusal(row, to))}
            self.submissions.append({row: to for row, to in targets.items() if row not in refused})
        if not self._slow_controller:
            self.take_up()
        return refused

    # What the controller and the brokers do.

    def tell_progress(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Let every snapshot from now on read log sizes and have a progress; without this it is unknown."""
        self._history, self._now = ProgressHistory(), now

    def grow(self, broker_id: int, topic: str, partition: int, size: int) -> None:
        """Let a log become larger, smaller if < 0; its broker answers from now on."""
        with self._lock:
            logs = self.log_bytes.setdefault(broker_id, {})
            logs[topic, partition] = logs.get((topic, partition), 0) + size

    def take_up(self) -> None:
        """Let the controller act on all that was submitted and that it has not seen yet."""
        taken, self._taken = self.submissions[self._taken :], len(self.submissions)
        for targets in taken:
            started: dict[str, dict[int, tuple[int, ...]]] = {}
            for (topic, partition), replicas in targets.items():
                if replicas is None:
                    self.cancel(topic, partition)
                else:
                    started.setdefault(topic, {})[partition] = replicas
            for topic, target in started.items():
                self.start_reassignment(topic, target)

    def add_topic(self, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
        """Create a topic from partition -> replicas; the first leads, all are in sync."""
        partitions = {p: MemoryPartition(tuple(r), r[0], tuple(r)) for p, r in assignment.items()}
        with self._lock:
            self.topics[topic] = dict(sorted(partitions.items()))
            self.version += 1

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its config, also while it moves."""
        with self._lock:
            gone = self.topics.pop(topic)
            self.configs.pop(ConfigResource.topic(topic), None)
            self.version += 1
        if any(p.moves for p in gone.values()):
            self._publish(f"the reassignment of [{topic}] ended")

    def start_reassignment(self, topic: str, target: Mapping[int, Sequence[int]]) -> None:
        """Begin to move partitions to the replicas given for each, as KIP-455 does."""
        for partition, replicas in target.items():
            old = self.topics[topic][partition]
            standing = tuple(b for b in old.replicas if b not in old.adding)
            adding = tuple(b for b in replicas if b not in standing)
            removing = tuple(b for b in standing if b not in replicas)
            everyone = (*replicas, *removing)
            isr = tuple(b for b in old.isr if b in everyone)
            self._change(topic, partition, replicas=everyone, adding=adding, removing=removing, isr=isr)
        self._publish(f"a reassignment of [{topic}] started", urgent=True)

    def join_isr(self, topic: str, partition: int, broker_id: int) -> None:
        """Let a replica have caught up."""
        isr = self.topics[topic][partition].isr
        self._change(topic, partition, isr=(*(b for b in isr if b != broker_id), broker_id))
        self._publish(f"broker {broker_id} joined the ISR of {topic}-{partition}")

    def leave_isr(self, topic: str, partition: int, broker_id: int) -> None:
        """Let a replica have fallen behind."""
        isr = self.topics[topic][partition].isr
        self._change(topic, partition, isr=tuple(b for b in isr if b != broker_id))

    def move_leader(self, topic: str, partition: int, broker_id: int) -> None:
        """Let another replica lead; -1: none."""
        self._change(topic, partition, leader=broker_id)
        self._publish(f"the leader of {topic}-{partition} changed", urgent=True)

    def finish(self, topic: str, *partitions: int) -> None:
        """Complete the reassignment of partitions, of all that move if none is given."""
        for partition in partitions or self._moving(topic):
            old = self.topics[topic][partition]
            left = tuple(b for b in old.replicas if b not in old.removing)
            isr = tuple(b for b in left if b in old.isr or b in old.adding)
            self._settle(topic, partition, left, isr)
        self._publish(f"the reassignment of [{topic}] ended")

    def cancel(self, topic: str, *partitions: int) -> None:
        """Take the reassignment of partitions back, of all that move if none is given."""
        for partition in partitions or self._moving(topic):
            old = self.topics[topic][partition]
            left = tuple(b for b in old.replicas if b not in old.adding)
            self._settle(topic, partition, left, tuple(b for b in old.isr if b in left))
        self._publish(f"the reassignment of [{topic}] ended")

    def begin_term(self, address: str = "") -> int:
        """Begin a term and return its fence; writes of earlier terms are refused from now on."""
        return self.electorate.begin_term(address)

    # What other users do, and faults.

    def set_config_as_user(self, resource: ConfigResource, key: str, value: str | None) -> None:
        """Set one config, past the ledger; None deletes it."""
        with self._lock:
            _put(self.configs.setdefault(resource, {}), key, value)
            self.version += 1

    def set_default_as_user(self, key: str, value: str | None) -> None:
        """Set one config of all brokers that have no value of their own; None deletes it."""
        with self._lock:
            _put(self.default_configs, key, value)
            self.version += 1

    def refuse(self, resource: ConfigResource, reason: str) -> None:
        """Refuse all changes of one resource from now on; "" accepts them again."""
        self._refused[resource] = reason

    def refuse_reassignments(self, reason: str) -> None:
        """Let every reassignment that is submitted be in conflict with another one; "" takes them again."""
        self._conflict = reason

    def slow_controller(self, slow: bool) -> None:
        """Whether what is submitted waits for `take_up`; until then no snapshot shows it."""
        self._slow_controller = slow

    def unavailable(self, down: bool) -> None:
        """Whether the cluster answers nobody."""
        self._down = down

    def incomplete(self, reason: str) -> None:
        """Let what moves be unreadable for this reason; "" lets it be read again."""
        self._incomplete = reason

    def _answer(self) -> None:
        if self._down:
            raise Unavailable("the cluster does not answer; try again")

    def _publish(self, reason: str, urgent: bool = False) -> None:
        self._watches.publish(SnapshotEvent(self.version, reason, urgent))

    def _change(
        self,
        topic: str,
        partition: int,
        *,
        replicas: tuple[int, ...] | None = None,
        leader: int | None = None,
        isr: tuple[int, ...] | None = None,
        adding: tuple[int, ...] | None = None,
        removing: tuple[int, ...] | None = None,
    ) -> None:
        with self._lock:
            old = self.topics[topic][partition]
            self.topics[topic][partition] = MemoryPartition(
                replicas=old.replicas if replicas is None else replicas,
                leader=old.leader if leader is None else leader,
                isr=old.isr if isr is None else isr,
                adding=old.adding if adding is None else adding,
                removing=old.removing if removing is None else removing,
            )
            self.version += 1

    def _settle(self, topic: str, partition: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> None:
        leader = self.topics[topic][partition].leader
        if leader not in replicas:
            leader = isr[0] if isr else NO_LEADER
        self._change(topic, partition, replicas=replicas, leader=leader, isr=isr, adding=(), removing=())

    def _moving(self, topic: str) -> tuple[int, ...]:
        return tuple(number for number, p in self.topics[topic].items() if p.moves)

    def _reassignments(self) -> Iterable[TopicReassignment]:
        for topic in sorted(self.topics):
            moving = {n: p for n, p in self.topics[topic].items() if p.moves}
            if moving:
                yield TopicReassignment(
                    topic=topic,
                    partitions=tuple(moving),
                    leaders=tuple(p.leader for p in moving.values()),
                    isr=tuple(p.isr for p in moving.values()),
                    adding_replicas=tuple(p.adding for p in moving.values()),
                    removing_replicas=tuple(p.removing for p in moving.values()),
                )

    def _progress(self) -> Progress | None:
        if self._history is None:
            return None
        moving = tuple(self._reassignments())
        sizes = self.fetch_log_sizes(self._history.wanted(moving), timedelta(seconds=1))
        self._history = self._history.observe(moving, sizes, self._now())
        return self._history.progress

    def _logs(self, broker_id: int, wanted: Mapping[str, Collection[int]]) -> dict[TopicPartition, int]:
        held = self.log_bytes[broker_id].items()
        return {(topic, p): size for (topic, p), size in held if p in wanted.get(topic, ())}

    def _assignment(self, row: TopicPartition) -> Assignment | None:
        topic, partition = row
        found = self.topics.get(topic, {}).get(partition)
        if found is None:
            return None
        return Assignment(found.replicas, found.leader, found.isr, found.adding, found.removing)

    def _refusal(self, row: TopicPartition, replicas: tuple[int, ...] | None) -> str:
        """Why the controller does not take one partition; "": it does."""
        standing = self._assignment(row)
        if standing is None:
            return f"{row[0]}-{row[1]} does not exist; name a partition that does"
        if replicas is None:
            return "" if standing.moves else f"{row[0]}-{row[1]} is not being reassigned; there is nothing to cancel"
        absent = set(replicas) - self.brokers - set(standing.replicas)
        return f"brokers {sorted(absent)} are not registered; name others" if absent else ""

    def _throttles(self) -> dict[ConfigResource, dict[str, str]]:
        found = {
            resource: {key: value for key, value in config.items() if key in THROTTLE_KEYS}
            for resource, config in self.configs.items()
            if resource not in self.unreadable_configs
        }
        return {resource: config for resource, config in found.items() if config}

    def _replicas_of(self, broker_id: int) -> dict[str, tuple[int, ...]]:
        held = {
            topic: tuple(n for n, p in partitions.items() if broker_id in p.replicas)
            for topic, partitions in sorted(self.topics.items())
        }
        return {topic: partitions for topic, partitions in held.items() if partitions}

    def _apply(self, change: Change) -> Outcome:
        resource, config = change.resource, self.configs.get(change.resource, {})
        reason = self._refused.get(resource) or _conflict(config, change.edits)
        if reason:
            return Outcome(resource, OutcomeStatus.REFUSED, reason)
        edits = [e for e in change.edits if config.get(e.key) != e.value]
        if not edits and self.ledger.get(resource) == change.ledger:
            return Outcome(resource, OutcomeStatus.UNCHANGED)
        self._write(change, edits)
        return Outcome(resource, OutcomeStatus.APPLIED)

    def _write(self, change: Change, edits: Sequence[Edit]) -> None:
        if edits:
            config = self.configs.setdefault(change.resource, {})
            for edit in edits:
                _put(config, edit.key, edit.value)
            self.notifications.append(change.resource.path)
        if change.ledger is None:
            self.ledger.pop(change.resource, None)
        else:
            self.ledger[change.resource] = change.ledger
        self.writes.append(change)
        self.version += 1


def _conflict(config: Mapping[str, str], edits: Iterable[Edit]) -> str:
    """Why the edits cannot be made on what stands; what stands already as wanted is no conflict."""
    for edit in edits:
        standing = config.get(edit.key)
        if standing not in (edit.expected, edit.value):
            return f"{edit.key} is {standing!r} instead of {edit.expected!r}; somebody changed it meanwhile"
    return ""


def _put(config: dict[str, str], key: str, value: str | None) -> None:
    if value is None:
        config.pop(key, None)
    else:
        config[key] = value


class MemoryDecisions:
    """A decision log that holds what it is given (a `DecisionSink`)."""

    def __init__(self) -> None:
        self.decisions: list[DecisionRecord] = []
        self.reassignments: list[ReassignmentRecord] = []

    def append(self, decisions: Sequence[DecisionRecord], reassignments: Sequence[ReassignmentRecord]) -> None:
        self.decisions += decisions
        self.reassignments += reassignments


class MemoryMetrics:
    """A metrics source and an event sink that hold what they are given."""

    def __init__(self, *loads: BrokerLoad) -> None:
        self.loads = Loads({load.broker_id: load for load in loads})
        """What the next reading returns."""
        self.events: list[Event] = []
        """What was posted, in order."""
        self._down = False

    def set_loads(self, *loads: BrokerLoad) -> None:
        """Replace the loads of these brokers; a problem of theirs is over."""
        new = {load.broker_id: load for load in loads}
        problems = {b: reason for b, reason in self.loads.problems.items() if b not in new}
        self.loads = replace(self.loads, brokers={**self.loads.brokers, **new}, problems=problems)

    def lose(self, broker_id: int, reason: str) -> None:
        """Let one broker have no load for a reason."""
        left = {b: load for b, load in self.loads.brokers.items() if b != broker_id}
        self.loads = replace(self.loads, brokers=left, problems={**self.loads.problems, broker_id: reason})

    def unavailable(self, down: bool) -> None:
        """Whether the source and the sink answer nobody."""
        self._down = down

    def fetch_loads(self, timeout: timedelta) -> Loads:
        self._answer()
        return self.loads

    def post_event(self, event: Event, timeout: timedelta) -> None:
        self._answer()
        self.events.append(event)

    def _answer(self) -> None:
        if self._down:
            raise Unavailable("the metrics source does not answer; try again")


class MemoryAudit:
    """The record of changes that the overrides and the pause share."""

    def __init__(self) -> None:
        self._records: deque[AuditRecord] = deque(maxlen=MAX_AUDIT_RECORDS)
        self._number = 0
        self._lock = threading.Lock()

    def add(self, record: AuditRecord) -> None:
        """Keep a record under the next number and the present time."""
        with self._lock:
            self._number += 1
            self._records.append(replace(record, number=self._number, time=datetime.now(UTC)))

    def newest(self, limit: int) -> tuple[AuditRecord, ...]:
        """Return the newest records, the newest first."""
        with self._lock:
            return tuple(reversed(self._records))[:limit]


_NO_TIME = datetime.fromtimestamp(0, UTC)


class MemoryOverrides:
    """Overrides in memory (an `OverrideStore`)."""

    def __init__(self, electorate: MemoryElectorate | None = None, audit: MemoryAudit | None = None) -> None:
        """Make an empty store.

        Args:
            electorate: whose terms fence `purge_override`; None: one of its own.
            audit: where changes are recorded; None: in a record of its own.
        """
        self.electorate = electorate or MemoryElectorate()
        self.unreadable: dict[int | None, str] = {}
        """Broker id (None: the cluster) -> why its override cannot be read, for as long as it stands here."""
        self._overrides: dict[int | None, Override] = {}
        self.audit = audit or MemoryAudit()
        self._version = 0
        self._lock = threading.Lock()
        self._watches: Subscriptions[None] = Subscriptions()
        self._down = False

    def unavailable(self, down: bool) -> None:
        """Whether the store answers nobody."""
        self._down = down

    def mark_for_removal(self, broker_id: int | None) -> None:
        """Set the rate 0, as the original marks an override that is to be removed."""
        self._set(broker_id, Override(0), "the original")

    def read_overrides(self) -> Overrides:
        self._answer()
        with self._lock:
            readable = {b: o for b, o in self._overrides.items() if b not in self.unreadable}
            cluster = readable.pop(None, None)
            brokers = {b: o for b, o in readable.items() if b is not None}
            return Overrides(cluster, brokers, dict(self.unreadable))

    def set_override(
        self,
        broker_id: int | None,
        rate: BytesPerSecond,
        autoremove: bool,
        expire_time: datetime | None = None,
        *,
        version: int = 0,
        who: str = "",
    ) -> Override:
        if broker_id is not None:
            validate_broker_id(broker_id)
        return self._set(broker_id, Override(validate_rate(rate), autoremove, version, expire_time), who)

    def remove_override(self, broker_id: int | None, *, version: int = 0, who: str = "") -> bool:
        self._answer()
        with self._lock:
            standing = self._overrides.get(broker_id)
            if standing is None:
                return False
            demand_version(broker_id, version, standing.version)
            self._replace(broker_id, None, who, AuditAction.REMOVE)
        self._watches.publish(None)
        return True

    def purge_override(self, fence: int, broker_id: int | None, version: int, reason: str = "") -> bool:
        self._answer()
        with self._lock:
            self.electorate.check(fence)
            standing = self._overrides.get(broker_id)
            if standing is None or standing.version != version:
                return False
            self._replace(broker_id, None, f"planner, term {fence}", AuditAction.PURGE, reason)
        self._watches.publish(None)
        return True

    def read_audit_records(self, limit: int) -> tuple[AuditRecord, ...]:
        self._answer()
        return self.audit.newest(limit)

    def watch_overrides(self, notify: Callable[[], None]) -> Watch:
        return self._watches.add(lambda _: notify())

    def _set(self, broker_id: int | None, wanted: Override, who: str) -> Override:
        """Set an override in place of the version that it names, if it names one."""
        self._answer()
        with self._lock:
            standing = self._overrides.get(broker_id)
            demand_version(broker_id, wanted.version, standing.version if standing else 0)
            override = replace(wanted, version=self._version + 1)
            self._replace(broker_id, override, who, AuditAction.SET)
        self._watches.publish(None)
        return override

    def _replace(
        self, broker_id: int | None, after: Override | None, who: str, action: AuditAction, reason: str = ""
    ) -> None:
        self._version += 1
        before = self._overrides.pop(broker_id, None)
        if before is not None and before.rate == 0:
            before = None
        if after is not None:
            self._overrides[broker_id] = after
        self.audit.add(AuditRecord(0, _NO_TIME, who, action, broker_id, before, after, reason))

    def _answer(self) -> None:
        if self._down:
            raise Unavailable("the overrides cannot be read or written; try again")


class MemoryPauses:
    """The pause in memory (a `PauseStore`)."""

    def __init__(self, audit: MemoryAudit | None = None) -> None:
        """Make a store that is not paused; changes are recorded in `audit`, or in a record of its own."""
        self.audit = audit or MemoryAudit()
        self._pause: Pause | None = None
        self._lock = threading.Lock()
        self._watches: Subscriptions[None] = Subscriptions()
        self._down = False

    def unavailable(self, down: bool) -> None:
        """Whether the store answers nobody."""
        self._down = down

    def read_pause(self) -> Pause | None:
        self._answer()
        return self._pause

    def set_pause(self, pause: Pause) -> None:
        self._swap(pause, AuditRecord(0, _NO_TIME, pause.author, AuditAction.PAUSE, pause=pause))

    def remove_pause(self, who: str = "") -> bool:
        return self._swap(None, AuditRecord(0, _NO_TIME, who, AuditAction.RESUME)) is not None

    def watch_pause(self, notify: Callable[[], None]) -> Watch:
        return self._watches.add(lambda _: notify())

    def _swap(self, pause: Pause | None, record: AuditRecord) -> Pause | None:
        self._answer()
        with self._lock:
            before, self._pause = self._pause, pause
            if pause or before:
                self.audit.add(replace(record, pause=pause or before))
        if before != pause:
            self._watches.publish(None)
        return before

    def _answer(self) -> None:
        if self._down:
            raise Unavailable("the pause cannot be read or written; try again")


class MemoryCatchUps:
    """The catch-ups in memory (a `CatchUpStore`)."""

    def __init__(self, electorate: MemoryElectorate | None = None) -> None:
        """Make an empty store.

        Args:
            electorate: whose terms fence the purging; None: one of its own.
        """
        self._electorate = electorate or MemoryElectorate()
        self._catch_ups: dict[int, CatchUp] = {}
        self._lock = threading.Lock()
        self._watches: Subscriptions[None] = Subscriptions()
        self._down = False

    def unavailable(self, down: bool) -> None:
        """Whether the store answers nobody."""
        self._down = down

    def read_catch_ups(self) -> Mapping[int, CatchUp]:
        self._answer()
        return dict(self._catch_ups)

    def start_catch_up(self, wanted: CatchUp) -> None:
        self._answer()
        with self._lock:
            self._catch_ups[wanted.broker_id] = wanted
        self._watches.publish(None)

    def remove_catch_up(self, broker_id: int) -> bool:
        self._answer()
        with self._lock:
            found = self._catch_ups.pop(broker_id, None)
        if found is not None:
            self._watches.publish(None)
        return found is not None

    def purge_catch_up(self, fence: int, ended: CatchUp) -> bool:
        self._electorate.check(fence)
        return self._catch_ups.get(ended.broker_id) == ended and self.remove_catch_up(ended.broker_id)

    def watch_catch_ups(self, notify: Callable[[], None]) -> Watch:
        return self._watches.add(lambda _: notify())

    def _answer(self) -> None:
        if self._down:
            raise Unavailable("the catch-ups cannot be read or written; try again")


@dataclass(eq=False, slots=True)
class MemorySpan:
    """A span that is kept."""

    name: str
    parent: MemorySpan | None
    """None: a trace of its own."""
    attributes: dict[str, Attribute] = field(default_factory=dict)
    failure: str = ""
    events: list[tuple[str, Mapping[str, Attribute]]] = field(default_factory=list)
    ended: bool = False
    parts: list[MemorySpan] = field(default_factory=list)
    """Its children, in the order in which they began."""
    origins: Sequence[Origin] = ()

    @property
    def recording(self) -> bool:
        return not self.ended

    @property
    def trace_id(self) -> str:
        return f"{id(self.parent or self):032x}"

    def describe(self, attributes: Mapping[str, Attribute]) -> None:
        self.attributes |= attributes

    def fail(self, reason: str) -> None:
        self.failure = reason

    def event(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        self.events.append((name, attributes))

    def part(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        self.parts.append(MemorySpan(name, self, dict(attributes), ended=True))


class MemoryTracer:
    """Keeps all traces."""

    def __init__(self) -> None:
        self.traces: list[MemorySpan] = []
        """The root of each, in the order in which they began."""
        self._around = threading.local()

    @contextmanager
    def span(self, name: str, origins: Sequence[Origin] = ()) -> Iterator[MemorySpan]:
        parent: MemorySpan | None = getattr(self._around, "span", None)
        span = self._around.span = MemorySpan(name, parent, origins=origins)
        (parent.parts if parent else self.traces).append(span)
        try:
            yield span
        except Exception as error:
            span.fail(f"{type(error).__name__}: {error}")
            raise
        finally:
            span.ended, self._around.span = True, parent

    def origin(self) -> Origin | None:
        span: MemorySpan | None = getattr(self._around, "span", None)
        return span
