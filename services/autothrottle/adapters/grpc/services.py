"""Clients of metrics, applier, planner, admin and discovery."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from autothrottle.core.cluster.configs import ClusterSettings, ConfigResource
from autothrottle.core.cluster.snapshot import (
    ANY_SNAPSHOT,
    BrokerLogSizes,
    LogSizes,
    Snapshot,
    SnapshotRequest,
    TopicPartition,
)
from autothrottle.core.errors import AutothrottleError, Incomplete, NotLeader, Unavailable
from autothrottle.core.operators.cancellation import Cancellation
from autothrottle.core.operators.submission import Targets
from autothrottle.core.quotas.keys import ClientReading, QuotaState
from autothrottle.core.records import Outcome, OutcomeStatus, PlannerState, Submission
from autothrottle.core.retries import CALL
from autothrottle.core.throttles.changes import Change
from autothrottle.core.traffic.loads import Loads
from autothrottle.messages import partitions_to_messages, refusals_from_messages, targets_to_messages
from autothrottle.ports.kafka import Refusals, SnapshotEvent, Term
from autothrottle.ports.telemetry import Event
from autothrottle.v1 import admin_pb2, applier_pb2, discovery_pb2, metrics_pb2, planner_pb2, quotas_pb2
from autothrottle.v1.admin_pb2_grpc import AdminServiceStub
from autothrottle.v1.applier_pb2_grpc import ApplierServiceStub
from autothrottle.v1.discovery_pb2_grpc import DiscoveryServiceStub
from autothrottle.v1.metrics_pb2_grpc import MetricsServiceStub
from autothrottle.v1.placement_pb2_grpc import PlacementServiceStub
from autothrottle.v1.planner_pb2_grpc import PlannerServiceStub
from autothrottle.v1.quotas_pb2_grpc import QuotaServiceStub
from autothrottle.wire.applier import change_parts
from autothrottle.wire.common import SAME_NAMES, partitions_to_topics
from autothrottle.wire.discovery import (
    NO_SNAPSHOT,
    NamedSnapshot,
    clients_from_message,
    log_sizes_from_messages,
    log_sizes_request_to_messages,
    named_snapshot_from_chunks,
    quota_state_from_message,
    settings_from_message,
)
from autothrottle.wire.metrics import loads_from_message
from autothrottle_client.replicas import (
    Connection,
    Interceptor,
    Replica,
    Replicas,
    Resolve,
    Rpc,
    StubClient,
    check_health,
    resolved,
)
from autothrottle_client.tls import Certificates

_Fenced = TypeVar(
    "_Fenced",
    applier_pb2.ApplyRequest,
    applier_pb2.SubmitReassignmentsRequest,
    applier_pb2.CancelReassignmentsRequest,
)
_Response = TypeVar("_Response")

_MAX_REASON = 500
"""Characters of an error that the outcome of each of its changes repeats."""

# Services of one cluster connect directly; proxy environment variables do not apply.
_OPTIONS = (("grpc.enable_http_proxy", 0),)

_Stub = TypeVar("_Stub")


class ServiceClient(StubClient[_Stub]):
    """A client of one service."""

    connection = Connection()
    """How its replicas are called."""

    def __init__(
        self,
        addresses: Sequence[str],
        interceptors: Sequence[Interceptor] = (),
        resolve: Resolve = resolved,
        tls: Certificates | None = None,
        token: Callable[[], str] | None = None,
    ) -> None:
        connection = replace(
            self.connection,
            certificates=tls,
            token=token,
            interceptors=tuple(interceptors),
            resolve=resolve,
            options=_OPTIONS,
        )
        super().__init__(addresses, connection)


class MetricsClient(ServiceClient[MetricsServiceStub]):
    """Client of metrics (a `LoadSource` and an `EventSink`)."""

    service = "metrics"
    stub = MetricsServiceStub
    connection = Connection(rotates=True)

    def fetch_loads(self, timeout: timedelta) -> Loads:
        request = metrics_pb2.GetLoadsRequest()
        return loads_from_message(self._unary(lambda metrics: metrics.GetLoads, request, timeout))

    def post_event(self, event: Event, timeout: timedelta) -> None:
        request = SAME_NAMES.to_message(metrics_pb2.PostEventRequest, event)
        self._unary(lambda metrics: metrics.PostEvent, request, timeout)


class ApplierClient(ServiceClient[ApplierServiceStub]):
    """Client of the applier (a `ConfigWriter` and a `Reassigner`)."""

    service = "applier"
    stub = ApplierServiceStub
    connection = Connection(rotates=True)

    def apply(self, term: Term, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        """Apply the changes in parts below the applier's limit; an error of one part refuses only its changes."""
        deadline = time.monotonic() + timeout.total_seconds()
        outcomes: dict[int, Outcome] = {}
        errors: list[AutothrottleError] = []
        is_answered = False
        for part in change_parts(changes):
            refusal = part.refusal
            if not refusal:
                try:
                    answers = self._apply_part(term, part.messages, deadline)
                    outcomes.update(zip(part.positions, answers, strict=True))
                    is_answered = True
                except NotLeader:
                    raise
                except AutothrottleError as error:
                    errors.append(error)
                    refusal = _effect(error)
            for position in part.positions if refusal else ():
                outcomes[position] = Outcome(changes[position].resource, OutcomeStatus.REFUSED, refusal)
        if errors and not is_answered:
            raise errors[0]
        return tuple(outcomes[position] for position in range(len(changes)))

    def _apply_part(self, term: Term, messages: Sequence[applier_pb2.Change], deadline: float) -> Sequence[Outcome]:
        if (seconds := deadline - time.monotonic()) <= 0:
            raise Unavailable("no time was left to send it")
        request = applier_pb2.ApplyRequest(fence=term.fence, changes=messages)
        response = self._fenced(lambda applier: applier.Apply, request, term, timedelta(seconds=seconds))
        if len(response.outcomes) != len(messages):
            raise Incomplete(
                f"applier sent {len(response.outcomes)} outcomes for {len(messages)} changes; read the values back"
            )
        return tuple(SAME_NAMES.from_message(Outcome, outcome) for outcome in response.outcomes)

    def submit_reassignments(self, term: Term, targets: Targets, timeout: timedelta) -> Refusals:
        request = applier_pb2.SubmitReassignmentsRequest(fence=term.fence, partitions=targets_to_messages(targets))
        response = self._fenced(lambda applier: applier.SubmitReassignments, request, term, timeout)
        return refusals_from_messages(response.refused)

    def cancel_reassignments(
        self, term: Term, partitions: Collection[TopicPartition], timeout: timedelta
    ) -> Cancellation:
        request = applier_pb2.CancelReassignmentsRequest(
            fence=term.fence, partitions=partitions_to_messages(partitions)
        )
        # Once: a repeated cancellation would find no reassignment.
        response = self._fenced(lambda applier: applier.CancelReassignments, request, term, timeout, check_health)
        return SAME_NAMES.from_message(Cancellation, response)

    def _fenced(
        self,
        method: Callable[[ApplierServiceStub], grpc.UnaryUnaryMultiCallable[_Fenced, _Response]],
        request: _Fenced,
        term: Term,
        timeout: timedelta,
        probe: Rpc[object] | None = None,
    ) -> _Response:
        """Call a method with the lease of the term, which every attempt measures again."""

        def rpc(replica: Replica, seconds: float) -> _Response:
            if math.isfinite(term.lease_end):
                margin = time.monotonic() + seconds - term.lease_end
                request.lease_margin.FromTimedelta(timedelta(seconds=max(0.0, margin)))
            return method(self.stub(replica.channel))(request, timeout=seconds)

        return self._replicas.call(rpc, timeout, probe)


