"""The defects of Kafka-Kit's topicmappr, one test each."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import PlacementBroker, select_brokers
from autothrottle.core.placement.partition_map import PartitionMap, PartitionReplicas, matching_topics, settled
from autothrottle.core.placement.plan import (
    LeadershipEvacuation,
    Optimization,
    PlacementPlan,
    RebalanceOptions,
    RebuildOptions,
    Strategy,
    chunks,
    phased,
)
from autothrottle.core.placement.rebalance import decommission, rebalance, scale
from autothrottle.core.placement.rebuild import rebuild

MIB, GB = 1 << 20, 1 << 30
STORAGE = RebuildOptions(strategy=Strategy.STORAGE)


def partitions(*sets: tuple[int, ...], topic: str = "t", size: int = 100) -> PartitionMap:
    return tuple(PartitionReplicas(topic, number, replicas, size) for number, replicas in enumerate(sets))


def brokers(*ids: int, free: int = 1000, racks: str = "", **flags: bool) -> list[PlacementBroker]:
    names = racks or " " * len(ids)
    return [PlacementBroker(id, rack.strip(), free, **flags) for id, rack in zip(ids, names, strict=True)]


def sets_of(plan: PlacementPlan) -> list[tuple[int, ...]]:
    return [entry.replicas for entry in plan.new_map]


@pytest.mark.parametrize("force", [False, True])
def test_mixed_replication_factors_keep_all_replicas(force: bool) -> None:
    """Placement stopped after as many skipped partitions as there are. Two partitions of RF 4 silently became RF 3."""
    plan = rebuild(partitions((1,), (2,), (1, 2, 3, 4), (2, 3, 4, 1)), brokers(1, 2, 3, 4), RebuildOptions(force=force))
    assert [len(replicas) for replicas in sets_of(plan)] == [1, 1, 4, 4]
    assert plan.warnings == ()


def test_satisfied_racks_do_not_skip_the_storage_check() -> None:
    """With enough distinct racks, a used rack was accepted without a check of its storage. Storage went negative."""
    given = [
        *brokers(1, 2, racks="ab", free=1000),
        PlacementBroker(3, "a", 50),
        PlacementBroker(9, "b", 0, replace=True),
    ]
    options = RebuildOptions(strategy=Strategy.STORAGE, min_rack_ids=2)
    plan = rebuild(partitions((1, 2, 9)), given, options)
    assert sets_of(plan) == [(1, 2)]
    assert len(plan.refusals) == 1


@pytest.mark.parametrize(("old", "new"), [((1, 3, 2), (1, 2, 4)), ((1, 2), (2, 1))])
def test_chunks_contain_no_broker_twice(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    """Chunks replaced replicas index by index. A map on the way named a broker twice, which Kafka refuses."""
    steps = chunks(partitions(old), partitions(new), 1)
    assert all(len(set(entry.replicas)) == len(entry.replicas) for step in steps for entry in step)
    assert steps[-1] == partitions(new)


def test_locality_scoped_moves_place_no_broker_twice() -> None:
    """The destination in the same rack was not compared with the replica set. A set became [2, 2]."""
    given = [PlacementBroker(1, "a", 100), PlacementBroker(2, "a", 900)]
    plan = rebalance(partitions((1, 2)), given, RebalanceOptions(locality_scoped=True))
    assert sets_of(plan) == [(1, 2)]


def test_a_stuck_source_does_not_end_the_moves_of_another() -> None:
    """Failed attempts were counted over all sources and never reset. One stuck source left 8 of 10 moves out."""
    stuck = tuple(PartitionReplicas("a", number, (1, 3), 5000 * MIB) for number in range(2))
    movable = tuple(PartitionReplicas("b", number, (2,), 100 * MIB) for number in range(10))
    given = [
        PlacementBroker(1, "x", 400 * MIB),
        PlacementBroker(2, "y", 300 * MIB),
        PlacementBroker(3, "x", 2300 * MIB),
    ]
    plan = rebalance(stuck + movable, given, RebalanceOptions())
    assert plan.offload_targets == (2, 1)
    assert {move.source for move in plan.relocations} == {2}
    assert len(plan.relocations) >= 7


def test_offline_replicas_and_empty_maps_are_planned() -> None:
    """An offline replica, -1, ended the program with a nil pointer, an empty map with an index out of range."""
    plan = rebuild(partitions((-1, 1)), brokers(1, 2))
    assert sets_of(plan) == [(2, 1)]
    assert rebuild((), brokers(1), RebuildOptions(optimize_leadership=True)).new_map == ()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("strategy", Strategy)
def test_a_rebuild_without_remaining_brokers_warns(strategy: Strategy, force: bool) -> None:
    """The range of no broker's free storage was computed, which ended the plan with a ValueError."""
    options = RebuildOptions(strategy=strategy, force=force)
    plan = rebuild(partitions((1,)), brokers(1, replace=True), options)
    assert plan.warnings == ("t p0: No additional brokers that meet Constraints",)


