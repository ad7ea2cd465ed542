"""The Kafka cluster: snapshots, config changes, reassignments, log sizes and settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from autothrottle.core.cluster.configs import ClusterSettings, ConfigResource
from autothrottle.core.cluster.snapshot import ANY_SNAPSHOT, LogSizes, Snapshot, SnapshotRequest, TopicPartition
from autothrottle.core.operators.cancellation import Cancellation
from autothrottle.core.operators.submission import Targets
from autothrottle.core.quotas.keys import (
    ClientQuotaEntity,
    ClientQuotas,
    ClientReading,
    QuotaEdits,
    QuotaState,
    QuotaValues,
)
from autothrottle.core.records import Outcome
from autothrottle.core.throttles.changes import Change


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """A change of the cluster that should trigger a cycle at once."""

    version: int
    """A snapshot of at least this version shows the change."""
    reason: str
    """What happened, for example `a reassignment of [t1] started`."""
    urgent: bool = False
    """Whether bytes are copied unthrottled until a cycle runs: a reassignment started, or leaders changed."""


class Watch(Protocol):
    """A running subscription."""

    def close(self) -> None:
        """End the subscription; no callback runs afterwards. Idempotent."""


class SnapshotSource(Protocol):
    """Reads snapshots of the cluster."""

    def fetch_snapshot(self, request: SnapshotRequest = ANY_SNAPSHOT, *, timeout: timedelta) -> Snapshot:
        """Return the current state of the cluster; `timeout` > 0.

        Raises:
            Unavailable: the cluster does not answer in time, or not at the requested version.
            Incomplete: the reassignments cannot be read, so the caller must not conclude anything.
        """

    def watch_snapshots(self, notify: Callable[[SnapshotEvent], None]) -> Watch:
        """Call `notify` for every event from now on.

        The call comes from another thread and must not block.
        """


class FollowedCluster(SnapshotSource, Protocol):
    """A source that also looks at the cluster by itself, between the snapshots."""

    @property
    def problem(self) -> str:
        """Why it cannot read the cluster now, one sentence; "": it can, as far as it knows."""


class BrokerRegistry(Protocol):
    """Looks up broker registrations without a snapshot."""

    def is_registered(self, broker_id: int, timeout: timedelta) -> bool:
        """Return whether the broker is currently registered with its cluster.

        Raises:
            Unavailable: the cluster does not answer in time.
        """

    def fetch_hosts(self, timeout: timedelta) -> Mapping[int, Sequence[str]]:
        """Return broker id -> the hosts in its registration, for all registered brokers.

        Raises:
            Unavailable: the cluster does not answer in time.
        """


@dataclass(frozen=True, slots=True)
class Term:
    """One tenure of leadership."""

    fence: int
    """Grows with every term. Every write carries it and is refused after a later term has begun, also one of a store
    that replaces a deleted one: no two stores have a number in common."""
    lease_end: float = field(default=math.inf, compare=False)
    """When the leader steps down unless the state store answers again, on this process's monotonic clock; inf: unknown.
    A write that Kafka cannot refuse by its fence must be complete by then, since another leader can exist later."""


class ConfigWriter(Protocol):
    """Carries out config changes, each atomically, and none after the term is over."""

    def apply(self, term: Term, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        """Carry out the changes and return one outcome for each, in their order.

        For each resource, its edits, the brokers' notification and the ledger change atomically. Safe to repeat. If
        Kafka and the ledger are in separate stores, the ledger holds the intent from before the edits until they are
        confirmed.

        Args:
            term: the term that made the decision.
            changes: a change is refused if a current value differs from the expected one.
            timeout: > 0.

        Raises:
            NotLeader: the term is over; the remaining changes were not written.
            Unavailable: no change could be tried.
        """


Refusals = Mapping[TopicPartition, str]
"""Partition -> why Kafka refused its reassignment."""


class Reassigner(Protocol):
    """Submits and cancels reassignments, but not after the term is over."""

    def submit_reassignments(self, term: Term, targets: Targets, timeout: timedelta) -> Refusals:
        """Submit reassignments; return the partitions that Kafka refused -> why. Safe to repeat.

        Args:
            term: the term that made the decision.
            targets: partition -> broker ids of its target replicas.
            timeout: > 0.

        Raises:
            NotLeader: the term is over; nothing was done.
            Conflict: another reassignment is in the way; nothing was done.
            Invalid: the request is too large for the backend; nothing was done.
            Unavailable: it is unknown whether the request took effect.
        """

    def cancel_reassignments(
        self, term: Term, partitions: Collection[TopicPartition], timeout: timedelta
    ) -> Cancellation:
        """Cancel the reassignments of partitions, whichever tool started them; return those that go on -> why.

        Directly before the request, this reads the state of the partitions and applies `CancelRule`.

        Args:
            term: the term that made the decision.
            partitions: the partitions, each once.
            timeout: > 0.

        Raises:
            NotLeader: the term is over; nothing was done.
            Invalid: the backend cannot cancel; nothing was done.
            Conflict: the state of the partitions cannot be read now; nothing was done.
            Unavailable: it is unknown whether the request took effect.
        """


class FetchSettingsSource(Protocol):
    """Reads the settings of brokers and topics that limit replica fetches."""

    def fetch_settings(
        self, broker_ids: Collection[int], topics: Collection[str], timeout: timedelta
    ) -> ClusterSettings:
        """Return the settings, without the brokers and topics whose settings could not be read in time.

        Raises:
            Unavailable: no broker can be queried.
        """


PERMITTED = "this client has the permissions that it needs"


class PermissionSource(Protocol):
    """Reads what this client may do, without doing it."""

    summary: str
    """The fact that an empty result of the last call states."""

    def fetch_missing_permissions(self, timeout: timedelta) -> Mapping[str, str]:
        """Return resource -> the operations that this client needs there and may not do, and the fix, one sentence.

        A resource that this client may not see is absent.

        Raises:
            Unavailable: the other side does not answer in time.
            Incomplete: the resources do not exist.
            Invalid: it refuses the request or our credentials.
        """


class LogSizeSource(Protocol):
    """Reads the sizes of given logs from many brokers at once."""

    def fetch_log_sizes(self, partitions: Mapping[int, Mapping[str, Collection[int]]], timeout: timedelta) -> LogSizes:
        """Return the log sizes, with the time of each broker's answer.

        A broker that does not answer in time is listed under `problems` and does not delay the others.

        Args:
            partitions: broker id -> topic -> partitions; the broker need not have a replica of each.
            timeout: for each broker, > 0.

        Raises:
            Unavailable, Invalid: no broker can be queried.
        """


PartitionsOfBrokers = Mapping[int, Mapping[str, Collection[int]] | None]
"""Broker id -> topic -> partitions; None: all logs of the broker."""


class AllLogsSource(Protocol):
    """Reads the sizes of all logs of some brokers, in reassignment or not."""

    def fetch_broker_ids(self, timeout: timedelta) -> Collection[int]:
        """Return the ids of the registered brokers.

        Raises:
            Unavailable, Invalid: no broker can be queried.
        """

    def fetch_log_sizes(self, partitions: PartitionsOfBrokers, timeout: timedelta) -> LogSizes:
        """Return the log sizes, as a `LogSizeSource` does, of given logs or of all logs of a broker."""

    def fetch_leaders(self, topics: Collection[str], timeout: timedelta) -> Mapping[TopicPartition, int]:
        """Return partition -> broker id of its leader, or -1 without a leader, for all partitions of these topics.

        Topics that do not exist or cannot be described are absent.

        Raises:
            Unavailable, Invalid: no broker can be queried.
        """


@dataclass(frozen=True, slots=True)
class QuotaReading:
    """The client quotas of a cluster at one time."""

    quotas: ClientQuotas
    """Entity -> its quotas, for each entity with at least one."""
    problems: tuple[str, ...] = ()
    """Quotas that cannot be parsed, which are absent; one sentence each."""


@dataclass(frozen=True, slots=True)
class ClientQuotaChange:
    """Edits of the client quotas of one entity."""

    entity: ClientQuotaEntity
    edits: QuotaEdits
    etag: str = ""
    """Change only these values, see `core.quotas.keys.quota_etag`; "": any values."""
    validate_only: bool = False
    """Check everything, but write nothing."""


class QuotaSource(Protocol):
    """Reads client quotas together with the ledger of those that autothrottle wrote."""

    def fetch_quota_state(self, resources: Collection[ConfigResource], timeout: timedelta) -> QuotaState:
        """Return the quotas of these resources and of all that are in the ledger.

        Args:
            resources: config resources of quota entities.
            timeout: > 0.

        Raises:
            Unavailable: Kafka or the ledger does not answer in time.
            Invalid: Kafka refuses the request or our credentials.
        """

    def fetch_clients(self, timeout: timedelta) -> ClientReading:
        """Return the users and client ids that Kafka knows by name.

        Raises:
            Unavailable: Kafka does not answer in time.
            Invalid: Kafka refuses the request or our credentials.
        """


class ClientQuotaStore(Protocol):
    """Reads and edits the client quotas of Kafka."""

    def fetch_quotas(self, timeout: timedelta, entities: Collection[ClientQuotaEntity] | None = None) -> QuotaReading:
        """Return the quotas of these entities; None: of all entities.

        Raises:
            Unavailable: Kafka does not answer in time.
            Invalid: Kafka refuses the request or our credentials.
        """

    def alter_quota(self, change: ClientQuotaChange, timeout: timedelta) -> QuotaValues:
        """Edit the quotas of one entity, all edits or none, and notify the brokers; return its quotas before that.

        Safe to repeat without an etag. Edits that change nothing write nothing. Other configs of the entity stay, for
        example SCRAM credentials. Through the admin API, another party can change the quota between the check of the
        etag and the write.

        Args:
            change: valid edits of a valid entity.
            timeout: > 0.

        Raises:
            Conflict: the current values are not those of the etag, or another party wrote at the same time.
            Invalid: Kafka refuses the edits.
            Unavailable: Kafka does not answer in time; it is unknown whether the quota was changed.
        """