def _effect(error: AutothrottleError) -> str:
    """Why the changes of a part are refused after an error of its request."""
    is_unknown = isinstance(error, Unavailable | Incomplete)
    effect = "it is unknown whether it was written" if is_unknown else "it was not written"
    return f"{effect}; the next cycle reads it back and retries: {str(error)[:_MAX_REASON]}"


class PlannerServiceClient(ServiceClient[PlannerServiceStub]):
    """Client of the planners (a `LeadingPlanner`): one leads, and the others know its address."""

    service = "planner"
    stub = PlannerServiceStub
    connection = Connection(has_leader=True)

    def run_cycle(self, reason: str, timeout: timedelta) -> None:
        """Request a cycle from the leader; returns at once. Idempotent.

        Raises:
            NotLeader: the planners that answer do not lead and do not know the leader.
            Unavailable: no planner answers in time, or the leader does not.
        """
        self._unary(lambda planner: planner.RunCycle, planner_pb2.RunCycleRequest(reason=reason), timeout)

    def submit_reassignment(self, wanted: Targets, validate_only: bool, timeout: timedelta) -> Submission:
        """Have the leader set the throttles of a reassignment and then submit it. Idempotent.

        Raises:
            NotLeader: the planners that answer do not lead and do not know the leader.
            Invalid, Missing, Conflict: the reassignment cannot be submitted; nothing was submitted.
            Unavailable: the request timed out, or it is unknown whether it took effect.
        """
        request = planner_pb2.PlannerServiceSubmitReassignmentRequest(
            partitions=targets_to_messages(wanted), validate_only=validate_only
        )
        response = self._unary(lambda planner: planner.SubmitReassignment, request, timeout)
        return SAME_NAMES.from_message(Submission, response)

    def cancel_reassignment(self, rows: Collection[TopicPartition], timeout: timedelta) -> Mapping[TopicPartition, str]:
        """Have the leader cancel reassignments; return the partitions that it did not cancel -> why.

        The request is never repeated, because a repeated one fails with Missing.

        Raises:
            NotLeader: the planners that answer do not lead and do not know the leader.
            Missing: none of the partitions is being reassigned.
            Unavailable: it is unknown whether the request took effect.
        """
        request = planner_pb2.PlannerServiceCancelReassignmentRequest(partitions=partitions_to_messages(rows))
        response = self._unary(lambda planner: planner.CancelReassignment, request, timeout, probe=check_health)
        return refusals_from_messages(response.refused)

    def state(self, timeout: timedelta, with_cycle: bool = True) -> PlannerState:
        """Return the leader's state, or another planner's if the leader is unknown or does not answer.

        Args:
            timeout: for all attempts together.
            with_cycle: whether to include the last cycle, which has hundreds of kB on a large cluster.

        Raises:
            Unavailable: no planner answers in time.
        """
        request = planner_pb2.GetStateRequest(without_cycle=not with_cycle)

        def fetch(replica: Replica, seconds: float) -> PlannerState:
            response = PlannerServiceStub(replica.channel).GetState(request, timeout=seconds)
            return SAME_NAMES.from_message(PlannerState, response)

        return self._replicas.leader_state(fetch, timeout)


