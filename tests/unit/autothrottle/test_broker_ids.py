"""Broker id 0 is valid at every entry point, as in Kafka; ids below 0 and from 2^31 on are not."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from autothrottle.adapters.memory import MemoryOverrides
from autothrottle.admin.servicer import override_from_message
from autothrottle.core.cluster.configs import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    ConfigResource,
    broker_id_of,
    parse_broker_id,
    validate_broker_id,
)
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.operators.submission import targets
from autothrottle.core.traffic.capacity import parse_broker_cap_map
from autothrottle.gateway import legacy
from autothrottle.v1 import admin_pb2, discovery_pb2
from autothrottle.wire.applier import resource_from_path
from autothrottle.wire.discovery import log_sizes_request_from_message, validate_brokers
from autothrottle_client import model
from autothrottle_client.reassignments import parse_reassignment
from autothrottle_client.throttlectl import main, make_parser
from tests.builders import eventually, mb
from tests.unit.autothrottle.gateway.front import Front

LARGEST = 2**31 - 1


def broker_of_node(name: str) -> int:
    found = broker_id_of(name)
    if found is None:
        raise ValueError(name)
    return found


def stored_broker(broker_id: int) -> int:
    store = MemoryOverrides()
    store.set_override(broker_id, StoredOverride(1))
    return next(iter(store.read_overrides().brokers))


def assignment(broker_id: int) -> str:
    return json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [broker_id]}]})


def override(broker_id: int) -> admin_pb2.Override:
    return admin_pb2.Override(broker_id=broker_id, rate_bytes_per_second=1)


def log_sizes(broker_id: int) -> discovery_pb2.GetLogSizesRequest:
    return discovery_pb2.GetLogSizesRequest(brokers=[discovery_pb2.BrokerPartitions(broker_id=broker_id)])


ENTRY_POINTS: dict[str, Callable[[int], int | None]] = {
    "API": validate_broker_id,
    "override of the API": lambda b: override_from_message(override(b))[0],
    "reassignment of the API": lambda b: targets([("t", 0, [b])])["t", 0][0],
    "snapshot request": lambda b: validate_brokers([b])[0],
    "log sizes request": lambda b: next(iter(log_sizes_request_from_message(log_sizes(b)))),
    "change of the applier": lambda b: resource_from_path(f"brokers/{b}").broker_id,
    "override in a store": stored_broker,
    "znode": lambda b: broker_of_node(str(b)),
    "text route": lambda b: legacy.broker_id(str(b)),
    "tag": lambda b: parse_broker_id(str(b)),
    "broker-cap-map": lambda b: next(iter(parse_broker_cap_map(json.dumps({str(b): 1}), "--broker-cap-map"))),
    "client": lambda b: model.validate_number("broker_id", b),
    "reassignment file": lambda b: parse_reassignment(assignment(b))["t", 0][0],
    "throttlectl set": lambda b: make_parser().parse_args(["set", "1", f"--broker={b}"]).broker,
    "throttlectl get": lambda b: make_parser().parse_args(["get", "--", str(b)]).broker,
    "throttlectl catchup": lambda b: make_parser().parse_args(["catchup", "--", str(b)]).broker,
}


@pytest.mark.parametrize("broker_id", [0, 1, LARGEST])
@pytest.mark.parametrize("accept", ENTRY_POINTS.values(), ids=ENTRY_POINTS)
def test_a_broker_id_of_kafka_is_accepted(accept: Callable[[int], int | None], broker_id: int) -> None:
    """Overrides and catch-ups refused broker 0. KRaft and Strimzi clusters count their brokers from 0."""
    assert accept(broker_id) == broker_id


@pytest.mark.parametrize("broker_id", [-1, LARGEST + 1])
@pytest.mark.parametrize("accept", ENTRY_POINTS.values(), ids=ENTRY_POINTS)
def test_any_other_broker_id_is_refused(accept: Callable[[int], int | None], broker_id: int) -> None:
    with pytest.raises((AutothrottleError, ValueError, SystemExit)):  # ValueError: protobuf's int32
        accept(broker_id)


def test_an_override_and_a_catch_up_of_broker_0_pass_through_every_interface(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Front() as front:
        cluster, at = front.services.cluster, ["--addr", front.services.address("admin"), "--output", "json"]
        cluster.brokers.add(0)
        cluster.add_topic("t", {0: (1001, 0)})
        cluster.leave_isr("t", 0, 0)
        front.services.start_planners()
        eventually(lambda: front.ask("GET", "/v1/state").status == 200)

        assert front.ask("POST", "/throttle/0?rate=7").text == "broker 0: throttle successfully set to 7MB/s, " + (
            "autoremove==false\n"
        )
        assert front.current() == {0: (mb(7), False)}
        assert front.ask("GET", "/v1/brokers/0/override").json["override"]["brokerId"] == 0
        assert main(["get", "0", *at]) == 0
        assert json.loads(capsys.readouterr().out)["broker_id"] == 0
        assert front.ask("POST", "/throttle/remove/0").text == "broker 0: throttle removed\n"
        assert front.current() == {}

        assert main(["set", "5MB/s", "--broker", "0", *at]) == 0
        assert main(["remove", "--broker", "0", *at]) == 0
        assert front.ask("PUT", "/v1/brokers/5/catchUp", '{"brokerId":0}').status == 400
        assert front.ask("PUT", "/v1/brokers/0/catchUp", "{}").json["catchUp"]["brokerId"] == 0
        eventually(lambda: FOLLOWER_RATE in cluster.configs.get(ConfigResource.broker(0), {}))
        eventually(lambda: cluster.configs.get(ConfigResource.topic("t"), {}).get(FOLLOWER_REPLICAS) == "0:0")
        assert main(["catchup", "0", "--stop", *at]) == 0
