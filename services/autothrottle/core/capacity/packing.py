"""How full pools are, and which topics fit into which pool. The functions to know are `pack` and `fit`.

Loads and offers are bytes (storage) and bytes/s (network), replicas included. A topic's load is assumed to be even over
the brokers of its pool.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from autothrottle.core.capacity.pools import Pool, PoolMembers, Pools
from autothrottle.core.capacity.sizing import Dimension
from autothrottle.core.errors import Invalid
from autothrottle.core.placement.partition_map import PartitionReplicas, TopicPartitionKey

DIMENSIONS = (Dimension.STORAGE, Dimension.NETWORK_IN, Dimension.NETWORK_OUT)

MOST_NEW_POOLS = 1_000

Amounts = Mapping[Dimension, float]
"""Dimension -> a load or an offer; an absent dimension is unknown."""

_SEARCH_STEPS = 40
_IMPROVEMENTS = 2_000
_EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """What a topic needs of the brokers that hold it."""

    topic: str
    amounts: Amounts
    replicas: int = 1
    """Its largest replication factor: a pool needs as many brokers."""
    pool: str = ""
    """The pool that holds it; "": none."""


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """What the brokers of a pool may carry."""

    name: str
    amounts: Amounts
    """Within the limits of the pool."""
    brokers: int


@dataclass(frozen=True, slots=True)
class PoolsState:
    """What the pools hold and what they may hold."""

    offers: tuple[PoolOffer, ...]
    loads: tuple[TopicLoad, ...]


class Use(NamedTuple):
    """How much of an offer a load uses."""

    ratio: float
    """1: all that the limits allow; inf: a load without an offer."""
    dimension: Dimension


@dataclass(frozen=True, slots=True)
class Packing:
    """A pool for each topic."""

    pools: Mapping[str, str]
    """Topic -> pool."""
    offers: tuple[PoolOffer, ...]
    """The pools of the request, and the new ones after them."""
    use: Mapping[str, Use]
    """Pool -> its fullest dimension."""
    bound: float
    """No packing has a lower highest use: all load over all offers, or the largest topic in the largest pool."""

    @property
    def highest(self) -> float:
        """The highest use of a pool."""
        return max((use.ratio for use in self.use.values()), default=0.0)


def topic_loads(
    partitions: Iterable[PartitionReplicas],
    rates: Mapping[TopicPartitionKey, float],
    members: PoolMembers,
    pools: Sequence[Pool],
) -> tuple[TopicLoad, ...]:
    """Return the load of each topic.

    Args:
        partitions: of the cluster; an unknown size counts as 0.
        rates: partition -> bytes/s that clients produce; empty: unknown, so the network is unknown, too.
        members: the topics of each pool.
        pools: have the fan-outs; a topic in no pool has a fan-out of 1.
    """
    pool_of = {topic: name for name, topics in members.topics.items() for topic in topics}
    fan_outs = {pool.name: pool.fan_out for pool in pools}
    amounts: dict[str, dict[Dimension, float]] = defaultdict(lambda: dict.fromkeys(DIMENSIONS, 0.0))
    replicas: dict[str, int] = {}
    for entry in partitions:
        count, rate = len(entry.replicas), rates.get(entry.key, 0.0)
        load = amounts[entry.topic]
        load[Dimension.STORAGE] += (entry.size or 0) * count
        load[Dimension.NETWORK_IN] += rate * count
        load[Dimension.NETWORK_OUT] += rate * (count - 1 + fan_outs.get(pool_of.get(entry.topic, ""), 1.0))
        replicas[entry.topic] = max(replicas.get(entry.topic, 0), count)
    measured = DIMENSIONS if rates else (Dimension.STORAGE,)
    return tuple(
        TopicLoad(topic, {each: load[each] for each in measured}, replicas[topic], pool_of.get(topic, ""))
        for topic, load in sorted(amounts.items())
    )


def pool_offers(pools: Pools, members: PoolMembers, storage_total: Mapping[int, int]) -> tuple[PoolOffer, ...]:
    """Return what each pool may carry; a shared broker offers each of its pools an equal part.

    A broker without an instance type and without a known storage, such as a lost one, offers nothing.

    Args:
        pools: limits and instance types.
        members: the brokers of each pool.
        storage_total: broker id -> bytes of its log directories, for brokers without an instance type.
    """
    count = Counter(id for ids in members.brokers.values() for id in ids)
    offers = []
    for pool in pools.pools:
        ids, limits = members.brokers[pool.name], pool.limits
        shares = dict(zip(DIMENSIONS, (limits.storage, limits.network_in, limits.network_out), strict=True))
        parts = [(part, count[id]) for id in ids if (part := _offer(pools, id, storage_total))]
        amounts = {
            dimension: share * sum(part[dimension] / among for part, among in parts)
            for dimension, share in shares.items()
            if parts and all(dimension in part for part, _ in parts)
        }
        offers.append(PoolOffer(pool.name, amounts, len(ids)))
    return tuple(offers)


def pools_state(
    pools: Pools,
    members: PoolMembers,
    partitions: Iterable[PartitionReplicas],
    storage_total: Mapping[int, int],
    rates: Mapping[TopicPartitionKey, float],
) -> PoolsState:
    """Return loads and offers; rates empty: the use of the network is unknown."""
    offers = pool_offers(pools, members, storage_total)
    return PoolsState(offers, topic_loads(partitions, rates, members, pools.pools))


def _offer(pools: Pools, id: int, storage_total: Mapping[int, int]) -> Amounts:
    instance = pools.instances.get(pools.instance_types.get(id, ""))
    if instance is None:
        return {Dimension.STORAGE: storage_total[id]} if id in storage_total else {}
    return dict(zip(DIMENSIONS, (instance.storage, instance.network_in, instance.network_out), strict=True))


def use_of(load: Amounts, offer: Amounts) -> Mapping[Dimension, float]:
    """Return the share of the offer that a load uses, for each dimension that both know."""
    return {dimension: _ratio(load[dimension], offer[dimension]) for dimension in load if dimension in offer}


def fullest(load: Amounts, offer: Amounts) -> Use:
    """Return the dimension of which a load uses the most."""
    ratios = use_of(load, offer) or {Dimension.STORAGE: 0.0}
    dimension = max(ratios, key=lambda each: ratios[each])
    return Use(ratios[dimension], dimension)


def _ratio(load: float, offer: float) -> float:
    return load / offer if offer > 0 else inf if load > 0 else 0.0


def total(loads: Iterable[Amounts]) -> Amounts:
    """Return the sum of loads, in the dimensions that all know."""
    result: dict[Dimension, float] | None = None
    for load in loads:
        result = dict(load) if result is None else {each: result[each] + load[each] for each in result if each in load}
    return result or {}


def pack(loads: Sequence[TopicLoad], offers: Sequence[PoolOffer], new_pool: PoolOffer | None = None) -> Packing:
    """Return a pool for each topic, so that the highest use of a pool is about as low as possible.

    First-fit decreasing by the largest dimension, with the lowest level that fits, and then single moves out of the
    fullest pool. A topic prefers its present pool.

    Args:
        loads: all topics.
        offers: the pools, at least one unless there is a `new_pool`.
        new_pool: if the limits cannot hold, pools like this one are added until they do; None: none is added.

    Raises:
        Invalid: a topic has more replicas than any pool has brokers, new pools would not suffice, or what a pool
            offers is unknown.
    """
    _check_known(loads, offers)
    pools = list(offers)
    while True:
        widest = max((pool.brokers for pool in pools), default=0)
        is_wide = new_pool is None or new_pool.brokers <= widest or all(load.replicas <= widest for load in loads)
        packing = _packed(loads, pools) if pools and is_wide else None
        if packing and (new_pool is None or packing.highest <= 1 + _EQUAL):
            return packing
        if new_pool is None:
            raise Invalid("the file has no pool. Fix: add one, or give --new-pools")
        if len(pools) - len(offers) >= MOST_NEW_POOLS or _is_too_large(loads, new_pool):
            raise Invalid(
                "a topic is larger than a new pool, so no number of them holds all topics. Fix: a larger --new-pools"
            )
        if packing and any(pool.name not in packing.pools.values() for pool in pools[len(offers) :]):
            full = max(packing.use, key=lambda name: packing.use[name].ratio)
            raise Invalid(
                f"the topics of pool {full} fit into no new pool, so no number of them suffices. Fix: --new-pools with "
                "at least as many brokers as the topics have replicas"
            )
        missing = _missing_pools(loads, pools, new_pool)
        names = {pool.name for pool in pools}
        free_names = [name for number in range(1, len(names) + missing + 1) if (name := f"new{number}") not in names]
        pools += [PoolOffer(name, new_pool.amounts, new_pool.brokers) for name in free_names[:missing]]


def _check_known(loads: Sequence[TopicLoad], offers: Sequence[PoolOffer]) -> None:
    """Raise Invalid if a pool does not offer storage, or not what loads need and other pools offer.

    Such a pool would always look empty.
    """
    needed = {dimension for load in loads for dimension in load.amounts}
    for dimension in DIMENSIONS:
        unknown = [offer.name for offer in offers if dimension not in offer.amounts]
        if dimension in needed and unknown and (dimension is Dimension.STORAGE or len(unknown) < len(offers)):
            raise Invalid(
                f"what pool {unknown[0]} offers of {dimension.value} is unknown. Fix: list its brokers in a table "
                "[instances.NAME] of the pools file"
            )


def _is_too_large(loads: Sequence[TopicLoad], new_pool: PoolOffer) -> bool:
    return any(fullest(load.amounts, new_pool.amounts).ratio > 1 + _EQUAL for load in loads)


def _missing_pools(loads: Sequence[TopicLoad], pools: Sequence[PoolOffer], new_pool: PoolOffer) -> int:
    """Return how many pools all load needs at least; 1: maybe one."""
    load, offer = total(each.amounts for each in loads), total(each.amounts for each in pools)
    missing = [
        (load[dimension] - offer.get(dimension, 0.0)) / amount
        for dimension, amount in new_pool.amounts.items()
        if dimension in load and amount > 0
    ]
    return max(1, min(int(max(missing, default=0)), MOST_NEW_POOLS))


def _packed(loads: Sequence[TopicLoad], pools: Sequence[PoolOffer]) -> Packing:
    order = sorted(loads, key=lambda load: (-max(_alone(load, pool) for pool in pools), load.topic))
    everything = total(pool.amounts for pool in pools)
    average = fullest(total(load.amounts for load in loads), everything).ratio
    smallest = [
        min((_alone(load, pool) for pool in pools if load.replicas <= pool.brokers), default=inf) for load in loads
    ]
    if inf in smallest:
        load = loads[smallest.index(inf)]
        raise Invalid(f"topic {load.topic} with {load.replicas} replicas fits into no pool. Fix: add a larger pool")
    bound = max([average, *smallest])
    low, high = bound, max(bound, _EQUAL)
    while (placed := _placed(order, pools, high)) is None:
        low, high = high, 2 * high
    for _ in range(_SEARCH_STEPS):
        if high - low <= _EQUAL * high:
            break
        level = (low + high) / 2
        attempt = _placed(order, pools, level)
        if attempt is None:
            low = level
        else:
            placed, high = attempt, level
    _improve(order, pools, placed)
    sums = _sums(order, pools, placed)
    use = {pool.name: fullest(sums[number], pool.amounts) for number, pool in enumerate(pools)}
    by_topic = {load.topic: pools[placed[number]].name for number, load in enumerate(order)}
    return Packing(by_topic, tuple(pools), use, bound)


def _alone(load: TopicLoad, pool: PoolOffer) -> float:
    return fullest(load.amounts, pool.amounts).ratio


def _placed(loads: Sequence[TopicLoad], pools: Sequence[PoolOffer], level: float) -> list[int] | None:
    """Return the number of each topic's pool with no use above a level; None: not all fit."""
    first_fit = _fitted(loads, pools, level, lambda load, free: range(len(pools)))
    if first_fit is not None:
        return first_fit
    # A pool suits a topic best if it has most left of what the topic needs most.
    everything = total(pool.amounts for pool in pools)
    weights = {each: 1 / amount**2 for each, amount in everything.items() if amount > 0}

    def by_remainder(load: TopicLoad, free: Sequence[Amounts]) -> Iterable[int]:
        needs = {each: weights[each] * load.amounts[each] for each in load.amounts if each in weights}
        return sorted(
            range(len(pools)), key=lambda number: -sum(need * free[number][each] for each, need in needs.items())
        )

    return _fitted(loads, pools, level, by_remainder)


