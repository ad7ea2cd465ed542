"""Faults of kafka-python that `connections` works around; docs/upstream.md describes them.

These tests use kafka-python alone. One that fails after an upgrade means that a workaround can go.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import kafka.net.transport
import pytest

from autothrottle.adapters.kafka_admin.connections import CLIENT, CollectedTlsSocket, kafka
from tests.builders import eventually

LIMIT_SECONDS = 30.0
SETUP_SECONDS = 0.2


@pytest.fixture
def loop() -> Iterator[Any]:
    """kafka-python's event loop, running in its own thread."""
    selector = kafka.net.selector.NetworkSelector(client_id="upstream")
    selector.start()
    yield selector
    selector.stop()
    selector.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


class Received:
    """What a transport delivers to the layer above it."""

    _sensors = None

    def __init__(self) -> None:
        self.data = b""
        self.lost = threading.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: object) -> None:
        self.lost.set()


def test_kafka_python_drops_what_a_broker_sends_right_before_it_closes_the_connection(loop: Any) -> None:
    ours, brokers = socket.socketpair()
    ours.setblocking(False)
    brokers.sendall(b"wrong password")
    brokers.close()
    transport, received = kafka.net.transport.KafkaTCPTransport(loop, ours), Received()
    transport.set_protocol(received)
    loop.call_soon_threadsafe(transport.resume_reading)
    assert received.lost.wait(LIMIT_SECONDS)
    assert received.data == b"", "kafka-python delivers the data: _DelayedEnd can go"


def test_kafka_python_leaves_the_socket_of_a_refused_connection_open(
    loop: Any, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = listener.getsockname()
    listener.close()
    opened: list[socket.socket] = []

    def recorded(self: object, family: int, sock_type: int, proto: int) -> socket.socket:
        opened.append(socket.socket(family, sock_type, proto))
        return opened[-1]

    monkeypatch.setattr(kafka.net.inet.KafkaNetSocket, "socket", recorded)
    with pytest.raises(kafka.errors.KafkaConnectionError, match="ECONNREFUSED"):
        loop.run(kafka.net.inet.create_connection, loop, *address)
    still_open = [one.fileno() != -1 for one in opened]
    for connection in opened:
        connection.close()
    assert still_open == [True], "kafka-python closes the socket: _DirectConnection.sock_connect can go"


def test_kafka_python_resolves_names_in_the_thread_of_all_connections(
    loop: Any, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, threads = listener.getsockname(), list[threading.Thread]()
    resolve = socket.getaddrinfo

    def recorded(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return resolve(*arguments)

    monkeypatch.setattr(socket, "getaddrinfo", recorded)

    async def connect() -> tuple[threading.Thread, socket.socket]:
        return threading.current_thread(), await kafka.net.inet.create_connection(loop, *address)

    driver, connection = loop.run(connect)
    connection.close()
    assert threads == [driver], "kafka-python resolves names elsewhere: _BrokerNames can go"


def test_kafka_python_waits_for_a_tls_handshake_beyond_the_limit_for_setting_up_a_connection(
    loop: Any, listener: socket.socket
) -> None:
    milliseconds, context = int(SETUP_SECONDS * 1000), ssl.create_default_context()
    context.sslsocket_class = CollectedTlsSocket  # otherwise its socket stays open
    manager = kafka.net.manager.KafkaConnectionManager(
        loop,
        bootstrap_servers=["{}:{}".format(*listener.getsockname())],
        security_protocol="SSL",
        ssl_context=context,
        **CLIENT,
        socket_connection_setup_timeout_ms=milliseconds,
        socket_connection_setup_timeout_max_ms=milliseconds,
    )
    (node,) = manager.cluster.bootstrap_brokers()
    connections: list[Any] = []
    manager.call_soon(lambda: connections.append(manager.get_connection(node.node_id, refresh_metadata_on_err=False)))
    silent, _ = listener.accept()
    with closing(silent):
        assert silent.recv(1), "the handshake has begun"
        eventually(lambda: connections)
        time.sleep(5 * SETUP_SECONDS)
        assert not connections[0].init_future.is_done, "kafka-python limits the handshake: _ClosingManager can go"


def test_kafka_python_does_not_wait_after_a_connection_that_the_broker_accepted_and_closed(
    loop: Any, listener: socket.socket
) -> None:
    servers = ["{}:{}".format(*listener.getsockname())]
    manager = kafka.net.manager.KafkaConnectionManager(loop, bootstrap_servers=servers, **CLIENT)
    (node,) = manager.cluster.bootstrap_brokers()
    opened = manager.call_soon(lambda: manager.get_connection(node.node_id, refresh_metadata_on_err=False))
    listener.accept()[0].close()
    eventually(lambda: opened.is_done)
    assert isinstance(opened.exception, kafka.errors.KafkaConnectionError)
    time.sleep(SETUP_SECONDS)
    assert manager.connection_delay(node.node_id) == 0, "kafka-python counts this failure: Backoff could use its delays"


def test_kafka_python_asks_for_a_token_in_the_thread_of_the_connections() -> None:
    threads: list[threading.Thread] = []

    class Provider(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            threads.append(threading.current_thread())
            return "token"

    mechanism = kafka.net.sasl.oauth.SaslMechanismOAuth(sasl_oauth_token_provider=Provider())
    assert mechanism.auth_bytes() == b"n,,\x01auth=Bearer token\x01\x01"
    assert threads == [threading.current_thread()]


def test_kafka_python_reads_no_more_after_an_answer_that_it_cannot_decode(loop: Any) -> None:
    class Undecodable(Received):
        def data_received(self, data: bytes) -> None:
            self.data += data
            raise IndexError("index out of range")

    ours, brokers = socket.socketpair()
    ours.setblocking(False)
    with closing(brokers):
        transport, received = kafka.net.transport.KafkaTCPTransport(loop, ours), Undecodable()
        transport.set_protocol(received)
        loop.call_soon_threadsafe(transport.resume_reading)
        brokers.sendall(b"answer")
        eventually(lambda: received.data)
        brokers.sendall(b"another")
        time.sleep(SETUP_SECONDS)
        assert received.data == b"answer" and not received.lost.is_set(), "_CheckedConnection can go"
        loop.run(transport.abort)


def test_kafka_python_pauses_for_as_long_as_a_broker_asks_for(loop: Any) -> None:
    connection = kafka.net.connection.KafkaConnection(loop)
    connection.broker_version_data = kafka.net.connection.BrokerVersionData((4, 3))
    connection._maybe_throttle(kafka.protocol.metadata.MetadataResponse(throttle_time_ms=2**31 - 1))
    assert connection.paused == {"throttle"}
    days = (connection._throttle_time - time.monotonic()) / 86_400
    assert days > 20, "kafka-python limits the pause: Connections._limit_pause can go"