SCRIPT = """
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.core.placement.plan import RebuildOptions, Strategy
from autothrottle.core.placement.rebalance import scale
from autothrottle.core.placement.rebuild import rebuild
entries = [PartitionReplicas(f"t{n % 3}", n, (n % 5, (n + 1) % 5), 100 + n % 2) for n in range(60)]
brokers = [PlacementBroker(n, f"r{n % 3}", 9000 + n, new=n > 4) for n in range(8)]
for strategy in Strategy:
    print(rebuild(entries[::-1], brokers, RebuildOptions(strategy=strategy, force=True)).new_map)
print(scale(entries, brokers[::-1]).new_map)
"""


def test_the_same_input_gives_the_same_bytes_with_any_hash_seed() -> None:
    """Maps depended on the order of goroutines and of a map. 30 runs with equal sizes gave 30 different maps."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_a_dot_in_a_topic_name_selects_that_topic_only() -> None:
    """A name with a dot was an unanchored expression, and selected other topics too. No topics were accepted."""
    assert matching_topics(["a.b", "a.b.c", "axb"], ["a.b"]) == ("a.b",)
    assert matching_topics(["test_1", "my_test_1"], ["test_.*"]) == ("test_1",)
    with pytest.raises(Invalid, match="no topic is given"):
        matching_topics(["a"], [""])


def test_the_size_factor_applies_to_removed_and_placed_replicas() -> None:
    """Removed replicas freed their plain size, and placed ones took the size with the factor. Free storage shrank."""
    options = RebuildOptions(strategy=Strategy.STORAGE, force=True, partition_size_factor=2.0)
    plan = rebuild(partitions((1,), (2,), size=1000), brokers(1, 2, free=10), options)
    assert sorted(sets_of(plan)) == [(1,), (2,)]
    assert plan.warnings == ()


def test_substitutes_keep_the_rules_of_their_new_set() -> None:
    """A substitute was counted as used although it was rejected, and was not compared with the new set."""
    given = [
        *brokers(1, 2, racks="ab"),
        *brokers(3, racks="b", replace=True),
        *brokers(4, 5, racks="bc", new=True),
    ]
    plan = rebuild(partitions((1, 3), (2, 3)), given, RebuildOptions(substitution_affinity=True))
    assert plan.affinities[0][:2] == (3, 4)
    assert sets_of(plan)[0] == (1, 4)
    assert sets_of(plan)[1] in [(2, 1), (2, 5)]


def test_leadership_leaves_evacuated_brokers_in_the_final_phase() -> None:
    """Leadership was evacuated after the phases were made. Phase 0 was written or not by the other phase's changes."""
    evacuation = LeadershipEvacuation(frozenset({1}), frozenset({"t"}))
    plan = rebuild(partitions((1, 2), (2, 1)), brokers(1, 2), RebuildOptions(evacuation=evacuation))
    first, last = phased(plan.old_map, plan.new_map)
    assert [entry.replicas for entry in first] == [(1, 2), (2, 1)]
    assert [entry.replicas for entry in last] == [(2, 1), (2, 1)]
    with pytest.raises(Invalid, match="all replicas of t p0"):
        rebuild(partitions((1,)), brokers(1), RebuildOptions(evacuation=evacuation))


def test_reassignments_in_progress_and_pending_deletes_are_considered() -> None:
    """Plans started from the replicas of the moment, and included topics that were being deleted."""
    current = partitions((1, 2, 3)) + partitions((1, 2), topic="gone")
    assert settled(current, {("t", 0): (1, 3)}, frozenset({"gone"})) == partitions((1, 3))