class _OperatorStub:
    """The methods of the services that an admin process serves; their names are distinct."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._stubs = (AdminServiceStub(channel), PlacementServiceStub(channel), QuotaServiceStub(channel))

    def __getattr__(self, method: str) -> Any:
        return next(getattr(stub, method) for stub in self._stubs if hasattr(stub, method))


class AdminServiceClient(ServiceClient[_OperatorStub]):
    """Client of admin, placement and quotas.

    It passes messages through unchanged: the gateway works with their descriptors.
    """

    service = "admin"
    stub = _OperatorStub
    connection = Connection(rotates=True)

    def call(
        self, method: str, request: Message, timeout: timedelta, metadata: Sequence[tuple[str, str]] = ()
    ) -> Message:
        probe = None if _is_repeatable(request) else check_health
        response: Message = self._unary(lambda admin: getattr(admin, method), request, timeout, probe, metadata)
        return response

    def check(self, timeout: timedelta) -> None:
        """Return if a replica answers.

        Raises:
            Unavailable: no replica answers in time.
        """
        self._replicas.call(check_health, timeout)


_NOT_REPEATABLE = (
    admin_pb2.RemoveOverrideRequest,
    admin_pb2.StopCatchUpRequest,
    admin_pb2.CancelReassignmentRequest,
    admin_pb2.RemoveRequestQuotaRequest,
    quotas_pb2.RemoveQuotaRequest,
)
"""A repeated request fails with Missing."""


def _is_repeatable(request: Message) -> bool:
    """Whether a repeated request gets the same response as the first."""
    if isinstance(request, admin_pb2.SetOverrideRequest):
        return not request.override.etag
    if isinstance(request, quotas_pb2.SetQuotaRequest):
        return not request.quota.etag
    return not isinstance(request, _NOT_REPEATABLE)


log = logging.getLogger(__name__)

_OPEN_TIMEOUT = timedelta(seconds=5)
"""How long `watch_snapshots` waits for the watch to open; earlier events are not delivered."""


class DiscoveryClient(ServiceClient[DiscoveryServiceStub]):
    """Snapshots from the discovery service.

    It is a `SnapshotSource`, a `LogSizeSource`, a `FetchSettingsSource` and a `QuotaSource`.
    """

    service = "discovery"
    stub = DiscoveryServiceStub

    _watches: tuple[SnapshotWatch, ...] = ()
    _last = NO_SNAPSHOT

    def fetch_snapshot(self, request: SnapshotRequest = ANY_SNAPSHOT, *, timeout: timedelta) -> Snapshot:
        """Return the current state; a replica that still has our last snapshot sends only the difference."""
        # Dropped first: after an error the next call requests the whole snapshot.
        last, self._last = self._last, NO_SNAPSHOT
        partitions = partitions_to_topics(request.partitions)
        message = SAME_NAMES.to_message(
            discovery_pb2.GetSnapshotRequest, request, partitions=partitions, known_name=last.name
        )

        def fetch(replica: Replica, seconds: float) -> NamedSnapshot:
            chunks = DiscoveryServiceStub(replica.channel).GetSnapshot(message, timeout=seconds)
            try:
                return named_snapshot_from_chunks(chunks, last)
            finally:
                chunks.cancel()  # No effect on a finished stream.

        self._last = snapshot = self._replicas.call(fetch, timeout)
        return snapshot.snapshot

    def fetch_log_sizes(self, partitions: Mapping[int, Mapping[str, Collection[int]]], timeout: timedelta) -> LogSizes:
        deadline = time.monotonic() + timeout.total_seconds()
        brokers: dict[int, BrokerLogSizes] = {}
        problems: dict[int, str] = {}
        for request in log_sizes_request_to_messages(partitions):

            def fetch(
                replica: Replica, seconds: float, request: discovery_pb2.GetLogSizesRequest = request
            ) -> LogSizes:
                discovery = DiscoveryServiceStub(replica.channel)
                return log_sizes_from_messages(discovery.GetLogSizes(request, timeout=seconds))

            sizes = self._replicas.call(fetch, timedelta(seconds=max(0.0, deadline - time.monotonic())))
            brokers |= sizes.brokers
            problems |= sizes.problems
        return LogSizes(brokers, problems)

    def fetch_settings(
        self, broker_ids: Collection[int], topics: Collection[str], timeout: timedelta
    ) -> ClusterSettings:
        request = discovery_pb2.GetFetchSettingsRequest(broker_ids=sorted(broker_ids), topics=sorted(topics))
        return settings_from_message(self._unary(lambda discovery: discovery.GetFetchSettings, request, timeout))

    def fetch_quota_state(self, resources: Collection[ConfigResource], timeout: timedelta) -> QuotaState:
        request = discovery_pb2.GetQuotaStateRequest(resources=sorted(resource.path for resource in resources))
        return quota_state_from_message(self._unary(lambda discovery: discovery.GetQuotaState, request, timeout))

    def fetch_clients(self, timeout: timedelta) -> ClientReading:
        request = discovery_pb2.GetClientsRequest()
        return clients_from_message(self._unary(lambda discovery: discovery.GetClients, request, timeout))

    def watch_snapshots(self, notify: Callable[[SnapshotEvent], None]) -> SnapshotWatch:
        """Return when the watch is open, or after 5 s; a thread keeps opening it in the background."""
        watch = SnapshotWatch(self._replicas, notify)
        self._watches = (*(w for w in self._watches if not w.closed), watch)
        return watch

    def close(self) -> None:
        """Close the watches and the connections. Idempotent."""
        super().close()  # first: a watch may wait for a name
        for watch in self._watches:
            watch.close()


class SnapshotWatch:
    """A subscription that a background thread reopens until it is closed.

    Events are lost while it is not open, so it calls `notify` once after it has reopened.
    """

    def __init__(self, replicas: Replicas, notify: Callable[[SnapshotEvent], None]) -> None:
        self._replicas = replicas
        self._notify = notify
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._first_attempt_done = threading.Event()
        self._missed = False
        self._cancel: Callable[[], object] = bool
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="snapshot-watch", daemon=True)
        self._thread.start()
        if not self._first_attempt_done.wait(_OPEN_TIMEOUT.total_seconds()):
            self._missed = True

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            self._cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._replicas.call(self._read_stream, _OPEN_TIMEOUT)
            except AutothrottleError as error:
                log.debug("The watch of snapshots is interrupted: %s", error)
            except Exception:  # a bug must not end the thread: the planner would hear of no event until the interval
                log.exception("The watch of snapshots failed unexpectedly, opening it again")
            self._missed = True
            self._failures += 1
            self._first_attempt_done.set()
            self._closed.wait(CALL.wait(self._failures))

    def _read_stream(self, replica: Replica, _: float) -> None:
        """Deliver the events of one stream until it ends. If it ends with an error, the next replica is tried."""
        try:
            for number, message in enumerate(self._open(replica.channel)):
                if self._closed.is_set():
                    return
                self._deliver(message, first=number == 0)
        except grpc.RpcError:
            if not self._closed.is_set():
                raise

    def _open(self, channel: grpc.Channel) -> Iterator[discovery_pb2.WatchSnapshotsResponse]:
        with self._lock:
            if self._closed.is_set():
                return iter(())
            call = DiscoveryServiceStub(channel).WatchSnapshots(discovery_pb2.WatchSnapshotsRequest())
            self._cancel = call.cancel
            return call

    def _deliver(self, message: discovery_pb2.WatchSnapshotsResponse, *, first: bool) -> None:
        if not first:
            self._notify(SAME_NAMES.from_message(SnapshotEvent, message))
        elif self._missed:
            self._notify(SnapshotEvent(message.version, "discovery reconnected", urgent=True))
        self._missed, self._failures = True, 0
        self._first_attempt_done.set()
