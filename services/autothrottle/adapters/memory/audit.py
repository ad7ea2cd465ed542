"""The record of who changed what, in memory."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime

from autothrottle.core.audit import MAX_AUDIT_RECORDS, AuditRecord

NO_TIME = datetime.fromtimestamp(0, UTC)
"""Of a change that is not recorded yet: the record gives it its own."""


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
