from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given

from autothrottle.core.loads import Loads
from autothrottle.ports.metrics import Event
from autothrottle.v1.metrics_pb2 import GetLoadsResponse
from autothrottle.wire.loads import event_from_message, event_to_message, loads_from_message, loads_to_message
from autothrottle.wire.times import time_from_message, time_to_message
from tests.wire import strategies


@given(strategies.loads())
def test_loads_arrive_as_they_were_sent(loads: Loads) -> None:
    raw = loads_to_message(loads).SerializeToString()
    assert loads_from_message(GetLoadsResponse.FromString(raw)) == loads


@given(strategies.times)
def test_a_time_is_exact_to_the_microsecond_and_utc(time: datetime) -> None:
    arrived = time_from_message(time_to_message(time))
    assert arrived == time
    assert arrived.tzinfo is UTC


def test_a_time_of_another_zone_arrives_as_the_same_moment() -> None:
    time = datetime(2026, 11, 2, 13, 30, tzinfo=timezone(timedelta(hours=1)))
    assert time_from_message(time_to_message(time)) == datetime(2026, 11, 2, 12, 30, tzinfo=UTC)


def test_an_event_arrives_as_it_was_posted() -> None:
    event = Event("Broker 1001", "was throttled", ("name:a", "term:3"))
    assert event_from_message(event_to_message(event)) == event
