"""The rate of each broker and role with its reason, and the replicas to throttle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    LEADER_RATE,
    LEADER_REPLICAS,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
    ReplicaRole,
)
from autothrottle.core.cluster.flows import CopiedMark, Flow, FlowProgress, Progress
from autothrottle.core.cluster.snapshot import (
    NO_LEADER,
    Assignment,
    Problem,
    Snapshot,
    TopicPartition,
    TopicReassignment,
)
from autothrottle.core.operators.sources import Overrides, StoredOverride
from autothrottle.core.policy.interface import Limits
from autothrottle.core.records import Decision, Reason
from autothrottle.core.throttles.plan import CONSUMER_OFFSETS, DesiredReplicas, Plan, is_small_change, plan
from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Loads, Utilization
from autothrottle.core.traffic.replication import ThrottleHistory
from autothrottle.core.units import MEGABYTE

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
MB = MEGABYTE
START, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 2, tzinfo=UTC)
LIMITS = Limits(min_rate=20 * MB, max_tx_ratio=0.9, max_rx_ratio=0.9, change_threshold=0.1, failure_threshold=1)


def reassignment(
    topic: str = "t",
    leader: int = 1,
    isr: tuple[int, ...] = (1,),
    adding: tuple[int, ...] = (2,),
    partitions: int = 1,
) -> TopicReassignment:
    return TopicReassignment(
        topic=topic,
        partitions=tuple(range(partitions)),
        leaders=(leader,) * partitions,
        isr=(isr,) * partitions,
        adding_replicas=(adding,) * partitions,
        removing_replicas=((),) * partitions,
    )


def snapshot(
    *reassignments: TopicReassignment,
    rates: Mapping[tuple[int, ReplicaRole], str] | None = None,
    written: Mapping[tuple[int, ReplicaRole], str] | None = None,
    replicas: Mapping[int, Mapping[str, tuple[int, ...]]] | None = None,
) -> Snapshot:
    current: dict[ConfigResource, dict[str, str]] = {}
    for (broker_id, role), rate in (rates or {}).items():
        current.setdefault(ConfigResource.broker(broker_id), {})[role.rate_key] = rate
    ledger: dict[ConfigResource, dict[str, LedgerKey]] = {}
    for (broker_id, role), rate in (written or {}).items():
        ledger.setdefault(ConfigResource.broker(broker_id), {})[role.rate_key] = LedgerKey(None, rate)
    return Snapshot(
        version=1,
        brokers=frozenset({1, 2, 3, 4}),
        reassignments=reassignments,
        throttles=current,
        ledger={resource: LedgerEntry(keys, term=1) for resource, keys in ledger.items()},
        replicas=replicas or {},
    )


def loads(brokers: Iterable[int] = (1, 2, 3, 4), used: int = 80 * MB, capacity: int = 200 * MB) -> Loads:
    use, link = Utilization(used, START, END), Capacity(capacity, capacity)
    return Loads({b: BrokerLoad(b, link, use, use) for b in brokers})


def decisions(made: Plan) -> dict[tuple[int, ReplicaRole], tuple[int, Reason]]:
    return {(d.broker_id, d.role): (d.rate_bytes_per_second, d.reason) for d in made.decisions}


MOVING = snapshot(reassignment())
"""Partition 0 of t is reassigned from broker 1 to broker 2."""


# Roles


@pytest.mark.parametrize(
    ("read", "overrides"),
    [
        (loads(), Overrides()),
        (Loads(), Overrides()),
        (loads(), Overrides(cluster=StoredOverride(5 * MB))),
    ],
)
def test_broker_gets_rates_only_for_its_roles(read: Loads, overrides: Overrides) -> None:
    """Defect D27 of the original.

    The original's overrides and fail-safe write both roles on every participant, and the rate of the role that the
    broker never had stays for ever when they end.
    """
    made = plan(MOVING, read, LIMITS, overrides, failures={1: 9, 2: 9})
    assert decisions(made).keys() == {(1, LEADER), (2, FOLLOWER)}


def test_former_leader_has_no_rate() -> None:
    """D30: in the original, former leaders keep their rates until the whole reassignment is over."""
    moved_on = snapshot(reassignment(leader=3, isr=(1, 3)), rates={(1, LEADER): "5"}, written={(1, LEADER): "5"})
    assert decisions(plan(moved_on, loads(), LIMITS)).keys() == {(3, LEADER), (2, FOLLOWER)}


def test_in_sync_partition_has_no_entries() -> None:
    """D30: the rates of former leaders and the entries of finished partitions stayed until the end."""
    made = plan(snapshot(reassignment(isr=(1, 2))), loads(), LIMITS)
    assert made.replicas == {"t": DesiredReplicas(moving=frozenset({0}))}
    assert made.decisions == ()


def test_decisions_are_ordered_by_broker_and_role() -> None:
    made = plan(snapshot(reassignment("a", 3, (3,), (2, 1)), reassignment("b", 1, (1,), (3,))), loads(), LIMITS)
    assert [(d.broker_id, d.role) for d in made.decisions] == [
        (1, FOLLOWER),
        (1, LEADER),
        (2, FOLLOWER),
        (3, FOLLOWER),
        (3, LEADER),
    ]


# Measured rates


def test_decision_contains_its_inputs() -> None:
    current = snapshot(reassignment(), rates={(1, LEADER): str(20 * MB)}, written={(1, LEADER): str(20 * MB)})
    first = plan(current, loads(), LIMITS).decisions[0]
    assert first == Decision(
        broker_id=1,
        role=LEADER,
        rate_bytes_per_second=126 * MB,
        reason=Reason.HEADROOM,
        current_rate_bytes_per_second=20 * MB,
        headroom_bytes_per_second=126 * MB,
        utilization_bytes_per_second=80 * MB,
        capacity_bytes_per_second=200 * MB,
        client_bytes_per_second=60 * MB,
    )


def test_each_direction_has_its_own_capacity_traffic_and_share() -> None:
    load = BrokerLoad(
        1,
        Capacity(outbound=100 * MB, inbound=300 * MB),
        Utilization(40 * MB, START, END),
        Utilization(100 * MB, START, END),
    )
    both = snapshot(reassignment("a"), reassignment("b", 2, (2,), (1,)))
    limits = replace(LIMITS, max_tx_ratio=0.5, max_rx_ratio=1.0)
    made = decisions(plan(both, Loads({1: load}), limits))
    assert made[1, LEADER] == (30 * MB, Reason.HEADROOM)
    assert made[1, FOLLOWER] == (200 * MB, Reason.HEADROOM)


def test_foreign_current_throttle_is_subtracted_too() -> None:
    """Defects D10 and D14 of the original.

    The original remembers a throttle only if it wrote it: other current throttles count as client load in the next
    cycle, and throttles removed in native mode are still subtracted.
    """
    current = snapshot(reassignment(), rates={(1, LEADER): str(20 * MB)})
    assert decisions(plan(current, loads(), LIMITS))[1, LEADER] == (126 * MB, Reason.HEADROOM)
    assert decisions(plan(MOVING, loads(), LIMITS))[1, LEADER] == (108 * MB, Reason.HEADROOM)


def test_change_threshold_compares_with_a_foreign_current_throttle_too() -> None:
    """D10: a throttle that was already set was not taken for the previous one."""
    history = ThrottleHistory().observe(START - timedelta(hours=1), {})
    current = snapshot(reassignment(), rates={(1, LEADER): str(100 * MB)})
    made = plan(current, loads(), LIMITS, history=history)
    assert decisions(made)[1, LEADER] == (100 * MB, Reason.UNCHANGED)


def test_measurement_is_compared_with_the_throttles_of_its_own_interval() -> None:
    history = ThrottleHistory().observe(START, {(1, LEADER): 20 * MB}).observe(END, {(1, LEADER): 60 * MB})
    current = snapshot(reassignment(), rates={(1, LEADER): str(60 * MB)}, written={(1, LEADER): str(60 * MB)})
    made = decisions(plan(current, loads(), LIMITS, history=history))
    assert made[1, LEADER] == (126 * MB, Reason.HEADROOM)


@pytest.mark.parametrize("text", ["-5", "fast", ""])
def test_value_that_does_not_throttle_is_not_a_previous_rate(text: str) -> None:
    current = snapshot(reassignment(), rates={(1, LEADER): text})
    assert decisions(plan(current, Loads(), LIMITS))[1, LEADER] == (20 * MB, Reason.MINIMUM)
    assert plan(current, Loads(), LIMITS).decisions[0].current_rate_bytes_per_second is None


# The change threshold


@pytest.mark.parametrize(
    ("previous", "rate", "small"),
    [
        (100, 100, True),
        (100, 109, True),
        (100, 91, True),
        (100, 110, False),
        (100, 90, False),
        (100, 200, False),
        (0, 0, False),
        (0, 1, False),
        (None, 1, False),
    ],
)
def test_change_below_the_threshold_is_small_but_equality_is_not(previous: int | None, rate: int, small: bool) -> None:
    assert is_small_change(previous, rate, 0.1) is small


# 0.07 * 100 is 7.000000000000001: in floats a change by exactly 7 % was below a threshold of 7 %.
@given(st.integers(1, 1000), st.integers(1, 10**10))
def test_change_equal_to_the_threshold_is_written_for_every_tenth_of_a_percent(tenths: int, thousandth: int) -> None:
    previous = 1000 * thousandth
    for sign in (1, -1):
        assert not is_small_change(previous, previous + sign * tenths * thousandth, tenths / 10 / 100)
        assert is_small_change(previous, previous + sign * (tenths * thousandth - 1), tenths / 10 / 100)


def test_threshold_of_zero_writes_every_change() -> None:
    assert not is_small_change(100, 100, 0.0)


# Missing metrics


def test_broker_without_metrics_fails_alone() -> None:
    """D7: one broker without metrics, or one unknown instance type, aborts the update of all in the original."""
    made = decisions(plan(MOVING, loads(brokers=[1]), LIMITS, failures={2: 2}))
    assert made == {(1, LEADER): (108 * MB, Reason.HEADROOM), (2, FOLLOWER): (20 * MB, Reason.MINIMUM)}


@pytest.mark.parametrize(
    ("failures", "expected"),
    [(0, (70, Reason.KEPT)), (1, (70, Reason.KEPT)), (2, (20 * MB, Reason.MINIMUM))],
)
def test_rates_are_kept_until_failures_exceed_the_threshold(failures: int, expected: tuple[int, Reason]) -> None:
    current = snapshot(reassignment(), rates={(2, FOLLOWER): "70"}, written={(2, FOLLOWER): "70"})
    assert decisions(plan(current, Loads(), LIMITS, failures={2: failures}))[2, FOLLOWER] == expected


def test_broker_without_metrics_and_rate_starts_at_the_minimum() -> None:
    assert decisions(plan(MOVING, Loads(), LIMITS))[2, FOLLOWER] == (20 * MB, Reason.MINIMUM)


def test_fail_safe_rate_is_exact_whatever_the_threshold() -> None:
    """Defect D8 of the original.

    The original's change threshold also suppresses manual overrides and the fail-safe: asked for 100 MB/s where 95
    stand, it keeps 95 and answers that all is well.
    """
    current = snapshot(reassignment(), rates={(2, FOLLOWER): str(21 * MB)}, written={(2, FOLLOWER): str(21 * MB)})
    made = decisions(plan(current, Loads(), LIMITS, failures={2: 2}))
    assert made[2, FOLLOWER] == (20 * MB, Reason.MINIMUM)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (Overrides(cluster=StoredOverride(100 * MB)), Reason.CLUSTER_OVERRIDE),
        (Overrides(brokers={1: StoredOverride(100 * MB)}), Reason.BROKER_OVERRIDE),
        (Overrides(cluster=StoredOverride(3), brokers={1: StoredOverride(100 * MB)}), Reason.BROKER_OVERRIDE),
        (Overrides(cluster=StoredOverride(100 * MB), brokers={1: StoredOverride(0)}), Reason.CLUSTER_OVERRIDE),
    ],
)
@pytest.mark.parametrize("read", [loads(), Loads()])
def test_override_is_exact_whatever_the_threshold_and_metrics(
    overrides: Overrides, reason: Reason, read: Loads
) -> None:
    """D8: the change threshold also suppressed overrides and the fail-safe."""
    current = snapshot(reassignment(), rates={(1, LEADER): str(95 * MB)}, written={(1, LEADER): str(95 * MB)})
    made = decisions(plan(current, read, LIMITS, overrides, failures={1: 9}))
    assert made[1, LEADER] == (100 * MB, reason)


@pytest.mark.parametrize(
    "overrides", [Overrides(StoredOverride(400 * MB)), Overrides(None, {1: StoredOverride(400 * MB)})]
)
def test_the_capacity_of_the_link_limits_an_override_in_both_roles(overrides: Overrides) -> None:
    """An override of 400 MB/s, armed while nothing moved, let the next reassignment take a whole link of 40 MB/s."""
    made = plan(MOVING, loads([1], capacity=40 * MB), LIMITS, overrides, capacities={(1, LEADER): 40 * MB})
    (limited,) = (d for d in made.decisions if (d.broker_id, d.role) == (1, LEADER))
    assert (limited.rate_bytes_per_second, limited.override_bytes_per_second) == (40 * MB, 400 * MB)
    assert limited.reason.is_override
    idle = plan(replace(MOVING, reassignments=()), loads([1], capacity=40 * MB), LIMITS, overrides)
    assert {d.rate_bytes_per_second for d in idle.decisions} <= {40 * MB}


def test_an_override_is_not_limited_beyond_capacity_or_by_an_unknown_link() -> None:
    beyond = Overrides(StoredOverride(400 * MB, beyond_capacity=True))
    for overrides, read in ((beyond, loads(capacity=40 * MB)), (Overrides(StoredOverride(400 * MB)), Loads())):
        made = plan(MOVING, read, LIMITS, overrides)
        assert {(d.rate_bytes_per_second, d.override_bytes_per_second) for d in made.decisions} == {(400 * MB, None)}


# Overrides of brokers outside any reassignment


HOSTED = {3: {"t": (0, 1), "u": (4,), CONSUMER_OFFSETS: (7,)}}


def test_an_override_changes_the_rate_and_nothing_that_is_measured() -> None:
    """An override hid clients, capacity and headroom, just when one slows down to see clients recover."""
    measured = {(d.broker_id, d.role): d for d in plan(MOVING, loads(), LIMITS).decisions}
    for overrides in (Overrides(StoredOverride(7 * MB)), Overrides(brokers={1: StoredOverride(7 * MB)})):
        for decision in plan(MOVING, loads(), LIMITS, overrides).decisions:
            assert decision.capacity_bytes_per_second == 200 * MB, "also of a side that takes part in nothing"
            usual = measured.get((decision.broker_id, decision.role))
            if usual is not None and decision.reason.is_override:
                assert decision == replace(usual, rate_bytes_per_second=7 * MB, reason=decision.reason)
            elif usual is not None:
                assert decision == usual


@pytest.mark.parametrize("overrides", [Overrides(), Overrides(StoredOverride(7 * MB))])
def test_a_broker_that_is_down_has_a_rate_and_no_measurements(overrides: Overrides) -> None:
    """Its row said "clients 0 MB/s" while its last load was still usable, although nothing measures it.

    The rates and the other brokers' decisions are the usual ones.
    """
    down = replace(MOVING, brokers=MOVING.brokers - {2})
    usual, decided = plan(MOVING, loads(), LIMITS, overrides), plan(down, loads(), LIMITS, overrides)
    assert decisions(decided) == decisions(usual)
    of_broker = [d for d in decided.decisions if d.broker_id == 2]
    assert {(d.capacity_bytes_per_second, d.client_bytes_per_second, d.basis) for d in of_broker} == {(None,) * 3}
    assert [d for d in decided.decisions if d.broker_id != 2] == [d for d in usual.decisions if d.broker_id != 2]


def test_broker_override_outside_a_reassignment_sets_both_rates_and_follower_entries() -> None:
    made = plan(
        snapshot(replicas=HOSTED), Loads(), LIMITS, Overrides(brokers={3: StoredOverride(5)}, cluster=StoredOverride(9))
    )
    rate = (5, Reason.BROKER_OVERRIDE)
    assert decisions(made) == {(3, FOLLOWER): rate, (3, LEADER): rate}
    assert made.replicas == {
        "t": DesiredReplicas(follower=frozenset({"0:3", "1:3"})),
        "u": DesiredReplicas(follower=frozenset({"4:3"})),
    }


def test_cluster_override_has_no_effect_without_a_reassignment() -> None:
    made = plan(snapshot(replicas=HOSTED), loads(), LIMITS, Overrides(cluster=StoredOverride(9)))
    assert (made.decisions, made.replicas) == ((), {})


def test_override_of_an_unknown_broker_waits() -> None:
    assert plan(snapshot(), loads(), LIMITS, Overrides(brokers={99: StoredOverride(5)})).decisions == ()


def test_override_of_a_stopped_broker_with_replicas_applies() -> None:
    stopped = snapshot(replicas={99: {"t": (0,)}})
    made = plan(stopped, loads(), LIMITS, Overrides(brokers={99: StoredOverride(5)}))
    assert made.replicas == {"t": DesiredReplicas(follower=frozenset({"0:99"}))}


def test_entries_of_override_and_reassignment_are_merged() -> None:
    """D11: in the original the lists of a reassignment and of an override overwrite each other in turn."""
    made = plan(snapshot(reassignment(), replicas=HOSTED), loads(), LIMITS, Overrides(brokers={3: StoredOverride(5)}))
    assert made.replicas["t"] == DesiredReplicas(
        leader=frozenset({"0:1"}), follower=frozenset({"0:2", "0:3", "1:3"}), moving=frozenset({0})
    )


# D3 of the second edition. An override ended for recovery traffic as soon as its broker took part in a reassignment. A
# broker that restarted during a reassignment caught up at link speed.
@pytest.mark.parametrize("role", ReplicaRole)
def test_override_holds_in_both_roles_while_its_broker_takes_part_in_one(role: ReplicaRole) -> None:
    moves = reassignment(leader=3, isr=(3,)) if role is LEADER else reassignment(adding=(3,))
    made = plan(snapshot(moves, replicas=HOSTED), loads(), LIMITS, Overrides(brokers={3: StoredOverride(5)}))
    own = {found: rate for (broker_id, found), rate in decisions(made).items() if broker_id == 3}
    assert own == dict.fromkeys(ReplicaRole, (5, Reason.BROKER_OVERRIDE))
    assert {"1:3"} <= made.replicas["t"].follower and made.replicas["u"].follower == {"4:3"}


def in_sync(snapshot: Snapshot, *rows: TopicPartition) -> Snapshot:
    """Return the snapshot with the assignments of HOSTED, in which broker 3 is in sync only in these partitions."""
    isr = {(topic, p): (1, 3) if (topic, p) in rows else (1,) for topic, held in HOSTED[3].items() for p in held}
    return replace(snapshot, assignments={row: Assignment((1, 3), 1, synced) for row, synced in isr.items()})


def test_override_of_a_participating_broker_lists_only_its_out_of_sync_replicas() -> None:
    """In-sync replicas were listed beside the reassignment's replicas. Their traffic took the rate of the override."""
    overrides = Overrides(brokers={3: StoredOverride(5)})
    moving = in_sync(snapshot(reassignment(adding=(3,)), replicas=HOSTED), ("t", 1))
    made = plan(moving, loads(), LIMITS, overrides)
    assert made.replicas == {
        "t": DesiredReplicas(leader=frozenset({"0:1"}), follower=frozenset({"0:3"}), moving=frozenset({0})),
        "u": DesiredReplicas(follower=frozenset({"4:3"})),
    }
    down = plan(replace(moving, brokers=moving.brokers - {3}), loads(), LIMITS, overrides)
    assert down.replicas["t"].follower == {"0:3", "1:3"}, "when it starts again it is behind in all of them"
    alone = plan(replace(moving, reassignments=()), loads(), LIMITS, overrides)
    assert alone.replicas["t"].follower == {"0:3", "1:3"}


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=4),
    st.dictionaries(st.sampled_from((3, 4)), st.integers(1, 10**9), min_size=1),
    st.none() | st.integers(1, 10**9),
    st.sets(st.sampled_from((("t", 0), ("t", 1), ("u", 4)))),
)
def test_every_override_of_a_broker_limits_both_roles_and_all_recovery_whatever_moves(
    moves: list[tuple[int, int]], rates: dict[int, int], cluster_rate: int | None, synced: set[TopicPartition]
) -> None:
    moving = [reassignment(f"t{n}", leader, (leader,), (to,)) for n, (leader, to) in enumerate(moves)]
    overrides = Overrides(
        StoredOverride(cluster_rate) if cluster_rate else None,
        {b: StoredOverride(r, beyond_capacity=True) for b, r in rates.items()},
    )
    seen = in_sync(snapshot(*moving, replicas={b: HOSTED[3] if b == 3 else {} for b in rates}), *synced)
    made = plan(seen, loads(), LIMITS, overrides)
    found = decisions(made)
    assert all(found[b, role] == (rate, Reason.BROKER_OVERRIDE) for b, rate in rates.items() for role in ReplicaRole)
    lagging = {(topic, p) for topic, p in seen.assignments if topic != CONSUMER_OFFSETS} - synced
    assert all(f"{p}:3" in made.replicas[topic].follower for topic, p in lagging if 3 in rates)
    without = plan(seen, loads(), LIMITS, replace(overrides, brokers={}))
    for topic, lists in without.replicas.items():
        assert made.replicas[topic].leader == lists.leader and lists.follower <= made.replicas[topic].follower


