"""autothrottle's own state: leadership, members, overrides, the pause and catch-ups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from autothrottle.core.control.audit import AuditReading
from autothrottle.core.control.overrides import Overrides, StoredOverride
from autothrottle.core.members import Member
from autothrottle.core.quotas.entities import ClientQuotaEntity
from autothrottle.core.quotas.temporary import TemporaryQuota, TemporaryQuotas
from autothrottle.core.quotas.yielding import YieldRule, YieldRules
from autothrottle.core.records import AuditAction, CatchUp, Pause
from autothrottle.core.request_quotas import RequestQuotaEntity, RequestRates
from autothrottle.core.units import BytesPerSecond
from autothrottle.ports.kafka import Term, Watch


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
        ...

    def leader(self) -> Leader | None:
        """Return the holder of the newest term; None before the first term.

        Raises:
            Unavailable: the election cannot be read.
        """
        ...

    def join(self, address: str, on_change: Callable[[], None], host: str = "") -> None:
        """Become a candidate; `on_change` is called whenever `term` has changed, and must not block.

        Args:
            address: the planner service's address, as others call it.
            on_change: the callback.
            host: name of the planner's host.
        """
        ...

    def resign(self, pause: timedelta) -> bool:
        """Give up the term to another candidate, and stand again after `pause`, or as soon as no candidate is left.

        Returns False and keeps the term if no other candidate waits or the answer is unknown. It also returns False if
        this candidate took over from another one less than `pause` ago. So one candidate always leads, and the leader
        changes at most once per `pause` while all candidates resign.

        Args:
            pause: > 0.
        """
        ...

    def leave(self) -> None:
        """Give up the term and the candidacy at once, so that another candidate can lead. Idempotent.

        The candidate may join again.
        """
        ...


class Membership(Protocol):
    """The list of running processes, as one process sees it."""

    def join(self, member: Member) -> None:
        """Register `member` until `leave`. Returns at once, even if the store is unreachable. Call it once.

        An entry that is lost, for example with a lost session, is registered again automatically.
        """
        ...

    def leave(self) -> None:
        """Deregister at once. Idempotent; works even if the store is unreachable."""
        ...

    def members(self, timeout: timedelta) -> tuple[Member, ...]:
        """Return all registered processes, by service and start time.

        The entry of a process that died is removed when its session expires.

        Raises:
            Unavailable: the list cannot be read in time.
        """
        ...

    def problem(self) -> str:
        """Return why this process is not registered; "": it is, and the store answers. Does not block."""
        ...


class OverrideStore(Protocol):
    """Stores the overrides for all services; `broker_id` None means the cluster override.

    Every change and its audit record are one transaction. The store keeps the newest 1,000 records.
    """

    def read_overrides(self) -> Overrides:
        """Return all overrides.

        Raises:
            Unavailable: no override can be read. A single unreadable override is a value in the result.
        """
        ...

    def set_override(
        self,
        broker_id: int | None,
        rate: BytesPerSecond,
        autoremove: bool,
        expire_time: datetime | None = None,
        *,
        version: int = 0,
        who: str = "",
    ) -> StoredOverride:
        """Set an override and replace the current one. Idempotent without a version.

        Args:
            broker_id: the broker; None: the cluster override.
            rate: bytes per second, > 0.
            autoremove: whether the override is removed when no reassignment is left.
            expire_time: when the override expires, UTC; None: never.
            version: replace only this version; 0: replace any version, or create the override.
            who: author, for the audit record.

        Raises:
            Invalid: the broker id or the rate is out of range.
            Conflict: the current version differs from `version`, or the override is not set.
            Unavailable: the store does not answer.
        """
        ...

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
        ...

    def purge_override(self, fence: int, broker_id: int | None, version: int, reason: str = "") -> bool:
        """Remove one version of an override on behalf of a term; return False if that version is not the current one.

        Raises:
            NotLeader: the term is over.
        """
        ...

    def add_audit_record(self, action: AuditAction, who: str, result: str) -> None:
        """Record an action that changes no state in the stores.

        Raises:
            Unavailable: the store does not answer; the record may have been written.
        """
        ...

    def read_audit_records(self, limit: int) -> AuditReading:
        """Return at most `limit` audit records.

        Raises:
            Unavailable: the store does not answer.
        """
        ...

    def watch_overrides(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change of any override; the call comes from another thread and must not block."""
        ...


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
        ...

    def set_pause(self, pause: Pause) -> None:
        """Pause and replace the current pause; the audit record names its author. Idempotent.

        Raises:
            Unavailable: the store does not answer.
        """
        ...

    def remove_pause(self, who: str = "") -> bool:
        """Resume; return False if it was not paused. Idempotent.

        Args:
            who: author, for the audit record.

        Raises:
            Unavailable: the store does not answer.
        """
        ...

    def watch_pause(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change; the call comes from another thread and must not block."""
        ...


class CatchUpStore(Protocol):
    """Stores the catch-ups under throttle for all services; a change of leader does not end them.

    A start or removal by a caller and its audit record are one transaction. The records are among those of the
    overrides.
    """

    def read_catch_ups(self) -> Mapping[int, CatchUp]:
        """Return broker id -> its catch-up.

        Raises:
            Unavailable: the catch-ups cannot be read.
            Invalid: the stored value cannot be parsed; the message names the node and the fix.
        """
        ...

    def start_catch_up(self, wanted: CatchUp) -> None:
        """Add a catch-up and replace the broker's current one; the audit record names its author. Idempotent.

        Raises:
            Unavailable: the store does not answer.
        """
        ...

    def remove_catch_up(self, broker_id: int, who: str = "") -> bool:
        """Remove a broker's catch-up; return False if it has none. Idempotent.

        Args:
            broker_id: the broker.
            who: author, for the audit record.

        Raises:
            Unavailable: the store does not answer.
        """
        ...

    def purge_catch_up(self, fence: int, ended: CatchUp) -> bool:
        """Remove a finished catch-up on behalf of a term, but not a later one of the same broker.

        Returns False if this catch-up is not stored.

        Raises:
            NotLeader: the term is over; nothing was done.
            Unavailable: the store does not answer.
        """
        ...

    def watch_catch_ups(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change; the call comes from another thread and must not block."""
        ...


class RequestQuotaStore(Protocol):
    """Stores the request quotas of our own API for all services.

    Every change and its audit record are one transaction. The records are among those of the overrides.
    """

    def read_request_quotas(self) -> RequestRates:
        """Return all quotas.

        Raises:
            Unavailable: the quotas cannot be read.
            Invalid: the stored value cannot be parsed; the message names the node and the fix.
        """
        ...

    def set_request_quota(self, entity: RequestQuotaEntity, rate: int, who: str = "") -> None:
        """Set or replace the quota of an entity. Idempotent.

        Args:
            entity: the callers.
            rate: requests per second, 1 to 1,000,000.
            who: author, for the audit record.

        Raises:
            Invalid: there would be more than 1,000 quotas.
            Unavailable: the store does not answer.
        """
        ...

    def remove_request_quota(self, entity: RequestQuotaEntity, who: str = "") -> bool:
        """Remove the quota of an entity; return False if it has none. Idempotent.

        Args:
            entity: the callers.
            who: author, for the audit record.

        Raises:
            Unavailable: the store does not answer.
        """
        ...

    def watch_request_quotas(self, notify: Callable[[RequestRates], None]) -> Watch:
        """Call `notify` with the quotas after every change, and when stored ones are first read.

        The call comes from another thread and must not block. A stored value that cannot be parsed is logged.
        """
        ...


class TemporaryQuotaStore(Protocol):
    """Stores the temporary client quotas for all services; a change of leader does not end them.

    Every change and its audit record are one transaction. The records are among those of the overrides.
    """

    def read_temporary_quotas(self) -> TemporaryQuotas:
        """Return entity -> its temporary quota.

        Raises:
            Unavailable: they cannot be read.
            Invalid: the stored value cannot be parsed; the message names the node and the fix.
        """
        ...

    def set_temporary_quota(self, wanted: TemporaryQuota) -> None:
        """Add a temporary quota and replace the entity's current one; the audit record names its author. Idempotent.

        Raises:
            Unavailable: the store does not answer.
        """
        ...

    def remove_temporary_quota(self, entity: ClientQuotaEntity, who: str = "") -> bool:
        """Remove the temporary quota of an entity; return False if it has none. Idempotent.

        The leading planner then restores the quotas before it.

        Args:
            entity: the entity.
            who: author, for the audit record.

        Raises:
            Unavailable: the store does not answer.
        """
        ...

    def purge_temporary_quota(self, fence: int, ended: TemporaryQuota, reason: str) -> bool:
        """Remove a temporary quota that has ended on behalf of a term, but not a later one of the same entity.

        Returns False if this temporary quota is not stored.

        Raises:
            NotLeader: the term is over; nothing was done.
            Unavailable: the store does not answer.
        """
        ...

    def watch_temporary_quotas(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change; the call comes from another thread and must not block."""
        ...


class YieldRuleStore(Protocol):
    """Stores the rules for clients that yield to a recovery, for all services.

    Every change and its audit record are one transaction. The records are among those of the overrides.
    """

    def read_rules(self) -> YieldRules:
        """Return name -> rule.

        Raises:
            Unavailable: they cannot be read.
            Invalid: the stored value cannot be parsed; the message names the node and the fix.
        """
        ...

    def set_rule(self, rule: YieldRule) -> None:
        """Add a rule, or replace the one of this name; the audit record names its author. Idempotent.

        Raises:
            Conflict: there would be more than 100 rules.
            Unavailable: the store does not answer.
        """
        ...

    def remove_rule(self, name: str, who: str = "") -> bool:
        """Remove a rule; return False if it does not exist. Idempotent.

        Args:
            name: name of the rule.
            who: author, for the audit record.

        Raises:
            Unavailable: the store does not answer.
        """
        ...

    def watch_rules(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change; the call comes from another thread and must not block."""
        ...
