"""A map with an audit log, in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.adapters.memory.audit import MemoryAudit
from autothrottle.adapters.memory.election import MemoryElectorate
from autothrottle.adapters.memory.outages import Outages
from autothrottle.core.operators.audit import MapKind, StoredAuditRecord, without_entry, without_purged
from autothrottle.core.operators.sources import StoredMap
from autothrottle.ports.kafka import Watch

K = TypeVar("K")
V = TypeVar("V")


class MemoryAuditedMap(Outages, Generic[K, V]):
    """A map in memory (an `AuditedMap`)."""

    def __init__(
        self, kind: MapKind[K, V], electorate: MemoryElectorate | None = None, audit: MemoryAudit | None = None
    ) -> None:
        """Create an empty map.

        Args:
            kind: what it holds.
            electorate: its terms fence `purge`; None: a new one.
            audit: stores the audit records; None: a new one.
        """
        self.audit = audit or MemoryAudit()
        self._kind, self._electorate = kind, electorate or MemoryElectorate()
        self._outage = f"the {kind.name} cannot be read or written; try again"
        self._entries: Mapping[K, V] = {}
        self._lock = threading.Lock()
        self._watches: Subscriptions[Mapping[K, V]] = Subscriptions()

    def read(self) -> StoredMap[K, V]:
        self._raise_if_down()
        return StoredMap(self._entries)

    def put(self, key: K, entry: V, who: str = "") -> None:
        record = self._kind.put_record(key, entry, who)
        self._edit(lambda entries: self._kind.with_entry(entries, key, entry), record)

    def remove(self, key: K, who: str = "") -> bool:
        return self._edit(lambda entries: without_entry(entries, key), self._kind.removal_record(key, who))

    def purge(self, fence: int, key: K, entry: V, reason: str = "") -> bool:
        self._electorate.check(fence)
        record = self._kind.purge_record(key, fence, reason)
        return self._edit(lambda entries: without_purged(entries, key, entry), record)

    def watch(self, notify: Callable[[], None]) -> Watch:
        return self._watches.add(lambda _: notify())

    def follow(self, notify: Callable[[Mapping[K, V]], None]) -> Watch:
        if self._entries:
            notify(self._entries)
        return self._watches.add(notify)

    def _edit(self, change: Callable[[Mapping[K, V]], Mapping[K, V]], record: StoredAuditRecord | None) -> bool:
        self._raise_if_down()
        with self._lock:
            entries, self._entries = self._entries, change(self._entries)
            is_changed = entries != self._entries
            if is_changed and record is not None:
                self.audit.add(record)
        if is_changed:
            self._watches.publish(self._entries)
        return is_changed
