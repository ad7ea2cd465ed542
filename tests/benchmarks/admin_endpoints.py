"""Simulated brokers that speak the part of Kafka's protocol for broker configs, and delay each response.

Benchmarks use them to measure the cost of many remote brokers. They store broker configs only: no topics, no data.
The type to know is `AdminEndpoints`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from autothrottle.adapters.kafka_admin import messages
from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_admin.values import ConfigOperation

_BROKER = 4
"""Kafka's number of the resource type."""
_VERSIONS: Mapping[int, tuple[int, int]] = {3: (1, 8), 18: (0, 3), 32: (1, 3), 44: (0, 0)}
"""API key -> lowest and highest supported version."""


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
        self._listeners = {broker_id: socket.create_server(("127.0.0.1", 0)) for broker_id in self.configs}
        self._ports = {broker_id: listener.getsockname()[1] for broker_id, listener in self._listeners.items()}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="admin-endpoints", daemon=True)
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
        source = messages.DYNAMIC_BROKER_CONFIG
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
