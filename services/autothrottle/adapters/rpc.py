"""The other services behind the ports: gRPC clients that find a living replica by themselves.

Every client takes the addresses of all replicas, `host:port` or `unix:path`. A replica that cannot be reached
is passed over within the call's deadline; nothing waits for one to come up. The type to know is `Endpoints`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from autothrottle.core.changes import Change, Outcome
from autothrottle.core.cycle import CycleRecord, PlannerState
from autothrottle.core.errors import AutothrottleError, Incomplete, Invalid, NotLeader, Unavailable
from autothrottle.core.loads import Loads
from autothrottle.core.topology import Snapshot
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
from autothrottle.wire.snapshots import snapshot_from_chunks

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The largest message either way; chunks keep far below it."""

KEEPALIVE_MS = 10_000
"""How often an open stream asks whether the other side is still there; a server that allows pings only more
rarely (gRPC's default: 5 minutes) ends the connection, so ours allow them."""

CHANNEL_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The first also bounds one attempt to connect: an address that swallows packets costs 1 s, not 20 s.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Services of one cluster talk directly, whatever the environment says of proxies.
    ("grpc.enable_http_proxy", 0),
)

Interceptor = grpc.UnaryUnaryClientInterceptor | grpc.UnaryStreamClientInterceptor
"""What wraps every call of a client, for example to carry a trace along."""

_STANDS_WITHIN = timedelta(seconds=1)
"""How long the start of a watch is waited for: what happens before it stands is not seen."""

_FIRST_PAUSE, _LAST_PAUSE = 0.1, 2.0
"""Seconds between attempts to open a lost watch again; doubled each time."""

_T = TypeVar("_T")


