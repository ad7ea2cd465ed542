"""Temporary client quotas in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.adapters.memory.audit import NO_TIME, MemoryAudit
from autothrottle.adapters.memory.election import MemoryElectorate
from autothrottle.adapters.memory.outages import Outages
from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.quotas.entities import ClientQuotaEntity
from autothrottle.core.quotas.temporary import TemporaryQuota, TemporaryQuotas, quota_sentence
from autothrottle.core.records import AuditAction
from autothrottle.ports.kafka import Watch


class MemoryTemporaryQuotas(Outages):
    """Temporary quotas in memory (a `TemporaryQuotaStore`)."""

    _outage = "the temporary quotas cannot be read or written; try again"

    def __init__(self, electorate: MemoryElectorate | None = None, audit: MemoryAudit | None = None) -> None:
        """Create an empty store.

        Args:
            electorate: its terms fence `purge_temporary_quota`; None: a new one.
            audit: stores the audit records; None: a new one.
        """
        self.audit = audit or MemoryAudit()
        self._electorate = electorate or MemoryElectorate()
        self._quotas: dict[ClientQuotaEntity, TemporaryQuota] = {}
        self._lock = threading.Lock()
        self._watches: Subscriptions[None] = Subscriptions()

    def read_temporary_quotas(self) -> TemporaryQuotas:
        self._raise_if_down()
        return dict(self._quotas)

    def set_temporary_quota(self, wanted: TemporaryQuota) -> None:
        self._raise_if_down()
        with self._lock:
            self._quotas[wanted.entity] = wanted
            record = StoredAuditRecord(0, NO_TIME, wanted.author, AuditAction.SET_QUOTA, result=quota_sentence(wanted))
            self.audit.add(record)
        self._watches.publish(None)

    def remove_temporary_quota(self, entity: ClientQuotaEntity, who: str = "") -> bool:
        return self._remove(entity, who)

    def purge_temporary_quota(self, fence: int, ended: TemporaryQuota, reason: str) -> bool:
        self._electorate.check(fence)
        is_current = self._quotas.get(ended.entity) == ended
        return is_current and self._remove(ended.entity, f"planner, term {fence}", reason)

    def watch_temporary_quotas(self, notify: Callable[[], None]) -> Watch:
        return self._watches.add(lambda _: notify())

    def _remove(self, entity: ClientQuotaEntity, who: str, reason: str = "") -> bool:
        self._raise_if_down()
        with self._lock:
            found = self._quotas.pop(entity, None)
            if found is not None:
                result = f"Temporary quota of {entity} ended"
                self.audit.add(
                    StoredAuditRecord(0, NO_TIME, who, AuditAction.REMOVE_QUOTA, result=result, reason=reason)
                )
        if found is not None:
            self._watches.publish(None)
        return found is not None
