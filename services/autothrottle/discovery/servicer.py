"""Answers for discovery over gRPC."""

from __future__ import annotations

import itertools
import queue
import threading
import uuid
from collections.abc import Iterator

import grpc

from autothrottle.core.errors import Invalid
from autothrottle.core.topology import Snapshot
from autothrottle.ports.cluster import MoveSource, SnapshotEvent, SnapshotSource
from autothrottle.ports.fetch_settings import FetchSettingsSource
from autothrottle.ports.log_sizes import LogSizeSource
from autothrottle.runtime.server import time_left
from autothrottle.v1 import discovery_pb2, discovery_pb2_grpc
from autothrottle.wire.log_sizes import (
    log_sizes_to_messages,
    settings_to_message,
    validate_brokers,
    validate_topics,
    wanted_from_message,
)
from autothrottle.wire.reassignments import partitions_from_topics
from autothrottle.wire.snapshots import UNKNOWN, NamedSnapshot, Told, snapshot_to_chunks

_NOBODY_TO_ASK = "discovery knows no broker to ask; in ZooKeeper mode give it --bootstrap-servers"

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

    def __init__(
        self,
        source: SnapshotSource,
        sizes: LogSizeSource | None = None,
        settings: FetchSettingsSource | None = None,
        moves: MoveSource | None = None,
    ) -> None:
        """Answer from these; None: nobody can be asked."""
        self._source, self._sent, self._moves = source, _SentSnapshots(), moves
        self._sizes, self._settings = sizes, settings

    def GetSnapshot(
        self, request: discovery_pb2.GetSnapshotRequest, context: grpc.ServicerContext
    ) -> Iterator[discovery_pb2.GetSnapshotResponse]:
        """Return the cluster as it is now, in chunks."""
        asked, catching_up = validate_brokers(request.replicas_of), validate_brokers(request.catching_up)
        told = Told(self._sent.take(request.known_name))
        if request.takes_early and self._moves is not None:
            for moves in self._moves.moves_so_far(time_left(context), request.may_presume):
                yield from told.early(moves)
        snapshot = self._source.fetch_snapshot(
            min_version=request.min_version,
            replicas_of=asked,
            partitions=partitions_from_topics(request.partitions),
            catching_up=catching_up,
            timeout=time_left(context, share=1.0),
            may_presume=request.may_presume,
        )
        if request.takes_early and snapshot.presumed:
            yield from told.early(snapshot.reassignments)  # The other side thinks about each of them as it comes.
        yield from snapshot_to_chunks(snapshot, name=self._sent.keep(snapshot), base=told.base)

    def GetLogSizes(
        self, request: discovery_pb2.GetLogSizesRequest, context: grpc.ServicerContext
    ) -> Iterator[discovery_pb2.GetLogSizesResponse]:
        """Return the sizes of logs, a message for each broker."""
        wanted = wanted_from_message(request)
        if self._sizes is None:
            raise Invalid(f"the sizes of logs are unknown: {_NOBODY_TO_ASK}")
        yield from log_sizes_to_messages(self._sizes.fetch_log_sizes(wanted, time_left(context)))

    def GetFetchSettings(
        self, request: discovery_pb2.GetFetchSettingsRequest, context: grpc.ServicerContext
    ) -> discovery_pb2.GetFetchSettingsResponse:
        """Return the settings of brokers and topics."""
        broker_ids, topics = validate_brokers(request.broker_ids), validate_topics(request.topics)
        if self._settings is None:
            raise Invalid(f"the settings of brokers are unknown: {_NOBODY_TO_ASK}")
        return settings_to_message(self._settings.fetch_settings(broker_ids, topics, time_left(context)))

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
