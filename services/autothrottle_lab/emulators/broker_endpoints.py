"""Simulated brokers that speak a part of Kafka's protocol.

`BrokerEndpoints` has the sockets, and answers which brokers there are. `ClusterEndpoints` adds what autothrottle uses
besides ZooKeeper: log sizes, leaders, settings and reassignments.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, Protocol, Self, TypeVar

from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.core.cluster.snapshot import Assignment, TopicPartition
from autothrottle.core.errors import Invalid, Missing
from autothrottle_lab.simulation.cluster import Cluster

T = TypeVar("T")
Answer = Callable[[int, Any], Any]
"""Function of a broker id and a request; returns the response."""

METADATA, API_VERSIONS, DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS = 3, 18, 32, 35
ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = 45, 46
"""Kafka's API keys."""

SETTINGS: Mapping[str, str] = {"replica.fetch.max.bytes": "262144", "replica.fetch.response.max.bytes": "524288"}
"""Settings of the brokers: small fetches, since simulated links have no bursts."""

_STATIC_BROKER_CONFIG = 4
_INVALID_REPLICA_ASSIGNMENT = 39
_UNKNOWN_BYTES = -1


class BrokerEndpoints:
    """Ports of brokers on 127.0.0.1, all in one thread; a context manager that starts and stops them."""

    versions: Mapping[int, tuple[int, int]] = {METADATA: (1, 8), API_VERSIONS: (0, 3)}
    """API key -> lowest and highest supported version."""

    def __init__(self, broker_ids: Collection[int], delay: timedelta = timedelta()) -> None:
        """Open the ports.

        Args:
            broker_ids: the brokers; not empty.
            delay: time between the arrival of a request and its response, >= 0.
        """
        self._delay = delay.total_seconds()
        self._listeners = {broker_id: socket.create_server(("127.0.0.1", 0)) for broker_id in broker_ids}
        self._ports = {broker_id: listener.getsockname()[1] for broker_id, listener in self._listeners.items()}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker-endpoints", daemon=True)
        self.apis: dict[int, tuple[Any, Answer]] = {
            METADATA: (kafka.protocol.metadata.MetadataRequest, self._metadata),
            API_VERSIONS: (kafka.protocol.metadata.ApiVersionsRequest, self._versions),
        }
        """API key -> class of its requests, and what answers them."""

    @property
    def bootstrap_servers(self) -> tuple[str, ...]:
        """The `host:port` of each broker."""
        return tuple(f"127.0.0.1:{port}" for port in self._ports.values())

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Sockets

    async def _listen(self) -> None:
        self._servers = [
            await asyncio.start_server(lambda r, w, b=broker_id: self._serve(b, r, w), sock=listener)  # type: ignore[misc]
            for broker_id, listener in self._listeners.items()
        ]

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        clients = asyncio.all_tasks() - {asyncio.current_task()}
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _serve(self, broker_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack("!i", await reader.readexactly(4))
                answer = self._answer(broker_id, await reader.readexactly(size))
                self._loop.call_later(self._delay, writer.write, answer)

    # Kafka's protocol

    def _answer(self, broker_id: int, frame: bytes) -> bytes:
        api, version = struct.unpack_from("!hh", frame)
        request_class, handle = self.apis[api]
        version = min(version, request_class.max_version)
        request = request_class.decode(frame, version=version, header=True)
        response = handle(broker_id, request)
        response.API_VERSION = version
        response.with_header(correlation_id=request.header.correlation_id)
        encoded: bytes = bytes(response.encode(header=True, framed=True))
        return encoded

    def _versions(self, _: int, request: Any) -> Any:
        answer = kafka.protocol.metadata.ApiVersionsResponse
        return answer(
            error_code=0,
            api_keys=[
                answer.ApiVersion(api_key=api, min_version=least, max_version=most)
                for api, (least, most) in self.versions.items()
            ],
            throttle_time_ms=0,
        )

    def _metadata(self, broker_id: int, request: Any) -> Any:
        answer = kafka.protocol.metadata.MetadataResponse
        return answer(
            throttle_time_ms=0,
            brokers=[
                answer.MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=port, rack=None)
                for node_id, port in self._ports.items()
            ],
            cluster_id="simulated",
            controller_id=broker_id,
            topics=self.topics(request),
        )

    def topics(self, request: Any) -> list[Any]:
        """Return the metadata of the requested topics; these endpoints have none."""
        return []


class Inspect(Protocol):
    """Reads a value of the simulated cluster, which does not change meanwhile."""

    def __call__(self, value: Callable[[Cluster], T]) -> T: ...


