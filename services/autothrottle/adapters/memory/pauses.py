"""The pause, in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.adapters.memory.audit import MemoryAudit
from autothrottle.adapters.memory.outages import Outages
from autothrottle.core.operators.audit import StoredAuditRecord, unwritten_record
from autothrottle.core.records import AuditAction, Pause
from autothrottle.ports.kafka import Watch


class MemoryPauses(Outages):
    """The pause in memory (a `PauseStore`)."""

    _outage = "the pause cannot be read or written; try again"

    def __init__(self, audit: MemoryAudit | None = None) -> None:
        """Create a store that is not paused; `audit` stores its audit records, None: a new one."""
        self.audit = audit or MemoryAudit()
        self._pause: Pause | None = None
        self._lock = threading.Lock()
        self._watches: Subscriptions[None] = Subscriptions()

    def read_pause(self) -> Pause | None:
        self._raise_if_down()
        return self._pause

    def set_pause(self, pause: Pause) -> None:
        self._swap(pause, unwritten_record(pause.author, AuditAction.PAUSE, pause=pause))

    def remove_pause(self, who: str = "") -> bool:
        return self._swap(None, unwritten_record(who, AuditAction.RESUME)) is not None

    def watch_pause(self, notify: Callable[[], None]) -> Watch:
        return self._watches.add(lambda _: notify())

    def _swap(self, pause: Pause | None, record: StoredAuditRecord) -> Pause | None:
        self._raise_if_down()
        with self._lock:
            before, self._pause = self._pause, pause
            if pause or before:
                self.audit.add(replace(record, pause=pause or before))
        if before != pause:
            self._watches.publish(None)
        return before
