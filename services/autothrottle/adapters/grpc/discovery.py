"""Client of discovery: snapshots, log sizes, settings and cluster events."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta

import grpc

from autothrottle.adapters.grpc.client import ServiceClient
from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.fetch_settings import ClusterSettings
from autothrottle.core.cluster.log_sizes import BrokerLogSizes, LogSizes
from autothrottle.core.cluster.snapshot import Snapshot, TopicPartition
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.quotas.entities import ClientReading, QuotaState
from autothrottle.core.retries import CALL
from autothrottle.ports.kafka import SnapshotEvent
from autothrottle.v1 import discovery_pb2
from autothrottle.v1.discovery_pb2_grpc import DiscoveryServiceStub
from autothrottle.wire.common import (
    partitions_to_topics,
)
from autothrottle.wire.discovery import (
    NO_SNAPSHOT,
    NamedSnapshot,
    log_sizes_from_messages,
    log_sizes_request_to_messages,
    named_snapshot_from_chunks,
    settings_from_message,
)
from autothrottle.wire.quotas import clients_from_message, quota_state_from_message
from autothrottle_client.replicas import Replica, Replicas

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

    def fetch_snapshot(
        self,
        *,
        min_version: int = 0,
        replicas_of: Collection[int] = (),
        partitions: Collection[TopicPartition] = (),
        catching_up: Collection[int] = (),
        timeout: timedelta,
    ) -> Snapshot:
        """Return the current state; a replica that still has our last snapshot sends only the difference."""
        # Dropped first: after an error the next call requests the whole snapshot.
        last, self._last = self._last, NO_SNAPSHOT
        request = discovery_pb2.GetSnapshotRequest(
            min_version=min_version,
            replicas_of=sorted(replicas_of),
            partitions=partitions_to_topics(partitions),
            catching_up=sorted(catching_up),
            known_name=last.name,
        )

        def fetch(replica: Replica, seconds: float) -> NamedSnapshot:
            chunks = DiscoveryServiceStub(replica.channel).GetSnapshot(request, timeout=seconds)
            try:
                return named_snapshot_from_chunks(chunks, last)
            finally:
                chunks.cancel()  # No effect on a finished stream.

        self._last = snapshot = self._call(fetch, timeout)
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

            sizes = self._call(fetch, timedelta(seconds=max(0.0, deadline - time.monotonic())))
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
        self._pauses = CALL.waits()
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
            self._first_attempt_done.set()
            self._closed.wait(next(self._pauses))

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
            self._notify(SnapshotEvent(message.version, message.reason, message.urgent))
        elif self._missed:
            self._notify(SnapshotEvent(message.version, "discovery reconnected", urgent=True))
        self._missed, self._pauses = True, CALL.waits()
        self._first_attempt_done.set()
