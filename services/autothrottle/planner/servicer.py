"""Answers for a planner over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import grpc

from autothrottle.core.cycle import CycleRecord
from autothrottle.planner.loop import Planner
from autothrottle.runtime.server import ready, time_left
from autothrottle.v1 import planner_pb2, planner_pb2_grpc
from autothrottle.wire.cycles import cycle_to_message, state_to_message
from autothrottle.wire.reassignments import (
    partitions_from_messages,
    refusals_to_messages,
    submitted_to_message,
    targets_from_messages,
)
from autothrottle.wire.requests import validate_reason

_POLL = timedelta(seconds=5)
"""How long a watch may outlast its caller if nothing says that he has left."""


class PlannerServicer(planner_pb2_grpc.PlannerServiceServicer):
    """PlannerService."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._newest: _Encoded | None = None
        self._lock = threading.Lock()

    def RunCycle(
        self, request: planner_pb2.RunCycleRequest, context: grpc.ServicerContext
    ) -> planner_pb2.RunCycleResponse:
        """Ask for a cycle and return at once."""
        self._planner.request_cycle(validate_reason(request.reason))
        return planner_pb2.RunCycleResponse()

    def WatchCycles(
        self, request: planner_pb2.WatchCyclesRequest, context: grpc.ServicerContext
    ) -> Iterator[planner_pb2.WatchCyclesResponse]:
        """Send every cycle as it ends."""
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
                yield ready(planner_pb2.WatchCyclesResponse, self._encoded(cycle).watched)

    def GetState(
        self, request: planner_pb2.GetStateRequest, context: grpc.ServicerContext
    ) -> planner_pb2.GetStateResponse:
        """Return who leads and what the last cycle did."""
        state = self._planner.state()
        message = state_to_message(replace(state, last_cycle=None))
        if state.last_cycle is not None and not request.without_cycle:
            encoded = message.SerializeToString() + self._encoded(state.last_cycle).state
            return ready(planner_pb2.GetStateResponse, encoded)
        return message

    def StartReassignment(
        self, request: planner_pb2.StartReassignmentRequest, context: grpc.ServicerContext
    ) -> planner_pb2.StartReassignmentResponse:
        """Throttle a reassignment, then start it."""
        wanted = targets_from_messages(request.partitions)
        return submitted_to_message(
            self._planner.submit_reassignment(wanted, time_left(context), request.validate_only)
        )

    def StopReassignment(
        self, request: planner_pb2.StopReassignmentRequest, context: grpc.ServicerContext
    ) -> planner_pb2.StopReassignmentResponse:
        """Cancel the reassignment of partitions."""
        rows = partitions_from_messages(request.partitions)
        refused = self._planner.cancel_reassignment(rows, time_left(context))
        return planner_pb2.StopReassignmentResponse(
            cancelled=len(rows) - len(refused), refused=refusals_to_messages(refused)
        )

    def _encoded(self, cycle: CycleRecord) -> _Encoded:
        """A cycle as it is sent, made once however many ask: of a large cluster it has thousands of decisions."""
        with self._lock:
            if self._newest is None or self._newest.cycle is not cycle:
                self._newest = _Encoded.of(cycle)
            return self._newest


@dataclass(frozen=True, slots=True, eq=False)
class _Encoded:
    """A cycle on the wire."""

    cycle: CycleRecord
    watched: bytes
    """The message of a watch."""
    state: bytes
    """The part of a state's message that is its last cycle."""

    @staticmethod
    def of(cycle: CycleRecord) -> _Encoded:
        """Encode it."""
        message = cycle_to_message(cycle)
        return _Encoded(
            cycle,
            planner_pb2.WatchCyclesResponse(cycle=message).SerializeToString(),
            planner_pb2.GetStateResponse(last_cycle=message).SerializeToString(),
        )
