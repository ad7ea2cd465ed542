"""Which broker a series belongs to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from autothrottle.core.errors import Invalid
from autothrottle.core.traffic.broker_matching import (
    BrokerMatching,
    host_of,
    parse_broker_label,
    parse_broker_map,
)
from autothrottle.core.traffic.exporters import EXPORTERS

MSK = "demo.a1b2.c2.kafka.us-east-1.amazonaws.com"

REGISTERED = {1: ["b1.example"], 2: ["b2.example", "10.0.0.2"]}


def labelled(preset: str) -> BrokerMatching:
    return BrokerMatching(label=parse_broker_label(EXPORTERS[preset].broker_label, "broker-label"))


@pytest.mark.parametrize(
    ("matching", "labels", "broker_id"),
    [
        pytest.param(labelled("strimzi"), {"pod": "my-cluster2-kafka-10"}, 10, id="strimzi"),
        pytest.param(labelled("strimzi"), {"pod": "my-cluster-broker-0"}, 0, id="strimzi-node-pool"),
        pytest.param(labelled("strimzi"), {"pod": "my-cluster-entity-operator"}, None, id="pod-without-number"),
        pytest.param(labelled("cadvisor"), {"pod": "kafka-2", "interface": "eth0"}, 2, id="cadvisor"),
        pytest.param(labelled("msk"), {"instance": f"b-3.{MSK}:11002"}, 3, id="msk"),
        pytest.param(labelled("msk"), {"instance": f"b-3-public.{MSK}:11001"}, 3, id="msk-public"),
        pytest.param(BrokerMatching(registered=REGISTERED), {"instance": "b2.example:9100"}, 2, id="host"),
        pytest.param(BrokerMatching(registered=REGISTERED), {"instance": "B2.Example.:9100"}, 2, id="host-in-capitals"),
        pytest.param(BrokerMatching(registered=REGISTERED), {"instance": "10.0.0.2:9100"}, 2, id="second-listener"),
        pytest.param(BrokerMatching(registered=REGISTERED), {"node": "b1.example"}, 1, id="node"),
        pytest.param(BrokerMatching(registered=REGISTERED), {"instance": "b3.example:9100"}, None, id="other-host"),
        pytest.param(BrokerMatching(registered=REGISTERED), {"job": "b1.example"}, None, id="not-a-host-label"),
        pytest.param(
            BrokerMatching(registered={1: ["lb.example"], 2: ["lb.example"]}),
            {"instance": "lb.example:9100"},
            None,
            id="load-balancer-hides-hosts",
        ),
        pytest.param(
            BrokerMatching({"10.0.0.9": 2}, registered={1: ["lb.example"], 2: ["lb.example"]}),
            {"instance": "10.0.0.9:9100"},
            2,
            id="load-balancer-with-map",
        ),
        pytest.param(BrokerMatching({"kafka-a": 7}), {"pod": "kafka-a"}, 7, id="map-by-label"),
        pytest.param(
            BrokerMatching(reported={"b2.example:9092": 2}), {"instance": "b2.example:9308"}, 2, id="reported"
        ),
        pytest.param(BrokerMatching(), {"instance": "b1.example:9100"}, None, id="nothing-known"),
        pytest.param(BrokerMatching(registered={5: ["::1"]}), {"instance": "[::1]:9100"}, 5, id="ipv6"),
    ],
)
def test_broker_of_a_series(matching: BrokerMatching, labels: Mapping[str, str], broker_id: int | None) -> None:
    assert matching.broker_of(labels) == broker_id


LONG, SHORT = "2001:DB8:0:0:0:0:0:1", "2001:db8::1"


@pytest.mark.parametrize(
    ("matching", "labels"),
    [
        pytest.param(BrokerMatching(registered={5: [LONG]}), {"instance": f"[{SHORT}]:9100"}, id="registered"),
        pytest.param(BrokerMatching(registered={5: [SHORT]}), {"node": LONG}, id="label-without-port"),
        pytest.param(BrokerMatching(reported={f"[{LONG}]:9092": 5}), {"instance": f"[{SHORT}]:9308"}, id="reported"),
        pytest.param(BrokerMatching({LONG: 5}), {"instance": f"[{SHORT}]:9100"}, id="map-of-hosts"),
        pytest.param(BrokerMatching({f"[{LONG}]:9100": 5}), {"instance": f"[{SHORT}]:9100"}, id="map-with-port"),
        pytest.param(BrokerMatching(registered={5: ["::ffff:10.0.0.7"]}), {"instance": "10.0.0.7:9100"}, id="mapped"),
    ],
)
def test_ip_addresses_are_compared_as_addresses(matching: BrokerMatching, labels: Mapping[str, str]) -> None:
    """An IPv6 address has many forms. A broker matched no series where registration and label had different ones."""
    assert matching.broker_of(labels) == 5


def test_map_of_an_address_with_a_port_does_not_match_another_port() -> None:
    assert BrokerMatching({f"[{LONG}]:9100": 5}).broker_of({"instance": f"[{SHORT}]:9101"}) is None


def test_rules_apply_in_their_order() -> None:
    labels = {"instance": "b1.example:9100", "pod": "kafka-2"}
    label = parse_broker_label("pod=kafka-([0-9]+)", "broker-label")
    rules = {
        "by_value": {"b1.example": 4},
        "label": label,
        "reported": {"b1.example:9092": 3},
        "registered": REGISTERED,
    }
    found = []
    for name in list(rules):
        found.append(BrokerMatching(**rules).broker_of(labels))  # type: ignore[arg-type]
        del rules[name]
    assert found == [4, 2, 3, 1]


@pytest.mark.parametrize("text", ["pod", "pod=kafka", "pod=(", "=(x)", "a b=(x)", "pod=" + "(" * 5000])
def test_label_needs_a_name_and_an_expression_with_a_group(text: str) -> None:
    with pytest.raises(Invalid, match="broker-label is "):
        parse_broker_label(text, "broker-label")


@pytest.mark.parametrize("text", ["[]", "{", '{"a":-1}', '{"a":"x"}', '{"a":1.5}', '{"a":true}', '{"a":null}'])
def test_map_needs_broker_ids(text: str) -> None:
    with pytest.raises(Invalid):
        parse_broker_map(text, "broker-map")


@pytest.mark.parametrize(
    ("address", "host"),
    [("b:1", "b"), ("b", "b"), ("[::1]:9", "::1"), ("::1", "::1"), ("B.example.", "b.example")],
)
def test_host_of_an_address(address: str, host: str) -> None:
    assert host_of(address) == host
