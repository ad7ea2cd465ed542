"""Answers for discovery over gRPC."""

from __future__ import annotations

import itertools
import queue
import threading
import uuid
from collections.abc import Iterator

import grpc

from autothrottle.core.errors import Invalid
from autothrottle.core.topology import MAX_BROKER_ID, Snapshot
from autothrottle.ports.cluster import SnapshotEvent, SnapshotSource
from autothrottle.runtime.server import time_left
from autothrottle.v1 import discovery_pb2, discovery_pb2_grpc
from autothrottle.wire.reassignments import partitions_from_topics
from autothrottle.wire.snapshots import UNKNOWN, NamedSnapshot, snapshot_to_chunks

_MOST_BROKERS = 10_000


_MOST_SENT = 4
"""Snapshots that are kept for callers to come back to. They have most in common."""


class _SentSnapshots:
    """The last snapshots that were sent, by name. Thread-safe."""

    def __init__(self) -> None:
        self._instance = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._kept: dict[str, Snapshot] = {}
        self._lock = threading.Lock()

    def keep(self, snapshot: Snapshot) -> str:
        """Return the name of a snapshot that is sent now."""
        with self._lock:
            name = f"{self._instance}-{next(self._numbers)}"
            self._kept[name] = snapshot
            while len(self._kept) > _MOST_SENT:
                del self._kept[next(iter(self._kept))]
            return name

    def take(self, name: str) -> NamedSnapshot:
        """Return the snapshot of a name, once: whoever asks with it has a newer one then; `UNKNOWN`: it is not kept."""
        with self._lock:
            snapshot = self._kept.pop(name, None)
        return UNKNOWN if snapshot is None else NamedSnapshot(name, snapshot)


class DiscoveryServicer(discovery_pb2_grpc.DiscoveryServiceServicer):
    """DiscoveryService."""

    def __init__(self, source: SnapshotSource) -> None:
        self._source, self._sent = source, _SentSnapshots()

    def GetSnapshot(
        self, request: discovery_pb2.GetSnapshotRequest, context: grpc.ServicerContext
    ) -> Iterator[discovery_pb2.GetSnapshotResponse]:
        """Return the cluster as it is now, in chunks."""
        if len(request.replicas_of) > _MOST_BROKERS:
            raise Invalid(f"replicas of {len(request.replicas_of)} brokers are asked for; name at most {_MOST_BROKERS}")
        asked = tuple(map(_broker_id, request.replicas_of))
        snapshot = self._source.fetch_snapshot(
            min_version=request.min_version,
            replicas_of=asked,
            partitions=partitions_from_topics(request.partitions),
            timeout=time_left(context, share=1.0),
        )
        base = self._sent.take(request.known_name)
        yield from snapshot_to_chunks(snapshot, name=self._sent.keep(snapshot), base=base)

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


def _broker_id(broker_id: int) -> int:
    if not 0 <= broker_id <= MAX_BROKER_ID:
        raise Invalid(f"broker id {broker_id} is outside of 0..{MAX_BROKER_ID}; give the id of a broker")
    return broker_id
