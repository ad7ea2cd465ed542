"""Discovery behind its ports: snapshots, log sizes, settings, and the events of a cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import timedelta

import grpc

from autothrottle.adapters.endpoints import Endpoints, Interceptor, Replica, Resolve, resolved
from autothrottle.adapters.rpc.client import Client
from autothrottle.adapters.tls import Tls
from autothrottle.core.errors import Unavailable
from autothrottle.core.fetching import ClusterSettings
from autothrottle.core.progress import LogSizes
from autothrottle.core.topology import Snapshot, TopicPartition
from autothrottle.ports.cluster import SnapshotEvent
from autothrottle.v1 import discovery_pb2
from autothrottle.v1.discovery_pb2_grpc import DiscoveryServiceStub
from autothrottle.wire.log_sizes import log_sizes_from_messages, settings_from_message, wanted_to_message
from autothrottle.wire.reassignments import (
    partitions_to_topics,
)
from autothrottle.wire.snapshots import UNKNOWN, NamedSnapshot, named_snapshot_from_chunks

_STANDS_WITHIN = timedelta(seconds=5)
"""How long the start of a watch is waited for: what happens before it stands is not seen."""

_FIRST_PAUSE, _LAST_PAUSE = 0.1, 2.0
"""Seconds between attempts to open a lost watch again; doubled each time."""


class DiscoveryClient(Client):
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
        catching_up: Collection[int] = (),
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
            catching_up=sorted(catching_up),
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
