"""Audit records in memory."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime

from autothrottle.core.operators.audit import MAX_AUDIT_RECORDS, StoredAuditRecord


class MemoryAudit:
    """The audit records that overrides and the pause share."""

    def __init__(self) -> None:
        self._records: deque[StoredAuditRecord] = deque(maxlen=MAX_AUDIT_RECORDS)
        self._number = 0
        self._lock = threading.Lock()

    def add(self, record: StoredAuditRecord) -> None:
        """Store a record with the next number and the current time."""
        with self._lock:
            self._number += 1
            self._records.append(replace(record, number=self._number, time=datetime.now(UTC)))

    def newest(self, limit: int) -> tuple[StoredAuditRecord, ...]:
        """Return at most `limit` records, newest first."""
        with self._lock:
            return tuple(reversed(self._records))[:limit]
