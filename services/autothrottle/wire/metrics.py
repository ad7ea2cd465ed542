"""Conversion of loads and events to and from messages of the metrics service."""

from __future__ import annotations

from collections.abc import Sequence

from autothrottle.core.cluster.broker_ids import BROKER_IDS
from autothrottle.core.texts import encodable
from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Loads, Utilization, by_broker, check_load
from autothrottle.messages import Conversion
from autothrottle.ports.telemetry import Event
from autothrottle.v1 import metrics_pb2

_MAX_WARNINGS = 100
"""Warnings in one message; a source with one warning for each of a million series must not exceed gRPC's limit."""


def loads_to_message(loads: Loads) -> metrics_pb2.GetLoadsResponse:
    """Return the message. A load that it cannot hold is a problem of its broker; the other loads are in the message."""
    brokers, unsendable = by_broker(loads.brokers, lambda b: _load_to_message(check_load(loads.brokers[b])))
    problems = {**loads.problems, **unsendable}
    return metrics_pb2.GetLoadsResponse(
        brokers=brokers.values(),
        problems={b: encodable(str(reason)) for b, reason in problems.items() if _is_broker_id(b)},
        warnings=_warnings([*loads.warnings, *(reason for b, reason in problems.items() if not _is_broker_id(b))]),
    )


def _is_broker_id(value: object) -> bool:
    return isinstance(value, int) and value in BROKER_IDS


def _warnings(texts: Sequence[str]) -> list[str]:
    more = len(texts) - _MAX_WARNINGS
    shown = [encodable(str(text)) for text in texts[:_MAX_WARNINGS]]
    return [*shown, f"{more} more warnings of the metrics source are not shown"] if more > 0 else shown


def loads_from_message(message: metrics_pb2.GetLoadsResponse) -> Loads:
    """Return the loads. A load with a value outside its range is a problem of its broker."""
    loads = {load.broker_id: load for load in message.brokers}
    brokers, unusable = by_broker(loads, lambda b: check_load(_load_from_message(loads[b])))
    return Loads(brokers, {**message.problems, **unusable}, tuple(message.warnings))


_LOAD = Conversion(
    names={Utilization: {"rate": "rate_bytes_per_second", "start": "start_time", "end": "end_time"}},
)


def _load_to_message(load: BrokerLoad) -> metrics_pb2.BrokerLoad:
    return _LOAD.to_message(
        metrics_pb2.BrokerLoad,
        load,
        instance_type=encodable(load.instance_type),
        outbound_capacity_bytes_per_second=load.capacity.outbound,
        inbound_capacity_bytes_per_second=load.capacity.inbound,
    )


def _load_from_message(message: metrics_pb2.BrokerLoad) -> BrokerLoad:
    capacity = Capacity(message.outbound_capacity_bytes_per_second, message.inbound_capacity_bytes_per_second)
    return _LOAD.from_message(BrokerLoad, message, capacity=capacity)


def event_to_message(event: Event) -> metrics_pb2.PostEventRequest:
    return metrics_pb2.PostEventRequest(title=event.title, text=event.text, tags=event.tags)


def event_from_message(message: metrics_pb2.PostEventRequest) -> Event:
    return Event(message.title, message.text, tuple(message.tags))
