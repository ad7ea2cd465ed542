"""The gRPC clients with real gRPC servers in front of the in-memory twins."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import grpc
import pytest

from autothrottle.adapters.grpc import ApplierClient, DiscoveryClient, MetricsClient, PlannerServiceClient
from autothrottle.adapters.memory import MemoryCluster, MemoryMetrics
from autothrottle.core.cluster.configs import LEADER_REPLICAS, ConfigResource, LedgerEntry
from autothrottle.core.cluster.flows import Flow
from autothrottle.core.cluster.snapshot import Snapshot, SnapshotRequest, TopicPartition
from autothrottle.core.errors import AutothrottleError, Incomplete, Invalid, NotLeader, Unavailable
from autothrottle.core.operators.submission import Targets
from autothrottle.core.records import Cycle, Outcome, OutcomeStatus, PlannerState, Submission
from autothrottle.core.throttles.changes import Change
from autothrottle.discovery import DiscoveryServicer
from autothrottle.messages import refusals_to_messages
from autothrottle.ports.kafka import ConfigWriter, SnapshotEvent, SnapshotSource, Term
from autothrottle.ports.telemetry import Event, EventSink, LoadSource
from autothrottle.v1 import (
    applier_pb2,
    applier_pb2_grpc,
    discovery_pb2,
    discovery_pb2_grpc,
    metrics_pb2,
    metrics_pb2_grpc,
    planner_pb2,
    planner_pb2_grpc,
    types_pb2,
)
from autothrottle.wire.applier import change_from_message
from autothrottle.wire.common import (
    SAME_NAMES,
    partitions_from_messages,
    partitions_from_topics,
    targets_from_messages,
    to_status,
)
from autothrottle.wire.discovery import snapshot_to_chunks
from autothrottle.wire.metrics import loads_to_message
from autothrottle_lab.servers.processes import free_address
from tests import builders
from tests.builders import AT_ONCE, Stopwatch
from tests.contract.config_writer_contract import OURS, ConfigWriterContract, rate
from tests.contract.snapshot_source_contract import Events, SnapshotSourceContract
from tests.examples import examples

TIMEOUT = timedelta(seconds=60)
BROKERS = (1001, 1002, 1003, 1004)
UNUSED_ADDRESS = "127.0.0.1:1"
"""An address without a listener, which refuses connections at once."""


@contextmanager
def errors_as_statuses(context: grpc.ServicerContext) -> Iterator[None]:
    """Convert core errors to gRPC statuses, as the interceptor of the services does."""
    try:
        yield
    except AutothrottleError as error:
        code, message, metadata = to_status(error)
        context.set_trailing_metadata(metadata)
        context.abort(code, message)


def remaining_time(context: grpc.ServicerContext) -> timedelta:
    seconds = context.time_remaining()
    assert seconds is not None and seconds < 3600, "a call without a deadline"
    return timedelta(seconds=seconds)


class Discovery(discovery_pb2_grpc.DiscoveryServiceServicer):
    def __init__(self, source: SnapshotSource, partitions_per_chunk: int = 1) -> None:
        self.source, self.partitions_per_chunk = source, partitions_per_chunk
        self.watches = 0
        self.calls = 0

    def GetSnapshot(self, request: discovery_pb2.GetSnapshotRequest, context: Any) -> Iterator[Any]:
        self.calls += 1
        with errors_as_statuses(context):
            snapshot = self.source.fetch_snapshot(
                SnapshotRequest(request.min_version, request.replicas_of, partitions_from_topics(request.partitions)),
                timeout=remaining_time(context),
            )
        yield from snapshot_to_chunks(snapshot, self.partitions_per_chunk)

    def GetLogSizes(self, request: object, context: Any) -> Iterator[Any]:
        raise AssertionError("unexpected call")

    def GetFetchSettings(self, request: object, context: Any) -> Any:
        raise AssertionError("unexpected call")

    def GetQuotaState(self, request: object, context: Any) -> Any:
        raise AssertionError("unexpected call")

    def GetClients(self, request: object, context: Any) -> Any:
        raise AssertionError("unexpected call")

    def WatchSnapshots(self, request: object, context: Any) -> Iterator[Any]:
        events: queue.Queue[SnapshotEvent | None] = queue.Queue()
        watch = self.source.watch_snapshots(events.put)
        context.add_callback(lambda: events.put(None))
        self.watches += 1
        yield discovery_pb2.WatchSnapshotsResponse(version=1)
        while event := events.get():
            yield discovery_pb2.WatchSnapshotsResponse(version=event.version, reason=event.reason)
        watch.close()


class Metrics(metrics_pb2_grpc.MetricsServiceServicer):
    def __init__(self, metrics: MemoryMetrics) -> None:
        self.metrics = metrics

    def GetLoads(self, request: object, context: Any) -> metrics_pb2.GetLoadsResponse:
        with errors_as_statuses(context):
            return loads_to_message(self.metrics.fetch_loads(remaining_time(context)))
        raise AssertionError

    def PostEvent(self, request: metrics_pb2.PostEventRequest, context: Any) -> metrics_pb2.PostEventResponse:
        with errors_as_statuses(context):
            self.metrics.post_event(SAME_NAMES.from_message(Event, request), remaining_time(context))
        return metrics_pb2.PostEventResponse()


class Applier(applier_pb2_grpc.ApplierServiceServicer):
    def __init__(self, writer: ConfigWriter) -> None:
        self.writer = writer

    def Apply(self, request: applier_pb2.ApplyRequest, context: Any) -> applier_pb2.ApplyResponse:
        with errors_as_statuses(context):
            changes = [change_from_message(change) for change in request.changes]
            outcomes = self.writer.apply(Term(request.fence), changes, remaining_time(context))
            return applier_pb2.ApplyResponse(outcomes=SAME_NAMES.to_messages(types_pb2.Outcome, outcomes))
        raise AssertionError

    def SubmitReassignments(
        self, request: applier_pb2.SubmitReassignmentsRequest, context: Any
    ) -> applier_pb2.SubmitReassignmentsResponse:
        with errors_as_statuses(context):
            assert isinstance(self.writer, MemoryCluster)
            targets = targets_from_messages(request.partitions)
            refused = self.writer.submit_reassignments(Term(request.fence), targets, remaining_time(context))
            return applier_pb2.SubmitReassignmentsResponse(refused=refusals_to_messages(refused))
        raise AssertionError

    def CancelReassignments(
        self, request: applier_pb2.CancelReassignmentsRequest, context: Any
    ) -> applier_pb2.CancelReassignmentsResponse:
        with errors_as_statuses(context):
            assert isinstance(self.writer, MemoryCluster)
            rows = partitions_from_messages(request.partitions)
            cancellation = self.writer.cancel_reassignments(Term(request.fence), rows, remaining_time(context))
            return SAME_NAMES.to_message(applier_pb2.CancelReassignmentsResponse, cancellation)
        raise AssertionError


class Planner(planner_pb2_grpc.PlannerServiceServicer):
    def __init__(self, state: PlannerState) -> None:
        self.planner = state
        self.requests: list[str] = []
        self.submitted: list[tuple[Targets, bool]] = []
        self.cancelled: list[Sequence[TopicPartition]] = []
        self.cycles: queue.Queue[Cycle | None] = queue.Queue()

    def RunCycle(self, request: planner_pb2.RunCycleRequest, context: Any) -> planner_pb2.RunCycleResponse:
        with errors_as_statuses(context):
            remaining_time(context)
            self._require_leader()
        self.requests.append(request.reason)
        return planner_pb2.RunCycleResponse()

    def SubmitReassignment(
        self, request: planner_pb2.PlannerServiceSubmitReassignmentRequest, context: Any
    ) -> planner_pb2.PlannerServiceSubmitReassignmentResponse:
        with errors_as_statuses(context):
            self._require_leader()
        self.submitted.append((targets_from_messages(request.partitions), request.validate_only))
        return SAME_NAMES.to_message(
            planner_pb2.PlannerServiceSubmitReassignmentResponse, Submission(1, 2, 3, {("t1", 4): "no"})
        )

    def CancelReassignment(
        self, request: planner_pb2.PlannerServiceCancelReassignmentRequest, context: Any
    ) -> planner_pb2.PlannerServiceCancelReassignmentResponse:
        with errors_as_statuses(context):
            self._require_leader()
        self.cancelled.append(partitions_from_messages(request.partitions))
        return planner_pb2.PlannerServiceCancelReassignmentResponse(refused=refusals_to_messages({("t1", 4): "no"}))

    def _require_leader(self) -> None:
        if not self.planner.leading:
            raise NotLeader("this planner does not lead", self.planner.leader_address)

    def GetState(self, request: object, context: Any) -> planner_pb2.GetStateResponse:
        remaining_time(context)
        return SAME_NAMES.to_message(planner_pb2.GetStateResponse, self.planner)

    def WatchCycles(self, request: object, context: Any) -> Iterator[Any]:
        context.add_callback(lambda: self.cycles.put(None))
        while cycle := self.cycles.get():
            yield planner_pb2.WatchCyclesResponse(cycle=SAME_NAMES.to_message(types_pb2.Cycle, cycle))


ADD: dict[type, Callable[..., None]] = {
    discovery_pb2_grpc.DiscoveryServiceServicer: discovery_pb2_grpc.add_DiscoveryServiceServicer_to_server,
    Metrics: metrics_pb2_grpc.add_MetricsServiceServicer_to_server,
    Applier: applier_pb2_grpc.add_ApplierServiceServicer_to_server,
    Planner: planner_pb2_grpc.add_PlannerServiceServicer_to_server,
}


class Server:
    """One replica of a service."""

    def __init__(self, servicer: Any, address: str) -> None:
        self._pool = ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        next(ADD[kind] for kind in type(servicer).__mro__ if kind in ADD)(servicer, self._server)
        port = self._server.add_insecure_port(address)
        self.address = address if address.startswith("unix:") else f"127.0.0.1:{port}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait(20)
        self._pool.shutdown()


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as started:

        def start(servicer: Any, address: str = "") -> Server:
            server = Server(servicer, address or free_address())
            started.callback(server.stop)
            return server

        yield start


@contextmanager
def closing(client: Any) -> Iterator[Any]:
    try:
        yield client
    finally:
        client.close()


def discovery(*addresses: str) -> AbstractContextManager[DiscoveryClient]:
    return closing(DiscoveryClient(addresses))


def metrics_of(*addresses: str) -> AbstractContextManager[MetricsClient]:
    return closing(MetricsClient(addresses))


def appliers(*addresses: str) -> AbstractContextManager[ApplierClient]:
    return closing(ApplierClient(addresses))


def planner_at(*addresses: str) -> AbstractContextManager[PlannerServiceClient]:
    return closing(PlannerServiceClient(addresses))


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster(brokers=BROKERS)


def start_reassignment(cluster: MemoryCluster, partitions: int = 3) -> None:
    cluster.add_topic("t1", {p: [1001, 1002] for p in range(partitions)})
    cluster.submit_reassignment("t1", {p: [1003, 1002] for p in range(partitions)})


class RemoteSubject:
    """Subject of the contracts: clients, their services, and the cluster behind them."""

    def __init__(self, source: SnapshotSource, writer: ConfigWriter, cluster: MemoryCluster) -> None:
        self.source, self.writer, self.cluster = source, writer, cluster
        self.begin_term = cluster.begin_term
        self.set_config_as_user = cluster.set_config_as_user

    def current(self, resource: ConfigResource) -> dict[str, str]:
        return self.cluster.configs.get(resource, {})

    def ledger(self, resource: ConfigResource) -> LedgerEntry | None:
        return self.cluster.ledger.get(resource)

    def notifications(self) -> Sequence[str]:
        return self.cluster.notifications


@pytest.fixture
def remote(serve: Serve, cluster: MemoryCluster) -> Iterator[RemoteSubject]:
    source = DiscoveryClient([serve(Discovery(cluster)).address])
    writer = ApplierClient([serve(Applier(cluster)).address])
    with closing(source), closing(writer):
        yield RemoteSubject(source, writer, cluster)


class TestRemoteSnapshotSource(SnapshotSourceContract):
    @pytest.fixture
    def subject(self, remote: RemoteSubject) -> RemoteSubject:
        return remote


class TestRemoteConfigWriter(ConfigWriterContract):
    @pytest.fixture
    def subject(self, remote: RemoteSubject) -> RemoteSubject:
        return remote


# Large requests.


class ApplierInTrouble(Applier):
    """Fails for each request that contains a resource of `errors`."""

    def __init__(self, writer: ConfigWriter, errors: Mapping[str, AutothrottleError]) -> None:
        super().__init__(writer)
        self.errors, self.sizes = errors, list[int]()

    def Apply(self, request: applier_pb2.ApplyRequest, context: Any) -> applier_pb2.ApplyResponse:
        self.sizes.append(request.ByteSize())
        with errors_as_statuses(context):
            for change in request.changes:
                if change.resource in self.errors:
                    raise self.errors[change.resource]
        return super().Apply(request, context)


def large_changes(count: int = 12) -> list[Change]:
    """Rates, and lists that need three requests, the largest first."""
    texts = (",".join(f"{partition}:1001" for partition in range(120_000 - 1_000 * n)) for n in range(count))
    written = [builders.change(f"topics/t{n:02}", (LEADER_REPLICAS, None, text)) for n, text in enumerate(texts)]
    return [rate("5", ledger=OURS), *written]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unavailable("ZooKeeper is away"), "it is unknown whether it was written"),
        (Invalid("odd"), "it was not written"),
    ],
)
def test_error_of_one_part_does_not_lose_the_outcomes_of_the_others(
    serve: Serve, cluster: MemoryCluster, error: AutothrottleError, reason: str
) -> None:
    """The changes of 1,000,000 partitions were one request of 71 MB, which failed as a whole in every cycle."""
    servicer, changes = ApplierInTrouble(cluster, {"topics/t05": error}), large_changes()
    with appliers(serve(servicer).address) as applier:
        outcomes = applier.apply(Term(cluster.begin_term()), changes, timedelta(seconds=5))
    refused = {o.resource.path: o.reason for o in outcomes if o.status is OutcomeStatus.REFUSED}
    assert [outcome.resource for outcome in outcomes] == [change.resource for change in changes]
    assert "topics/t05" in refused and all(text.startswith(reason) for text in refused.values())
    written = [o.resource for o in outcomes if o.status is OutcomeStatus.APPLIED]
    assert written and all(cluster.configs[resource] for resource in written)
    assert len(written) + len(refused) == len(changes)
    assert len(servicer.sizes) >= 3 and max(servicer.sizes) < 4 * 1024 * 1024


def test_end_of_the_term_ends_the_parts(serve: Serve, cluster: MemoryCluster) -> None:
    servicer = ApplierInTrouble(cluster, {"topics/t00": NotLeader("term 1 is over")})
    with appliers(serve(servicer).address) as applier, pytest.raises(NotLeader):
        applier.apply(Term(cluster.begin_term()), large_changes(), TIMEOUT)
    assert len(servicer.sizes) == 1


def test_error_of_all_parts_is_raised(serve: Serve, cluster: MemoryCluster) -> None:
    changes = large_changes()
    errors = {change.resource.path: Unavailable("ZooKeeper is away") for change in changes}
    address = serve(ApplierInTrouble(cluster, errors)).address
    with appliers(address) as applier, pytest.raises(Unavailable, match="ZooKeeper is away"):
        applier.apply(Term(cluster.begin_term()), changes, timedelta(seconds=3))


def test_log_sizes_of_a_large_cluster_are_requested_in_parts(serve: Serve) -> None:
    """The logs of 1,000,000 partitions on 3,000 brokers need more than the limit of one request."""
    wanted = {broker_id: {f"{'t' * 240}{n:03}": range(9) for n in range(60)} for broker_id in range(1001, 1301)}
    requests: list[discovery_pb2.GetLogSizesRequest] = []

    class LogSizes(Discovery):
        def GetLogSizes(self, request: Any, context: Any) -> Iterator[Any]:
            requests.append(request)
            yield from (
                discovery_pb2.GetLogSizesResponse(broker_id=one.broker_id, problem="slow") for one in request.brokers
            )

    with closing(DiscoveryClient([serve(LogSizes(MemoryCluster())).address])) as client:
        sizes = client.fetch_log_sizes(wanted, TIMEOUT)
    assert sizes.problems == dict.fromkeys(wanted, "slow")
    assert len(requests) > 1 and max(request.ByteSize() for request in requests) < 4 * 1024 * 1024


# Choice of a replica.


def test_progress_includes_the_lag_of_a_catching_up_broker_after_the_first_request(
    serve: Serve, cluster: MemoryCluster
) -> None:
    cluster.tell_progress()
    cluster.add_topic("t1", {0: (1001, 1002)})
    cluster.leave_isr("t1", 0, 1002)
    cluster.grow(1001, "t1", 0, 100)
    cluster.grow(1002, "t1", 0, 30)
    with discovery(serve(DiscoveryServicer(cluster, cluster)).address) as client:
        unrequested = client.fetch_snapshot(SnapshotRequest(partitions=[("t1", 0)]), timeout=TIMEOUT).progress
        assert unrequested is not None and unrequested.flows == {}
        client.fetch_snapshot(SnapshotRequest(partitions=[("t1", 0)], catching_up=[1002]), timeout=TIMEOUT)
        progress = client.fetch_snapshot(timeout=TIMEOUT).progress
        assert progress is not None and progress.flows[Flow(1001, 1002)].bytes_left == 70


def test_the_last_replica_that_answered_is_called_first(serve: Serve, cluster: MemoryCluster) -> None:
    first, second = Discovery(cluster), Discovery(cluster)
    servers = [serve(first), serve(second)]
    with discovery(servers[0].address, servers[1].address) as client:
        client.fetch_snapshot(timeout=TIMEOUT)
        servers[0].stop()
        client.fetch_snapshot(timeout=TIMEOUT)
        restarted = Discovery(cluster)
        serve(restarted, servers[0].address)
        client.fetch_snapshot(timeout=TIMEOUT)
    assert (first.calls, second.calls, restarted.calls) == (1, 2, 0)


@pytest.mark.timeout(120)
def test_a_call_during_server_shutdown_continues_at_another_replica(serve: Serve, cluster: MemoryCluster) -> None:
    """gRPC's own retry lost one of some dozens of calls forever. A leading planner would have hung."""
    staying = serve(Discovery(cluster))
    for _ in range(examples(50, 200)):
        stopping = Server(Discovery(cluster), free_address())
        with discovery(stopping.address, staying.address) as client:
            client.fetch_snapshot(timeout=TIMEOUT)
            stopping.stop()
            client.fetch_snapshot(timeout=TIMEOUT)


