"""The broker counts of a workload, and the copy time that they promise."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.capacity.sizing import (
    CopyTarget,
    Dimension,
    InstanceType,
    Loss,
    RecoveryGoal,
    UsableShares,
    Workload,
    broker_use,
    cheapest,
    check_inputs,
    larger_workloads,
    recovery_seconds,
    sizing,
)
from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.errors import Invalid
from autothrottle.core.forecast.eta import Goal, Transfer, Transfers, estimate
from autothrottle.core.records import Decision, Reason
from autothrottle.core.traffic.loads import Capacity
from autothrottle.planning_messages import capacity_field
from autothrottle_client.plan_options import capacity_flag
from autothrottle_lab.simulate.virtual_time import VirtualBroker, VirtualReassignment, VirtualRecovery, VirtualScenario
from autothrottle_lab.simulation.link import ClientTraffic

HOUR = timedelta(hours=1)
WORKLOAD = Workload(1e9, 12 * HOUR, fan_out=3, replication=3)
SMALL = InstanceType("small", 4e12, 625e6, 625e6, 590e6, 500)
GOAL = RecoveryGoal(within=2 * HOUR)

workloads = st.builds(
    Workload,
    bytes_in=st.floats(1e6, 1e10),
    retention=st.timedeltas(min_value=timedelta(minutes=1), max_value=timedelta(days=30)),
    fan_out=st.floats(0, 20),
    replication=st.integers(1, 5),
    partitions=st.integers(0, 100_000),
)
instances = st.builds(
    InstanceType,
    name=st.just("any"),
    storage=st.floats(1e12, 1e14),
    network_in=st.floats(1e8, 1e10),
    network_out=st.floats(1e8, 1e10),
    disk=st.floats(1e8, 1e10),
    price=st.floats(0, 1e5),
)
goals = st.builds(
    RecoveryGoal,
    loss=st.sampled_from(Loss),
    racks=st.integers(2, 5),
    copy_target=st.sampled_from(CopyTarget),
    within=st.timedeltas(min_value=HOUR, max_value=timedelta(days=2)),
)


def test_each_dimension_gets_the_ceiling_of_its_need() -> None:
    counts = sizing(WORKLOAD, SMALL, UsableShares(), GOAL).counts
    assert counts[Dimension.STORAGE] == math.ceil(129.6 / 3.2)
    assert counts[Dimension.NETWORK_IN] == math.ceil(3000 / 500)
    assert counts[Dimension.NETWORK_OUT] == math.ceil(5000 / 500)
    assert counts[Dimension.DISK] == math.ceil(3000 / 472)


def test_the_network_carries_replication_in_both_directions() -> None:
    use = broker_use(WORKLOAD, 10)
    assert (use.network_in, use.network_out) == (1e9 * 3 / 10, 1e9 * (3 - 1 + 3) / 10)


def test_survivors_serve_all_consumers_of_a_lost_broker() -> None:
    whole, degraded = broker_use(WORKLOAD, 10), broker_use(WORKLOAD, 10, lost=1)
    assert degraded.network_out * 9 == pytest.approx(whole.network_out * 10 - whole.network_in)
    assert degraded.network_out > whole.network_out


def test_an_exact_fit_needs_no_further_broker() -> None:
    workload = Workload(1e8, HOUR, replication=3)
    instance = replace(SMALL, storage=1e8 * 3600 * 3 / 0.8 / 7)
    assert sizing(workload, instance, UsableShares(), GOAL).counts[Dimension.STORAGE] == 7


def test_growth_multiplies_traffic_and_storage() -> None:
    grown = replace(WORKLOAD, growth=0.05, months=12)
    assert grown.peak == pytest.approx(1e9 * 1.05**12)
    assert grown.stored == pytest.approx(WORKLOAD.stored * 1.05**12)


def test_the_mean_rate_fills_the_storage_and_the_peak_the_network() -> None:
    plan = sizing(replace(WORKLOAD, mean_bytes_in=0.5e9), SMALL, UsableShares(), GOAL)
    assert plan.counts[Dimension.STORAGE] == math.ceil(64.8 / 3.2)
    assert plan.counts[Dimension.NETWORK_OUT] == 10


def test_survivors_that_receive_the_replicas_need_storage_for_them() -> None:
    goal = replace(GOAL, copy_target=CopyTarget.SURVIVORS)
    plan = sizing(WORKLOAD, SMALL, UsableShares(), goal)
    assert plan.brokers == plan.counts[Dimension.STORAGE] + 1
    assert plan.limit is Dimension.RECOVERY


def test_survivors_are_as_many_as_the_replicas() -> None:
    """Three brokers were the answer for three replicas, but the two that survive cannot hold three replicas."""
    workload = Workload(1e3, HOUR, replication=3)
    onto = replace(GOAL, copy_target=CopyTarget.SURVIVORS)
    assert sizing(workload, SMALL, UsableShares(), onto).brokers == 4
    assert sizing(workload, SMALL, UsableShares(), replace(onto, loss=Loss.RACK)).brokers == 5


def test_an_impossible_recovery_is_an_error_that_names_the_instance_type() -> None:
    with pytest.raises(Invalid, match=r"small: more than 10000 brokers .* allow a longer recovery"):
        sizing(WORKLOAD, replace(SMALL, disk=1.0), UsableShares(), GOAL)


@pytest.mark.parametrize(
    ("workload", "goal", "text"),
    [
        (replace(WORKLOAD, replication=1), GOAL, "1 replica does not survive a loss"),
        (WORKLOAD, replace(GOAL, loss=Loss.RACK, racks=1), "the only rack cannot be lost"),
    ],
)
def test_a_loss_that_takes_the_last_replica_is_an_error(workload: Workload, goal: RecoveryGoal, text: str) -> None:
    """A single replica got a time in which it is copied, although its loss leaves nothing to copy.

    The loss of the only rack was a matter of more than 10,000 brokers.
    """
    with pytest.raises(Invalid, match=text):
        sizing(workload, SMALL, UsableShares(), goal)
    assert sizing(workload, SMALL, UsableShares(), replace(goal, loss=Loss.NONE)).recovery_seconds == 0


@given(workloads, instances, goals)
def test_the_count_is_the_smallest_that_meets_every_limit(
    workload: Workload, instance: InstanceType, goal: RecoveryGoal
) -> None:
    shares = UsableShares()
    try:
        plan = sizing(workload, instance, shares, goal)
    except Invalid:
        return
    assert _suffices(plan.brokers, workload, instance, shares, goal)
    if plan.brokers > max(workload.replication, 2):
        assert not _suffices(plan.brokers - 1, workload, instance, shares, goal)


def _suffices(
    brokers: int, workload: Workload, instance: InstanceType, shares: UsableShares, goal: RecoveryGoal
) -> bool:
    """Whether every resource of a broker is within its share, and a loss is repaired in time."""
    use, lost = broker_use(workload, brokers), goal.lost(brokers)
    holders = brokers - lost if goal.copy_target is CopyTarget.SURVIVORS else brokers
    slack = 1 + 1e-6
    return (
        brokers >= workload.replication
        and holders >= (workload.replication if lost else 1)
        and use.storage * brokers / holders <= shares.storage * instance.storage * slack
        and use.network_in <= shares.network_in * instance.network_in * slack
        and use.network_out <= shares.network_out * instance.network_out * slack
        and use.disk <= shares.disk * instance.disk * slack
        and use.partitions <= shares.partitions * slack
        and recovery_seconds(workload, instance, brokers, goal) <= goal.within.total_seconds()
    )


@given(workloads, instances, st.integers(2, 200))
def test_more_brokers_copy_a_lost_one_at_least_as_fast(
    workload: Workload, instance: InstanceType, brokers: int
) -> None:
    seconds = [recovery_seconds(workload, instance, count, RecoveryGoal()) for count in (brokers, brokers + 1)]
    assert seconds[1] <= seconds[0] * (1 + 1e-9)


def test_each_input_is_made_larger_alone() -> None:
    larger = larger_workloads(replace(WORKLOAD, partitions=5), 1.5)
    assert larger["bytes-in"].stored == 1.5 * WORKLOAD.stored
    assert larger["retention"].peak == WORKLOAD.peak
    assert (larger["replication"].replication, larger["partitions"].partitions) == (5, 8)
    assert "growth" not in larger


def test_the_cheapest_of_equal_prices_has_the_fewest_brokers() -> None:
    shares = UsableShares()
    plans = [sizing(WORKLOAD, replace(SMALL, price=0, storage=size), shares, GOAL) for size in (4e12, 8e12)]
    assert cheapest(plans) is plans[1]


def test_the_copy_time_agrees_with_the_estimate_of_the_planner() -> None:
    brokers = 41
    use, survivors = broker_use(WORKLOAD, brokers, lost=1), brokers - 1
    sides = {(1, ReplicaRole.FOLLOWER): Transfer(round(use.storage), round(use.network_in))}
    rates = {(1, ReplicaRole.FOLLOWER): round(0.9 * SMALL.network_in)}
    for leader in range(2, survivors + 2):
        side = leader, ReplicaRole.LEADER
        sides[side] = Transfer(round(use.storage / survivors), round(use.network_in / survivors))
        rates[side] = round(0.9 * (SMALL.network_out - use.network_out))
    decisions = [
        Decision(broker_id, role, rate, Reason.HEADROOM, capacity_bytes_per_second=round(SMALL.network_in))
        for (broker_id, role), rate in rates.items()
    ]
    seconds = estimate(Transfers(sides, partitions=1), decisions, Goal(), 1).seconds
    assert seconds == pytest.approx(recovery_seconds(WORKLOAD, SMALL, brokers, GOAL), rel=1e-6)


def scenario(workload: Workload, instance: InstanceType, brokers: int) -> VirtualScenario:
    """A lost broker of an even cluster, and a new one that replaces it."""
    use, survivors = broker_use(workload, brokers, lost=1), range(1, brokers)
    partitions = 2 * len(survivors)
    produced = round(use.network_in / partitions)
    moves = []
    for number in range(partitions):
        leader = survivors[number % len(survivors)]
        follower = survivors[(number + 1 + number // len(survivors)) % len(survivors)]
        replicas = leader, follower, 2001
        moves.append(
            VirtualReassignment(
                "orders", number, use.storage / partitions, replicas, (leader, follower, 1001), produced
            )
        )
    # The simulation adds what the in-sync followers of these partitions copy.
    in_sync = produced * partitions / len(survivors)
    served = ClientTraffic.constant(round(use.network_out - in_sync), round(use.network_in - in_sync))
    capacity = Capacity(round(instance.network_out), round(instance.network_in))
    links = {id: VirtualBroker(capacity, served) for id in survivors}
    return VirtualScenario({**links, 1001: VirtualBroker(capacity, ClientTraffic.constant(0, 0))}, moves)


@pytest.mark.parametrize(
    ("workload", "instance"),
    [
        (replace(WORKLOAD, bytes_in=0.2e9, retention=HOUR), replace(SMALL, storage=0.5e12)),
        pytest.param(WORKLOAD, SMALL, marks=[pytest.mark.repeat, pytest.mark.timeout(1800)]),
    ],
    ids=["6 brokers", "docs/capacity.md"],
)
def test_the_promised_copy_time_is_confirmed_by_a_simulation(workload: Workload, instance: InstanceType) -> None:
    plan = sizing(workload, instance, UsableShares(), GOAL)
    seconds = VirtualRecovery(scenario(workload, instance, plan.brokers)).run()
    assert seconds == pytest.approx(plan.recovery_seconds, rel=0.05)


def test_a_growth_beyond_all_numbers_is_refused() -> None:
    workload = Workload(1e6, timedelta(hours=1), growth=20.0, months=240)
    with pytest.raises(Invalid, match="growth of 2000% per month for 240 months is too large"):
        _ = workload.peak


@pytest.mark.parametrize(
    ("value", "of_service", "of_command_line"),
    [
        (replace(WORKLOAD, bytes_in=0), "bytes_in_per_second 0 must be in [1, 1e+15]", "--bytes-in 0 must be"),
        (replace(WORKLOAD, retention=0 * HOUR), "retention of 0 s must be in (0, ", "--retention of 0 s must be"),
        (
            replace(WORKLOAD, mean_bytes_in=2e9),
            "mean_bytes_in_per_second 2e+09 must be at most bytes_in_per_second",
            "--mean-bytes-in 2e+09 must be at most --bytes-in",
        ),
        (replace(WORKLOAD, fan_out=math.nan), "fan_out nan must be in [0, 10000]", "--fan-out nan must be"),
        (replace(WORKLOAD, replication=-1), "replication -1 must be in [1, 100]", "--replication -1 must be"),
        (replace(SMALL, storage=-1), "storage_bytes -1 must be in [1, 1e+18]", "storage -1 must be"),
        (UsableShares(storage=1.5), "storage 1.5 must be in [0.001, 1]", "--storage-share 1.5 must be"),
        (UsableShares(disk=5e-324), "disk 4.94066e-324 must be in [0.001, 1]", "--disk-share 4.94066e-324 must be"),
        (replace(GOAL, within=4000 * 24 * HOUR), "recover_within of 3.456e+08 s", "--recover-within of 3.456e+08 s"),
    ],
)
def test_an_input_out_of_its_range_is_named_as_the_caller_spells_it(
    value: Any, of_service: str, of_command_line: str
) -> None:
    inputs: dict[type, Any] = {type(each): each for each in (WORKLOAD, SMALL, UsableShares(), GOAL)}
    workload, instance, shares, goal = (inputs | {type(value): value}).values()
    for name, problem in ((capacity_field, of_service), (capacity_flag, of_command_line)):
        with pytest.raises(Invalid) as refused:
            check_inputs(workload, [instance], shares, goal, name)
        assert str(refused.value).startswith(problem)
