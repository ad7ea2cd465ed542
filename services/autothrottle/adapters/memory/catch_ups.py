"""Catch-ups in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.adapters.memory.audit import NO_TIME, MemoryAudit
from autothrottle.adapters.memory.election import MemoryElectorate
from autothrottle.adapters.memory.outages import Outages
from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.records import AuditAction, CatchUp
from autothrottle.ports.kafka import Watch


class MemoryCatchUps(Outages):
    """Catch-ups in memory (a `CatchUpStore`)."""

    _outage = "the catch-ups cannot be read or written; try again"

    def __init__(self, electorate: MemoryElectorate | None = None, audit: MemoryAudit | None = None) -> None:
        """Create an empty store.

        Args:
            electorate: its terms fence `purge_catch_up`; None: a new one.
            audit: stores the audit records; None: a new one.
        """
        self.audit = audit or MemoryAudit()
        self._electorate = electorate or MemoryElectorate()
        self._catch_ups: dict[int, CatchUp] = {}
        self._lock = threading.Lock()
        self._watches: Subscriptions[None] = Subscriptions()

    def read_catch_ups(self) -> Mapping[int, CatchUp]:
        self._raise_if_down()
        return dict(self._catch_ups)

    def start_catch_up(self, wanted: CatchUp) -> None:
        self._raise_if_down()
        with self._lock:
            self._catch_ups[wanted.broker_id] = wanted
            self.audit.add(StoredAuditRecord(0, NO_TIME, wanted.author, AuditAction.START_CATCH_UP, wanted.broker_id))
        self._watches.publish(None)

    def remove_catch_up(self, broker_id: int, who: str = "") -> bool:
        is_removed = self._remove(broker_id)
        if is_removed:
            self.audit.add(StoredAuditRecord(0, NO_TIME, who, AuditAction.STOP_CATCH_UP, broker_id))
        return is_removed

    def purge_catch_up(self, fence: int, ended: CatchUp) -> bool:
        self._electorate.check(fence)
        return self._catch_ups.get(ended.broker_id) == ended and self._remove(ended.broker_id)

    def watch_catch_ups(self, notify: Callable[[], None]) -> Watch:
        return self._watches.add(lambda _: notify())

    def _remove(self, broker_id: int) -> bool:
        self._raise_if_down()
        with self._lock:
            found = self._catch_ups.pop(broker_id, None)
        if found is not None:
            self._watches.publish(None)
        return found is not None
