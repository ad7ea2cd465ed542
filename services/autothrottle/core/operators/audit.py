"""The audit trail of all actions of operators, and the maps that operators change.

The types to know are `StoredAuditRecord` and `MapKind`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Generic, TypeVar

from autothrottle.core.cluster.configs import BROKER_IDS
from autothrottle.core.codec import GIVEN, LEFT_OUT
from autothrottle.core.errors import Invalid
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.quotas.keys import ClientQuotaEntity, TemporaryQuota, quota_sentence
from autothrottle.core.quotas.yielding import YieldRule, rule_sentence, with_rule
from autothrottle.core.records import AuditAction, CatchUp, Pause
from autothrottle.core.request_quotas import RequestQuotaEntity, with_request_quota

MAX_AUDIT_RECORDS = 1_000
"""Number of records kept, the newest ones."""

DEFAULT_AUDIT_RECORDS = 100
"""Number of records returned if the caller gives no limit."""

MAX_WHO = 1_000
"""Longest `who` and `result`, in characters; a caller names itself, so its name needs a bound."""


@dataclass(frozen=True, slots=True)
class StoredAuditRecord:
    """One action. The transaction that changes an override, a catch-up, a quota or the pause also writes its record."""

    number: int = field(metadata=GIVEN)
    """Sequence number; a later change has a larger number."""
    time: datetime = field(metadata=GIVEN)
    """UTC, by the store's clock."""
    who: str
    """The caller, if known: its name, its address, and the service through which it called; `caller_name` is short."""
    action: AuditAction
    broker_id: Annotated[int, BROKER_IDS] | None = None
    """The broker of the override or catch-up; None: the cluster override, or an action that concerns no broker."""
    before: StoredOverride | None = field(default=None, metadata=GIVEN)
    """The override before the change; None: there was none, or it could not be read."""
    after: StoredOverride | None = field(default=None, metadata=GIVEN)
    """The override after the change; None: removed."""
    reason: str = ""
    """Why autothrottle made the change by itself; "": an operator requested it."""
    pause: Pause | None = field(default=None, metadata=LEFT_OUT)
    """The pause that began or ended; None: another action."""
    result: str = field(default="", metadata=LEFT_OUT)
    """How a submission, cancellation, request of a cycle or change of quotas ended; "" for the other actions, which are
    recorded only on success."""


unwritten_record = partial(StoredAuditRecord, 0, datetime.fromtimestamp(0, UTC))
"""Creates a record from the fields after its number and time, which the store adds when it writes the record."""


@dataclass(frozen=True, slots=True)
class AuditReading:
    """The newest records, newest first, and why others of them cannot be read."""

    records: tuple[StoredAuditRecord, ...] = ()
    problems: tuple[str, ...] = ()
    """One sentence with the path, the cause and the fix for each record that cannot be read."""


def validate_audit_limit(limit: int) -> int:
    """Return the number of records to show; 100 for 0.

    Raises:
        Invalid: the limit is not in 0..1,000.
    """
    if not 0 <= limit <= MAX_AUDIT_RECORDS:
        raise Invalid(f"limit {limit} is outside of 1..{MAX_AUDIT_RECORDS}; only that many records are kept")
    return limit or DEFAULT_AUDIT_RECORDS


K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class MapKind(Generic[K, V]):
    """One kind of map. Its records have neither number nor time: the store adds them."""

    name: str
    """Describes the entries in messages."""
    put_record: Callable[[K, V, str], StoredAuditRecord]
    """Returns the record of a new entry from (key, entry, who); who may be "" if the entry names its author."""
    removal_record: Callable[[K, str], StoredAuditRecord]
    """Returns the record of a removal from (key, who)."""
    is_purge_audited: bool = True
    """Whether a removal by the leading planner is recorded, too."""
    with_entry: Callable[[Mapping[K, V], K, V], Mapping[K, V]] = lambda entries, key, entry: {**entries, key: entry}
    """Adds or replaces an entry; raises an error if there would be too many."""

    def purge_record(self, key: K, fence: int, reason: str) -> StoredAuditRecord | None:
        """Return the record of a removal by the planner that leads in this term; None: it is not recorded."""
        if not self.is_purge_audited:
            return None
        return replace(self.removal_record(key, f"planner, term {fence}"), reason=reason)


MapChange = Callable[[Mapping[K, V]], Mapping[K, V]]
"""Maps the readable entries of a map to the new ones."""


class MapEdits(ABC, Generic[K, V]):
    """The changes of an `AuditedMap`, wherever its entries are stored."""

    _kind: MapKind[K, V]

    def put(self, key: K, entry: V, who: str = "") -> None:
        record = self._kind.put_record(key, entry, who)
        self._edit(lambda entries: self._kind.with_entry(entries, key, entry), record)

    def remove(self, key: K, who: str = "") -> bool:
        return self._edit(lambda entries: _without(entries, key), self._kind.removal_record(key, who))

    def purge(self, fence: int, key: K, entry: V, reason: str = "") -> bool:
        record = self._kind.purge_record(key, fence, reason)
        # A later entry of the same key stays.
        return self._edit(lambda e: _without(e, key) if e.get(key) == entry else e, record, fence)

    @abstractmethod
    def _edit(self, change: MapChange[K, V], record: StoredAuditRecord | None, fence: int | None = None) -> bool:
        """Apply a change to the readable entries; return whether anything changed.

        Args:
            change: what to do with the entries.
            record: written in the same transaction; None: no audit record.
            fence: the term that must continue; None: the change belongs to no term.
        """


def _without(entries: Mapping[K, V], key: K) -> Mapping[K, V]:
    return {other: entry for other, entry in entries.items() if other != key}


CATCH_UPS: MapKind[int, CatchUp] = MapKind(
    "catch-ups",
    lambda broker_id, entry, _: unwritten_record(entry.author, AuditAction.START_CATCH_UP, broker_id),
    lambda broker_id, who: unwritten_record(who, AuditAction.STOP_CATCH_UP, broker_id),
    is_purge_audited=False,
)
"""Broker id -> its catch-up."""

TEMPORARY_QUOTAS: MapKind[ClientQuotaEntity, TemporaryQuota] = MapKind(
    "temporary quotas",
    lambda _, quota, __: unwritten_record(quota.author, AuditAction.SET_QUOTA, result=quota_sentence(quota)),
    lambda entity, who: unwritten_record(who, AuditAction.REMOVE_QUOTA, result=f"Temporary quota of {entity} ended"),
)
"""Entity -> its temporary quota."""

YIELD_RULES: MapKind[str, YieldRule] = MapKind(
    "yield rules",
    lambda name, rule, _: unwritten_record(
        rule.author, AuditAction.SET_QUOTA, result=f"Yield rule {name}: {rule_sentence(rule)}"
    ),
    lambda name, who: unwritten_record(who, AuditAction.REMOVE_QUOTA, result=f"Yield rule {name} removed"),
    with_entry=with_rule,
)
"""Name -> rule; at most 100."""

REQUEST_QUOTAS: MapKind[RequestQuotaEntity, int] = MapKind(
    "request quotas",
    lambda entity, rate, who: unwritten_record(
        who, AuditAction.SET_REQUEST_QUOTA, result=f"{entity}: {rate} requests/s"
    ),
    lambda entity, who: unwritten_record(who, AuditAction.REMOVE_REQUEST_QUOTA, result=str(entity)),
    with_entry=with_request_quota,
)
"""Entity -> requests/s; at most 1,000."""