def test_without_reachable_replicas_the_error_names_all_addresses_at_once() -> None:
    stopwatch = Stopwatch()
    with discovery(UNUSED_ADDRESS, "127.0.0.1:2") as client, pytest.raises(Unavailable) as error:
        client.fetch_snapshot(timeout=TIMEOUT)
    assert str(error.value).startswith("discovery is unavailable: ")
    assert UNUSED_ADDRESS in str(error.value) and "127.0.0.1:2" in str(error.value)
    assert stopwatch.seconds < AT_ONCE


def test_an_unavailable_replica_that_names_the_fix_gets_no_second_one(serve: Serve) -> None:
    """During an outage of Kafka, callers read "check that it runs and listens", twice, of a process that answered."""

    class WithoutBrokers(MemoryCluster):
        def fetch_snapshot(self, *_: object, **__: object) -> Snapshot:
            raise Unavailable("no broker answers. Fix: start one")

    address = serve(Discovery(WithoutBrokers())).address
    with discovery(address) as client, pytest.raises(Unavailable) as error:
        client.fetch_snapshot(timeout=timedelta(seconds=0.5))
    assert str(error.value) == f"discovery is unavailable: {address}: no broker answers. Fix: start one"


def test_an_error_other_than_unavailable_is_not_retried(serve: Serve, cluster: MemoryCluster) -> None:
    broken = MemoryCluster()
    broken.incomplete = "the topics cannot be listed"
    other = Discovery(cluster)
    client = discovery(serve(Discovery(broken)).address, serve(other).address)
    with client as asked, pytest.raises(Incomplete, match="the topics cannot be listed"):
        asked.fetch_snapshot(timeout=TIMEOUT)
    assert other.calls == 0


