"""Estimates of reassignments to messages, and what is asked of them back."""

from __future__ import annotations

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from autothrottle.core.errors import Invalid
from autothrottle.core.estimate import Estimate, Goal, PortEstimate
from autothrottle.v1 import admin_pb2
from autothrottle.wire.cycles import role_to_number


def goal_from_message(request: admin_pb2.EstimateReassignmentRequest) -> Goal:
    """Return what an operator allows or wants.

    Raises:
        Invalid: when it is out of range.
    """
    try:
        within = request.within.ToTimedelta() if request.HasField("within") else None
    except (ValueError, OverflowError) as error:
        raise Invalid(f"within is no time: {error}; give 1 s to 365 days") from error
    return Goal(max_ratio=request.max_ratio or None, within=within)


def estimate_to_message(found: Estimate) -> admin_pb2.EstimateReassignmentResponse:
    """Return an estimate as a message."""
    return admin_pb2.EstimateReassignmentResponse(
        partitions=found.partitions,
        total_partitions=found.total_partitions,
        move_ratio=found.move_ratio,
        bytes_to_move=found.size,
        unknown_partitions=found.unknown_partitions,
        duration=_duration(found.time),
        ports=map(_port, found.ports),
        warnings=found.warnings,
    )


def _port(port: PortEstimate) -> admin_pb2.PortEstimate:
    return admin_pb2.PortEstimate(
        broker_id=port.broker_id,
        role=role_to_number(port.role),
        bytes_to_move=port.size,
        growth_bytes_per_second=port.growth,
        rate_bytes_per_second=port.rate,
        headroom_bytes_per_second=port.headroom,
        capacity_bytes_per_second=port.capacity,
        duration=_duration(port.time),
    )


def _duration(time: timedelta | None) -> Duration | None:
    if time is None:
        return None
    message = Duration()
    message.FromTimedelta(time)
    return message
