"""Where overrides are kept, and the record of who changed them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from autothrottle.core.audit import AuditRecord
from autothrottle.core.loads import BytesPerSecond
from autothrottle.core.overrides import Override, Overrides
from autothrottle.ports.cluster import Watch


class OverrideStore(Protocol):
    """Where overrides are kept, shared by everybody; `broker_id` None is the cluster's.

    Every change and its audit record are one transaction; the newest 1,000 records are kept.
    """

    def read_overrides(self) -> Overrides:
        """Return all overrides.

        Raises:
            Unavailable: when they cannot be read at all; a single unreadable one is a value in the result.
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
    ) -> Override:
        """Set an override, in place of one that stands. Idempotent without a version.

        Args:
            broker_id: whose.
            rate: bytes/s.
            autoremove: whether it ends with the reassignments.
            expire_time: when it ends by itself, UTC; None: never.
            version: the one that it may take the place of, and no other; 0: any, or none.
            who: for the audit record.

        Raises:
            Invalid: when the broker id or the rate is out of range.
            Conflict: when another version stands, or none.
            Unavailable: when the store does not answer.
        """
        ...

    def remove_override(self, broker_id: int | None, *, version: int = 0, who: str = "") -> bool:
        """Remove an override; False when there was none. Idempotent.

        Args:
            broker_id: whose.
            version: the one to remove, and no other; 0: any.
            who: for the audit record.

        Raises:
            Conflict: when another version stands.
            Unavailable: when the store does not answer.
        """
        ...

    def purge_override(self, fence: int, broker_id: int | None, version: int, reason: str = "") -> bool:
        """Remove one version of an override on behalf of a term; False when a later version stands.

        Raises:
            NotLeader: when the term is over.
        """
        ...

    def read_audit_records(self, limit: int) -> tuple[AuditRecord, ...]:
        """Return the newest records, those of the pause too, at most so many, the newest first.

        Raises:
            Unavailable: when the store does not answer.
        """
        ...

    def watch_overrides(self, notify: Callable[[], None]) -> Watch:
        """Call `notify` after every change of any override, from another thread; it must not block."""
        ...
