"""Which rate a broker gets in a role and why, and which replicas are throttled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.configs import FOLLOWER_RATE, LEADER_RATE, LEADER_REPLICAS, ConfigResource, ReplicaRole
from autothrottle.core.flows import Flow, FlowProgress, LandedMark, Progress
from autothrottle.core.history import ThrottleHistory
from autothrottle.core.ledger import LedgerEntry, LedgerKey
from autothrottle.core.limits import Limits
from autothrottle.core.loads import MEGABYTE, BrokerLoad, Capacity, Loads, Utilization
from autothrottle.core.overrides import Override, Overrides
from autothrottle.core.plan import (
    CONSUMER_OFFSETS,
    Decision,
    DesiredReplicas,
    Plan,
    Reason,
    is_small_change,
    plan,
)
from autothrottle.core.topology import NO_LEADER, Problem, Snapshot, TopicReassignment

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
    standing: dict[ConfigResource, dict[str, str]] = {}
    for (broker_id, role), rate in (rates or {}).items():
        standing.setdefault(ConfigResource.broker(broker_id), {})[role.rate_key] = rate
    ledger: dict[ConfigResource, dict[str, LedgerKey]] = {}
    for (broker_id, role), rate in (written or {}).items():
        ledger.setdefault(ConfigResource.broker(broker_id), {})[role.rate_key] = LedgerKey(None, rate)
    return Snapshot(
        version=1,
        brokers=frozenset({1, 2, 3, 4}),
        reassignments=reassignments,
        throttles=standing,
        ledger={resource: LedgerEntry(keys, term=1) for resource, keys in ledger.items()},
        replicas=replicas or {},
    )


def loads(brokers: Iterable[int] = (1, 2, 3, 4), used: int = 80 * MB, capacity: int = 200 * MB) -> Loads:
    use, link = Utilization(used, START, END), Capacity(capacity, capacity)
    return Loads({b: BrokerLoad(b, link, use, use) for b in brokers})


def decisions(made: Plan) -> dict[tuple[int, ReplicaRole], tuple[int, Reason]]:
    return {(d.broker_id, d.role): (d.rate, d.reason) for d in made.decisions}


MOVING = snapshot(reassignment())
"""Partition 0 of t moves from broker 1 to broker 2."""


# Roles


# D27. The original's overrides and fail-safe write both roles on every participant, and the rate of the role that
# the broker never held stays for ever when they end.
@pytest.mark.parametrize(
    ("read", "overrides"),
    [
        (loads(), Overrides()),
        (Loads(), Overrides()),
        (loads(), Overrides(cluster=Override(5 * MB))),
        (loads(), Overrides(brokers={1: Override(5 * MB), 2: Override(6 * MB)})),
    ],
)
def test_d27_a_broker_gets_rates_for_the_roles_that_it_holds_and_no_others(read: Loads, overrides: Overrides) -> None:
    made = plan(MOVING, read, LIMITS, overrides, failures={1: 9, 2: 9})
    assert decisions(made).keys() == {(1, LEADER), (2, FOLLOWER)}


# D30. In the original, leaders that have left the move keep their rates until the whole move is over.
def test_d30_a_leader_that_left_the_move_has_no_rate_any_more() -> None:
    moved_on = snapshot(reassignment(leader=3, isr=(1, 3)), rates={(1, LEADER): "5"}, written={(1, LEADER): "5"})
    assert decisions(plan(moved_on, loads(), LIMITS)).keys() == {(3, LEADER), (2, FOLLOWER)}


def test_d30_a_partition_that_is_in_sync_has_no_entries_any_more() -> None:
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


# What is measured


def test_a_decision_tells_what_it_was_made_of() -> None:
    standing = snapshot(reassignment(), rates={(1, LEADER): str(20 * MB)}, written={(1, LEADER): str(20 * MB)})
    first = plan(standing, loads(), LIMITS).decisions[0]
    assert first == Decision(
        broker_id=1,
        role=LEADER,
        rate=126 * MB,
        reason=Reason.HEADROOM,
        standing=20 * MB,
        headroom=126 * MB,
        utilization=80 * MB,
        capacity=200 * MB,
    )


def test_each_direction_has_its_own_capacity_traffic_and_share() -> None:
    load = BrokerLoad(
        1, Capacity(tx=100 * MB, rx=300 * MB), Utilization(40 * MB, START, END), Utilization(100 * MB, START, END)
    )
    both = snapshot(reassignment("a"), reassignment("b", 2, (2,), (1,)))
    limits = replace(LIMITS, max_tx_ratio=0.5, max_rx_ratio=1.0)
    made = decisions(plan(both, Loads({1: load}), limits))
    assert made[1, LEADER] == (30 * MB, Reason.HEADROOM)
    assert made[1, FOLLOWER] == (200 * MB, Reason.HEADROOM)


# D10, D14. The original remembers a throttle only if it wrote it: what stood already counts as client traffic in
# the next cycle, and what it removed in native mode is still subtracted.
def test_d10_what_stands_is_subtracted_whoever_wrote_it() -> None:
    standing = snapshot(reassignment(), rates={(1, LEADER): str(20 * MB)})
    assert decisions(plan(standing, loads(), LIMITS))[1, LEADER] == (126 * MB, Reason.HEADROOM)
    assert decisions(plan(MOVING, loads(), LIMITS))[1, LEADER] == (108 * MB, Reason.HEADROOM)


def test_d10_what_stands_is_the_previous_rate_of_the_change_threshold_whoever_wrote_it() -> None:
    history = ThrottleHistory().observe(START - timedelta(hours=1), {})
    standing = snapshot(reassignment(), rates={(1, LEADER): str(100 * MB)})
    made = plan(standing, loads(), LIMITS, history=history)
    assert decisions(made)[1, LEADER] == (100 * MB, Reason.UNCHANGED)


def test_a_measurement_is_compared_with_the_throttles_of_its_own_interval() -> None:
    history = ThrottleHistory().observe(START, {(1, LEADER): 20 * MB}).observe(END, {(1, LEADER): 60 * MB})
    standing = snapshot(reassignment(), rates={(1, LEADER): str(60 * MB)}, written={(1, LEADER): str(60 * MB)})
    made = decisions(plan(standing, loads(), LIMITS, history=history))
    assert made[1, LEADER] == (126 * MB, Reason.HEADROOM)


@pytest.mark.parametrize("text", ["-5", "fast", ""])
def test_a_standing_value_that_limits_nothing_is_no_previous_rate(text: str) -> None:
    standing = snapshot(reassignment(), rates={(1, LEADER): text})
    assert decisions(plan(standing, Loads(), LIMITS))[1, LEADER] == (20 * MB, Reason.MINIMUM)
    assert plan(standing, Loads(), LIMITS).decisions[0].standing is None


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
def test_a_change_below_the_threshold_is_small_and_equality_is_not(
    previous: int | None, rate: int, small: bool
) -> None:
    assert is_small_change(previous, rate, 0.1) is small


# 0.07 * 100 is 7.000000000000001: in floats a change by exactly 7 % was below a threshold of 7 %.
@given(st.integers(1, 1000), st.integers(1, 10**10))
def test_equality_writes_for_every_threshold_in_tenths_of_a_percent(tenths: int, thousandth: int) -> None:
    previous = 1000 * thousandth
    for sign in (1, -1):
        assert not is_small_change(previous, previous + sign * tenths * thousandth, tenths / 10 / 100)
        assert is_small_change(previous, previous + sign * (tenths * thousandth - 1), tenths / 10 / 100)


def test_a_threshold_of_zero_writes_everything() -> None:
    assert not is_small_change(100, 100, 0.0)


# Metrics that are missing


# D7. One broker without metrics, or one unknown instance type, aborts the update of all in the original.
def test_d7_a_broker_without_metrics_fails_alone() -> None:
    made = decisions(plan(MOVING, loads(brokers=[1]), LIMITS, failures={2: 2}))
    assert made == {(1, LEADER): (108 * MB, Reason.HEADROOM), (2, FOLLOWER): (20 * MB, Reason.MINIMUM)}


@pytest.mark.parametrize(
    ("failures", "expected"),
    [(0, (70, Reason.KEPT)), (1, (70, Reason.KEPT)), (2, (20 * MB, Reason.MINIMUM))],
)
def test_rates_are_kept_until_the_failures_exceed_the_threshold(failures: int, expected: tuple[int, Reason]) -> None:
    standing = snapshot(reassignment(), rates={(2, FOLLOWER): "70"}, written={(2, FOLLOWER): "70"})
    assert decisions(plan(standing, Loads(), LIMITS, failures={2: failures}))[2, FOLLOWER] == expected


def test_a_broker_without_metrics_and_without_a_rate_starts_at_the_minimum() -> None:
    assert decisions(plan(MOVING, Loads(), LIMITS))[2, FOLLOWER] == (20 * MB, Reason.MINIMUM)


# D8. The original's change threshold also suppresses manual overrides and the fail-safe: asked for 100 MB/s where
# 95 stand, it keeps 95 and answers that all is well.
def test_d8_the_fail_safe_is_exact_whatever_the_threshold() -> None:
    standing = snapshot(reassignment(), rates={(2, FOLLOWER): str(21 * MB)}, written={(2, FOLLOWER): str(21 * MB)})
    made = decisions(plan(standing, Loads(), LIMITS, failures={2: 2}))
    assert made[2, FOLLOWER] == (20 * MB, Reason.MINIMUM)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (Overrides(cluster=Override(100 * MB)), Reason.CLUSTER_OVERRIDE),
        (Overrides(brokers={1: Override(100 * MB)}), Reason.BROKER_OVERRIDE),
        (Overrides(cluster=Override(3), brokers={1: Override(100 * MB)}), Reason.BROKER_OVERRIDE),
        (Overrides(cluster=Override(100 * MB), brokers={1: Override(0)}), Reason.CLUSTER_OVERRIDE),
    ],
)
@pytest.mark.parametrize("read", [loads(), Loads()])
def test_d8_an_override_is_exact_whatever_the_threshold_and_the_metrics(
    overrides: Overrides, reason: Reason, read: Loads
) -> None:
    standing = snapshot(reassignment(), rates={(1, LEADER): str(95 * MB)}, written={(1, LEADER): str(95 * MB)})
    made = decisions(plan(standing, read, LIMITS, overrides, failures={1: 9}))
    assert made[1, LEADER] == (100 * MB, reason)


# Overrides of brokers that take part in nothing


HOSTED = {3: {"t": (0, 1), "u": (4,), CONSUMER_OFFSETS: (7,)}}


def test_an_override_of_a_broker_outside_of_the_move_sets_both_rates_and_follower_entries() -> None:
    made = plan(snapshot(replicas=HOSTED), Loads(), LIMITS, Overrides(brokers={3: Override(5)}, cluster=Override(9)))
    rate = (5, Reason.BROKER_OVERRIDE)
    assert decisions(made) == {(3, FOLLOWER): rate, (3, LEADER): rate}
    assert made.replicas == {
        "t": DesiredReplicas(follower=frozenset({"0:3", "1:3"})),
        "u": DesiredReplicas(follower=frozenset({"4:3"})),
    }


def test_the_clusters_override_does_nothing_while_nothing_moves() -> None:
    made = plan(snapshot(replicas=HOSTED), loads(), LIMITS, Overrides(cluster=Override(9)))
    assert (made.decisions, made.replicas) == ((), {})


def test_an_override_of_a_broker_that_nobody_knows_waits() -> None:
    assert plan(snapshot(), loads(), LIMITS, Overrides(brokers={99: Override(5)})).decisions == ()


def test_an_override_of_a_stopped_broker_with_replicas_acts() -> None:
    stopped = snapshot(replicas={99: {"t": (0,)}})
    made = plan(stopped, loads(), LIMITS, Overrides(brokers={99: Override(5)}))
    assert made.replicas == {"t": DesiredReplicas(follower=frozenset({"0:99"}))}


# D11. In the original the lists of a reassignment and of an override overwrite each other by turns.
def test_d11_entries_of_an_override_and_of_a_move_are_merged() -> None:
    made = plan(snapshot(reassignment(), replicas=HOSTED), loads(), LIMITS, Overrides(brokers={3: Override(5)}))
    assert made.replicas["t"] == DesiredReplicas(
        leader=frozenset({"0:1"}), follower=frozenset({"0:2", "0:3", "1:3"}), moving=frozenset({0})
    )


def test_a_broker_that_takes_part_adds_no_entries_by_its_override() -> None:
    made = plan(
        snapshot(reassignment(adding=(3,)), replicas=HOSTED),
        loads(),
        LIMITS,
        Overrides(brokers={3: Override(5)}),
    )
    assert made.replicas == {
        "t": DesiredReplicas(leader=frozenset({"0:1"}), follower=frozenset({"0:3"}), moving=frozenset({0}))
    }
    assert (3, LEADER) not in decisions(made)


# Lists


# D12, D23. `*` in native mode makes healthy replication eat the budget; reassignments of KIP-455 are not seen.
def test_d12_lists_name_all_in_sync_replicas_and_the_destinations_outside_of_the_isr() -> None:
    made = plan(snapshot(reassignment(isr=(1, 3, 4), adding=(4, 2))), loads(), LIMITS)
    assert made.replicas["t"] == DesiredReplicas(
        leader=frozenset({"0:1", "0:3", "0:4"}), follower=frozenset({"0:2"}), moving=frozenset({0})
    )


def test_a_partition_without_leader_keeps_its_entries() -> None:
    made = plan(snapshot(reassignment(leader=NO_LEADER, isr=(1,))), loads(), LIMITS)
    assert made.replicas["t"].leader == {"0:1"}
    assert decisions(made).keys() == {(2, FOLLOWER)}


def test_a_reassignment_of_the_consumer_offsets_is_throttled_like_any_other() -> None:
    made = plan(snapshot(reassignment(CONSUMER_OFFSETS)), loads(), LIMITS)
    assert made.replicas[CONSUMER_OFFSETS].follower == {"0:2"}


# When nothing may be removed


# D1. In the original a ZooKeeper outage or bad JSON reads as "nothing is being reassigned": the throttles go in
# mid-move.
def test_d1_an_unreadable_part_of_the_cluster_holds_everything() -> None:
    broken = replace(snapshot(), problems=(Problem("/admin/reassign_partitions", "no JSON"),))
    made = plan(broken, loads(), LIMITS, AUTOREMOVE, after_reassignment=True)
    assert made.hold
    assert not made.finished_override


def test_d2_an_unreadable_override_holds_everything() -> None:
    assert plan(MOVING, loads(), LIMITS, Overrides(unreadable={1: "no JSON"})).hold


def test_an_operator_can_keep_throttles() -> None:
    keeping = replace(LIMITS, keep_throttles=True)
    assert plan(Snapshot.empty(), loads(), keeping).hold
    assert not plan(MOVING, loads(), keeping).hold, "lists stay exact while something moves"
    assert not plan(MOVING, loads(), LIMITS).hold


# Autoremove


AUTOREMOVE = Overrides(cluster=Override(9, autoremove=True))


def test_an_override_with_autoremove_is_finished_when_no_reassignment_is_left() -> None:
    assert plan(snapshot(), loads(), LIMITS, AUTOREMOVE, after_reassignment=True).finished_override
    assert not plan(MOVING, loads(), LIMITS, AUTOREMOVE, after_reassignment=True).finished_override


def test_an_override_with_autoremove_waits_for_its_reassignment() -> None:
    # It may be set before the reassignment, and the request itself starts a cycle: that must not remove it.
    assert not plan(snapshot(), loads(), LIMITS, AUTOREMOVE).finished_override


def test_a_new_leader_finds_in_the_ledger_that_a_move_was_there() -> None:
    lists = LedgerEntry({LEADER_REPLICAS: LedgerKey(None, "0:1", frozenset({"0:1"}))}, term=1)
    left = replace(snapshot(), ledger={ConfigResource.topic("t"): lists})
    assert plan(left, loads(), LIMITS, AUTOREMOVE).finished_override
    rates = snapshot(written={(1, LEADER): "5"})
    assert not plan(rates, loads(), LIMITS, AUTOREMOVE).finished_override


def test_a_brokers_override_does_not_keep_the_clusters() -> None:
    # In the original any broker override freezes all clearing.
    overrides = replace(AUTOREMOVE, brokers={1: Override(5)})
    assert plan(snapshot(), loads(), LIMITS, overrides, after_reassignment=True).finished_override


@pytest.mark.parametrize(
    "overrides",
    [
        Overrides(),
        Overrides(cluster=Override(9)),
        Overrides(cluster=Override(0, autoremove=True)),
        Overrides(brokers={1: Override(9, autoremove=True)}),
        replace(AUTOREMOVE, unreadable={None: "no JSON"}),
    ],
)
def test_any_other_override_stays(overrides: Overrides) -> None:
    assert not plan(snapshot(), loads(), LIMITS, overrides, after_reassignment=True).finished_override


def test_rates_are_grouped_by_resource_and_key() -> None:
    made = plan(MOVING, loads(), LIMITS)
    assert made.rates == {
        ConfigResource.broker(1): {LEADER_RATE: 108 * MB},
        ConfigResource.broker(2): {FOLLOWER_RATE: 108 * MB},
    }


# Certainty


def decided(start: int, used: int, history: ThrottleHistory) -> tuple[int, Reason]:
    """Broker 2's follower rate: 90 MB/s stand, and 10 s of metrics begin at a second of the first minutes."""
    use = Utilization(used, START + timedelta(seconds=start), START + timedelta(seconds=start + 10))
    read = Loads({2: BrokerLoad(2, Capacity(120 * MB, 120 * MB), use, use)})
    standing = snapshot(reassignment(), rates={(2, FOLLOWER): str(90 * MB)}, written={(2, FOLLOWER): str(90 * MB)})
    return decisions(plan(standing, read, LIMITS, history=history))[2, FOLLOWER]


