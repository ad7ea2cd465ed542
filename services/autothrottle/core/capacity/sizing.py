"""How many brokers of an instance type a workload needs: the largest count over all limits of a broker.

A topic gets the ceiling of the broker count that its largest dimension needs. Replicas, leaders and consumers are
assumed to be even over the brokers. `sizing` is the function to know.

Source: "Kafka Data Placement and Capacity Planning" (capacity units); KIP-73 for the time to copy a lost broker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from autothrottle.core.errors import Invalid
from autothrottle.core.scoring.score import LinkSideDemand, available_rate, bound_seconds

MOST_BROKERS = 10_000
"""Largest count that is tried."""

FACTORS = (1.5, 2.0)
"""`capacity_plan` multiplies each input by these, one at a time."""

_ROUNDING = 1e-9
"""Share of a broker that counts as a rounding error."""


class Dimension(StrEnum):
    """A limit of a broker, or of the whole cluster, that asks for a number of brokers."""

    STORAGE = "storage"
    NETWORK_IN = "network in"
    NETWORK_OUT = "network out"
    DISK = "disk"
    PARTITIONS = "partitions"
    REPLICATION = "replication"
    """Each replica of a partition needs a broker of its own."""
    RECOVERY = "recovery"

    @property
    def key(self) -> str:
        """Its name in JSON, in messages and in labels of metrics, such as `network_in`."""
        return self.name.lower()


class Loss(StrEnum):
    """What may fail while clients are served."""

    NONE = "none"
    BROKER = "broker"
    RACK = "rack"


class CopyTarget(StrEnum):
    """The brokers that receive the replicas of the lost ones."""

    REPLACEMENT = "replacement"
    """One new broker for each lost one."""
    SURVIVORS = "survivors"


@dataclass(frozen=True, slots=True)
class Workload:
    """The data that clients write and read, over all topics of a capacity unit."""

    bytes_in: float
    """Produced at peak, without replication, bytes/s, > 0."""
    retention: timedelta
    mean_bytes_in: float | None = None
    """Produced on average, bytes/s; it fills the storage. None: as at peak."""
    fan_out: float = 1.0
    """Bytes that consumers read for each byte produced, >= 0."""
    replication: int = 3
    partitions: int = 0
    """0: not known, so they need no broker."""
    growth: float = 0.0
    """Growth of what is produced in one month, as a share: 0.05 for 5 %."""
    months: float = 0.0
    """Time for which the brokers shall suffice."""

    @property
    def peak(self) -> float:
        """Produced at peak after the growth, bytes/s."""
        return self.bytes_in * self._factor

    @property
    def stored(self) -> float:
        """Bytes of one replica of everything that is retained after the growth."""
        mean = self.bytes_in if self.mean_bytes_in is None else self.mean_bytes_in
        return mean * self._factor * self.retention.total_seconds()

    @property
    def _factor(self) -> float:
        try:
            return float((1 + self.growth) ** self.months)
        except OverflowError:
            growth = f"growth of {self.growth:.0%} per month for {self.months:g} months"
            raise Invalid(f"{growth} is too large; give fewer months, or a smaller growth") from None


@dataclass(frozen=True, slots=True)
class InstanceType:
    """What one broker of this type offers."""

    name: str
    storage: float
    """Bytes."""
    network_in: float
    """Bytes/s, as `network_out` and `disk`."""
    network_out: float
    disk: float
    """Throughput of its disks."""
    price: float
    """Per month."""


@dataclass(frozen=True, slots=True)
class UsableShares:
    """The share of each resource that may be used without a failure, in (0, 1], and the partitions of a broker."""

    storage: float = 0.8
    network_in: float = 0.8
    network_out: float = 0.8
    disk: float = 0.8
    partitions: int = 4000


@dataclass(frozen=True, slots=True)
class RecoveryGoal:
    """A loss that the brokers survive, and the time in which its replicas exist again."""

    loss: Loss = Loss.BROKER
    racks: int = 3
    """Racks over which the brokers are spread; a lost rack takes `ceil(brokers / racks)` of them."""
    copy_target: CopyTarget = CopyTarget.REPLACEMENT
    within: timedelta = timedelta(hours=4)
    max_ratio: float = 0.9
    """Share of the headroom that replication may take, in (0, 1]; `--max-rate` of the planner."""

    def lost(self, brokers: int) -> int:
        """Return the number of brokers that are lost together."""
        return {Loss.NONE: 0, Loss.BROKER: 1, Loss.RACK: math.ceil(brokers / self.racks)}[self.loss]


_MAX_RATE = 1e15
"""Bytes per second; larger rates were probably given in another unit."""
_RATE = (1, _MAX_RATE)
_SHARE = (0.001, 1)
_MAX_TIME = timedelta(days=3660)

_RANGES: Mapping[type, Mapping[str, tuple[float, float]]] = {
    Workload: {
        "bytes_in": _RATE,
        "mean_bytes_in": (0, _MAX_RATE),
        "fan_out": (0, 10_000),
        "replication": (1, 100),
        "partitions": (0, 2**31),
        "growth": (0, 10),
        "months": (0, 240),
    },
    InstanceType: {
        "storage": (1, 1e18),
        **dict.fromkeys(("network_in", "network_out", "disk"), _RATE),
        "price": (0, 1e12),
    },
    UsableShares: {
        **dict.fromkeys(("storage", "network_in", "network_out", "disk"), _SHARE),
        "partitions": (1, 2**31),
    },
    RecoveryGoal: {"racks": (1, 10_000), "max_ratio": _SHARE},
}
"""Type -> field -> the range of its value."""


def check_inputs(
    workload: Workload,
    instances: Iterable[InstanceType],
    shares: UsableShares,
    goal: RecoveryGoal,
    name: Callable[[type, str], str],
) -> None:
    """Check the inputs of `capacity_plan`. `name` returns how the caller spells a field of one of their types.

    Raises:
        Invalid: a value is out of its range, or the mean is above the peak.
    """
    for value in (workload, *instances, shares, goal):
        kind = type(value)
        for field, (least, most) in _RANGES[kind].items():
            number = getattr(value, field)
            if number is not None and not least <= number <= most:
                raise Invalid(f"{name(kind, field)} {number:g} must be in [{least:g}, {most:g}]; correct it")
    if workload.mean_bytes_in is not None and workload.mean_bytes_in > workload.bytes_in:
        mean, peak = name(Workload, "mean_bytes_in"), name(Workload, "bytes_in")
        raise Invalid(f"{mean} {workload.mean_bytes_in:g} must be at most {peak}, which is the peak")
    for kind, field, time in ((Workload, "retention", workload.retention), (RecoveryGoal, "within", goal.within)):
        if not timedelta() < time <= _MAX_TIME:
            field, limit = name(kind, field), _MAX_TIME.total_seconds()
            raise Invalid(f"{field} of {time.total_seconds():g} s must be in (0, {limit:g}]; give 86400 s for a day")


@dataclass(frozen=True, slots=True)
class BrokerUse:
    """What one broker carries, bytes and bytes/s."""

    storage: float
    network_in: float
    network_out: float
    disk: float
    partitions: float


@dataclass(frozen=True, slots=True)
class Sizing:
    """The brokers of one instance type that a workload needs."""

    instance: InstanceType
    counts: Mapping[Dimension, int]
    """The brokers that each limit alone needs."""
    brokers: int
    recovery_seconds: float
    """From the start of the copy, with this number of brokers; 0: no loss is planned for."""

    @property
    def limit(self) -> Dimension:
        """The dimension that needs the most brokers."""
        return max(self.counts, key=self.counts.__getitem__)

    @property
    def price(self) -> float:
        """Per month, of all brokers."""
        return self.brokers * self.instance.price


def broker_use(workload: Workload, brokers: int, lost: int = 0) -> BrokerUse:
    """Return what each broker carries; with lost brokers, what each survivor carries before anything is copied.

    Each replica receives what is produced. A leader sends it to its followers and to the consumers:
    `in = produced * replication / brokers`, `out = produced * (replication - 1 + fan_out) / brokers`. The survivors
    also lead the partitions of the lost brokers, so all consumers read from them.

    >>> use = broker_use(Workload(100e6, timedelta(hours=1), fan_out=2, replication=3), brokers=10)
    >>> use.network_in, use.network_out, use.storage
    (30000000.0, 40000000.0, 108000000000.0)
    """
    replicas = workload.replication / brokers
    leaders = 1 / (brokers - lost)
    received = workload.peak * replicas
    return BrokerUse(
        storage=workload.stored * replicas,
        network_in=received,
        network_out=workload.peak * leaders * workload.fan_out + max(received - workload.peak * leaders, 0.0),
        disk=received,
        partitions=workload.partitions * replicas,
    )


def recovery_seconds(workload: Workload, instance: InstanceType, brokers: int, goal: RecoveryGoal) -> float:
    """Return the time to copy all replicas of the lost brokers while clients are served; inf: it never ends.

    It is the planner's own bound: the slowest link side, or the slowest disk, at `max_ratio` of what clients leave.
    What is produced in the meantime is copied, too.
    """
    lost = goal.lost(brokers)
    survivors = brokers - lost
    if not lost:
        return 0.0
    if survivors < 1:
        return math.inf
    use = broker_use(workload, brokers, lost)
    is_replaced = goal.copy_target is CopyTarget.REPLACEMENT
    receivers, client_in = (lost, 0.0) if is_replaced else (survivors, use.network_in)

    def demand(copies_per_broker: float, capacity: float, client: float, ratio: float) -> LinkSideDemand:
        size, growth = copies_per_broker * use.storage, copies_per_broker * use.network_in
        return LinkSideDemand(size, [(math.inf, available_rate(capacity, client, ratio, 0.0))], growth)

    return bound_seconds(
        [
            demand(lost / receivers, instance.network_in, client_in, goal.max_ratio),
            demand(lost / receivers, instance.disk, client_in, 1.0),
            demand(lost / survivors, instance.network_out, use.network_out, goal.max_ratio),
        ]
    )


def sizing(workload: Workload, instance: InstanceType, shares: UsableShares, goal: RecoveryGoal) -> Sizing:
    """Return the fewest brokers of an instance type that carry the workload, survive the loss and recover in time.

    Raises:
        Invalid: the replicas do not survive the loss, or more than `MOST_BROKERS` would be needed.
    """
    if goal.loss is not Loss.NONE and workload.replication < 2:
        raise Invalid("1 replica does not survive a loss. Fix: a replication factor of 2 or more, or survive nothing")
    if goal.loss is Loss.RACK and goal.racks < 2:
        raise Invalid("the only rack cannot be lost. Fix: 2 racks or more, or survive the loss of one broker")
    received = workload.peak * workload.replication
    sent = workload.peak * (workload.replication - 1 + workload.fan_out)
    counts = {
        Dimension.STORAGE: _ceiling(workload.stored * workload.replication, shares.storage * instance.storage),
        Dimension.NETWORK_IN: _ceiling(received, shares.network_in * instance.network_in),
        Dimension.NETWORK_OUT: _ceiling(sent, shares.network_out * instance.network_out),
        Dimension.DISK: _ceiling(received, shares.disk * instance.disk),
        Dimension.PARTITIONS: _ceiling(workload.partitions * workload.replication, shares.partitions),
        Dimension.REPLICATION: workload.replication,
    }
    # Before the search from 1 broker on: it refuses at once what needs too many brokers for another reason.
    brokers = _first_that_recovers(max(counts.values()), workload, instance, shares, goal)
    counts[Dimension.RECOVERY] = _first_that_recovers(1, workload, instance, shares, goal)
    # A rack takes a whole number of brokers, so a larger cluster may need longer than a smaller one.
    if brokers > max(counts.values()):
        counts[Dimension.RECOVERY] = brokers
    return Sizing(instance, counts, brokers, recovery_seconds(workload, instance, brokers, goal))


def _ceiling(need: float, offer: float) -> int:
    return max(math.ceil(min(need / offer, MOST_BROKERS + 1) - _ROUNDING), 1)


def _first_that_recovers(
    least: int, workload: Workload, instance: InstanceType, shares: UsableShares, goal: RecoveryGoal
) -> int:
    """Return the smallest count, at least `least`, that recovers in time and then holds all replicas.

    Survivors need the storage for them, and a broker for each replica of a partition.
    """
    storage_count = workload.stored * workload.replication / (shares.storage * instance.storage) - _ROUNDING
    holders = max(storage_count, workload.replication)
    for brokers in range(least, MOST_BROKERS + 1):
        survivors = brokers - goal.lost(brokers)
        is_stored = goal.copy_target is CopyTarget.REPLACEMENT or survivors == brokers or survivors >= holders
        if is_stored and recovery_seconds(workload, instance, brokers, goal) <= goal.within.total_seconds():
            return brokers
    raise Invalid(
        f"{instance.name}: more than {MOST_BROKERS} brokers would be needed; check the units of the workload and of "
        "the instance type, or allow a longer recovery"
    )


def larger_workloads(workload: Workload, factor: float) -> Mapping[str, Workload]:
    """Return input -> the workload with this input multiplied by a factor; whole numbers are rounded up."""
    mean = None if workload.mean_bytes_in is None else factor * workload.mean_bytes_in
    larger = {
        "bytes-in": replace(workload, bytes_in=factor * workload.bytes_in, mean_bytes_in=mean),
        "fan-out": replace(workload, fan_out=factor * workload.fan_out),
        "retention": replace(workload, retention=factor * workload.retention),
        "replication": replace(workload, replication=math.ceil(factor * workload.replication)),
        "partitions": replace(workload, partitions=math.ceil(factor * workload.partitions)),
        "growth": replace(workload, growth=factor * workload.growth),
    }
    return {name: changed for name, changed in larger.items() if changed != workload}


def cheapest(sizings: Sequence[Sizing]) -> Sizing:
    """Return the sizing with the lowest price; of equal ones, the one with the fewest brokers."""
    return min(sizings, key=lambda sizing: (sizing.price, sizing.brokers, sizing.instance.name))


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The brokers that a workload needs, for each instance type."""

    workload: Workload
    sizings: tuple[Sizing, ...]
    """In the order of the instance types, without those of which too many would be needed."""
    larger: Mapping[str, tuple[Sizing | None, ...]]
    """Input -> the cheapest choice with this input at each of `FACTORS` times its value; None: no type suffices."""
    notes: tuple[str, ...] = ()

    @property
    def cheapest(self) -> Sizing:
        return cheapest(self.sizings)


def capacity_plan(
    workload: Workload, instances: Sequence[InstanceType], shares: UsableShares, goal: RecoveryGoal
) -> CapacityPlan:
    """Return the brokers that a workload needs, also with one input at a time larger.

    Raises:
        Invalid: no instance type suffices.
    """

    def sized(workload: Workload) -> tuple[list[Sizing], list[str]]:
        sizings, problems = [], []
        for instance in instances:
            try:
                sizings.append(sizing(workload, instance, shares, goal))
            except Invalid as error:
                problems.append(str(error))
        return sizings, problems

    def choice(workload: Workload) -> Sizing | None:
        sizings, _ = sized(workload)
        return cheapest(sizings) if sizings else None

    sizings, problems = sized(workload)
    if not sizings:
        raise Invalid(problems[0])
    workloads = {factor: larger_workloads(workload, factor) for factor in FACTORS}
    larger = {name: tuple(choice(workloads[factor][name]) for factor in FACTORS) for name in workloads[FACTORS[0]]}
    return CapacityPlan(workload, tuple(sizings), larger, tuple(problems))
