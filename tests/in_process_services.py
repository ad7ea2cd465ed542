"""All services on in-memory twins, over gRPC on the loopback interface."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, TypeVar

import grpc

from autothrottle.adapters.grpc import ApplierClient, DiscoveryClient, MetricsClient, PlannerServiceClient
from autothrottle.adapters.memory import (
    MemoryAuditedMap,
    MemoryClientQuotas,
    MemoryCluster,
    MemoryElection,
    MemoryElectorate,
    MemoryMembers,
    MemoryMembership,
    MemoryOverrides,
    MemoryPauses,
    MemoryPlacementCluster,
    MemoryStorageMetrics,
)
from autothrottle.adapters.zookeeper.map_codecs import CATCH_UPS, REQUEST_QUOTAS, TEMPORARY_QUOTAS, YIELD_RULES
from autothrottle.admin.estimator import Estimator
from autothrottle.admin.plan_check import PlanCheck
from autothrottle.admin.quotas import QuotaServicer
from autothrottle.admin.servicer import AdminServicer
from autothrottle.applier import ApplierServicer
from autothrottle.core.cycle.input import PlannerSettings
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.discovery import DiscoveryServicer
from autothrottle.metrics import MetricsServicer
from autothrottle.placement.servicer import PlacementServicer
from autothrottle.planner.calls import PlannerDependencies
from autothrottle.planner.loop import Planner
from autothrottle.planner.servicer import PlannerServicer
from autothrottle.ports.telemetry import EventSink, LoadSource
from autothrottle.runtime.access import Access, AccessInterceptor
from autothrottle.runtime.call_limits import RequestQuotas
from autothrottle.runtime.server import Servicer, ServiceServer
from autothrottle.runtime.tracing import Tracing
from autothrottle.v1 import (
    admin_pb2_grpc,
    applier_pb2_grpc,
    discovery_pb2_grpc,
    metrics_pb2_grpc,
    placement_pb2_grpc,
    planner_pb2_grpc,
    quotas_pb2_grpc,
)
from autothrottle_lab.servers.processes import free_address
from tests import builders


class Closable(Protocol):
    def close(self) -> None: ...


_Closable = TypeVar("_Closable", bound=Closable)

BROKERS = (1001, 1002, 1003, 1004)
STATE_TOPIC = "__autothrottle_state"


class InProcessServices:
    """One discovery, metrics, applier and admin service, and planners that have not joined the election yet."""

    def __init__(
        self,
        loads: LoadSource,
        events: EventSink,
        planners: int = 1,
        tracing: Tracing | None = None,
        access: Access | None = None,
    ) -> None:
        self._stack = ExitStack()
        self._tracing, self._access = tracing or Tracing(), access or Access()
        self.electorate = MemoryElectorate()
        self.cluster = MemoryCluster(self.electorate, BROKERS)
        self.overrides = MemoryOverrides(self.electorate)
        self.members = MemoryMembers()
        self.pauses = MemoryPauses(self.overrides.audit)
        self.catch_ups = MemoryAuditedMap(CATCH_UPS, self.electorate, self.overrides.audit)
        self.request_quotas = MemoryAuditedMap(REQUEST_QUOTAS, audit=self.overrides.audit)
        self.enforced_request_quotas = RequestQuotas()
        """Those of every server; a real process has its own."""
        self.enforced_request_quotas.follow(self.request_quotas)
        self.temporary_quotas = MemoryAuditedMap(TEMPORARY_QUOTAS, self.electorate, self.overrides.audit)
        self.yield_rules = MemoryAuditedMap(YIELD_RULES, audit=self.overrides.audit)
        self.servers: dict[str, ServiceServer] = {}
        self.produce: Callable[[float], None] = lambda seconds: None
        """Simulates the producers over this many seconds; no real time passes."""
        self._serve("discovery", DiscoveryServicer(self.cluster, self.cluster, self.cluster, self.cluster))
        self._serve("metrics", MetricsServicer(loads, events))
        self._serve("applier", ApplierServicer(self.cluster, self.cluster))
        self.planners = [self._planner(f"planner-{number}") for number in range(1, planners + 1)]
        addresses = [server.address for name, server in self.servers.items() if name.startswith("planner")]
        interceptors = self._tracing.client_interceptors
        leading = self._closing(PlannerServiceClient(addresses, interceptors))
        snapshots = self._closing(DiscoveryClient([self.address("discovery")], interceptors))
        membership = MemoryMembership(self.members)
        self.placement = MemoryPlacementCluster(PlacementCluster({}, ()))
        self.storage = MemoryStorageMetrics()
        self.plan_check = PlanCheck(snapshots, snapshots, self.placement, self.storage, STATE_TOPIC)
        self.estimator = Estimator(
            snapshots, snapshots, snapshots, loads, self.overrides, builders.limits(), wait=self._produce
        )
        admin = AdminServicer(
            self.overrides,
            leading,
            self.cluster,
            snapshots,
            membership,
            self.pauses,
            self.estimator,
            self.catch_ups,
            self.request_quotas,
            self.plan_check,
        )
        self.quotas = MemoryClientQuotas()
        self.placement_servicer = PlacementServicer(self.placement, self.storage)
        add_placement = placement_pb2_grpc.add_PlacementServiceServicer_to_server
        quotas = QuotaServicer(
            self.quotas, self.temporary_quotas, self.yield_rules, snapshots, self.catch_ups, self.overrides
        )
        add_quotas = quotas_pb2_grpc.add_QuotaServiceServicer_to_server
        self._serve(
            "admin",
            admin,
            (add_placement, self.placement_servicer, "autothrottle.v1.PlacementService"),
            (add_quotas, quotas, "autothrottle.v1.QuotaService"),
        )

    def __enter__(self) -> InProcessServices:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def start_planners(self) -> None:
        """Let all planners join the election; the first one wins."""
        for number, planner in enumerate(self.planners, start=1):
            planner.start(self.address(f"planner-{number}"))

    def is_clean(self) -> bool:
        """Whether the cluster has no throttles and the ledger is empty."""
        return not self.cluster.ledger and not any(self.cluster.configs.values())

    def address(self, name: str) -> str:
        return self.servers[name].address

    def channel(self, name: str) -> grpc.Channel:
        """A channel to a service; closed together with the services."""
        return self._closing(grpc.insecure_channel(self.address(name)))

    def _produce(self, seconds: float) -> None:
        self.produce(seconds)

    def _planner(self, name: str) -> Planner:
        interceptors = self._tracing.client_interceptors
        metrics = self._closing(MetricsClient([self.address("metrics")], interceptors))
        applier = self._closing(ApplierClient([self.address("applier")], interceptors))
        dependencies = PlannerDependencies(
            election=MemoryElection(self.electorate),
            snapshots=self._closing(DiscoveryClient([self.address("discovery")], interceptors)),
            loads=metrics,
            events=metrics,
            writer=applier,
            reassigner=applier,
            overrides=self.overrides,
            pauses=self.pauses,
            catch_ups=self.catch_ups,
            settings=self._closing(DiscoveryClient([self.address("discovery")], interceptors)),
            quotas=self._closing(DiscoveryClient([self.address("discovery")], interceptors)),
            temporary_quotas=self.temporary_quotas,
            yield_rules=self.yield_rules,
            tracer=self._tracing.tracer,
        )
        settings = PlannerSettings(builders.limits(), interval=timedelta(seconds=60), state_topic=STATE_TOPIC)
        planner = Planner(dependencies, settings)
        self._stack.callback(planner.stop)
        self._serve(name, PlannerServicer(planner))
        return planner

    def _serve(self, name: str, servicer: object, *others: Servicer) -> None:
        services: dict[str, tuple[Callable[[Any, grpc.Server], None], str]] = {
            "discovery": (discovery_pb2_grpc.add_DiscoveryServiceServicer_to_server, "DiscoveryService"),
            "metrics": (metrics_pb2_grpc.add_MetricsServiceServicer_to_server, "MetricsService"),
            "applier": (applier_pb2_grpc.add_ApplierServiceServicer_to_server, "ApplierService"),
            "planner": (planner_pb2_grpc.add_PlannerServiceServicer_to_server, "PlannerService"),
            "admin": (admin_pb2_grpc.add_AdminServiceServicer_to_server, "AdminService"),
        }
        add, service = services[name.partition("-")[0]]
        served: list[Servicer] = [(add, servicer, f"autothrottle.v1.{service}"), *others]
        access = AccessInterceptor(self._access, self.enforced_request_quotas)
        server = ServiceServer(
            name, served, free_address(), access=access, interceptors=self._tracing.server_interceptors
        )
        self.servers[name] = self._stack.enter_context(server)

    def _closing(self, opened: _Closable) -> _Closable:
        self._stack.callback(opened.close)
        return opened
