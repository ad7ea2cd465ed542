"""Conversion of the placement service's messages about pools, capacity and forecasts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from autothrottle.core.capacity.forecasts import LimitForecast
from autothrottle.core.capacity.packing import PoolsState
from autothrottle.core.capacity.pools import PoolPlans
from autothrottle.core.capacity.sizing import (
    CapacityPlan,
    CopyTarget,
    InstanceType,
    Loss,
    RecoveryGoal,
    UsableShares,
    Workload,
)
from autothrottle.core.capacity.values import capacity_value, forecast_values, last_peaks, plan_messages, status_rows
from autothrottle.core.errors import Invalid
from autothrottle.messages import targets_to_messages
from autothrottle.v1 import placement_pb2

MAX_INSTANCES = 20
"""Limit of the instance types of one request."""

_MAX_RATE = 1e15
"""Bytes per second; larger rates were probably given in another unit."""

_MAX_SIZE = 1e18
_LEAST_SHARE = 0.001
_MAX_RETENTION = timedelta(days=3660)
_MAX_NAME = 100

_LOSSES = {
    placement_pb2.CAPACITY_LOSS_UNSPECIFIED: Loss.BROKER,
    placement_pb2.CAPACITY_LOSS_NONE: Loss.NONE,
    placement_pb2.CAPACITY_LOSS_BROKER: Loss.BROKER,
    placement_pb2.CAPACITY_LOSS_RACK: Loss.RACK,
}


def plans_to_message(
    plans: PoolPlans, warnings: Sequence[str], why_unsized: str = ""
) -> placement_pb2.PlanPoolsResponse:
    """Convert what differs between pools and the cluster, and why partition sizes are unknown."""
    return placement_pb2.PlanPoolsResponse(
        drift=plans.has_drift,
        pools=(
            placement_pb2.PoolDifference(
                name=plan.pool.name,
                owner=plan.pool.owner,
                total_partitions=len(plan.plan.new_map),
                changed_partitions=len(plan.changed),
                copied_bytes=plan.plan.copied_bytes,
                lost_brokers=plan.lost,
                refusals=plan.plan.refusals,
                messages=plan_messages(plan, why_unsized),
                unsized_partitions=plan.plan.unsized_partitions,
            )
            for plan in plans.plans
        ),
        partitions=targets_to_messages({entry.key: entry.replicas for entry in plans.changed}),
        topics_in_no_pool=plans.unpooled,
        warnings=warnings,
    )


def status_to_message(
    state: PoolsState, forecasts: Iterable[LimitForecast], warnings: Sequence[str]
) -> placement_pb2.GetPoolStatusResponse:
    """Convert the use of pools; the forecasts have the peaks of the last recorded day."""
    peaks = last_peaks(forecasts)
    pools = (_pool_status(row, peaks.get(row["pool"], {})) for row in status_rows(state))
    return placement_pb2.GetPoolStatusResponse(pools=pools, warnings=warnings)


def _pool_status(row: Mapping[str, Any], peaks: Mapping[str, float]) -> placement_pb2.PoolStatus:
    uses = dict(peaks)
    if row["storage"] is not None:
        uses["storage"] = max(row["storage"], peaks.get("storage", 0.0))
    return placement_pb2.PoolStatus(
        pool=row["pool"],
        brokers=row["brokers"],
        topics=row["topics"],
        storage=row["storage"],
        **{f"peak_{name}": peak for name, peak in peaks.items()},
        limit=max(uses, key=uses.__getitem__, default=""),
    )


def workload_from_message(message: placement_pb2.CapacityWorkload) -> Workload:
    """Convert the workload of a request.

    Raises:
        Invalid: a value is out of its range.
    """
    bytes_in = _number("bytes_in_per_second", message.bytes_in_per_second, _MAX_RATE, at_least=1)
    mean = _number("mean_bytes_in_per_second", message.mean_bytes_in_per_second, _MAX_RATE)
    if mean > bytes_in:
        raise Invalid(f"mean_bytes_in_per_second {mean:g} must be at most bytes_in_per_second, which is the peak")
    fan_out = message.fan_out if message.HasField("fan_out") else 1.0
    return Workload(
        bytes_in=bytes_in,
        retention=_duration("retention", message.retention, _MAX_RETENTION),
        mean_bytes_in=mean or None,
        fan_out=_number("fan_out", fan_out, 10_000),
        replication=round(_number("replication", message.replication or 3, 100, at_least=1)),
        partitions=round(_number("partitions", message.partitions, 2**31)),
        growth=_number("growth_per_month", message.growth_per_month, 10),
        months=_number("months", message.months, 240),
    )


def instances_from_messages(messages: Sequence[placement_pb2.CapacityInstance]) -> tuple[InstanceType, ...]:
    """Convert the instance types of a request.

    Raises:
        Invalid: there are none or too many, two have the same name, or a value is out of its range.
    """
    if not 0 < len(messages) <= MAX_INSTANCES:
        raise Invalid(f"instances has {len(messages)} entries; give 1 to {MAX_INSTANCES}")
    names = Counter(message.name for message in messages)
    for name, count in names.items():
        if count > 1 or not 0 < len(name) <= _MAX_NAME:
            raise Invalid(f"instance name {name[:60]!r} must be unique and have 1 to {_MAX_NAME} characters")
    return tuple(_instance(message) for message in messages)


def _instance(message: placement_pb2.CapacityInstance) -> InstanceType:
    return InstanceType(
        message.name,
        storage=_number("storage_bytes", message.storage_bytes, _MAX_SIZE, at_least=1),
        network_in=_number("network_in_bytes_per_second", message.network_in_bytes_per_second, _MAX_RATE, at_least=1),
        network_out=_number(
            "network_out_bytes_per_second", message.network_out_bytes_per_second, _MAX_RATE, at_least=1
        ),
        disk=_number("disk_bytes_per_second", message.disk_bytes_per_second, _MAX_RATE, at_least=1),
        price=_number("price_per_month", message.price_per_month, 1e12),
    )


def shares_from_message(message: placement_pb2.CapacityShares) -> UsableShares:
    """Convert the shares of a request; 0: the default.

    Raises:
        Invalid: a value is out of its range.
    """
    default = UsableShares()
    network = _share("network", message.network, default.network_in)
    return UsableShares(
        storage=_share("storage", message.storage, default.storage),
        network_in=network,
        network_out=network,
        disk=_share("disk", message.disk, default.disk),
        partitions=round(
            _number("broker_partitions", message.broker_partitions or default.partitions, 2**31, at_least=1)
        ),
    )


def goal_from_message(message: placement_pb2.CapacityFailure) -> RecoveryGoal:
    """Convert the failure of a request; 0: the default.

    Raises:
        Invalid: the loss is unknown, or a value is out of its range.
    """
    default = RecoveryGoal()
    if message.loss not in _LOSSES:
        raise Invalid(f"loss {message.loss} is unknown; give CAPACITY_LOSS_NONE, _BROKER or _RACK")
    within = default.within
    if message.HasField("recover_within") and message.recover_within.ByteSize():
        within = _duration("recover_within", message.recover_within, _MAX_RETENTION)
    return RecoveryGoal(
        loss=_LOSSES[message.loss],
        racks=round(_number("racks", message.racks or default.racks, 10_000, at_least=1)),
        copy_target=CopyTarget.SURVIVORS if message.onto_survivors else CopyTarget.REPLACEMENT,
        within=within,
        max_ratio=_share("max_ratio", message.max_ratio, default.max_ratio),
    )


def _number(name: str, value: float, at_most: float, at_least: float = 0.0) -> float:
    if not (math.isfinite(value) and at_least <= value <= at_most):
        raise Invalid(f"{name} {value:g} must be in [{at_least:g}, {at_most:g}]; correct it")
    return value


def _share(name: str, value: float, default: float) -> float:
    return _number(name, value or default, 1.0, at_least=_LEAST_SHARE)


def _duration(name: str, message: Any, at_most: timedelta) -> timedelta:
    seconds = message.seconds + message.nanos / 1e9
    if not 0 < seconds <= at_most.total_seconds():
        raise Invalid(f"{name} of {seconds:g} s must be in (0, {at_most.total_seconds():g}]; give 86400 s for a day")
    return timedelta(seconds=seconds)


def capacity_to_message(plan: CapacityPlan) -> placement_pb2.GetCapacityResponse:
    """Convert the brokers that a workload needs."""
    value = capacity_value(plan)
    return placement_pb2.GetCapacityResponse(
        instances=(placement_pb2.CapacitySizing(**sizing) for sizing in value["instances"]),
        cheapest=value["cheapest"],
        larger=(
            placement_pb2.CapacityChoice(
                input=name, factor=float(factor), sizing=placement_pb2.CapacitySizing(**sizing)
            )
            for name, sizings in value["larger"].items()
            for factor, sizing in sizings.items()
            if sizing is not None
        ),
        stored_bytes=plan.workload.stored * plan.workload.replication,
        notes=value["notes"],
    )


def forecasts_to_message(
    forecasts: Sequence[LimitForecast], compute_time: datetime
) -> placement_pb2.GetForecastResponse:
    """Convert forecasts, and the time at which they were computed."""
    response = placement_pb2.GetForecastResponse(forecasts=_forecasts(forecast_values(forecasts)))
    response.compute_time.FromDatetime(compute_time)
    return response


def _forecasts(values: Iterable[dict[str, Any]]) -> Iterator[placement_pb2.ExhaustionForecast]:
    for value in values:
        broker = value.pop("broker", None)
        yield placement_pb2.ExhaustionForecast(broker_id=None if broker is None else int(broker), **value)
