"""How full pools are, and which topics fit into which pool."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import ceil

import pytest

from autothrottle.core.capacity.packing import (
    DIMENSIONS,
    PoolOffer,
    TopicLoad,
    Use,
    fit,
    fullest,
    pack,
    pool_offers,
    topic_loads,
    total,
    use_of,
)
from autothrottle.core.capacity.pools import Pool, Pools, membership
from autothrottle.core.capacity.sizing import Dimension, InstanceType, UsableShares
from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionReplicas
from tests.examples import examples

STORAGE, IN, OUT = DIMENSIONS


def amounts(storage: float, inbound: float = 0.0, outbound: float = 0.0) -> dict[Dimension, float]:
    return {STORAGE: storage, IN: inbound, OUT: outbound}


def load(topic: str, storage: float, pool: str = "", replicas: int = 1) -> TopicLoad:
    return TopicLoad(topic, amounts(storage), replicas, pool)


def offer(name: str, storage: float, brokers: int = 3) -> PoolOffer:
    return PoolOffer(name, amounts(storage, 100, 100), brokers)


def cluster(seed: int, topics: int = 400) -> tuple[list[TopicLoad], list[PoolOffer]]:
    """Topics whose rates span three orders of magnitude and whose reads differ, and pools of three sizes."""
    draw = random.Random(seed)
    loads = []
    for number in range(topics):
        rate, replicas = draw.lognormvariate(0, 1.5), draw.choice([2, 3, 3])
        hours, fan_out = draw.choice([1, 12, 24, 168]), draw.choice([0, 1, 3, 8])
        sizes = amounts(3600 * hours * rate * replicas, rate * replicas, rate * (replicas - 1 + fan_out))
        loads.append(TopicLoad(f"t{number}", sizes, replicas))
    count = draw.randint(5, 20)
    sum_of = total(each.amounts for each in loads)
    weights = [draw.choice([1, 2, 3]) for _ in range(count)]
    shares = {each: draw.uniform(0.4, 0.9) for each in DIMENSIONS}
    return loads, [
        PoolOffer(f"p{n}", {each: sum_of[each] / shares[each] * w / sum(weights) for each in DIMENSIONS}, 5 * w)
        for n, w in enumerate(weights)
    ]


def test_a_topic_loads_its_pool_with_replicas_and_reads() -> None:
    pool = Pool("orders", ("orders",), (1, 2, 3), fan_out=4)
    partitions = [PartitionReplicas("orders", n, (1, 2, 3), 100) for n in range(2)] + [
        PartitionReplicas("other", 0, (1,), None)
    ]
    members = membership(Pools((pool,)), ["orders", "other"], {})
    loads = topic_loads(partitions, {("orders", 0): 10.0}, members, [pool])
    assert loads == (
        TopicLoad("orders", amounts(600, 30, 60), 3, "orders"),
        TopicLoad("other", amounts(0, 0, 0), 1, ""),
    )


def test_without_rates_the_network_is_unknown() -> None:
    members = membership(Pools(()), ["t"], {})
    assert topic_loads([PartitionReplicas("t", 0, (1,), 5)], {}, members, []) == (TopicLoad("t", {STORAGE: 5}, 1),)
    assert use_of({STORAGE: 5}, amounts(10, 1, 1)) == {STORAGE: 0.5}


def test_a_pool_offers_its_brokers_within_its_limits() -> None:
    limits = UsableShares(storage=0.5, network_in=0.8, network_out=0.9)
    pools = Pools(
        (Pool("a", ("a",), (1, 2), limits=limits, shared=True), Pool("b", ("b",), (2, 3), shared=True)),
        {"large": InstanceType("large", 1000, 100, 200, 1, 1)},
        {1: "large", 2: "large"},
    )
    members = membership(pools, ["a", "b"], {id: PlacementBroker(id) for id in (1, 2, 3)})
    first, second = pool_offers(pools, members, {3: 400, 1: 7})
    assert first.amounts == pytest.approx(amounts(0.5 * 1500, 0.8 * 150, 0.9 * 300))
    assert second.amounts == {STORAGE: pytest.approx(0.8 * 900)}


def test_the_fullest_dimension_limits_a_pool() -> None:
    assert fullest(amounts(50, 9, 1), amounts(100, 10, 10)) == Use(0.9, IN)
    assert fullest(amounts(1), amounts(0)).ratio == float("inf")


@pytest.mark.parametrize("seed", range(10))
def test_the_highest_use_is_within_five_percent_of_the_bound(seed: int) -> None:
    loads, offers = cluster(seed)
    packing = pack(loads, offers)
    assert packing.highest <= 1.05 * packing.bound
    assert packing.pools.keys() == {load.topic for load in loads}
    for pool in offers:
        held = [load for load in loads if packing.pools[load.topic] == pool.name]
        assert all(load.replicas <= pool.brokers for load in held)
        assert packing.use[pool.name].ratio == pytest.approx(
            fullest(total(x.amounts for x in held), pool.amounts).ratio
        )


@pytest.mark.parametrize("seed", range(examples(4, 10)))
def test_new_pools_are_added_until_all_limits_hold(seed: int) -> None:
    loads, offers = cluster(seed)
    largest = max(fullest(load.amounts, offers[0].amounts).ratio for load in loads)
    scale = max(1.0, largest) / 2
    small = [PoolOffer(each.name, {d: scale * a for d, a in each.amounts.items()}, each.brokers) for each in offers[:2]]
    new_pool = PoolOffer("", {d: 2 * scale * a for d, a in offers[0].amounts.items()}, 6)
    packing = pack(loads, small, new_pool)
    assert packing.highest <= 1 + 1e-6
    added = len(packing.offers) - len(small)
    assert added <= least_new_pools(loads, small, new_pool) + 1


def least_new_pools(loads: Sequence[TopicLoad], offers: Sequence[PoolOffer], new_pool: PoolOffer) -> int:
    need, have = total(each.amounts for each in loads), total(each.amounts for each in offers)
    return max(ceil((need[each] - have[each]) / new_pool.amounts[each]) for each in DIMENSIONS)


def test_topics_stay_where_their_pool_is_as_good() -> None:
    loads = [load("a", 40, "second"), load("b", 40, "first")]
    assert pack(loads, [offer("first", 100), offer("second", 100)]).pools == {"a": "second", "b": "first"}


def test_a_topic_goes_only_where_its_replicas_have_brokers() -> None:
    loads = [load("a", 10, replicas=5)]
    assert pack(loads, [offer("small", 100, 3), offer("large", 50, 5)]).pools == {"a": "large"}
    with pytest.raises(Invalid, match="topic a with 5 replicas fits into no pool"):
        pack(loads, [offer("small", 100, 3)])


def test_a_topic_larger_than_a_new_pool_is_an_error() -> None:
    with pytest.raises(Invalid, match="larger than a new pool"):
        pack([load("a", 200)], [offer("first", 100)], offer("", 100))


def test_fit_prefers_the_pool_that_is_least_full_afterwards() -> None:
    offers = [offer("full", 100), offer("empty", 100), offer("tiny", 10)]
    uses = fit([load("new", 20)], [load("old", 70, "full")], offers)
    assert list(uses["new"].items()) == [
        ("empty", Use(0.2, STORAGE)),
        ("full", Use(0.9, STORAGE)),
        ("tiny", Use(2.0, STORAGE)),
    ]


def test_several_new_topics_are_placed_beside_each_other() -> None:
    offers = [offer("first", 100), offer("second", 100)]
    uses = fit([load("small", 30), load("large", 60)], [], offers)
    assert [next(iter(uses[topic])) for topic in ("large", "small")] == ["first", "second"]


def test_a_lost_broker_offers_nothing() -> None:
    """One broker without a known storage made the offer of its whole pool unknown, and an unknown offer held all.

    `pack` then moved every topic into the pool that had just lost a broker.
    """
    pools = Pools((Pool("a", ("x",), (1, 2, 3)), Pool("b", ("y",), (4, 5))))
    members = membership(pools, ["x", "y"], {id: PlacementBroker(id) for id in (1, 2, 4, 5)})
    offers = pool_offers(pools, members, {1: 100, 2: 100, 4: 100, 5: 100})
    assert [each.amounts[STORAGE] for each in offers] == [160, 160]
    loads = [TopicLoad("x", {STORAGE: 100}, 1, "a"), TopicLoad("y", {STORAGE: 90}, 1, "b")]
    assert pack(loads, offers).pools == {"x": "a", "y": "b"}


def test_a_pool_with_an_unknown_offer_is_named() -> None:
    """A pool whose storage was unknown counted as empty. `pack` and `fit` chose it for every topic."""
    offers = [offer("a", 100), PoolOffer("b", {}, 3)]
    for choose in (lambda: pack([load("t", 10)], offers), lambda: fit([load("t", 10)], [], offers)):
        with pytest.raises(Invalid, match=r"what pool b offers of storage is unknown\. Fix: "):
            choose()


def test_new_pools_have_names_of_their_own() -> None:
    """A pool of the file with the name of a new one hid the load of one of them."""
    packing = pack([load("t", 80), load("u", 80)], [offer("new1", 100)], offer("", 100))
    assert [each.name for each in packing.offers] == ["new1", "new2"]
    assert set(packing.pools.values()) == {"new1", "new2"}


def test_new_pools_with_fewer_brokers_than_replicas_are_refused_at_once() -> None:
    """Up to 1,000 pools were tried, one more at a time, which took minutes.

    The error then blamed the size of the topics.
    """
    loads = [load(f"t{number}", 20, "a", replicas=3) for number in range(8)]
    with pytest.raises(Invalid, match=r"topics of pool a fit into no new pool.*as many brokers as the topics have"):
        pack(loads, [offer("a", 100)], offer("", 100, brokers=2))


def test_a_new_pool_holds_a_topic_with_too_many_replicas_for_the_others() -> None:
    """The error asked for a larger pool, although --new-pools was one."""
    packing = pack([load("t", 10), load("wide", 10, replicas=4)], [offer("a", 100)], offer("", 100, brokers=4))
    assert packing.pools == {"t": "a", "wide": "new1"}
