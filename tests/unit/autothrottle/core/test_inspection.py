"""Findings and facts about a deployment, from readings."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from autothrottle.core.cluster.configs import LEADER_RATE, ClusterSettings, ConfigResource, FetchSettings
from autothrottle.core.cluster.snapshot import Problem, Snapshot
from autothrottle.core.inspection import (
    Finding,
    fetches_inspected,
    finding,
    growth_compared,
    loads_inspected,
    one_line_per_cause,
    racks_inspected,
    registrations_inspected,
    snapshot_inspected,
)
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.core.policy.headroom import HeadroomPolicy, StaticPolicy
from autothrottle.core.traffic.capacity import CapacityLimits, capacity_of
from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Loads
from tests import builders
from tests.builders import limits, mb

LOAD = builders.load(1, mb(40), mb(30))
NOW = LOAD.inbound.end + timedelta(seconds=7)


def warnings(lines: object) -> list[tuple[str, str]]:
    return [(line.subject, line.value) for line in lines if line.fix]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (
            "broker 7 has no sample of x; check --scrape-url",
            Finding("broker 7", "has no sample of x", "check --scrape-url"),
        ),
        ("broker 7 [follower]: a, b: c; set x", Finding("broker 7", "a, b: c", "set x")),
        ("broker 7 (h, rx) has no series s. Fix: add it", Finding("broker 7", "(h, rx) has no series s", "add it")),
        (
            "the clock differs; check it; or not. Fix: do",
            Finding("metrics", "the clock differs; check it; or not", "do"),
        ),
        ("a and b count. If one is below, drop it", Finding("metrics", "a and b count", "if one is below, drop it")),
        ("brokers are odd", Finding("metrics", "brokers are odd", "see docs/runbook.md")),
    ],
)
def test_sentence_becomes_subject_value_and_fix(sentence: str, expected: Finding) -> None:
    assert finding("metrics", sentence) == expected


def inspected(loads: Loads, *registered: int) -> list[Finding]:
    return list(loads_inspected(loads, registered, limits(min_rate=mb(10)), NOW))


def measured(load: BrokerLoad) -> Loads:
    return Loads({load.broker_id: load}, devices={load.broker_id: ("eth0", "eth1")})


def test_facts_name_load_age_capacity_with_its_origin_and_devices() -> None:
    capacity = Capacity(mb(125), mb(100), "the speed of eth0")
    assert inspected(measured(replace(LOAD, capacity=capacity))) == [
        Finding("broker 1", "load 40.00 MB/s outbound, 30.00 MB/s inbound, measured until 7 s ago"),
        Finding("broker 1", "capacity 125.00 MB/s outbound, 100.00 MB/s inbound, from the speed of eth0"),
        Finding("broker 1", "if this is the load of clients, replication gets 76.50 MB/s outbound, 63.00 MB/s inbound"),
        Finding("broker 1", "network devices that count: eth0, eth1"),
    ]


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        (35, ["carries 40.00 MB/s outbound, more than its capacity of 35.00 MB/s, from --default-capacity"]),
        (41, []),
    ],
)
def test_capacity_below_the_load_is_implausible(capacity: float, expected: list[str]) -> None:
    load = replace(LOAD, capacity=Capacity(mb(capacity), mb(capacity), "--default-capacity"))
    assert warnings(inspected(measured(load))) == [("broker 1", text) for text in expected]


def test_capacity_below_the_lowest_throttle_is_implausible() -> None:
    load = replace(builders.load(1, mb(1), mb(1)), capacity=Capacity(mb(9), mb(500)))
    assert warnings(inspected(measured(load))) == [
        ("broker 1", "its outbound capacity of 9.00 MB/s is below --min-rate, 10.00 MB/s")
    ]


def test_brokers_without_a_load_do_not_hide_one_another() -> None:
    """Datadog reports nothing about a host without the tag, so that its broker was in no list at all."""
    loads = replace(measured(LOAD), problems={2: "broker 2 has no series s. Fix: add it"}, warnings=("odd; do it",))
    assert warnings(inspected(loads, 1, 2, 3)) == [
        ("broker 2", "has no series s"),
        ("broker 3", "has no series in the metrics source"),
        ("metrics", "odd"),
    ]


@pytest.mark.parametrize(
    ("sent", "received", "replicated", "gained", "expected"),
    [
        (40, 30, 20, 28, []),
        (40, 0.2, 20, 28, ["inbound load is 0.20 MB/s, and the growth of the logs shows at least 28.00 MB/s"]),
        (10, 14, 20, 28, ["outbound load is 10.00 MB/s, and the growth", "inbound load is 14.00 MB/s, and the growth"]),
        (40, 112, 20, 28, ["inbound load is 112.00 MB/s, and its logs grow by 28.00 MB/s"]),
        (40, 80, 20, 28, []),
        (40, 9, 0, 0, []),
        (0, 0, 0.5, 0.5, []),
    ],
)
def test_loads_that_do_not_fit_the_growth_of_the_logs_are_findings(
    sent: float, received: float, replicated: float, gained: float, expected: list[str]
) -> None:
    """A gauge that was read as a counter gave a load of 0, and nothing in the check was wrong with it."""
    growth = builders.load(1, mb(replicated), mb(gained))
    lines = [*growth_compared(measured(builders.load(1, mb(sent), mb(received))), Loads({1: growth, 2: growth}))]
    assert all(line.subject == "broker 1" and line.fix for line in lines)
    assert [line.value.startswith(text) for line, text in zip(lines, expected, strict=True)] == [True] * len(expected)


def test_old_loads_are_a_finding() -> None:
    lines = loads_inspected(measured(LOAD), (), limits(min_rate=mb(10)), NOW + timedelta(minutes=6))
    assert warnings(lines) == [
        ("broker 1", "the load was measured 367 s ago; the margins for clients grow with the age")
    ]


MAP = (
    PartitionReplicas("apart", 0, (1, 2)),
    PartitionReplicas("shared", 0, (1, 2)),
    PartitionReplicas("shared", 1, (2, 3)),
    PartitionReplicas("three", 0, (1, 2, 3)),
    PartitionReplicas("rackless", 0, (1, 4)),
)


def test_racks_that_topics_share_without_need_and_brokers_without_racks_are_findings() -> None:
    """Three replicas in two racks must share one, and a broker without a rack conflicts with none."""
    assert warnings(racks_inspected({1: "a", 2: "b", 3: "b", 4: ""}, MAP)) == [
        (
            "broker 4",
            "has no rack, although other brokers have one; a plan may put all replicas of its partitions into one",
        ),
        (
            "topic shared",
            "1 of 2 partitions have replicas that share a rack, such as partition 1 on brokers 2 in b, 3 in b",
        ),
    ]
    assert warnings(racks_inspected({1: "", 2: ""}, MAP)) == []
    assert not list(racks_inspected({}, ()))


def test_broker_with_replicas_that_is_not_registered_is_a_finding() -> None:
    lines = registrations_inspected({1, 2, 4}, (*MAP, PartitionReplicas("offline", 0, (-1, 1))))
    assert warnings(lines) == [("broker 3", "is not registered and has 2 replicas")]


SETTINGS = ClusterSettings({1: FetchSettings(), 2: FetchSettings(), 3: FetchSettings(65_536)})


def test_fetch_sizes_are_judged_for_each_broker_by_the_rates_of_the_planner() -> None:
    loads = Loads({b: replace(builders.load(b, mb(10), mb(10)), capacity=Capacity(mb(60), mb(60))) for b in (1, 2, 3)})
    partitions = (*MAP[:4], PartitionReplicas("gone", 0, (-1, 2)), PartitionReplicas("back", 0, (2, 1)))
    lines = list(fetches_inspected(partitions, loads, SETTINGS, limits(), HeadroomPolicy()))
    assert [subject for subject, _ in warnings(lines)] == ["broker 1", "broker 2"]
    assert lines[0].value.startswith("if all its replicas were copied now, the responses to one round of fetches, 1 x")
    assert "set replica.fetch.response.max.bytes=" in lines[0].fix


def test_fetch_sizes_are_judged_without_loads_only_by_a_static_rate() -> None:
    assert not list(fetches_inspected(MAP, Loads(), SETTINGS, limits(), HeadroomPolicy()))
    static = fetches_inspected(MAP, Loads(), SETTINGS, limits(), StaticPolicy(mb(20)))
    assert [line.subject for line in static] == ["broker 2"]
    assert not list(fetches_inspected((), Loads(), SETTINGS, limits(), StaticPolicy(mb(20))))


def test_leftover_throttles_and_unreadable_parts_are_findings() -> None:
    resource, topic = ConfigResource.broker(2), ConfigResource.topic("t")
    snapshot = Snapshot(
        1,
        frozenset({1, 2}),
        throttles={resource: {LEADER_RATE: "5"}},
        unreadable_configs={topic: Problem("topics/t", "it is not JSON; repair it")},
        problems=(Problem("brokers/1", "broker 1 is unreachable: no answer. Fix: start it"),),
    )
    assert warnings(snapshot_inspected(snapshot)) == [
        ("broker 1", "is unreachable: no answer"),
        ("topic t", "it is not JSON"),
        ("broker 2", f"a throttle of another party is set, although nothing moves: {LEADER_RATE}=5"),
    ]


def small_link(broker_id: int) -> BrokerLoad:
    capacity = Capacity(mb(8), mb(8), "--capacity")
    return replace(builders.load(broker_id, mb(1), mb(1)), capacity=capacity)


def test_a_floor_above_the_capacity_is_one_finding_per_broker_and_replication_gets_no_more_than_the_link() -> None:
    """`check` told 10 MB/s of a link of 8 MB/s, and the same finding once for each direction."""
    lines = inspected(measured(small_link(1)))
    assert warnings(lines) == [
        ("broker 1", "its capacity of 8.00 MB/s, from --capacity, is below --min-rate, 10.00 MB/s")
    ]
    assert Finding("broker 1", "if this is the load of clients, replication gets 8.00 MB/s") in lines


def test_findings_of_300_brokers_with_one_cause_are_one_line() -> None:
    """300 brokers with one wrong option had 600 lines of findings."""
    ids = [*range(1001, 1300), 1400]
    lines = one_line_per_cause(inspected(Loads({b: small_link(b) for b in ids})))
    assert [(line.subject, line.value) for line in lines] == [
        ("each of 300 brokers [1001-1299 1400]", value)
        for value in (
            "load 1.00 MB/s, measured until 7 s ago",
            "capacity 8.00 MB/s, from --capacity",
            "if this is the load of clients, replication gets 8.00 MB/s",
            "its capacity of 8.00 MB/s, from --capacity, is below --min-rate, 10.00 MB/s",
        )
    ]


def test_findings_that_differ_in_numbers_and_names_are_one_line_with_an_example() -> None:
    lost = [
        Finding(f"broker {b}", f"(http://kafka{b}:9100, rx) has no series s", "let the exporter report it")
        for b in (1003, 1001)
    ]
    shared = [
        Finding(f"topic {t}", f"1 of 2 partitions share a rack, such as partition 0 in {r}", f"rebuild '^{t}$'")
        for t, r in (("orders", "a"), ("pay.ments", "b"))
    ]
    other = Finding("broker 1002", "has no rack", "set it")
    assert one_line_per_cause([*lost, other, *shared]) == [
        Finding("each of 2 brokers [1001 1003], such as 1003", lost[0].value, lost[0].fix),
        other,
        Finding("each of 2 topics [orders pay.ments], such as orders", shared[0].value, shared[0].fix),
    ]


def test_facts_that_differ_are_listed_for_twenty_brokers() -> None:
    facts = [Finding(f"broker {b}", f"load {b} MB/s") for b in range(1, 31)]
    assert one_line_per_cause(facts) == [
        *facts[:20],
        Finding("brokers", "10 more facts that differ only in numbers; --output json has all"),
    ]


def test_different_causes_stay_apart() -> None:
    lines = [
        Finding("broker 1", "is odd", "a"),
        Finding("broker 2", "is odd", "b"),
        Finding("broker 3", "is even", "a"),
    ]
    assert one_line_per_cause(lines) == lines


def test_a_capacity_names_the_option_that_was_given() -> None:
    """A capacity of `--capacity` was "from --default-capacity", which was not given."""
    limits = CapacityLimits(default=Capacity(mb(8), mb(8), "--capacity"))
    assert capacity_of(1, None, None, limits).origin == "--capacity"
    assert capacity_of(1, None, None, CapacityLimits(default=Capacity(mb(8), mb(8)))).origin == "--default-capacity"
