"""Safety rules: starving throttles are raised or reported, and partitions below min ISR are not throttled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ClusterSettings, FetchSettings, ReplicaRole, fitting_response
from autothrottle.core.cluster.flows import Flow
from autothrottle.core.cluster.snapshot import NO_LEADER, Snapshot, TopicPartition, TopicReassignment
from autothrottle.core.operators.sources import Overrides, StoredOverride
from autothrottle.core.records import Decision, Reason
from autothrottle.core.throttles.guards import (
    below_min_isr,
    fetch_warning,
    highest_throttle,
    may_starve,
    with_exempt_partitions,
    without_starvation,
)
from autothrottle.core.throttles.plan import Plan, plan
from autothrottle.core.traffic.loads import Loads
from autothrottle.core.traffic.replication import Ingress, ingress, link_side_growth
from tests import builders
from tests.builders import mb, progress_samples, reassignment

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
LIMITS = builders.limits(min_rate=mb(2))
CAPACITY = mb(100)


def decision(
    rate: int,
    reason: Reason = Reason.HEADROOM,
    role: ReplicaRole = FOLLOWER,
    broker_id: int = 1003,
    capacity: int | None = CAPACITY,
) -> Decision:
    return Decision(broker_id, role, rate, reason, None, rate, mb(10), capacity)


def guarded(one: Decision, into: int, scheduled: bool = False, factor: float = 3) -> tuple[Decision, tuple[str, ...]]:
    produced = {(one.broker_id, one.role): Ingress(into, factor)}
    found = without_starvation(Plan((one,)), Snapshot.empty(), LIMITS, produced, scheduled)
    return found.plan.decisions[0], found.findings


def test_throttle_above_the_produce_rate_is_kept() -> None:
    assert guarded(decision(mb(20)), mb(19)) == (decision(mb(20)), ())


def test_starving_throttle_is_raised_slightly_above_the_produce_rate_and_reported() -> None:
    raised, findings = guarded(decision(mb(10)), mb(40))
    assert (raised.rate_bytes_per_second, raised.reason) == (mb(44), Reason.STARVATION)
    assert findings == (
        "broker 1003 [follower]: at 10 MB/s its reassignment would never end, because clients produce 40 MB/s to it; "
        "raised to 44 MB/s",
    )


def test_raise_leaves_the_link_to_the_produce_traffic() -> None:
    raised, _ = guarded(decision(mb(10)), mb(72))
    assert raised.rate_bytes_per_second == highest_throttle(CAPACITY, Ingress(mb(72), 3)) == mb(76)


def test_reassignment_that_no_throttle_can_finish_is_reported_with_the_numbers() -> None:
    kept, findings = guarded(decision(mb(10)), mb(80))
    assert kept == decision(mb(10))
    assert "a link of 100 MB/s allows it at most 73 MB/s (N - IN/R)" in findings[0]


@pytest.mark.parametrize(
    ("reason", "capacity", "scheduled", "finding"),
    [
        (Reason.BROKER_OVERRIDE, CAPACITY, False, "the override is kept"),
        (Reason.CLUSTER_OVERRIDE, CAPACITY, False, "the override is kept"),
        (Reason.HEADROOM, CAPACITY, True, "the schedule is kept"),
        (Reason.OVER_CAPACITY, CAPACITY, False, "clients need the link"),
        (Reason.MINIMUM, None, False, "not raised without metrics"),
    ],
)
def test_overrides_schedules_and_unmeasured_rates_are_reported_but_kept(
    reason: Reason, capacity: int | None, scheduled: bool, finding: str
) -> None:
    one = decision(mb(10), reason, capacity=capacity)
    kept, findings = guarded(one, mb(40), scheduled)
    assert kept == one and len(findings) == 1 and finding in findings[0]


def test_raised_rate_stays_while_the_produce_rate_changes_little() -> None:
    current = builders.snapshot(throttles={"brokers/1003": {FOLLOWER.rate_key: str(mb(44))}})
    produced = {(1003, FOLLOWER): Ingress(mb(41), 3)}
    found = without_starvation(Plan((decision(mb(10)),)), current, LIMITS, produced)
    assert found.plan.decisions[0].rate_bytes_per_second == mb(44)


rates = st.integers(0, mb(200))


@given(rates, rates, st.floats(1, 5), st.sampled_from(list(Reason)), st.booleans())
def test_guard_never_lowers_a_rate_exceeds_the_link_or_changes_an_override(
    rate: int, into: int, factor: float, reason: Reason, scheduled: bool
) -> None:
    one = decision(rate, reason)
    found, findings = guarded(one, into, scheduled, factor)
    assert found.rate_bytes_per_second >= rate
    if found != one:
        assert into < found.rate_bytes_per_second <= CAPACITY and findings
        assert reason not in (Reason.BROKER_OVERRIDE, Reason.CLUSTER_OVERRIDE) and not scheduled


# Below min ISR.


def test_partition_with_fewer_in_sync_replicas_than_required_is_below_min_isr() -> None:
    moved = reassignment("t", {0: (1001, (1001,), (1003,), ()), 1: (1001, (1001, 1002), (1003,), ())})
    assert below_min_isr([moved], ClusterSettings(min_in_sync_replicas={"t": 2})) == {("t", 0)}
    assert below_min_isr([moved], ClusterSettings()) == frozenset(), "unknown counts as 1"
    arrived = reassignment("t", {0: (1001, (1001, 1003), (1003,), ())})
    assert below_min_isr([arrived], ClusterSettings(min_in_sync_replicas={"t": 3})) == frozenset(), "nothing is copied"


def test_offline_partition_stays_throttled() -> None:
    """Kafka 4 empties the ISR when all brokers stop, so the partition counted as below min.insync.replicas.

    After the start of the brokers, 80 MB were copied before its throttle was set again.
    """
    offline = reassignment("t", {0: (NO_LEADER, (), (1003,), ()), 1: (1001, (1001,), (1003,), ())})
    assert below_min_isr([offline], ClusterSettings()) == frozenset()
    assert below_min_isr([offline], ClusterSettings(min_in_sync_replicas={"t": 2})) == {("t", 1)}


def planned(
    *reassignments: TopicReassignment, throttles: Mapping[str, Mapping[str, str]] | None = None
) -> tuple[Plan, Snapshot]:
    snapshot = builders.snapshot(*reassignments, throttles=throttles)
    loads = builders.loads(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in (1001, 1002, 1003, 1004)))
    return plan(snapshot, loads, LIMITS), snapshot


def test_partition_below_min_isr_is_in_no_list_and_keeps_its_share_of_the_rates() -> None:
    moved = reassignment("t", {n: (1001, (1001,), (1003,), ()) for n in range(4)})
    wanted, snapshot = planned(moved)
    found = with_exempt_partitions(wanted, snapshot, LIMITS, {("t", 0)})
    assert found.plan.replicas["t"].leader == {"1:1001", "2:1001", "3:1001"}
    assert found.plan.replicas["t"].follower == {"1:1003", "2:1003", "3:1003"}
    assert found.plan.replicas["t"].moving == {0, 1, 2, 3}, "its current entries are ours to remove"
    assert {(d.broker_id, d.role): d.rate_bytes_per_second for d in found.plan.decisions} == {
        (1001, LEADER): mb(54),
        (1003, FOLLOWER): 60_750_000,
    }
    assert found.findings == ("partitions below min.insync.replicas are not throttled: t-0",)


def test_previous_rate_stays_if_the_remaining_share_differs_little() -> None:
    moved = reassignment("t", {n: (1001, (1001,), (1003,), ()) for n in range(4)})
    wanted, snapshot = planned(moved, throttles={"brokers/1003": {FOLLOWER.rate_key: str(mb(70))}})
    found = with_exempt_partitions(wanted, snapshot, LIMITS, {("t", 0)})
    of_1003 = {d.broker_id: d for d in found.plan.decisions}[1003]
    assert of_1003.headroom_bytes_per_second == mb(90), "three quarters of it are hardly less than the current rate"
    assert (of_1003.rate_bytes_per_second, of_1003.reason) == (mb(70), Reason.UNCHANGED)


def test_only_the_first_five_partitions_below_min_isr_are_named() -> None:
    moved = reassignment("t", {n: (1001, (1001,), (1003,), ()) for n in range(7)})
    found = with_exempt_partitions(*planned(moved), LIMITS, {("t", n) for n in range(7)})
    named = "t-0, t-1, t-2, t-3, t-4 and 2 more"
    assert found.findings == (f"partitions below min.insync.replicas are not throttled: {named}",)


def test_partition_10_is_not_mistaken_for_partition_1() -> None:
    moved = reassignment("t", {n: (1001, (1001,), (1003,), ()) for n in (1, 10, 11)})
    wanted, snapshot = planned(moved)
    found = with_exempt_partitions(wanted, snapshot, LIMITS, {("t", 1)})
    assert found.plan.replicas["t"].follower == {"10:1003", "11:1003"}


def test_an_override_does_not_list_a_moving_partition_below_min_isr() -> None:
    moved = reassignment("t", {0: (1001, (1001,), (1003,), ()), 1: (1001, (1001,), (1003,), ())})
    snapshot = builders.snapshot(moved, replicas={1003: {"t": (0, 1, 2), "u": (0,)}})
    wanted = plan(snapshot, Loads(), LIMITS, Overrides(brokers={1003: StoredOverride(5)}))
    found = with_exempt_partitions(wanted, snapshot, LIMITS, {("t", 1)})
    assert found.plan.replicas["t"].follower == {"0:1003", "2:1003"}
    assert found.plan.replicas["t"].free == {1} and found.plan.replicas["u"].follower == {"0:1003"}


def test_many_topics_below_min_isr_are_filtered_in_one_pass() -> None:
    """After the loss of a rack, 100,000 partitions of 400 topics took 1.6 s of every cycle, instead of 0.3 s."""

    class Counted(frozenset[TopicPartition]):
        looks = 0

        def __iter__(self) -> Iterator[TopicPartition]:
            Counted.looks += 1
            return super().__iter__()

    made, current = planned(*(reassignment(f"t{n}", {0: (1001, (1001,), (1003,), ())}) for n in range(50)))
    found = with_exempt_partitions(made, current, LIMITS, Counted((f"t{n}", 0) for n in range(50)))
    assert not any(lists.leader or lists.follower for lists in found.plan.replicas.values())
    assert Counted.looks <= 3


def test_overrides_and_other_topics_are_not_changed() -> None:
    moved, other = (reassignment(t, {0: (1001, (1001,), (1003,), ())}) for t in ("t", "u"))
    wanted, snapshot = planned(moved, other)
    overridden = Plan((decision(mb(7), Reason.BROKER_OVERRIDE),), wanted.replicas)
    found = with_exempt_partitions(overridden, snapshot, LIMITS, {("t", 0)})
    assert found.plan.decisions == overridden.decisions
    assert found.plan.replicas["u"] is wanted.replicas["u"]
    assert with_exempt_partitions(wanted, snapshot, LIMITS, frozenset()).plan is wanted


# Fetch sizes.


ONE = reassignment("t", {0: (1001, (1001,), (1003,), ())})
TWO = reassignment("t", {0: (1001, (1001,), (1003,), ()), 1: (1002, (1002,), (1003,), ())})


def test_first_responses_beyond_the_quota_window_are_reported_with_numbers() -> None:
    decisions = (
        decision(500_000, role=LEADER, broker_id=1001),
        decision(mb(50), role=LEADER, broker_id=1002),
        decision(mb(50)),
    )
    settings = ClusterSettings({1003: FetchSettings(10_000_000, 11)})
    assert fetch_warning(Plan(decisions), builders.snapshot(TWO), settings) == (
        "broker 1003 [follower]: the responses to one round of fetches, 2 x 10000000 bytes, take 20 s, the quota "
        "window is only 11 s: they exceed the throttle; set replica.fetch.response.max.bytes=1048576 and "
        "replica.fetch.max.bytes=524288 in server.properties of this broker, and restart: "
        "Kafka does not change them dynamically"
    )
    settings = ClusterSettings({1003: FetchSettings(5_000_000, 11)})
    assert "quota window" not in fetch_warning(Plan(decisions), builders.snapshot(TWO), settings)


def test_leaders_that_only_together_fill_the_link_are_reported() -> None:
    """Each of them stays within its own throttle."""
    sending = tuple(decision(mb(50), role=LEADER, broker_id=b) for b in (1001, 1002, 1004))
    settings = ClusterSettings({1003: FetchSettings(400_000_000, 11)})
    three = reassignment("t", {n: (d.broker_id, (d.broker_id,), (1003,), ()) for n, d in enumerate(sending)})
    found = fetch_warning(Plan((*sending, decision(mb(50)))), builders.snapshot(three), settings)
    assert "3 x 400000000 bytes, take 12 s, the quota window is only 11 s" in found
    found = fetch_warning(Plan((*sending[:2], decision(mb(50)))), builders.snapshot(TWO), settings)
    assert "quota window" not in found


def test_kafkas_defaults_replace_an_unknown_quota_window_and_the_warning_says_so() -> None:
    decisions = (decision(500_000, role=LEADER, broker_id=1001), decision(mb(50)))
    found = fetch_warning(Plan(decisions), builders.snapshot(ONE), ClusterSettings())
    assert "1 x 10485760 bytes (Kafka's defaults: its settings are unknown)" in found
    fast = (decision(mb(50), role=LEADER, broker_id=1001), decision(mb(50)))
    assert fetch_warning(Plan(fast), builders.snapshot(ONE), ClusterSettings()) == ""


def receiving(rate: int, response: int, leaders: int = 3) -> str:
    """Return the warning about a follower with this throttle and response size."""
    sending = [decision(mb(500), role=LEADER, broker_id=b) for b in range(1, 1 + leaders)]
    copies = {b: (b, (b,), (1003,), ()) for b in range(1, 1 + leaders)}
    settings = ClusterSettings({1003: FetchSettings(response, 11)})
    return fetch_warning(Plan((*sending, decision(rate))), builders.snapshot(reassignment("t", copies)), settings)


def test_a_paused_follower_has_no_fetch_warning() -> None:
    """With `--pause-over-capacity`, the first follower whose clients filled its link got the rate 0.

    The share of a response in that rate was a division by zero, which ended every cycle for all brokers.
    """
    assert receiving(0, 10_485_760) == ""


def test_default_fetch_sizes_are_reported_with_sizes_that_fit() -> None:
    """At 9 MB/s and Kafka's 10 MB, traffic exceeded the capacity in a third of the seconds, without a word."""
    assert receiving(mb(9), 10_485_760) == (
        "broker 1003 [follower]: the responses to one round of fetches, 3 x 10485760 bytes, are 3.5 s of its throttle, "
        "9 MB/s: meanwhile they fill the link; set replica.fetch.response.max.bytes=131072 and "
        "replica.fetch.max.bytes=65536 in server.properties of this broker, and restart: "
        "Kafka does not change them dynamically"
    )
    assert receiving(mb(400), 10_485_760) == ""


