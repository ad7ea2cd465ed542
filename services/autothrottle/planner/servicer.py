"""Answers for a planner over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import grpc

from autothrottle.planner.loop import Planner
from autothrottle.v1 import planner_pb2, planner_pb2_grpc
from autothrottle.wire.cycles import cycle_to_message, state_to_message

_POLL = timedelta(seconds=0.2)
"""How long a watch may outlast its caller."""


class PlannerServicer(planner_pb2_grpc.PlannerServiceServicer):
    """PlannerService."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    def RunCycle(
        self, request: planner_pb2.RunCycleRequest, context: grpc.ServicerContext
    ) -> planner_pb2.RunCycleResponse:
        """Ask for a cycle and return at once."""
        self._planner.request_cycle(request.reason)
        return planner_pb2.RunCycleResponse()

    def WatchCycles(
        self, request: planner_pb2.WatchCyclesRequest, context: grpc.ServicerContext
    ) -> Iterator[planner_pb2.WatchCyclesResponse]:
        """Send every cycle as it ends."""
        ended = threading.Event()
        if not context.add_callback(ended.set):
            return
        last = None
        while not ended.is_set():
            if (cycle := self._planner.next_cycle(last, _POLL)) is not None:
                last = cycle
                yield planner_pb2.WatchCyclesResponse(cycle=cycle_to_message(cycle))

    def GetState(
        self, request: planner_pb2.GetStateRequest, context: grpc.ServicerContext
    ) -> planner_pb2.GetStateResponse:
        """Return who leads and what the last cycle did."""
        return state_to_message(self._planner.state())