def _fitted(
    loads: Sequence[TopicLoad],
    pools: Sequence[PoolOffer],
    level: float,
    candidates: Callable[[TopicLoad, Sequence[Amounts]], Iterable[int]],
) -> list[int] | None:
    free = [{each: level * amount * (1 + _EQUAL) for each, amount in pool.amounts.items()} for pool in pools]
    home = {pool.name: number for number, pool in enumerate(pools)}
    placed = []
    for load in loads:
        first = [home[load.pool]] if load.pool in home else []
        for number in (*first, *candidates(load, free)):
            if load.replicas <= pools[number].brokers and all(
                amount <= free[number].get(dimension, inf) for dimension, amount in load.amounts.items()
            ):
                free[number] = _sum(free[number], load, -1)
                placed.append(number)
                break
        else:
            return None
    return placed


def _sums(
    loads: Sequence[TopicLoad], pools: Sequence[PoolOffer], placed: Sequence[int]
) -> list[dict[Dimension, float]]:
    sums = [dict.fromkeys(DIMENSIONS, 0.0) for _ in pools]
    for load, number in zip(loads, placed, strict=True):
        sums[number] = _sum(sums[number], load)
    return sums


def _improve(loads: Sequence[TopicLoad], pools: Sequence[PoolOffer], placed: list[int]) -> None:
    """Move single topics out of the fullest pool while that lowers the highest use."""
    sums = _sums(loads, pools, placed)
    for _ in range(_IMPROVEMENTS):
        uses = [fullest(load, pool.amounts).ratio for load, pool in zip(sums, pools, strict=True)]
        source = max(range(len(pools)), key=uses.__getitem__)
        moves = [
            (
                max(
                    fullest(_sum(sums[source], load, -1), pools[source].amounts).ratio,
                    fullest(_sum(sums[number], load), pool.amounts).ratio,
                ),
                topic,
                number,
            )
            for topic, load in enumerate(loads)
            if placed[topic] == source
            for number, pool in enumerate(pools)
            if number != source and load.replicas <= pool.brokers
        ]
        level, topic, number = min(moves, default=(inf, 0, 0))
        if level >= uses[source] * (1 - 1e-6):
            return
        sums[source], sums[number] = _sum(sums[source], loads[topic], -1), _sum(sums[number], loads[topic])
        placed[topic] = number


