"""Pools of topics and brokers, and the moves that make a cluster so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.core.capacity.pools import BrokerRule, Pool, PoolMembers, PoolPlan, Pools, membership, pool_plan
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionMap, PartitionReplicas
from autothrottle.core.placement.plan import Strategy

BROKERS1, BROKERS2 = (1001, 1002, 1003, 1004, 1005), (1006, 1007, 1008, 1009, 1010)
POOL1 = Pool("pool1", ("test_topic.*",), BROKERS1)
POOL2 = Pool("pool2", ("load_testing", "latency_testing"), BROKERS2)
RACKS = "abcab"


def brokers_of(ids: Sequence[int], racks: str = RACKS) -> dict[int, PlacementBroker]:
    return {id: PlacementBroker(id, racks[number % len(racks)] if racks else "") for number, id in enumerate(ids)}


def placed(topic: str, ids: Sequence[int], partitions: int = 10, replicas: int = 2) -> list[PartitionReplicas]:
    count = len(ids)
    return [
        PartitionReplicas(topic, number, tuple(ids[(number + step) % count] for step in range(replicas)), 100)
        for number in range(partitions)
    ]


CLUSTER = brokers_of(range(1001, 1011))
PARTITIONS = [
    *placed("load_testing", BROKERS2),
    *placed("latency_testing", BROKERS2),
    *placed("test_topic1", BROKERS1),
]
"""The cluster of the seed: nothing differs from its pools."""


def members(*pools: Pool, topics: Sequence[str] = (), brokers: Mapping[int, PlacementBroker] = CLUSTER) -> PoolMembers:
    return membership(Pools(pools), topics or sorted({entry.topic for entry in PARTITIONS}), brokers)


def planned(
    pool: Pool,
    partitions: Sequence[PartitionReplicas],
    brokers: Mapping[int, PlacementBroker] = CLUSTER,
    repair_lost: bool = False,
    allow_fewer_racks: bool = False,
) -> PoolPlan:
    result = membership(Pools((pool,)), {entry.topic for entry in partitions}, brokers)
    assert not result.faults
    topics = result.topics[pool.name]
    return pool_plan(
        pool,
        result.brokers[pool.name],
        [entry for entry in partitions if entry.topic in topics],
        brokers,
        repair_lost=repair_lost,
        allow_fewer_racks=allow_fewer_racks,
    )


def applied(partitions: Sequence[PartitionReplicas], changed: PartitionMap) -> list[PartitionReplicas]:
    by_key = {entry.key: entry for entry in changed}
    return [by_key.get(entry.key, entry) for entry in partitions]


def test_topics_and_brokers_belong_to_the_pools_that_name_them() -> None:
    result = members(POOL1, POOL2, topics=["test_topic1", "load_testing", "latency_testing", "other"])
    assert result.topics == {"pool1": ("test_topic1",), "pool2": ("latency_testing", "load_testing")}
    assert result.unpooled == ("other",)
    assert not result.faults


def test_a_rule_selects_brokers_by_rack_and_instance_type() -> None:
    pool = replace(POOL1, brokers=BrokerRule(frozenset("ab"), frozenset({"large"})))
    types = {1001: "large", 1002: "small", 1003: "large", 1006: "large"}
    assert membership(Pools((pool,), {}, types), ["test_topic1"], CLUSTER).brokers["pool1"] == (1001, 1006)


@pytest.mark.parametrize(
    ("pools", "key", "text"),
    [
        ([POOL1, replace(POOL2, topics=(".*",))], "topics", "also in pool pool1: test_topic1"),
        ([POOL1, replace(POOL2, brokers=(1005, 1006))], "brokers", "also in pool pool2: 1005"),
        ([replace(POOL1, topics=("orders.*",))], "topics", "'orders.*' matches no topic"),
        ([replace(POOL1, topics=("(",))], "topics", "not a regular expression"),
        ([replace(POOL1, replication=4)], "brokers", "3 racks are fewer than 4 replicas"),
        ([replace(POOL1, replication=6)], "brokers", "5 brokers cannot hold 6 replicas"),
        ([replace(POOL1, brokers=BrokerRule(frozenset({"z"})))], "brokers", "the rule matches no broker"),
    ],
)
def test_each_fault_names_its_pool_and_key(pools: list[Pool], key: str, text: str) -> None:
    faults = members(*pools).faults
    assert any(fault.key == key and text in fault.text and "Fix: " in fault.text for fault in faults)


def test_shared_brokers_and_excluded_topics_are_no_faults() -> None:
    first = replace(POOL1, shared=True)
    second = replace(POOL2, topics=(".*",), topics_exclude=("test_topic.*",), brokers=(1005, 1006), shared=True)
    assert not members(first, second).faults


@pytest.mark.parametrize("racks", [RACKS, ""])
def test_a_replaced_id_gets_exactly_the_replicas_of_the_failed_broker(racks: str) -> None:
    """The seed's case: broker 1010 failed, and its id is replaced in the list."""
    pool = replace(POOL2, brokers=(1006, 1007, 1008, 1009, 1011))
    brokers = brokers_of([*range(1001, 1010)], racks) | {
        1011: PlacementBroker(1011, CLUSTER[1010].rack if racks else "")
    }
    plan = planned(pool, PARTITIONS, brokers)
    expected = [
        entry._replace(replicas=tuple(1011 if id == 1010 else id for id in entry.replicas))
        for entry in PARTITIONS
        if 1010 in entry.replicas
    ]
    assert sorted(plan.changed) == sorted(expected)
    assert not plan.plan.refusals
    assert not planned(pool, applied(PARTITIONS, plan.changed), brokers).changed


