"""What the placement service sends of a plan. The type to know is `ProposedPlacement`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autothrottle.core.placement.partition_map import TopicPartitionKey


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
    targets: Mapping[TopicPartitionKey, tuple[int, ...]] = field(default_factory=dict)
    """Partition that changes -> its new replicas; an argument of `AdminClient.submit_reassignment`."""
    unchanged_partitions: int = 0
    copied_bytes: int = 0
    """Bytes that brokers have to copy; partitions of unknown size count as 0."""
    bound_bytes: int = 0
    """The least bytes that equal free storage needs; 0: unknown."""
    warnings: tuple[str, ...] = ()
    """Sentences for the operator."""
    steps: tuple[Mapping[TopicPartitionKey, tuple[int, ...]], ...] = ()
    """Targets of each step of a plan that is divided, in this order; empty: submit `targets` at once."""
    notes: tuple[str, ...] = ()
    """Sentences that need no decision."""
    move_ratio: float = 0.0
    """KIP-73's MoveRatio: the share of the cluster's partitions that have replicas to copy."""
    unsized_partitions: int = 0
    """Partitions to copy whose size is unknown, so that `copied_bytes` is a lower bound."""
