"""The audit trail: every action of an operator. The type to know is `StoredAuditRecord`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from autothrottle.core.errors import Invalid
from autothrottle.core.operators.overrides import StoredOverride
from autothrottle.core.records import AuditAction, Pause

MAX_AUDIT_RECORDS = 1_000
"""Number of records kept, the newest ones."""

DEFAULT_AUDIT_RECORDS = 100
"""Number of records returned if the caller gives no limit."""

MAX_WHO = 1_000
"""Longest `who` and `result`, in characters; a caller names itself, so its name needs a bound."""


@dataclass(frozen=True, slots=True)
class StoredAuditRecord:
    """One action. The transaction that changes an override, a catch-up, a quota or the pause also writes its record."""

    number: int
    """Sequence number; a later change has a larger number."""
    time: datetime
    """UTC, by the store's clock."""
    who: str
    """The caller, if known."""
    action: AuditAction
    broker_id: int | None = None
    """The broker of the override or catch-up; None: the cluster override, or an action that concerns no broker."""
    before: StoredOverride | None = None
    """The override before the change; None: there was none, or it could not be read."""
    after: StoredOverride | None = None
    """The override after the change; None: removed."""
    reason: str = ""
    """Why autothrottle made the change by itself; "": an operator requested it."""
    pause: Pause | None = None
    """The pause that began or ended; None: another action."""
    result: str = ""
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