def test_a_frozen_replica_costs_one_deadline_and_is_not_called_first_again(
    serve: Serve, cluster: MemoryCluster
) -> None:
    thaw = threading.Event()

    class Frozen(MemoryCluster):
        def fetch_snapshot(self, *_: Any, **__: Any) -> Any:
            thaw.wait(60)
            raise Unavailable("too late")

    with discovery(serve(Discovery(Frozen())).address, serve(Discovery(cluster)).address) as client:
        started = time.monotonic()
        with pytest.raises(Unavailable, match=r"did not answer within 0\.5 s"):
            client.fetch_snapshot(timeout=timedelta(seconds=0.5))
        assert time.monotonic() - started < 40
        assert client.fetch_snapshot(timeout=TIMEOUT).brokers == set(BROKERS)
        thaw.set()


def test_a_service_without_an_address_is_refused() -> None:
    with pytest.raises(Invalid, match="discovery has no address"):
        DiscoveryClient([])


def test_closing_the_client_makes_running_calls_unavailable(serve: Serve) -> None:
    called, thaw = threading.Event(), threading.Event()

    class Slow(MemoryCluster):
        def fetch_snapshot(self, *_: Any, **__: Any) -> Any:
            called.set()
            thaw.wait(60)
            raise Unavailable("too late")

    client = DiscoveryClient([serve(Discovery(Slow())).address])
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(client.fetch_snapshot, timeout=TIMEOUT)
        assert called.wait(20)
        client.close()
        assert isinstance(fetched.exception(20), Unavailable)
        thaw.set()