STARTED = ThrottleHistory().observe(START, {}).observe(START + timedelta(seconds=57), {(2, FOLLOWER): 90 * MB})
"""The throttle stands since second 57."""


def test_a_raise_counts_on_what_is_certain_only() -> None:
    # On real Kafka, with 10 s of metrics, the first cycle of a move saw 3 s of a throttle that replication had not
    # reached yet, took the difference for absent clients and raised 9.0 to 10.8 MB/s. The raise went out as a
    # burst, the next cycle took the burst for clients: 5.4, 2.2, 5.2, 7.9, 10.8, 6.8, 1.8 ...
    assert decided(50, used=20 * MB, history=STARTED) == (90 * MB, Reason.UNCHANGED)
    assert decided(70, used=90 * MB, history=STARTED) == (108 * MB, Reason.HEADROOM)


def test_a_lowering_waits_for_no_certainty() -> None:
    clients = 100 - 27
    assert decided(50, used=100 * MB, history=STARTED) == (round((120 - clients) * 0.9 * MB), Reason.HEADROOM)


# What replication really carried


def landing(*marks: tuple[float, int], followers: tuple[int, ...] = (2,)) -> Progress:
    """What landed from broker 1 in each follower by (second, bytes), the newest last."""
    *recent, (last, landed) = [(START + timedelta(seconds=second), count) for second, count in marks]
    earlier = tuple(LandedMark(*mark) for mark in recent)
    count = FlowProgress(landed, 0, 10**12, last, START, earlier)
    return Progress({Flow(1, follower): count for follower in followers}, at=last)


