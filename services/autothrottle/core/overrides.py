"""Rates that an operator sets in place of ours: a broker's own beats the cluster's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autothrottle.core.errors import Invalid
from autothrottle.core.loads import MEGABYTE, BytesPerSecond
from autothrottle.core.topology import MAX_BROKER_ID

MAX_RATE: BytesPerSecond = 2**63 - 1
"""Kafka keeps rates as a signed 64-bit number of bytes/s."""


@dataclass(frozen=True, slots=True)
class Override:
    """One operator's rate, of the cluster or of one broker."""

    rate: BytesPerSecond
    """Bytes/s; 0 means that it is to be removed (so the original marks it)."""
    autoremove: bool = False
    """Whether the cluster's override ends when no reassignment is left; without effect on a broker's."""
    version: int = 0
    """The store's version of it: whoever removes it removes this version and no later one."""


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

    def keeping_unreadable(self, last: Overrides) -> Overrides:
        """Return these overrides with every unreadable one as it was last read."""
        cluster = last.cluster if None in self.unreadable else self.cluster
        kept = {b: last.brokers[b] for b in self.unreadable if b is not None and b in last.brokers}
        return replace(self, cluster=cluster, brokers={**self.brokers, **kept})


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