def test_an_interceptor_sees_every_call(serve: Serve, cluster: MemoryCluster) -> None:
    methods: list[str] = []

    class Names(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            methods.append(details.method)
            return continuation(details, request)

        def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
            methods.append(details.method)
            return continuation(details, request)

    address = serve(Discovery(cluster)).address
    with closing(DiscoveryClient([address], [Names()])) as client:
        client.fetch_snapshot(timeout=TIMEOUT)
        client.watch_snapshots(lambda _: None).close()
    prefix = "/autothrottle.v1.DiscoveryService"
    assert methods == [f"{prefix}/GetSnapshot", f"{prefix}/WatchSnapshots"]


# Snapshots.


@pytest.mark.parametrize("partitions", [pytest.param(100_000, marks=pytest.mark.repeat), 10_000])
def test_many_reassigned_partitions_arrive_in_chunks(serve: Serve, cluster: MemoryCluster, partitions: int) -> None:
    start_reassignment(cluster, partitions)
    with discovery(serve(Discovery(cluster, partitions // 5)).address) as client:
        snapshot = client.fetch_snapshot(timeout=TIMEOUT)
    assert snapshot == cluster.fetch_snapshot(timeout=TIMEOUT)


def test_an_interrupted_stream_gives_no_snapshot(serve: Serve, cluster: MemoryCluster) -> None:
    start_reassignment(cluster)

    class BreaksOff(Discovery):
        def GetSnapshot(self, request: Any, context: Any) -> Iterator[Any]:
            yield next(super().GetSnapshot(request, context))
            context.abort(grpc.StatusCode.UNAVAILABLE, "the process ends")

    client = discovery(serve(BreaksOff(cluster)).address)
    with client as asked, pytest.raises(Unavailable, match="the process ends"):
        asked.fetch_snapshot(timeout=TIMEOUT)


def test_an_open_watch_reports_nothing_until_a_change(serve: Serve, cluster: MemoryCluster) -> None:
    events = Events()
    with discovery(serve(Discovery(cluster)).address) as client:
        client.watch_snapshots(events.notify)
        assert events.seen == []
        start_reassignment(cluster)
        assert events.await_count(1)[0].reason == "a reassignment of [t1] started"


def test_a_watch_reconnects_after_a_restart_and_reports_the_gap(serve: Serve, cluster: MemoryCluster) -> None:
    events = Events()
    server = serve(Discovery(cluster))
    with discovery(server.address) as client:
        client.watch_snapshots(events.notify)
        server.stop()
        start_reassignment(cluster)  # No watch is open at this time.
        serve(Discovery(cluster), server.address)
        assert events.await_count(1) == [SnapshotEvent(1, "discovery reconnected", urgent=True)]
        cluster.finish("t1")
        assert events.await_count(2)[1].reason == "the reassignment of [t1] ended"


def test_a_watch_fails_over_to_another_replica(serve: Serve, cluster: MemoryCluster) -> None:
    events = Events()
    first, second = Discovery(cluster), Discovery(cluster)
    servers = [serve(first), serve(second)]
    with discovery(*(server.address for server in servers)) as client:
        client.watch_snapshots(events.notify)
        servers[0].stop()
        assert events.await_count(1)[0].reason == "discovery reconnected"
    assert (first.watches, second.watches) == (1, 1)


def test_a_watch_continues_after_a_bug_in_its_callback(serve: Serve, cluster: MemoryCluster) -> None:
    """The thread of the watch ended. The planner then learned of a reassignment only at the next interval."""
    events, bugs = Events(), iter([KeyError("a bug")])

    def notify(event: SnapshotEvent) -> None:
        for bug in bugs:
            raise bug
        events.notify(event)

    with discovery(serve(Discovery(cluster)).address) as client:
        client.watch_snapshots(notify)
        start_reassignment(cluster)
        assert events.await_count(1)[0].reason == "discovery reconnected"
        cluster.finish("t1")
        assert events.await_count(2)[1].reason == "the reassignment of [t1] ended"


def test_a_watch_opens_at_the_first_reachable_replica(serve: Serve, cluster: MemoryCluster) -> None:
    """No event was missed at replicas that were skipped before the watch opened."""
    events, reachable = Events(), Discovery(cluster)
    with discovery(UNUSED_ADDRESS, "127.0.0.1:2", serve(reachable).address) as client:
        client.watch_snapshots(events.notify)
        start_reassignment(cluster)
        assert events.await_count(1)[0].reason == "a reassignment of [t1] started"
    assert reachable.watches == 1


def test_a_watch_can_be_started_before_its_service(serve: Serve, cluster: MemoryCluster) -> None:
    events = Events()
    server = serve(Discovery(cluster))
    server.stop()
    with discovery(server.address) as client:
        started = time.monotonic()
        client.watch_snapshots(events.notify)
        assert time.monotonic() - started < 40
        serve(Discovery(cluster), server.address)
        assert events.await_count(1)[0].reason == "discovery reconnected"


@pytest.mark.parametrize("there", [True, False])
def test_a_watch_ends_promptly_and_leaves_no_thread(serve: Serve, cluster: MemoryCluster, there: bool) -> None:
    address = serve(Discovery(cluster)).address if there else UNUSED_ADDRESS
    with discovery(address) as client:
        watch = client.watch_snapshots(lambda _: None)
        started = time.monotonic()
        watch.close()
        assert time.monotonic() - started < 40
        assert not [t for t in threading.enumerate() if t.name == "snapshot-watch"]


def test_a_watch_may_be_closed_by_its_own_callback(serve: Serve, cluster: MemoryCluster) -> None:
    watches: list[Any] = []
    closed = threading.Event()

    def close(_: SnapshotEvent) -> None:
        watches[0].close()
        closed.set()

    with discovery(serve(Discovery(cluster)).address) as client:
        watches.append(client.watch_snapshots(close))
        start_reassignment(cluster)
        assert closed.wait(20)


# Metrics and the applier.


def test_calls_of_a_stateless_service_are_distributed_round_robin(serve: Serve) -> None:
    first, second = MemoryMetrics(), MemoryMetrics()
    with metrics_of(serve(Metrics(first)).address, serve(Metrics(second)).address) as client:
        for number in range(4):
            client.post_event(Event(f"event {number}", "text"), TIMEOUT)
    assert [len(first.events), len(second.events)] == [2, 2]


def test_loads_and_events_are_transferred(serve: Serve) -> None:
    metrics = MemoryMetrics(builders.load(1001, outbound=5))
    metrics.lose(1002, "no host has the tag broker_id:1002")
    with metrics_of(serve(Metrics(metrics)).address) as client:
        source: LoadSource = client
        sink: EventSink = client
        assert source.fetch_loads(TIMEOUT) == metrics.loads
        sink.post_event(Event("Broker 1001", "was throttled", ("a:b",)), TIMEOUT)
    assert metrics.events == [Event("Broker 1001", "was throttled", ("a:b",))]


def test_errors_of_the_metrics_source_are_unavailable(serve: Serve) -> None:
    metrics = MemoryMetrics()
    metrics.unavailable(True)
    with metrics_of(serve(Metrics(metrics)).address) as client:
        with pytest.raises(Unavailable, match="the metrics source does not answer"):
            client.fetch_loads(TIMEOUT)
        with pytest.raises(Unavailable):
            client.post_event(Event("a", "b"), TIMEOUT)


def test_not_leader_error_carries_the_address_of_the_leader(serve: Serve, cluster: MemoryCluster) -> None:
    earlier = cluster.begin_term("host1:1")
    cluster.begin_term("host2:1")
    with closing(ApplierClient([serve(Applier(cluster)).address])) as client, pytest.raises(NotLeader) as error:
        client.apply(Term(earlier), [rate("5")], TIMEOUT)
    assert error.value.leader_address == "host2:1"


def test_a_missing_outcome_is_an_incomplete_response(serve: Serve, cluster: MemoryCluster) -> None:
    class Forgetful(MemoryCluster):
        def apply(self, term: Term, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
            return super().apply(term, changes, timeout)[1:]

    forgetful = Forgetful(brokers=BROKERS)
    client = appliers(serve(Applier(forgetful)).address)
    with client as asked, pytest.raises(Incomplete, match="0 outcomes for 1 changes"):
        asked.apply(Term(forgetful.begin_term()), [rate("5")], TIMEOUT)


def test_reassignments_are_submitted_and_cancelled_and_refusals_are_returned(
    serve: Serve, cluster: MemoryCluster
) -> None:
    cluster.add_topic("t1", {0: [1001, 1002], 1: [1001, 1002]})
    start_reassignment(cluster, partitions=2)
    for broker_id in (1001, 1002):
        cluster.leave_isr("t1", 1, broker_id)
    cluster.add_topic("t2", {0: [1001]})
    with appliers(serve(Applier(cluster)).address) as client:
        fence = cluster.begin_term()
        refused = client.submit_reassignments(Term(fence), {("t1", 7): (1001,)}, TIMEOUT)
        cancellation = client.cancel_reassignments(Term(fence), [("t1", 0), ("t1", 1), ("t2", 0)], TIMEOUT)
    assert refused == {("t1", 7): "t1-7 does not exist; name a partition that does"}
    assert cancellation.refused == {("t2", 0): "t2-0 is not being reassigned; there is nothing to cancel"}
    assert cancellation.unsafe.keys() == {("t1", 1)}
    assert cluster.submissions == [{}, {("t1", 0): None}]
    assert cluster.topics["t1"][0].adding_replicas == ()


class LostResponse(MemoryCluster):
    """A cluster whose first response to a reassignment request is lost."""

    def __init__(self) -> None:
        super().__init__(brokers=BROKERS)
        self.asked = 0

    def _alter_reassignments(self, *arguments: Any, **named: Any) -> Mapping[TopicPartition, str]:
        self.asked += 1
        found = super()._alter_reassignments(*arguments, **named)
        if self.asked == 1:
            raise Unavailable("the connection broke after the request")
        return found


def test_a_cancellation_without_response_is_not_retried_at_the_next_applier(serve: Serve) -> None:
    """The first response was lost. The second applier then answered that there was nothing to cancel."""
    cluster = LostResponse()
    start_reassignment(cluster)
    asked = appliers(serve(Applier(cluster)).address, serve(Applier(cluster)).address)
    with asked as client, pytest.raises(Unavailable, match="The request may have taken effect"):
        client.cancel_reassignments(Term(cluster.begin_term()), [("t1", 0)], TIMEOUT)
    assert (cluster.asked, cluster.submissions) == (1, [{("t1", 0): None}])


def test_a_submission_without_response_is_retried_at_the_next_applier(serve: Serve) -> None:
    cluster = LostResponse()
    cluster.add_topic("t1", {0: [1001, 1002]})
    with appliers(serve(Applier(cluster)).address, serve(Applier(cluster)).address) as client:
        assert client.submit_reassignments(Term(cluster.begin_term()), {("t1", 0): (1001, 1003)}, TIMEOUT) == {}
    assert (cluster.asked, cluster.topics["t1"][0].adding_replicas) == (2, (1003,))


def test_submission_after_the_term_raises_not_leader(serve: Serve, cluster: MemoryCluster) -> None:
    earlier = cluster.begin_term()
    cluster.begin_term("host2:1")
    with appliers(serve(Applier(cluster)).address) as client, pytest.raises(NotLeader):
        client.submit_reassignments(Term(earlier), {("t1", 0): (1003,)}, TIMEOUT)
    assert cluster.submissions == []


# The planners.


def test_a_cancellation_is_sent_to_one_planner(serve: Serve) -> None:
    """The first response was lost. A second request was answered with: not being reassigned."""

    class LostResponse(Planner):
        def CancelReassignment(self, request: planner_pb2.PlannerServiceCancelReassignmentRequest, context: Any) -> Any:
            super().CancelReassignment(request, context)
            context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke after the request")

    planner = LostResponse(PlannerState(True, 3, "host1:1", None, {}))
    asked = planner_at(serve(planner).address, serve(planner).address)
    with asked as client, pytest.raises(Unavailable, match="The request may have taken effect"):
        client.cancel_reassignment([("t1", 0)], TIMEOUT)
    assert planner.cancelled == [(("t1", 0),)]


@pytest.fixture
def leader(serve: Serve) -> tuple[Planner, str]:
    planner = Planner(PlannerState())
    address = serve(planner).address
    planner.planner = PlannerState(True, 3, address, builders.cycle_record(3, 7), {1001: 2})
    return planner, address


def test_a_cycle_is_requested_at_the_leader(serve: Serve, leader: tuple[Planner, str]) -> None:
    planner, address = leader
    follower = serve(Planner(PlannerState(leader_address=address)))
    with planner_at(UNUSED_ADDRESS, follower.address) as client:
        client.run_cycle("an override was set", TIMEOUT)
    assert planner.requests == ["an override was set"]


def test_a_reassignment_is_submitted_and_cancelled_at_the_leader(serve: Serve, leader: tuple[Planner, str]) -> None:
    planner, address = leader
    follower = serve(Planner(PlannerState(leader_address=address)))
    wanted = {("t1", 4): (1003, 1002), ("t2", 0): (1001,)}
    with planner_at(UNUSED_ADDRESS, follower.address) as client:
        assert client.submit_reassignment(wanted, False, TIMEOUT) == Submission(1, 2, 3, {("t1", 4): "no"})
        client.submit_reassignment(wanted, True, TIMEOUT)
        assert client.cancel_reassignment(wanted.keys(), TIMEOUT) == {("t1", 4): "no"}
    assert planner.submitted == [(wanted, False), (wanted, True)]
    assert planner.cancelled == [(("t1", 4), ("t2", 0))]


def test_without_a_leader_no_cycle_runs(serve: Serve) -> None:
    with planner_at(serve(Planner(PlannerState())).address) as client, pytest.raises(NotLeader):
        client.run_cycle("x", TIMEOUT)


def test_the_next_call_does_not_start_with_a_planner_that_knew_no_leader(
    serve: Serve, leader: tuple[Planner, str]
) -> None:
    class Unaware(Planner):
        asked = 0

        def _require_leader(self) -> None:
            self.asked += 1
            super()._require_leader()

    planner, address = leader
    unaware = Unaware(PlannerState())
    with planner_at(serve(unaware).address, address) as client:
        for reason in ("first", "second"):
            client.run_cycle(reason, TIMEOUT)
    assert (planner.requests, unaware.asked) == (["first", "second"], 1)


def test_an_unreachable_leader_is_unavailable(serve: Serve) -> None:
    follower = Planner(PlannerState(False, 3, UNUSED_ADDRESS))
    with planner_at(serve(follower).address) as client:
        with pytest.raises(Unavailable, match=f"planner is unavailable: .*the leading planner at {UNUSED_ADDRESS}: "):
            client.run_cycle("x", TIMEOUT)
        assert client.state(TIMEOUT) == follower.planner


def test_state_comes_from_the_leader(serve: Serve, leader: tuple[Planner, str]) -> None:
    planner, address = leader
    follower = serve(Planner(PlannerState(term=3, leader_address=address)))
    with planner_at(follower.address) as client:
        assert client.state(TIMEOUT) == planner.planner
