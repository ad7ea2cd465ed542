"""Applier service: carries out config changes and reassignments for the leading planner. It decides nothing."""

from __future__ import annotations

import logging
import time

import grpc

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.errors import Invalid
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import Change, validate_change
from autothrottle.messages import refusals_to_messages
from autothrottle.ports.kafka import ConfigWriter, Reassigner, Term
from autothrottle.runtime.server import time_left
from autothrottle.v1 import applier_pb2, applier_pb2_grpc, types_pb2
from autothrottle.wire.applier import change_from_message
from autothrottle.wire.common import SAME_NAMES, partitions_from_messages, targets_from_messages

log = logging.getLogger(__name__)

_EXACT = 0.99
"""gRPC rounds the time to a deadline up by at most 1 %."""


class ApplierServicer(applier_pb2_grpc.ApplierServiceServicer):
    def __init__(self, writer: ConfigWriter, reassigner: Reassigner) -> None:
        self._writer, self._reassigner = writer, reassigner

    def Apply(self, request: applier_pb2.ApplyRequest, context: grpc.ServicerContext) -> applier_pb2.ApplyResponse:
        term = _term(request, context)
        changes = [_valid_change(change) for change in request.changes]
        valid = [change for change in changes if isinstance(change, Change)]
        applied = iter(self._writer.apply(term, valid, time_left(context)) if valid else ())
        log.debug("Term %d: %d changes", request.fence, len(changes))
        outcomes = [next(applied) if isinstance(change, Change) else change for change in changes]
        return applier_pb2.ApplyResponse(outcomes=SAME_NAMES.to_messages(types_pb2.Outcome, outcomes))

    def SubmitReassignments(
        self, request: applier_pb2.SubmitReassignmentsRequest, context: grpc.ServicerContext
    ) -> applier_pb2.SubmitReassignmentsResponse:
        term = _term(request, context)
        targets = targets_from_messages(request.partitions)
        refused = self._reassigner.submit_reassignments(term, targets, time_left(context))
        log.info("Term %d: reassignments of %d partitions submitted", request.fence, len(targets) - len(refused))
        return applier_pb2.SubmitReassignmentsResponse(refused=refusals_to_messages(refused))

    def CancelReassignments(
        self, request: applier_pb2.CancelReassignmentsRequest, context: grpc.ServicerContext
    ) -> applier_pb2.CancelReassignmentsResponse:
        term = _term(request, context)
        rows = partitions_from_messages(request.partitions)
        cancellation = self._reassigner.cancel_reassignments(term, rows, time_left(context))
        cancelled = len(rows) - len(cancellation.not_cancelled)
        log.info("Term %d: reassignments of %d partitions cancelled", request.fence, cancelled)
        return SAME_NAMES.to_message(applier_pb2.CancelReassignmentsResponse, cancellation)


def _valid_change(message: applier_pb2.Change) -> Change | Outcome:
    """Convert one change, or return its refusal: a mistake in one does not keep the others from being applied."""
    try:
        change = change_from_message(message)
        validate_change(change)
    except Invalid as error:
        return Outcome(ConfigResource(message.resource), OutcomeStatus.REFUSED, str(error))
    return change


_Fenced = applier_pb2.ApplyRequest | applier_pb2.SubmitReassignmentsRequest | applier_pb2.CancelReassignmentsRequest


def _term(request: _Fenced, context: grpc.ServicerContext) -> Term:
    """Return the term of a request, with its lease on this process's clock.

    Raises:
        Invalid: the fence is out of range.
    """
    if request.fence <= 0:
        raise Invalid(f"fence {request.fence} is not > 0; pass the fence of the deciding term")
    left = context.time_remaining()
    if left is None or not request.HasField("lease_margin"):
        return Term(request.fence)
    # Any number of seconds is a float; a timedelta has a limit.
    margin = request.lease_margin.seconds + request.lease_margin.nanos / 1e9
    return Term(request.fence, time.monotonic() + left * _EXACT - max(0.0, margin))
