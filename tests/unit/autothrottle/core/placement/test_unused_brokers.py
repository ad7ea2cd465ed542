"""Why a plan gives a new broker no replica."""

from __future__ import annotations

import pytest

from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.core.placement.plan import RebalanceOptions, RebuildOptions
from autothrottle.core.placement.rebalance import decommission, rebalance, scale
from autothrottle.core.placement.rebuild import rebuild

GB = 2**30
ROWS = tuple(PartitionReplicas("t", number, (1 + number % 2, 3), GB) for number in range(6))
OLD = (PlacementBroker(1, "a", 10 * GB), PlacementBroker(2, "a", 10 * GB), PlacementBroker(3, "b", 10 * GB))


@pytest.mark.parametrize(
    ("new_broker", "options", "reason"),
    [
        (PlacementBroker(4, "c", 90 * GB, new=True, cordoned=True), RebalanceOptions(), "cordoned"),
        (
            PlacementBroker(4, "c", 10 * GB, new=True),
            RebalanceOptions(),
            "no other broker has less free storage than the mean, 10.74 GB",
        ),
        (
            PlacementBroker(4, "c", 50 * GB, new=True),
            RebalanceOptions(storage_threshold_bytes=GB),
            "no other broker has so little free storage that the threshold lets it offload",
        ),
        (
            PlacementBroker(4, "c", 90 * GB, new=True),
            RebalanceOptions(partition_size_threshold=2 * GB),
            "all partitions of broker 1, 2, 3, which would offload, are smaller than the smallest one to move, 2.15 GB "
            "(partition-size-threshold)",
        ),
        (
            PlacementBroker(4, "c", 90 * GB, new=True),
            RebalanceOptions(locality_scoped=True),
            "replicas stay in their racks (locality-scoped), and no broker of rack c offloads",
        ),
    ],
)
def test_a_rebalance_says_why_a_new_broker_gets_no_replica(
    new_broker: PlacementBroker, options: RebalanceOptions, reason: str
) -> None:
    plan = rebalance(ROWS, [*OLD, new_broker], options)
    assert plan.new_map == plan.old_map
    assert f"new broker 4 without a replica: {reason}" in plan.notes


def test_a_new_broker_that_is_as_full_as_the_others_is_named() -> None:
    brokers = [PlacementBroker(1, "a", GB), *OLD[1:], PlacementBroker(4, "c", 2 * GB, new=True)]
    notes = scale(ROWS, brokers).notes
    assert "new broker 4 without a replica: its free storage, 2.15 GB, is not above the mean, 6.17 GB" in notes


def test_a_rack_that_has_every_partition_already_is_named() -> None:
    rows = [PartitionReplicas("t", number, (1, 3), GB) for number in range(6)]
    full = PlacementBroker(1, "a", 0)
    brokers = [full, PlacementBroker(3, "b", 40 * GB), PlacementBroker(4, "b", 50 * GB, new=True)]
    notes = rebalance(rows, brokers, RebalanceOptions(storage_threshold_bytes=GB)).notes
    assert (
        "new broker 4 without a replica: its rack b already has a replica of each partition that may leave broker 1"
        in (notes)
    )


def test_new_brokers_of_a_rebuild_share_a_sentence() -> None:
    new_brokers = [PlacementBroker(id, "c", 10 * GB, new=True) for id in range(4, 11)]
    (note,) = rebuild(ROWS, [*OLD, *new_brokers]).notes
    assert note.startswith(
        "new brokers 4, 5, 6, 7, 8 and 2 more without a replica: a rebuild only fills the places of "
    )
    assert rebuild(ROWS, [*OLD, new_brokers[0]], RebuildOptions(force=True)).notes == ()


def test_a_rebuild_names_the_rack_of_a_new_broker_that_no_slot_needs() -> None:
    leaving = PlacementBroker(1, "a", 10 * GB, replace=True)
    others = [PlacementBroker(4, "a", 10 * GB, new=True), PlacementBroker(5, "b", 10 * GB, new=True)]
    plan = rebuild(ROWS, [leaving, *OLD[1:], *others])
    assert plan.notes == (
        "new broker 5 without a replica: its rack b already has a replica of each partition that moves",
    )


def test_brokers_that_nobody_named_need_no_reason() -> None:
    assert decommission(ROWS, [*OLD, PlacementBroker(4, "b", 0, new=True)], [1]).notes == ()
