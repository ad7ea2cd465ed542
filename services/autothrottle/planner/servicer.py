"""The gRPC service of a planner."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import grpc

from autothrottle.core.records import Cycle
from autothrottle.messages import refusals_to_messages, validate_reason
from autothrottle.planner.loop import Planner
from autothrottle.runtime.server import encoded_once, time_left
from autothrottle.v1 import planner_pb2, planner_pb2_grpc, types_pb2
from autothrottle.wire.common import SAME_NAMES, partitions_from_messages, targets_from_messages

_POLL = timedelta(seconds=5)
"""How long a watch may outlive its caller if gRPC does not report the disconnect."""


class PlannerServicer(planner_pb2_grpc.PlannerServiceServicer):
    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._newest: _Encoded | None = None
        self._lock = threading.Lock()

    def RunCycle(
        self, request: planner_pb2.RunCycleRequest, context: grpc.ServicerContext
    ) -> planner_pb2.RunCycleResponse:
        """Request a cycle and return at once."""
        self._planner.request_cycle(validate_reason(request.reason))
        return planner_pb2.RunCycleResponse()

    def WatchCycles(
        self, request: planner_pb2.WatchCyclesRequest, context: grpc.ServicerContext
    ) -> Iterator[planner_pb2.WatchCyclesResponse]:
        """Stream each cycle when it ends."""
        ended = threading.Event()

        def end() -> None:
            ended.set()
            self._planner.wake_watches()

        if not context.add_callback(end):
            return
        last = None
        while not ended.is_set():
            if (cycle := self._planner.next_cycle(last, _POLL, ended.is_set)) is not None:
                last = cycle
                yield encoded_once(planner_pb2.WatchCyclesResponse, self._encoded(cycle).watched)

    def GetState(
        self, request: planner_pb2.GetStateRequest, context: grpc.ServicerContext
    ) -> planner_pb2.GetStateResponse:
        state = self._planner.state()
        message = SAME_NAMES.to_message(planner_pb2.GetStateResponse, replace(state, last_cycle=None))
        if state.last_cycle is not None and not request.without_cycle:
            encoded = message.SerializeToString() + self._encoded(state.last_cycle).state
            return encoded_once(planner_pb2.GetStateResponse, encoded)
        return message

    def SubmitReassignment(
        self, request: planner_pb2.PlannerServiceSubmitReassignmentRequest, context: grpc.ServicerContext
    ) -> planner_pb2.PlannerServiceSubmitReassignmentResponse:
        """Throttle a reassignment, then submit it."""
        wanted = targets_from_messages(request.partitions)
        return SAME_NAMES.to_message(
            planner_pb2.PlannerServiceSubmitReassignmentResponse,
            self._planner.submit_reassignment(wanted, time_left(context), request.validate_only),
        )

    def CancelReassignment(
        self, request: planner_pb2.PlannerServiceCancelReassignmentRequest, context: grpc.ServicerContext
    ) -> planner_pb2.PlannerServiceCancelReassignmentResponse:
        rows = partitions_from_messages(request.partitions)
        refused = self._planner.cancel_reassignment(rows, time_left(context))
        return planner_pb2.PlannerServiceCancelReassignmentResponse(
            cancelled=len(rows) - len(refused), refused=refusals_to_messages(refused)
        )

    def _encoded(self, cycle: Cycle) -> _Encoded:
        """The encoded cycle, encoded once for all callers: a large cluster has thousands of decisions."""
        with self._lock:
            if self._newest is None or self._newest.cycle is not cycle:
                self._newest = _Encoded.of(cycle)
            return self._newest


@dataclass(frozen=True, slots=True, eq=False)
class _Encoded:
    """An encoded cycle."""

    cycle: Cycle
    watched: bytes
    """A `WatchCyclesResponse`."""
    state: bytes
    """The `last_cycle` field of a `GetStateResponse`."""

    @staticmethod
    def of(cycle: Cycle) -> _Encoded:
        message = SAME_NAMES.to_message(types_pb2.Cycle, cycle)
        return _Encoded(
            cycle,
            planner_pb2.WatchCyclesResponse(cycle=message).SerializeToString(),
            planner_pb2.GetStateResponse(last_cycle=message).SerializeToString(),
        )
