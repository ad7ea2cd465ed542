"""The options of an operation are checked once, under the names of each front end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.operations import MAX_BROKERS, check_options, plan_placement
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.core.placement.plan import (
    DecommissionOptions,
    Optimization,
    PlanOptions,
    PlanScope,
    RebalanceOptions,
    RebuildOptions,
    ScaleOptions,
)
from autothrottle_client.plan_options import flag

SCOPE = PlanScope(("t",), brokers=(1,))


@pytest.mark.parametrize("name", [str, flag], ids=["service", "command line"])
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (RebuildOptions(scope=PlanScope(brokers=(1,))), "no topic is given; give {topics}, '.*' for all topics"),
        (ScaleOptions(scope=PlanScope(("t",))), "no broker is given; give {brokers}, -1 for all brokers of the topics"),
        (RebuildOptions(scope=PlanScope(("t",), (), (1,) * (MAX_BROKERS + 1))), "{brokers} has 10001 entries; list"),
        (RebuildOptions(scope=PlanScope(("t",), (), (-3,))), "{brokers} has broker id -3; it must be >= -2"),
        (RebuildOptions(scope=PlanScope(("t",), (), (1, 1))), "{brokers} names 1 twice; name every broker once"),
        (RebuildOptions(scope=SCOPE, replication_factor=-1), "{replication_factor} -1 must be >= 0; 0 keeps it"),
        (RebuildOptions(scope=SCOPE, brokers_per_step=-1), "{brokers_per_step} -1 must be >= 0; 0 is one step"),
        (RebuildOptions(scope=SCOPE, partition_size_factor=1001), "{partition_size_factor} 1001 must be in (0, 1000]"),
        (
            RebuildOptions(scope=SCOPE, force=True, substitution_affinity=True),
            "{substitution_affinity} has no effect with {force}; leave one of them out",
        ),
        (
            RebuildOptions(scope=SCOPE, leader_evacuation_topics=("t",)),
            "{leader_evacuation_brokers} and {leader_evacuation_topics} belong together; give both or neither",
        ),
        (RebalanceOptions(1.0, scope=SCOPE), "{storage_threshold} 1.0 must be above 0 and below 1; give 0.2"),
        (
            RebalanceOptions(tolerance=1.0, scope=SCOPE),
            "{tolerance} 1.0 must be above 0 and below 1; give 0.2 for 20 %",
        ),
        (
            RebuildOptions(scope=SCOPE, optimization=Optimization.MINIMAL),
            "{optimization} minimal needs {force}; a rebuild without it already moves as little as it can",
        ),
        (DecommissionOptions(scope=SCOPE), "{leaving} names no broker; list the brokers to empty"),
    ],
)
def test_wrong_options_are_refused_under_the_names_of_the_caller(
    options: PlanOptions, problem: str, name: Callable[[str], str]
) -> None:
    class Names(dict[str, str]):
        def __missing__(self, field: str) -> str:
            return name(field)

    with pytest.raises(Invalid) as refused:
        check_options(options, name)
    assert str(refused.value).startswith(problem.format_map(Names()))


def test_a_rebalance_refuses_listed_brokers_that_do_not_exist() -> None:
    """The placement service planned without them, and `topicmappr` refused the same options."""
    cluster = PlacementCluster({1: PlacementBroker(1, "a", 9)}, (PartitionReplicas("t", 0, (1,), 1),))
    for ids in ((1, 2), (2,)):
        with pytest.raises(Invalid, match=r"only allows broker additions: .*Broker 2 not found in the cluster"):
            plan_placement(RebalanceOptions(scope=PlanScope(("t",), (), ids)), cluster)
