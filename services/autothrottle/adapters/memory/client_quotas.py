"""Client quotas in memory."""

from __future__ import annotations

import threading
from collections.abc import Collection
from datetime import timedelta

from autothrottle.adapters.memory.outages import Outages
from autothrottle.core.quotas.entities import ClientQuotaEntity
from autothrottle.core.quotas.keys import QuotaEdits, QuotaValues, check_etag, edited
from autothrottle.ports.kafka import QuotaReading


class MemoryClientQuotas(Outages):
    """Client quotas in memory (a `ClientQuotaStore`)."""

    _outage = "the client quotas cannot be read or written; try again"

    def __init__(self) -> None:
        self.quotas: dict[ClientQuotaEntity, QuotaValues] = {}
        self.problems: tuple[str, ...] = ()
        """Settable: the problems of every reading."""
        self.notifications: list[str] = []
        """The entity paths of change notifications to brokers, in order."""
        self._lock = threading.Lock()

    def fetch_quotas(self, timeout: timedelta, entities: Collection[ClientQuotaEntity] | None = None) -> QuotaReading:
        self._raise_if_down()
        with self._lock:
            found = {e: values for e, values in self.quotas.items() if entities is None or e in entities}
            return QuotaReading(found, self.problems)

    def alter_quota(
        self,
        entity: ClientQuotaEntity,
        edits: QuotaEdits,
        timeout: timedelta,
        *,
        etag: str = "",
        validate_only: bool = False,
    ) -> QuotaValues:
        self._raise_if_down()
        with self._lock:
            current = self.quotas.get(entity, {})
            check_etag(entity, etag, current)
            wanted = edited(current, edits)
            if wanted != current and not validate_only:
                self.quotas.pop(entity, None)
                self.quotas |= {entity: wanted} if wanted else {}
                self.notifications.append(entity.path)
            return current