class ClusterEndpoints(BrokerEndpoints):
    """Endpoints of a simulated cluster: its topics, their log sizes and reassignments, and `SETTINGS`."""

    versions: Mapping[int, tuple[int, int]] = {
        **BrokerEndpoints.versions,
        DESCRIBE_CONFIGS: (1, 3),
        DESCRIBE_LOG_DIRS: (1, 1),
        ALTER_REASSIGNMENTS: (0, 0),
        LIST_REASSIGNMENTS: (0, 0),
    }

    def __init__(self, inspect: Inspect, broker_ids: Collection[int]) -> None:
        super().__init__(broker_ids)
        self._inspect = inspect
        self.apis |= {
            DESCRIBE_CONFIGS: (kafka.protocol.admin.DescribeConfigsRequest, self._configs),
            DESCRIBE_LOG_DIRS: (kafka.protocol.admin.DescribeLogDirsRequest, self._log_dirs),
            ALTER_REASSIGNMENTS: (kafka.protocol.admin.AlterPartitionReassignmentsRequest, self._reassign),
            LIST_REASSIGNMENTS: (kafka.protocol.admin.ListPartitionReassignmentsRequest, self._reassignments),
        }

    def topics(self, request: Any) -> list[Any]:
        def partitions(kafka: MemoryCluster) -> Mapping[str, list[tuple[int, Assignment, int]]]:
            return {
                topic: [(n, assignment, kafka.leader_epochs[topic, n]) for n, assignment in assignments.items()]
                for topic, assignments in kafka.topics.items()
            }

        existing = self._inspect(lambda cluster: partitions(cluster.controller))
        names = [topic.name for topic in request.topics] if request.topics is not None else [*existing]
        answer = kafka.protocol.metadata.MetadataResponse.MetadataResponseTopic
        row = answer.MetadataResponsePartition
        return [
            answer(
                error_code=0,
                name=name,
                is_internal=False,
                partitions=[
                    row(
                        error_code=0,
                        partition_index=number,
                        leader_id=assignment.leader,
                        leader_epoch=leader_epoch,
                        replica_nodes=[*assignment.replicas],
                        isr_nodes=[*assignment.isr],
                        offline_replicas=[],
                    )
                    for number, assignment, leader_epoch in existing[name]
                ],
            )
            for name in names
            if name in existing
        ]

    def _configs(self, _: int, request: Any) -> Any:
        answer = kafka.protocol.admin.DescribeConfigsResponse
        result = answer.DescribeConfigsResult
        config = result.DescribeConfigsResourceResult
        results = [
            result(
                error_code=0,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[
                    config(
                        name=name,
                        value=value,
                        read_only=True,
                        config_source=_STATIC_BROKER_CONFIG,
                        is_sensitive=False,
                        synonyms=[],
                        documentation=None,
                    )
                    for name, value in SETTINGS.items()
                ],
            )
            for resource in request.resources
        ]
        return answer(throttle_time_ms=0, results=results)

    def _log_dirs(self, broker_id: int, request: Any) -> Any:
        def sizes(cluster: Cluster) -> Mapping[TopicPartition, int]:
            logs = cluster.controller.log_bytes[broker_id].items()
            return {key: round(size) for key, size in logs if broker_id in cluster.assignment(key).replicas}

        requested = request.topics and {(t.topic, number) for t in request.topics for number in t.partitions}
        answer = kafka.protocol.admin.DescribeLogDirsResponse
        directory = answer.DescribeLogDirsResult
        topic = directory.DescribeLogDirsTopic
        rows = defaultdict(list)
        for (name, number), size in self._inspect(sizes).items():
            if requested is None or (name, number) in requested:
                rows[name].append(
                    topic.DescribeLogDirsPartition(
                        partition_index=number, partition_size=size, offset_lag=0, is_future_key=False
                    )
                )
        results = [
            directory(
                error_code=0,
                log_dir="/data",
                topics=[topic(name=name, partitions=partitions) for name, partitions in rows.items()],
                total_bytes=_UNKNOWN_BYTES,
                usable_bytes=_UNKNOWN_BYTES,
            )
        ]
        return answer(throttle_time_ms=0, results=results)

    def _reassignments(self, _: int, request: Any) -> Any:
        moving = self._inspect(lambda cluster: {key: cluster.assignment(key) for key in cluster.moving()})
        answer = kafka.protocol.admin.ListPartitionReassignmentsResponse
        topic = answer.OngoingTopicReassignment
        row = topic.OngoingPartitionReassignment
        rows = defaultdict(list)
        for (name, number), assignment in moving.items():
            rows[name].append(
                row(
                    partition_index=number,
                    replicas=[*assignment.replicas],
                    adding_replicas=[*assignment.adding_replicas],
                    removing_replicas=[*assignment.removing_replicas],
                )
            )
        topics = [topic(name=name, partitions=partitions) for name, partitions in rows.items()]
        return answer(throttle_time_ms=0, error_code=0, error_message=None, topics=topics)

    def _reassign(self, _: int, request: Any) -> Any:
        """Start or cancel reassignments (KIP-455), or refuse all partitions because of one."""

        def submit(cluster: Cluster) -> None:
            targets = {}
            for topic in request.topics:
                for row in topic.partitions:
                    key = topic.name, row.partition_index
                    targets[key] = row.replicas or (cluster.assignment(key).original if key in cluster.logs else ())
            cluster.submit_reassignment(targets)

        code, message = 0, None
        try:
            self._inspect(submit)
        except (Invalid, Missing) as error:
            code, message = _INVALID_REPLICA_ASSIGNMENT, str(error)
        answer = kafka.protocol.admin.AlterPartitionReassignmentsResponse
        response = answer.ReassignableTopicResponse
        partition = response.ReassignablePartitionResponse
        rows = [
            response(
                name=topic.name,
                partitions=[
                    partition(partition_index=row.partition_index, error_code=code, error_message=message)
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return answer(throttle_time_ms=0, error_code=0, error_message=None, responses=rows)
