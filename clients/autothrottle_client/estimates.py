"""What a reassignment would be before it is started: bytes, time, and the throttles that it counts on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from autothrottle.v1 import admin_pb2
from autothrottle_client.errors import Invalid
from autothrottle_client.following import duration
from autothrottle_client.model import ReplicaRole, role_from_number
from autothrottle_client.rates import format_size

_SPAN = re.compile(r"([1-9][0-9]{0,5})(s|m|h|d)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)%?", re.ASCII)


@dataclass(frozen=True, slots=True)
class PortEstimate:
    """What one direction of one broker's link has to do."""

    broker_id: int
    role: ReplicaRole
    bytes_to_move: int
    growth_bytes_per_second: int
    """What is produced meanwhile and counts against the throttle."""
    rate_bytes_per_second: int | None
    """The throttle that the estimate counts on; None: unknown, since the capacity is."""
    headroom_bytes_per_second: int | None
    """What it would get now; None without metrics."""
    capacity_bytes_per_second: int | None
    """What the link carries; None without metrics."""
    seconds: float | None
    """How long it takes; None: unknown, or it would never end."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a reassignment would be."""

    partitions: int
    """How many have anything to be copied."""
    total_partitions: int
    """How many the cluster has."""
    move_ratio: float
    """KIP-73's MoveRatio: the one by the other."""
    bytes_to_move: int
    """Each copy counted; of the partitions that are known."""
    unknown_partitions: int
    """How many more there are."""
    seconds: float | None
    """How long it takes; None: unknown, or it would never end."""
    ports: tuple[PortEstimate, ...] = ()
    """By broker and role."""
    warnings: tuple[str, ...] = ()


def parse_ratio(text: str) -> float:
    """Return the share in (0, 1] that a percentage is.

    >>> parse_ratio("30"), parse_ratio("12.5%")
    (0.3, 0.125)

    Raises:
        Invalid: when it is none, or not in (0, 100] %.
    """
    found = _PERCENT.fullmatch(text)
    if found is None or not 0 < float(found[1]) <= 100:
        raise Invalid(
            f"{text[:60]!r} is no share: it must be a percentage, above 0 and at most 100; give for example 30"
        )
    return float(found[1]) / 100


def parse_span(text: str) -> timedelta:
    """Return the time that `90m` stands for.

    >>> parse_span("90m")
    datetime.timedelta(seconds=5400)

    Raises:
        Invalid: when it is none, or longer than 365 days.
    """
    found = _SPAN.fullmatch(text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < seconds <= 365 * 86400:
        raise Invalid(f"{text[:60]!r} is no time: give a whole number with s, m, h or d, at most 365d, like 2h")
    return timedelta(seconds=seconds)


def estimate_from_message(message: admin_pb2.EstimateReassignmentResponse) -> Estimate:
    """Return the estimate that a message holds."""
    return Estimate(
        partitions=message.partitions,
        total_partitions=message.total_partitions,
        move_ratio=message.move_ratio,
        bytes_to_move=message.bytes_to_move,
        unknown_partitions=message.unknown_partitions,
        seconds=_seconds(message.duration) if message.HasField("duration") else None,
        ports=tuple(map(_port, message.ports)),
        warnings=tuple(message.warnings),
    )


def _port(message: admin_pb2.PortEstimate) -> PortEstimate:
    return PortEstimate(
        broker_id=message.broker_id,
        role=role_from_number(message.role),
        bytes_to_move=message.bytes_to_move,
        growth_bytes_per_second=message.growth_bytes_per_second,
        rate_bytes_per_second=message.rate_bytes_per_second if message.HasField("rate_bytes_per_second") else None,
        headroom_bytes_per_second=(
            message.headroom_bytes_per_second if message.HasField("headroom_bytes_per_second") else None
        ),
        capacity_bytes_per_second=(
            message.capacity_bytes_per_second if message.HasField("capacity_bytes_per_second") else None
        ),
        seconds=_seconds(message.duration) if message.HasField("duration") else None,
    )


def _seconds(message: Duration) -> float:
    return message.ToTimedelta().total_seconds()


def estimate_line(found: Estimate) -> str:
    """Return an estimate in one line.

    >>> estimate_line(Estimate(2, 8, 0.25, 1_500_000_000, 0, 90.0))
    '1.50 GB to copy for 2 of 8 partitions (MoveRatio 0.25), in about 1 min 30 s'
    """
    least = "at least " if found.unknown_partitions else ""
    counted = f"{found.partitions} of {found.total_partitions} partitions (MoveRatio {found.move_ratio:.4g})"
    size = f"{least}{format_size(found.bytes_to_move)} to copy for {counted}"
    if found.seconds is None:
        return f"{size}; how long it takes is unknown, or it would never end"
    return f"{size}, in about {span(found.seconds)}"


def span(seconds: float | None) -> str:
    """Return a time in words; `-` when it is unknown."""
    if seconds is None:
        return "-"
    return "0 s" if seconds < 0.5 else duration(timedelta(seconds=seconds))
