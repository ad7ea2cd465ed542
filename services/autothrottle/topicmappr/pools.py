"""`topicmappr apply` and `topicmappr pools`: what differs between a file and a cluster, and how full pools are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import ceil, isfinite
from typing import Any

from autothrottle.core.capacity.packing import (
    DIMENSIONS,
    Packing,
    PoolOffer,
    PoolsState,
    TopicLoad,
    Use,
    fit,
    pack,
    total,
)
from autothrottle.core.capacity.pools import Pool, PoolPlans
from autothrottle.core.capacity.sizing import Dimension, Workload, broker_use
from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.plan import gigabytes
from autothrottle.core.texts import escape_unprintable
from autothrottle.topicmappr.map_files import MapFile
from autothrottle_client.plan_report import table

_ROUNDING = 1e-9
"""Part of a broker that is an error of floating-point numbers."""


def map_files_of(plans: PoolPlans) -> tuple[MapFile, ...]:
    """Return a file for each pool with changes."""
    return tuple(
        MapFile(f"{plan.pool.name}.json", plan.changed)
        for plan in plans.plans
        if plan.changed and not plan.plan.refusals
    )


def derived_pools(cluster: PlacementCluster) -> tuple[Pool, ...]:
    """Return the pools that a cluster has: topics on the same brokers, and smaller topics beside them.

    A topic whose brokers are all among those of a larger set belongs to the smallest such set. Nothing differs between
    these pools and the cluster.
    """
    brokers_of: dict[str, set[int]] = defaultdict(set)
    factors: dict[str, set[int]] = defaultdict(set)
    for entry in cluster.partitions:
        brokers_of[entry.topic].update(id for id in entry.replicas if id >= 0)
        factors[entry.topic].add(len(entry.replicas))
    sets = sorted({frozenset(ids) for ids in brokers_of.values()}, key=lambda ids: (len(ids), sorted(ids)))
    maximal = [ids for number, ids in enumerate(sets) if not any(ids < other for other in sets[number + 1 :])]
    home = {ids: next(other for other in maximal if ids <= other) for ids in sets}
    topics: dict[frozenset[int], list[str]] = defaultdict(list)
    for topic, members in sorted(brokers_of.items()):
        topics[home[frozenset(members)]].append(topic)
    pools = []
    for number, ids in enumerate(sorted(topics, key=sorted), 1):
        names = topics[ids]
        same = {factor for topic in names for factor in factors[topic]}
        replication = same.pop() if len(same) == 1 else 0
        racks = {(broker.rack if (broker := cluster.brokers.get(id)) else "") or f"broker {id}" for id in ids}
        shared = any(ids & other for other in topics if other != ids)
        enough = len(racks) if len(racks) < replication else 0
        pools.append(
            Pool(
                f"pool{number}",
                tuple(names),
                tuple(sorted(ids)),
                replication=replication,
                min_rack_ids=enough,
                shared=shared,
            )
        )
    return tuple(pools)


def new_topic(topic: str, bytes_in: float, retention: timedelta, replication: int, fan_out: float) -> TopicLoad:
    """Return the load of a topic that does not exist yet.

    Args:
        topic: its name.
        bytes_in: produced at peak, bytes/s.
        retention: time for which its records are kept.
        replication: its replication factor.
        fan_out: bytes that consumers read for each byte produced.
    """
    workload = Workload(bytes_in, retention, fan_out=fan_out, replication=replication)
    use = broker_use(workload, brokers=1)
    return TopicLoad(
        topic, dict(zip(DIMENSIONS, (use.storage, use.network_in, use.network_out), strict=True)), replication
    )


def fitting_pools(
    state: PoolsState, topics: Sequence[str], new: Sequence[TopicLoad] = ()
) -> Mapping[str, Mapping[str, Use]]:
    """Return for each topic how full each pool would be with it, the best one first.

    Args:
        state: of the pools.
        topics: topics of the cluster.
        new: topics that do not exist yet.

    Raises:
        Missing: a topic does not exist.
        Invalid: no pool has enough brokers, or a new topic exists.
    """
    by_name = {load.topic: load for load in state.loads}
    if existing := [load.topic for load in new if load.topic in by_name]:
        raise Invalid(f"topic {existing[0]} exists. Fix: leave out --bytes-in, or correct its name")
    if unknown := [topic for topic in topics if topic not in by_name]:
        raise Missing(f"topic {unknown[0]} does not exist. Fix: correct its name, or give --bytes-in and --retention")
    if not state.offers:
        raise Invalid("the file has no pool. Fix: add one")
    others = [load for load in state.loads if load.topic not in topics]
    return fit([*(by_name[topic] for topic in topics), *new], others, state.offers)


def fit_report(uses: Mapping[str, Mapping[str, Use]], offers: Sequence[PoolOffer]) -> str:
    """Return the best pool of each topic with the reason, and the brokers that it needs if it is over its limit."""
    lines = []
    brokers = {offer.name: offer.brokers for offer in offers}
    for topic, pools in uses.items():
        best, *others = [f"{name} {use.ratio:.1%} ({use.dimension.value})" for name, use in pools.items()]
        rest = f"; with it, the others would be fuller: {', '.join(others[:3])}" if others else ""
        full = _over_limit(brokers, *next(iter(pools.items())))
        lines.append(f"{topic}: {best}{full}{rest}")
    return "\n".join(map(escape_unprintable, lines))


def _over_limit(brokers: Mapping[str, int], pool: str, use: Use) -> str:
    """Return how many brokers a pool would need if it is over its limit; "": it is not."""
    if use.ratio <= 1:
        return ""
    if not isfinite(use.ratio):
        return ", which is over its limit: it offers nothing of that"
    # What a pool offers grows with its brokers, if new ones are like the average of those that it has.
    needed = ceil(use.ratio * brokers[pool] - _ROUNDING)
    return f", which is over its limit: {needed} brokers like its {brokers[pool]} would do"


def packed(state: PoolsState, new_pool_brokers: int) -> Packing:
    """Return a pool for each topic; `new_pool_brokers`: brokers of each pool that may be added, 0: none is added.

    A new pool offers what as many average brokers of the present pools offer.

    Raises:
        Invalid: topics fit into no pool.
    """
    new_pool = None
    if new_pool_brokers:
        brokers, offer = sum(offer.brokers for offer in state.offers), total(offer.amounts for offer in state.offers)
        if not brokers:
            raise Invalid("the file has no pool to take the size of brokers from. Fix: add one")
        amounts = {dimension: amount * new_pool_brokers / brokers for dimension, amount in offer.items()}
        new_pool = PoolOffer("", amounts, new_pool_brokers)
    return pack(state.loads, state.offers, new_pool)


def packing_value(state: PoolsState, packing: Packing) -> dict[str, Any]:
    """Return a packing as a JSON value: the topics that move, with their bytes, and the use of each pool."""
    moves = [load for load in state.loads if packing.pools[load.topic] != load.pool]
    return {
        "moves": [
            {
                "topic": load.topic,
                "from": load.pool or None,
                "to": packing.pools[load.topic],
                "bytes": round(load.amounts[Dimension.STORAGE]),
            }
            for load in moves
        ],
        "moved_bytes": round(sum(load.amounts[Dimension.STORAGE] for load in moves)),
        "pools": {name: {"use": use.ratio, "limit": use.dimension.value} for name, use in packing.use.items()},
        "new_pools": [offer.name for offer in packing.offers[len(state.offers) :]],
        "highest_use": packing.highest,
        "lowest_possible_use": packing.bound,
    }


def packing_report(value: Mapping[str, Any]) -> str:
    """Return a packing as text."""
    lines = [
        f"Highest use: {value['highest_use']:.1%}; none is lower than {value['lowest_possible_use']:.1%}",
        *table(
            [
                ("pool", "use", "limited by"),
                *((name, f"{use['use']:.1%}", use["limit"]) for name, use in value["pools"].items()),
            ]
        ),
        f"Topics to move: {len(value['moves'])}, {gigabytes(value['moved_bytes'])}",
        *(
            f"  {move['topic']}: {move['from'] or 'no pool'} -> {move['to']}, {gigabytes(move['bytes'])}"
            for move in value["moves"]
        ),
    ]
    if value["new_pools"]:
        lines.append(f"New pools: {', '.join(value['new_pools'])}")
    return "\n".join(map(escape_unprintable, lines))
