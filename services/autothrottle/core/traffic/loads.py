"""The measured traffic and the capacity of the brokers' links.

A measurement carries the interval that it covers. Never subtract values of different intervals.

Values from outside have ranges, which only this module defines. `measured_utilization`, `is_byte_count` and `is_time`
check them where the values enter, `check_load` where a load enters or leaves a process. A value outside its range is a
problem of its broker alone. The type to know is `BrokerLoad`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TypeVar

from autothrottle.core.cluster.configs import MAX_BROKER_ID, ReplicaRole
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.core.units import MAX_RATE, BytesPerSecond

MAX_LINK_RATE: BytesPerSecond = 10**12
"""The largest traffic, speed and capacity of a link. No link is near 8 Tbit/s, so a larger value is an error."""

MAX_BYTES = 2**63 - 1
"""The largest counter of bytes and the largest size: Kafka and protobuf have signed 64-bit integers."""

MAX_SECONDS = 253_402_300_799.0
"""The latest time, seconds since the epoch: the end of the year 9999. Dates and protobuf end there."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of one broker's link in each direction, bytes/s, > 0."""

    outbound: BytesPerSecond
    inbound: BytesPerSecond
    origin: str = field(default="", compare=False, repr=False)
    """Where the value comes from, such as `--cap-map` or the speed of a device; "": unknown. It does not cross the
    wire."""

    def of(self, role: ReplicaRole) -> BytesPerSecond:
        """Return the direction that a role uses: a leader sends, a follower receives."""
        return self.outbound if role is ReplicaRole.LEADER else self.inbound


@dataclass(frozen=True, slots=True)
class Utilization:
    """The mean traffic of one direction of a link over an interval."""

    rate: BytesPerSecond
    """Bytes/s, >= 0."""
    start: datetime
    """Start of the interval, UTC."""
    end: datetime
    """End of the interval, UTC."""


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """Load and capacity of one broker; both directions are always known."""

    broker_id: int
    capacity: Capacity
    outbound: Utilization
    inbound: Utilization
    instance_type: str = ""
    """Instance type of its host; "": unknown."""

    def of(self, role: ReplicaRole) -> Utilization:
        """Return the direction that a role uses: a leader sends, a follower receives."""
        return self.outbound if role is ReplicaRole.LEADER else self.inbound


@dataclass(frozen=True)
class Loads:
    """One sample from the metrics source. The class has no slots, so that derived values are cached."""

    brokers: Mapping[int, BrokerLoad] = field(default_factory=dict)
    """Broker id -> its load; absent: see `problems`, or the source does not know the broker."""
    problems: Mapping[int, str] = field(default_factory=dict)
    """Broker id -> why it has no load: one sentence that names the cause and the fix."""
    warnings: tuple[str, ...] = ()
    """Problems that do not take a load from a known broker, for example a host without a broker id tag."""
    devices: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Broker id -> names of the network devices that count; absent: the source does not tell devices apart."""
    quota_rates: Mapping[LinkSide, Utilization] = field(default_factory=dict)
    """Link side -> its throttled replication, as the quota of the broker itself measures it; absent: not reported. It
    contains what in-sync replicas in the replica lists fetch."""

    @cached_property
    def traffic(self) -> Mapping[LinkSide, Utilization]:
        """Link side -> its traffic, for the brokers with a load."""
        return {(broker_id, role): load.of(role) for broker_id, load in self.brokers.items() for role in ReplicaRole}

    @cached_property
    def capacities(self) -> Mapping[LinkSide, BytesPerSecond]:
        """Link side -> its capacity, for the brokers with a load."""
        return {(b, role): load.capacity.of(role) for b, load in self.brokers.items() for role in ReplicaRole}


def is_byte_count(value: float) -> bool:
    """Whether a value is a number of bytes: 0 to 2^63-1, not NaN."""
    return 0 <= value <= MAX_BYTES


def is_time(seconds: float) -> bool:
    """Whether a value is a time in seconds since the epoch, from 1970 to 9999, not NaN."""
    return 0 <= seconds <= MAX_SECONDS


def measured_utilization(rate: float, start: float, end: float) -> Utilization:
    """Return a measurement.

    Args:
        rate: bytes/s.
        start: start of the interval, seconds since the epoch.
        end: end of the interval, seconds since the epoch.

    Raises:
        Invalid: a value is outside its range. The message is a predicate: "has a rate of ...".
    """
    if not 0 <= rate <= MAX_LINK_RATE:
        raise Invalid(
            f"has a rate of {rate:.4g} bytes/s; a link carries 0 to {MAX_LINK_RATE:.4g}. Fix: check its counters and "
            "the clock of the target"
        )
    if not (is_time(start) and is_time(end)):
        raise Invalid(f"has an interval from {start} to {end} s; give seconds since the epoch until the year 9999")
    return Utilization(round(rate), datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC))


def check_load(load: BrokerLoad) -> BrokerLoad:
    """Return a load that a message can hold.

    Raises:
        Invalid: a value is outside its range.
    """
    if not 0 <= load.broker_id <= MAX_BROKER_ID:
        raise Invalid(f"{load.broker_id} is not a broker id; it must be in 0..{MAX_BROKER_ID}")
    for role in ReplicaRole:
        capacity, measured = load.capacity.of(role), load.of(role)
        if not 1 <= capacity <= MAX_RATE:
            raise Invalid(f"broker {load.broker_id} has a capacity of {capacity} bytes/s; it must be in 1..2^63-1")
        if not 0 <= measured.rate <= MAX_RATE:
            raise Invalid(f"broker {load.broker_id} has a rate of {measured.rate} bytes/s; it must be in 0..2^63-1")
        if measured.start > measured.end:
            raise Invalid(f"broker {load.broker_id} has a measurement that ends at {measured.end}, before its start")
    return load


def by_broker(broker_ids: Iterable[int], read: Callable[[int], _Value]) -> tuple[dict[int, _Value], dict[int, str]]:
    """Return broker id -> its value, and broker id -> why it has none. Any error concerns its own broker alone."""
    values: dict[int, _Value] = {}
    problems: dict[int, str] = {}
    for broker_id in broker_ids:
        try:
            values[broker_id] = read(broker_id)
        except AutothrottleError as error:
            problems[broker_id] = str(error)
        except Exception as error:  # a value that no check expects must not take the loads from the other brokers
            problems[broker_id] = (
                f"broker {broker_id} has metrics that cannot be read ({type(error).__name__}: {error}); "
                "the other brokers are not affected. Fix: check its exporter, and report this error"
            )
    return values, problems
