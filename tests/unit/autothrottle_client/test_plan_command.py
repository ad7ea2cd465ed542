"""`throttlectl plan` turns its flags into the options that `topicmappr` has."""

from __future__ import annotations

import pytest

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.plan import PlanScope, RebuildOptions, Strategy
from autothrottle_client.plan_command import placement_options
from autothrottle_client.throttlectl import make_parser

REBUILD = ("plan", "rebuild", "--topics", "a,b", "--topics-exclude", "c", "--brokers", "-1,7", "--force")


def test_flags_of_a_rebuild_reach_the_service() -> None:
    flags = (
        *("--by-storage", "--partition-size-factor", "1.5", "--replication", "3", "--phased-reassignment"),
        *("--leader-evac-brokers", "1", "--leader-evac-topics", "a", "--chunk-step-size", "2", "--allow-fewer-racks"),
    )
    assert placement_options(make_parser().parse_args((*REBUILD, *flags))) == RebuildOptions(
        strategy=Strategy.STORAGE,
        force=True,
        replication_factor=3,
        allow_fewer_racks=True,
        partition_size_factor=1.5,
        scope=PlanScope(("a", "b"), ("c",), (-1, 7)),
        leader_evacuation_brokers=(1,),
        leader_evacuation_topics=("a",),
        phased=True,
        brokers_per_step=2,
    )


def test_an_error_names_the_flags() -> None:
    with pytest.raises(Invalid, match=r"^--sub-affinity has no effect with --force; leave one of them out$"):
        placement_options(make_parser().parse_args((*REBUILD, "--sub-affinity")))
