"""The services of a process, built from their adapters. The type to know is `Composition`."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from autothrottle import __version__
from autothrottle.adapters import grpc as clients
from autothrottle.adapters.credentials import CredentialFiles, CredentialWatch, ServiceCertificates, Tokens
from autothrottle.adapters.grpc.member_lookup import member_lookup, members_address
from autothrottle.adapters.grpc.services import ServiceClient
from autothrottle.admin.estimator import Estimator
from autothrottle.admin.plan_check import PlanCheck
from autothrottle.admin.quotas import QuotaServicer
from autothrottle.admin.servicer import AdminServicer
from autothrottle.applier import ApplierServicer
from autothrottle.composition.cluster import new_cluster, new_state
from autothrottle.composition.loads import MetricsSources
from autothrottle.composition.zookeeper_cluster import ZooKeeperCluster
from autothrottle.core.cycle.input import PlannerSettings
from autothrottle.core.errors import Conflict, Invalid, Unavailable
from autothrottle.core.exported_metrics import BUILD_INFO, MetricSample, SampleSource
from autothrottle.core.members import Member, hosts_without_route, published_address
from autothrottle.discovery import DiscoveryServicer
from autothrottle.metrics import MetricsServicer
from autothrottle.planner.calls import PlannerDependencies
from autothrottle.planner.loop import Planner
from autothrottle.planner.servicer import PlannerServicer
from autothrottle.planner.uninstall import take_back_everything
from autothrottle.ports.kafka import Term
from autothrottle.ports.state_store import Election, RequestQuotaStore
from autothrottle.ports.telemetry import DecisionSink
from autothrottle.runtime.access import Access, AccessInterceptor
from autothrottle.runtime.call_limits import RequestQuotas
from autothrottle.runtime.child_processes import ChildProcesses
from autothrottle.runtime.configuration import Configuration, StateStore
from autothrottle.runtime.health import Health, Scope
from autothrottle.runtime.logs import log_samples
from autothrottle.runtime.server import Servicer, ServiceServer
from autothrottle.runtime.shutdown import Shutdown
from autothrottle.runtime.tracing import MetricsExport, Tracing, export_metrics
from autothrottle.runtime.unix_sockets import socket_directory
from autothrottle_client.contexts import read_contexts_file

if TYPE_CHECKING:
    from autothrottle.composition.admin_cluster import AdminCluster
    from autothrottle.gateway.server import GatewayServer
    from autothrottle.placement.forecaster import LimitForecaster
    from autothrottle.runtime.pools_file import FollowedPools

C = TypeVar("C", bound=ServiceClient[Any])

_MEMBERS_TIMEOUT = timedelta(seconds=15)

_CHECK_TIMEOUT = timedelta(seconds=1)

_DISK_TIMEOUT = timedelta(seconds=1.5)
"""How long the end of a process waits for the decision log. The next start rolls the spools that are left."""

_ROUTE_POLL_SECONDS = 0.25


class Composition:
    """Builds services for one configuration. Its stack closes everything it opened, in reverse order."""

    def __init__(
        self, configuration: Configuration, stack: Shutdown, tracing: Tracing | None = None, writes: bool = True
    ) -> None:
        """Build nothing yet.

        Args:
            configuration: the configuration of the services. Services without an address are found in the list of
                members.
            stack: closes everything that this object opens. It ends the process when the planner's loop has failed.
            tracing: sends traces; None: there are none.
            writes: whether to write our state. A command that only looks does not even create the state topic.
        """
        self.configuration, self._stack, self._tracing = configuration, stack, tracing or Tracing()
        self._metrics_export = MetricsExport()
        self.health = Health()
        self._credential_watch = CredentialWatch(self._credentials, stack.requested)
        self._sample_sources: list[SampleSource] = [self.health.samples, log_samples, self._credential_watch.samples]
        self.state = new_state(configuration, stack, writes)
        self._sample_sources.append(self.state.samples)
        self.sources = MetricsSources(configuration, stack, lambda: self.cluster)
        self._tls = ServiceCertificates(configuration.tls) if configuration.tls else None
        self._tokens = Tokens(configuration.api_tokens_file) if configuration.api_tokens_file else None
        roles = configuration.certificate_roles or ({} if self._tls else None)
        self._access = Access(roles, self._tokens, configuration.open_endpoints, ended=stack.requested)
        self._quotas = RequestQuotas()

    @cached_property
    def cluster(self) -> ZooKeeperCluster | AdminCluster:
        """Built when it is first used: planner and gateway have no access to Kafka."""
        return new_cluster(self.configuration, self._stack, self.state)

    def _credentials(self) -> Sequence[CredentialFiles]:
        """The credentials of this process that are read again when their files change."""
        holders = [files for holder in (self._tls, self._tokens) if holder for files in holder.credentials]
        of_cluster = self.cluster.credentials if "cluster" in vars(self) else ()
        of_exports = (*self._tracing.credentials, *self._metrics_export.credentials)
        of_stores = (*self.state.credentials, *of_cluster, *self.sources.credentials)
        by_files = {c.files: c for c in (*holders, *of_stores, *of_exports)}
        return list(by_files.values())

    def read_files_again(self) -> None:
        """Let the threads of all files that are read again when they change read them now."""
        self._credential_watch.read_again()
        pools: FollowedPools | None = vars(self).get("_pools")
        if pools is not None:
            pools.read_again()

    def use(self, **addresses: Sequence[str]) -> None:
        """Let the services built from now on use these addresses, named by their options."""
        self.configuration = replace(self.configuration, **addresses)  # type: ignore[arg-type]

    def discovery(self) -> Servicer:
        cluster = self.cluster
        source = cluster.snapshots(cluster.progress())
        servicer = DiscoveryServicer(
            source, cluster.quota_source(), cluster.log_sizes, cluster.fetch_settings, lambda: source.problem
        )
        registration = self._needing_state_store(servicer)
        self.health.add("kafka", servicer.check, service="autothrottle.v1.DiscoveryService")
        return registration

    def metrics(self) -> Servicer:
        events = self.sources.datadog if self.configuration.api_key else None
        return _registration(MetricsServicer(self.sources.load_source(), events))

    def applier(self) -> Servicer:
        return self._needing_state_store(ApplierServicer(self.cluster.writer(), self.cluster.reassigner()))

    def planner(self) -> tuple[Servicer, Planner]:
        """The planner and its servicer. The caller starts the planner with the address of its server."""
        configuration = self.configuration
        metrics = self._client(clients.MetricsClient)
        applier = self._client(clients.ApplierClient)
        discovery = self._client(clients.DiscoveryClient)
        planner = Planner(
            PlannerDependencies(
                election=self.state.election(),
                snapshots=discovery,
                loads=metrics,
                events=metrics,
                writer=applier,
                reassigner=applier,
                overrides=self.state.overrides,
                pauses=self.state.pauses,
                catch_ups=self.state.catch_ups,
                settings=discovery,
                quotas=discovery,
                temporary_quotas=self.state.temporary_quotas,
                yield_rules=self.state.yield_rules,
                tracer=self._tracing.tracer,
                decisions=self._decisions(),
                broker_pools=self._pools.broker_pools if self._pools else dict,
                access_problems=lambda: (*self._credential_watch.problems, *self.state.problems),
                on_failure=self._stack.fail,
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
                state_topic=self._state_topic,
            ),
        )
        self._follow_request_quotas()
        self._stack.callback(planner.stop)
        self._sample_sources.append(planner.samples)
        registration = self._needing_state_store(PlannerServicer(planner))
        self.health.add("discovery", planner.unreadable, service="autothrottle.v1.PlannerService")
        self.health.add("planner", planner.failing, service="autothrottle.v1.PlannerService")
        self.health.add("loop", planner.stall, Scope.LIVENESS, "autothrottle.v1.PlannerService")
        return registration, planner

    def admin(self) -> Servicer:
        configuration = self.configuration
        overrides, discovery = self.state.overrides, self._client(clients.DiscoveryClient)
        metrics = self._client(clients.MetricsClient)
        limits, schedule, policy = configuration.limits, configuration.schedule, configuration.new_policy()
        servicer = AdminServicer(
            overrides,
            self._client(clients.PlannerServiceClient),
            self.cluster.brokers(),
            discovery,
            self.state.membership,
            self.state.pauses,
            Estimator(discovery, discovery, discovery, metrics, overrides, limits, schedule, policy, wait=self._pause),
            self.state.catch_ups,
            self._follow_request_quotas(),
            PlanCheck(discovery, discovery, self.cluster.source(), self.cluster.storage_metrics(), self._state_topic),
        )
        return self._needing_state_store(servicer)

    @property
    def _state_topic(self) -> str:
        """The topic of our own state; "": the state is in ZooKeeper."""
        return self.configuration.state_topic if self.configuration.state_store is StateStore.KAFKA else ""

    def quotas(self) -> Servicer:
        """The service of Kafka's client quotas, which any admin process serves: it has no state."""
        discovery = self._client(clients.DiscoveryClient)
        state, quotas = self.state, self.cluster.client_quotas()
        temporary, rules = state.temporary_quotas, state.yield_rules
        return _registration(QuotaServicer(quotas, temporary, rules, discovery, state.catch_ups, state.overrides))

    def placement(self) -> Servicer:
        """The placement service, which any admin process serves: it has no state."""
        from autothrottle.placement.processes import FIX, PlacementProcesses

        processes = ChildProcesses("autothrottle.composition.placement_process", "plans", FIX)
        return _registration(PlacementProcesses(self.configuration, processes, self._pools, self._forecaster()))

    def _forecaster(self) -> LimitForecaster | None:
        """Compute forecasts until the stack closes; None without a history."""
        history = self.configuration.history
        if not history:
            return None
        try:
            from autothrottle.adapters.storage_history import read_samples
        except ImportError as error:
            raise _without_arrow("history", history, error) from None
        from autothrottle.placement.forecaster import LimitForecaster

        samples = partial(read_samples, history, self.configuration.cluster_name)
        forecaster = LimitForecaster(samples, self.cluster.source(), self._pools)
        self._sample_sources.append(forecaster.samples)
        self._stack.callback(forecaster.close)
        forecaster.start()
        return forecaster

    @cached_property
    def _pools(self) -> FollowedPools | None:
        """The pools file, read again when it has changed."""
        if not self.configuration.pools:
            return None
        from autothrottle.runtime.pools_file import FollowedPools

        pools = FollowedPools(self.configuration.pools)
        pools.follow(self._stack.requested)
        self._sample_sources.append(pools.samples)
        return pools

    def _pause(self, seconds: float) -> None:
        if self._stack.requested.wait(seconds):
            raise Unavailable("the service is stopping; call another replica, or try again in a few seconds")

    def gateway(self, service: str) -> str:
        """Serve the HTTP API until the stack closes; return the address."""
        admin = self._client(clients.AdminServiceClient)
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
        self, service: str, listen: str, admin: clients.AdminServiceClient | None, option: str = "api-listen"
    ) -> str:
        # Only these processes need a web framework.
        from autothrottle.adapters.exposition.prometheus import PrometheusText
        from autothrottle.gateway.recoveries import Recoveries
        from autothrottle.gateway.server import GatewayServer

        tls, configuration, tokens = self._tls, self.configuration, self._tokens
        if tokens is not None:
            # In readiness only: gRPC health must not keep services from calling one another.
            self.health.add("api tokens", lambda: tokens.problem, service="gateway")
        live = None
        if admin is not None:
            from autothrottle.gateway.clusters import FollowedClusters
            from autothrottle.gateway.live import AdminReading, LiveView

            path = configuration.clusters
            clusters = FollowedClusters(read_contexts_file(Path(path))) if path else None
            reading = AdminReading(admin)
            live = LiveView(reading, clusters, past=reading.past)
        server = GatewayServer(
            admin,
            listen,
            access=self._access,
            hosts=configuration.api_hosts,
            tls=tls.http_context if tls else None,
            health=self.health,
            metrics=PrometheusText(partial(self._samples, service), configuration.cluster_name).render,
            option=option,
            quotas=self._quotas,
            live=live,
            recoveries=None if admin is None else Recoveries(configuration.scores, configuration.cluster_name).read,
        )
        return self._started(server)

    def _started(self, server: ServiceServer | GatewayServer) -> str:
        self._credential_watch.start()
        server.start()
        self._stack.callback(lambda: server.stop(self._stack.grace()))
        return server.address

    def export_metrics(self, service: str) -> None:
        """Export metrics over OTLP until the stack closes, if the OTEL_* variables ask for it."""
        source = partial(self._samples, service)
        self._metrics_export = export_metrics(f"autothrottle-{service}", source, self.configuration.cluster_name)
        self._stack.callback(self._metrics_export.close)

    def _samples(self, service: str) -> Iterator[MetricSample]:
        yield BUILD_INFO.sample(1, service, __version__)
        for source in self._sample_sources:
            yield from source()

    def serve(self, name: str, servicers: Sequence[Servicer], listen: str, option: str = "listen") -> str:
        """Serve until the stack closes; return the address. `option` gives the address, and is named in errors."""
        credentials = self._tls.server_credentials() if self._tls else None
        server = ServiceServer(
            name,
            servicers,
            listen,
            access=AccessInterceptor(self._access, self._quotas),
            interceptors=self._tracing.server_interceptors,
            credentials=credentials,
            checks=self.health,
            option=option,
        )
        return self._started(server)

    def serve_alone(self, name: str, *servicers: Servicer) -> str:
        """Serve the services of a process with one role until the stack closes; return the address.

        Raises:
            Invalid: the other services could not call it, since they have neither a certificate nor a token.
        """
        listen = self.configuration.listen
        if self._tokens and not self._tls and not self._tokens.of_services() and not listen.startswith("unix:"):
            raise Invalid(
                f"{name} listens on {listen} and needs tokens (api-tokens-file), but the services have none to call "
                "one another. Fix: add the line `services TOKEN service` to the file, or give tls-cert, tls-key and "
                "tls-ca"
            )
        return self.serve(name, servicers, listen)

    def join(self, service: str, address: str, roles: Sequence[str] = ()) -> Member:
        """Add this process to the list of members once the state store answers; the stack removes it. Return its entry.

        Does not wait for it: metrics and gateway also work on hosts that cannot reach it.

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
        self.state.membership.join(member)
        self._stack.callback(self.state.membership.leave)
        self.health.start()
        self._stack.callback(self.health.close)
        return member

    def _needing_state_store(self, servicer: object) -> Servicer:
        registration = _registration(servicer)
        self.health.add("state store", self.state.membership.problem, service=registration[2])
        return registration

    def _check_route(self, member: Member) -> None:
        """Check that the listed members can call a planner. Entries of processes that died expire with their session.

        Raises:
            Invalid: members on other hosts cannot reach its address.
        """
        deadline = time.monotonic() + self.state.session_timeout.total_seconds() + 1
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
            return hosts_without_route(member, self.state.membership.members(_MEMBERS_TIMEOUT))
        return ()

    def uninstall(self) -> int:
        """Win the election, restore all configs and remove our tree; return the number of resources.

        Raises:
            Conflict: when another planner keeps the leadership.
        """
        election, source, writer = self.state.election(), self.cluster.snapshots(None), self.cluster.writer()
        term = _win_election(election, self.state.session_timeout * 2)
        try:
            outcomes = take_back_everything(term, source, self.cluster.quota_source(), writer)
        finally:
            election.leave()
        self.state.remove()
        return len(outcomes)

    def _follow_request_quotas(self) -> RequestQuotaStore:
        """Apply the stored request quotas to every server of this process that serves our API; return their store."""
        return self._request_quotas

    @cached_property
    def _request_quotas(self) -> RequestQuotaStore:
        store = self.state.request_quotas
        self._quotas.follow(store)
        self._sample_sources.append(self._quotas.samples)
        return store

    def _decisions(self) -> DecisionSink | None:
        uri, spool = self.configuration.decisions, self.configuration.decisions_spool
        if not uri:
            return None
        try:
            # Imported here because it takes 0.5 s and needs an extra.
            from autothrottle.adapters.decision_log.writer import DecisionLog, LogLimits
        except ImportError as error:
            raise _without_arrow("decisions", uri, error) from None
        configured = self.configuration
        limits = LogLimits(retention=configured.decisions_retention, min_free_bytes=configured.decisions_min_free)
        decisions = DecisionLog(uri, Path(spool) if spool else None, limits)
        self._stack.callback(lambda: decisions.close(min(self._stack.grace(), _DISK_TIMEOUT)))
        self._sample_sources.append(decisions.samples)
        return decisions

    def private_directory(self) -> str:
        """A temporary directory for sockets, with access for this user only; the stack removes it."""
        return self._stack.enter_context(socket_directory())

    def _client(self, kind: type[C]) -> C:
        """A client of a service at the configured addresses; without them it finds the service among the members."""
        resolve = member_lookup(self.state.membership, socket.gethostname())
        where = getattr(self.configuration, f"{kind.service}_addr") or [members_address(kind.service)]
        token = self._tokens.of_services if self._tokens and not self._tls else None
        return self._stack.cancellable(kind(where, self._tracing.client_interceptors, resolve, self._tls, token))


def _registration(servicer: object) -> Servicer:
    """Return how to serve a servicer: its generated base class names the service, and stands beside `add_...`."""
    generated = type(servicer).__bases__[0]
    add = getattr(import_module(generated.__module__), f"add_{generated.__name__}_to_server")
    return add, servicer, f"autothrottle.v1.{generated.__name__.removesuffix('Servicer')}"


def _without_arrow(option: str, value: str, error: ImportError) -> Invalid:
    fix = "install autothrottle with the extra `decisions`"
    return Invalid(f"{option} is {value!r}, but Arrow is not installed ({error}); {fix}")


def _win_election(election: Election, patience: timedelta) -> Term:
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