def test_replicas_of_a_lost_broker_move_only_when_a_repair_is_asked_for() -> None:
    """A broker that restarts is absent for a minute, and must not cost a copy of all its replicas."""
    brokers = {id: broker for id, broker in CLUSTER.items() if id != 1010}
    plan = planned(POOL2, PARTITIONS, brokers)
    assert (plan.changed, plan.lost) == ((), (1010,))
    repaired = planned(POOL2, PARTITIONS, brokers, repair_lost=True)
    assert {entry.key for entry in repaired.changed} == {
        entry.key for entry in PARTITIONS if 1010 in entry.replicas and entry.topic in POOL2.topics
    }
    assert repaired.lost == ()


def test_a_pool_by_storage_waits_for_its_lost_broker() -> None:
    """A lost broker has no free storage, and placement by storage asked for it.

    One broker that restarted ended the command for all pools.
    """
    pool = replace(POOL2, placement=Strategy.STORAGE, replication=3)
    brokers = {id: replace(broker, storage_free=10**6) for id, broker in CLUSTER.items() if id != 1010}
    plan = planned(pool, PARTITIONS, brokers)
    assert (plan.lost, plan.plan.refusals) == ((1010,), ())
    for old, new in zip(plan.plan.old_map, plan.plan.new_map, strict=True):
        assert {*old.replicas} < {*new.replicas} and (1010 in old.replicas or 1010 not in new.replicas)


def test_a_pool_of_a_rule_also_waits_for_its_lost_broker() -> None:
    pool = replace(POOL2, brokers=BrokerRule(frozenset("abc")))
    brokers = {id: broker for id, broker in CLUSTER.items() if id != 1010}
    assert planned(pool, PARTITIONS, brokers).lost == (1010,)


@pytest.mark.parametrize("ids", [(1001, 1002, 1004, 1005), (1001, 1002)])
def test_a_lost_zone_is_no_fault_of_a_rule(ids: Sequence[int]) -> None:
    """The brokers that a rule still selected had fewer racks than replicas, or were fewer than the replicas.

    That counted as a fault of the file, so the loss of a zone stopped the repair of all pools, also with
    --allow-fewer-racks.
    """
    pool = replace(POOL1, brokers=BrokerRule(frozenset("abc")), replication=3)
    brokers = {id: CLUSTER[id] for id in ids}
    assert not members(pool, topics=["test_topic1"], brokers=brokers).faults
    plan = planned(pool, placed("test_topic1", (1001, 1002, 1003), replicas=3), brokers, True, len(ids) > 3)
    assert bool(plan.plan.refusals) == (len(ids) < 3)
    too_few = members(replace(pool, brokers=BrokerRule(frozenset("ab"))), topics=["test_topic1"])
    assert "2 racks are fewer than 3 replicas" in too_few.faults[0].text


def test_a_topic_that_changes_its_pool_moves_as_a_whole_and_nothing_else_does() -> None:
    pool1 = replace(POOL1, topics=("test_topic.*", "load_testing"))
    plan = planned(pool1, PARTITIONS)
    assert {entry.key for entry in plan.changed} == {entry.key for entry in PARTITIONS if entry.topic == "load_testing"}
    assert {id for entry in plan.changed for id in entry.replicas} == {*BROKERS1}


