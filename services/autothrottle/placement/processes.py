"""The placement service as callers see it: each plan is computed in a process of its own.

`servicer` has the methods. The types to know are `PlacementProcesses` and, in the other process, `PlacementWork`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from autothrottle.core.capacity.pools import Pools
from autothrottle.core.capacity.results import TimedForecasts
from autothrottle.core.errors import AutothrottleError
from autothrottle.placement.forecaster import LimitForecaster
from autothrottle.placement.servicer import forecast_message, present_pools
from autothrottle.runtime.child_processes import ChildProcesses
from autothrottle.runtime.configuration import Configuration
from autothrottle.runtime.pools_file import FollowedPools, PoolsText
from autothrottle.runtime.server import encoded_once, time_left
from autothrottle.v1 import placement_pb2, placement_pb2_grpc
from autothrottle.wire.common import with_known_fields

_Answer = TypeVar("_Answer", bound=Message)

FIX = "name fewer topics at a time, or plan on another host with `topicmappr`"
"""What a caller can do about a plan that needs too much memory or time."""


@dataclass(frozen=True, slots=True)
class PoolsReading:
    """The last reading of the pools file."""

    content: tuple[Pools, PoolsText]
    problem: str
    """What is wrong with the file since; "": nothing."""

    def current(self) -> tuple[Pools, PoolsText]:
        """Return the pools, and the text of their file."""
        return self.content


@dataclass(frozen=True, slots=True)
class ForecastReading:
    """The last forecasts, or why there are none."""

    forecasts: TimedForecasts | AutothrottleError

    def last(self) -> TimedForecasts:
        """Return the forecasts.

        Raises:
            AutothrottleError: there are none.
        """
        if isinstance(self.forecasts, AutothrottleError):
            raise self.forecasts
        return self.forecasts


@dataclass(frozen=True, slots=True)
class PlacementWork:
    """A call of the service, with what the other process cannot read by itself."""

    configuration: Configuration
    method: str
    request: bytes
    """The encoded request."""
    seconds: float
    """Time limit."""
    pools: PoolsReading | None
    forecaster: ForecastReading | None


@with_known_fields
class PlacementProcesses(placement_pb2_grpc.PlacementServiceServicer):
    """Answers each call from a process of its own, which reads the cluster and computes."""

    def __init__(
        self,
        configuration: Configuration,
        processes: ChildProcesses,
        pools: FollowedPools | None = None,
        forecaster: LimitForecaster | None = None,
    ) -> None:
        """Answer calls about the cluster of a configuration; the other arguments are those of `PlacementServicer`."""
        self._configuration, self._processes = configuration, processes
        self._pools, self._forecaster = pools, forecaster

    def Rebuild(
        self, request: placement_pb2.RebuildRequest, context: grpc.ServicerContext
    ) -> placement_pb2.RebuildResponse:
        return self._answer(placement_pb2.RebuildResponse, "Rebuild", request, context)

    def Rebalance(
        self, request: placement_pb2.RebalanceRequest, context: grpc.ServicerContext
    ) -> placement_pb2.RebalanceResponse:
        return self._answer(placement_pb2.RebalanceResponse, "Rebalance", request, context)

    def Scale(self, request: placement_pb2.ScaleRequest, context: grpc.ServicerContext) -> placement_pb2.ScaleResponse:
        return self._answer(placement_pb2.ScaleResponse, "Scale", request, context)

    def Decommission(
        self, request: placement_pb2.DecommissionRequest, context: grpc.ServicerContext
    ) -> placement_pb2.DecommissionResponse:
        return self._answer(placement_pb2.DecommissionResponse, "Decommission", request, context)

    def PlanPools(
        self, request: placement_pb2.PlanPoolsRequest, context: grpc.ServicerContext
    ) -> placement_pb2.PlanPoolsResponse:
        present_pools(self._pools)
        return self._answer(placement_pb2.PlanPoolsResponse, "PlanPools", request, context)

    def GetPoolStatus(
        self, request: placement_pb2.GetPoolStatusRequest, context: grpc.ServicerContext
    ) -> placement_pb2.GetPoolStatusResponse:
        present_pools(self._pools)
        return self._answer(placement_pb2.GetPoolStatusResponse, "GetPoolStatus", request, context)

    def GetCapacity(
        self, request: placement_pb2.GetCapacityRequest, context: grpc.ServicerContext
    ) -> placement_pb2.GetCapacityResponse:
        return self._answer(placement_pb2.GetCapacityResponse, "GetCapacity", request, context)

    def GetForecast(
        self, request: placement_pb2.GetForecastRequest, context: grpc.ServicerContext
    ) -> placement_pb2.GetForecastResponse:
        return forecast_message(self._forecaster)

    def _answer(self, kind: type[_Answer], method: str, request: Message, context: grpc.ServicerContext) -> _Answer:
        timeout = time_left(context)
        pools, forecaster = self._pools, self._forecaster
        work = PlacementWork(
            self._configuration,
            method,
            request.SerializeToString(),
            timeout.total_seconds(),
            PoolsReading(pools.current(), pools.problem) if pools else None,
            ForecastReading(_last(forecaster)) if forecaster else None,
        )
        return encoded_once(kind, self._processes.run(work, timeout, context.is_active))


def _last(forecaster: LimitForecaster) -> TimedForecasts | AutothrottleError:
    try:
        return forecaster.last()
    except AutothrottleError as error:
        return error