# Lists


def test_lists_contain_all_in_sync_replicas_and_adding_replicas_outside_the_isr() -> None:
    """Defects D12 and D23 of the original.

    `*` in native mode makes healthy replication use the throttle; KIP-455 reassignments are not detected.
    """
    made = plan(snapshot(reassignment(isr=(1, 3, 4), adding=(4, 2))), loads(), LIMITS)
    assert made.replicas["t"] == DesiredReplicas(
        leader=frozenset({"0:1", "0:3", "0:4"}), follower=frozenset({"0:2"}), moving=frozenset({0})
    )


def test_offline_partition_keeps_its_entries() -> None:
    made = plan(snapshot(reassignment(leader=NO_LEADER, isr=(1,))), loads(), LIMITS)
    assert made.replicas["t"].leader == {"0:1"}
    assert decisions(made).keys() == {(2, FOLLOWER)}


def test_reassignment_of_consumer_offsets_is_throttled_like_any_other() -> None:
    made = plan(snapshot(reassignment(CONSUMER_OFFSETS)), loads(), LIMITS)
    assert made.replicas[CONSUMER_OFFSETS].follower == {"0:2"}


# Hold: nothing may be removed


def test_unreadable_part_of_the_cluster_causes_a_hold() -> None:
    """Defect D1 of the original.

    In the original a ZooKeeper outage or bad JSON reads as "nothing is being reassigned": it removes the throttles
    during the reassignment.
    """
    broken = replace(snapshot(), problems=(Problem("/admin/reassign_partitions", "no JSON"),))
    made = plan(broken, loads(), LIMITS, AUTOREMOVE, after_reassignment=True)
    assert made.hold
    assert not made.finished_override


