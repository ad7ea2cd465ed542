"""A Kafka cluster in memory: partitions, configs and quotas, and the actions of the controller, users and faults."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.adapters.memory.state_store import MemoryElectorate, Outages
from autothrottle.core.cluster.configs import (
    RATE_KEYS,
    THROTTLE_KEYS,
    THROTTLED_TYPES,
    ClusterSettings,
    ConfigResource,
    LedgerEntry,
    ResourceType,
)
from autothrottle.core.cluster.flows import Progress
from autothrottle.core.cluster.snapshot import (
    ANY_SNAPSHOT,
    NO_LEADER,
    Assignment,
    BrokerLogSizes,
    LogSizes,
    Problem,
    Snapshot,
    SnapshotRequest,
    TopicPartition,
    TopicReassignment,
    replicas_on,
)
from autothrottle.core.errors import AutothrottleError, Conflict, Incomplete, Unavailable
from autothrottle.core.forecast.progress import ProgressHistory
from autothrottle.core.operators.cancellation import Cancellation, CancelRule, without_reassignment
from autothrottle.core.operators.sources import lagging, reassignments_with_lagging
from autothrottle.core.operators.submission import Targets, replacements
from autothrottle.core.quotas.keys import (
    DEFAULT,
    ClientQuotaEntity,
    ClientReading,
    QuotaState,
    QuotaValues,
    check_etag,
    edited,
    entity_of_path,
)
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import Change, edited_config, validate_restored
from autothrottle.core.throttles.foreign_edits import edited_reason, edits, needed_lists, needed_rates
from autothrottle.core.traffic.log_growth_history import CopyingReplicas, GrowthHistory
from autothrottle.ports.kafka import (
    PERMITTED,
    ClientQuotaChange,
    PartitionsOfBrokers,
    QuotaReading,
    Refusals,
    SnapshotEvent,
    Term,
    Watch,
)

K = TypeVar("K")
V = TypeVar("V")


class MemoryCluster(Outages):
    """A Kafka cluster with its controller.

    It is a `BrokerRegistry`, a `SnapshotSource`, a `LogSizeSource`, an `AllLogsSource`, a `FetchSettingsSource`, a
    `QuotaSource`, a `ConfigWriter` and a `Reassigner`.
    """

    _outage = "the cluster does not answer; try again"

    def __init__(self, electorate: MemoryElectorate | None = None, brokers: Iterable[int] = ()) -> None:
        """Create a cluster without topics.

        Args:
            electorate: its terms fence the writes; None: a new one, see `begin_term`.
            brokers: ids of the registered brokers.
        """
        self.electorate = electorate or MemoryElectorate()
        self.brokers = set(brokers)
        self.topics: dict[str, dict[int, Assignment]] = {}
        """Topic -> partition -> its replicas; during a reassignment, removing replicas are last."""
        self.configs: dict[ConfigResource, dict[str, str]] = {}
        """Resource -> its dynamic configs, including other keys than throttles."""
        self.default_configs: dict[str, str] = {}
        """The brokers' `<default>` level: config key -> value."""
        self.ledger: dict[ConfigResource, LedgerEntry] = {}
        self.unreadable_configs: dict[ConfigResource, Problem] = {}
        self.problems: list[Problem] = []
        self.notifications: list[str] = []
        """The entity paths of change notifications to brokers, in order."""
        self.writes: list[Change] = []
        """The changes that were applied, in order."""
        self.submissions: list[Mapping[TopicPartition, tuple[int, ...] | None]] = []
        """The reassignments submitted through the port, in order: partition -> replicas; None: cancel."""
        self.log_bytes: dict[int, dict[TopicPartition, float]] = {}
        """Broker id -> (topic, partition) -> size of its log in bytes; an absent broker does not answer."""
        self.down: set[int] = set()
        """The brokers of `lose_broker`: they do not answer, and keep their logs."""
        self.leader_epochs: Counter[TopicPartition] = Counter()
        """(topic, partition) -> number of changes of its leader."""
        self.settings = ClusterSettings()
        """Settings of brokers and topics; those of absent ones cannot be read."""
        self.version = 1
        self._catching_up: frozenset[int] = frozenset()
        self._previously_down: frozenset[int] = frozenset()
        self._history: ProgressHistory | None = None
        self._growth: GrowthHistory | None = None
        self._clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        self._processed = 0
        self.conflict = ""
        """Settable: every submission raises Conflict with this reason; "": submissions are accepted."""
        self.slow_controller = False
        """Settable: submissions wait for `process_submissions`; until then no snapshot shows them."""
        self.hosts: dict[int, Sequence[str]] = {}
        """Settable: broker id -> the hosts in its registration; absent: it has none."""
        self.group_clients: set[str] = set()
        """Settable: the client ids of members of consumer groups."""
        self.plug_ins: dict[int, str] = {}
        """Settable: broker id -> its `client.quota.callback.class`."""
        self._lock = threading.RLock()
        self._watches: Subscriptions[SnapshotEvent] = Subscriptions()
        self.refused: dict[ConfigResource, str] = {}
        """Settable: resource -> why all its changes are refused; "": they are accepted."""
        self.incomplete = ""
        """Settable: snapshots raise Incomplete with this reason; "": they are readable."""
        self.unread_topics: set[str] = set()
        """Settable: topics in reassignment that a partial snapshot lacks."""

    # The ports.

    def is_registered(self, broker_id: int, timeout: timedelta) -> bool:
        with self._available():
            return broker_id in self.brokers

    def fetch_hosts(self, timeout: timedelta) -> Mapping[int, Sequence[str]]:
        with self._available():
            return {broker_id: self.hosts.get(broker_id, ()) for broker_id in self.brokers}

    def fetch_snapshot(self, request: SnapshotRequest = ANY_SNAPSHOT, *, timeout: timedelta) -> Snapshot:
        with self._available():
            self._catching_up = frozenset(request.catching_up) or self._catching_up
            if self.incomplete:
                raise Incomplete(self.incomplete)
            if self.version < request.min_version:
                raise Unavailable(f"the cluster is at version {self.version}, before {request.min_version}; try again")
            topics = sorted(self.topics.items())
            replicas = ((t, [(n, p.replicas) for n, p in partitions.items()]) for t, partitions in topics)
            reassignments = tuple(self._reassignments())
            unread = {r.topic for r in reassignments} & self.unread_topics if request.accept_partial else set()
            snapshot = Snapshot(
                version=self.version,
                brokers=frozenset(self.brokers),
                reassignments=tuple(r for r in reassignments if r.topic not in unread),
                throttles=self._throttles(),
                default_throttles={k: v for k, v in self.default_configs.items() if k in RATE_KEYS},
                ledger={r: entry for r, entry in self.ledger.items() if r.type in THROTTLED_TYPES},
                replicas=replicas_on(frozenset(request.replicas_of), replicas),
                assignments={row: assignment for row in request.partitions if (assignment := self._assignment(row))},
                unreadable_configs=dict(self.unreadable_configs),
                problems=tuple(self.problems),
                progress=self._progress(),
            )
            missing = sum(len(r.partitions) for r in reassignments if r.topic in unread)
            return snapshot.with_unread("/brokers/topics", missing) if unread else snapshot

    def fetch_quota_state(self, resources: Collection[ConfigResource], timeout: timedelta) -> QuotaState:
        with self._available():
            ledger = {r: entry for r, entry in self.ledger.items() if r.type is ResourceType.QUOTA}
            return QuotaState({r: dict(self.configs.get(r, {})) for r in {*resources, *ledger}}, ledger)

    def fetch_clients(self, timeout: timedelta) -> ClientReading:
        with self._available():
            with_quotas = (entity_of_path(resource.path) for resource, keys in self.configs.items() if keys)
            of_groups = (ClientQuotaEntity(DEFAULT, client) for client in self.group_clients)
            return ClientReading(frozenset({*filter(None, with_quotas), *of_groups}), dict(self.plug_ins))

    def watch_snapshots(self, notify: Callable[[SnapshotEvent], None]) -> Watch:
        return self._watches.add(notify)

    def fetch_log_sizes(self, partitions: PartitionsOfBrokers, timeout: timedelta) -> LogSizes:
        with self._available():
            answers = {b: self.log_bytes[b] for b in partitions if b in self.log_bytes and b not in self.down}
            brokers = {b: BrokerLogSizes(self._clock(), _selected(logs, partitions[b])) for b, logs in answers.items()}
            return LogSizes(brokers, {b: f"broker {b} does not answer" for b in partitions if b not in answers})

    def fetch_broker_ids(self, timeout: timedelta) -> Collection[int]:
        with self._available():
            return frozenset(self.brokers)

    def fetch_leaders(self, topics: Collection[str], timeout: timedelta) -> Mapping[TopicPartition, int]:
        with self._available():
            return {(t, n): p.leader for t in topics for n, p in self.topics.get(t, {}).items()}

    def fetch_settings(
        self, broker_ids: Collection[int], topics: Collection[str], timeout: timedelta
    ) -> ClusterSettings:
        with self._available():
            return ClusterSettings(
                {b: settings for b, settings in self.settings.brokers.items() if b in broker_ids},
                {t: count for t, count in self.settings.min_in_sync_replicas.items() if t in topics},
            )

    def apply(self, term: Term, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        outcomes = []
        for change in changes:
            with self._available():
                self._check(term)
                outcomes.append(self._apply(change))
        return tuple(outcomes)

    def submit_reassignments(self, term: Term, targets: Targets, timeout: timedelta) -> Refusals:
        return self._alter_reassignments(term, targets)

    def cancel_reassignments(
        self, term: Term, partitions: Collection[TopicPartition], timeout: timedelta
    ) -> Cancellation:
        with self._available():
            rule = CancelRule(self.brokers, self.settings.min_in_sync_replicas)
            moving = {row: a for row in partitions if (a := self._assignment(row)) and a.moves}
        unsafe = {row: hazard for row, assignment in moving.items() if (hazard := rule.hazard(row, assignment))}
        refused = self._alter_reassignments(term, {row: None for row in partitions if row not in unsafe})
        return Cancellation(refused, unsafe)

    def _check(self, term: Term) -> None:
        self.electorate.check(term.fence)
        if time.monotonic() >= term.lease_end:
            raise Unavailable("the leader's lease has ended; nothing more was written")

    def _alter_reassignments(self, term: Term, targets: Mapping[TopicPartition, tuple[int, ...] | None]) -> Refusals:
        with self._available():
            self._check(term)
            if self.conflict:
                raise Conflict(self.conflict)
            refused = {row: reason for row, to in targets.items() if (reason := self._refusal(row, to))}
            self.submissions.append({row: to for row, to in targets.items() if row not in refused})
        if not self.slow_controller:
            self.process_submissions()
        return refused

    # Actions of the controller and the brokers.

    def tell_progress(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Let all later snapshots include progress, from log sizes; without this call, progress is unknown."""
        self._history, self._clock = ProgressHistory(), clock

    def tell_growth(self) -> None:
        """Let all later progress include the log growth of the brokers that take part."""
        self._growth = GrowthHistory()

    def grow(self, broker_id: int, topic: str, partition: int, size: float) -> None:
        """Grow a log by `size` bytes (shrink it if < 0); its broker answers from now on."""
        with self._lock:
            logs = self.log_bytes.setdefault(broker_id, {})
            logs[topic, partition] = logs.get((topic, partition), 0) + size

    def process_submissions(self) -> None:
        """Let the controller process the submissions that it has not processed yet."""
        pending, self._processed = self.submissions[self._processed :], len(self.submissions)
        for targets in pending:
            started: dict[str, dict[int, tuple[int, ...]]] = {}
            for (topic, partition), replicas in targets.items():
                if replicas is None:
                    self.cancel(topic, partition)
                else:
                    started.setdefault(topic, {})[partition] = replicas
            for topic, target in started.items():
                self.submit_reassignment(topic, target)

    def add_topic(self, topic: str, assignment: Mapping[int, Sequence[int] | Assignment]) -> None:
        """Create a topic from partition -> its assignment, or its replicas: the first one leads, all are in sync."""
        partitions = {
            p: row if isinstance(row, Assignment) else Assignment(tuple(row), row[0], tuple(row))
            for p, row in assignment.items()
        }
        with self._lock:
            self.topics[topic] = dict(sorted(partitions.items()))
            self.version += 1

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its config, even during its reassignment."""
        with self._lock:
            gone = self.topics.pop(topic)
            self.configs.pop(ConfigResource.topic(topic), None)
            self.version += 1
        if any(p.moves for p in gone.values()):
            self._publish(f"the reassignment of [{topic}] ended")

    def submit_reassignment(self, topic: str, target: Mapping[int, Sequence[int]]) -> None:
        """Start the reassignment of partitions (partition -> replicas), as in KIP-455."""
        for partition, replicas in target.items():
            old = self.topics[topic][partition]
            current = old.original
            adding = tuple(b for b in replicas if b not in current)
            removing = tuple(b for b in current if b not in replicas)
            all_replicas = (*replicas, *removing)
            isr = tuple(b for b in old.isr if b in all_replicas)
            self._change(
                topic, partition, replicas=all_replicas, adding_replicas=adding, removing_replicas=removing, isr=isr
            )
        self._publish(f"a reassignment of [{topic}] started", urgent=True)

    def join_isr(self, topic: str, partition: int, broker_id: int) -> None:
        """Add a replica to the ISR, as if it had caught up."""
        isr = self.topics[topic][partition].isr
        self._change(topic, partition, isr=(*(b for b in isr if b != broker_id), broker_id))
        self._publish(f"broker {broker_id} joined the ISR of {topic}-{partition}")

    def leave_isr(self, topic: str, partition: int, broker_id: int) -> None:
        """Remove a replica from the ISR, as if it had fallen behind."""
        isr = self.topics[topic][partition].isr
        self._change(topic, partition, isr=tuple(b for b in isr if b != broker_id))

    def move_leader(self, topic: str, partition: int, broker_id: int) -> None:
        """Change the leader; -1: no leader."""
        self._change(topic, partition, leader=broker_id)
        self._publish(f"the leader of {topic}-{partition} changed", urgent=True)

    def lose_broker(self, broker_id: int) -> None:
        """Fail a broker: it leaves each ISR that has other replicas, and other in-sync replicas lead."""
        with self._lock:
            self.brokers.discard(broker_id)
            self.down.add(broker_id)
            self.version += 1
        for topic, number in self._rows():
            partition = self.topics[topic][number]
            if broker_id in partition.isr and len(partition.isr) > 1:
                self.leave_isr(topic, number, broker_id)
            if partition.leader == broker_id:
                in_sync = self.topics[topic][number].isr
                electable = (b for b in partition.replicas if b in in_sync and b in self.brokers)
                self.move_leader(topic, number, next(electable, NO_LEADER))

    def restore_broker(self, broker_id: int) -> None:
        """Start a failed broker with its old logs; it leads partitions without a leader if it is in sync."""
        with self._lock:
            self.brokers.add(broker_id)
            self.down.discard(broker_id)
            self.version += 1
        self._publish(f"brokers registered: [{broker_id}]")
        for topic, number in self._rows():
            if self.topics[topic][number].leader == NO_LEADER:
                self._elect(topic, number, broker_id)

    def elect_leader(self, broker_id: int) -> None:
        """Make a broker the leader of every partition for which it has an in-sync replica."""
        for topic, number in self._rows():
            self._elect(topic, number, broker_id)

    def finish(self, topic: str, *partitions: int) -> None:
        """Complete the reassignment of these partitions; none given: of all partitions in reassignment."""
        for partition in partitions or self._partitions_in_reassignment(topic):
            old = self.topics[topic][partition]
            isr = tuple(b for b in old.target if b in old.isr or b in old.adding_replicas)
            self._end_reassignment(topic, partition, old.target, isr)
        self._publish(f"the reassignment of [{topic}] ended")

    def cancel(self, topic: str, *partitions: int) -> None:
        """Cancel the reassignment of these partitions; none given: of all partitions in reassignment."""
        for partition in partitions or self._partitions_in_reassignment(topic):
            old = self.topics[topic][partition]
            remaining = old.original
            self._end_reassignment(topic, partition, remaining, tuple(b for b in old.isr if b in remaining))
        self._publish(f"the reassignment of [{topic}] ended")

    def begin_term(self, address: str = "") -> int:
        """Begin a term and return its fence; writes of earlier terms are refused afterwards."""
        return self.electorate.begin_term(address)

    # Actions of other users, and faults.

    def set_config_as_user(self, resource: ConfigResource, key: str, value: str | None) -> None:
        """Set one config without the ledger, as another user; None deletes it."""
        with self._lock:
            _put(self.configs.setdefault(resource, {}), key, value)
            self.version += 1
            reassignments = tuple(self._reassignments())
            needed = {**needed_lists(reassignments), **needed_rates(reassignments)}
            edited = edits({resource: needed.get(resource, ())}, {resource: self.configs[resource]}, self.ledger)
        if (resource, key) in edited:
            self._publish(edited_reason(resource), urgent=True)

    def set_default_as_user(self, key: str, value: str | None) -> None:
        """Set one config at the brokers' `<default>` level, as another user; None deletes it."""
        with self._lock:
            _put(self.default_configs, key, value)
            self.version += 1

    def replace_config(self, resource: ConfigResource | None, config: Mapping[str, str]) -> None:
        """Replace a whole config without the ledger, as another user; None: that of the brokers' `<default>` level."""
        with self._lock:
            if resource is None:
                self.default_configs = dict(config)
            else:
                self.configs[resource] = dict(config)
            self.version += 1

    def _publish(self, reason: str, urgent: bool = False) -> None:
        self._watches.publish(SnapshotEvent(self.version, reason, urgent))

    def _rows(self) -> Sequence[TopicPartition]:
        return [(topic, number) for topic, partitions in self.topics.items() for number in partitions]

    def _elect(self, topic: str, partition: int, broker_id: int) -> None:
        current = self.topics[topic][partition]
        if broker_id in current.isr and current.leader != broker_id:
            self.move_leader(topic, partition, broker_id)

    def _change(self, topic: str, partition: int, **fields: Any) -> None:
        with self._lock:
            old = self.topics[topic][partition]
            new = self.topics[topic][partition] = replace(old, **fields)
            self.leader_epochs[topic, partition] += new.leader != old.leader
            self.version += 1

    def _end_reassignment(self, topic: str, partition: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> None:
        leader = self.topics[topic][partition].leader
        if leader not in replicas:
            leader = isr[0] if isr else NO_LEADER
        self._change(
            topic, partition, replicas=replicas, leader=leader, isr=isr, adding_replicas=(), removing_replicas=()
        )

    def _partitions_in_reassignment(self, topic: str) -> tuple[int, ...]:
        return tuple(number for number, p in self.topics[topic].items() if p.moves)

    def _reassignments(self) -> Iterable[TopicReassignment]:
        for topic in sorted(self.topics):
            partitions = {n: p for n, p in self.topics[topic].items() if p.moves}
            rows = {n: (p.leader, p.isr, p.adding_replicas, p.removing_replicas) for n, p in partitions.items()}
            if rows:
                yield TopicReassignment.of_partitions(topic, rows)

    def _progress(self) -> Progress | None:
        if self._history is None:
            return None
        assignments = {(topic, n): p for topic, partitions in self.topics.items() for n, p in partitions.items()}
        lags = lagging(assignments, self._catching_up & self.brokers)
        reassignments = reassignments_with_lagging(tuple(self._reassignments()), lags, assignments)
        sizes = self.fetch_log_sizes(self._history.sizes_needed(reassignments), timedelta(seconds=1))
        self._history = self._history.observe(reassignments, sizes, self._clock(), None, lags, self._previously_down)
        self._previously_down = self._catching_up - self.brokers
        if self._growth is None:
            return self._history.progress
        self._growth = self._observed_growth(self._growth, reassignments)
        return replace(self._history.progress, growth=self._growth.reported)

    def _observed_growth(self, history: GrowthHistory, reassignments: Iterable[TopicReassignment]) -> GrowthHistory:
        copying, timeout = CopyingReplicas.of(reassignments), timedelta(seconds=1)
        sizes = self.fetch_log_sizes(dict.fromkeys(copying.brokers), timeout)
        return history.observe(sizes, copying.copied, self.fetch_leaders(self.topics, timeout))

    def _assignment(self, row: TopicPartition) -> Assignment | None:
        return self.topics.get(row[0], {}).get(row[1])

    def _refusal(self, row: TopicPartition, replicas: tuple[int, ...] | None) -> str:
        """Why the controller refuses one partition; "": it does not."""
        current = self._assignment(row)
        if current is None or replicas is None:
            return without_reassignment(row, current)
        if reason := replacements({row: replicas}, {row: current.target} if current.moves else {}).get(row, ""):
            return reason
        absent = set(replicas) - self.brokers - set(current.replicas)
        return f"brokers {sorted(absent)} are not registered; name others" if absent else ""

    def _throttles(self) -> dict[ConfigResource, dict[str, str]]:
        throttles = {
            resource: {key: value for key, value in config.items() if key in THROTTLE_KEYS}
            for resource, config in self.configs.items()
            if resource not in self.unreadable_configs
        }
        return {resource: config for resource, config in throttles.items() if config}

    def _apply(self, change: Change) -> Outcome:
        resource = change.resource
        config, entry = self.configs.get(resource, {}), self.ledger.get(resource)
        if reason := self.refused.get(resource):
            return Outcome(resource, OutcomeStatus.REFUSED, reason)
        try:
            new_config = edited_config(config, change.edits)
            validate_restored(change, config, entry)
        except AutothrottleError as error:
            return Outcome(resource, OutcomeStatus.REFUSED, str(error))
        if new_config == config and entry == change.ledger:
            return Outcome(resource, OutcomeStatus.UNCHANGED)
        if new_config != config:
            self.configs[resource] = new_config
            self.notifications.append(resource.path)
        _put(self.ledger, resource, change.ledger)
        self.writes.append(change)
        self.version += 1
        return Outcome(resource, OutcomeStatus.APPLIED)


def _selected(
    logs: Mapping[TopicPartition, float], partitions: Mapping[str, Collection[int]] | None
) -> dict[TopicPartition, int]:
    return {
        (topic, p): round(size)
        for (topic, p), size in logs.items()
        if partitions is None or p in partitions.get(topic, ())
    }


def _put(values: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


class MemoryClientQuotas(Outages):
    """Client quotas in memory (a `ClientQuotaStore`)."""

    _outage = "the client quotas cannot be read or written; try again"

    def __init__(self) -> None:
        self.quotas: dict[ClientQuotaEntity, QuotaValues] = {}
        self.problems: tuple[str, ...] = ()
        """Settable: the problems of every reading."""
        self.notifications: list[str] = []
        """The entity paths of change notifications to brokers, in order."""
        self._lock = threading.Lock()

    def fetch_quotas(self, timeout: timedelta, entities: Collection[ClientQuotaEntity] | None = None) -> QuotaReading:
        with self._available():
            found = {e: values for e, values in self.quotas.items() if entities is None or e in entities}
            return QuotaReading(found, self.problems)

    def alter_quota(self, change: ClientQuotaChange, timeout: timedelta) -> QuotaValues:
        with self._available():
            current = self.quotas.get(change.entity, {})
            check_etag(change.entity, change.etag, current)
            values = edited(current, change.edits)
            if values != current and not change.validate_only:
                _put(self.quotas, change.entity, values or None)
                self.notifications.append(change.entity.path)
            return current


class MemoryPermissions(Outages):
    """A `PermissionSource` with settable answers."""

    _outage = "the other side does not answer; try again"

    summary = PERMITTED

    def __init__(self, missing: Mapping[str, str] | None = None) -> None:
        self.missing = dict(missing or {})
        """Resource -> the operations that may not be done, and the fix."""

    def fetch_missing_permissions(self, timeout: timedelta) -> Mapping[str, str]:
        self._raise_if_down()
        return self.missing
