"""Loads from all series of one read: unmatched brokers are named, and only they fail."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.traffic.broker_matching import BrokerMatching
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.counters import Series, SeriesName
from autothrottle.core.traffic.exporters import EXPORTERS
from autothrottle.core.traffic.loads import Capacity, Loads
from autothrottle.core.traffic.series_loads import SeriesReading

NOW = 1_800_000_000.0
TX, RX = "prometheus-tx-query", "prometheus-rx-query"
LINK = CapacityLimits(default=Capacity(100_000_000, 100_000_000))
HOSTS = {1: ["b1"], 2: ["b2"], 3: ["b3"]}


def series(rate: float, age: float = 0.0, **labels: str) -> Series:
    return Series(labels, [(NOW - age - 30, 0.0), (NOW - age - 15, 15 * rate), (NOW - age, 30 * rate)])


def loads(
    found: Sequence[Series],
    registered: Mapping[int, Sequence[str]] = HOSTS,
    limits: CapacityLimits = LINK,
    speeds: Sequence[Series] = (),
) -> Loads:
    matching = BrokerMatching(registered=registered)
    return SeriesReading(matching, limits, NOW, {TX: found, RX: found}, speeds).loads()


def test_unmatched_brokers_are_named_and_only_they_fail() -> None:
    found = loads([series(5, instance="b1:9100"), series(6, instance="b2:9100"), series(7, instance="lb:9100")])
    assert {broker_id: load.outbound.rate for broker_id, load in found.brokers.items()} == {1: 5, 2: 6}
    assert found.problems == {
        3: "broker 3 (hosts: b3) matches no series of --prometheus-tx-query; "
        '1 targets match no broker: {instance="lb:9100"}. '
        "Fix: name the target in --broker-map, or set --broker-label"
    }
    assert found.warnings == ()


def test_query_that_returns_nothing_is_named_with_each_broker() -> None:
    found = loads([])
    assert found.brokers == {}
    assert [*found.problems] == [1, 2, 3]
    assert found.problems[2].endswith("matches no series of --prometheus-tx-query; check the query")


def test_query_that_returns_nothing_is_named_while_the_registered_brokers_are_unknown() -> None:
    found = loads([], {})
    assert (found.brokers, found.problems) == ({}, {})
    assert found.warnings == tuple(f"--{query} returns no series; check the query" for query in (TX, RX))


def test_load_balancer_that_hides_hosts_fails_its_brokers_alone() -> None:
    found = loads([series(5, instance="b1:9100"), series(6, instance="lb:9100")], {1: ["b1"], 2: ["lb"], 3: ["lb"]})
    assert [*found.brokers] == [1]
    assert [*found.problems] == [2, 3]


def test_unmatched_targets_are_a_warning_while_the_registered_brokers_are_unknown() -> None:
    found = loads([series(5, instance=f"b{n}:9100") for n in range(5)], {})
    assert (found.brokers, found.problems) == ({}, {})
    assert found.warnings[0].startswith("series of --prometheus-tx-query match no broker: {instance=")
    assert " and 2 more. Fix: name them in --broker-map" in found.warnings[0]


def test_two_targets_of_one_broker_are_refused() -> None:
    two = [series(5, instance="b1:9100", prometheus="a"), series(5, instance="b1:9100", prometheus="b")]
    found = loads([*two, series(6, instance="b2:9100")], {1: ["b1"], 2: ["b2"]})
    assert [*found.brokers] == [2]
    assert "broker 1 has 2 targets in --prometheus-tx-query" in found.problems[1]
    assert 'prometheus="b"' in found.problems[1]


def test_stale_target_beside_a_fresh_one_does_not_count() -> None:
    """A pod that moves to another host leaves a series with the old host, which ended minutes ago."""
    moved = [series(9, 60, pod="b1", node="old"), series(5, pod="b1", node="new")]
    assert loads(moved, {1: ["b1"]}).brokers[1].inbound.rate == 5


def test_devices_of_one_target_are_summed_up() -> None:
    devices = [series(5, instance="b1:9100", device="eth0"), series(6, instance="b1:9100", device="eth1")]
    assert loads(devices, {1: ["b1"]}).brokers[1].outbound.rate == 11


def test_bad_samples_fail_one_broker_with_its_target_and_query() -> None:
    nan = Series({"instance": "b1:9100"}, [(NOW - 15, 1.0), (NOW, float("nan"))])
    found = loads([nan, series(6, instance="b2:9100")], {1: ["b1"], 2: ["b2"]})
    assert [*found.brokers] == [2]
    assert found.problems[1] == (
        'broker 1 ({instance="b1:9100"} in --prometheus-tx-query) has a sample of nan bytes; it must be >= 0'
    )


@pytest.mark.parametrize(
    ("limits", "capacity"),
    [
        (CapacityLimits(), 1_250_000_000),
        (LINK, 1_250_000_000),
        (CapacityLimits(by_broker={1: Capacity(7, 7)}), 7),
    ],
)
def test_capacity_is_the_speed_of_the_fastest_device_unless_set_for_the_broker(
    limits: CapacityLimits, capacity: int
) -> None:
    speeds = [
        Series({"instance": "b1:9100", "device": device}, [(NOW, value)])
        for device, value in (("eth0", 125e6), ("bond0", 1.25e9), ("docker0", -125_000.0))
    ]
    found = loads([series(5, instance="b1:9100")], {1: ["b1"]}, limits, speeds)
    assert found.brokers[1].capacity == Capacity(capacity, capacity)
    assert found.brokers[1].capacity.origin == ("--broker-cap-map" if capacity == 7 else "the speed of bond0")


def test_speeds_that_no_link_has_are_unknown() -> None:
    """The kernel reports -1 Mbit/s for a virtual device and one that is down."""
    speeds = [Series({"instance": "b1:9100"}, [(NOW, value)]) for value in (-125_000.0, math.nan, math.inf, 9e18, 7e7)]
    capacities = [
        loads([series(5, instance="b1:9100")], {1: ["b1"]}, LINK, some).brokers[1].capacity
        for some in (speeds, speeds[:4])
    ]
    assert [(each.inbound, each.origin) for each in capacities] == [
        (70_000_000, "the speed of its network device"),
        (100_000_000, "--default-capacity"),
    ]


@pytest.mark.parametrize(
    ("pattern", "speed", "text"),
    [
        ("eth.*|veth.*", 1.25e9, "matches virtual devices: veth1a2b"),
        ("veth.*", 1.25e9, "matches only veth1a2b, and the capacity is the speed of veth1a2b"),
        ("veth.*", 0, ""),
        ("eth0", 1.25e9, ""),
    ],
)
def test_virtual_devices_that_the_operator_names_are_a_finding(pattern: str, speed: float, text: str) -> None:
    """A veth always reports 10 Gbit/s, so that --net-devices could raise the capacity tenfold without a word."""
    devices = [device for device in ("eth0", "veth1a2b") if re.fullmatch(pattern, device)]
    traffic = [
        series(rate, instance="b1:9100", device=device) for rate, device in zip((2e6, 5e6), devices, strict=False)
    ]
    speeds = [Series({"instance": "b1:9100", "device": "veth1a2b"}, [(NOW, speed)])]
    exporter = EXPORTERS["node_exporter"].with_net_devices(pattern)
    reading = SeriesReading(
        BrokerMatching(registered={1: ["b1"]}), LINK, NOW, {TX: traffic, RX: traffic}, speeds, exporter=exporter
    )
    assert text in "".join(reading.loads().warnings)
    assert bool(text) == any("--net-devices matches" in warning for warning in reading.loads().warnings)


def test_broker_without_a_known_capacity_is_a_problem() -> None:
    found = loads([series(5, instance="b1:9100")], {1: ["b1"]}, CapacityLimits())
    assert "broker 1 has no known capacity" in found.problems[1]


SUM = {query: (SeriesName("clients_total"), SeriesName("replication_total")) for query in (TX, RX)}


@pytest.mark.parametrize(
    ("age", "reason"), [(60.0, "has the series replication_total, which has no fresh sample"), (0.0, "")]
)
def test_stale_member_of_a_sum_is_a_problem_of_its_broker(age: float, reason: str) -> None:
    """A stale series beside a fresh one did not count, so that the replication of a broker became 0."""
    found = [
        series(5, __name__="clients_total", instance="b1:9404"),
        series(6, age, __name__="replication_total", instance="b1:9404"),
    ]
    reading = SeriesReading(
        BrokerMatching(registered={1: ["b1"]}), LINK, NOW, {TX: found, RX: found}, exporter=EXPORTERS["jmx"], names=SUM
    )
    loads = reading.loads()
    assert reason in loads.problems.get(1, "")
    assert {b: load.outbound.rate for b, load in loads.brokers.items()} == ({} if reason else {1: 11})


def test_device_without_a_rate_yet_makes_the_sum_unknown() -> None:
    """The traffic of a NIC with one sample counted as 0, although its rate is only unknown until the next sample."""
    appeared = Series({"instance": "b1:9100", "device": "eth1"}, [(NOW, 7.0)])
    found = loads([series(5, instance="b1:9100", device="eth0"), appeared], {1: ["b1"]})
    assert "has one sample; a rate needs two" in found.problems[1]


_odd = st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 9e18, 2.0**64, 1e300, NOW, NOW - 0.001]) | st.floats()
_odd_texts = st.sampled_from(["", "\ud800", "b1", "b2:9100", "[", "x" * 10_000]) | st.text(max_size=3)
_odd_labels = st.dictionaries(st.sampled_from(["device", "job", "pod", "name", "\ud800"]), _odd_texts, max_size=3)
_odd_series = st.builds(
    lambda labels, samples, mean: Series({**labels, "instance": "b3:9100"}, samples, mean),
    _odd_labels,
    st.lists(st.tuples(_odd, _odd), max_size=4),
    st.none() | _odd,
)


@given(st.lists(_odd_series, max_size=4), st.lists(_odd_series, max_size=2))
def test_odd_series_of_one_broker_never_change_the_loads_of_the_others(
    odd: Sequence[Series], odd_speeds: Sequence[Series]
) -> None:
    """One NaN as a timestamp at a broker that did not even take part took the loads from all brokers."""
    good = [series(5, instance="b1:9100"), series(6, instance="b2:9100")]
    clean, found = loads(good), loads([*odd, *good], speeds=odd_speeds)
    assert {b: found.brokers[b] for b in (1, 2)} == clean.brokers
    assert [*{**found.brokers, **found.problems}] == [1, 2, 3]


def test_unexpected_error_at_one_broker_is_its_problem() -> None:
    """Only two kinds of errors were problems of a broker; any other ended the reading for all."""
    odd = Series({"instance": "b3:9100"}, [(NOW - 15, 1.0), (NOW, "7")])  # type: ignore[list-item]
    found = loads([odd, series(5, instance="b1:9100"), series(6, instance="b2:9100")])
    assert [*found.brokers] == [1, 2]
    assert found.problems[3].startswith("broker 3 has metrics that cannot be read (TypeError: ")


def test_query_of_the_operator_may_select_several_nics_and_no_devices_on_top_of_them() -> None:
    """The series of a query are all summed up, so that a bridge counted the bytes of its NIC again."""
    chosen = [series(5, instance="b1:9100", interface=device) for device in ("eth0", "eth1", "docker0")]
    assert loads(chosen[:2], {1: ["b1"]}).brokers[1].outbound.rate == 10
    problem = loads(chosen, {1: ["b1"]}).problems[1]
    assert "differ in the network device (interface: docker0, eth0, eth1)" in problem
    assert problem.endswith("Fix: --broker-device-label=interface, or select the NICs in the query")
    exporter = EXPORTERS["node_exporter"].with_device_label("interface")
    reading = SeriesReading(
        BrokerMatching(registered={1: ["b1"]}), LINK, NOW, {TX: chosen, RX: chosen}, exporter=exporter
    )
    assert (reading.loads().brokers[1].outbound.rate, reading.loads().devices) == (10, {1: ("eth0", "eth1")})
