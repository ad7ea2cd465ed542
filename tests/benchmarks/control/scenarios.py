"""The scenarios: brokers, flows, and what clients offer second by second.

The numbers, and the order in which chance is asked, are those of the study that chose the policy, so that a seed means
the same there and here. Ports are the directions of the links: tx of every broker first, then rx.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

Array = NDArray[np.float64]
Chance = np.random.Generator
FlowSpec = tuple[int, int, float]
"""(leader, destination, relative size)."""

BEFORE = 1200
"""Seconds of every scenario before the move begins."""
SECONDS = BEFORE + 12 * 3600
GIGABIT = 125.0
"""MB/s."""
BLOCK = 10
"""Seconds over which a throttle acts at best: budgets are means of so many."""
RATIO = 0.9


@dataclass(frozen=True)
class Shape:
    """What a scenario is before any size is known."""

    links: Array
    """MB/s, one for each broker."""
    flows: list[FlowSpec]
    hours: float = 1.5
    """What the bound at 90 % of the headroom shall be."""
    empty: tuple[int, ...] = ()
    """Brokers without clients: they are new."""
    utilization: float = 0.45
    """Of the outbound links by clients."""
    copies: float = 1.0
    """In-sync replication between the brokers: bytes in for a byte produced, for each of two followers."""
    in_sync: int = 2
    """Followers in sync of each partition that moves."""
    spread: float = 0.2
    """Of the load between brokers (lognormal sigma)."""
    swing: float = 0.0
    """Amplitude of the daily wave, relative."""
    spikes_per_hour: float = 0.0
    catch_up: bool = False
    """Whether consumers come back now and then and read what they have missed."""
    hot: int | None = None
    """The broker that sends 72 % of its link."""
    min_rate: float = 10.0
    """MB/s."""
    retention_hours: float = 48.0
    """In which so much is produced to a partition as it holds."""
    is_tiny: bool = False
    """Small links: smaller spikes, a quicker wave, and clients may want more than there is."""


@dataclass(frozen=True)
class Scenario:
    """One scenario of one seed."""

    name: str
    seed: int
    shape: Shape
    capacity: Array
    """[ports] MB/s."""
    offered: NDArray[np.float32]
    """[seconds, ports] what clients offer, in-sync replication included."""
    alone: NDArray[np.float32]
    """[seconds, ports] what they get without any move: the same unless they ask for more than there is."""
    produced: NDArray[np.float32]
    """[seconds, brokers] what is produced to the partitions that each leads."""
    source: NDArray[np.int64]
    """[flows] port of the leader."""
    target: NDArray[np.int64]
    """[flows] port of the destination."""
    size: Array
    """[flows] MB to be copied when the move begins."""
    growth: Array
    """[flows] MB/s."""
    bound: float
    """Seconds at 90 % of the headroom."""

    @property
    def brokers(self) -> int:
        return len(self.capacity) // 2


def links(count: int, gigabits: float = 10) -> Array:
    return np.full(count, gigabits * GIGABIT)


def few_of_all(chance: Chance, brokers: int, each: int, sigma: float) -> list[FlowSpec]:
    """Every broker sends to some others."""
    return [
        (i, int(j), chance.lognormal(0, sigma))
        for i in range(brokers)
        for j in chance.permutation(brokers)[:each]
        if i != j
    ]


def replace_broker(chance: Chance, spikes: float = 0.0) -> Shape:
    flows = [(i, 11, chance.lognormal(0, 0.3)) for i in range(11)]
    return Shape(links(12), flows, empty=(11,), copies=1 - 1 / 12, in_sync=1, spikes_per_hour=spikes)


def scale_up(chance: Chance) -> Shape:
    flows = [(i, j, chance.lognormal(0, 0.3)) for i in range(12) for j in (12, 13, 14)]
    return Shape(links(15), flows, empty=(12, 13, 14))


def scale_down(chance: Chance) -> Shape:
    flows = [(i, j, chance.lognormal(0, 0.6) * (4 if i >= 10 else 1)) for i in range(12) for j in range(10) if i != j]
    return Shape(links(12), flows)


def rebalance(chance: Chance) -> Shape:
    full = chance.permutation(18)[:6]
    low = [b for b in range(18) if b not in full]
    flows: list[FlowSpec] = []
    for _ in range(60):
        i, j = int(chance.integers(18)), low[chance.integers(12)]
        if i != j and not any(f[0] == i and f[1] == j for f in flows):
            flows.append((i, j, chance.lognormal(0, 1.2) * (2 if i in full else 1)))
    return Shape(links(18), flows)


def rack_loss(chance: Chance) -> Shape:
    flows = [(i, j, chance.lognormal(0, 0.4)) for i in range(12) for j in range(12, 18)]
    return Shape(links(18), flows, hours=2.5, empty=tuple(range(12, 18)), copies=0.5, in_sync=1)


def mixed_links(chance: Chance) -> Shape:
    capacity = np.asarray(chance.permutation(np.r_[links(6, 5), links(6, 10), links(4, 25)]), float)
    flows = [
        (i, int(j), chance.lognormal(0, 0.7) * np.sqrt(capacity[i] * capacity[j]) / 1000)
        for i in range(16)
        for j in chance.permutation(16)[:5]
        if i != j
    ]
    return Shape(capacity, flows)


def diurnal(chance: Chance) -> Shape:
    flows = [(i, j, chance.lognormal(0, 0.4)) for i in range(10) for j in (10, 11)]
    flows += [(i, (i + 3) % 10, chance.lognormal(0, 0.6) * 0.8) for i in range(10)]
    return Shape(links(12), flows, hours=6, empty=(10, 11), utilization=0.36, swing=0.45, retention_hours=120)


def spikes(chance: Chance) -> Shape:
    return Shape(links(12), few_of_all(chance, 12, 4, 0.6), hours=2, spikes_per_hour=4)


def catch_up(chance: Chance) -> Shape:
    return Shape(links(12), few_of_all(chance, 12, 4, 0.6), hours=2, catch_up=True)


def hot_leader(chance: Chance) -> Shape:
    flows = [(i, 9, chance.lognormal(0, 0.3)) for i in range(9)]
    flows += [(0, j, chance.lognormal(0, 0.3) * 0.5) for j in range(1, 9)]
    return Shape(links(10), flows, empty=(9,), hot=0)


def tiny(chance: Chance) -> Shape:
    return Shape(
        links(6, 1),
        few_of_all(chance, 6, 3, 0.5),
        hours=3,
        utilization=0.70,
        spread=0.12,
        swing=0.08,
        spikes_per_hour=1,
        min_rate=2.0,
        is_tiny=True,
    )


def large(chance: Chance) -> Shape:
    capacity = np.asarray(chance.permutation(np.r_[links(10, 10), links(20, 25)]), float)
    empty = (26, 27, 28, 29)
    flows = [
        (i, int(j), chance.lognormal(0, 0.8) * (3 if j in empty else 1))
        for i in range(30)
        for j in chance.permutation(30)[:7]
        if i != j
    ]
    return Shape(capacity, flows, empty=empty)


def critical(chance: Chance) -> Shape:
    """Few flows and several tight ports: the worst case for fair sharing."""
    sizes = [(0, 1, 4.0), *((0, j, 0.25) for j in range(2, 10)), (2, 1, 3.0), (3, 1, 1.0), (2, 4, 1.5), (3, 4, 2.5)]
    sizes += [(5, 4, 1.0), (5, 6, 3.0), (7, 6, 2.0), (7, 8, 2.5), (9, 8, 2.0)]
    return Shape(links(10), [(i, j, size * chance.lognormal(0, 0.15)) for i, j, size in sizes])


def calm(chance: Chance) -> Shape:
    flows = [(i, 7, chance.lognormal(0, 0.3)) for i in range(7)]
    return Shape(links(8), flows, empty=(7,), utilization=0.15)


SHAPES: dict[str, Callable[[Chance], Shape]] = {
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
    "replace_spike": lambda chance: replace_broker(chance, 3),
}
SURPRISES = frozenset({"spikes", "catchup", "replace_spike"})
"""Scenarios of which nobody can know what is coming."""


def scenario(name: str, seed: int) -> Scenario:
    """Return a scenario of a seed."""
    chance = np.random.default_rng([seed, _number_of(name)])
    shape = SHAPES[name](chance)
    offered, produced = _clients(shape, chance)
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


def _wander(chance: Chance, count: int, sigma: float, seconds: float) -> Array:
    """Noise around 0 that forgets within some seconds."""
    kept = np.exp(-1.0 / seconds)
    steps = chance.standard_normal((SECONDS, count)) * sigma * np.sqrt(1 - kept * kept)
    noise: Array = lfilter([1], [1, -kept], steps, axis=0)
    noise += (chance.standard_normal(count) * sigma)[None, :] * (kept ** np.arange(SECONDS))[:, None]
    return noise


def _clients(shape: Shape, chance: Chance) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What clients offer to each port, and what is produced to each broker."""
    brokers, capacity = len(shape.links), shape.links
    followers, fan_out = 2 * shape.copies, 2.0
    base = shape.utilization * capacity / 4.0 * np.clip(chance.lognormal(0, shape.spread, brokers), 0.6, 1.5)
    base[list(shape.empty)] = 0
    is_rising = shape.swing > 0 and not shape.is_tiny
    phase = chance.uniform(-1.3, -0.2) if is_rising else chance.uniform(-3, 3)
    days = np.arange(SECONDS) / 86400 * (8 if shape.is_tiny else 1)
    wave = 1 + shape.swing * np.sin(2 * np.pi * days + phase)
    common = _wander(chance, 1, 0.02, 600)
    producing = 1 + common + _wander(chance, brokers, 0.035, 300) + _wander(chance, brokers, 0.03, 3)
    consuming = 1 + _wander(chance, brokers, 0.035, 300) + _wander(chance, brokers, 0.04, 3)
    surges = _spikes(shape, chance) if shape.spikes_per_hour else np.ones((SECONDS, brokers))
    reading = _catching_up(shape, chance) if shape.catch_up else np.zeros((SECONDS, brokers))
    produced = base * np.clip(producing, 0.2, None) * surges * wave[:, None]
    if shape.hot is not None:
        produced[:, shape.hot] *= 0.72 * capacity[shape.hot] / ((followers + fan_out) * base[shape.hot])
    alive = np.array([b not in shape.empty for b in range(brokers)], float)
    mean = produced.sum(1) / max(1, brokers - len(shape.empty))
    taken = produced + followers * mean[:, None] * alive
    given = (followers + fan_out * np.clip(consuming, 0.2, None)) * produced + reading
    offered = np.hstack([given, taken])
    if not shape.is_tiny:
        offered = np.minimum(offered, 0.999 * np.r_[capacity, capacity])
    return np.ascontiguousarray(offered, np.float32), produced.astype(np.float32)


