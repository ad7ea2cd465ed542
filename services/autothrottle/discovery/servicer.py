"""Answers for discovery over gRPC."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import grpc

from autothrottle.core.errors import Invalid
from autothrottle.core.overrides import validate_broker_id
from autothrottle.ports.cluster import SnapshotEvent, SnapshotSource
from autothrottle.runtime.server import time_left
from autothrottle.v1 import discovery_pb2, discovery_pb2_grpc
from autothrottle.wire.snapshots import snapshot_to_chunks

_MOST_BROKERS = 10_000


class DiscoveryServicer(discovery_pb2_grpc.DiscoveryServiceServicer):
    """DiscoveryService."""

    def __init__(self, source: SnapshotSource) -> None:
        self._source = source

    def GetSnapshot(
        self, request: discovery_pb2.GetSnapshotRequest, context: grpc.ServicerContext
    ) -> Iterator[discovery_pb2.GetSnapshotResponse]:
        """Return the cluster as it is now, in chunks."""
        if len(request.replicas_of) > _MOST_BROKERS:
            raise Invalid(f"replicas of {len(request.replicas_of)} brokers are asked for; name at most {_MOST_BROKERS}")
        asked = tuple(validate_broker_id(broker_id) for broker_id in request.replicas_of)
        timeout = time_left(context, share=1.0)
        snapshot = self._source.fetch_snapshot(min_version=request.min_version, replicas_of=asked, timeout=timeout)
        yield from snapshot_to_chunks(snapshot)

    def WatchSnapshots(
        self, request: discovery_pb2.WatchSnapshotsRequest, context: grpc.ServicerContext
    ) -> Iterator[discovery_pb2.WatchSnapshotsResponse]:
        """Send what happens; first that the watch stands."""
        happened: queue.SimpleQueue[SnapshotEvent | None] = queue.SimpleQueue()
        watch = self._source.watch_snapshots(happened.put)
        try:
            if not context.add_callback(lambda: happened.put(None)):
                return
            yield discovery_pb2.WatchSnapshotsResponse()
            while (event := happened.get()) is not None:
                yield discovery_pb2.WatchSnapshotsResponse(
                    version=event.version, reason=event.reason, urgent=event.urgent
                )
        finally:
            watch.close()