def test_unreadable_override_causes_a_hold() -> None:
    """D2: an unreadable override counted as no override."""
    assert plan(MOVING, loads(), LIMITS, Overrides(unreadable={1: "no JSON"})).hold


def test_operator_can_keep_throttles() -> None:
    keeping = replace(LIMITS, keep_throttles=True)
    assert plan(Snapshot.empty(), loads(), keeping).hold
    assert not plan(MOVING, loads(), keeping).hold, "lists stay exact during a reassignment"
    assert not plan(MOVING, loads(), LIMITS).hold


# Autoremove


AUTOREMOVE = Overrides(cluster=StoredOverride(9, autoremove=True))


def test_autoremove_override_ends_with_the_last_reassignment() -> None:
    assert plan(snapshot(), loads(), LIMITS, AUTOREMOVE, after_reassignment=True).finished_override
    assert not plan(MOVING, loads(), LIMITS, AUTOREMOVE, after_reassignment=True).finished_override


def test_autoremove_override_waits_for_its_reassignment() -> None:
    # It may be set before the reassignment. The request itself starts a cycle, which must not remove it.
    assert not plan(snapshot(), loads(), LIMITS, AUTOREMOVE).finished_override


def test_new_leader_detects_a_finished_reassignment_from_the_ledger() -> None:
    lists = LedgerEntry({LEADER_REPLICAS: LedgerKey(None, "0:1", frozenset({"0:1"}))}, term=1)
    left = replace(snapshot(), ledger={ConfigResource.topic("t"): lists})
    assert plan(left, loads(), LIMITS, AUTOREMOVE).finished_override
    rates = snapshot(written={(1, LEADER): "5"})
    assert not plan(rates, loads(), LIMITS, AUTOREMOVE).finished_override