def _spikes(shape: Shape, chance: Chance) -> Array:
    """Factors by which clients produce more for some minutes: everywhere, or on a sixth of the brokers."""
    brokers = len(shape.links)
    factors = np.ones((SECONDS, brokers))
    for _ in range(chance.poisson(shape.spikes_per_hour * SECONDS / 3600)):
        start, length = int(chance.uniform(0, SECONDS)), int(chance.uniform(180, 600))
        height = chance.uniform(0.2, 0.4) if shape.is_tiny else chance.uniform(0.5, 1.5)
        everywhere = chance.random() < 0.3
        who = np.arange(brokers) if everywhere else chance.permutation(brokers)[: max(1, brokers // 6)]
        if len(who) == brokers:
            height *= 0.6
        profile, ramp = np.ones(length), min(20, length // 4)
        profile[:ramp], profile[-ramp:] = np.linspace(0, 1, ramp), np.linspace(1, 0, ramp)
        end = min(SECONDS, start + length)
        factors[start:end, who] += height * profile[: end - start, None]
    return factors


def _catching_up(shape: Shape, chance: Chance) -> Array:
    """What consumers read beside: each hour from a third of the brokers."""
    brokers = len(shape.links)
    extra = np.zeros((SECONDS, brokers))
    for hour in range(SECONDS // 3600):
        start, length = int(hour * 3600 + chance.uniform(0, 2400)), int(chance.uniform(900, 2400))
        who = chance.permutation(brokers)[: brokers // 3]
        end = min(SECONDS, start + length)
        extra[start:end, who] += chance.uniform(0.25, 0.45) * shape.links[who]
    return extra


def queued(offered: NDArray[np.float32], capacity: Array) -> NDArray[np.float32]:
    """What clients get where they ask for more than there is: the rest waits, and comes within some seconds."""
    if not (offered > capacity).any():
        return offered
    got, waiting = np.empty_like(offered), np.zeros(offered.shape[1])
    for second in range(offered.shape[0]):
        carried = np.minimum(offered[second] + waiting / 10.0, capacity)
        got[second] = carried
        waiting = np.maximum(0, waiting + offered[second] - carried)
    return got


def _budgets(alone: NDArray[np.float32], capacity: Array, min_rate: float) -> Array:
    """[seconds of the move, ports] what replication may take."""
    load = alone[BEFORE:].astype(float)
    blocks = load.shape[0] // BLOCK
    means = load[: blocks * BLOCK].reshape(blocks, BLOCK, -1).mean(axis=1)
    budgets: Array = np.maximum(RATIO * np.maximum(0, capacity - np.repeat(means, BLOCK, axis=0)), min_rate)
    return budgets


def _sized(
    relative: Array, source: NDArray[np.int64], target: NDArray[np.int64], budgets: Array, shape: Shape
) -> tuple[Array, float]:
    """The sizes for which the bound is what the scenario wants, and the bound in seconds."""
    ports = budgets.shape[1]
    share = np.bincount(source, relative, ports) + np.bincount(target, relative, ports)
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
