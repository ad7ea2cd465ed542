"""autothrottle's own state: leadership, members, overrides, the pause and the maps that operators change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry
from autothrottle.core.cluster.snapshot import Problem
from autothrottle.core.errors import Invalid
from autothrottle.core.members import Member
from autothrottle.core.operators.audit import AuditReading
from autothrottle.core.operators.sources import Overrides, StoredMap, StoredOverride
from autothrottle.core.quotas.keys import ClientQuotaEntity, TemporaryQuota
from autothrottle.core.quotas.yielding import YieldRule
from autothrottle.core.records import AuditAction, CatchUp, Outcome, Pause
from autothrottle.core.request_quotas import RequestQuotaEntity
from autothrottle.ports.kafka import Term, Watch

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Leader:
    """The holder of the newest term."""

    fence: int
    address: str
    """Address of its planner service, `host:port` or `unix:path`."""
    since: datetime | None = None
    """When its term began, UTC; None: unknown."""
    host: str = ""
    """Name of its host; "": unknown."""


class Election(Protocol):
    """One candidate in the election of the leading planner."""

    @property
    def term(self) -> Term | None:
        """The term that this candidate currently holds, with its current lease; None: it does not lead."""

    def leader(self) -> Leader | None:
        """Return the holder of the newest term; None before the first term.

        Raises:
            Unavailable: the election cannot be read.
        """

    def join(self, address: str, on_change: Callable[[], None], host: str = "") -> None:
        """Become a candidate; `on_change` is called whenever `term` has changed, and must not block.

        Args:
            address: the planner service's address, as others call it.
            on_change: the callback.
            host: name of the planner's host.
        """

    def resign(self, pause: timedelta) -> bool:
        """Give up the term to another candidate, and stand again after `pause`, or as soon as no candidate is left.

        Returns False and keeps the term if no other candidate waits or the answer is unknown. It also returns False if
        this candidate took over from another one less than `pause` ago. So one candidate always leads, and the leader
        changes at most once per `pause` while all candidates resign.

        Args:
            pause: > 0.
        """

    def leave(self) -> None:
        """Give up the term and the candidacy at once, so that another candidate can lead. Idempotent.

        The candidate may join again.
        """


class Membership(Protocol):
    """The list of running processes, as one process sees it."""

    def join(self, member: Member) -> None:
        """Register `member` until `leave`. Returns at once, even if the store is unreachable. Call it once.

        An entry that is lost, for example with a lost session, is registered again automatically.
        """

    def leave(self) -> None:
        """Deregister at once. Idempotent; works even if the store is unreachable."""

    def members(self, timeout: timedelta) -> tuple[Member, ...]:
        """Return all registered processes, by service and start time.

        The entry of a process that died is removed when its session expires.

        Raises:
            Unavailable: the list cannot be read in time.
        """

    def problem(self) -> str:
        """Return why this process is not registered; "": it is, and the store answers. Does not block."""


@dataclass(frozen=True, slots=True)
class LedgerCopy:
    """All ledger entries at one moment."""

    entries: Mapping[ConfigResource, LedgerEntry] = field(default_factory=dict)
    """Resource -> its entry. An unreadable entry keeps its last known value; absent: we own nothing there."""
    unreadable: Mapping[ConfigResource, Problem] = field(default_factory=dict)
    """Resource -> why its entry cannot be read."""


class LedgerReader(Protocol):
    """Reads the whole ledger of brokers and topics, again and again."""

    def read(self, timeout: timedelta) -> LedgerCopy:
        """Return the ledger, including every write completed before the call.

        Raises:
            Unavailable: the store does not answer in time.
        """


class Terms(Protocol):
    """Checks whether a term continues."""

    def check_term(self, fence: int, deadline: float) -> None:
        """Check that the term is the newest one, by a write, since a read may be stale.

        Args:
            fence: the term's number.
            deadline: on the monotonic clock.

        Raises:
            NotLeader: the term is over.
            Unavailable: the store does not answer in time.
        """


class Ledger(Terms, Protocol):
    """Reads and writes ledger entries, for a Kafka whose configs are not in the same store.

    A deadline is a time of the monotonic clock.
    """

    def read(
        self, resources: Collection[ConfigResource], deadline: float
    ) -> Mapping[ConfigResource, LedgerEntry | Invalid | None]:
        """Return the entries by resource. None: the entry does not exist; an error: it cannot be parsed.

        Raises:
            Unavailable: the store does not answer in time.
        """

    def quota_entries(self, deadline: float) -> Mapping[ConfigResource, LedgerEntry | Invalid]:
        """Return the entries of client quotas, or why they cannot be parsed.

        Raises:
            Unavailable: the store does not answer in time.
        """

    def write(
        self, fence: int, entries: Mapping[ConfigResource, LedgerEntry | None], deadline: float
    ) -> Mapping[ConfigResource, Outcome]:
        """Write entries (None: delete the entry) and return the outcome of each.

        Raises:
            NotLeader: the term is over; the remaining entries were not written.
            Unavailable: no entry was tried.
        """


class OverrideStore(Protocol):
    """Stores the overrides for all services; `broker_id` None means the cluster override.

    Every change and its audit record are one transaction. The store keeps the newest 1,000 records.
    """

    def read_overrides(self) -> Overrides:
        """Return all overrides.

        Raises:
            Unavailable: no override can be read. A single unreadable override is a value in the result.
        """

    def set_override(self, broker_id: int | None, override: StoredOverride, *, who: str = "") -> StoredOverride:
        """Set an override and replace the current one; return it with its new version. Idempotent without a version.

        Args:
            broker_id: the broker; None: the cluster override.
            override: its rate is > 0. It replaces only its own version; 0: it replaces any version, or is created.
            who: author, for the audit record.

        Raises:
            Invalid: the broker id or the rate is out of range.
            Conflict: the current version is another one, or the override is not set.
            Unavailable: the store does not answer.
        """

    def remove_override(self, broker_id: int | None, *, version: int = 0, who: str = "") -> bool:
        """Remove an override; return False if it was not set. Idempotent.

        Args:
            broker_id: the broker; None: the cluster override.
            version: remove only this version; 0: any.
            who: author, for the audit record.

        Raises:
            Conflict: the current version differs from `version`.
            Unavailable: the store does not answer.
        """

    def purge_override(self, fence: int, broker_id: int | None, version: int, reason: str = "") -> bool:
        """Remove one version of an override on behalf of a term; return False if that version is not the current one.

        Raises:
            NotLeader: the term is over.
        """

    def add_audit_record(self, action: AuditAction, who: str, result: str) -> None:
        """Record an action that changes no state in the stores.

        Raises:
            Unavailable: the store does not answer; the record may have been written.
        """

    def read_audit_records(self, limit: int) -> AuditReading:
        """Return at most `limit` audit records.

        Raises:
            Unavailable: the store does not answer.
        """

    def watch_overrides(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change of any override; the call comes from another thread and must not block."""