def receiving(progress: Progress | None, standing: int | None = 90 * MB) -> Snapshot:
    """Broker 2 receives, and 90 MB/s stand if not said otherwise."""
    rates = {} if standing is None else {(2, FOLLOWER): str(standing)}
    return replace(snapshot(reassignment(), rates=rates, written=rates), progress=progress)


def rate_of(found: Snapshot, used: int, history: ThrottleHistory) -> int:
    """Broker 2's follower rate by the metrics of seconds 50 to 60."""
    use = Utilization(used, START + timedelta(seconds=50), START + timedelta(seconds=60))
    read = Loads({2: BrokerLoad(2, Capacity(120 * MB, 120 * MB), use, use)})
    return decisions(plan(found, read, LIMITS, history=history))[2, FOLLOWER][0]


SEEN = ThrottleHistory().observe(START, {}).observe(START + timedelta(seconds=57), {}, [(2, FOLLOWER)])
"""A move is seen in second 57, and began up to 3 s before."""

BEGUN = SEEN.observe(START + timedelta(seconds=58), {(2, FOLLOWER): 90 * MB}, [(2, FOLLOWER)])
"""Its throttle stands since second 58."""

FIRST_SECONDS = landing((55, 0), (57, 700 * MB), (59, 701 * MB), (60, 702 * MB))
"""700 MB in two seconds without a throttle, then hardly anything until the meter has forgotten them."""


