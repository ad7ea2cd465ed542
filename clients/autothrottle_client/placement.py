"""Plans of the placement service: which replicas would move, and how even the result is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from autothrottle.core.errors import Invalid
from autothrottle.core.placement.plan import (
    DecommissionOptions,
    Optimization,
    PlanOptions,
    RebalanceOptions,
    RebuildOptions,
    ScaleOptions,
)
from autothrottle.core.units import copy_words
from autothrottle.messages import Conversion
from autothrottle.v1 import placement_pb2, types_pb2
from autothrottle.v1.placement_pb2_grpc import PlacementServiceStub
from autothrottle_client.model import from_message
from autothrottle_client.reassignments import Partition
from autothrottle_client.replicas import Replica

_REQUESTS: Mapping[type[PlanOptions], Any] = {
    RebuildOptions: placement_pb2.RebuildRequest,
    RebalanceOptions: placement_pb2.RebalanceRequest,
    ScaleOptions: placement_pb2.ScaleRequest,
    DecommissionOptions: placement_pb2.DecommissionRequest,
}
_MINIMAL = {Optimization.DISTRIBUTION: False, Optimization.MINIMAL: True}


@dataclass(frozen=True, slots=True)
class PlacementFigures:
    """How evenly a map uses its brokers."""

    leader_spread: int
    """Difference between the most and the fewest leaders of a broker."""
    replica_spread: int
    """Difference between the most and the fewest replicas of a broker."""
    storage_range_spread: float | None = None
    """Range of free storage as a fraction of the smallest; None: unknown."""
    storage_standard_deviation: float | None = None
    """Of free storage, bytes; None: unknown."""


@dataclass(frozen=True, slots=True)
class ProposedPlacement:
    """A plan, not executed."""

    before: PlacementFigures
    after: PlacementFigures
    targets: Mapping[Partition, tuple[int, ...]] = field(default_factory=dict)
    """Partition that changes -> its new replicas; an argument of `AdminClient.submit_reassignment`."""
    unchanged_partitions: int = 0
    copied_bytes: int = 0
    """Bytes that brokers have to copy; partitions of unknown size count as 0."""
    bound_bytes: int = 0
    """The least bytes that equal free storage needs; 0: unknown."""
    warnings: tuple[str, ...] = ()
    """Sentences for the operator."""
    steps: tuple[Mapping[Partition, tuple[int, ...]], ...] = ()
    """Targets of each step of a plan that is divided, in this order; empty: submit `targets` at once."""
    notes: tuple[str, ...] = ()
    """Sentences that need no decision."""
    move_ratio: float = 0.0
    """KIP-73's MoveRatio: the share of the cluster's partitions that have replicas to copy."""
    unsized_partitions: int = 0
    """Partitions to copy whose size is unknown, so that `copied_bytes` is a lower bound."""


def call_placement(replica: Replica, options: PlanOptions, seconds: float) -> placement_pb2.PlacementPlan:
    """Ask one replica for a plan. A method has the name of its request, without `Request`."""
    request = plan_request(options)
    method = getattr(PlacementServiceStub(replica.channel), type(request).__name__.removesuffix("Request"))
    plan: placement_pb2.PlacementPlan = method(request, timeout=seconds).plan
    return plan


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
    return Conversion().to_message(kind, options, **given)


def plan_from_message(message: placement_pb2.PlacementPlan) -> ProposedPlacement:
    """Return the plan in a message."""
    steps = tuple(partition_targets(step.partitions) for step in message.steps)
    return from_message(ProposedPlacement, message, targets=partition_targets(message.partitions), steps=steps)


def partition_targets(messages: Iterable[types_pb2.PartitionTarget]) -> dict[Partition, tuple[int, ...]]:
    """Return partition -> its new replicas."""
    return {(target.topic, target.partition): tuple(target.replicas) for target in messages}


def format_targets(targets: Mapping[Partition, tuple[int, ...]]) -> str:
    """Return targets as a file of kafka-reassign-partitions.sh."""
    rows = [{"topic": topic, "partition": number, "replicas": list(to)} for (topic, number), to in targets.items()]
    return json.dumps({"version": 1, "partitions": rows}, separators=(",", ":")) + "\n"


def plan_text(plan: ProposedPlacement) -> str:
    """Return a plan as lines: each change, then the figures.

    >>> figures = PlacementFigures(1, 2)
    >>> print(plan_text(ProposedPlacement(figures, figures, {("t", 0): (1, 2)}, copied_bytes=5_000_000)))
    t-0 -> 1,2
    1 partitions change, 0 stay; 5.00 MB to copy (MoveRatio 0.000)
    leader spread 1 -> 1, replica spread 2 -> 2
    """
    lines = [f"{topic}-{number} -> {','.join(map(str, to))}" for (topic, number), to in plan.targets.items()]
    copies = f"{copy_words(plan.copied_bytes, plan.unsized_partitions)} (MoveRatio {plan.move_ratio:.3f})"
    lines.append(f"{len(plan.targets)} partitions change, {plan.unchanged_partitions} stay; {copies}")
    old, new = plan.before, plan.after
    lines.append(
        f"leader spread {old.leader_spread} -> {new.leader_spread}, "
        f"replica spread {old.replica_spread} -> {new.replica_spread}"
    )
    if old.storage_range_spread is not None and new.storage_range_spread is not None:
        lines.append(f"free storage range {old.storage_range_spread:.2%} -> {new.storage_range_spread:.2%}")
    if plan.steps:
        lines.append(f"partitions of the {len(plan.steps)} steps: {', '.join(str(len(step)) for step in plan.steps)}")
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines)
