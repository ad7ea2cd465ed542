"""Answers for the config writer over gRPC."""

from __future__ import annotations

import logging

import grpc

from autothrottle.core.errors import Invalid
from autothrottle.ports.cluster import ConfigWriter
from autothrottle.runtime.server import time_left
from autothrottle.v1 import applier_pb2, applier_pb2_grpc
from autothrottle.wire.changes import change_from_message, outcome_to_message

log = logging.getLogger(__name__)


class ApplierServicer(applier_pb2_grpc.ApplierServiceServicer):
    """ApplierService."""

    def __init__(self, writer: ConfigWriter) -> None:
        self._writer = writer

    def Apply(self, request: applier_pb2.ApplyRequest, context: grpc.ServicerContext) -> applier_pb2.ApplyResponse:
        """Carry out changes."""
        if request.fence <= 0:
            raise Invalid(f"fence {request.fence} is not > 0; give the fence of the term that decided the changes")
        changes = [change_from_message(change) for change in request.changes]
        outcomes = self._writer.apply(request.fence, changes, time_left(context))
        log.debug("term %d: %d changes", request.fence, len(changes))
        return applier_pb2.ApplyResponse(outcomes=[outcome_to_message(outcome) for outcome in outcomes])
