"""What the client does when servers say nothing, hang, or talk nonsense: none of it needs a Kafka."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin, KafkaSettings
from autothrottle.adapters.kafka_admin.connections import Connections, Silence, kafka
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.lab.processes import free_ports
from tests.builders import eventually

TLS = Path(__file__).parent / "tls"
PATIENCE_SECONDS = 60.0
SOON = timedelta(seconds=0.2)


class SilentServer:
    """Takes connections and never says a word."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.opened: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def _take(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            self.opened.append(connection)
            if connection.getpeername() == self._last:
                return

    _last: Any = None

    @property
    def standing(self) -> int:
        """Connections that the other side has not closed."""
        return sum(_stands(connection) for connection in self.opened)

    def close(self) -> None:
        with socket.socket() as last:
            last.bind(("127.0.0.1", 0))
            self._last = last.getsockname()
            last.connect(self._listener.getsockname())
            self._thread.join()
        for connection in [*self.opened, self._listener]:
            connection.close()


def _stands(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@contextmanager
def silent_server() -> Iterator[SilentServer]:
    with closing(SilentServer()) as server:
        yield server


def tls() -> dict[str, str]:
    return {"security.protocol": "SSL", "ssl.truststore.location": str(TLS / "ca.pem")}


def metadata_request() -> Any:
    return kafka.protocol.metadata.MetadataRequest(topics=[], allow_auto_topic_creation=False)


@pytest.mark.parametrize("properties", [{}, tls()], ids=["plain", "tls"])
def test_a_server_that_says_nothing_costs_its_deadline_and_no_more(properties: dict[str, str]) -> None:
    """kafka-python waits for a TLS handshake without any limit."""
    with silent_server() as server:
        settings = KafkaSettings((server.address,), (server.address,), properties)
        with closing(KafkaAdmin(settings)) as admin:
            with pytest.raises(Unavailable, match=f"{server.address} is unreachable: no answer in time. Fix: "):
                admin.brokers(timeout=SOON)
            with pytest.raises(Unavailable, match=f"controller {server.address} is unreachable: no answer in time"):
                admin.alter_broker_configs_through_controller(1, [], timeout=SOON)
            eventually(lambda: len(server.opened) == 2)


@pytest.mark.parametrize("properties", [{}, tls()], ids=["plain", "tls"])
def test_connections_that_hang_do_not_pile_up(properties: dict[str, str]) -> None:
    """What neither came about nor failed is given up, all together, before there are many."""
    with silent_server() as server:
        with closing(KafkaAdmin(KafkaSettings((server.address,), (), properties))) as admin:
            for _ in range(50):
                with pytest.raises(Unavailable):
                    admin.brokers(timeout=timedelta(seconds=0.05))
            eventually(lambda: server.standing <= 25)
        eventually(lambda: server.standing == 0)


def test_a_server_that_is_not_kafka_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def babble() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        talking = threading.Thread(target=babble)
        talking.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with closing(KafkaAdmin(KafkaSettings((address,)))) as admin:
            for _ in range(2):
                with pytest.raises(Unavailable, match=address):
                    admin.brokers(timeout=timedelta(seconds=5))
        talking.join()


def test_one_name_that_nobody_resolves_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python asks name servers in the one thread that drives all connections."""
    answer = threading.Event()
    asked = threading.Event()
    real = socket.getaddrinfo

    def slow(host: str, *rest: Any, **more: Any) -> Any:
        if host != "slow.example":
            return real(host, *rest, **more)
        asked.set()
        answer.wait(PATIENCE_SECONDS)
        raise socket.gaierror("nobody knows slow.example")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    (port,) = free_ports(1)
    servers = [f"127.0.0.1:{port}", "slow.example:9092"]
    with closing(Connections(servers, {}, timedelta(seconds=30))) as connections:
        by_name = {connections.name(node): node for node in connections.bootstrap_nodes}
        slow_node, dead_node = by_name["slow.example:9092"], by_name[servers[0]]
        waiting = threading.Thread(
            target=connections.exchange, args=({slow_node: metadata_request()}, time.monotonic() + PATIENCE_SECONDS)
        )
        waiting.start()
        assert asked.wait(PATIENCE_SECONDS)
        told = connections.exchange({dead_node: metadata_request()}, time.monotonic() + PATIENCE_SECONDS)[dead_node]
        assert isinstance(told, Silence) and not told.sent and "ECONNREFUSED" in str(told.error)
        assert waiting.is_alive()
        answer.set()
        waiting.join(PATIENCE_SECONDS)
        assert not waiting.is_alive()
        told = connections.exchange({slow_node: metadata_request()}, time.monotonic() + PATIENCE_SECONDS)[slow_node]
        assert isinstance(told, Silence) and "the name slow.example cannot be resolved" in str(told.error)


def test_closing_ends_calls_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with silent_server() as server:
        admin = KafkaAdmin(KafkaSettings((server.address,)))
        said: list[str] = []

        def ask() -> None:
            with pytest.raises(Unavailable) as caught:
                admin.brokers(timeout=timedelta(seconds=PATIENCE_SECONDS))
            said.append(str(caught.value))

        asking = threading.Thread(target=ask)
        asking.start()
        eventually(lambda: len(server.opened) > 0)
        admin.close()
        asking.join(PATIENCE_SECONDS / 2)
        assert not asking.is_alive() and len(said) == 1


def test_a_property_that_is_not_supported_is_refused_before_anything_is_opened() -> None:
    before = set(threading.enumerate())
    with pytest.raises(Invalid, match="acks"):
        KafkaAdmin(KafkaSettings(("127.0.0.1:1",), client_properties={"acks": "all"}))
    KafkaAdmin(KafkaSettings(("127.0.0.1:1",))).close()
    assert set(threading.enumerate()) <= before
