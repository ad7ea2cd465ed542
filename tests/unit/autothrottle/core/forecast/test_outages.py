"""Brokers that are down while partitions in reassignment wait for them: who, since when, and what to do."""

from __future__ import annotations

from dataclasses import replace

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Flow, FlowProgress, Progress
from autothrottle.core.cluster.snapshot import NO_LEADER, Snapshot, TopicReassignment
from autothrottle.core.forecast.outages import OutageWatch
from autothrottle.core.forecast.progress import Remainder, with_static_eta
from autothrottle.core.records import Throttle
from tests.builders import NOON

ORDERS = TopicReassignment("orders", (0, 1), (1001, 1002), ((1001,), (1002,)), ((1004,), (1004,)), ((1001,), (1002,)))
PROGRESS = Progress(
    {
        Flow(1001, 1004): FlowProgress(0, 0, 1_000_000_000, NOON, NOON),
        Flow(1002, 1004): FlowProgress(0, 0, 200_000_000, NOON, NOON),
    },
    at=NOON,
)
MOVING = Snapshot(1, frozenset({1001, 1002, 1004, 1005}), (ORDERS,), progress=PROGRESS)
WITHOUT_1004 = replace(MOVING, brokers=MOVING.brokers - {1004}, progress=Progress(at=NOON))


def test_a_destination_that_dies_is_named_with_its_last_known_bytes_and_both_ways_out() -> None:
    """A dead destination was four times "unknown", and never called dead."""
    watch = OutageWatch().observe(MOVING, NOON)
    assert watch.outages == ()
    watch = watch.observe(WITHOUT_1004, NOON.replace(second=30)).observe(WITHOUT_1004, NOON.replace(minute=5))
    assert list(watch.findings) == [
        "broker 1004 is down since 2026-11-02T12:00:30Z: 2 partitions (orders-0, orders-1) wait for it to copy them, "
        "with 1.20 GB left. Fix: start broker 1004: the copying goes on; or give the moves up with `throttlectl cancel "
        "--broker 1004`, then move the partitions to another broker with `throttlectl reassign FILE`"
    ]
    assert watch.in_remainder(None, WITHOUT_1004) == Remainder(1_200_000_000, 0, None, NOON, down=(1004,))


def test_a_new_leader_takes_the_last_known_bytes_from_discovery() -> None:
    progress = Progress(at=NOON, last_bytes_left={1004: 700_000_000})
    watch = OutageWatch().observe(replace(WITHOUT_1004, progress=progress), NOON)
    assert "with 700.00 MB left" in next(watch.findings)


def test_the_bytes_left_to_running_brokers_are_added_and_no_end_is_told() -> None:
    two = TopicReassignment("t", (0, 1), (1001, 1001), ((1001,), (1001,)), ((1004,), (1005,)), ((), ()))
    flows = {Flow(1001, 1004): PROGRESS.flows[Flow(1001, 1004)], Flow(1001, 1005): FlowProgress(0, 0, 50, NOON, NOON)}
    stale = replace(WITHOUT_1004, reassignments=(two,), progress=Progress(flows, at=NOON))
    expected = Remainder(1_000_000_050, 0, None, NOON, down=(1004,))
    watch = OutageWatch().observe(stale, NOON)
    assert watch.in_remainder(Remainder(1_000_000_050, 0, NOON, NOON, NOON, NOON), stale) == expected, "counted once"
    throttles = (Throttle(1004, ReplicaRole.FOLLOWER, 10), Throttle(1005, ReplicaRole.FOLLOWER, 10))
    assert with_static_eta(expected, stale, throttles) == expected, "its throttle gives it no end"
    fresh = replace(stale, progress=Progress({Flow(1001, 1005): flows[Flow(1001, 1005)]}, at=NOON))
    assert watch.observe(fresh, NOON).in_remainder(None, fresh) == expected


def test_a_new_leader_says_that_the_outage_is_older_and_its_size_unknown() -> None:
    watch = OutageWatch().observe(WITHOUT_1004, NOON)
    assert "down since before 2026-11-02T12:00:00Z" in next(watch.findings)
    assert "with an unknown size left" in next(watch.findings)
    assert watch.in_remainder(None, WITHOUT_1004) == Remainder(0, 1, None, NOON, down=(1004,))


def test_a_broker_that_returns_is_forgotten_and_a_later_outage_begins_anew() -> None:
    watch = OutageWatch().observe(MOVING, NOON).observe(WITHOUT_1004, NOON).observe(MOVING, NOON.replace(minute=1))
    assert watch.outages == () and watch.in_remainder(None, MOVING) is None
    again = watch.observe(WITHOUT_1004, NOON.replace(minute=2))
    assert "down since 2026-11-02T12:02:00Z" in next(again.findings)


def test_a_dead_source_leaves_its_partitions_offline() -> None:
    offline = replace(ORDERS, leaders=(NO_LEADER, 1002))
    snapshot = replace(MOVING, brokers=MOVING.brokers - {1001}, reassignments=(offline,))
    watch = OutageWatch().observe(MOVING, NOON).observe(snapshot, NOON)
    assert list(watch.findings) == [
        "broker 1001 is down since 2026-11-02T12:00:00Z: 1 partition (orders-0) has no other in-sync replica and is "
        "offline. Fix: start broker 1001: the copying goes on; or only if its disks are lost, elect another leader, "
        "which loses records: kafka-leader-election.sh --election-type unclean"
    ]
    assert watch.in_remainder(None, snapshot) is None, (
        "the offline partition is an unknown flow of a running destination"
    )


def test_a_dead_source_whose_partitions_have_another_leader_holds_up_nothing() -> None:
    moved = replace(ORDERS, leaders=(1005, 1002), isr=((1005,), (1002,)))
    snapshot = replace(MOVING, brokers=MOVING.brokers - {1001}, reassignments=(moved,))
    assert OutageWatch().observe(snapshot, NOON).outages == ()


def test_a_broker_that_is_both_has_one_sentence() -> None:
    both = TopicReassignment("t", (0, 1), (NO_LEADER, 1002), ((1004,), (1002,)), ((1005,), (1004,)), ((1004,), ()))
    snapshot = replace(WITHOUT_1004, reassignments=(both,))
    (sentence,) = OutageWatch().observe(snapshot, NOON).findings
    assert (
        "1 partition (t-0) has no other in-sync replica and is offline, and 1 partition (t-1) waits for it" in sentence
    )


def test_many_brokers_that_are_down_take_four_lines() -> None:
    adding = tuple((broker_id,) for broker_id in range(1100, 1130))
    many = TopicReassignment("t", tuple(range(30)), (1001,) * 30, ((1001,),) * 30, adding, ((),) * 30)
    findings = list(OutageWatch().observe(replace(MOVING, reassignments=(many,)), NOON).findings)
    assert len(findings) == 4
    assert findings[3].startswith("27 more brokers that partitions in reassignment wait for are down: 1103, 1104")


def test_without_a_list_of_brokers_nothing_is_called_down() -> None:
    assert OutageWatch().observe(replace(MOVING, brokers=frozenset()), NOON) == OutageWatch()
