"""Conversion of loads and events to and from messages of the metrics service."""

from __future__ import annotations

from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Loads, Utilization
from autothrottle.messages import Conversion
from autothrottle.ports.telemetry import Event
from autothrottle.v1 import metrics_pb2


def loads_to_message(loads: Loads) -> metrics_pb2.GetLoadsResponse:
    brokers = map(_load_to_message, loads.brokers.values())
    return _LOAD.to_message(metrics_pb2.GetLoadsResponse, loads, brokers=brokers)


def loads_from_message(message: metrics_pb2.GetLoadsResponse) -> Loads:
    brokers = {load.broker_id: _load_from_message(load) for load in message.brokers}
    return _LOAD.from_message(Loads, message, brokers=brokers)


_LOAD = Conversion(
    names={Utilization: {"rate": "rate_bytes_per_second", "start": "start_time", "end": "end_time"}},
)


def _load_to_message(load: BrokerLoad) -> metrics_pb2.BrokerLoad:
    return _LOAD.to_message(
        metrics_pb2.BrokerLoad,
        load,
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
