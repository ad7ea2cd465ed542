"""Overrides: rates set by operators. A broker override beats the cluster override. The type to know is `Overrides`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from autothrottle.core.errors import Conflict, Invalid
from autothrottle.core.traffic.loads import MAX_LINK_RATE, BrokerLoad
from autothrottle.core.units import MEGABYTE, BytesPerSecond, format_megabytes

_ETAG = re.compile(r"[1-9a-f][0-9a-f]{0,15}")


@dataclass(frozen=True, slots=True)
class StoredOverride:
    """A rate set by an operator for the cluster or for one broker."""

    rate: BytesPerSecond
    """Bytes/s; 0: marked for removal (the original's convention)."""
    autoremove: bool = False
    """Whether the cluster override ends with the last reassignment; no effect on a broker override."""
    version: int = 0
    """The store's version; a removal applies to this version and to no later one. 0: none, or unknown."""
    expire_time: datetime | None = None
    """When it expires, UTC; None: never."""

    def is_over(self, now: datetime) -> bool:
        """Return whether it has expired."""
        return self.expire_time is not None and self.expire_time <= now


@dataclass(frozen=True, slots=True)
class Overrides:
    """All overrides at one time."""

    cluster: StoredOverride | None = None
    """Applies to every broker that takes part in a reassignment."""
    brokers: Mapping[int, StoredOverride] = field(default_factory=dict)
    """Broker id -> its override; applies at once and in both roles, whether or not the broker takes part in a
    reassignment."""
    unreadable: Mapping[int | None, str] = field(default_factory=dict)
    """Broker id (None: the cluster) -> why its override cannot be read."""
    warnings: tuple[str, ...] = ()
    """Unknown objects among the overrides, which are ignored; one sentence each."""

    def of(self, broker_id: int) -> StoredOverride | None:
        """Return the override in force on a broker that takes part in a reassignment; None: no override."""
        own = self.brokers.get(broker_id)
        if own is not None and own.rate > 0:
            return own
        if self.cluster is not None and self.cluster.rate > 0:
            return self.cluster
        return None

    @property
    def active_brokers(self) -> frozenset[int]:
        """Ids of the brokers with a broker override."""
        return frozenset(b for b, o in self.brokers.items() if o.rate > 0)

    def expired(self, now: datetime) -> dict[int | None, StoredOverride]:
        """Return broker id (None: the cluster) -> its expired override."""
        found: dict[int | None, StoredOverride] = {b: o for b, o in self.brokers.items() if o.is_over(now)}
        return {None: self.cluster, **found} if self.cluster is not None and self.cluster.is_over(now) else found

    def acting(self, now: datetime) -> Overrides:
        """Return the overrides without expired ones."""
        expired = self.expired(now)
        if not expired:
            return self
        cluster = None if None in expired else self.cluster
        return replace(self, cluster=cluster, brokers={b: o for b, o in self.brokers.items() if b not in expired})

    def next_expiry(self, now: datetime) -> datetime | None:
        """Return when the next override expires; None: none of the remaining ones expires."""
        current = [*self.brokers.values(), *([self.cluster] if self.cluster is not None else [])]
        return min((o.expire_time for o in current if o.expire_time and not o.is_over(now)), default=None)

    def keeping_unreadable(self, last: Overrides) -> Overrides:
        """Return these overrides, with the last read value of each unreadable one."""
        cluster = last.cluster if None in self.unreadable else self.cluster
        kept = {b: last.brokers[b] for b in self.unreadable if b is not None and b in last.brokers}
        return replace(self, cluster=cluster, brokers={**self.brokers, **kept})


def override_owner(broker_id: int | None) -> str:
    """Return the owner of an override for messages: `the cluster`, or `broker` and its id."""
    return "the cluster" if broker_id is None else f"broker {broker_id}"


def validate_rate(rate: int) -> BytesPerSecond:
    """Return the rate of an override.

    Raises:
        Invalid: it is not in 1..10^12 bytes/s. A larger rate was probably given in another unit.
    """
    if not 0 < rate <= MAX_LINK_RATE:
        raise Invalid(
            f"override rate {rate} bytes/s is outside of 1..{MAX_LINK_RATE}; give a positive rate "
            f"(1 MB/s is {MEGABYTE}), or remove the override"
        )
    return rate


def capacity_warnings(broker_id: int | None, rate: BytesPerSecond, loads: Mapping[int, BrokerLoad]) -> list[str]:
    """Return a sentence if an override does not limit replication, since it is above the capacity of a link.

    Args:
        broker_id: the broker; None: the cluster override.
        rate: bytes/s.
        loads: broker id -> its load and capacity; absent: unknown.
    """
    capacities = {b: min(load.capacity.outbound, load.capacity.inbound) for b, load in loads.items()}
    exceeded = {b: c for b, c in capacities.items() if c < rate and broker_id in (None, b)}
    if not exceeded:
        return []
    least, capacity = min(exceeded.items(), key=lambda item: (item[1], item[0]))
    more = f" and those of {len(exceeded) - 1} other brokers" if len(exceeded) > 1 else ""
    return [
        f"the override of {format_megabytes(rate)} MB/s is above the capacity of broker {least}, "
        f"{format_megabytes(capacity)} MB/s{more}: it does not limit replication there; check its unit, or give a "
        "rate below the capacity"
    ]


def validate_expire_time(expire_time: datetime, now: datetime) -> datetime:
    """Return the expire time of an override or a client quota.

    Raises:
        Invalid: it is not after `now`.
    """
    if expire_time <= now:
        raise Invalid(
            f"expire time {expire_time.isoformat()} is not after the present time {now.isoformat(timespec='seconds')}; "
            "give a later time, in UTC, or remove it"
        )
    return expire_time


def format_etag(version: int) -> str:
    """Return the etag of a version of an override; "" for 0.

    >>> format_etag(255)
    'ff'
    """
    return f"{version:x}" if version else ""


def parse_etag(etag: str) -> int:
    """Return the version that an etag names; 0 for "".

    Raises:
        Invalid: it does not have the form of an etag.
    """
    if etag and not _ETAG.fullmatch(etag):
        raise Invalid(f"etag {etag[:40]!r} is invalid: give the etag of a response, or none to change any version")
    return int(etag, 16) if etag else 0


def check_version(broker_id: int | None, wanted: int, current: int) -> None:
    """Check that the current version is the wanted one; `wanted` 0 accepts any version.

    Raises:
        Conflict: the current version is another one, or the override does not exist (`current` 0).
    """
    if wanted and wanted != current:
        actual = f"its etag is now {format_etag(current)}" if current else "it does not exist"
        raise Conflict(
            f"the override of {override_owner(broker_id)} with etag {format_etag(wanted)} has been changed or removed: "
            f"{actual}; read it again, then decide again"
        )
