"""Discovery service: reports reassignments and current throttles. Its only state is a cache of one cluster."""

from __future__ import annotations

import queue
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TypeVar

import grpc

from autothrottle.core.cluster.snapshot import ANY_SNAPSHOT, Snapshot, SnapshotRequest
from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable
from autothrottle.ports.kafka import (
    FetchSettingsSource,
    LogSizeSource,
    QuotaSource,
    SnapshotEvent,
    SnapshotSource,
)
from autothrottle.runtime.server import time_left
from autothrottle.v1 import discovery_pb2, discovery_pb2_grpc
from autothrottle.wire.common import SAME_NAMES, partitions_from_topics
from autothrottle.wire.discovery import (
    NO_SNAPSHOT,
    NamedSnapshot,
    clients_to_message,
    log_sizes_request_from_message,
    log_sizes_to_messages,
    quota_state_to_message,
    resources_from_paths,
    settings_to_message,
    snapshot_to_chunks,
    validate_brokers,
    validate_topics,
)

T = TypeVar("T")

_CHECK_TIMEOUT = timedelta(seconds=2)

_MAX_SENT = 4
"""Sent snapshots to keep as bases for differences. Their memory is mostly shared."""


class DiscoveryServicer(discovery_pb2_grpc.DiscoveryServiceServicer):
    def __init__(
        self,
        source: SnapshotSource,
        quotas: QuotaSource,
        sizes: LogSizeSource | None = None,
        settings: FetchSettingsSource | None = None,
        problem: Callable[[], str] = str,
    ) -> None:
        """Serve from these sources.

        Args:
            source: snapshots and their events.
            quotas: client quotas and their ledger.
            sizes: log sizes; None: unknown, calls fail with Invalid.
            settings: broker and topic settings; None: unknown, calls fail with Invalid.
            problem: why the source cannot read the cluster now; "": it can, as far as it knows.
        """
        self._source = source
        self._sizes, self._settings, self._quotas = sizes, settings, quotas
        self._problem = problem
        self._failed = False
        self._sent: dict[str, NamedSnapshot] = {}
        """The last snapshots that callers got, by name; every single operation on it is atomic."""

    def check(self) -> None:
        """Check that the cluster can be read; a snapshot is read only if the last one failed.

        Raises:
            AutothrottleError: it cannot.
        """
        if problem := self._problem():
            raise Unavailable(problem)
        if self._failed:
            self._fetch(ANY_SNAPSHOT, _CHECK_TIMEOUT)

    def _fetch(self, request: SnapshotRequest, timeout: timedelta) -> Snapshot:
        """Return a snapshot, and remember whether that failed."""
        try:
            snapshot = self._source.fetch_snapshot(request, timeout=timeout)
        except AutothrottleError:
            self._failed = True
            raise
        self._failed = False
        return snapshot

    def GetSnapshot(
        self, request: discovery_pb2.GetSnapshotRequest, context: grpc.ServicerContext
    ) -> Iterator[discovery_pb2.GetSnapshotResponse]:
        snapshot_request = SAME_NAMES.from_message(
            SnapshotRequest,
            request,
            replicas_of=validate_brokers(request.replicas_of),
            partitions=partitions_from_topics(request.partitions),
            catching_up=validate_brokers(request.catching_up),
        )
        # Not kept longer: the caller replaces it with a newer one.
        base = self._sent.pop(request.known_name, NO_SNAPSHOT)
        snapshot = self._fetch(snapshot_request, time_left(context, share=1.0))
        named = NamedSnapshot(uuid.uuid4().hex, snapshot)
        self._sent[named.name] = named
        for name in list(self._sent)[:-_MAX_SENT]:
            self._sent.pop(name, None)
        yield from snapshot_to_chunks(snapshot, name=named.name, base=base)

    def GetLogSizes(
        self, request: discovery_pb2.GetLogSizesRequest, context: grpc.ServicerContext
    ) -> Iterator[discovery_pb2.GetLogSizesResponse]:
        partitions, sizes = log_sizes_request_from_message(request), _configured(self._sizes, "log sizes")
        yield from log_sizes_to_messages(sizes.fetch_log_sizes(partitions, time_left(context)))

    def GetFetchSettings(
        self, request: discovery_pb2.GetFetchSettingsRequest, context: grpc.ServicerContext
    ) -> discovery_pb2.GetFetchSettingsResponse:
        broker_ids, topics = validate_brokers(request.broker_ids), validate_topics(request.topics)
        settings = _configured(self._settings, "broker settings")
        return settings_to_message(settings.fetch_settings(broker_ids, topics, time_left(context)))

    def GetQuotaState(
        self, request: discovery_pb2.GetQuotaStateRequest, context: grpc.ServicerContext
    ) -> discovery_pb2.GetQuotaStateResponse:
        resources = resources_from_paths(request.resources)
        return quota_state_to_message(self._quotas.fetch_quota_state(resources, time_left(context)))

    def GetClients(
        self, request: discovery_pb2.GetClientsRequest, context: grpc.ServicerContext
    ) -> discovery_pb2.GetClientsResponse:
        return clients_to_message(self._quotas.fetch_clients(time_left(context)))

    def WatchSnapshots(
        self, request: discovery_pb2.WatchSnapshotsRequest, context: grpc.ServicerContext
    ) -> Iterator[discovery_pb2.WatchSnapshotsResponse]:
        """Stream the events of the cluster. The first message confirms that the watch is active."""
        events: queue.SimpleQueue[SnapshotEvent | None] = queue.SimpleQueue()
        watch = self._source.watch_snapshots(events.put)
        try:
            if not context.add_callback(lambda: events.put(None)):
                return
            yield discovery_pb2.WatchSnapshotsResponse()
            while (event := events.get()) is not None:
                yield SAME_NAMES.to_message(discovery_pb2.WatchSnapshotsResponse, event)
        finally:
            watch.close()


def _configured(source: T | None, what: str) -> T:
    if source is None:
        raise Invalid(
            f"{what} are unknown: discovery has no bootstrap servers; in ZooKeeper mode set --bootstrap-servers"
        )
    return source
