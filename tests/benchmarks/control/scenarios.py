"""The scenarios: brokers, flows, and the client load of every second.

The parameters, and the order of random draws, are those of the study that chose the policy. So a seed gives the same
scenario there and here. Arrays of link sides hold the outbound side of every broker first, then the inbound sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Random = np.random.Generator
FlowSpec = tuple[int, int, float]
"""(leader, follower, relative size)."""

BEFORE = 1200
"""Seconds of every scenario before the reassignment starts."""
SECONDS = BEFORE + 12 * 3600
GIGABIT = 125.0
"""MB/s."""
BLOCK = 10
"""Seconds. Shortest time over which a throttle acts; budgets are means over it."""
RATIO = 0.9


@dataclass(frozen=True)
class Shape:
    """The parameters of a scenario, before its sizes are computed."""

    links: Array
    """Link capacity of each broker, MB/s."""
    flows: list[FlowSpec]
    hours: float = 1.5
    """Desired bound at 90 % of the headroom, hours."""
    empty: tuple[int, ...] = ()
    """New brokers, without clients."""
    utilization: float = 0.45
    """Share of the outbound links that clients use."""
    copies: float = 1.0
    """In-sync replication: bytes received per byte produced, for each of two followers."""
    in_sync: int = 2
    """In-sync followers of each partition in reassignment."""
    spread: float = 0.2
    """Spread of the load over brokers (sigma of a lognormal distribution)."""
    swing: float = 0.0
    """Relative amplitude of the daily load wave."""
    spikes_per_hour: float = 0.0
    catch_up: bool = False
    """Whether consumers sometimes return and read their backlog."""
    hot: int | None = None
    """Broker whose clients use 72 % of its outbound link."""
    min_rate: float = 10.0
    """MB/s."""
    retention_hours: float = 48.0
    """Hours in which producers append the size of a partition."""
    is_tiny: bool = False
    """Small links: lower spikes, a faster wave, and client demand may exceed the capacity."""


@dataclass(frozen=True)
class Scenario:
    """One scenario with one seed. Link sides: outbound of every broker, then inbound of every broker."""

    name: str
    seed: int
    shape: Shape
    capacity: Array
    """[link sides] MB/s."""
    offered: NDArray[np.float32]
    """[seconds, link sides] client demand with in-sync replication, MB/s."""
    alone: NDArray[np.float32]
    """[seconds, link sides] client traffic without a reassignment, MB/s. Equals the demand below the capacity."""
    produced: NDArray[np.float32]
    """[seconds, brokers] produce rate of the partitions that the broker leads, MB/s."""
    source: NDArray[np.int64]
    """[flows] index of the outbound link side of the leader."""
    target: NDArray[np.int64]
    """[flows] index of the inbound link side of the follower."""
    size: Array
    """[flows] MB to copy at the start of the reassignment."""
    growth: Array
    """[flows] produce rate, MB/s."""
    bound: float
    """Shortest duration at 90 % of the headroom, seconds."""

    @property
    def brokers(self) -> int:
        return len(self.capacity) // 2


def links(count: int, gigabits: float = 10) -> Array:
    return np.full(count, gigabits * GIGABIT)


def few_of_all(random: Random, brokers: int, each: int, sigma: float) -> list[FlowSpec]:
    """Every broker sends to up to `each` other brokers."""
    return [
        (i, int(j), random.lognormal(0, sigma))
        for i in range(brokers)
        for j in random.permutation(brokers)[:each]
        if i != j
    ]


def replace_broker(random: Random, spikes: float = 0.0) -> Shape:
    flows = [(i, 11, random.lognormal(0, 0.3)) for i in range(11)]
    return Shape(links(12), flows, empty=(11,), copies=1 - 1 / 12, in_sync=1, spikes_per_hour=spikes)


def scale_up(random: Random) -> Shape:
    flows = [(i, j, random.lognormal(0, 0.3)) for i in range(12) for j in (12, 13, 14)]
    return Shape(links(15), flows, empty=(12, 13, 14))


def scale_down(random: Random) -> Shape:
    flows = [(i, j, random.lognormal(0, 0.6) * (4 if i >= 10 else 1)) for i in range(12) for j in range(10) if i != j]
    return Shape(links(12), flows)


def rebalance(random: Random) -> Shape:
    full = random.permutation(18)[:6]
    low = [b for b in range(18) if b not in full]
    flows: list[FlowSpec] = []
    for _ in range(60):
        i, j = int(random.integers(18)), low[random.integers(12)]
        if i != j and not any(f[0] == i and f[1] == j for f in flows):
            flows.append((i, j, random.lognormal(0, 1.2) * (2 if i in full else 1)))
    return Shape(links(18), flows)


def rack_loss(random: Random) -> Shape:
    flows = [(i, j, random.lognormal(0, 0.4)) for i in range(12) for j in range(12, 18)]
    return Shape(links(18), flows, hours=2.5, empty=tuple(range(12, 18)), copies=0.5, in_sync=1)


def mixed_links(random: Random) -> Shape:
    capacity = np.asarray(random.permutation(np.r_[links(6, 5), links(6, 10), links(4, 25)]), float)
    flows = [
        (i, int(j), random.lognormal(0, 0.7) * np.sqrt(capacity[i] * capacity[j]) / 1000)
        for i in range(16)
        for j in random.permutation(16)[:5]
        if i != j
    ]
    return Shape(capacity, flows)


def diurnal(random: Random) -> Shape:
    flows = [(i, j, random.lognormal(0, 0.4)) for i in range(10) for j in (10, 11)]
    flows += [(i, (i + 3) % 10, random.lognormal(0, 0.6) * 0.8) for i in range(10)]
    return Shape(links(12), flows, hours=6, empty=(10, 11), utilization=0.36, swing=0.45, retention_hours=120)


def spikes(random: Random) -> Shape:
    return Shape(links(12), few_of_all(random, 12, 4, 0.6), hours=2, spikes_per_hour=4)


def catch_up(random: Random) -> Shape:
    return Shape(links(12), few_of_all(random, 12, 4, 0.6), hours=2, catch_up=True)


def hot_leader(random: Random) -> Shape:
    flows = [(i, 9, random.lognormal(0, 0.3)) for i in range(9)]
    flows += [(0, j, random.lognormal(0, 0.3) * 0.5) for j in range(1, 9)]
    return Shape(links(10), flows, empty=(9,), hot=0)


def tiny(random: Random) -> Shape:
    return Shape(
        links(6, 1),
        few_of_all(random, 6, 3, 0.5),
        hours=3,
        utilization=0.70,
        spread=0.12,
        swing=0.08,
        spikes_per_hour=1,
        min_rate=2.0,
        is_tiny=True,
    )


def large(random: Random) -> Shape:
    capacity = np.asarray(random.permutation(np.r_[links(10, 10), links(20, 25)]), float)
    empty = (26, 27, 28, 29)
    flows = [
        (i, int(j), random.lognormal(0, 0.8) * (3 if j in empty else 1))
        for i in range(30)
        for j in random.permutation(30)[:7]
        if i != j
    ]
    return Shape(capacity, flows, empty=empty)


def critical(random: Random) -> Shape:
    """Few flows and several bottlenecks: the worst case for fair sharing."""
    sizes = [(0, 1, 4.0), *((0, j, 0.25) for j in range(2, 10)), (2, 1, 3.0), (3, 1, 1.0), (2, 4, 1.5), (3, 4, 2.5)]
    sizes += [(5, 4, 1.0), (5, 6, 3.0), (7, 6, 2.0), (7, 8, 2.5), (9, 8, 2.0)]
    return Shape(links(10), [(i, j, size * random.lognormal(0, 0.15)) for i, j, size in sizes])


def calm(random: Random) -> Shape:
    flows = [(i, 7, random.lognormal(0, 0.3)) for i in range(7)]
    return Shape(links(8), flows, empty=(7,), utilization=0.15)


SHAPES: dict[str, Callable[[Random], Shape]] = {
    "replace": replace_broker,
    "scaleup": scale_up,
    "scaledown": scale_down,
    "rebalance": rebalance,
    "rackloss": rack_loss,
    "mixed": mixed_links,
    "diurnal": diurnal,
    "spikes": spikes,
    "catchup": catch_up,
    "hotleader": hot_leader,
    "tiny": tiny,
    "large": large,
    "critical": critical,
    "calm": calm,
    "replace_spike": lambda random: replace_broker(random, 3),
}
CONSUMER_FANOUT = 2.0
"""How often consumers read each produced byte, on average."""
SURPRISES = frozenset({"spikes", "catchup", "replace_spike"})
"""Scenarios with load that cannot be predicted."""


def scenario(name: str, seed: int) -> Scenario:
    """Return the scenario with this name and seed."""
    random = np.random.default_rng([seed, _number_of(name)])
    shape = SHAPES[name](random)
    offered, produced = _clients(shape, random)
    capacity = np.r_[shape.links, shape.links]
    alone = queued(offered, capacity)
    source = np.array([flow[0] for flow in shape.flows], np.int64)
    target = np.array([flow[1] for flow in shape.flows], np.int64) + len(shape.links)
    relative = np.array([flow[2] for flow in shape.flows])
    budgets = _budgets(alone, capacity, shape.min_rate)
    size, bound = _sized(relative, source, target, budgets, shape)
    growth = size / (shape.retention_hours * 3600)
    return Scenario(name, seed, shape, capacity, offered, alone, produced, source, target, size, growth, bound)


def _number_of(name: str) -> int:
    number = 7
    for letter in name:
        number = (number * 31 + ord(letter)) % 1_000_003
    return number


def _noise(random: Random, count: int, sigma: float, seconds: float) -> Array:
    """Noise around 0 whose correlation decays over `seconds`."""
    from scipy.signal import lfilter  # takes 1.5 s, and most tests do not need it

    decay = np.exp(-1.0 / seconds)
    steps = random.standard_normal((SECONDS, count)) * sigma * np.sqrt(1 - decay * decay)
    noise: Array = lfilter([1], [1, -decay], steps, axis=0)
    noise += (random.standard_normal(count) * sigma)[None, :] * (decay ** np.arange(SECONDS))[:, None]
    return noise


def _clients(shape: Shape, random: Random) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the client demand [seconds, link sides] and the produce rate [seconds, brokers], both MB/s."""
    brokers, capacity = len(shape.links), shape.links
    followers, fan_out = 2 * shape.copies, CONSUMER_FANOUT
    base = shape.utilization * capacity / 4.0 * np.clip(random.lognormal(0, shape.spread, brokers), 0.6, 1.5)
    base[list(shape.empty)] = 0
    is_rising = shape.swing > 0 and not shape.is_tiny
    phase = random.uniform(-1.3, -0.2) if is_rising else random.uniform(-3, 3)
    days = np.arange(SECONDS) / 86400 * (8 if shape.is_tiny else 1)
    wave = 1 + shape.swing * np.sin(2 * np.pi * days + phase)
    common = _noise(random, 1, 0.02, 600)
    producing = 1 + common + _noise(random, brokers, 0.035, 300) + _noise(random, brokers, 0.03, 3)
    consuming = 1 + _noise(random, brokers, 0.035, 300) + _noise(random, brokers, 0.04, 3)
    surges = _spikes(shape, random) if shape.spikes_per_hour else np.ones((SECONDS, brokers))
    backlog_reads = _catching_up(shape, random) if shape.catch_up else np.zeros((SECONDS, brokers))
    produced = base * np.clip(producing, 0.2, None) * surges * wave[:, None]
    if shape.hot is not None:
        produced[:, shape.hot] *= 0.72 * capacity[shape.hot] / ((followers + fan_out) * base[shape.hot])
    alive = np.array([b not in shape.empty for b in range(brokers)], float)
    mean = produced.sum(1) / max(1, brokers - len(shape.empty))
    received = produced + followers * mean[:, None] * alive
    sent = (followers + fan_out * np.clip(consuming, 0.2, None)) * produced + backlog_reads
    offered = np.hstack([sent, received])
    if not shape.is_tiny:
        offered = np.minimum(offered, 0.999 * np.r_[capacity, capacity])
    return np.ascontiguousarray(offered, np.float32), produced.astype(np.float32)


