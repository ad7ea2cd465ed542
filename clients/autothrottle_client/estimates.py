"""Estimates of a reassignment before its start: bytes, duration and throttles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from autothrottle.v1 import admin_pb2
from autothrottle_client.errors import Invalid
from autothrottle_client.model import ReplicaRole, from_message
from autothrottle_client.progress import duration
from autothrottle_client.rates import format_size

_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)%?", re.ASCII)


@dataclass(frozen=True, slots=True)
class LinkSideEstimate:
    """The estimate for one link side."""

    broker_id: int
    role: ReplicaRole
    bytes_to_copy: int
    produced_bytes_per_second: int
    """Produce rate during the reassignment; it counts against the throttle."""
    rate_bytes_per_second: int | None
    """The throttle that the estimate assumes; None: unknown, because the capacity is unknown."""
    headroom_bytes_per_second: int | None
    """The current headroom; None without metrics."""
    capacity_bytes_per_second: int | None
    """The link's capacity; None without metrics."""
    seconds: float | None
    """Duration; None: unknown, or it would never end."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate for a whole reassignment."""

    partitions: int
    """Number of partitions with bytes to copy."""
    total_partitions: int
    """Number of partitions in the cluster."""
    move_ratio: float
    """KIP-73's MoveRatio: partitions / total_partitions."""
    bytes_to_copy: int
    """Sum over all new replicas of partitions of known size."""
    unknown_partitions: int
    """Number of partitions of unknown size."""
    seconds: float | None
    """Duration; None: unknown, or it would never end."""
    sides: tuple[LinkSideEstimate, ...] = ()
    """Sorted by broker and role."""
    warnings: tuple[str, ...] = ()
    """Sentences for the operator."""


def parse_ratio(text: str) -> float:
    """Return a percentage as a share in (0, 1].

    >>> parse_ratio("30"), parse_ratio("12.5%")
    (0.3, 0.125)

    Raises:
        Invalid: the text is not a percentage in (0, 100].
    """
    found = _PERCENT.fullmatch(text)
    if found is None or not 0 < float(found[1]) <= 100:
        raise Invalid(f"{text[:60]!r} is not a percentage: it must be above 0 and at most 100; give for example 30")
    return float(found[1]) / 100


def estimate_from_message(message: admin_pb2.EstimateReassignmentResponse) -> Estimate:
    """Return the estimate in a message."""
    sides = tuple(from_message(LinkSideEstimate, side, seconds=_seconds(side)) for side in message.link_sides)
    return from_message(Estimate, message, seconds=_seconds(message), sides=sides)


def _seconds(message: admin_pb2.EstimateReassignmentResponse | admin_pb2.LinkSideEstimate) -> float | None:
    return message.duration.ToTimedelta().total_seconds() if message.HasField("duration") else None


def estimate_line(found: Estimate) -> str:
    """Return an estimate as one line.

    >>> estimate_line(Estimate(2, 8, 0.25, 1_500_000_000, 0, 90.0))
    '1.50 GB to copy for 2 of 8 partitions (MoveRatio 0.25), in about 1 min 30 s'
    """
    least = "at least " if found.unknown_partitions else ""
    counted = f"{found.partitions} of {found.total_partitions} partitions (MoveRatio {found.move_ratio:.4g})"
    size = f"{least}{format_size(found.bytes_to_copy)} to copy for {counted}"
    if found.seconds is None:
        return f"{size}; the duration is unknown, or it would never end"
    return f"{size}, in about {span(found.seconds)}"


def span(seconds: float | None) -> str:
    """Return a duration in words; `-` if unknown."""
    if seconds is None:
        return "-"
    return "0 s" if seconds < 0.5 else duration(timedelta(seconds=seconds))
