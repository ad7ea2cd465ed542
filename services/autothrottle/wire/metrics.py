"""Conversion of loads and events to and from messages of the metrics service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from autothrottle.core.cluster.configs import MAX_BROKER_ID, ReplicaRole
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.errors import FIELD_ERRORS
from autothrottle.core.texts import encodable
from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Loads, Utilization, by_broker, check_load
from autothrottle.core.units import MAX_RATE
from autothrottle.messages import Conversion
from autothrottle.v1 import metrics_pb2, types_pb2

_MAX_WARNINGS = 100
"""Warnings in one message; a source with one warning for each of a million series must not exceed gRPC's limit."""


_LOAD = Conversion(
    names={Utilization: {"rate": "rate_bytes_per_second", "start": "start_time", "end": "end_time"}},
)


_ROLES = {types_pb2.REPLICA_ROLE_LEADER: ReplicaRole.LEADER, types_pb2.REPLICA_ROLE_FOLLOWER: ReplicaRole.FOLLOWER}


def loads_to_message(loads: Loads) -> metrics_pb2.GetLoadsResponse:
    """Return the message. A load that it cannot hold is a problem of its broker; the other loads are in the message."""
    brokers, unsendable = by_broker(loads.brokers, lambda b: _load_to_message(check_load(loads.brokers[b])))
    problems = {**loads.problems, **unsendable}
    quota_rates, odd = _quota_rates_to_messages(loads.quota_rates)
    others = [reason for b, reason in problems.items() if not _is_broker_id(b)]
    return metrics_pb2.GetLoadsResponse(
        brokers=brokers.values(),
        problems={b: encodable(str(reason)) for b, reason in problems.items() if _is_broker_id(b)},
        warnings=_warnings([*loads.warnings, *others, *odd]),
        quota_rates=quota_rates,
    )


def _quota_rates_to_messages(
    rates: Mapping[LinkSide, Utilization],
) -> tuple[list[metrics_pb2.QuotaRate], list[str]]:
    """Return the messages, and a warning for each rate that no message can hold."""
    messages: list[metrics_pb2.QuotaRate] = []
    warnings: list[str] = []
    for side, measured in rates.items():
        try:
            checked = _LOAD.to_message(metrics_pb2.Utilization, _checked_quota_rate(side, measured))
            role = types_pb2.ReplicaRole.Value(f"REPLICA_ROLE_{side[1].name}")
            messages.append(metrics_pb2.QuotaRate(broker_id=side[0], role=role, measured=checked))
        except FIELD_ERRORS:
            warnings.append(f"broker {side[0]} [{side[1].value}]: its quota rate is out of range and ignored")
    return messages, warnings


def _quota_rates(message: metrics_pb2.GetLoadsResponse) -> dict[LinkSide, Utilization]:
    """Return the quota rates that are in range; a metrics service of this version sends no others."""
    rates: dict[LinkSide, Utilization] = {}
    for rate in message.quota_rates:
        with suppress(*FIELD_ERRORS):  # an optional value must not take the loads
            side = (rate.broker_id, _ROLES[rate.role])
            rates[side] = _checked_quota_rate(side, _LOAD.from_message(Utilization, rate.measured))
    return rates


def _checked_quota_rate(side: LinkSide, measured: Utilization) -> Utilization:
    """Return a measurement that a message can hold; raises one of `FIELD_ERRORS` if it is out of range."""
    if not (_is_broker_id(side[0]) and 0 <= measured.rate <= MAX_RATE and measured.start <= measured.end):
        raise ValueError("out of range")
    return measured


def _is_broker_id(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= MAX_BROKER_ID


def _warnings(texts: Sequence[str]) -> list[str]:
    more = len(texts) - _MAX_WARNINGS
    shown = [encodable(str(text)) for text in texts[:_MAX_WARNINGS]]
    return [*shown, f"{more} more warnings of the metrics source are not shown"] if more > 0 else shown


def loads_from_message(message: metrics_pb2.GetLoadsResponse) -> Loads:
    """Return the loads. A load with a value outside its range is a problem of its broker."""
    loads = {load.broker_id: load for load in message.brokers}
    brokers, unusable = by_broker(loads, lambda b: check_load(_load_from_message(loads[b])))
    problems = {**message.problems, **unusable}
    return Loads(brokers, problems, tuple(message.warnings), quota_rates=_quota_rates(message))


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