class PauseStore(Protocol):
    """Stores the pause for all services; a change of leader does not end it.

    Every change and its audit record are one transaction. The records are among those of the overrides.
    """

    def read_pause(self) -> Pause | None:
        """Return the current pause; None: not paused.

        Raises:
            Unavailable: the pause cannot be read.
            Invalid: the stored value is not a pause; the message names the node and the fix.
        """

    def set_pause(self, pause: Pause) -> None:
        """Pause and replace the current pause; the audit record names its author. Idempotent.

        Raises:
            Unavailable: the store does not answer.
        """

    def remove_pause(self, who: str = "") -> bool:
        """Resume; return False if it was not paused. Idempotent.

        Args:
            who: author, for the audit record.

        Raises:
            Unavailable: the store does not answer.
        """

    def watch_pause(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change; the call comes from another thread and must not block."""


class AuditedMap(Protocol[K, V]):
    """Stores one map of entries for all services; a change of leader does not end them.

    `MapKind` names the maps. Every change and its audit record are one transaction. The records are among those of the
    overrides. A change that changes nothing has no record.
    """

    def read(self) -> StoredMap[K, V]:
        """Return the entries, and why others cannot be read.

        Raises:
            Unavailable: they cannot be read.
            Incomplete: no stored entry can be parsed; the message names the node and the fix.
        """

    def put(self, key: K, entry: V, who: str = "") -> None:
        """Add an entry and replace the key's current one. Idempotent.

        Args:
            key: names the entry.
            entry: its value.
            who: author, for the audit record of an entry that does not name its author.

        Raises:
            Conflict: there would be more yield rules than allowed.
            Invalid: there would be more request quotas than allowed.
            Unavailable: the store does not answer.
        """

    def remove(self, key: K, who: str = "") -> bool:
        """Remove the entry of a key; return False if there is none. Idempotent.

        Args:
            key: names the entry.
            who: author, for the audit record.

        Raises:
            Unavailable: the store does not answer.
        """

    def purge(self, fence: int, key: K, entry: V, reason: str = "") -> bool:
        """Remove an entry that has ended on behalf of a term, but not a later one of the same key.

        Returns False if this entry is not stored.

        Raises:
            NotLeader: the term is over; nothing was done.
            Unavailable: the store does not answer.
        """

    def watch(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change; the call comes from another thread and must not block."""

    def follow(self, notify: Callable[[Mapping[K, V]], None]) -> Watch:
        """Call `notify` with the entries after every change, and when stored ones are first read.

        The call comes from another thread and must not block. A text without readable entries is logged, and the last
        entries stay. While one entry cannot be read, earlier entries that are no longer stored stay, since it may be
        one of them.
        """


CatchUpStore = AuditedMap[int, CatchUp]
TemporaryQuotaStore = AuditedMap[ClientQuotaEntity, TemporaryQuota]
YieldRuleStore = AuditedMap[str, YieldRule]
RequestQuotaStore = AuditedMap[RequestQuotaEntity, int]