def test_broker_override_does_not_keep_the_cluster_override() -> None:
    # In the original any broker override prevents all removals.
    overrides = replace(AUTOREMOVE, brokers={1: StoredOverride(5)})
    assert plan(snapshot(), loads(), LIMITS, overrides, after_reassignment=True).finished_override


@pytest.mark.parametrize(
    "overrides",
    [
        Overrides(),
        Overrides(cluster=StoredOverride(9)),
        Overrides(cluster=StoredOverride(0, autoremove=True)),
        Overrides(brokers={1: StoredOverride(9, autoremove=True)}),
        replace(AUTOREMOVE, unreadable={None: "no JSON"}),
    ],
)
def test_other_overrides_stay(overrides: Overrides) -> None:
    assert not plan(snapshot(), loads(), LIMITS, overrides, after_reassignment=True).finished_override


def test_rates_are_grouped_by_resource_and_key() -> None:
    made = plan(MOVING, loads(), LIMITS)
    assert made.rates == {
        ConfigResource.broker(1): {LEADER_RATE: 108 * MB},
        ConfigResource.broker(2): {FOLLOWER_RATE: 108 * MB},
    }


# Certainty


def decided(start: int, used: int, history: ThrottleHistory) -> tuple[int, Reason]:
    """Broker 2's follower rate, with a current throttle of 90 MB/s and 10 s of metrics that start at a second."""
    use = Utilization(used, START + timedelta(seconds=start), START + timedelta(seconds=start + 10))
    read = Loads({2: BrokerLoad(2, Capacity(120 * MB, 120 * MB), use, use)})
    current = snapshot(reassignment(), rates={(2, FOLLOWER): str(90 * MB)}, written={(2, FOLLOWER): str(90 * MB)})
    return decisions(plan(current, read, LIMITS, history=history))[2, FOLLOWER]


