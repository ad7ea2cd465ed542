"""Metrics, applier and admin behind their ports; their calls go round the replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import grpc
from google.protobuf.message import Message

from autothrottle.adapters.rpc.client import Client
from autothrottle.core.changes import Change, Outcome
from autothrottle.core.errors import Incomplete
from autothrottle.core.loads import Loads
from autothrottle.core.topology import TopicPartition
from autothrottle.ports.metrics import Event
from autothrottle.v1 import admin_pb2, applier_pb2, metrics_pb2
from autothrottle.v1.admin_pb2_grpc import AdminServiceStub
from autothrottle.v1.applier_pb2_grpc import ApplierServiceStub
from autothrottle.v1.metrics_pb2_grpc import MetricsServiceStub
from autothrottle.wire.changes import change_to_message, outcome_from_message
from autothrottle.wire.loads import event_to_message, loads_from_message
from autothrottle.wire.reassignments import (
    partitions_to_messages,
    refusals_from_messages,
    targets_to_messages,
)

_DONE_ONCE = (admin_pb2.RemoveOverrideRequest, admin_pb2.StopCatchUpRequest, admin_pb2.CancelReassignmentRequest)
"""Their second answer is Missing."""


class MetricsClient(Client):
    """Loads and events through the metrics service (a `LoadSource` and an `EventSink`)."""

    service = "metrics"
    rotates = True

    def fetch_loads(self, timeout: timedelta) -> Loads:
        request = metrics_pb2.GetLoadsRequest()
        response = self._endpoints.call(
            lambda channel, seconds: MetricsServiceStub(channel).GetLoads(request, timeout=seconds), timeout
        )
        return loads_from_message(response)

    def post_event(self, event: Event, timeout: timedelta) -> None:
        request = event_to_message(event)
        self._endpoints.call(
            lambda channel, seconds: MetricsServiceStub(channel).PostEvent(request, timeout=seconds), timeout
        )


class ApplierClient(Client):
    """Changes carried out by the applier service (a `ConfigWriter` and a `Reassigner`)."""

    service = "applier"
    rotates = True

    def apply(self, fence: int, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        request = applier_pb2.ApplyRequest(fence=fence, changes=map(change_to_message, changes))
        response = self._endpoints.call(
            lambda channel, seconds: ApplierServiceStub(channel).Apply(request, timeout=seconds), timeout
        )
        if len(response.outcomes) != len(changes):
            raise Incomplete(
                f"applier sent {len(response.outcomes)} outcomes for {len(changes)} changes; read back what stands"
            )
        return tuple(map(outcome_from_message, response.outcomes))

    def alter_reassignments(
        self, fence: int, targets: Mapping[TopicPartition, tuple[int, ...] | None], timeout: timedelta
    ) -> Mapping[TopicPartition, str]:
        request = applier_pb2.AlterReassignmentsRequest(
            fence=fence,
            start=targets_to_messages({row: to for row, to in targets.items() if to is not None}),
            cancel=partitions_to_messages(row for row, to in targets.items() if to is None),
        )
        response = self._endpoints.call(
            lambda channel, seconds: ApplierServiceStub(channel).AlterReassignments(request, timeout=seconds),
            timeout,
            # What is started twice is on its way; what is cancelled twice does not move.
            once=bool(request.cancel),
        )
        return refusals_from_messages(response.refused)


class AdminClient(Client):
    """The admin service, its messages as they are: for the gateway, which is made of their descriptors."""

    service = "admin"
    rotates = True

    def call(
        self, method: str, request: Message, timeout: timedelta, metadata: Sequence[tuple[str, str]] = ()
    ) -> Message:
        def run(channel: grpc.Channel, seconds: float) -> Message:
            ask = getattr(AdminServiceStub(channel), method)
            response: Message = ask(request, timeout=seconds, metadata=tuple(metadata))
            return response

        return self._endpoints.call(run, timeout, once=_is_done_once(request))


def _is_done_once(request: Message) -> bool:
    """Whether the second of two such requests would be answered as if the first had not been made."""
    if isinstance(request, admin_pb2.SetOverrideRequest):
        return bool(request.override.etag)
    return isinstance(request, _DONE_ONCE)
