"""The other services behind the ports: gRPC clients that find a living replica by themselves.

Every client takes the addresses of all replicas, `host:port` or `unix:path`. A replica that cannot be reached
is passed over within the call's deadline; nothing waits for one to come up (`endpoints`). Discovery is asked at the
same replica for as long as that answers, since it has read the cluster already, and a planner since it leads; the calls
of the other services go round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from autothrottle.adapters.endpoints import Endpoints, Interceptor, Replica, Resolve, resolved
from autothrottle.adapters.tls import Tls
from autothrottle.core.changes import Change, Outcome
from autothrottle.core.cycle import CycleRecord, PlannerState
from autothrottle.core.errors import AutothrottleError, Incomplete, NotLeader, Unavailable
from autothrottle.core.fetching import ClusterSettings
from autothrottle.core.loads import Loads
from autothrottle.core.progress import LogSizes
from autothrottle.core.reassignment import Submitted, Targets
from autothrottle.core.topology import Snapshot, TopicPartition
from autothrottle.ports.cluster import SnapshotEvent
from autothrottle.ports.metrics import Event
from autothrottle.v1 import applier_pb2, discovery_pb2, metrics_pb2, planner_pb2
from autothrottle.v1.admin_pb2_grpc import AdminServiceStub
from autothrottle.v1.applier_pb2_grpc import ApplierServiceStub
from autothrottle.v1.discovery_pb2_grpc import DiscoveryServiceStub
from autothrottle.v1.metrics_pb2_grpc import MetricsServiceStub
from autothrottle.v1.planner_pb2_grpc import PlannerServiceStub
from autothrottle.wire.changes import change_to_message, outcome_from_message
from autothrottle.wire.cycles import cycle_from_message, state_from_message
from autothrottle.wire.errors import from_rpc_error
from autothrottle.wire.loads import event_to_message, loads_from_message
from autothrottle.wire.log_sizes import log_sizes_from_messages, settings_from_message, wanted_to_message
from autothrottle.wire.reassignments import (
    partitions_to_messages,
    partitions_to_topics,
    refusals_from_messages,
    submitted_from_message,
    targets_to_messages,
)
from autothrottle.wire.snapshots import UNKNOWN, NamedSnapshot, named_snapshot_from_chunks

_STANDS_WITHIN = timedelta(seconds=5)
"""How long the start of a watch is waited for: what happens before it stands is not seen."""

_FIRST_PAUSE, _LAST_PAUSE = 0.1, 2.0
"""Seconds between attempts to open a lost watch again; doubled each time."""

_T = TypeVar("_T")


class _Client:
    """A client of one service; `service` is its name in errors."""

    service = ""
    rotates = False
    """Whether calls go round the replicas; else they stay with the one that answered last."""

    def __init__(
        self,
        addresses: Sequence[str],
        interceptors: Sequence[Interceptor] = (),
        resolve: Resolve = resolved,
        tls: Tls | None = None,
    ) -> None:
        self._interceptors, self._tls = tuple(interceptors), tls
        self._endpoints = Endpoints(
            self.service, addresses, interceptors, rotates=self.rotates, resolve=resolve, tls=tls
        )

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._endpoints.close()


class DiscoveryClient(_Client):
    """Snapshots from the discovery service (a `SnapshotSource`, a `LogSizeSource` and a `FetchSettingsSource`)."""

    service = "discovery"

    def __init__(
        self,
        addresses: Sequence[str],
        interceptors: Sequence[Interceptor] = (),
        resolve: Resolve = resolved,
        tls: Tls | None = None,
    ) -> None:
        super().__init__(addresses, interceptors, resolve, tls)
        self._watches: list[SnapshotWatch] = []
        self._known = UNKNOWN

    def fetch_snapshot(
        self,
        *,
        min_version: int = 0,
        replicas_of: Collection[int] = (),
        partitions: Collection[TopicPartition] = (),
        timeout: timedelta,
        may_presume: bool = False,
    ) -> Snapshot:
        """Return the cluster as it is now; a replica that knows the last one that we had sends what differs."""
        # Let go of first: after an error the whole snapshot is asked for.
        known, self._known = self._known, UNKNOWN
        request = discovery_pb2.GetSnapshotRequest(
            min_version=min_version,
            replicas_of=sorted(replicas_of),
            partitions=partitions_to_topics(partitions),
            known_name=known.name,
            takes_early=True,
            may_presume=may_presume,
        )

        def fetch(channel: grpc.Channel, seconds: float) -> NamedSnapshot:
            chunks = DiscoveryServiceStub(channel).GetSnapshot(request, timeout=seconds)
            try:
                return named_snapshot_from_chunks(chunks, known)
            finally:
                chunks.cancel()  # Without effect on a stream that is over.

        self._known = found = self._endpoints.call(fetch, timeout)
        return found.snapshot

    def fetch_log_sizes(self, wanted: Mapping[int, Mapping[str, Collection[int]]], timeout: timedelta) -> LogSizes:
        request = wanted_to_message(wanted)

        def fetch(channel: grpc.Channel, seconds: float) -> LogSizes:
            return log_sizes_from_messages(DiscoveryServiceStub(channel).GetLogSizes(request, timeout=seconds))

        return self._endpoints.call(fetch, timeout)

    def fetch_settings(
        self, broker_ids: Collection[int], topics: Collection[str], timeout: timedelta
    ) -> ClusterSettings:
        request = discovery_pb2.GetFetchSettingsRequest(broker_ids=sorted(broker_ids), topics=sorted(topics))
        response = self._endpoints.call(
            lambda channel, seconds: DiscoveryServiceStub(channel).GetFetchSettings(request, timeout=seconds), timeout
        )
        return settings_from_message(response)

    def watch_snapshots(self, notify: Callable[[SnapshotEvent], None]) -> SnapshotWatch:
        """Return when the watch stands or could not be opened, and goes on in the background."""
        watch = SnapshotWatch(self._endpoints, notify)
        self._watches = [w for w in self._watches if not w.closed] + [watch]
        return watch

    def close(self) -> None:
        """Close the watches and the connections. Idempotent."""
        for watch in self._watches:
            watch.close()
        super().close()


class SnapshotWatch:
    """One subscription that is opened again, by a thread of its own, for as long as it is not closed.

    Whatever happened while it did not stand was missed, so that `notify` is called once when it stands again.
    """

    def __init__(self, endpoints: Endpoints, notify: Callable[[SnapshotEvent], None]) -> None:
        self._endpoints = endpoints
        self._notify = notify
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._settled = threading.Event()
        self._missed = False
        self._cancel: Callable[[], object] = bool
        self._thread = threading.Thread(target=self._run, name="snapshot-watch", daemon=True)
        self._thread.start()
        if not self._settled.wait(_STANDS_WITHIN.total_seconds()):
            self._missed = True

    @property
    def closed(self) -> bool:
        """Whether it was ended."""
        return self._closed.is_set()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            self._cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closed.is_set():
            if self._follow_any():
                pause = _FIRST_PAUSE
            self._missed = True
            self._settled.set()
            self._closed.wait(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    def _follow_any(self) -> bool:
        """Follow the first replica where a stream stands, until it ends; whether there was one."""
        deadline = time.monotonic() + _STANDS_WITHIN.total_seconds()
        try:
            with closing(self._endpoints.candidates(deadline)) as candidates:
                return any(map(self._follow, candidates))
        except Unavailable:
            return False

    def _follow(self, replica: Replica) -> bool:
        """Deliver the events of one stream until it ends; whether it ever stood."""
        stood = False
        try:
            for message in self._open(replica.channel):
                if self._closed.is_set():
                    return True
                if not stood:
                    self._endpoints.note_answer(replica)
                self._deliver(message, first=not stood)
                stood = True
        except grpc.RpcError:
            pass
        if not self._closed.is_set():
            self._endpoints.note_failure(replica)
        return stood

    def _open(self, channel: grpc.Channel) -> Iterator[discovery_pb2.WatchSnapshotsResponse]:
        with self._lock:
            if self._closed.is_set():
                return iter(())
            call = DiscoveryServiceStub(channel).WatchSnapshots(discovery_pb2.WatchSnapshotsRequest())
            self._cancel = call.cancel
            return call

    def _deliver(self, message: discovery_pb2.WatchSnapshotsResponse, *, first: bool) -> None:
        if not first:
            self._notify(SnapshotEvent(message.version, message.reason, message.urgent))
        elif self._missed:
            self._notify(SnapshotEvent(message.version, "discovery reconnected", urgent=True))
        self._settled.set()


class MetricsClient(_Client):
    """Loads and events through the metrics service (a `LoadSource` and an `EventSink`)."""

    service = "metrics"
    rotates = True

    def fetch_loads(self, timeout: timedelta) -> Loads:
        request = metrics_pb2.GetLoadsRequest()
        response = self._endpoints.call(
            lambda channel, seconds: MetricsServiceStub(channel).GetLoads(request, timeout=seconds), timeout
        )
        return loads_from_message(response)

    def post_event(self, event: Event, timeout: timedelta) -> None:
        request = event_to_message(event)
        self._endpoints.call(
            lambda channel, seconds: MetricsServiceStub(channel).PostEvent(request, timeout=seconds), timeout
        )


class ApplierClient(_Client):
    """Changes carried out by the applier service (a `ConfigWriter` and a `Reassigner`)."""

    service = "applier"
    rotates = True

    def apply(self, fence: int, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        request = applier_pb2.ApplyRequest(fence=fence, changes=map(change_to_message, changes))
        response = self._endpoints.call(
            lambda channel, seconds: ApplierServiceStub(channel).Apply(request, timeout=seconds), timeout
        )
        if len(response.outcomes) != len(changes):
            raise Incomplete(
                f"applier sent {len(response.outcomes)} outcomes for {len(changes)} changes; read back what stands"
            )
        return tuple(map(outcome_from_message, response.outcomes))

    def alter_reassignments(
        self, fence: int, targets: Mapping[TopicPartition, tuple[int, ...] | None], timeout: timedelta
    ) -> Mapping[TopicPartition, str]:
        request = applier_pb2.AlterReassignmentsRequest(
            fence=fence,
            start=targets_to_messages({row: to for row, to in targets.items() if to is not None}),
            cancel=partitions_to_messages(row for row, to in targets.items() if to is None),
        )
        response = self._endpoints.call(
            lambda channel, seconds: ApplierServiceStub(channel).AlterReassignments(request, timeout=seconds), timeout
        )
        return refusals_from_messages(response.refused)


class AdminClient(_Client):
    """The admin service, its messages as they are: for the gateway, which is made of their descriptors."""

    service = "admin"
    rotates = True

    def call(
        self, method: str, request: Message, timeout: timedelta, metadata: Sequence[tuple[str, str]] = ()
    ) -> Message:
        def run(channel: grpc.Channel, seconds: float) -> Message:
            ask = getattr(AdminServiceStub(channel), method)
            response: Message = ask(request, timeout=seconds, metadata=tuple(metadata))
            return response

        return self._endpoints.call(run, timeout)


class PlannerClient(_Client):
    """The planners, of which one leads; the others say where it is."""

    service = "planner"

    def run_cycle(self, reason: str, timeout: timedelta) -> None:
        """Ask the leader for a cycle; returns at once. Idempotent.

        Raises:
            NotLeader: when none of those that answer leads or knows who does.
            Unavailable: when no planner, or the leader, does not answer in time.
        """
        request = planner_pb2.RunCycleRequest(reason=reason)
        self._led(lambda channel, seconds: PlannerServiceStub(channel).RunCycle(request, timeout=seconds), timeout)

    def start_reassignment(self, wanted: Targets, validate_only: bool, timeout: timedelta) -> Submitted:
        """Let the leader set the throttles of a reassignment and then submit it; idempotent.

        Raises:
            NotLeader: when none of those that answer leads or knows who does.
            Invalid, Missing, Conflict: when it cannot be submitted; nothing was.
            Unavailable: when it was not done in time, or it is unknown whether it was.
        """
        request = planner_pb2.StartReassignmentRequest(
            partitions=targets_to_messages(wanted), validate_only=validate_only
        )
        return submitted_from_message(
            self._led(
                lambda channel, seconds: PlannerServiceStub(channel).StartReassignment(request, timeout=seconds),
                timeout,
            )
        )

    def stop_reassignment(self, rows: Collection[TopicPartition], timeout: timedelta) -> Mapping[TopicPartition, str]:
        """Let the leader cancel the reassignment of partitions; return those that Kafka did not cancel, and why.

        Raises:
            NotLeader: when none of those that answer leads or knows who does.
            Missing: when none of them is being reassigned.
            Unavailable: when it is unknown whether it was done.
        """
        request = planner_pb2.StopReassignmentRequest(partitions=partitions_to_messages(rows))
        response = self._led(
            lambda channel, seconds: PlannerServiceStub(channel).StopReassignment(request, timeout=seconds), timeout
        )
        return refusals_from_messages(response.refused)

    def _led(self, rpc: Callable[[grpc.Channel, float], _T], timeout: timedelta) -> _T:
        """Return what the leader answers, also when only another planner knows where it is."""
        deadline = time.monotonic() + timeout.total_seconds()
        try:
            return self._endpoints.call(rpc, timeout)
        except NotLeader as refusal:
            if not refusal.leader_address:
                raise
            left = timedelta(seconds=deadline - time.monotonic())
            return self._at(refusal.leader_address, rpc, left)

    def state(self, timeout: timedelta, with_cycle: bool = True) -> PlannerState:
        """Return the leader's state, or another planner's while the leader is unknown or does not answer.

        Args:
            timeout: for all of it.
            with_cycle: whether the last cycle is wanted; of a large cluster it has hundreds of kB.

        Raises:
            Unavailable: when no planner answers in time.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        ask = _state(with_cycle)
        found = self._endpoints.call(ask, timeout)
        if found.leading or not found.leader_address:
            return found
        try:
            return self._at(found.leader_address, ask, timedelta(seconds=deadline - time.monotonic()))
        except AutothrottleError:
            return found

    def watch_cycles(self, timeout: timedelta) -> CycleStream:
        """Return the leader's cycles as they end, beginning with the last one.

        Args:
            timeout: for finding the leader.

        Raises:
            Unavailable: when no planner answers in time, or none leads.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        state = self.state(timeout, with_cycle=False)
        if not (state.leading and state.leader_address):
            raise Unavailable("no planner leads at the moment; try again in some seconds")
        leader = Endpoints(self.service, (state.leader_address,), self._interceptors, tls=self._tls)
        try:
            # A stream has one attempt: by now it is known which IP address of the leader's name answers.
            leader.call(_state(with_cycle=False), timedelta(seconds=deadline - time.monotonic()))
            return CycleStream(leader)
        except AutothrottleError:
            leader.close()
            raise

    def _at(self, address: str, rpc: Callable[[grpc.Channel, float], _T], timeout: timedelta) -> _T:
        # A channel for one call: leaders change, and their addresses need not be among those given.
        endpoints = Endpoints(f"the leading {self.service}", (address,), self._interceptors, tls=self._tls)
        try:
            return endpoints.call(rpc, timeout)
        finally:
            endpoints.close()


def _state(with_cycle: bool) -> Callable[[grpc.Channel, float], PlannerState]:
    request = planner_pb2.GetStateRequest(without_cycle=not with_cycle)

    def ask(channel: grpc.Channel, seconds: float) -> PlannerState:
        return state_from_message(PlannerServiceStub(channel).GetState(request, timeout=seconds))

    return ask


class CycleStream:
    """The cycles of one planner; ends when it is closed, raises when the planner goes away."""

    def __init__(self, endpoints: Endpoints) -> None:
        """Take over the endpoints and close them at the end."""
        self._endpoints = endpoints
        self._candidates = endpoints.candidates(time.monotonic())
        self._replica = next(self._candidates)
        self._call = PlannerServiceStub(self._replica.channel).WatchCycles(planner_pb2.WatchCyclesRequest())
        self._closed = False

    def __iter__(self) -> Iterator[CycleRecord]:
        return self

    def __next__(self) -> CycleRecord:
        """Wait for the next cycle.

        Raises:
            Unavailable: when the planner went away; watch again to find the leader.
        """
        try:
            return cycle_from_message(next(self._call).cycle)
        except grpc.RpcError as error:
            if self._closed:
                raise StopIteration from None
            raise from_rpc_error(error, peer=self._replica.name) from error

    def close(self) -> None:
        """End the stream; also from another thread, and while one waits. Idempotent."""
        self._closed = True
        self._call.cancel()
        self._endpoints.close()