STARTED = ThrottleHistory().observe(START, {}).observe(START + timedelta(seconds=57), {(2, FOLLOWER): 90 * MB})
"""The throttle is in force since second 57."""


def test_raise_relies_on_certain_replication_only() -> None:
    # On real Kafka, with 10 s of metrics, the first cycle of a reassignment saw 3 s of a throttle that replication had
    # not reached yet, mistook the difference for a low client load and raised 9.0 to 10.8 MB/s. The raise became a
    # burst, and the next cycle mistook the burst for clients: 5.4, 2.2, 5.2, 7.9, 10.8, 6.8, 1.8 ...
    assert decided(50, used=20 * MB, history=STARTED) == (90 * MB, Reason.UNCHANGED)
    assert decided(70, used=90 * MB, history=STARTED) == (108 * MB, Reason.HEADROOM)


def test_lowering_needs_no_certainty() -> None:
    clients = 100 - 27
    assert decided(50, used=100 * MB, history=STARTED) == (round((120 - clients) * 0.9 * MB), Reason.HEADROOM)


# Measured replication


def landing(*marks: tuple[float, int], followers: tuple[int, ...] = (2,)) -> Progress:
    """Bytes copied from broker 1 to each follower as (second, bytes), the newest last."""
    *recent, (last, copied) = [(START + timedelta(seconds=second), count) for second, count in marks]
    earlier = tuple(CopiedMark(*mark) for mark in recent)
    count = FlowProgress(copied, 0, 10**12, last, START, earlier)
    return Progress({Flow(1, follower): count for follower in followers}, at=last)


