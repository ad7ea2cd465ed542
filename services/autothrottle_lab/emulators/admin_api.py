"""Simulated brokers that speak the part of Kafka's protocol for broker configs, and delay each response.

Benchmarks use them to measure the cost of many remote brokers. They store broker configs only: no topics, no data.
The type to know is `AdminEndpoints`.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_admin.values import ConfigOperation, ConfigSource

_BROKER = 4
"""Kafka's number of the resource type."""
_VERSIONS: Mapping[int, tuple[int, int]] = {3: (1, 8), 18: (0, 3), 32: (1, 3), 44: (0, 0)}
"""API key -> lowest and highest supported version."""


@dataclass(slots=True)
class _Connection:
    """One client's connection to one broker."""

    broker_id: int
    received: bytearray = field(default_factory=bytearray)

    def frames(self) -> list[bytes]:
        """Remove and return the complete requests."""
        found = []
        while len(self.received) >= 4 and len(self.received) >= 4 + (size := _size(self.received)):
            found.append(bytes(self.received[4 : 4 + size]))
            del self.received[: 4 + size]
        return found


class AdminEndpoints:
    """Brokers 1 to N on 127.0.0.1, all in one thread; a context manager that starts and stops them."""

    def __init__(self, count: int, delay: timedelta) -> None:
        """Open the ports.

        Args:
            count: number of brokers, >= 1.
            delay: time between the arrival of a request and its response, >= 0.
        """
        self._delay = delay.total_seconds()
        self.configs: dict[int, dict[str, str]] = {broker_id: {} for broker_id in range(1, count + 1)}
        """Broker id -> its dynamic configs."""
        self._selector = selectors.DefaultSelector()
        self._ports: dict[int, int] = {}
        for broker_id in self.configs:
            listener = socket.create_server(("127.0.0.1", 0))
            self._ports[broker_id] = listener.getsockname()[1]
            self._selector.register(listener, selectors.EVENT_READ, broker_id)
        self._due: list[tuple[float, int, socket.socket, bytes]] = []
        self._received_count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="admin-endpoints", daemon=True)
        self._apis: Mapping[int, tuple[Any, Callable[[int, Any], Any]]] = {
            3: (kafka.protocol.metadata.MetadataRequest, self._metadata),
            18: (kafka.protocol.metadata.ApiVersionsRequest, self._versions),
            32: (kafka.protocol.admin.DescribeConfigsRequest, self._describe),
            44: (kafka.protocol.admin.IncrementalAlterConfigsRequest, self._alter),
        }

    @property
    def bootstrap_servers(self) -> tuple[str, ...]:
        """The `host:port` of each broker."""
        return tuple(f"127.0.0.1:{port}" for port in self._ports.values())

    def __enter__(self) -> AdminEndpoints:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            self._close(key.fileobj)
        self._selector.close()

    # Sockets

    def _run(self) -> None:
        while not self._ended.is_set():
            left = self._due[0][0] - time.monotonic() if self._due else 0.1
            for key, _ in self._selector.select(max(0.0, min(left, 0.1))):
                if isinstance(key.data, _Connection):
                    self._receive(key.fileobj, key.data)
                else:
                    connection, _ = key.fileobj.accept()  # type: ignore[union-attr]
                    self._selector.register(connection, selectors.EVENT_READ, _Connection(key.data))
            while self._due and self._due[0][0] <= time.monotonic():
                _, _, connection, answer = heapq.heappop(self._due)
                self._send(connection, answer)

    def _receive(self, connection: Any, state: _Connection) -> None:
        try:
            data = connection.recv(65_536)
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        state.received += data
        for frame in state.frames():
            self._received_count += 1
            answer = self._answer(state.broker_id, frame)
            heapq.heappush(self._due, (time.monotonic() + self._delay, self._received_count, connection, answer))

    def _send(self, connection: socket.socket, answer: bytes) -> None:
        try:
            connection.sendall(answer)
        except OSError:
            self._close(connection)

    def _close(self, connection: Any) -> None:
        if connection.fileno() >= 0:
            self._selector.unregister(connection)
            connection.close()

    # Kafka's protocol

    def _answer(self, broker_id: int, frame: bytes) -> bytes:
        api, version = struct.unpack_from("!hh", frame)
        request_class, handle = self._apis[api]
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
                for api, (least, most) in _VERSIONS.items()
            ],
            throttle_time_ms=0,
        )

    def _metadata(self, broker_id: int, _: Any) -> Any:
        answer = kafka.protocol.metadata.MetadataResponse
        return answer(
            throttle_time_ms=0,
            brokers=[
                answer.MetadataResponseBroker(node_id=known, host="127.0.0.1", port=port, rack=None)
                for known, port in self._ports.items()
            ],
            cluster_id="simulated",
            controller_id=broker_id,
            topics=[],
        )

    def _describe(self, broker_id: int, request: Any) -> Any:
        answer = kafka.protocol.admin.DescribeConfigsResponse
        return answer(throttle_time_ms=0, results=[self._described(broker_id, r) for r in request.resources])

    def _described(self, broker_id: int, resource: Any) -> Any:
        result = kafka.protocol.admin.DescribeConfigsResponse.DescribeConfigsResult
        described = result.DescribeConfigsResourceResult
        current = self.configs[broker_id] if resource.resource_name == str(broker_id) else {}
        source = ConfigSource.DYNAMIC_BROKER_CONFIG.value
        configs = [
            described(
                name=name,
                value=value,
                read_only=False,
                config_source=source,
                is_sensitive=False,
                synonyms=[described.DescribeConfigsSynonym(name=name, value=value, source=source)],
                documentation=None,
            )
            for name, value in current.items()
        ]
        return result(
            error_code=0,
            error_message=None,
            resource_type=_BROKER,
            resource_name=resource.resource_name,
            configs=configs,
        )

    def _alter(self, broker_id: int, request: Any) -> Any:
        answer = kafka.protocol.admin.IncrementalAlterConfigsResponse
        for resource in request.resources:
            for config in resource.configs:
                self.configs[broker_id].pop(config.name, None)
                if config.config_operation != ConfigOperation.DELETE.value:
                    self.configs[broker_id][config.name] = config.value
        return answer(
            throttle_time_ms=0,
            responses=[
                answer.AlterConfigsResourceResponse(
                    error_code=0, error_message=None, resource_type=_BROKER, resource_name=resource.resource_name
                )
                for resource in request.resources
            ],
        )


def _size(received: bytearray) -> int:
    (size,) = struct.unpack_from("!i", received)
    return int(size)
