"""Request quotas in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

from autothrottle.adapters.concurrency.subscriptions import Subscriptions
from autothrottle.adapters.memory.audit import NO_TIME, MemoryAudit
from autothrottle.adapters.memory.outages import Outages
from autothrottle.core.control.audit import StoredAuditRecord
from autothrottle.core.records import AuditAction
from autothrottle.core.request_quotas import (
    RequestQuotaEntity,
    RequestRates,
    with_request_quota,
    without_request_quota,
)
from autothrottle.ports.kafka import Watch


class MemoryRequestQuotas(Outages):
    """Request quotas in memory (a `RequestQuotaStore`)."""

    _outage = "the request quotas cannot be read or written; try again"

    def __init__(self, audit: MemoryAudit | None = None) -> None:
        """Create an empty store; `audit` stores its audit records, None: a new one."""
        self.audit = audit or MemoryAudit()
        self._rates: RequestRates = {}
        self._lock = threading.Lock()
        self._watches: Subscriptions[RequestRates] = Subscriptions()

    def read_request_quotas(self) -> RequestRates:
        self._raise_if_down()
        return self._rates

    def set_request_quota(self, entity: RequestQuotaEntity, rate: int, who: str = "") -> None:
        result = f"{entity}: {rate} requests/s"
        record = StoredAuditRecord(0, NO_TIME, who, AuditAction.SET_REQUEST_QUOTA, result=result)
        self._edit(lambda rates: with_request_quota(rates, entity, rate), record)

    def remove_request_quota(self, entity: RequestQuotaEntity, who: str = "") -> bool:
        record = StoredAuditRecord(0, NO_TIME, who, AuditAction.REMOVE_REQUEST_QUOTA, result=str(entity))
        return self._edit(lambda rates: without_request_quota(rates, entity), record)

    def watch_request_quotas(self, notify: Callable[[RequestRates], None]) -> Watch:
        if self._rates:
            notify(self._rates)
        return self._watches.add(notify)

    def _edit(self, change: Callable[[RequestRates], RequestRates], record: StoredAuditRecord) -> bool:
        self._raise_if_down()
        with self._lock:
            before, self._rates = self._rates, change(self._rates)
            is_changed = before != self._rates
            if is_changed:
                self.audit.add(record)
        if is_changed:
            self._watches.publish(self._rates)
        return is_changed