def receiving(progress: Progress | None, current: int | None = 90 * MB) -> Snapshot:
    """Broker 2 is the follower; its current throttle is 90 MB/s by default."""
    rates = {} if current is None else {(2, FOLLOWER): str(current)}
    return replace(snapshot(reassignment(), rates=rates, written=rates), progress=progress)


def rate_of(found: Snapshot, used: int, history: ThrottleHistory) -> int:
    """Broker 2's follower rate from the metrics of seconds 50 to 60."""
    use = Utilization(used, START + timedelta(seconds=50), START + timedelta(seconds=60))
    read = Loads({2: BrokerLoad(2, Capacity(120 * MB, 120 * MB), use, use)})
    return decisions(plan(found, read, LIMITS, history=history))[2, FOLLOWER][0]


SEEN = ThrottleHistory().observe(START, {}).observe(START + timedelta(seconds=57), {}, [(2, FOLLOWER)])
"""A reassignment is seen in second 57, and started up to 3 s before."""

BEGUN = SEEN.observe(START + timedelta(seconds=58), {(2, FOLLOWER): 90 * MB}, [(2, FOLLOWER)])
"""Its throttle is in force since second 58."""

FIRST_SECONDS = landing((55, 0), (57, 700 * MB), (59, 701 * MB), (60, 702 * MB))
"""700 MB in two seconds without a throttle, then hardly anything until the quota window has drained."""