def test_a_topic_that_arrives_leaves_the_substitution_of_a_broker_alone() -> None:
    pool = replace(POOL2, brokers=(1006, 1007, 1008, 1009, 1011), topics=(*POOL2.topics, "test_topic1"))
    brokers = CLUSTER | {1011: PlacementBroker(1011, CLUSTER[1010].rack)}
    plan = planned(pool, PARTITIONS, brokers)
    for old, new in zip(plan.plan.old_map, plan.plan.new_map, strict=True):
        if old.topic != "test_topic1":
            assert new.replicas == tuple(1011 if id == 1010 else id for id in old.replicas)


@pytest.mark.parametrize("replication", [1, 3])
def test_the_replication_factor_of_a_pool_is_set(replication: int) -> None:
    plan = planned(replace(POOL2, replication=replication), PARTITIONS)
    assert {len(entry.replicas) for entry in plan.changed} == {replication}
    for old, new in zip(plan.plan.old_map, plan.plan.new_map, strict=True):
        assert {*old.replicas} <= {*new.replicas} or {*new.replicas} <= {*old.replicas}


def test_a_lost_zone_is_refused_unless_fewer_racks_are_allowed() -> None:
    partitions = placed("test_topic1", (1001, 1002, 1003), replicas=3)
    pool = replace(POOL1, brokers=(1001, 1002, 1003, 1004, 1005))
    brokers = {id: broker for id, broker in CLUSTER.items() if broker.rack != "c"}
    assert planned(pool, partitions, brokers, repair_lost=True).plan.refusals
    allowed = planned(pool, partitions, brokers, repair_lost=True, allow_fewer_racks=True)
    assert not allowed.plan.refusals
    assert all(1003 not in entry.replicas and len(entry.replicas) == 3 for entry in allowed.changed)


@pytest.mark.parametrize("replication", [0, 1, 2, 3])
@settings(deadline=None)
@given(st.data())
def test_a_plan_moves_as_little_as_a_mixed_integer_program_and_once(replication: int, data: st.DataObject) -> None:
    """Partitions differ in nothing but their replicas, so the least number of moves is a sum over the partitions."""
    racks = data.draw(st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=6, max_size=8))
    brokers = {id: PlacementBroker(id, rack) for id, rack in enumerate(racks, 1)}
    ids = data.draw(st.lists(st.sampled_from([*brokers]), min_size=3, max_size=6, unique=True))
    sets = st.lists(st.sampled_from([*brokers, 99]), min_size=1, max_size=3, unique=True)
    partitions = [
        PartitionReplicas("t", number, tuple(data.draw(sets)), 100) for number in range(data.draw(st.integers(1, 8)))
    ]
    pool = Pool("pool", ("t",), tuple(ids), replication=replication)
    plan = pool_plan(pool, ids, partitions, brokers, allow_fewer_racks=True)
    assert plan == pool_plan(pool, ids, partitions[::-1], dict(reversed(brokers.items())), allow_fewer_racks=True)
    for old, new in zip(plan.plan.old_map, plan.plan.new_map, strict=True):
        length = replication or len(old.replicas)
        assert len(new.replicas) == length and {*new.replicas} <= {*ids}
        assert len({*new.replicas} - {*old.replicas}) == least_moves(old.replicas, length, [brokers[id] for id in ids])
    again = pool_plan(pool, ids, plan.plan.new_map, brokers, allow_fewer_racks=True)
    assert not again.changed


def least_moves(replicas: Sequence[int], length: int, brokers: Sequence[PlacementBroker]) -> int:
    """Return the fewest new replicas of a set whose racks are as many as they can be, by a mixed-integer program.

    Replicas that share a rack already may stay, unless the set becomes smaller.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes a quarter of a second, in each process

    rows: list[list[int]] = [[1] * len(brokers)]
    lower, upper = [length], [length]
    names = {broker.rack or f"broker {broker.id}" for broker in brokers}
    sizes = Counter(broker.rack or f"broker {broker.id}" for broker in brokers)
    level = next(level for level in range(1, length + 1) if sum(min(level, sizes[name]) for name in names) >= length)
    for name in sorted(names):
        row = [int((broker.rack or f"broker {broker.id}") == name) for broker in brokers]
        stay = sum(in_rack and broker.id in replicas for in_rack, broker in zip(row, brokers, strict=True))
        rows.append(row)
        lower.append(0)
        upper.append(max(level, stay if length >= len(replicas) else 0))
    costs = [broker.id not in replicas for broker in brokers]
    result = milp(
        costs, integrality=[1] * len(brokers), bounds=Bounds(0, 1), constraints=LinearConstraint(rows, lower, upper)
    )
    assert result.fun is not None
    return round(result.fun)
