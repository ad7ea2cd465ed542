"""Answers for the config writer over gRPC."""

from __future__ import annotations

import logging

import grpc

from autothrottle.core.errors import Invalid
from autothrottle.core.topology import TopicPartition
from autothrottle.ports.cluster import ConfigWriter, Reassigner
from autothrottle.runtime.server import time_left
from autothrottle.v1 import applier_pb2, applier_pb2_grpc
from autothrottle.wire.changes import change_from_message, outcome_to_message
from autothrottle.wire.reassignments import partitions_from_messages, refusals_to_messages, targets_from_messages

log = logging.getLogger(__name__)


class ApplierServicer(applier_pb2_grpc.ApplierServiceServicer):
    """ApplierService."""

    def __init__(self, writer: ConfigWriter, reassigner: Reassigner) -> None:
        self._writer, self._reassigner = writer, reassigner

    def Apply(self, request: applier_pb2.ApplyRequest, context: grpc.ServicerContext) -> applier_pb2.ApplyResponse:
        """Carry out changes."""
        _demand_fence(request.fence)
        changes = [change_from_message(change) for change in request.changes]
        outcomes = self._writer.apply(request.fence, changes, time_left(context))
        log.debug("term %d: %d changes", request.fence, len(changes))
        return applier_pb2.ApplyResponse(outcomes=[outcome_to_message(outcome) for outcome in outcomes])

    def AlterReassignments(
        self, request: applier_pb2.AlterReassignmentsRequest, context: grpc.ServicerContext
    ) -> applier_pb2.AlterReassignmentsResponse:
        """Start reassignments, or cancel them."""
        _demand_fence(request.fence)
        targets: dict[TopicPartition, tuple[int, ...] | None] = {}
        if request.cancel:
            targets |= dict.fromkeys(partitions_from_messages(request.cancel))
        if request.start or not request.cancel:
            targets |= targets_from_messages(request.start)
        if len(targets) < len(request.start) + len(request.cancel):
            raise Invalid("a partition is to be started and cancelled; name it once")
        refused = self._reassigner.alter_reassignments(request.fence, targets, time_left(context))
        log.info("Term %d: reassignments of %d partitions altered", request.fence, len(targets) - len(refused))
        return applier_pb2.AlterReassignmentsResponse(refused=refusals_to_messages(refused))


def _demand_fence(fence: int) -> None:
    if fence <= 0:
        raise Invalid(f"fence {fence} is not > 0; give the fence of the term that decided this")
