"""The composition root: the only module that names concrete adapters of the services. It builds the services from them.

`__main__` maps commands to services. The type to know is `Composition`. Adapters whose libraries start slowly
(Datadog, Kafka's Admin API: 0.2 s of CPU time each) are imported where they are built: most services need none of them.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from kazoo.client import KazooClient

from autothrottle import __version__
from autothrottle.adapters.credentials.tls import ServiceCertificates
from autothrottle.adapters.credentials.tokens import Tokens
from autothrottle.adapters.grpc import (
    AdminServiceClient,
    ApplierClient,
    DiscoveryClient,
    MetricsClient,
    PlannerServiceClient,
)
from autothrottle.adapters.grpc.member_lookup import member_lookup, members_address
from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.kafka_common.log_growth_reader import GrowthReader
from autothrottle.adapters.kafka_common.log_loads import LogLoads
from autothrottle.adapters.kafka_common.progress_reader import ProgressReader
from autothrottle.adapters.kafka_zookeeper.client_quotas import ZooKeeperClientQuotas
from autothrottle.adapters.kafka_zookeeper.config_writer import ZooKeeperConfigWriter
from autothrottle.adapters.kafka_zookeeper.placement import ZooKeeperClusterSource
from autothrottle.adapters.kafka_zookeeper.reassigner import ZooKeeperReassigner
from autothrottle.adapters.kafka_zookeeper.registrations import ZooKeeperRegistrations
from autothrottle.adapters.kafka_zookeeper.snapshots import ZooKeeperSnapshots
from autothrottle.adapters.zookeeper.map_codecs import (
    CATCH_UPS,
    REQUEST_QUOTAS,
    TEMPORARY_QUOTAS,
    YIELD_RULES,
    MapCodec,
)
from autothrottle.adapters.zookeeper.paths import KafkaPaths, OwnPaths
from autothrottle.adapters.zookeeper.session import connect, connect_in_background, disconnect, drop
from autothrottle.adapters.zookeeper_state.audited_map import ZooKeeperAuditedMap
from autothrottle.adapters.zookeeper_state.election import ZooKeeperElection
from autothrottle.adapters.zookeeper_state.ledger_reader import LedgerReader
from autothrottle.adapters.zookeeper_state.membership import ZooKeeperMembership
from autothrottle.adapters.zookeeper_state.overrides import ZooKeeperOverrides
from autothrottle.adapters.zookeeper_state.pauses import ZooKeeperPauses
from autothrottle.adapters.zookeeper_state.quota_ledger import LedgeredQuotas
from autothrottle.adapters.zookeeper_state.removal import remove_own_tree
from autothrottle.adapters.zookeeper_state.storage_metrics import ZooKeeperStorageMetrics
from autothrottle.admin.estimator import Estimator
from autothrottle.admin.quotas import QuotaServicer
from autothrottle.admin.servicer import AdminServicer
from autothrottle.applier import ApplierServicer
from autothrottle.core.cycle.settings import PlannerSettings
from autothrottle.core.errors import Conflict, Invalid, Unavailable
from autothrottle.core.exported_metrics import BUILD_INFO, MetricSample, SampleSource
from autothrottle.core.members import Member, hosts_without_route, published_address
from autothrottle.core.traffic.broker_matching import parse_broker_label
from autothrottle.discovery import DiscoveryServicer
from autothrottle.metrics import MetricsServicer
from autothrottle.planner.dependencies import PlannerDependencies
from autothrottle.planner.loop import Planner
from autothrottle.planner.servicer import PlannerServicer
from autothrottle.planner.uninstall import take_back_everything
from autothrottle.ports.kafka import (
    BrokerRegistry,
    ConfigWriter,
    FetchSettingsSource,
    QuotaSource,
    Reassigner,
    SnapshotSource,
    Term,
)
from autothrottle.ports.placement import ClusterSource, StorageMetricsSource
from autothrottle.ports.state_store import CatchUpStore, RequestQuotaStore, TemporaryQuotaStore, YieldRuleStore
from autothrottle.ports.telemetry import DecisionSink, LoadSource, NoLoads
from autothrottle.runtime.access import Access, AccessInterceptor
from autothrottle.runtime.configuration import METRICS_SOURCE_GROUP, Configuration, KafkaBackend
from autothrottle.runtime.health import Health, Scope
from autothrottle.runtime.logs import log_samples
from autothrottle.runtime.request_quotas import RequestQuotas
from autothrottle.runtime.server import Servicer, ServiceServer
from autothrottle.runtime.shutdown import CALLS, SESSIONS, Shutdown
from autothrottle.runtime.tracing import Tracing, export_metrics
from autothrottle.v1 import (
    admin_pb2_grpc,
    applier_pb2_grpc,
    discovery_pb2_grpc,
    metrics_pb2_grpc,
    placement_pb2_grpc,
    planner_pb2_grpc,
    quotas_pb2_grpc,
)

if TYPE_CHECKING:
    from autothrottle.adapters.datadog import DatadogMetrics
    from autothrottle.adapters.kafka_admin.client import KafkaAdmin
    from autothrottle.adapters.kafka_admin.client_quotas import AdminClientQuotas
    from autothrottle.adapters.kafka_admin.log_sizes import KafkaLogSizes
    from autothrottle.adapters.kafka_admin.values import KafkaSettings
    from autothrottle.placement.forecaster import LimitForecaster
    from autothrottle.runtime.pools_file import FollowedPools

log = logging.getLogger(__name__)

C = TypeVar("C", MetricsClient, DiscoveryClient, ApplierClient, PlannerServiceClient, AdminServiceClient)
D = TypeVar("D", bound="_Closeable")
K = TypeVar("K")
V = TypeVar("V")

_CONNECT_TIMEOUT = timedelta(seconds=15)

_CHECK_TIMEOUT = timedelta(seconds=1)

_CHECK_KEY_TIMEOUT = timedelta(seconds=5)

_DISK_TIMEOUT = timedelta(seconds=1.5)
"""How long the end of a process waits for the decision log. The next start rolls the spools that are left."""

_ROUTE_POLL_SECONDS = 0.25


class _Closeable(Protocol):
    """A client whose calls in progress fail when it is closed."""

    def close(self) -> None: ...


class Composition:
    """Builds services for one configuration. Its stack closes everything it opened, in reverse order."""

    def __init__(self, configuration: Configuration, stack: Shutdown, tracing: Tracing | None = None) -> None:
        """Build nothing yet.

        Args:
            configuration: the configuration of the services. Services without an address are found in the list of
                members.
            stack: closes everything that this object opens. It ends the process when the planner's loop has failed.
            tracing: sends traces; None: there are none.
        """
        self.configuration, self._stack, self._tracing = configuration, stack, tracing or Tracing()
        self.on_failure = stack.fail
        self.health = Health()
        self._sample_sources: list[SampleSource] = [self.health.samples, log_samples]
        self._kafka = KafkaPaths(configuration.zk_prefix)
        self._own = OwnPaths(configuration.zk_config_prefix)
        self._tls = ServiceCertificates(configuration.tls) if configuration.tls else None
        self._tokens = Tokens(configuration.api_tokens_file) if configuration.api_tokens_file else None
        roles = configuration.certificate_roles or ({} if self._tls else None)
        self._access = Access(roles, self._tokens, configuration.open_endpoints)
        self._quotas = RequestQuotas()

    def use(self, **addresses: Sequence[str]) -> None:
        """Let the services built from now on use these addresses, named by their options."""
        self.configuration = replace(self.configuration, **addresses)  # type: ignore[arg-type]

    def discovery(self) -> Servicer:
        client = self._session()
        source = self._snapshots(client, self._progress())
        servicer = DiscoveryServicer(source, self._log_sizes, self._fetch_settings(), self._quota_source(client))
        self._needs_state_store("autothrottle.v1.DiscoveryService")
        self.health.add("kafka", servicer.check, service="autothrottle.v1.DiscoveryService")
        add = discovery_pb2_grpc.add_DiscoveryServiceServicer_to_server
        return add, servicer, "autothrottle.v1.DiscoveryService"

    def metrics(self) -> Servicer:
        add = metrics_pb2_grpc.add_MetricsServiceServicer_to_server
        events = self._datadog if self.configuration.api_key else None
        return add, MetricsServicer(self.load_source(), events), "autothrottle.v1.MetricsService"

    def applier(self) -> Servicer:
        client = self._session()
        servicer = ApplierServicer(self._writer(client), self._reassigner(client))
        self._needs_state_store("autothrottle.v1.ApplierService")
        return applier_pb2_grpc.add_ApplierServiceServicer_to_server, servicer, "autothrottle.v1.ApplierService"

    def planner(self) -> tuple[Servicer, Planner]:
        """The planner and its servicer. The caller starts the planner with the address of its server."""
        configuration = self.configuration
        metrics = self._client(MetricsClient, configuration.metrics_addr)
        applier = self._client(ApplierClient, configuration.applier_addr)
        overrides, discovery = self._overrides, self._client(DiscoveryClient, configuration.discovery_addr)
        planner = Planner(
            PlannerDependencies(
                election=self._election(),
                snapshots=discovery,
                loads=metrics,
                events=metrics,
                writer=applier,
                reassigner=applier,
                overrides=overrides,
                pauses=self._pauses,
                catch_ups=self._catch_ups,
                settings=discovery,
                quotas=discovery,
                temporary_quotas=self._temporary_quotas,
                yield_rules=self._yield_rules,
                tracer=self._tracing.tracer,
                decisions=self._decisions(),
                broker_pools=self._pools.broker_pools if self._pools else dict,
                on_failure=self.on_failure,
            ),
            PlannerSettings(
                limits=configuration.limits,
                policy=configuration.new_policy(),
                interval=configuration.interval,
                metrics_window=configuration.metrics_window,
                cleanup_after=configuration.cleanup_after,
                cleanup_foreign=configuration.cleanup_foreign,
                schedule=configuration.schedule,
                finish_by=configuration.finish_by,
                shadow=configuration.shadow,
                cluster=configuration.cluster_name,
            ),
        )
        self._follow_request_quotas()
        self._stack.callback(planner.stop)
        self._sample_sources.append(planner.samples)
        self._needs_state_store("autothrottle.v1.PlannerService")
        self.health.add("discovery", planner.unreadable, service="autothrottle.v1.PlannerService")
        self.health.add("planner", planner.failing, service="autothrottle.v1.PlannerService")
        self.health.add("loop", planner.stall, Scope.LIVENESS, "autothrottle.v1.PlannerService")
        add = planner_pb2_grpc.add_PlannerServiceServicer_to_server
        return (add, PlannerServicer(planner), "autothrottle.v1.PlannerService"), planner

    def admin(self) -> Servicer:
        configuration = self.configuration
        overrides, discovery = self._overrides, self._client(DiscoveryClient, configuration.discovery_addr)
        metrics = self._client(MetricsClient, configuration.metrics_addr)
        limits, schedule, policy = configuration.limits, configuration.schedule, configuration.new_policy()
        servicer = AdminServicer(
            overrides,
            self._client(PlannerServiceClient, configuration.planner_addr),
            self._brokers(),
            discovery,
            self._membership,
            self._pauses,
            Estimator(discovery, discovery, discovery, metrics, overrides, limits, schedule, policy, wait=self._pause),
            self._catch_ups,
            self._follow_request_quotas(),
        )
        self._needs_state_store("autothrottle.v1.AdminService")
        return admin_pb2_grpc.add_AdminServiceServicer_to_server, servicer, "autothrottle.v1.AdminService"

    def quotas(self) -> Servicer:
        """The service of Kafka's client quotas, which any admin process serves: it has no state."""
        discovery = self._client(DiscoveryClient, self.configuration.discovery_addr)
        quotas, temporary, rules = self._client_quotas(self._shared_session), self._temporary_quotas, self._yield_rules
        servicer = QuotaServicer(quotas, temporary, rules, discovery, self._catch_ups, self._overrides)
        return quotas_pb2_grpc.add_QuotaServiceServicer_to_server, servicer, "autothrottle.v1.QuotaService"

    def placement(self) -> Servicer:
        """The placement service, which any admin process serves: it has no state."""
        from autothrottle.placement.servicer import PlacementServicer

        cluster, pools = self._cluster_source(), self._pools
        servicer = PlacementServicer(cluster, self._storage_metrics(), pools, self._forecaster(cluster, pools))
        add = placement_pb2_grpc.add_PlacementServiceServicer_to_server
        return add, servicer, "autothrottle.v1.PlacementService"

    def _forecaster(self, cluster: ClusterSource, pools: FollowedPools | None) -> LimitForecaster | None:
        """Compute forecasts until the stack closes; None: there is no history."""
        history = self.configuration.history
        if not history:
            return None
        try:
            from autothrottle.adapters.storage_history import read_samples
        except ImportError as error:
            raise Invalid(
                f"history is {history!r}, but Arrow is not installed ({error}); "
                "install autothrottle with the extra `decisions`"
            ) from None
        from autothrottle.placement.forecaster import LimitForecaster

        samples = partial(read_samples, history, self.configuration.cluster_name)
        forecaster = LimitForecaster(samples, cluster, pools)
        self._sample_sources.append(forecaster.samples)
        self._stack.callback(forecaster.close)
        forecaster.start()
        return forecaster

    def _pause(self, seconds: float) -> None:
        if self._stack.requested.wait(seconds):
            raise Unavailable("the service is stopping; call another replica, or try again in a few seconds")

    def gateway(self, service: str) -> str:
        """Serve the HTTP API until the stack closes; return the address."""
        admin = self._client(AdminServiceClient, self.configuration.admin_addr)
        self._follow_request_quotas()
        self.health.add("admin", lambda: admin.check(_CHECK_TIMEOUT), service="gateway")
        return self._serve_http(service, self.configuration.api_listen, admin)

    def metrics_endpoint(self, service: str) -> str:
        """Serve /metrics and the probes of a single service until the stack closes; return the address.

        Without an address to listen on, return "".
        """
        listen = self.configuration.metrics_listen
        return self._serve_http(service, listen, None, "metrics-listen") if listen else ""

    def _serve_http(
        self, service: str, listen: str, admin: AdminServiceClient | None, option: str = "api-listen"
    ) -> str:
        # Only these processes need a web framework.
        from autothrottle.adapters.exposition.prometheus import PrometheusText
        from autothrottle.gateway.server import GatewayServer

        tls = self._tls
        server = GatewayServer(
            admin,
            listen,
            access=self._access,
            hosts=self.configuration.api_hosts,
            tls=tls.http_context() if tls else None,
            health=self.health,
            metrics=PrometheusText(partial(self._samples, service), self.configuration.cluster_name).render,
            option=option,
            quotas=self._quotas,
        )
        server.start()
        self._stack.callback(lambda: server.stop(self._stack.grace()))
        return server.address

    def export_metrics(self, service: str) -> None:
        """Export metrics over OTLP until the stack closes, if the OTEL_* variables ask for it."""
        source = partial(self._samples, service)
        self._stack.callback(export_metrics(f"autothrottle-{service}", source, self.configuration.cluster_name))

    def _samples(self, service: str) -> Iterator[MetricSample]:
        yield BUILD_INFO.sample(1, service, __version__)
        for source in self._sample_sources:
            yield from source()

    def serve(self, name: str, servicers: Sequence[Servicer], listen: str) -> str:
        """Serve until the stack closes; return the address."""
        credentials = self._tls.server_credentials() if self._tls else None
        access, interceptors = AccessInterceptor(self._access, self._quotas), self._tracing.server_interceptors
        server = ServiceServer(
            name,
            servicers,
            listen,
            access=access,
            interceptors=interceptors,
            credentials=credentials,
            checks=self.health,
        )
        server.start()
        self._stack.callback(lambda: server.stop(self._stack.grace()))
        return server.address

    def serve_alone(self, name: str, *servicers: Servicer) -> str:
        """Serve the services of a process with one role until the stack closes; return the address.

        Raises:
            Invalid: the other services could not call it, since they have neither a certificate nor a token.
        """
        listen = self.configuration.listen
        if self._tokens and not self._tls and not self._tokens.of_services and not listen.startswith("unix:"):
            raise Invalid(
                f"{name} listens on {listen} and needs tokens (api-tokens-file), but the services have none to call "
                "one another. Fix: add the line `services TOKEN service` to the file, or give tls-cert, tls-key and "
                "tls-ca"
            )
        return self.serve(name, servicers, listen)

    def join(self, service: str, address: str, roles: Sequence[str] = ()) -> Member:
        """Add this process to the list of members once ZooKeeper answers; the stack removes it. Return its entry.

        Does not wait for ZooKeeper: metrics and gateway also work on hosts that cannot reach it.

        Raises:
            Invalid: it is a planner that members on other hosts cannot reach, or its address is incomplete.
        """
        member = Member(
            service=service,
            roles=tuple(roles) or (service,),
            version=__version__,
            address=published_address(address, self.configuration.advertise),
            host=socket.gethostname(),
            pid=os.getpid(),
            start_time=datetime.now(UTC),
        )
        if "planner" in member.roles:
            self._check_route(member)
        self._membership.join(member)
        self._stack.callback(self._membership.leave)
        self.health.start()
        self._stack.callback(self.health.close)
        return member

    def _needs_state_store(self, service: str) -> None:
        self.health.add("state store", self._membership.problem, service=service)

    def _check_route(self, member: Member) -> None:
        """Check that the listed members can call a planner. Entries of processes that died expire with their session.

        Raises:
            Invalid: members on other hosts cannot reach its address.
        """
        deadline = time.monotonic() + self.configuration.zk_session_timeout.total_seconds() + 1
        while hosts := self._hosts_without_route(member):
            if time.monotonic() > deadline:
                raise Invalid(
                    f"autothrottle also runs on {', '.join(hosts)}, from where this planner's address "
                    f"{member.address} cannot be reached. Fix: listen on an address for other hosts, and give the "
                    f"address that they call if it differs, for example --advertise={member.host}"
                )
            if self._stack.requested.wait(_ROUTE_POLL_SECONDS):
                return

    def _hosts_without_route(self, member: Member) -> tuple[str, ...]:
        with suppress(Unavailable):  # membership warns later
            return hosts_without_route(member, self._membership.members(_CONNECT_TIMEOUT))
        return ()

    def uninstall(self) -> int:
        """Win the election, restore all configs and remove our tree; return the number of resources.

        Raises:
            Conflict: when another planner keeps the leadership.
        """
        client = self._session()
        source = self._snapshots(client, None)
        election = self._election()
        term = _win_election(election, self.configuration.zk_session_timeout * 2)
        try:
            outcomes = take_back_everything(term, source, self._quota_source(client), self._writer(client))
        finally:
            election.leave()
        remove_own_tree(client, self._own, self.configuration.zk_session_timeout * 2)
        return len(outcomes)

    # Metrics sources.

    def load_source(self) -> LoadSource:
        match self.configuration.metrics_source:
            case "datadog":
                _check_api_key(self._datadog)
                return self._datadog
            case "kafka":
                return self._log_loads()
            case "none":
                return NoLoads()
            case "prometheus":
                return self._prometheus()
            case "scrape":
                return self._scraped()
            case name:
                return self._installed_source(name)

    @cached_property
    def _datadog(self) -> DatadogMetrics:
        from autothrottle.adapters.datadog import DatadogMetrics, DatadogSettings

        configuration = self.configuration
        settings = DatadogSettings(
            url=configuration.datadog_url,
            api_key=configuration.api_key,
            app_key=configuration.app_key,
            net_tx_query=configuration.net_tx_query,
            net_rx_query=configuration.net_rx_query,
            broker_id_tag=configuration.broker_id_tag,
            instance_type_tag=configuration.instance_type_tag,
            capacity_tag=configuration.capacity_tag or None,
            metrics_window=configuration.metrics_window,
            metrics_delay=configuration.metrics_delay,
            event_tags=configuration.dd_event_tags,
        )
        return self._cancellable(DatadogMetrics(settings, configuration.capacities))

    def _log_loads(self) -> LoadSource:
        if self._log_sizes is None:
            raise Invalid("metrics-source kafka needs bootstrap-servers; give the address of a broker")
        configuration = self.configuration
        limits, fanout, window = configuration.capacities, configuration.consumer_fanout, configuration.metrics_window
        return self._stack.enter_context(closing(LogLoads(self._log_sizes, limits, fanout, window)))

    def _prometheus(self) -> LoadSource:
        from autothrottle.adapters.prometheus import PrometheusMetrics, PrometheusSettings

        configuration, exporter = self.configuration, self.configuration.exporter
        settings = PrometheusSettings(
            url=configuration.prometheus_url,
            exporter=exporter,
            tx_query=configuration.prometheus_tx_query,
            rx_query=configuration.prometheus_rx_query,
            selector=configuration.prometheus_selector,
            ca_file=configuration.prometheus_ca,
            token_file=configuration.prometheus_token_file,
            user_file=configuration.prometheus_user_file,
            window=configuration.metrics_window,
            delay=configuration.metrics_delay,
            broker_label=configuration.broker_label or parse_broker_label(exporter.broker_label, "broker-label"),
            broker_map=configuration.broker_map,
        )
        return self._cancellable(PrometheusMetrics(settings, configuration.capacities, self._broker_hosts()))

    def _scraped(self) -> LoadSource:
        from autothrottle.adapters.scrape import ScrapedMetrics, ScrapeSettings

        configuration, exporter = self.configuration, self.configuration.exporter
        settings = ScrapeSettings(
            url=configuration.scrape_url or exporter.url,
            exporter=exporter,
            interval=configuration.scrape_interval,
            window=configuration.metrics_window,
            broker_map=configuration.broker_map,
        )
        return self._cancellable(ScrapedMetrics(settings, configuration.capacities, self._broker_hosts()))

    def _broker_hosts(self) -> BrokerHosts:
        """Read hosts without waiting for ZooKeeper at the start: loads of brokers that a label names need no host."""
        if self._by_admin_api and self._kafka_admin:
            return BrokerHosts(self._kafka_admin)
        servers, session_timeout = ",".join(self.configuration.zk_addr), self.configuration.zk_session_timeout
        return BrokerHosts(
            ZooKeeperRegistrations(self._ended(connect_in_background(servers, session_timeout)), self._kafka)
        )

    def _installed_source(self, name: str) -> LoadSource:
        """Build the source of an entry point; the stack closes it if it can be closed."""
        entry_point = entry_points(group=METRICS_SOURCE_GROUP)[name]
        try:
            source: LoadSource = entry_point.load()(self.configuration)
        except (ImportError, AttributeError) as error:
            raise Invalid(
                f"metrics-source {name} cannot be loaded from {entry_point.value} ({error}); install it again"
            ) from None
        if close := getattr(source, "close", None):
            self._stack.callback(close)
        return source

    # Adapters: Kafka through ZooKeeper or the admin API. Our own state is in ZooKeeper in both cases.

    @property
    def _by_admin_api(self) -> bool:
        return self.configuration.kafka_backend is KafkaBackend.ADMIN

    @cached_property
    def _kafka_admin(self) -> KafkaAdmin | None:
        """The process's client of Kafka's admin API; None without bootstrap servers."""
        if not self.configuration.bootstrap_servers:
            return None
        from autothrottle.adapters.kafka_admin.client import KafkaAdmin

        return self._cancellable(KafkaAdmin(_kafka_settings(self.configuration)))

    @cached_property
    def _log_sizes(self) -> KafkaLogSizes | None:
        if self._kafka_admin is None:
            return None
        from autothrottle.adapters.kafka_admin.log_sizes import KafkaLogSizes

        return KafkaLogSizes(self._kafka_admin)

    def _fetch_settings(self) -> FetchSettingsSource | None:
        if self._kafka_admin is None:
            return None
        from autothrottle.adapters.kafka_admin.fetch_settings import KafkaFetchSettings

        return KafkaFetchSettings(self._kafka_admin)

    def _progress(self) -> ProgressReader | None:
        """The background reader of log sizes; None without an admin API client."""
        if self._log_sizes is None:
            return None
        return self._stack.enter_context(closing(ProgressReader(self._log_sizes, GrowthReader(self._log_sizes))))

    def _snapshots(self, client: KazooClient, progress: ProgressReader | None) -> SnapshotSource:
        if self._by_admin_api and self._kafka_admin:
            from autothrottle.adapters.kafka_admin.snapshots import AdminSnapshots

            ledger = self._stack.enter_context(closing(LedgerReader(client, self._own)))
            poll, controllers = self.configuration.discovery_poll, self.configuration.kafka_bootstrap_controllers
            polled = AdminSnapshots(self._kafka_admin, ledger, poll, bool(controllers), progress)
            return self._stack.enter_context(closing(polled))
        return self._stack.enter_context(closing(ZooKeeperSnapshots(client, self._kafka, self._own, progress)))

    def _cluster_source(self) -> ClusterSource:
        if self._by_admin_api and self._kafka_admin:
            from autothrottle.adapters.kafka_admin.placement import AdminClusterSource

            return AdminClusterSource(self._kafka_admin)
        return ZooKeeperClusterSource(self._placement_session, self._kafka)

    def _storage_metrics(self) -> StorageMetricsSource:
        """Prefers the brokers themselves to the sample of metricsfetcher."""
        if self._kafka_admin:
            from autothrottle.adapters.kafka_admin.placement import LogDirMetrics

            return LogDirMetrics(self._kafka_admin)
        return ZooKeeperStorageMetrics(self._placement_session)

    @cached_property
    def _placement_session(self) -> KazooClient:
        """Its own session, so that reading a whole cluster does not delay the stores."""
        return self._session()

    def _brokers(self) -> BrokerRegistry:
        if self._by_admin_api and self._kafka_admin:
            return self._kafka_admin
        return ZooKeeperRegistrations(self._shared_session, self._kafka)

    def _quota_source(self, client: KazooClient) -> QuotaSource:
        quotas = self._client_quotas(client)
        if self._kafka_admin is None:
            return LedgeredQuotas(client, self._own, quotas)
        from autothrottle.adapters.kafka_admin.client_quotas import fetch_group_clients

        return LedgeredQuotas(client, self._own, quotas, partial(fetch_group_clients, self._kafka_admin))

    def _client_quotas(self, client: KazooClient) -> AdminClientQuotas | ZooKeeperClientQuotas:
        if self._by_admin_api and self._kafka_admin:
            from autothrottle.adapters.kafka_admin.client_quotas import AdminClientQuotas

            return AdminClientQuotas(self._kafka_admin)
        return ZooKeeperClientQuotas(client, self._kafka)

    def _writer(self, client: KazooClient) -> ConfigWriter:
        if self._by_admin_api and self._kafka_admin:
            from autothrottle.adapters.kafka_admin.config_writer import AdminConfigWriter

            session_timeout = self.configuration.zk_session_timeout
            return AdminConfigWriter(self._kafka_admin, client, self._own, session_timeout)
        return ZooKeeperConfigWriter(client, self._kafka, self._own)

    def _reassigner(self, client: KazooClient) -> Reassigner:
        """Prefers the admin API if configured: only it can cancel, and accept several submissions at once."""
        if self._kafka_admin:
            from autothrottle.adapters.kafka_admin.reassigner import AdminReassigner

            session_timeout = self.configuration.zk_session_timeout
            return AdminReassigner(self._kafka_admin, client, self._own, session_timeout)
        return ZooKeeperReassigner(client, self._kafka, self._own)

    @cached_property
    def _shared_session(self) -> KazooClient:
        """The session of all stores. A session for each of them costs three threads, and time at start and end."""
        return self._session()

    def _session(self) -> KazooClient:
        hosts = ",".join(self.configuration.zk_addr)
        session_timeout = self.configuration.zk_session_timeout
        return self._ended(connect(hosts, session_timeout, _CONNECT_TIMEOUT, self._stack.requested))

    def _ended(self, session: KazooClient) -> KazooClient:
        """Let the shutdown end a session, or drop it if ZooKeeper does not answer."""
        self._stack.callback(disconnect, session)
        self._stack.cancel_after(SESSIONS, partial(drop, session))
        return session

    @cached_property
    def _membership(self) -> ZooKeeperMembership:
        session_timeout = self.configuration.zk_session_timeout
        client = self._ended(connect_in_background(",".join(self.configuration.zk_addr), session_timeout))
        return ZooKeeperMembership(client, self._own, session_timeout)

    def _election(self) -> ZooKeeperElection:
        return ZooKeeperElection(self._session(), self._own, self.configuration.zk_session_timeout)

    @cached_property
    def _overrides(self) -> ZooKeeperOverrides:
        return self._stack.enter_context(closing(ZooKeeperOverrides(self._shared_session, self._own)))

    @cached_property
    def _pauses(self) -> ZooKeeperPauses:
        return self._stack.enter_context(closing(ZooKeeperPauses(self._shared_session, self._own)))

    @cached_property
    def _catch_ups(self) -> CatchUpStore:
        return self._audited_map(self._shared_session, CATCH_UPS)

    def _audited_map(self, session: KazooClient, codec: MapCodec[K, V]) -> ZooKeeperAuditedMap[K, V]:
        return self._stack.enter_context(closing(ZooKeeperAuditedMap(session, self._own, codec)))

    def _follow_request_quotas(self) -> RequestQuotaStore:
        """Apply the stored request quotas to every server of this process that serves our API; return their store."""
        return self._request_quotas

    @cached_property
    def _request_quotas(self) -> RequestQuotaStore:
        """Does not wait for ZooKeeper: gateways also work on hosts that cannot reach it, without request quotas."""
        hosts, session_timeout = ",".join(self.configuration.zk_addr), self.configuration.zk_session_timeout
        session = self._ended(connect_in_background(hosts, session_timeout))
        store = self._audited_map(session, REQUEST_QUOTAS)
        self._quotas.follow(store)
        self._sample_sources.append(self._quotas.samples)
        return store

    @cached_property
    def _temporary_quotas(self) -> TemporaryQuotaStore:
        return self._audited_map(self._shared_session, TEMPORARY_QUOTAS)

    @cached_property
    def _yield_rules(self) -> YieldRuleStore:
        return self._audited_map(self._shared_session, YIELD_RULES)

    @cached_property
    def _pools(self) -> FollowedPools | None:
        """The pools file, read again when it has changed."""
        if not self.configuration.pools:
            return None
        from autothrottle.runtime.pools_file import FollowedPools

        pools = FollowedPools(self.configuration.pools)
        self._sample_sources.append(pools.samples)
        return pools

    def _decisions(self) -> DecisionSink | None:
        uri, spool = self.configuration.decisions, self.configuration.decisions_spool
        if not uri:
            return None
        try:
            # Imported here because it takes 0.5 s and needs an extra.
            from autothrottle.adapters.decision_log.writer import DecisionLog, LogLimits
        except ImportError as error:
            raise Invalid(
                f"decisions is {uri!r}, but Arrow is not installed ({error}); "
                "install autothrottle with the extra `decisions`"
            ) from None
        configured = self.configuration
        limits = LogLimits(retention=configured.decisions_retention, min_free_bytes=configured.decisions_min_free)
        decisions = DecisionLog(uri, Path(spool) if spool else None, limits)
        self._stack.callback(lambda: decisions.close(min(self._stack.grace(), _DISK_TIMEOUT)))
        self._sample_sources.append(decisions.samples)
        return decisions

    def private_directory(self) -> str:
        """A temporary directory for sockets, with access for this user only; the stack removes it."""
        return self._stack.enter_context(tempfile.TemporaryDirectory(prefix="autothrottle-"))

    def _client(self, kind: type[C], addresses: Sequence[str]) -> C:
        """A client of a service at these addresses; without addresses it finds the service in the list of members."""
        resolve = member_lookup(self._membership, socket.gethostname())
        where = addresses or [members_address(kind.service)]
        token = self._tokens.of_services if self._tokens and not self._tls else ""
        return self._cancellable(kind(where, self._tracing.client_interceptors, resolve, self._tls, token))

    def _cancellable(self, client: D) -> D:
        """Let the shutdown close a client, at the latest when it cancels calls in progress."""
        self._stack.cancel_after(CALLS, client.close)
        return self._stack.enter_context(closing(client))


