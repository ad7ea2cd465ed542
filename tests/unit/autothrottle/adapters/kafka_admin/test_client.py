"""The client's behaviour when servers are silent, hang, or do not speak Kafka's protocol; no test needs a Kafka."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import timedelta
from errno import EMFILE
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin.client import KafkaAdmin
from autothrottle.adapters.kafka_admin.client_properties import client_options
from autothrottle.adapters.kafka_admin.connections import Connections, NoResponse, kafka
from autothrottle.adapters.kafka_admin.login import KafkaLogin
from autothrottle.adapters.kafka_admin.routing import Routing
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle_lab.servers.processes import free_ports
from tests.builders import eventually
from tests.paths import CERTIFICATES
from tests.resources import open_descriptors

TLS = CERTIFICATES
LIMIT_SECONDS = 60.0
SHORT_TIMEOUT = timedelta(seconds=0.2)


class SilentServer:
    """Accepts connections and never sends anything."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.opened: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            self.opened.append(connection)
            if connection.getpeername() == self._last:
                return

    _last: Any = None

    @property
    def current(self) -> int:
        """Number of connections that the other side has not closed."""
        return sum(_is_open(connection) for connection in self.opened)

    def close(self) -> None:
        with socket.socket() as last:
            last.bind(("127.0.0.1", 0))
            self._last = last.getsockname()
            last.connect(self._listener.getsockname())
            self._thread.join()
        for connection in [*self.opened, self._listener]:
            connection.close()


def _is_open(connection: socket.socket) -> bool:
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
def test_call_to_a_silent_server_ends_at_its_deadline(properties: dict[str, str]) -> None:
    """kafka-python waits for a TLS handshake without a limit."""
    with silent_server() as server:
        settings = KafkaSettings((server.address,), (server.address,), KafkaLogin(properties))
        with closing(KafkaAdmin(settings)) as admin:
            with pytest.raises(Unavailable, match=f"{server.address} is unreachable: no answer in time. Fix: "):
                admin.brokers(timeout=SHORT_TIMEOUT)
            soon = time.monotonic() + SHORT_TIMEOUT.total_seconds()
            with pytest.raises(Unavailable, match=f"controller {server.address} is unreachable: no answer in time"):
                admin.alter_broker_configs_through_controller(1, [], until=soon)
            eventually(lambda: len(server.opened) == 2)


@pytest.mark.parametrize("properties", [{}, tls()], ids=["plain", "tls"])
def test_hanging_connections_do_not_accumulate(properties: dict[str, str]) -> None:
    """Connections that neither succeed nor fail are all closed together before there are many."""
    with silent_server() as server:
        with closing(KafkaAdmin(KafkaSettings((server.address,), (), KafkaLogin(properties)))) as admin:
            for _ in range(50):
                with pytest.raises(Unavailable):
                    admin.brokers(timeout=timedelta(seconds=0.05))
            eventually(lambda: server.current <= 25)
        eventually(lambda: server.current == 0)


@contextmanager
def refusing_server() -> Iterator[str]:
    """An address that refuses connections, and that no other process gets meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def closing_server() -> Iterator[str]:
    """Accepts connections and closes them at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    listener.accept()[0].close()

        accepting = threading.Thread(target=accept)
        accepting.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()


@contextmanager
def silent_address() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("server", "properties"),
    [(refusing_server, {}), (closing_server, {}), (silent_address, {}), (silent_address, tls())],
    ids=["refused", "closed", "silent", "silent-tls"],
)
def test_failed_connections_leave_no_descriptor_and_no_thread(
    server: Callable[[], AbstractContextManager[str]], properties: dict[str, str]
) -> None:
    """The newest connection kept its error, whose traceback kept the connection before, with its open socket.

    After ten minutes without a broker, a process had no free descriptor, and did not recover when they returned.
    """
    gc.collect()
    gc.disable()
    try:
        with server() as address:
            options = client_options(properties).options
            with closing(Connections([address], options, timedelta(seconds=0.1))) as connections:
                (node,) = connections.bootstrap_nodes
                connections.exchange({node: metadata_request()}, time.monotonic() + 0.2)
                before = open_descriptors(), threading.active_count()
                for _ in range(15):
                    answer = connections.exchange({node: metadata_request()}, time.monotonic() + 0.2)[node]
                    assert isinstance(answer, NoResponse)
                eventually(lambda: (open_descriptors(), threading.active_count()) <= before)
    finally:
        gc.enable()


def test_process_without_a_free_descriptor_reports_that_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(EMFILE, "Too many open files")

    with refusing_server() as address, closing(KafkaAdmin(KafkaSettings((address,)))) as admin:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socketpair", refuse)
            with pytest.raises(Unavailable, match="cannot connect to Kafka: Too many open files"):
                admin.brokers()
        with pytest.raises(Unavailable, match="ECONNREFUSED"):
            admin.brokers()


