"""The methods of the placement service."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import grpc

from autothrottle.core.capacity.forecasts import LimitForecast
from autothrottle.core.capacity.packing import pools_state
from autothrottle.core.capacity.pools import PoolMembers, Pools, pool_plans
from autothrottle.core.capacity.sizing import capacity_plan
from autothrottle.core.capacity.values import unsized_notes
from autothrottle.core.errors import AutothrottleError, Invalid, Missing
from autothrottle.core.placement.brokers import ALL_REGISTERED, BrokerSelection, select_brokers
from autothrottle.core.placement.leadership import leadership_evacuation
from autothrottle.core.placement.partition_map import PartitionMap, matching_topics, unmatched_patterns
from autothrottle.core.placement.plan import PlacementPlan, RebalanceOptions, Strategy, steps
from autothrottle.core.placement.rebalance import decommission, rebalance, scale
from autothrottle.core.placement.rebuild import rebuild
from autothrottle.core.texts import first_lines
from autothrottle.placement.forecaster import PoolsFile, TimedForecasts
from autothrottle.ports.services import ClusterSource, PlacementCluster, StorageMetricsSource
from autothrottle.runtime.configuration_reader import InvalidConfiguration
from autothrottle.runtime.pools_file import members_of
from autothrottle.runtime.regular_expressions import compile_pattern
from autothrottle.runtime.server import time_left
from autothrottle.v1 import placement_pb2, placement_pb2_grpc
from autothrottle.wire.capacity import (
    capacity_to_message,
    forecasts_to_message,
    goal_from_message,
    instances_from_messages,
    plans_to_message,
    shares_from_message,
    status_to_message,
    workload_from_message,
)
from autothrottle.wire.common import with_known_fields
from autothrottle.wire.placement import brokers_of_scope, plan_to_message, rebalance_options, rebuild_options

_SHOWN_REFUSALS = 3


class _Forecaster(Protocol):
    """The last forecasts, see `LimitForecaster`."""

    def last(self) -> TimedForecasts: ...


@dataclass(frozen=True, slots=True)
class _Planning:
    """What a request is planned with."""

    scope: placement_pb2.PlacementScope
    cluster: PlacementCluster
    partitions: PartitionMap
    """Those of the scope's topics."""
    selection: BrokerSelection
    why_unsized: str
    """Why partition sizes are unknown."""

    def message(
        self, plan: PlacementPlan, notes: Sequence[str] = (), maps: Sequence[PartitionMap] = ()
    ) -> placement_pb2.PlacementPlan:
        """Convert a plan.

        Raises:
            Invalid: the plan loses replicas, or puts replicas into one rack, and the request does not allow that.
        """
        if plan.refusals:
            reasons = first_lines(plan.refusals, _SHOWN_REFUSALS, "reason")
            raise Invalid("\n".join(["the plan is refused:", *reasons]))
        counts = {"are not in the cluster": self.selection.missing, "have no rack": self.selection.rack_missing}
        warnings = (*plan.warnings, *(f"{count} listed brokers {what}" for what, count in counts.items() if count))
        topics = {partition.topic for partition in self.cluster.partitions}
        patterns = (("topics", self.scope.topics), ("topics_exclude", self.scope.topics_exclude))
        unmatched = [text for field, names in patterns for text in _unmatched(field, names, topics)]
        all_notes = (*plan.notes, *notes, *unmatched, *unsized_notes(plan, self.why_unsized))
        return plan_to_message(plan, len(self.cluster.partitions), warnings, all_notes, maps)


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
        options, broker_ids = rebuild_options(request), brokers_of_scope(request.scope)
        planning = self._planning(request.scope, broker_ids, context, options.strategy is Strategy.STORAGE)
        partitions, topics = planning.partitions, request.leader_evacuation_topics
        evacuation = leadership_evacuation(partitions, request.leader_evacuation_brokers, topics, compile_pattern)
        plan = rebuild(partitions, planning.selection.brokers, replace(options, evacuation=evacuation))
        notes = _unmatched("leader_evacuation_topics", topics, {partition.topic for partition in partitions})
        divided = request.phased or request.brokers_per_step
        maps = steps(plan, request.phased, request.brokers_per_step) if divided else ()
        return placement_pb2.RebuildResponse(plan=planning.message(plan, notes, maps))

    def Rebalance(
        self, request: placement_pb2.RebalanceRequest, context: grpc.ServicerContext
    ) -> placement_pb2.RebalanceResponse:
        options, broker_ids = rebalance_options(request), brokers_of_scope(request.scope)
        planning = self._planning(request.scope, broker_ids, context, with_metrics=True)
        plan = rebalance(planning.partitions, planning.selection.brokers, options)
        return placement_pb2.RebalanceResponse(plan=planning.message(plan))

    def Scale(self, request: placement_pb2.ScaleRequest, context: grpc.ServicerContext) -> placement_pb2.ScaleResponse:
        planning = self._planning(request.scope, brokers_of_scope(request.scope), context, with_metrics=True)
        options = RebalanceOptions(locality_scoped=request.locality_scoped, allow_fewer_racks=request.allow_fewer_racks)
        plan = scale(planning.partitions, planning.selection.brokers, options)
        return placement_pb2.ScaleResponse(plan=planning.message(plan))

    def Decommission(
        self, request: placement_pb2.DecommissionRequest, context: grpc.ServicerContext
    ) -> placement_pb2.DecommissionResponse:
        if not request.leaving:
            raise Invalid("leaving names no broker; list the brokers to empty")
        broker_ids = (*brokers_of_scope(request.scope, (ALL_REGISTERED,)), *request.leaving)
        planning = self._planning(request.scope, broker_ids, context, with_metrics=None)
        options = RebalanceOptions(allow_fewer_racks=request.allow_fewer_racks)
        plan = decommission(planning.partitions, planning.selection.brokers, request.leaving, options)
        return placement_pb2.DecommissionResponse(plan=planning.message(plan))

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
        return plans_to_message(plans, self._pools_warnings(), why_unsized)

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
        return status_to_message(state, forecasts, warnings)

    def GetCapacity(
        self, request: placement_pb2.GetCapacityRequest, context: grpc.ServicerContext
    ) -> placement_pb2.GetCapacityResponse:
        workload, instances = workload_from_message(request.workload), instances_from_messages(request.instances)
        shares, goal = shares_from_message(request.shares), goal_from_message(request.failure)
        return capacity_to_message(capacity_plan(workload, instances, shares, goal))

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

    def _planning(
        self,
        scope: placement_pb2.PlacementScope,
        broker_ids: Sequence[int],
        context: grpc.ServicerContext,
        with_metrics: bool | None,
    ) -> _Planning:
        """Read the cluster; `with_metrics` None: with storage metrics if there are any."""
        cluster = self._cluster.fetch_cluster(time_left(context)).complete()
        names = {partition.topic for partition in cluster.partitions}
        topics = frozenset(matching_topics(names, scope.topics, scope.topics_exclude, compile_pattern))
        if not topics:
            raise Missing(f"no topic matches {', '.join(scope.topics)[:200]}; the cluster has {len(names)} topics")
        cluster, why_unsized = self._with_storage(cluster, context, with_metrics)
        if with_metrics:
            cluster.require_clear_sizes(topics)
        partitions = tuple(partition for partition in cluster.partitions if partition.topic in topics)
        selection = select_brokers(partitions, broker_ids, cluster.brokers)
        return _Planning(scope, cluster, partitions, selection, why_unsized)

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
    last = forecaster.last()
    return forecasts_to_message(last.forecasts, last.time)


def _unmatched(field: str, patterns: Sequence[str], topics: Collection[str]) -> list[str]:
    return [
        f"{field} {pattern!r} matches no topic" for pattern in unmatched_patterns(topics, patterns, compile_pattern)
    ]