def _check_api_key(datadog: DatadogMetrics) -> None:
    """Check Datadog's API key, if Datadog answers: autothrottle also starts while Datadog is down.

    Raises:
        Invalid: Datadog rejects the key.
    """
    try:
        datadog.check_api_key(_CHECK_KEY_TIMEOUT)
    except Unavailable as error:
        log.warning("The API key cannot be checked, starting without: %s", error)


def validate_kafka_settings(configuration: Configuration) -> None:
    """Check the Kafka settings without connecting.

    Raises:
        Invalid: the file that kafka-client-config names cannot be read, or has an unsupported property.
    """
    if configuration.kafka_client_config:
        from autothrottle.adapters.kafka_admin.client_properties import client_options

        client_options(_kafka_settings(configuration).client_properties)


def _kafka_settings(configuration: Configuration) -> KafkaSettings:
    """Return the settings of the admin API client.

    Raises:
        Invalid: the file that kafka-client-config names cannot be read, or has an unsupported property.
    """
    from autothrottle.adapters.kafka_admin.client_properties import read_client_properties
    from autothrottle.adapters.kafka_admin.values import KafkaSettings

    path = configuration.kafka_client_config
    return KafkaSettings(
        bootstrap_servers=configuration.bootstrap_servers,
        bootstrap_controllers=configuration.kafka_bootstrap_controllers,
        client_properties=read_client_properties(path) if path else {},
        request_timeout=configuration.kafka_api_request_timeout,
    )


def _win_election(election: ZooKeeperElection, patience: timedelta) -> Term:
    """Join the election and return our term.

    Raises:
        Conflict: when another candidate still leads after `patience`.
    """
    changed = threading.Event()
    election.join("", changed.set)
    deadline = time.monotonic() + patience.total_seconds()
    while (term := election.term) is None:
        if time.monotonic() > deadline:
            election.leave()
            raise Conflict("a planner is still running; stop all planners, then run this again")
        changed.wait(0.1)
    return term
