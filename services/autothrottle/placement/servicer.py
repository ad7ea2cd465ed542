"""The methods of the placement service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import grpc
from google.protobuf.message import Message

from autothrottle.core.capacity.packing import pools_state
from autothrottle.core.capacity.pools import PoolMembers, Pools, pool_plans
from autothrottle.core.capacity.results import LimitForecast, PoolsStatus, TimedForecasts
from autothrottle.core.capacity.sizing import capacity_plan, check_inputs
from autothrottle.core.capacity.values import pool_statuses, pools_difference
from autothrottle.core.errors import AutothrottleError, Invalid, Missing
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.placement.operations import check_options, needs_storage, plan_placement, proposal
from autothrottle.core.texts import first_lines
from autothrottle.placement.forecaster import PoolsFile
from autothrottle.planning_messages import (
    capacity_field,
    capacity_inputs,
    capacity_to_message,
    difference_to_message,
    plan_options_of,
    plan_to_message,
)
from autothrottle.ports.services import ClusterSource, StorageMetricsSource
from autothrottle.runtime.configuration_reader import InvalidConfiguration
from autothrottle.runtime.pools_file import members_of
from autothrottle.runtime.regular_expressions import compile_pattern
from autothrottle.runtime.server import time_left
from autothrottle.v1 import placement_pb2, placement_pb2_grpc
from autothrottle.wire.common import SAME_NAMES, with_known_fields

_SHOWN_REFUSALS = 3


class _Forecaster(Protocol):
    """The last forecasts, see `LimitForecaster`."""

    def last(self) -> TimedForecasts: ...


@with_known_fields
class PlacementServicer(placement_pb2_grpc.PlacementServiceServicer):
    def __init__(
        self,
        cluster: ClusterSource,
        metrics: StorageMetricsSource,
        pools: PoolsFile | None = None,
        forecaster: _Forecaster | None = None,
    ) -> None:
        """Answer from these sources; None: methods that need it answer with an error."""
        self._cluster, self._metrics, self.pools, self.forecaster = cluster, metrics, pools, forecaster

    def Rebuild(
        self, request: placement_pb2.RebuildRequest, context: grpc.ServicerContext
    ) -> placement_pb2.RebuildResponse:
        return placement_pb2.RebuildResponse(plan=self._plan(request, context))

    def Rebalance(
        self, request: placement_pb2.RebalanceRequest, context: grpc.ServicerContext
    ) -> placement_pb2.RebalanceResponse:
        return placement_pb2.RebalanceResponse(plan=self._plan(request, context))

    def Scale(self, request: placement_pb2.ScaleRequest, context: grpc.ServicerContext) -> placement_pb2.ScaleResponse:
        return placement_pb2.ScaleResponse(plan=self._plan(request, context))

    def Decommission(
        self, request: placement_pb2.DecommissionRequest, context: grpc.ServicerContext
    ) -> placement_pb2.DecommissionResponse:
        return placement_pb2.DecommissionResponse(plan=self._plan(request, context))

    def PlanPools(
        self, request: placement_pb2.PlanPoolsRequest, context: grpc.ServicerContext
    ) -> placement_pb2.PlanPoolsResponse:
        pools, members, cluster, why_unsized = self._fetch_pools(context, with_metrics=False)
        plans = pool_plans(
            pools,
            members,
            cluster.partitions,
            cluster.brokers,
            repair_lost=request.repair_lost,
            allow_fewer_racks=request.allow_fewer_racks,
        )
        return difference_to_message(pools_difference(plans, self._pools_warnings(), why_unsized))

    def GetPoolStatus(
        self, request: placement_pb2.GetPoolStatusRequest, context: grpc.ServicerContext
    ) -> placement_pb2.GetPoolStatusResponse:
        pools, members, cluster, _ = self._fetch_pools(context, with_metrics=True)
        state = pools_state(pools, members, cluster.partitions, cluster.storage_totals, rates={})
        warnings = self._pools_warnings()
        forecasts: Sequence[LimitForecast] = ()
        if self.forecaster:
            try:
                forecasts = self.forecaster.last().forecasts
            except AutothrottleError as error:
                warnings.append(f"no recorded peak: {error}")
        status = PoolsStatus(pool_statuses(state, forecasts), tuple(warnings))
        return SAME_NAMES.to_message(placement_pb2.GetPoolStatusResponse, status)

    def GetCapacity(
        self, request: placement_pb2.GetCapacityRequest, context: grpc.ServicerContext
    ) -> placement_pb2.GetCapacityResponse:
        inputs = capacity_inputs(request)
        check_inputs(*inputs, capacity_field)
        return capacity_to_message(capacity_plan(*inputs))

    def GetForecast(
        self, request: placement_pb2.GetForecastRequest, context: grpc.ServicerContext
    ) -> placement_pb2.GetForecastResponse:
        return forecast_message(self.forecaster)

    def _fetch_pools(
        self, context: grpc.ServicerContext, with_metrics: bool
    ) -> tuple[Pools, PoolMembers, PlacementCluster, str]:
        """Return the pools of the server's file, their members, the cluster, and why partition sizes are unknown.

        Raises:
            Missing: the server has no pools file.
            Invalid: the pools contradict the cluster.
        """
        pools, source = present_pools(self.pools).current()
        cluster = self._cluster.fetch_cluster(time_left(context)).complete()
        cluster, why_unsized = self._with_storage(cluster, context, with_metrics or pools.need_storage or None)
        try:
            return pools, members_of(pools, source, cluster), cluster, why_unsized
        except InvalidConfiguration as error:
            raise Invalid(f"the server's pools file: {'; '.join(error.problems)}") from None

    def _pools_warnings(self) -> list[str]:
        problem = self.pools.problem if self.pools else ""
        return [f"the changed pools file is faulty, and its last version is in use: {problem}"] if problem else []

    def _plan(self, request: Message, context: grpc.ServicerContext) -> placement_pb2.PlacementPlan:
        """Read the cluster and plan.

        Raises:
            Invalid: the options are wrong, or the plan loses replicas or puts replicas into one rack, and they do not
                allow that.
        """
        options = plan_options_of(request)
        check_options(options)
        cluster = self._cluster.fetch_cluster(time_left(context)).complete()
        cluster, why_unsized = self._with_storage(cluster, context, needs_storage(options))
        result = plan_placement(options, cluster, compile_pattern, why_unsized=why_unsized)
        if result.plan.refusals:
            reasons = first_lines(result.plan.refusals, _SHOWN_REFUSALS, "reason")
            raise Invalid("\n".join(["the plan is refused:", *reasons]))
        return plan_to_message(proposal(result))

    def _with_storage(
        self, cluster: PlacementCluster, context: grpc.ServicerContext, with_metrics: bool | None
    ) -> tuple[PlacementCluster, str]:
        """Return the cluster with storage, and why sizes are unknown; `with_metrics` None: storage if there is any."""
        if with_metrics is False:
            return cluster, "the plan does not need them; `throttlectl estimate` reads them"
        try:
            metrics = self._metrics.fetch_storage_metrics(time_left(context))
        except AutothrottleError as error:
            if with_metrics:
                raise
            return cluster, str(error)
        return cluster.with_storage(metrics), "the storage metrics lack them"


def present_pools(pools: PoolsFile | None) -> PoolsFile:
    """Return the pools file.

    Raises:
        Missing: the server has none.
    """
    if pools is None:
        raise Missing("the server has no pools file. Fix: start admin with --pools=pools.toml")
    return pools


def forecast_message(forecaster: _Forecaster | None) -> placement_pb2.GetForecastResponse:
    """Return the last forecasts.

    Raises:
        AutothrottleError: there are none.
    """
    if forecaster is None:
        raise Missing("the server has no history. Fix: start admin with --history=DIR, which metricsfetcher fills")
    return SAME_NAMES.to_message(placement_pb2.GetForecastResponse, forecaster.last())
