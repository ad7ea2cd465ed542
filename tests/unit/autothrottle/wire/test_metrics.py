"""Loads and events survive the wire."""

import math
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Loads, Utilization
from autothrottle.ports.telemetry import Event
from autothrottle.v1 import metrics_pb2
from autothrottle.v1.metrics_pb2 import GetLoadsResponse
from autothrottle.wire.common import SAME_NAMES
from autothrottle.wire.metrics import loads_from_message, loads_to_message
from tests.builders import load
from tests.unit.autothrottle.wire import strategies


@given(strategies.loads())
def test_loads_round_trip(loads: Loads) -> None:
    raw = loads_to_message(loads).SerializeToString()
    assert loads_from_message(GetLoadsResponse.FromString(raw)) == loads


def test_event_round_trips() -> None:
    event = Event("Broker 1001", "throttled", ("name:a", "term:3"))
    assert SAME_NAMES.from_message(Event, SAME_NAMES.to_message(metrics_pb2.PostEventRequest, event)) == event


_GOOD = {1: load(1, 5, 6), 2: load(2, 7, 8)}
_ODD_NUMBERS = [math.nan, math.inf, -math.inf, -1, 2**63, 9e18, 2**70, 1.5, "7", None]
_EARLY, _LATE = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-14)))
_odd_times = st.sampled_from([_EARLY, _LATE, _EARLY.replace(tzinfo=UTC), _LATE.replace(tzinfo=UTC), 7.0, None])
_odd_numbers: st.SearchStrategy[Any] = st.sampled_from(_ODD_NUMBERS) | st.integers() | st.floats()
_odd_texts: st.SearchStrategy[Any] = st.sampled_from(["\ud800", None, 7, "x" * 10_000_000, "\x00", "\x1b[2J", ""])
_odd_loads: st.SearchStrategy[BrokerLoad] = st.builds(
    BrokerLoad,
    st.sampled_from([3, -1, 2**31, 2**70, math.nan, "3"]),
    st.builds(Capacity, _odd_numbers, _odd_numbers),
    st.builds(Utilization, _odd_numbers, _odd_times, _odd_times),
    st.builds(Utilization, _odd_numbers, _odd_times, _odd_times),
    _odd_texts,
)


@given(_odd_loads, st.sampled_from([3, -7, 2**31, 2**70]), _odd_texts)
def test_one_odd_load_never_changes_the_loads_of_the_others(odd: BrokerLoad, key: int, text: str) -> None:
    """A rate above 2^63-1 or a NaN at one broker made the whole message fail ("Value out of range").

    Every broker then fell to its minimum rate. Now the load is a problem of its broker, and the others are sent.
    """
    loads = Loads({1: _GOOD[1], key: odd, 2: _GOOD[2]}, {key: text, 5: text}, (text,))
    message = GetLoadsResponse.FromString(loads_to_message(loads).SerializeToString())
    found = loads_from_message(message)
    assert {b: found.brokers[b] for b in _GOOD} == _GOOD
    assert all(max(map(len, texts), default=0) <= 1_000 for texts in (found.problems.values(), found.warnings))


def test_quota_rates_round_trip_and_odd_ones_are_left_out() -> None:
    good = _GOOD[1].outbound
    odd = Utilization(2**63, good.start, good.end)
    loads = Loads(
        _GOOD,
        quota_rates={(1, ReplicaRole.LEADER): good, (2, ReplicaRole.FOLLOWER): odd, (-1, ReplicaRole.LEADER): good},
    )
    message = GetLoadsResponse.FromString(loads_to_message(loads).SerializeToString())
    received = loads_from_message(message)
    assert (received.brokers, received.quota_rates) == (_GOOD, {(1, ReplicaRole.LEADER): good})
    assert len(received.warnings) == 2
    for rate in message.quota_rates:
        rate.role = 7  # type: ignore[assignment]
    assert loads_from_message(message).quota_rates == {}


@pytest.mark.parametrize("rate", [-1, 2**63, math.nan])
def test_odd_rate_is_a_problem_that_names_its_broker(rate: Any) -> None:
    odd = replace(load(3), inbound=replace(load(3).inbound, rate=rate))
    found = loads_from_message(loads_to_message(Loads({**_GOOD, 3: odd})))
    assert found.problems == {3: f"broker 3 has a rate of {rate} bytes/s; it must be in 0..2^63-1"}


def test_load_that_another_version_sends_wrong_is_a_problem_of_its_broker() -> None:
    """A time after the year 9999 cannot be a datetime. The loads of the other brokers are read."""
    message = loads_to_message(Loads({**_GOOD, 3: load(3)}))
    message.brokers[2].outbound.end_time.seconds = 2**62
    message.brokers.add(broker_id=4)
    found = loads_from_message(message)
    assert found.brokers == _GOOD
    assert {*found.problems} == {3, 4}


def test_a_million_warnings_are_shortened() -> None:
    """A source with one warning for each odd series exceeded gRPC's limit. Then all brokers lose their loads."""
    found = loads_from_message(loads_to_message(Loads(_GOOD, {}, ("x",) * 1_000)))
    assert found.warnings[-2:] == ("x", "900 more warnings of the metrics source are not shown")
    assert found.brokers == _GOOD


@pytest.mark.parametrize("rate", [None, "7", 1.5, math.nan, 2**63])
@pytest.mark.parametrize("end", [_EARLY, _LATE, None])
def test_an_odd_quota_rate_is_left_out_and_the_loads_are_sent(rate: Any, end: Any) -> None:
    """A metrics source of another party gave a quota rate without a number or a time.

    The error took the loads from all brokers, although quota rates are optional.
    """
    odd = Utilization(rate, _GOOD[1].outbound.start, end)
    message = loads_to_message(Loads(_GOOD, quota_rates={(1, ReplicaRole.LEADER): odd}))
    assert (loads_from_message(message).brokers, loads_from_message(message).quota_rates) == (_GOOD, {})
    assert message.warnings == ["broker 1 [leader]: its quota rate is out of range and ignored"]


def test_a_received_quota_rate_with_an_odd_time_takes_no_load() -> None:
    """A metrics service sent a quota rate with a time after the year 9999, and no message of the loads could be read.

    Each cycle then had no load of any broker.
    """
    message = loads_to_message(Loads(_GOOD, quota_rates={(1, ReplicaRole.LEADER): _GOOD[1].outbound}))
    message.quota_rates[0].measured.end_time.seconds = 2**62
    assert (loads_from_message(message).brokers, loads_from_message(message).quota_rates) == (_GOOD, {})


@pytest.mark.parametrize("broker_id", [7.5, 1e9 + 0.5])
def test_a_broker_id_with_a_fraction_is_refused_at_once(broker_id: Any) -> None:
    """A source gave a broker id of 1e9 + 0.5, and the check of its range compared it to all numbers of the range.

    That took a minute, in which no load was read.
    """
    start = time.process_time()
    message = loads_to_message(Loads({broker_id: replace(_GOOD[1], broker_id=broker_id), 2: _GOOD[2]}))
    assert time.process_time() - start < 1
    assert [load.broker_id for load in message.brokers] == [2]
    assert [str(broker_id) in text for text in message.warnings] == [True]
