"""Conversion of loads and events to and from messages of the metrics service."""

from __future__ import annotations

from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Loads, Utilization
from autothrottle.ports.telemetry import Event
from autothrottle.v1 import metrics_pb2
from autothrottle.wire.common import time_from_message, time_to_message


def loads_to_message(loads: Loads) -> metrics_pb2.GetLoadsResponse:
    return metrics_pb2.GetLoadsResponse(
        brokers=[_load_to_message(load) for load in loads.brokers.values()],
        problems=loads.problems,
        warnings=loads.warnings,
    )


def loads_from_message(message: metrics_pb2.GetLoadsResponse) -> Loads:
    return Loads(
        brokers={load.broker_id: _load_from_message(load) for load in message.brokers},
        problems=dict(message.problems),
        warnings=tuple(message.warnings),
    )


def _load_to_message(load: BrokerLoad) -> metrics_pb2.BrokerLoad:
    return metrics_pb2.BrokerLoad(
        broker_id=load.broker_id,
        outbound_capacity_bytes_per_second=load.capacity.outbound,
        inbound_capacity_bytes_per_second=load.capacity.inbound,
        outbound=_utilization_to_message(load.outbound),
        inbound=_utilization_to_message(load.inbound),
        instance_type=load.instance_type,
    )


def _load_from_message(message: metrics_pb2.BrokerLoad) -> BrokerLoad:
    return BrokerLoad(
        broker_id=message.broker_id,
        capacity=Capacity(
            outbound=message.outbound_capacity_bytes_per_second, inbound=message.inbound_capacity_bytes_per_second
        ),
        outbound=_utilization_from_message(message.outbound),
        inbound=_utilization_from_message(message.inbound),
        instance_type=message.instance_type,
    )


def _utilization_to_message(utilization: Utilization) -> metrics_pb2.Utilization:
    return metrics_pb2.Utilization(
        rate_bytes_per_second=utilization.rate,
        start_time=time_to_message(utilization.start),
        end_time=time_to_message(utilization.end),
    )


def _utilization_from_message(message: metrics_pb2.Utilization) -> Utilization:
    return Utilization(
        rate=message.rate_bytes_per_second,
        start=time_from_message(message.start_time),
        end=time_from_message(message.end_time),
    )


def event_to_message(event: Event) -> metrics_pb2.PostEventRequest:
    return metrics_pb2.PostEventRequest(title=event.title, text=event.text, tags=event.tags)


def event_from_message(message: metrics_pb2.PostEventRequest) -> Event:
    return Event(message.title, message.text, tuple(message.tags))
