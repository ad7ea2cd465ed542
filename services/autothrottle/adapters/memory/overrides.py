"""Overrides in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.adapters.memory.audit import MemoryAudit
from autothrottle.adapters.memory.election import MemoryElectorate
from autothrottle.adapters.memory.outages import Outages
from autothrottle.core.cluster.broker_ids import validate_broker_id
from autothrottle.core.operators.audit import AuditReading, unwritten_record
from autothrottle.core.operators.overrides import Overrides, StoredOverride, check_version, validate_rate
from autothrottle.core.records import AuditAction
from autothrottle.core.units import BytesPerSecond
from autothrottle.ports.kafka import Watch


class MemoryOverrides(Outages):
    """Overrides in memory (an `OverrideStore`)."""

    _outage = "the overrides cannot be read or written; try again"

    def __init__(self, electorate: MemoryElectorate | None = None, audit: MemoryAudit | None = None) -> None:
        """Create an empty store.

        Args:
            electorate: its terms fence `purge_override`; None: a new one.
            audit: stores the audit records; None: a new one.
        """
        self.electorate = electorate or MemoryElectorate()
        self.unreadable: dict[int | None, str] = {}
        """Settable: broker id (None: the cluster) -> why its override cannot be read."""
        self._overrides: dict[int | None, StoredOverride] = {}
        self.audit = audit or MemoryAudit()
        self._version = 0
        self._lock = threading.Lock()
        self._watches: Subscriptions[None] = Subscriptions()

    def mark_for_removal(self, broker_id: int | None) -> None:
        """Set the rate 0, as the original program marks an override for removal."""
        self._set(broker_id, StoredOverride(0), "the original")

    def read_overrides(self) -> Overrides:
        self._raise_if_down()
        with self._lock:
            readable = {b: o for b, o in self._overrides.items() if b not in self.unreadable}
            cluster = readable.pop(None, None)
            brokers = {b: o for b, o in readable.items() if b is not None}
            return Overrides(cluster, brokers, dict(self.unreadable))

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
        if broker_id is not None:
            validate_broker_id(broker_id)
        return self._set(broker_id, StoredOverride(validate_rate(rate), autoremove, version, expire_time), who)

    def remove_override(self, broker_id: int | None, *, version: int = 0, who: str = "") -> bool:
        self._raise_if_down()
        with self._lock:
            current = self._overrides.get(broker_id)
            if current is None:
                return False
            check_version(broker_id, version, current.version)
            self._replace(broker_id, None, who, AuditAction.REMOVE)
        self._watches.publish(None)
        return True

    def purge_override(self, fence: int, broker_id: int | None, version: int, reason: str = "") -> bool:
        self._raise_if_down()
        with self._lock:
            self.electorate.check(fence)
            current = self._overrides.get(broker_id)
            if current is None or current.version != version:
                return False
            self._replace(broker_id, None, f"planner, term {fence}", AuditAction.PURGE, reason)
        self._watches.publish(None)
        return True

    def add_audit_record(self, action: AuditAction, who: str, result: str) -> None:
        self._raise_if_down()
        self.audit.add(unwritten_record(who, action, result=result))

    def read_audit_records(self, limit: int) -> AuditReading:
        self._raise_if_down()
        return AuditReading(self.audit.newest(limit))

    def watch_overrides(self, notify: Callable[[], None]) -> Watch:
        return self._watches.add(lambda _: notify())

    def _set(self, broker_id: int | None, wanted: StoredOverride, who: str) -> StoredOverride:
        """Set an override; `wanted.version` is the version to replace, 0: any."""
        self._raise_if_down()
        with self._lock:
            current = self._overrides.get(broker_id)
            check_version(broker_id, wanted.version, current.version if current else 0)
            override = replace(wanted, version=self._version + 1)
            self._replace(broker_id, override, who, AuditAction.SET)
        self._watches.publish(None)
        return override

    def _replace(
        self, broker_id: int | None, after: StoredOverride | None, who: str, action: AuditAction, reason: str = ""
    ) -> None:
        self._version += 1
        before = self._overrides.pop(broker_id, None)
        if before is not None and before.rate == 0:
            before = None
        if after is not None:
            self._overrides[broker_id] = after
        self.audit.add(unwritten_record(who, action, broker_id, before, after, reason))
