"""Guard rails: a move that could never end is raised or reported, and what is below min ISR is never held back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.fetching import ClusterSettings, FetchSettings
from autothrottle.core.flows import Flow, FlowProgress, Progress
from autothrottle.core.guards import (
    Ingress,
    below_min_isr,
    highest_throttle,
    ingress,
    kept_from_starving,
    may_starve,
    never_held_back,
    port_growth,
    window_warnings,
)
from autothrottle.core.plan import Decision, Plan, Reason, plan
from autothrottle.core.topology import NO_LEADER, Snapshot, TopicPartition, TopicReassignment
from tests import builders
from tests.builders import NOON, mb, reassignment

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
    found = kept_from_starving(Plan((one,)), Snapshot.empty(), LIMITS, produced, scheduled)
    return found.plan.decisions[0], found.findings


def test_a_throttle_above_what_is_produced_is_left_alone() -> None:
    assert guarded(decision(mb(20)), mb(19)) == (decision(mb(20)), ())


def test_a_throttle_that_could_never_end_is_raised_a_little_above_what_is_produced_and_said() -> None:
    raised, findings = guarded(decision(mb(10)), mb(40))
    assert (raised.rate, raised.reason) == (mb(44), Reason.STARVATION)
    assert findings == (
        "broker 1003 [follower]: 10 MB/s would never let its move end, since 40 MB/s is produced to it; "
        "raised to 44 MB/s",
    )


def test_it_is_raised_at_most_to_what_leaves_the_link_to_what_clients_produce() -> None:
    raised, _ = guarded(decision(mb(10)), mb(72))
    assert raised.rate == highest_throttle(CAPACITY, Ingress(mb(72), 3)) == mb(76)


def test_what_can_never_end_whatever_its_throttle_is_reported_with_the_numbers() -> None:
    kept, findings = guarded(decision(mb(10)), mb(80))
    assert kept == decision(mb(10))
    assert "of a link of 100 MB/s at most 73 MB/s may go to it (N - IN/R)" in findings[0]


@pytest.mark.parametrize(
    ("reason", "capacity", "scheduled", "said"),
    [
        (Reason.BROKER_OVERRIDE, CAPACITY, False, "it is an override, which stays"),
        (Reason.CLUSTER_OVERRIDE, CAPACITY, False, "it is an override, which stays"),
        (Reason.HEADROOM, CAPACITY, True, "the schedule stays"),
        (Reason.OVER_CAPACITY, CAPACITY, False, "clients need the link"),
        (Reason.MINIMUM, None, False, "without metrics it is not raised"),
    ],
)
def test_what_somebody_wants_or_nobody_has_measured_is_reported_and_stays(
    reason: Reason, capacity: int | None, scheduled: bool, said: str
) -> None:
    one = decision(mb(10), reason, capacity=capacity)
    kept, findings = guarded(one, mb(40), scheduled)
    assert kept == one and len(findings) == 1 and said in findings[0]


def test_a_rate_that_was_raised_before_stays_while_what_is_produced_changes_little() -> None:
    standing = builders.snapshot(throttles={"brokers/1003": {FOLLOWER.rate_key: str(mb(44))}})
    produced = {(1003, FOLLOWER): Ingress(mb(41), 3)}
    found = kept_from_starving(Plan((decision(mb(10)),)), standing, LIMITS, produced)
    assert found.plan.decisions[0].rate == mb(44)


rates = st.integers(0, mb(200))


@given(rates, rates, st.floats(1, 5), st.sampled_from(list(Reason)), st.booleans())
def test_it_never_lowers_a_rate_never_exceeds_the_link_and_never_touches_an_override(
    rate: int, into: int, factor: float, reason: Reason, scheduled: bool
) -> None:
    one = decision(rate, reason)
    found, findings = guarded(one, into, scheduled, factor)
    assert found.rate >= rate
    if found != one:
        assert into < found.rate <= CAPACITY and findings
        assert reason not in (Reason.BROKER_OVERRIDE, Reason.CLUSTER_OVERRIDE) and not scheduled


# What is produced.

MOVE = reassignment("t", {0: (1001, (1001, 1002), (1003,), (1002,)), 1: (1001, (1001, 1002), (1004,), (1002,))})


def readings(grown: Mapping[Flow, Sequence[int]], since: int = 0) -> list[Progress]:
    """One every 10 s."""
    count = len(next(iter(grown.values())))
    return [
        Progress(
            {
                flow: FlowProgress(0, some[n], 5, NOON + timedelta(seconds=10 * n), NOON - timedelta(seconds=since))
                for flow, some in grown.items()
            },
            at=NOON + timedelta(seconds=10 * n),
        )
        for n in range(count)
    ]


def test_what_is_produced_counts_at_both_ends_and_at_the_leader_with_its_in_sync_followers() -> None:
    grown = {Flow(1001, 1003): [0, mb(20), mb(40)], Flow(1001, 1004): [0, mb(10), mb(20)]}
    found = ingress(readings(grown), [MOVE])
    assert {port: one.rate for port, one in found.items()} == {
        (1001, LEADER): mb(6),
        (1003, FOLLOWER): mb(2),
        (1004, FOLLOWER): mb(1),
    }
    assert {one.replication_factor for one in found.values()} == {2.0}


def test_two_copies_of_one_partition_count_the_in_sync_follower_once() -> None:
    twice = reassignment("t", {0: (1001, (1001, 1002), (1003, 1004), ())})
    grown = {Flow(1001, 1003): [0, mb(20)], Flow(1001, 1004): [0, mb(20)]}
    assert ingress(readings(grown), [twice])[1001, LEADER].rate == mb(6)


def test_what_is_unknown_is_not_there() -> None:
    grown = {Flow(1001, 1003): [0, mb(20)]}
    assert ingress(readings(grown), [MOVE]).keys() == {(1003, FOLLOWER)}
    assert ingress(readings({Flow(1001, 1003): [0]}), [MOVE]) == {}, "one reading says nothing"
    assert ingress([], [MOVE]) == {}


def test_a_partition_without_leader_leaves_what_is_produced_to_the_others_known() -> None:
    move = reassignment("t", {0: (1001, (1001,), (1003,), ()), 1: (NO_LEADER, (), (1003,), ())})
    found = ingress(readings({Flow(1001, 1003): [0, mb(20)]}), [move])
    assert {port: one.rate for port, one in found.items()} == {(1001, LEADER): mb(2), (1003, FOLLOWER): mb(2)}


def test_counts_of_another_replica_of_discovery_are_not_subtracted() -> None:
    before = readings({Flow(1001, 1003): [mb(900)]}, since=100)
    now = readings({Flow(1001, 1003): [0, mb(20)]})
    assert ingress([*before, *now[1:]], [MOVE]) == {}
    assert ingress([*before, *now], [MOVE])[1003, FOLLOWER].rate == mb(2)


# Below min ISR.


def test_a_partition_with_fewer_in_sync_replicas_than_it_needs_is_below_min_isr() -> None:
    move = reassignment("t", {0: (1001, (1001,), (1003,), ()), 1: (1001, (1001, 1002), (1003,), ())})
    assert below_min_isr([move], ClusterSettings(min_in_sync_replicas={"t": 2})) == {("t", 0)}
    assert below_min_isr([move], ClusterSettings()) == frozenset(), "what is unknown is 1"
    arrived = reassignment("t", {0: (1001, (1001, 1003), (1003,), ())})
    assert below_min_isr([arrived], ClusterSettings(min_in_sync_replicas={"t": 3})) == frozenset(), "nothing is copied"


def planned(
    *moves: TopicReassignment, throttles: Mapping[str, Mapping[str, str]] | None = None
) -> tuple[Plan, Snapshot]:
    snapshot = builders.snapshot(*moves, throttles=throttles)
    loads = builders.loads(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in (1001, 1002, 1003, 1004)))
    return plan(snapshot, loads, LIMITS), snapshot


def test_what_is_below_min_isr_is_in_no_list_and_its_part_of_the_rates_is_left_to_it() -> None:
    move = reassignment("t", {n: (1001, (1001,), (1003,), ()) for n in range(4)})
    wanted, snapshot = planned(move)
    found = never_held_back(wanted, snapshot, LIMITS, {("t", 0)})
    assert found.plan.replicas["t"].leader == {"1:1001", "2:1001", "3:1001"}
    assert found.plan.replicas["t"].follower == {"1:1003", "2:1003", "3:1003"}
    assert found.plan.replicas["t"].moving == {0, 1, 2, 3}, "what stands of it is ours to remove"
    assert {(d.broker_id, d.role): d.rate for d in found.plan.decisions} == {
        (1001, LEADER): mb(54),
        (1003, FOLLOWER): 60_750_000,
    }
    assert found.findings == ("partitions below min.insync.replicas are not held back: t-0",)


def test_what_stands_stays_while_the_part_that_is_left_differs_from_it_by_little() -> None:
    move = reassignment("t", {n: (1001, (1001,), (1003,), ()) for n in range(4)})
    wanted, snapshot = planned(move, throttles={"brokers/1003": {FOLLOWER.rate_key: str(mb(70))}})
    found = never_held_back(wanted, snapshot, LIMITS, {("t", 0)})
    of_1003 = {d.broker_id: d for d in found.plan.decisions}[1003]
    assert of_1003.headroom == mb(90), "of which three quarters are hardly less than what stands"
    assert (of_1003.rate, of_1003.reason) == (mb(70), Reason.UNCHANGED)


def test_of_many_partitions_below_min_isr_the_first_five_are_named() -> None:
    move = reassignment("t", {n: (1001, (1001,), (1003,), ()) for n in range(7)})
    found = never_held_back(*planned(move), LIMITS, {("t", n) for n in range(7)})
    named = "t-0, t-1, t-2, t-3, t-4 and 2 more"
    assert found.findings == (f"partitions below min.insync.replicas are not held back: {named}",)


def test_a_partition_of_ten_is_not_taken_for_one() -> None:
    move = reassignment("t", {n: (1001, (1001,), (1003,), ()) for n in (1, 10, 11)})
    wanted, snapshot = planned(move)
    found = never_held_back(wanted, snapshot, LIMITS, {("t", 1)})
    assert found.plan.replicas["t"].follower == {"10:1003", "11:1003"}


def test_many_topics_below_min_isr_are_not_looked_through_for_each_of_them() -> None:
    """A rack was lost: 100,000 partitions of 400 topics took 1.6 s of every cycle, 0.3 s without that."""

    class Counted(frozenset[TopicPartition]):
        looks = 0

        def __iter__(self) -> Iterator[TopicPartition]:
            Counted.looks += 1
            return super().__iter__()

    made, standing = planned(*(reassignment(f"t{n}", {0: (1001, (1001,), (1003,), ())}) for n in range(50)))
    found = never_held_back(made, standing, LIMITS, Counted((f"t{n}", 0) for n in range(50)))
    assert not any(lists.leader or lists.follower for lists in found.plan.replicas.values())
    assert Counted.looks <= 3


def test_overrides_and_other_topics_are_left_as_they_are() -> None:
    move, other = (reassignment(t, {0: (1001, (1001,), (1003,), ())}) for t in ("t", "u"))
    wanted, snapshot = planned(move, other)
    overridden = Plan((decision(mb(7), Reason.BROKER_OVERRIDE),), wanted.replicas)
    found = never_held_back(overridden, snapshot, LIMITS, {("t", 0)})
    assert found.plan.decisions == overridden.decisions
    assert found.plan.replicas["u"] is wanted.replicas["u"]
    assert never_held_back(wanted, snapshot, LIMITS, frozenset()).plan is wanted


# KIP-73's window.


ONE = reassignment("t", {0: (1001, (1001,), (1003,), ())})
TWO = reassignment("t", {0: (1001, (1001,), (1003,), ()), 1: (1002, (1002,), (1003,), ())})


def test_first_responses_that_exceed_the_window_are_said_with_the_numbers() -> None:
    decisions = (
        decision(500_000, role=LEADER, broker_id=1001),
        decision(mb(50), role=LEADER, broker_id=1002),
        decision(mb(50)),
    )
    settings = ClusterSettings({1003: FetchSettings(10_000_000, 11)})
    found = window_warnings(Plan(decisions), builders.snapshot(TWO), settings)
    assert found == {
        1003: "broker 1003 [follower]: the first responses of 2 leaders, 10000000 bytes each, take 20 s of the quota's "
        "window of 11 s: the throttle is exceeded at first; set replica.fetch.response.max.bytes to less than 5500000"
    }
    assert (
        window_warnings(Plan(decisions), builders.snapshot(TWO), ClusterSettings({1003: FetchSettings(5_000_000, 11)}))
        == {}
    )


def test_leaders_that_only_together_fill_the_link_for_the_window_are_said() -> None:
    """Each of them keeps to its own throttle."""
    sending = tuple(decision(mb(50), role=LEADER, broker_id=b) for b in (1001, 1002, 1004))
    settings = ClusterSettings({1003: FetchSettings(400_000_000, 11)})
    three = reassignment("t", {n: (d.broker_id, (d.broker_id,), (1003,), ()) for n, d in enumerate(sending)})
    found = window_warnings(Plan((*sending, decision(mb(50)))), builders.snapshot(three), settings)
    assert "of 3 leaders, 400000000 bytes each, take 12 s of the quota's window of 11 s" in found[1003]
    assert window_warnings(Plan((*sending[:2], decision(mb(50)))), builders.snapshot(TWO), settings) == {}


def test_where_settings_are_unknown_kafkas_defaults_count_and_that_is_said() -> None:
    decisions = (decision(500_000, role=LEADER, broker_id=1001), decision(mb(50)))
    found = window_warnings(Plan(decisions), builders.snapshot(ONE), ClusterSettings())
    assert "10485760 bytes each" in found[1003] and "(Kafka's defaults: its settings are unknown)" in found[1003]
    fast = (decision(mb(50), role=LEADER, broker_id=1001), decision(mb(50)))
    assert window_warnings(Plan(fast), builders.snapshot(ONE), ClusterSettings()) == {}


# What costs next to nothing says when there is nothing to do.


FLOWS = [Flow(leader, follower) for leader in (1001, 1002, 1003) for follower in (1005, 1006)]


@given(
    rate=st.integers(0, mb(50)),
    grown=st.dictionaries(st.sampled_from(FLOWS), st.integers(0, mb(50)), min_size=1),
    in_sync=st.integers(0, 3),
)
def test_whatever_starves_may_starve(rate: int, grown: dict[Flow, int], in_sync: int) -> None:
    beside = range(1, 1 + in_sync)
    move = reassignment("t", {n: (f.leader, (f.leader, *beside), (f.follower,), ()) for n, f in enumerate(grown)})
    sending, receiving = ({flow[end] for flow in grown} for end in (0, 1))
    wanted = Plan(
        (
            *(decision(rate, role=LEADER, broker_id=b) for b in sorted(sending)),
            *(decision(rate, broker_id=b) for b in sorted(receiving)),
        )
    )
    seen = readings({flow: [0, 10 * one] for flow, one in grown.items()})
    found = kept_from_starving(wanted, Snapshot.empty(), LIMITS, ingress(seen, [move]))
    assert not found.findings or may_starve(wanted, port_growth(seen), [move])
    assert not may_starve(wanted, port_growth(readings({flow: [0, 0] for flow in grown})), [move])


def test_two_copies_of_one_partition_may_starve_its_leader() -> None:
    twice = reassignment("t", {0: (1001, (1001, 1002), (1005, 1006), ())})
    seen = readings({Flow(1001, b): [0, mb(20)] for b in (1005, 1006)})
    wanted = Plan((decision(mb(6), role=LEADER, broker_id=1001),))
    assert kept_from_starving(wanted, Snapshot.empty(), LIMITS, ingress(seen, [twice])).findings
    assert may_starve(wanted, port_growth(seen), [twice])


def test_many_leaders_may_starve_a_destination_together() -> None:
    move = reassignment("t", {n: (1001 + n, (1001 + n,), (1005,), ()) for n in range(3)})
    seen = readings({Flow(1001 + n, 1005): [0, mb(20)] for n in range(3)})
    wanted = Plan((decision(mb(5), broker_id=1005),))
    assert kept_from_starving(wanted, Snapshot.empty(), LIMITS, ingress(seen, [move])).findings
    assert may_starve(wanted, port_growth(seen), [move])
