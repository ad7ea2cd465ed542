"""Client quotas that end by themselves: at a time, or with the recovery. The type to know is `TemporaryQuota`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from autothrottle.core.quotas.entities import ClientQuotaEntity
from autothrottle.core.quotas.keys import QuotaValues, format_value


@dataclass(frozen=True, slots=True)
class TemporaryQuota:
    """Quotas of one entity that hold until they end; the values before them are restored then."""

    entity: ClientQuotaEntity
    values: QuotaValues
    """Never empty."""
    author: str
    """Who set it."""
    time: datetime
    """When it was set, UTC."""
    expire_time: datetime | None = None
    """When it ends, UTC; None: with the recovery only."""
    until_recovered: bool = False
    """Whether it ends when no reassignment and no catch-up is left."""

    def end(self, now: datetime, is_recovering: bool | None) -> str:
        """Return why it has ended; "": it has not.

        Args:
            now: UTC.
            is_recovering: whether a reassignment or a catch-up runs; None: unknown.
        """
        if self.expire_time is not None and self.expire_time <= now:
            return "it has expired"
        return "no reassignment and no catch-up is left" if self.until_recovered and is_recovering is False else ""


TemporaryQuotas = Mapping[ClientQuotaEntity, TemporaryQuota]
"""Entity -> its temporary quota."""


def quota_sentence(quota: TemporaryQuota) -> str:
    """Return for logs and the audit what was set, and when it ends."""
    values = ", ".join(f"{key} {format_value(key, value)}" for key, value in quota.values.items())
    ends = [f"at {quota.expire_time.isoformat(timespec='seconds')}"] if quota.expire_time else []
    ends += ["with the recovery"] if quota.until_recovered else []
    return f"Quota of {quota.entity}: {values}, ends {' or '.join(ends)}"
