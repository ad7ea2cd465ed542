"""How even plans are, and how few bytes they copy, on generated clusters."""

from dataclasses import replace

import pytest

from autothrottle.core.placement.brokers import PlacementBroker, select_brokers
from autothrottle.core.placement.partition_map import PartitionReplicas, changes
from autothrottle.core.placement.plan import (
    Optimization,
    PlacementPlan,
    RebalanceOptions,
    RebuildOptions,
    StorageSpread,
    Strategy,
)
from autothrottle.core.placement.rebalance import decommission, rebalance, scale
from autothrottle.core.placement.rebuild import rebuild
from tests.benchmarks.placement_clusters import FIRST_BROKER, Cluster, generate

MAPPED, REGISTERED = [-1], [-2]


def storage(plan: PlacementPlan) -> StorageSpread:
    assert plan.new_statistics.storage is not None
    return plan.new_statistics.storage


def range_spread(plan: PlacementPlan) -> float:
    spread = storage(plan).range_spread
    assert spread is not None
    return spread


def chosen(cluster: Cluster, wanted: list[int]) -> tuple[PlacementBroker, ...]:
    return select_brokers(cluster.partitions, wanted, cluster.brokers).brokers


def without_first(cluster: Cluster) -> list[int]:
    return [id for id in cluster.brokers if id not in cluster.spares and id != FIRST_BROKER]


def moved(plan: PlacementPlan) -> int:
    pairs = zip(plan.old_map, plan.new_map, strict=True)
    return sum(len(set(new.replicas) - set(old.replicas)) for old, new in pairs)


@pytest.mark.parametrize("case", ["article", "medium"])
def test_rebalance_and_scale_are_even_and_copy_about_the_bound(case: str) -> None:
    cluster = generate(case, 1)
    options = RebalanceOptions(partition_size_threshold=512 << 20)
    for plan in (
        rebalance(cluster.partitions, chosen(cluster, MAPPED), options),
        scale(cluster.partitions, chosen(cluster, REGISTERED), options),
    ):
        assert range_spread(plan) <= 0.01
        assert plan.copied_bytes <= 1.05 * plan.bound_bytes
        assert plan.warnings == ()


def test_a_hot_partition_stays_where_it_is() -> None:
    cluster = generate("hot", 1)
    plan = rebalance(cluster.partitions, chosen(cluster, MAPPED))
    assert plan.new_map[0].topic == "hot" and plan.new_map[0] == plan.old_map[0]
    assert range_spread(plan) <= 0.06
    assert plan.copied_bytes <= 1.05 * plan.bound_bytes


@pytest.mark.parametrize("case", ["article", "mixed", "fewracks"])
@pytest.mark.parametrize("strategy", Strategy)
def test_a_forced_rebuild_is_even_in_leaders_replicas_and_storage(case: str, strategy: Strategy) -> None:
    cluster = generate(case, 2)
    plan = rebuild(cluster.partitions, chosen(cluster, MAPPED), RebuildOptions(strategy=strategy, force=True))
    assert plan.new_statistics.leader_spread <= 1
    assert plan.new_statistics.replica_spread <= 2
    assert range_spread(plan) <= (0.01 if strategy is Strategy.COUNT else 0.001)


def test_a_minimal_forced_rebuild_is_as_even_with_few_bytes() -> None:
    cluster = generate("article", 3)
    options = RebuildOptions(strategy=Strategy.STORAGE, optimization=Optimization.MINIMAL, force=True)
    plan = rebuild(cluster.partitions, chosen(cluster, MAPPED), options)
    assert range_spread(plan) <= 0.01
    assert plan.copied_bytes <= 1.05 * plan.bound_bytes
    counted = rebuild(
        cluster.partitions, chosen(cluster, MAPPED), RebuildOptions(force=True, optimization=Optimization.MINIMAL)
    )
    assert counted.new_statistics.replica_spread <= 1
    assert counted.copied_bytes <= 1.05 * counted.bound_bytes


def test_a_lost_broker_moves_only_its_replicas() -> None:
    cluster = generate("medium", 1)
    kept = without_first(cluster)
    held = sum(FIRST_BROKER in entry.replicas for entry in cluster.partitions)
    for strategy in Strategy:
        plan = rebuild(cluster.partitions, chosen(cluster, kept), RebuildOptions(strategy=strategy))
        assert moved(plan) == held
        assert plan.new_statistics.replica_spread <= plan.old_statistics.replica_spread
        assert all(
            old.replicas[0] == new.replicas[0]
            for old, new, _ in changes(plan.old_map, plan.new_map)
            if old.replicas[0] != FIRST_BROKER
        )


@pytest.mark.parametrize(
    ("case", "seed", "spreads"),
    [
        ("article", 1, (20, 34)),
        ("article", 2, (17, 27)),
        ("seed", 1, (25, 64)),
        ("hot", 2, (6, 8)),
        ("medium", 1, (127, 364)),
        ("medium", 2, (105, 281)),
    ],
)
def test_the_spreads_after_a_lost_broker_are_the_least_possible(case: str, seed: int, spreads: tuple[int, int]) -> None:
    """A mixed-integer program found the least replica spread, and the least leader spread beside it."""
    cluster = generate(case, seed)
    after = rebuild(cluster.partitions, chosen(cluster, without_first(cluster))).new_statistics
    assert (after.leader_spread, after.replica_spread) == spreads


