"""Rates that an operator sets in place of ours: a broker's own beats the cluster's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from autothrottle.core.errors import Conflict, Invalid
from autothrottle.core.loads import MEGABYTE, BytesPerSecond
from autothrottle.core.topology import MAX_BROKER_ID

MAX_RATE: BytesPerSecond = 2**63 - 1
"""Kafka keeps rates as a signed 64-bit number of bytes/s."""

_ETAG = re.compile(r"[1-9a-f][0-9a-f]{0,15}")


@dataclass(frozen=True, slots=True)
class Override:
    """One operator's rate, of the cluster or of one broker."""

    rate: BytesPerSecond
    """Bytes/s; 0 means that it is to be removed (so the original marks it)."""
    autoremove: bool = False
    """Whether the cluster's override ends when no reassignment is left; without effect on a broker's."""
    version: int = 0
    """The store's version of it: whoever removes it removes this version and no later one. 0: none, or unknown."""
    expire_time: datetime | None = None
    """When it ends by itself, UTC; None: never."""

    def is_over(self, now: datetime) -> bool:
        """Whether its time has come."""
        return self.expire_time is not None and self.expire_time <= now


@dataclass(frozen=True, slots=True)
class Overrides:
    """All overrides at one moment."""

    cluster: Override | None = None
    """Acts on every broker that takes part in a reassignment."""
    brokers: Mapping[int, Override] = field(default_factory=dict)
    """Broker id -> its own override; acts at once, whether or not the broker takes part in anything."""
    unreadable: Mapping[int | None, str] = field(default_factory=dict)
    """Broker id (None: the cluster) -> why its override cannot be read."""
    warnings: tuple[str, ...] = ()
    """What else was found among the overrides and is ignored."""

    def of(self, broker_id: int) -> Override | None:
        """Return the override that rules a broker which takes part in a reassignment, if any."""
        own = self.brokers.get(broker_id)
        if own is not None and own.rate > 0:
            return own
        if self.cluster is not None and self.cluster.rate > 0:
            return self.cluster
        return None

    @property
    def active_brokers(self) -> frozenset[int]:
        """Ids of the brokers that have an override of their own."""
        return frozenset(b for b, o in self.brokers.items() if o.rate > 0)

    def expired(self, now: datetime) -> dict[int | None, Override]:
        """Return those whose time has come; broker id None is the cluster's."""
        found: dict[int | None, Override] = {b: o for b, o in self.brokers.items() if o.is_over(now)}
        return {None: self.cluster, **found} if self.cluster is not None and self.cluster.is_over(now) else found

    def acting(self, now: datetime) -> Overrides:
        """Return these overrides without those whose time has come."""
        expired = self.expired(now)
        if not expired:
            return self
        cluster = None if None in expired else self.cluster
        return replace(self, cluster=cluster, brokers={b: o for b, o in self.brokers.items() if b not in expired})

    def next_expiry(self, now: datetime) -> datetime | None:
        """Return when the first of them ends that has not ended yet; None: none does by itself."""
        standing = [*self.brokers.values(), *([self.cluster] if self.cluster is not None else [])]
        return min((o.expire_time for o in standing if o.expire_time and not o.is_over(now)), default=None)

    def keeping_unreadable(self, last: Overrides) -> Overrides:
        """Return these overrides with every unreadable one as it was last read."""
        cluster = last.cluster if None in self.unreadable else self.cluster
        kept = {b: last.brokers[b] for b in self.unreadable if b is not None and b in last.brokers}
        return replace(self, cluster=cluster, brokers={**self.brokers, **kept})


def whose(broker_id: int | None) -> str:
    """Return whose override it is, in words."""
    return "the cluster" if broker_id is None else f"broker {broker_id}"


def validate_rate(rate: int) -> BytesPerSecond:
    """Return the rate of an override, or say what is wrong with it.

    Raises:
        Invalid: when it is not in 1..2^63-1 bytes/s.
    """
    if not 0 < rate <= MAX_RATE:
        raise Invalid(
            f"override rate {rate} bytes/s is outside of 1..{MAX_RATE}; give a positive rate "
            f"(1 MB/s is {MEGABYTE}), or remove the override"
        )
    return rate


def validate_broker_id(broker_id: int) -> int:
    """Return a broker id, or say what is wrong with it.

    Raises:
        Invalid: when it is not in 1..2^31-1.
    """
    if not 0 < broker_id <= MAX_BROKER_ID:
        raise Invalid(f"broker id {broker_id} is outside of 1..{MAX_BROKER_ID}; give the id of a broker")
    return broker_id


def validate_expire_time(expire_time: datetime, now: datetime) -> datetime:
    """Return when an override ends, or say what is wrong with it.

    Raises:
        Invalid: when it is not after `now`.
    """
    if expire_time <= now:
        raise Invalid(
            f"expire time {expire_time.isoformat()} is not after {now.isoformat(timespec='seconds')}, which is now; "
            "give a later time, in UTC, or remove the override"
        )
    return expire_time


def format_etag(version: int) -> str:
    """Return the text that names one version of an override to operators; empty for 0.

    >>> format_etag(255)
    'ff'
    """
    return f"{version:x}" if version else ""


def parse_etag(etag: str) -> int:
    """Return the version that an etag names; 0 for an empty one.

    Raises:
        Invalid: when it is none of ours.
    """
    if etag and not _ETAG.fullmatch(etag):
        raise Invalid(f"etag {etag[:40]!r} is none: give the etag of an answer as it is, or none to change any version")
    return int(etag, 16) if etag else 0


def demand_version(broker_id: int | None, wanted: int, standing: int) -> None:
    """Return when the version that stands is the one that may be changed; `wanted` 0: any may.

    Raises:
        Conflict: when another one stands, or none (`standing` 0).
    """
    if wanted and wanted != standing:
        stands = f"the one with etag {format_etag(standing)} stands" if standing else "none stands"
        raise Conflict(
            f"the override of {whose(broker_id)} with etag {format_etag(wanted)} has been changed or removed "
            f"meanwhile: {stands}; read it again, then decide again"
        )