@pytest.mark.parametrize("strategy", Strategy)
def test_each_strategy_honours_substitution_affinity(strategy: Strategy) -> None:
    """Placement by storage printed the affinities and ignored them."""
    given = [*brokers(1, racks="a"), *brokers(2, racks="b", replace=True), *brokers(3, 4, racks="bb", new=True)]
    given[-1] = PlacementBroker(4, "b", 9_000, new=True)
    plan = rebuild(partitions((1, 2)), given, RebuildOptions(strategy=strategy, substitution_affinity=True))
    assert sets_of(plan) == [(1, 3)]


def test_a_storage_threshold_of_zero_moves_replicas() -> None:
    """With a threshold of 0 only new brokers could receive, so that without new brokers nothing moved."""
    given = [PlacementBroker(1, "", 200), PlacementBroker(2, "", 600)]
    plan = rebalance(partitions((1,), (1,), (1,), (1,)), given, RebalanceOptions(storage_threshold=0))
    assert len(plan.relocations) == 2


def test_untouched_partitions_keep_their_leaders() -> None:
    """Placement by storage shuffled every replica set: replacing one of 500 brokers changed 133,482 leaders."""
    sets = [(number % 4 + 1, (number + 1) % 4 + 1) for number in range(40)]
    given = [*brokers(1, 2, 3, free=9000), *brokers(4, replace=True), *brokers(5, free=9000, new=True)]
    for optimization in (Optimization.DISTRIBUTION, Optimization.STORAGE):
        options = RebuildOptions(strategy=Strategy.STORAGE, optimization=optimization)
        plan = rebuild(partitions(*sets), given, options)
        for old, new in zip(sets, sets_of(plan), strict=True):
            assert [broker for broker in old if broker != 4] == [b for a, b in zip(old, new, strict=True) if a != 4]


@pytest.mark.parametrize("optimization", [Optimization.DISTRIBUTION, Optimization.STORAGE])
def test_placement_by_storage_pairs_many_brokers(optimization: Optimization) -> None:
    """Partitions of equal size went to the same triples of brokers: each broker had a degree of 2."""
    sets = [(number % 9 + 1, (number + 1) % 9 + 1, (number + 2) % 9 + 1) for number in range(90)]
    options = RebuildOptions(strategy=Strategy.STORAGE, optimization=optimization, force=True)
    plan = rebuild(partitions(*sets), brokers(*range(1, 10), free=9000, racks="abcabcabc"), options)
    assert plan.new_statistics.degree.min == 6


def test_the_partition_limit_counts_the_moves_of_each_source() -> None:
    """The limit was a window of each attempt: a limit of 1 planned 60 moves."""
    given = [PlacementBroker(1, "", 100), PlacementBroker(2, "", 5100)]
    plan = rebalance(partitions(*[(1,)] * 50), given, RebalanceOptions(partition_limit=3))
    assert len(plan.relocations) == 3


def test_smaller_partitions_than_the_threshold_stay() -> None:
    """The threshold for sizes ended one window of partitions, so that smaller ones moved in a later attempt."""
    given = [PlacementBroker(1, "", 100), PlacementBroker(2, "", 5100)]
    small = partitions(*[(1,)] * 20, topic="small", size=50)
    plan = rebalance(partitions(*[(1,)] * 30) + small, given, RebalanceOptions(partition_size_threshold=100))
    assert {move.partition.topic for move in plan.relocations} == {"t"}


def test_new_brokers_do_not_offload() -> None:
    """A new broker with less free storage than the threshold became an offload target itself."""
    given = [PlacementBroker(1, "", 100), PlacementBroker(2, "", 5000), PlacementBroker(3, "", 80, new=True)]
    plan = rebalance(partitions(*[(1,)] * 30), given, RebalanceOptions(storage_threshold=0.2))
    assert plan.offload_targets == (1,)
    plan = scale(partitions(*[(1,)] * 30), given)
    assert {move.source for move in plan.relocations} == {1}