@given(rate=st.integers(mb(1), mb(500)), leaders=st.integers(1, 50))
def test_recommended_fetch_sizes_stay_accepted_while_the_rate_falls_to_half(rate: int, leaders: int) -> None:
    assert receiving(rate // 2, fitting_response(leaders, rate), leaders) == ""


@given(
    st.dictionaries(st.integers(1001, 1004), st.sampled_from([mb(1), mb(20), mb(400)]), min_size=1),
    st.dictionaries(
        st.sampled_from([1005, 1006]), st.tuples(st.sampled_from([mb(1), mb(400)]), st.sampled_from([mb(2), mb(1_250)]))
    ),
    st.dictionaries(st.sampled_from([1005, 1006]), st.builds(FetchSettings, st.sampled_from([65_536, 10_485_760]))),
)
@example(dict.fromkeys(range(1001, 1005), mb(20)), {1005: (mb(400), mb(2)), 1006: (mb(400), mb(1_250))}, {})
def test_plans_that_surely_fit_have_no_warning(
    leaders: dict[int, int], followers: dict[int, tuple[int, int]], known: dict[int, FetchSettings]
) -> None:
    """A flow without throttles changes no warning, but it prevents the shortcut for plans that surely fit."""
    decisions = [decision(rate, role=LEADER, broker_id=b) for b, rate in leaders.items()]
    decisions += [decision(rate, broker_id=b, capacity=link) for b, (rate, link) in followers.items()]
    rows = {n: (leader, (leader,), (1005, 1006)[: 1 + n % 2], ()) for n, leader in enumerate(leaders)}
    short, long = (
        builders.snapshot(reassignment("t", found)) for found in (rows, {**rows, 99: (1009, (1009,), (1010,), ())})
    )
    settings = ClusterSettings(known)
    assert fetch_warning(Plan(tuple(decisions)), short, settings) == fetch_warning(
        Plan(tuple(decisions)), long, settings
    )


def test_the_sentence_names_the_follower_with_the_smallest_sizes_and_counts_the_others() -> None:
    both = reassignment("t", {0: (1001, (1001,), (1003, 1004), ()), 1: (1002, (1002,), (1004,), ())})
    sending = [decision(mb(50), role=LEADER, broker_id=b) for b in (1001, 1002)]
    settings = ClusterSettings({b: FetchSettings() for b in (1003, 1004)})
    wanted = Plan((*sending, decision(mb(50)), decision(mb(20), broker_id=1004)))
    found = fetch_warning(wanted, builders.snapshot(both), settings)
    assert found.startswith("broker 1004 [follower]: ") and "of this broker and 1 more, and restart" in found


# The cheap check that there is nothing to do.


FLOWS = [Flow(leader, follower) for leader in (1001, 1002, 1003) for follower in (1005, 1006)]


@given(
    rate=st.integers(0, mb(50)),
    produced=st.dictionaries(st.sampled_from(FLOWS), st.integers(0, mb(50)), min_size=1),
    in_sync=st.integers(0, 3),
)
def test_may_starve_is_true_whenever_a_throttle_starves(rate: int, produced: dict[Flow, int], in_sync: int) -> None:
    beside = range(1, 1 + in_sync)
    moved = reassignment("t", {n: (f.leader, (f.leader, *beside), (f.follower,), ()) for n, f in enumerate(produced)})
    sending, receiving = ({flow[end] for flow in produced} for end in (0, 1))
    wanted = Plan(
        (
            *(decision(rate, role=LEADER, broker_id=b) for b in sorted(sending)),
            *(decision(rate, broker_id=b) for b in sorted(receiving)),
        )
    )
    seen = progress_samples({flow: [0, 10 * one] for flow, one in produced.items()})
    found = without_starvation(wanted, Snapshot.empty(), LIMITS, ingress(seen, [moved]))
    assert not found.findings or may_starve(wanted, link_side_growth(seen), [moved])
    assert not may_starve(wanted, link_side_growth(progress_samples({flow: [0, 0] for flow in produced})), [moved])


def test_two_copies_of_one_partition_may_starve_its_leader() -> None:
    twice = reassignment("t", {0: (1001, (1001, 1002), (1005, 1006), ())})
    seen = progress_samples({Flow(1001, b): [0, mb(20)] for b in (1005, 1006)})
    wanted = Plan((decision(mb(6), role=LEADER, broker_id=1001),))
    assert without_starvation(wanted, Snapshot.empty(), LIMITS, ingress(seen, [twice])).findings
    assert may_starve(wanted, link_side_growth(seen), [twice])


def test_many_leaders_may_starve_one_follower_together() -> None:
    moved = reassignment("t", {n: (1001 + n, (1001 + n,), (1005,), ()) for n in range(3)})
    seen = progress_samples({Flow(1001 + n, 1005): [0, mb(20)] for n in range(3)})
    wanted = Plan((decision(mb(5), broker_id=1005),))
    assert without_starvation(wanted, Snapshot.empty(), LIMITS, ingress(seen, [moved])).findings
    assert may_starve(wanted, link_side_growth(seen), [moved])