def test_server_that_is_not_kafka_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def babble() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        babbling = threading.Thread(target=babble)
        babbling.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with closing(KafkaAdmin(KafkaSettings((address,)))) as admin:
            for _ in range(2):
                with pytest.raises(Unavailable, match=address):
                    admin.brokers(timeout=timedelta(seconds=5))
        babbling.join()


@pytest.mark.parametrize("error", [socket.gaierror("slow.example is unknown"), KeyError("a bug")])
def test_slow_name_resolution_does_not_delay_other_servers(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python resolves names in the one thread that drives all connections."""
    name_server_answers = threading.Event()
    lookup_started = threading.Event()
    real = socket.getaddrinfo

    def slow(host: str, *rest: Any, **more: Any) -> Any:
        if host != "slow.example":
            return real(host, *rest, **more)
        lookup_started.set()
        name_server_answers.wait(LIMIT_SECONDS)
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    (port,) = free_ports(1)
    servers = [f"127.0.0.1:{port}", "slow.example:9092"]
    with closing(Connections(servers, {}, timedelta(seconds=30))) as connections:
        by_name = {connections.name(node): node for node in connections.bootstrap_nodes}
        slow_node, dead_node = by_name["slow.example:9092"], by_name[servers[0]]
        waiting = threading.Thread(
            target=connections.exchange, args=({slow_node: metadata_request()}, time.monotonic() + LIMIT_SECONDS)
        )
        waiting.start()
        assert lookup_started.wait(LIMIT_SECONDS)
        answer = connections.exchange({dead_node: metadata_request()}, time.monotonic() + LIMIT_SECONDS)[dead_node]
        assert isinstance(answer, NoResponse) and not answer.sent and "ECONNREFUSED" in str(answer.error)
        assert waiting.is_alive()
        name_server_answers.set()
        waiting.join(LIMIT_SECONDS)
        assert not waiting.is_alive()
        answer = connections.exchange({slow_node: metadata_request()}, time.monotonic() + LIMIT_SECONDS)[slow_node]
        assert isinstance(answer, NoResponse) and "the name slow.example cannot be resolved" in str(answer.error)


def test_a_wait_for_a_silent_server_ends_when_its_answer_is_no_longer_needed() -> None:
    with silent_server() as server, closing(Connections([server.address], {}, timedelta(seconds=30))) as connections:
        (node,) = connections.bootstrap_nodes
        checks = iter([False, False, True])
        began = time.monotonic()
        requests = {node: metadata_request()}
        answer = connections.exchange(requests, began + LIMIT_SECONDS, is_over=lambda: next(checks))[node]
        assert isinstance(answer, NoResponse) and next(checks, None) is None
        assert time.monotonic() - began < LIMIT_SECONDS / 2


def test_close_ends_waiting_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    with silent_server() as server:
        admin = KafkaAdmin(KafkaSettings((server.address,)))
        errors: list[str] = []

        def ask() -> None:
            with pytest.raises(Unavailable) as caught:
                admin.brokers(timeout=timedelta(seconds=LIMIT_SECONDS))
            errors.append(str(caught.value))

        asking = threading.Thread(target=ask)
        asking.start()
        eventually(lambda: len(server.opened) > 0)
        admin.close()
        asking.join(LIMIT_SECONDS / 2)
        assert not asking.is_alive() and len(errors) == 1


def test_unsupported_property_is_refused_before_anything_is_opened() -> None:
    before = set(threading.enumerate())
    with pytest.raises(Invalid, match=r"ssl.provider"):
        KafkaLogin({"ssl.provider": "BCFIPS"})
    KafkaAdmin(KafkaSettings(("127.0.0.1:1",))).close()
    assert set(threading.enumerate()) <= before


class ReplaceableLogin(KafkaLogin):
    """A login whose properties change, as those of a file do."""

    def replace(self, properties: Mapping[str, str]) -> None:
        self._client = client_options(properties)


def test_calls_after_a_replaced_login_use_new_connections_and_running_calls_the_old_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    login = ReplaceableLogin()
    monkeypatch.setattr(Connections, "exchange", lambda _, requests, *__, **___: requests)  # any answer is accepted
    with closing(Routing(("127.0.0.1:1",), login, timedelta(seconds=1))) as routing:
        with routing._connections() as first:
            login.replace({"client.id": "other"})
            with routing._connections() as second, routing._connections() as third:
                assert second is third is not first
                assert second.options["client_id"] == "other"
            assert first in routing._users
        assert first not in routing._users
        login.replace({})
        with routing._connections():
            assert second not in routing._users


def test_a_replaced_login_that_no_broker_accepts_leaves_the_connections_of_the_previous_one() -> None:
    """A keystore of an untrusted authority was used at once, and a leader with its state in Kafka lost its term."""
    login = ReplaceableLogin()
    with closing(Routing(("127.0.0.1:1",), login, timedelta(seconds=1))) as routing:
        with routing._connections() as first:
            pass
        login.replace({"client.id": "other"})
        with routing._connections() as second:
            assert second is first
        assert "127.0.0.1:1 is unreachable" in login.refusal
        trial = login.options
        with routing._connections() as third:  # it is tried again later
            assert third is first and routing._refused[0] is trial
