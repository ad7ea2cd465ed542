"""Loads and events survive the wire."""

from hypothesis import given

from autothrottle.core.traffic.loads import Loads
from autothrottle.ports.telemetry import Event
from autothrottle.v1.metrics_pb2 import GetLoadsResponse
from autothrottle.wire.metrics import event_from_message, event_to_message, loads_from_message, loads_to_message
from tests.unit.autothrottle.wire import strategies


@given(strategies.loads())
def test_loads_round_trip(loads: Loads) -> None:
    raw = loads_to_message(loads).SerializeToString()
    assert loads_from_message(GetLoadsResponse.FromString(raw)) == loads


def test_event_round_trips() -> None:
    event = Event("Broker 1001", "throttled", ("name:a", "term:3"))
    assert event_from_message(event_to_message(event)) == event