def test_what_moved_before_the_first_throttle_is_not_taken_for_clients() -> None:
    # On real Kafka, seen at the next poll, a move had 200 to 250 MB in its first second: 9.0 MB/s became 1.0, and the
    # raise after that was a burst of 1.4 times the throttle.
    clients = 20 * MB
    used = clients + 702 * MB // 10
    assert rate_of(receiving(FIRST_SECONDS), used, BEGUN) == 90 * MB
    assert rate_of(receiving(None), used, BEGUN) == 90 * MB  # nothing is known, so nothing is lowered
    # An older history knows what clients used before.
    before = Utilization(clients, START, START)
    idle = Loads({2: BrokerLoad(2, Capacity(120 * MB, 120 * MB), before, before)})
    known = BEGUN.measured(idle, ())
    assert known.idle_loads[2, FOLLOWER] == clients
    assert rate_of(receiving(None), used, known) == 90 * MB
    assert rate_of(receiving(None, standing=40 * MB), used, known) == 90 * MB


def test_a_burst_that_came_after_the_last_count_is_not_taken_for_clients_either() -> None:
    """The mean of what was counted stands for the seconds after it, but for those without a throttle."""
    counted_before = receiving(landing((55, 0), (57.5, 0)))
    assert rate_of(counted_before, used=20 * MB + 702 * MB // 10, history=BEGUN) == 90 * MB


def test_clients_that_come_in_the_first_seconds_of_a_move_are_seen_by_what_landed() -> None:
    little = landing((55, 0), (57, 300 * MB), (59, 300 * MB), (60, 300 * MB))
    assert rate_of(receiving(little), 110 * MB, BEGUN) == round((120 - 80) * 0.9 * MB)


def test_replication_that_did_not_use_its_throttle_is_no_reason_for_more_of_it() -> None:
    # D24: clients at 88 of 100 MB/s and a throttle of which nothing was used: 10.6, 20.2, 28.8 ... 90 MB/s.
    standing = ThrottleHistory().observe(START, {(2, FOLLOWER): 60 * MB})
    found = receiving(landing((0, 0), (30, 0), (60, 0)), standing=60 * MB)
    assert rate_of(found, 105 * MB, standing) == 20 * MB
    assert rate_of(replace(found, progress=None), 105 * MB, standing) > 60 * MB


def test_a_moving_flow_that_was_not_counted_leaves_its_port_to_the_throttles_mean() -> None:
    standing = ThrottleHistory().observe(START, {(2, FOLLOWER): 60 * MB})
    of_others = replace(landing((0, 0), (60, 0)), flows={})
    found = receiving(of_others, standing=60 * MB)
    assert rate_of(found, 105 * MB, standing) == rate_of(replace(found, progress=None), 105 * MB, standing)


def test_counts_that_end_long_before_the_metric_leave_the_port_to_the_throttles_mean() -> None:
    standing = ThrottleHistory().observe(START, {(2, FOLLOWER): 60 * MB})
    found = receiving(landing((0, 0), (57, 0)), standing=60 * MB)
    assert rate_of(found, 105 * MB, standing) == rate_of(replace(found, progress=None), 105 * MB, standing)


# Pausing over capacity


PAUSING = replace(LIMITS, pause_over_capacity=True)
"""As LIMITS, and clients may have the whole link."""


# D25. In the original the minimum is a floor even on a broker whose clients need the whole link: replication could
# never be paused, and the broker was over its capacity for as long as the move took.
@pytest.mark.parametrize(
    ("used", "floored", "pausing"),
    [
        (170 * MB, (27 * MB, Reason.HEADROOM), (27 * MB, Reason.HEADROOM)),
        (190 * MB, (20 * MB, Reason.HEADROOM), (9 * MB, Reason.OVER_CAPACITY)),
        (200 * MB, (20 * MB, Reason.HEADROOM), (0, Reason.OVER_CAPACITY)),
        (230 * MB, (20 * MB, Reason.HEADROOM), (0, Reason.OVER_CAPACITY)),
    ],
)
def test_d25_floor_and_pause_are_separate_settings(
    used: int, floored: tuple[int, Reason], pausing: tuple[int, Reason]
) -> None:
    assert decisions(plan(MOVING, loads(used=used), LIMITS))[2, FOLLOWER] == floored
    assert decisions(plan(MOVING, loads(used=used), PAUSING))[2, FOLLOWER] == pausing


def test_a_paused_broker_gets_a_rate_again_as_soon_as_its_clients_leave_room() -> None:
    paused = snapshot(reassignment(), rates={(2, FOLLOWER): "0"}, written={(2, FOLLOWER): "0"})
    assert decisions(plan(paused, loads(used=199 * MB), PAUSING))[2, FOLLOWER] == (900_000, Reason.OVER_CAPACITY)
    assert decisions(plan(paused, loads(used=80 * MB), PAUSING))[2, FOLLOWER] == (108 * MB, Reason.HEADROOM)


def test_a_paused_broker_without_metrics_stays_paused_until_the_failures_exceed_the_threshold() -> None:
    paused = snapshot(reassignment(), rates={(2, FOLLOWER): "0"}, written={(2, FOLLOWER): "0"})
    found = [decisions(plan(paused, Loads(), PAUSING, failures={2: n}))[2, FOLLOWER] for n in (1, 2)]
    assert found == [(0, Reason.KEPT), (20 * MB, Reason.MINIMUM)]


def test_an_override_is_not_paused() -> None:
    made = plan(MOVING, loads(used=230 * MB), PAUSING, Overrides(cluster=Override(5 * MB)))
    assert decisions(made)[2, FOLLOWER] == (5 * MB, Reason.CLUSTER_OVERRIDE)
