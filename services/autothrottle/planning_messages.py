"""Options and results of the placement service as messages, in both directions: `placement` and the client package.

Fields follow from their names. What differs is explicit here: enums, zeros that stand for defaults, and partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from datetime import timedelta
from typing import Any, TypeVar, cast

from autothrottle.core.capacity.results import PoolsDifference
from autothrottle.core.capacity.sizing import (
    FACTORS,
    CapacityPlan,
    CopyTarget,
    Dimension,
    InstanceType,
    Loss,
    RecoveryGoal,
    Sizing,
    UsableShares,
    Workload,
)
from autothrottle.core.errors import Invalid
from autothrottle.core.placement.partition_map import TopicPartitionKey
from autothrottle.core.placement.plan import (
    DecommissionOptions,
    Optimization,
    PlanOptions,
    RebalanceOptions,
    RebuildOptions,
    ScaleOptions,
    Strategy,
)
from autothrottle.core.placement.proposal import ProposedPlacement
from autothrottle.messages import Conversion, targets_to_messages
from autothrottle.v1 import placement_pb2, types_pb2

_Value = TypeVar("_Value")

CONVERSION = Conversion(
    names={
        Workload: {
            "bytes_in": "bytes_in_per_second",
            "mean_bytes_in": "mean_bytes_in_per_second",
            "growth": "growth_per_month",
        },
        InstanceType: {
            "storage": "storage_bytes",
            "network_in": "network_in_bytes_per_second",
            "network_out": "network_out_bytes_per_second",
            "disk": "disk_bytes_per_second",
            "price": "price_per_month",
        },
        UsableShares: {"network_in": "network", "network_out": "network", "partitions": "broker_partitions"},
        RecoveryGoal: {"within": "recover_within"},
    }
)

_REQUESTS: Mapping[type[PlanOptions], Any] = {
    RebuildOptions: placement_pb2.RebuildRequest,
    RebalanceOptions: placement_pb2.RebalanceRequest,
    ScaleOptions: placement_pb2.ScaleRequest,
    DecommissionOptions: placement_pb2.DecommissionRequest,
}
_MINIMAL = {Optimization.DISTRIBUTION: False, Optimization.MINIMAL: True}


MAX_INSTANCES = 20
"""Limit of the instance types of one request."""
_MAX_NAME = 100


# Plans.


def plan_request(options: PlanOptions) -> Any:
    """Return the options of an operation as its request.

    Raises:
        Invalid: the service does not have the operation or one of the options.
    """
    kind = _REQUESTS.get(type(options))
    if kind is None:
        raise Invalid(f"the placement service has no {type(options).__name__}; use topicmappr")
    sent, given = {*kind.DESCRIPTOR.fields_by_name}, dict[str, object]()
    if isinstance(options, RebuildOptions):
        if options.optimization in _MINIMAL:
            sent.add("optimization")
            given["minimal"] = _MINIMAL[options.optimization]
        given["strategy"] = f"PLACEMENT_STRATEGY_{options.strategy.name}"
    default = type(options)()
    for name in (each.name for each in fields(options)):
        if name not in sent and getattr(options, name) != getattr(default, name):
            raise Invalid(f"the placement service has no option {name}; leave it out, or use topicmappr")
    return CONVERSION.to_message(kind, options, **given)


def plan_options_of(request: Any) -> PlanOptions:
    """Return the options of a request.

    Raises:
        Invalid: the strategy is unknown.
    """
    kind: Any = next(kind for kind, message in _REQUESTS.items() if isinstance(request, message))
    if not isinstance(request, placement_pb2.RebuildRequest):
        options: PlanOptions = CONVERSION.from_message(kind, request)
        return options
    name = _name(placement_pb2.PlacementStrategy, request.strategy, "PLACEMENT_STRATEGY_", "COUNT")
    if name is None:
        raise Invalid(f"strategy {request.strategy} is unknown; give PLACEMENT_STRATEGY_COUNT or _STORAGE")
    optimization = Optimization.MINIMAL if request.minimal else Optimization.DISTRIBUTION
    return _with_defaults(RebuildOptions, request, strategy=Strategy[name], optimization=optimization)


def plan_to_message(plan: ProposedPlacement) -> placement_pb2.PlacementPlan:
    """Convert a plan."""
    steps = (placement_pb2.PlacementStep(partitions=targets_to_messages(step)) for step in plan.steps)
    partitions = targets_to_messages(plan.targets)
    return CONVERSION.to_message(placement_pb2.PlacementPlan, plan, partitions=partitions, steps=steps)


def plan_from_message(message: placement_pb2.PlacementPlan) -> ProposedPlacement:
    """Convert a plan."""
    steps = tuple(_targets(step.partitions) for step in message.steps)
    return CONVERSION.from_message(ProposedPlacement, message, targets=_targets(message.partitions), steps=steps)


def difference_to_message(difference: PoolsDifference) -> placement_pb2.PlanPoolsResponse:
    """Convert what differs between pools and the cluster."""
    partitions = targets_to_messages(difference.targets)
    return CONVERSION.to_message(placement_pb2.PlanPoolsResponse, difference, partitions=partitions)


def difference_from_message(message: placement_pb2.PlanPoolsResponse) -> PoolsDifference:
    """Convert what differs between pools and the cluster."""
    return CONVERSION.from_message(PoolsDifference, message, targets=_targets(message.partitions))


def _targets(messages: Iterable[types_pb2.PartitionTarget]) -> dict[TopicPartitionKey, tuple[int, ...]]:
    return {(target.topic, target.partition): tuple(target.replicas) for target in messages}


# Capacity.


def capacity_request(
    workload: Workload, instances: Sequence[InstanceType], shares: UsableShares, goal: RecoveryGoal
) -> placement_pb2.GetCapacityRequest:
    """Return the inputs of a capacity plan as a request; the service has one share for both directions of a link."""
    return placement_pb2.GetCapacityRequest(
        workload=CONVERSION.to_message(placement_pb2.CapacityWorkload, workload),
        instances=CONVERSION.to_messages(placement_pb2.CapacityInstance, instances),
        shares=CONVERSION.to_message(placement_pb2.CapacityShares, shares),
        failure=CONVERSION.to_message(
            placement_pb2.CapacityFailure,
            goal,
            loss=f"CAPACITY_LOSS_{goal.loss.name}",
            onto_survivors=goal.copy_target is CopyTarget.SURVIVORS,
        ),
    )


def capacity_inputs(
    request: placement_pb2.GetCapacityRequest,
) -> tuple[Workload, tuple[InstanceType, ...], UsableShares, RecoveryGoal]:
    """Return the inputs of a capacity plan.

    Raises:
        Invalid: there are none or too many instance types, two have the same name, or the loss is unknown.
    """
    message, failure = request.workload, request.failure
    names = Counter(instance.name for instance in request.instances)
    if not 0 < len(request.instances) <= MAX_INSTANCES:
        raise Invalid(f"instances has {len(request.instances)} entries; give 1 to {MAX_INSTANCES}")
    for instance, count in names.items():
        if count > 1 or not 0 < len(instance) <= _MAX_NAME:
            raise Invalid(f"instance name {instance[:60]!r} must be unique and have 1 to {_MAX_NAME} characters")
    loss = _name(placement_pb2.CapacityLoss, failure.loss, "CAPACITY_LOSS_", "BROKER")
    if loss is None:
        raise Invalid(f"loss {failure.loss} is unknown; give CAPACITY_LOSS_NONE, _BROKER or _RACK")
    fan_out = message.fan_out if message.HasField("fan_out") else 1.0
    return (
        _with_defaults(Workload, message, fan_out=fan_out, retention=_duration(message.retention)),
        tuple(CONVERSION.from_message(InstanceType, instance) for instance in request.instances),
        _with_defaults(UsableShares, request.shares),
        _with_defaults(
            RecoveryGoal,
            failure,
            loss=Loss[loss],
            copy_target=CopyTarget.SURVIVORS if failure.onto_survivors else CopyTarget.REPLACEMENT,
            within=_duration(failure.recover_within) or RecoveryGoal().within,
        ),
    )


def _duration(message: Any) -> timedelta:
    """Return a duration; one that is too long for a timedelta becomes a shorter one, which is out of any range."""
    return timedelta(seconds=max(min(message.seconds + message.nanos / 1e9, 1e12), -1e12))


def capacity_field(kind: type, field: str) -> str:
    """Return the name of a field of an input in the messages."""
    return CONVERSION.names[kind].get(field, field)


def capacity_to_message(plan: CapacityPlan) -> placement_pb2.GetCapacityResponse:
    """Convert the brokers that a workload needs."""
    return placement_pb2.GetCapacityResponse(
        instances=map(_sizing_to_message, plan.sizings),
        cheapest=plan.cheapest.instance.name,
        larger=(
            placement_pb2.CapacityChoice(input=name, factor=factor, sizing=_sizing_to_message(sizing))
            for name, sizings in plan.larger.items()
            for factor, sizing in zip(FACTORS, sizings, strict=True)
            if sizing is not None
        ),
        stored_bytes=plan.workload.stored * plan.workload.replication,
        notes=plan.notes,
    )


def _sizing_to_message(sizing: Sizing) -> placement_pb2.CapacitySizing:
    return placement_pb2.CapacitySizing(
        name=sizing.instance.name,
        brokers=sizing.brokers,
        counts={dimension.key: count for dimension, count in sizing.counts.items()},
        limit=sizing.limit.key,
        recovery_seconds=sizing.recovery_seconds,
        price_per_month=sizing.price,
    )


def capacity_from_message(
    message: placement_pb2.GetCapacityResponse, workload: Workload, instances: Sequence[InstanceType]
) -> CapacityPlan:
    """Return the plan of an answer to a request with this workload and these instance types."""
    types = {instance.name: instance for instance in instances}

    def sizing(message: placement_pb2.CapacitySizing) -> Sizing:
        # In the order of the dimensions: of equal counts, the first one is the limit.
        counts = {
            dimension: message.counts[dimension.key] for dimension in Dimension if dimension.key in message.counts
        }
        return Sizing(types[message.name], counts, message.brokers, message.recovery_seconds)

    choices = {(choice.input, choice.factor): sizing(choice.sizing) for choice in message.larger}
    return CapacityPlan(
        workload,
        tuple(map(sizing, message.instances)),
        {name: tuple(choices.get((name, factor)) for factor in FACTORS) for name, _ in choices},
        tuple(message.notes),
    )


def _with_defaults(kind: type[_Value], message: Any, **given: object) -> _Value:
    """Return a dataclass with the fields of a message, in which 0 and absent stand for the default."""
    value: Any = CONVERSION.from_message(kind, message, **given)
    absent = [each for each in fields(value) if each.name not in given and not getattr(value, each.name)]
    defaults = {each.name: each.default for each in absent if each.default is not MISSING}
    return cast("_Value", replace(value, **defaults))


def _name(enum: Any, number: int, prefix: str, default: str) -> str | None:
    """Return the name of an enum's number without its prefix, `default` for 0; None: it is unknown."""
    name = enum.DESCRIPTOR.values_by_number.get(number)
    return default if number == 0 else name and name.name.removeprefix(prefix)