@pytest.mark.parametrize(("case", "seed", "spreads"), [("medium", 1, (128, 370)), ("hot", 1, (14, 23))])
def test_a_lost_broker_by_storage_leaves_few_leaders_and_replicas_uneven(
    case: str, seed: int, spreads: tuple[int, int]
) -> None:
    """Storage alone leaves 141 and 381 in medium, 18 and 26 in hot."""
    cluster = generate(case, seed)
    options = RebuildOptions(strategy=Strategy.STORAGE)
    plan = rebuild(cluster.partitions, chosen(cluster, without_first(cluster)), options)
    after = plan.new_statistics
    assert after.leader_spread <= spreads[0] and after.replica_spread <= spreads[1]
    assert plan.warnings == ()


@pytest.mark.parametrize("strategy", Strategy)
def test_replicas_of_a_lost_broker_join_brokers_that_share_no_partition_yet(strategy: Strategy) -> None:
    cluster = generate("seed", 3)
    plan = rebuild(cluster.partitions, chosen(cluster, without_first(cluster)), RebuildOptions(strategy=strategy))
    assert plan.new_statistics.degree.min >= 28
    assert plan.new_statistics.degree.average >= 31.8


def test_brokers_of_a_hot_partition_share_some_small_partitions_too() -> None:
    cluster = generate("hot", 1)
    brokers = chosen(cluster, MAPPED)
    minimal = Optimization.MINIMAL
    for plan in (
        rebuild(cluster.partitions, brokers, RebuildOptions(strategy=Strategy.STORAGE, force=True)),
        rebuild(
            cluster.partitions, brokers, RebuildOptions(strategy=Strategy.STORAGE, optimization=minimal, force=True)
        ),
        rebalance(cluster.partitions, brokers),
    ):
        assert plan.new_statistics.degree.min >= 6
        assert plan.new_statistics.degree.average >= 6.8
        assert range_spread(plan) <= 0.055


def test_small_replicas_for_few_partners_do_not_widen_the_range_of_an_even_map() -> None:
    cluster = generate("hot", 1)
    even = rebalance(cluster.partitions, chosen(cluster, MAPPED))
    brokers = [replace(each, storage_free=even.new_statistics.storage_free[each.id]) for each in even.brokers]
    plan = rebuild(even.new_map, brokers, RebuildOptions(strategy=Strategy.STORAGE, force=True))
    assert storage(plan).range <= storage(even).range
    assert plan.warnings == ()


def test_leaders_become_even_without_moving_replicas() -> None:
    cluster = generate("medium", 1)
    plan = rebuild(cluster.partitions, chosen(cluster, MAPPED), RebuildOptions(optimize_leadership=True))
    assert plan.new_statistics.leader_spread <= 1
    assert plan.copied_bytes == 0


def test_a_decommission_copies_at_most_about_the_bound() -> None:
    cluster = generate("medium", 1)
    plan = decommission(cluster.partitions, chosen(cluster, MAPPED), [1001, 1002])
    assert plan.copied_bytes <= 1.05 * plan.bound_bytes
    assert not any({1001, 1002} & set(entry.replicas) for entry in plan.new_map)


def test_the_example_of_the_article_is_at_least_as_even() -> None:
    sets = [(1001, 1002), (1002, 1001), (1001, 1002), (1002, 1001)]
    partitions = [PartitionReplicas("test_topic", number, replicas) for number, replicas in enumerate(sets)]
    brokers = select_brokers(partitions, [1001, 1003, 1004], None).brokers
    plan = rebuild(partitions, brokers, RebuildOptions(force=True))
    after = plan.new_statistics
    assert tuple(after.degree) == (2, 2, 2.0)
    assert sorted(share.leaders for share in after.shares.values()) == [1, 1, 2]
    assert sorted(share.followers for share in after.shares.values()) == [1, 1, 2]
    assert sorted(share.total for share in after.shares.values()) == [2, 3, 3]


def test_a_thousand_partitions_over_fifty_brokers_use_all_pairs() -> None:
    brokers = [PlacementBroker(id, f"r{id % 3}") for id in range(50)]
    partitions = [PartitionReplicas("t", number, (0, 1, 2)) for number in range(1000)]
    plan = rebuild(partitions, brokers, RebuildOptions(force=True))
    racks = [sum(broker.rack == f"r{rack}" for broker in brokers) for rack in range(3)]
    assert plan.new_statistics.degree.min == 50 - max(racks)
    assert plan.new_statistics.leader_spread <= 1


def test_no_replica_moves_to_a_cordoned_broker() -> None:
    cluster = generate("article", 1)
    brokers = [
        PlacementBroker(broker.id, broker.rack, broker.storage_free, new=broker.new, cordoned=broker.id in (1002, 1031))
        for broker in chosen(cluster, REGISTERED)
    ]
    for plan in (
        rebalance(cluster.partitions, brokers),
        rebuild(cluster.partitions, brokers, RebuildOptions(force=True)),
        decommission(cluster.partitions, brokers, [FIRST_BROKER]),
    ):
        joined = {
            id for old, new, _ in changes(plan.old_map, plan.new_map) for id in set(new.replicas) - set(old.replicas)
        }
        assert joined and not joined & {1002, 1031}