def _spikes(shape: Shape, random: Random) -> Array:
    """[seconds, brokers] factors of the produce rate. Spikes last some minutes, on all brokers or on a sixth."""
    brokers = len(shape.links)
    factors = np.ones((SECONDS, brokers))
    for _ in range(random.poisson(shape.spikes_per_hour * SECONDS / 3600)):
        start, length = int(random.uniform(0, SECONDS)), int(random.uniform(180, 600))
        height = random.uniform(0.2, 0.4) if shape.is_tiny else random.uniform(0.5, 1.5)
        everywhere = random.random() < 0.3
        affected = np.arange(brokers) if everywhere else random.permutation(brokers)[: max(1, brokers // 6)]
        if len(affected) == brokers:
            height *= 0.6
        profile, ramp = np.ones(length), min(20, length // 4)
        profile[:ramp], profile[-ramp:] = np.linspace(0, 1, ramp), np.linspace(1, 0, ramp)
        end = min(SECONDS, start + length)
        factors[start:end, affected] += height * profile[: end - start, None]
    return factors


def _catching_up(shape: Shape, random: Random) -> Array:
    """[seconds, brokers] additional consumer reads, MB/s: each hour from a third of the brokers."""
    brokers = len(shape.links)
    extra = np.zeros((SECONDS, brokers))
    for hour in range(SECONDS // 3600):
        start, length = int(hour * 3600 + random.uniform(0, 2400)), int(random.uniform(900, 2400))
        affected = random.permutation(brokers)[: brokers // 3]
        end = min(SECONDS, start + length)
        extra[start:end, affected] += random.uniform(0.25, 0.45) * shape.links[affected]
    return extra


def queued(offered: NDArray[np.float32], capacity: Array) -> NDArray[np.float32]:
    """Return the client traffic on overloaded links. Deferred bytes wait and follow within some seconds."""
    if not (offered > capacity).any():
        return offered
    got, waiting = np.empty_like(offered), np.zeros(offered.shape[1])
    for second in range(offered.shape[0]):
        carried = np.minimum(offered[second] + waiting / 10.0, capacity)
        got[second] = carried
        waiting = np.maximum(0, waiting + offered[second] - carried)
    return got


def _budgets(alone: NDArray[np.float32], capacity: Array, min_rate: float) -> Array:
    """[seconds of the reassignment, link sides] MB/s that replication may use."""
    load = alone[BEFORE:].astype(float)
    blocks = load.shape[0] // BLOCK
    means = load[: blocks * BLOCK].reshape(blocks, BLOCK, -1).mean(axis=1)
    budgets: Array = np.maximum(RATIO * np.maximum(0, capacity - np.repeat(means, BLOCK, axis=0)), min_rate)
    return budgets


def _sized(
    relative: Array, source: NDArray[np.int64], target: NDArray[np.int64], budgets: Array, shape: Shape
) -> tuple[Array, float]:
    """Return flow sizes that give the desired bound, and this bound in seconds."""
    sides = budgets.shape[1]
    share = np.bincount(source, relative, sides) + np.bincount(target, relative, sides)
    used = np.flatnonzero(share)
    carried, seconds = np.cumsum(budgets[:, used], axis=0), np.arange(1, budgets.shape[0] + 1)[:, None]
    retention = shape.retention_hours * 3600

    def bound(scale: float) -> float:
        wanted = share[used] * scale
        enough = carried - wanted / retention * seconds >= wanted
        first = np.where(enough.any(axis=0), enough.argmax(axis=0), budgets.shape[0])
        return float(first.max())

    low, high = 1.0, 1e9
    for _ in range(40):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if bound(middle) < shape.hours * 3600 else (low, middle)
    return relative * low, bound(low)