def test_select_brokers_orders_its_messages() -> None:
    """The lines of the broker change summary had a random order."""
    cluster = {id: PlacementBroker(id, "a") for id in (1, 2, 5)}
    found = select_brokers(partitions((1, 2), (3, 4)), [-1, 5, 6], cluster)
    assert found.messages == (
        "Previous broker 3 missing",
        "Previous broker 4 missing",
        "New broker 5",
        "Broker 6 not found in the cluster",
    )
    assert (found.replaced, found.added, found.missing, found.old_missing) == (2, 1, 3, 0)


@pytest.mark.parametrize("force", [False, True])
def test_a_huge_replication_factor_takes_no_more_replicas_than_brokers(force: bool) -> None:
    """A viewer's request with the factor 2^31 - 1 made lists of as many holes. It took 20 GB, and the process died."""
    plan = rebuild(partitions((1, 2)), brokers(1, 2, 3), RebuildOptions(replication_factor=2**31 - 1, force=force))
    assert [sorted(replicas) for replicas in sets_of(plan)] == [[1, 2, 3]]
    assert plan.warnings == ("t p0: No additional brokers that meet Constraints",)


def six_brokers(*gone: int, free: int | None = None) -> list[PlacementBroker]:
    racks = dict(zip(range(1001, 1007), "abcabc", strict=True))
    return [PlacementBroker(id, rack, free, replace=id in gone) for id, rack in racks.items()]


def across_racks(count: int = 40, size: int | None = None) -> list[PartitionReplicas]:
    sets = [(1001 + n % 3, 1001 + (n + 1) % 3, 1004 + (n + 2) % 3) for n in range(count)]
    return [PartitionReplicas("t", number, replicas, size) for number, replicas in enumerate(sets)]


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("min_rack_ids", [0, 3])
@pytest.mark.parametrize("force", [False, True])
def test_a_lost_rack_refuses_the_plan_unless_fewer_racks_are_allowed(
    strategy: Strategy, min_rack_ids: int, force: bool
) -> None:
    """A set used as many racks as the listed brokers have. A map with 40 shared racks was written without a warning."""
    given, rows = six_brokers(1003, 1006, free=1000), across_racks(size=1)
    options = RebuildOptions(strategy=strategy, min_rack_ids=min_rack_ids, force=force)
    plan = rebuild(rows, given, options)
    (refusal,) = plan.refusals
    assert refusal.startswith("40 of 40 partitions would have two replicas in one rack, for example t p0, t p1, t p2: ")
    assert "no broker that may receive replicas is in rack c" in refusal
    assert plan.warnings == (refusal,)
    allowed = rebuild(rows, given, replace(options, allow_fewer_racks=True))
    assert (allowed.refusals, allowed.accepted_warnings, allowed.new_map) == ((), (refusal,), plan.new_map)
    assert not rebuild(rows, given, replace(options, min_rack_ids=2)).warnings
    assert decommission(rows, six_brokers(free=1000), [1003, 1006]).refusals == (refusal,)


def test_partitions_that_share_a_rack_already_are_no_reason_to_refuse() -> None:
    """Two of the three replicas share a rack before the plan. Only a replica that the plan places there counts."""
    two_racks = [*brokers(1, 2, 3, 4, 6, racks="ababb"), PlacementBroker(5, "b", replace=True)]
    plan = rebuild(partitions((1, 3, 5), (1, 2, 3)), two_racks)
    assert (plan.refusals, sets_of(plan)[1]) == ((), (1, 2, 3))
    leaving = [replace(broker, replace=broker.id == 3) for broker in [*two_racks[:5], *brokers(7, racks="a")]]
    plan = rebuild(partitions((1, 2, 3), (2, 4, 1)), leaving)
    assert plan.refusals[0].startswith("1 of 2 partitions ") and "they need 3 racks" in plan.refusals[0]
    assert not rebuild(partitions((1, 2, 3)), leaving, RebuildOptions(min_rack_ids=2)).refusals
    grows = rebuild(partitions((1, 2)), brokers(1, 2, 3, racks="aba"), RebuildOptions(replication_factor=3))
    assert grows.refusals[0].startswith("1 of 1 partitions ") and "they need 3 racks" in grows.refusals[0]


def test_a_smaller_replication_factor_keeps_the_racks_that_it_can() -> None:
    """The replica that leaves was dropped first. The two others stayed in one rack, although another rack had room."""
    given = [*brokers(1, 2, 4, racks="aab"), PlacementBroker(3, "b", replace=True)]
    plan = rebuild(partitions((1, 2, 3)), given, RebuildOptions(replication_factor=2))
    assert (sets_of(plan), plan.refusals) == ([(1, 4)], ())