class Endpoints:
    """The replicas of one service, a channel each; calls begin with the one that answered last."""

    def __init__(self, service: str, addresses: Sequence[str], interceptors: Sequence[Interceptor] = ()) -> None:
        """Open the channels; nothing connects before the first call.

        Args:
            service: what errors call the other side.
            addresses: `host:port` or `unix:path`, at least one.
            interceptors: what wraps every call, the outermost first.

        Raises:
            Invalid: when there is no address.
        """
        if not addresses:
            raise Invalid(f"{service} has no address; give at least one `host:port` or `unix:path`")
        self.service = service
        self.addresses = tuple(addresses)
        self._plain = [grpc.insecure_channel(a, options=list(CHANNEL_OPTIONS)) for a in self.addresses]
        self._channels = [grpc.intercept_channel(c, *interceptors) for c in self._plain]
        self._first = 0
        self._closed = False

    def call(self, rpc: Callable[[grpc.Channel, float], _T], timeout: timedelta) -> _T:
        """Return what `rpc` returns for the first replica that is there.

        Args:
            rpc: makes the call on a channel within so many seconds.
            timeout: for all attempts together, > 0.

        Raises:
            Unavailable: when no replica answers in time; the message has every address.
            AutothrottleError: what a replica answered.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        failures: list[str] = []
        for index in self._order():
            left = deadline - time.monotonic()
            if failures and left <= 0:
                failures.append(f"{self.addresses[index]}: not tried, the time was over")
                continue
            try:
                result = rpc(self._channels[index], left)
            except (grpc.RpcError, ValueError) as error:
                failures.append(str(self._unavailable(index, error, timeout)))
            else:
                self._first = index
                return result
        raise Unavailable(f"{self.service} is unavailable: {'; '.join(failures)}")

    def _unavailable(self, index: int, error: grpc.RpcError | ValueError, timeout: timedelta) -> Unavailable:
        """The reason to try another replica; any other answer is raised."""
        if isinstance(error, ValueError):
            # grpc's way to say that `close` came first; with open channels it is somebody's wrong argument.
            if not self._closed:
                raise error
            return Unavailable(f"{self.addresses[index]}: the client is closed")
        failure = from_rpc_error(error, peer=self.addresses[index], deadline=timeout)
        if not isinstance(failure, Unavailable):
            raise failure from error
        # Also when the deadline is over: the next call must not begin with a frozen replica.
        self.pass_over(index)
        return failure

    def _order(self) -> list[int]:
        if self._closed:
            raise Unavailable(f"the client of {self.service} is closed; make a new one")
        count, first = len(self.addresses), self._first
        return [(first + offset) % count for offset in range(count)]

    def current(self) -> tuple[int, grpc.Channel]:
        """Return the (index, channel) that the next call begins with.

        Raises:
            Unavailable: when the endpoints are closed.
        """
        index = self._order()[0]
        return index, self._channels[index]

    def pass_over(self, index: int) -> None:
        """Let the next call begin with another replica, if it would have begun with this one."""
        if self._first == index:
            self._first = (index + 1) % len(self.addresses)

    def close(self) -> None:
        """Close all channels; what is under way on them ends as unavailable. Idempotent."""
        self._closed = True
        for channel in self._plain:
            channel.close()


class _Client:
    """A client of one service; `service` is its name in errors."""

    service = ""

    def __init__(self, addresses: Sequence[str], interceptors: Sequence[Interceptor] = ()) -> None:
        self._interceptors = tuple(interceptors)
        self._endpoints = Endpoints(self.service, addresses, interceptors)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._endpoints.close()


class DiscoveryClient(_Client):
    """Snapshots from the discovery service (a `SnapshotSource`)."""

    service = "discovery"

    def __init__(self, addresses: Sequence[str], interceptors: Sequence[Interceptor] = ()) -> None:
        super().__init__(addresses, interceptors)
        self._watches: list[SnapshotWatch] = []

    def fetch_snapshot(
        self, *, min_version: int = 0, replicas_of: Collection[int] = (), timeout: timedelta
    ) -> Snapshot:
        request = discovery_pb2.GetSnapshotRequest(min_version=min_version, replicas_of=sorted(replicas_of))

        def fetch(channel: grpc.Channel, seconds: float) -> Snapshot:
            chunks = DiscoveryServiceStub(channel).GetSnapshot(request, timeout=seconds)
            try:
                return snapshot_from_chunks(chunks)
            finally:
                chunks.cancel()  # Without effect on a stream that is over.

        return self._endpoints.call(fetch, timeout)

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
            if self._follow():
                pause = _FIRST_PAUSE
            self._missed = True
            self._settled.set()
            self._closed.wait(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    def _follow(self) -> bool:
        """Deliver the events of one stream until it ends; whether it ever stood."""
        stood = False
        try:
            index, channel = self._endpoints.current()
        except Unavailable:
            return False
        try:
            for message in self._open(channel):
                if self._closed.is_set():
                    return True
                self._deliver(message, first=not stood)
                stood = True
        except grpc.RpcError:
            pass
        self._endpoints.pass_over(index)
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
    """Changes carried out by the applier service (a `ConfigWriter`)."""

    service = "applier"

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


class AdminClient(_Client):
    """The admin service, its messages as they are: for the gateway, which is made of their descriptors."""

    service = "admin"

    def call(self, method: str, request: Message, timeout: timedelta) -> Message:
        def run(channel: grpc.Channel, seconds: float) -> Message:
            response: Message = getattr(AdminServiceStub(channel), method)(request, timeout=seconds)
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

        def run(channel: grpc.Channel, seconds: float) -> None:
            PlannerServiceStub(channel).RunCycle(request, timeout=seconds)

        deadline = time.monotonic() + timeout.total_seconds()
        try:
            self._endpoints.call(run, timeout)
        except NotLeader as refusal:
            if not refusal.leader_address:
                raise
            left = timedelta(seconds=deadline - time.monotonic())
            self._at(refusal.leader_address, run, left)

    def state(self, timeout: timedelta) -> PlannerState:
        """Return the leader's state, or another planner's while the leader is unknown or does not answer.

        Raises:
            Unavailable: when no planner answers in time.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        found = self._endpoints.call(_state, timeout)
        if found.leading or not found.leader_address:
            return found
        try:
            return self._at(found.leader_address, _state, timedelta(seconds=deadline - time.monotonic()))
        except AutothrottleError:
            return found

    def watch_cycles(self, timeout: timedelta) -> CycleStream:
        """Return the leader's cycles as they end, beginning with the last one.

        Args:
            timeout: for finding the leader.

        Raises:
            Unavailable: when no planner answers in time, or none leads.
        """
        state = self.state(timeout)
        if not (state.leading and state.leader_address):
            raise Unavailable("no planner leads at the moment; try again in some seconds")
        return CycleStream(Endpoints(self.service, (state.leader_address,), self._interceptors))

    def _at(self, address: str, rpc: Callable[[grpc.Channel, float], _T], timeout: timedelta) -> _T:
        # A channel for one call: leaders change, and their addresses need not be among those given.
        endpoints = Endpoints(f"the leading {self.service}", (address,), self._interceptors)
        try:
            return endpoints.call(rpc, timeout)
        finally:
            endpoints.close()


def _state(channel: grpc.Channel, seconds: float) -> PlannerState:
    return state_from_message(PlannerServiceStub(channel).GetState(planner_pb2.GetStateRequest(), timeout=seconds))


class CycleStream:
    """The cycles of one planner; ends when it is closed, raises when the planner goes away."""

    def __init__(self, endpoints: Endpoints) -> None:
        """Take over the endpoints and close them at the end."""
        self._endpoints = endpoints
        _, channel = endpoints.current()
        self._call = PlannerServiceStub(channel).WatchCycles(planner_pb2.WatchCyclesRequest())
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
            raise from_rpc_error(error, peer=self._endpoints.addresses[0]) from error

    def close(self) -> None:
        """End the stream; also from another thread, and while one waits. Idempotent."""
        self._closed = True
        self._call.cancel()
        self._endpoints.close()