def test_unthrottled_replication_before_the_first_throttle_is_not_client_load() -> None:
    # On real Kafka a reassignment copied 200 to 250 MB in the second before the next poll: 9.0 MB/s became 1.0, and the
    # following raise caused a burst of 1.4 times the throttle.
    clients = 20 * MB
    used = clients + 702 * MB // 10
    assert rate_of(receiving(FIRST_SECONDS), used, BEGUN) == 90 * MB
    assert rate_of(receiving(None), used, BEGUN) == 90 * MB  # nothing is known, so nothing is lowered
    # An older history contains the earlier client load.
    before = Utilization(clients, START, START)
    idle = Loads({2: BrokerLoad(2, Capacity(120 * MB, 120 * MB), before, before)})
    known = BEGUN.measured(idle, ())
    assert known.idle_load((2, FOLLOWER)) == clients
    assert rate_of(receiving(None), used, known) == 90 * MB
    assert rate_of(receiving(None, current=40 * MB), used, known) == 90 * MB


def test_burst_after_the_last_count_is_not_client_load() -> None:
    """The counted mean also stands for the later seconds, except for seconds without a throttle."""
    counted_before = receiving(landing((55, 0), (57.5, 0)))
    assert rate_of(counted_before, used=20 * MB + 702 * MB // 10, history=BEGUN) == 90 * MB


def test_clients_in_the_first_seconds_of_a_reassignment_are_measured_by_bytes_copied() -> None:
    little = landing((55, 0), (57, 300 * MB), (59, 300 * MB), (60, 300 * MB))
    assert rate_of(receiving(little), 110 * MB, BEGUN) == round((120 - 80) * 0.9 * MB)


def test_unused_throttle_does_not_raise_the_rate() -> None:
    # D24: clients at 88 of 100 MB/s and an unused throttle: 10.6, 20.2, 28.8 ... 90 MB/s.
    current = ThrottleHistory().observe(START, {(2, FOLLOWER): 60 * MB})
    found = receiving(landing((0, 0), (30, 0), (60, 0)), current=60 * MB)
    assert rate_of(found, 105 * MB, current) == 20 * MB
    assert rate_of(replace(found, progress=None), 105 * MB, current) > 60 * MB


def test_active_flow_without_counts_falls_back_to_the_mean_throttle() -> None:
    current = ThrottleHistory().observe(START, {(2, FOLLOWER): 60 * MB})
    of_others = replace(landing((0, 0), (60, 0)), flows={})
    found = receiving(of_others, current=60 * MB)
    assert rate_of(found, 105 * MB, current) == rate_of(replace(found, progress=None), 105 * MB, current)


def test_counts_that_end_long_before_the_metric_fall_back_to_the_mean_throttle() -> None:
    current = ThrottleHistory().observe(START, {(2, FOLLOWER): 60 * MB})
    found = receiving(landing((0, 0), (57, 0)), current=60 * MB)
    assert rate_of(found, 105 * MB, current) == rate_of(replace(found, progress=None), 105 * MB, current)


# Pausing over capacity


PAUSING = replace(LIMITS, pause_over_capacity=True)
"""LIMITS, but clients may use the whole link."""


@pytest.mark.parametrize(
    ("used", "floored", "pausing"),
    [
        (170 * MB, (27 * MB, Reason.HEADROOM), (27 * MB, Reason.HEADROOM)),
        (190 * MB, (20 * MB, Reason.HEADROOM), (9 * MB, Reason.OVER_CAPACITY)),
        (200 * MB, (20 * MB, Reason.HEADROOM), (0, Reason.OVER_CAPACITY)),
        (230 * MB, (20 * MB, Reason.HEADROOM), (0, Reason.OVER_CAPACITY)),
    ],
)
def test_floor_and_pause_are_separate_settings(
    used: int, floored: tuple[int, Reason], pausing: tuple[int, Reason]
) -> None:
    """Defect D25 of the original.

    In the original the minimum is a floor even on a broker whose clients need the whole link: replication could never
    be paused, and the broker was over its capacity during the whole reassignment.
    """
    assert decisions(plan(MOVING, loads(used=used), LIMITS))[2, FOLLOWER] == floored
    assert decisions(plan(MOVING, loads(used=used), PAUSING))[2, FOLLOWER] == pausing


def test_paused_broker_gets_a_rate_as_soon_as_clients_leave_headroom() -> None:
    paused = snapshot(reassignment(), rates={(2, FOLLOWER): "0"}, written={(2, FOLLOWER): "0"})
    assert decisions(plan(paused, loads(used=199 * MB), PAUSING))[2, FOLLOWER] == (900_000, Reason.OVER_CAPACITY)
    assert decisions(plan(paused, loads(used=80 * MB), PAUSING))[2, FOLLOWER] == (108 * MB, Reason.HEADROOM)


def test_paused_broker_without_metrics_stays_paused_until_failures_exceed_the_threshold() -> None:
    paused = snapshot(reassignment(), rates={(2, FOLLOWER): "0"}, written={(2, FOLLOWER): "0"})
    found = [decisions(plan(paused, Loads(), PAUSING, failures={2: n}))[2, FOLLOWER] for n in (1, 2)]
    assert found == [(0, Reason.KEPT), (20 * MB, Reason.MINIMUM)]


def test_override_is_not_paused() -> None:
    made = plan(MOVING, loads(used=230 * MB), PAUSING, Overrides(cluster=StoredOverride(5 * MB)))
    assert decisions(made)[2, FOLLOWER] == (5 * MB, Reason.CLUSTER_OVERRIDE)