def fit(
    new: Sequence[TopicLoad], loads: Sequence[TopicLoad], offers: Sequence[PoolOffer]
) -> Mapping[str, Mapping[str, Use]]:
    """Return for each new topic how full each pool would be with it: the pool to take first.

    The largest topic is placed first, and the next ones beside it. No other topic moves.

    Args:
        new: topics without a pool.
        loads: the topics that the pools hold.
        offers: the pools.

    Raises:
        Invalid: a topic has more replicas than any pool has brokers, or what a pool offers is unknown.
    """
    _check_known(new, offers)
    number_of = {offer.name: number for number, offer in enumerate(offers)}
    residents = [load for load in loads if load.pool in number_of]
    sums = _sums(residents, offers, [number_of[load.pool] for load in residents])
    uses_of: dict[str, Mapping[str, Use]] = {}
    for load in sorted(new, key=lambda load: (-max(_alone(load, offer) for offer in offers), load.topic)):
        uses = {
            offer.name: fullest(_sum(sums[number], load), offer.amounts)
            for number, offer in enumerate(offers)
            if load.replicas <= offer.brokers
        }
        if not uses:
            raise Invalid(f"topic {load.topic} with {load.replicas} replicas fits into no pool. Fix: add a larger pool")
        uses_of[load.topic] = dict(sorted(uses.items(), key=lambda item: (item[1].ratio, item[0])))
        best = number_of[next(iter(uses_of[load.topic]))]
        sums[best] = _sum(sums[best], load)
    return uses_of


def _sum(load: Amounts, topic: TopicLoad, sign: int = 1) -> dict[Dimension, float]:
    return {dimension: load[dimension] + sign * topic.amounts.get(dimension, 0.0) for dimension in load}