def test_no_replica_leaves_a_cordoned_rack_for_a_shared_one() -> None:
    """Racks whose brokers all are cordoned did not count. A rebalance moved their replicas into racks in use."""
    given = [
        PlacementBroker(1, "a", 900),
        PlacementBroker(2, "b", 900),
        PlacementBroker(3, "c", 10, cordoned=True),
        PlacementBroker(4, "a", 900),
    ]
    assert rebalance(partitions(*[(1, 2, 3)] * 4), given).relocations == ()


def test_a_rise_that_replicas_of_leaving_brokers_cause_is_a_note() -> None:
    """A rack takes the replicas of its own broker, so that the range grows. That warning stopped decommissions."""
    plan = decommission(across_racks(size=100), six_brokers(free=10_000), [1006])
    assert plan.warnings == ()
    assert [note for note in plan.notes if note.startswith("the range of free storage grows from 0 bytes to ")]


@pytest.mark.parametrize("plan_of", [rebalance, scale])
def test_exhausted_storage_is_why_nothing_moves_in_a_rebalance_or_scale(plan_of: Callable[..., PlacementPlan]) -> None:
    """Broker 1 was full, and no other broker had room for one of its replicas. The plan was empty and silent."""
    rows = [PartitionReplicas("t", number, (1,), 50 * GB) for number in range(4)]
    given = [PlacementBroker(1, "a", 0), PlacementBroker(2, "b", 20 * GB), PlacementBroker(3, "c", 10 * GB, new=True)]
    plan = plan_of(rows, given)
    assert (plan.relocations, plan.warnings) == ((), ())
    assert plan.notes == (
        "storage is exhausted: the smallest replica that may leave broker 1 has 53.69 GB, and broker 2 has the most "
        "free storage and lacks 32.21 GB for it; add brokers or storage",
    )
    roomy = plan_of(rows, [*given, PlacementBroker(4, "d", 200 * GB, new=True)])
    assert roomy.relocations != ()
    assert not any("exhausted" in note for note in roomy.notes)


def test_exhausted_storage_names_the_brokers_and_what_they_lack() -> None:
    """Every broker of the rack was too small. The warning said only that no broker meets the constraints."""
    given = [*brokers(1, 2, racks="ab", free=5 * GB), PlacementBroker(3, "c", 2 * GB), PlacementBroker(4, "c", GB)]
    given.append(PlacementBroker(9, "c", 0, replace=True))
    rows = [PartitionReplicas("t", 0, (1, 2, 9), 3 * GB)]
    plan = rebuild(rows, given, RebuildOptions(strategy=Strategy.STORAGE))
    assert (
        plan.refusals
        == plan.warnings
        == (
            "t p0: No additional brokers that meet Constraints: storage is exhausted for a replica of 3.22 GB: broker "
            "3 lacks 1.07 GB (2.15 GB free), broker 4 lacks 2.15 GB (1.07 GB free)",
        )
    )
    options = RebuildOptions(strategy=Strategy.STORAGE, allow_fewer_racks=True)
    given[0] = replace(given[0], cordoned=True)
    given.append(PlacementBroker(5, "a", 5 * GB))
    plan = rebuild(rows, given, options)
    assert (sets_of(plan), plan.refusals, len(plan.accepted_warnings)) == ([(1, 2, 5)], (), 1)


def test_more_replicas_than_racks_are_spread_evenly_over_the_racks() -> None:
    """With every rack in use, a further replica went to any of them. One rack got three of four replicas."""
    two_racks = [PlacementBroker(id, "ab"[id % 2], 10_000) for id in range(1, 9)]
    for options in (RebuildOptions(force=True), replace(STORAGE, force=True), RebuildOptions()):
        options = replace(options, allow_fewer_racks=True)
        gone = [replace(broker, replace=broker.id == 8) for broker in two_racks]
        plan = rebuild(partitions(*[(2, 4, 1, 3), (8, 6, 5, 7)] * 8), gone, options)
        assert {sum(id % 2 for id in replicas) for replicas in sets_of(plan)} == {2}
        assert plan.refusals == ()
