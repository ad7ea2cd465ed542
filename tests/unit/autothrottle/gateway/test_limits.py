"""Limits of the HTTP API: requests in progress, heavy requests and connections of one host."""

from __future__ import annotations

import logging
import select
import socket
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPSConnection
from typing import Any

import pytest

from autothrottle.core.errors import Unavailable
from autothrottle.core.request_quotas import RequestQuotaEntity
from autothrottle.gateway import server as gateway_server
from autothrottle.gateway.live import LiveView, Reading
from autothrottle.gateway.server import MOST_CONNECTIONS_OF_HOST, GatewayServer
from autothrottle.gateway.web import LARGE_BODIES, MAX_REQUESTS
from autothrottle.runtime.call_limits import HEAVY_REQUEST, LARGE_REQUESTS
from autothrottle.runtime.connections import RefusalLog
from tests.builders import eventually
from tests.paths import CERTIFICATES
from tests.unit.autothrottle.gateway.front import SLACK, Front


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def opened(front: Front, stack: ExitStack, head: str = "") -> socket.socket:
    """Return a connection on which this was sent."""
    host, _, port = front.server.address.rpartition(":")
    connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=SLACK))
    connection.sendall(head.encode())
    return connection


def slow_request(front: Front, stack: ExitStack, target: str, size: int) -> socket.socket:
    """Return a connection with a request whose body does not arrive."""
    return opened(front, stack, f"POST {target} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n\r\n")


def test_large_bodies_have_the_sizes_of_large_requests() -> None:
    assert LARGE_BODIES.keys() == {
        *("SubmitReassignment", "CancelReassignment", "CheckCancellation", "EstimateReassignment")
    }
    assert set(LARGE_BODIES.values()) <= set(LARGE_REQUESTS.values())


def test_one_host_gets_half_of_the_requests_and_probes_answer_meanwhile(front: Front, stack: ExitStack) -> None:
    """500 connections with slow requests were the only limit. One client took all threads of the gateway."""
    slow = [slow_request(front, stack, "/v1/cycles", 10) for _ in range(MAX_REQUESTS // 2)]
    eventually(lambda: front.ask("GET", "/v1/overrides").status == 429)
    reply = front.ask("GET", "/v1/overrides")
    assert "gateway has 16 requests in progress of 127.0.0.1, which is the limit" in reply.text
    assert front.ask("GET", "/healthz").status == 200
    for connection in slow:
        connection.close()
    eventually(lambda: front.ask("GET", "/v1/overrides").status == 200)


def test_only_one_heavy_request_of_a_host_is_in_progress(front: Front, stack: ExitStack) -> None:
    """Neither body arrives: a client that still sends its body may lose the early reply with the connection."""
    heavy = [slow_request(front, stack, "/v1/reassignments/estimate", HEAVY_REQUEST + 1) for _ in range(2)]
    refused, *others = select.select(heavy, [], [], SLACK)[0]
    reply = refused.makefile().read()
    assert not others and reply.startswith("HTTP/1.1 429 ") and f"requests of more than {HEAVY_REQUEST} bytes" in reply
    assert front.ask("POST", "/v1/reassignments/estimate", b"{}").status != 429


def test_a_host_with_many_connections_loses_its_oldest_idle_one(front: Front, stack: ExitStack) -> None:
    oldest = opened(front, stack)
    for _ in range(MOST_CONNECTIONS_OF_HOST - 1):
        opened(front, stack)
    assert front.ask("GET", "/healthz").status == 200
    assert oldest.recv(1) == b""


BUSY_HOST, OTHER_HOST = "127.0.0.2", "127.0.0.3"


def tls_context() -> ssl.SSLContext:
    """The context of a server with a certificate of the tests."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem")
    return context


@contextmanager
def probed_server(tls: bool, header_seconds: float = SLACK) -> Iterator[tuple[GatewayServer, Callable[[], int]]]:
    """A server without an API, and a function that returns the status of a probe of another host."""

    def status() -> int:
        place: Any = {"timeout": SLACK, "source_address": (OTHER_HOST, 0)}
        connection: Any = (
            HTTPSConnection(server.address, context=ssl._create_unverified_context(), **place)
            if tls
            else HTTPConnection(server.address, **place)
        )
        with closing(connection):
            connection.request("GET", "/healthz")
            return int(connection.getresponse().status)

    with GatewayServer(None, "127.0.0.1:0", header_seconds, tls=tls_context if tls else None) as server:
        yield server, status


def burst(server: GatewayServer, stack: ExitStack, count: int) -> list[socket.socket]:
    """Return connections of the busy host, which it opens at once."""
    host, _, port = server.address.rpartition(":")
    clients = []
    for _ in range(count):
        client = stack.enter_context(socket.socket())
        client.bind((BUSY_HOST, 0))
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.connect((host, int(port)))
        clients.append(client)
    return clients


def is_open(client: socket.socket) -> bool:
    """Whether the server has not closed the connection."""
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize("tls", [False, True])
def test_probes_of_other_hosts_answer_during_a_burst_of_one_host(tls: bool, stack: ExitStack) -> None:
    """2,000 connections at once were all accepted, since each counted until it was lost. Then all hosts got 503.

    Over TLS 720 were enough, since none counted during its handshake.
    """
    with probed_server(tls) as (server, status):
        assert status() == 200
        clients = burst(server, stack, 800)
        begin = time.monotonic()
        assert status() == 200
        assert time.monotonic() - begin < 5
        eventually(lambda: sum(map(is_open, clients)) == MOST_CONNECTIONS_OF_HOST)
        assert status() == 200


def test_a_tls_handshake_that_does_not_end_has_a_time_limit(stack: ExitStack) -> None:
    """It had a minute, and its connection did not count."""
    with probed_server(tls=True, header_seconds=0.3) as (server, status):
        silent, partial = burst(server, stack, 2)
        eventually(lambda: select.select([], [partial], [], 0)[1])
        partial.sendall(b"\x16\x03\x01")
        for client in (silent, partial):
            client.setblocking(True)
            client.settimeout(SLACK)
            with suppress(ConnectionResetError):
                assert client.recv(100) == b""
        assert status() == 200


def test_a_client_that_does_not_read_loses_its_connection(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn waits for ever for a client to read, and a connection with a response in progress makes no room."""
    monkeypatch.setattr(gateway_server, "_MOST_REQUEST_SECONDS", 0.3)
    with GatewayServer(None, "127.0.0.1:0", metrics=lambda: "x" * 10_000_000) as server:
        host, _, port = server.address.rpartition(":")
        client = stack.enter_context(socket.create_connection((host, int(port)), SLACK))
        client.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n" * 3)
        time.sleep(1.5)
        received = 0
        with suppress(ConnectionResetError):
            while data := client.recv(1_000_000):
                received += len(data)
        assert received < 30_000_000


def test_a_client_that_does_not_read_the_end_of_its_stream_loses_its_connection(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A viewer could log in, not read its streams, log out and begin again: such connections counted nowhere."""
    monkeypatch.setattr(gateway_server, "_STREAM_END_SECONDS", 0.1)
    size = 60_000

    class Ending(LiveView):
        async def stream(self, is_allowed: Callable[[], bool] = lambda: True) -> AsyncGenerator[bytes, None]:
            yield b"x" * size

    def read() -> Reading:
        raise Unavailable("no state is needed")

    server = GatewayServer(None, "127.0.0.1:0", live=Ending(read))
    server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections inherit it
    with server:
        host, _, port = server.address.rpartition(":")
        client = stack.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(SLACK)
        client.connect((host, int(port)))
        client.sendall(b"GET /page/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        time.sleep(1.0)
        received = 0
        with suppress(ConnectionResetError):
            while data := client.recv(size):
                received += len(data)
        assert 0 < received < size


def test_the_total_limit_makes_room_at_the_busiest_host(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_server, "_MOST_CONNECTIONS", 20)
    with probed_server(tls=False) as (server, status):
        clients = burst(server, stack, 30)
        eventually(lambda: sum(map(is_open, clients)) == 10)
        assert status() == 200


def test_connections_that_are_dropped_are_logged_once(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    with probed_server(tls=False) as (server, status):
        burst(server, stack, 300)
        assert status() == 200
        eventually(lambda: "too many connections" in caplog.text)
        assert status() == 200
    (line,) = [message for message in caplog.messages if "too many connections" in message]
    assert line.startswith(f"HTTP port {server.address} has too many connections: closed ")


def test_invalid_requests_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture, stack: ExitStack) -> None:
    """Each invalid request wrote a line without a limit, and so did clients that left during a response."""
    with probed_server(tls=False) as (server, _):
        host, _, port = server.address.rpartition(":")
        for _ in range(20):
            client = stack.enter_context(socket.create_connection((host, int(port)), SLACK))
            client.sendall(b"no request\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 400")
            logging.getLogger("asyncio").warning("socket.send() raised exception.")
    assert caplog.messages.count("socket.send() raised exception.") <= 1
    assert caplog.messages.count("Invalid HTTP request received.") <= 1


@pytest.mark.parametrize("path", ["/v1/cycles", "/healthz", "/absent"])
def test_a_request_with_two_lengths_closes_the_connection(front: Front, stack: ExitStack, path: str) -> None:
    """RFC 9112, 6.1: a proxy that reads the other length would take the rest of the body for a request."""
    lengths = "content-length: 5\r\ntransfer-encoding: chunked"
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{lengths}\r\n\r\n0\r\n\r\n"
    connection = opened(front, stack, head + "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    reply = connection.makefile().read()
    assert reply.count("HTTP/1.1 ") == 1 and "connection: close\n" in reply


def test_a_caller_above_its_request_quota_is_delayed_and_learns_for_how_long(front: Front) -> None:
    """The delay holds no slot of the requests in progress, and probes are exempt."""
    front.services.request_quotas.put(RequestQuotaEntity("anonymous", "ui"), 5)
    try:
        begin, ui = time.monotonic(), {"client-id": "ui"}
        replies = [front.ask("GET", "/v1/overrides", headers=ui) for _ in range(9)]
        assert time.monotonic() - begin > 9 / 5 - 1.1
        delays = [int(reply.headers["request-throttle-time-ms"]) for reply in replies]
        assert {reply.status for reply in replies} == {200} and delays[0] == 0 and 100 < max(delays) <= 1000
        absent = "/v1/override"  # 404
        eventually(lambda: front.ask("GET", absent, headers=ui).headers["request-throttle-time-ms"] != "0")
        for other in (front.ask("GET", "/healthz", headers=ui), front.ask("GET", "/v1/overrides")):
            assert other.status == 200 and "request-throttle-time-ms" not in other.headers
    finally:
        front.services.request_quotas.remove(RequestQuotaEntity("anonymous", "ui"))


def test_requests_that_would_wait_for_more_than_a_second_are_answered_429(front: Front, stack: ExitStack) -> None:
    front.services.request_quotas.put(RequestQuotaEntity(None, "many"), 2)
    try:
        head = "GET /v1/overrides HTTP/1.1\r\nhost: localhost\r\nclient-id: many\r\nconnection: close\r\n\r\n"
        connections = [opened(front, stack, head) for _ in range(12)]
        replies = [connection.makefile().read() for connection in connections]
        refused = [reply for reply in replies if reply.startswith("HTTP/1.1 429 ")]
        assert 2 <= len(replies) - len(refused) <= 6
        assert all("retry-after: 1\n" in reply and "request-throttle-time-ms: 1000\n" in reply for reply in refused)
        assert "client id many has a request quota of 2 requests/s" in refused[0]
    finally:
        front.services.request_quotas.remove(RequestQuotaEntity(None, "many"))


MALFORMED = {
    "a chunk of size -1": ("transfer-encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n",),
    "a later chunk of size -1": ("transfer-encoding: chunked\r\n\r\n", "-1\r\n"),
    "a chunk of 21 digits": ("transfer-encoding: chunked\r\n\r\n", "0" * 21 + "\r\n"),
    "a trailer without a colon": ("transfer-encoding: chunked\r\n\r\n0\r\nno colon\r\n\r\n",),
    "endless trailers": ("transfer-encoding: chunked\r\n\r\n0\r\n" + "a: b\r\n" * 4000,),
    "two lengths": ("content-length: 4\r\ncontent-length: 5\r\n\r\n{}  ",),
    "a length of -1": ("content-length: -1\r\n\r\n",),
    "an encoding that no one knows": ("transfer-encoding: xchunked\r\n\r\n",),
    "a second request that is not HTTP": ("connection: keep-alive\r\ncontent-length: 0\r\n\r\n", "GARBAGE\r\n\r\n"),
    "a name with a blank": ("x : y\r\n\r\n",),
}
"""What is wrong -> the parts of the request after its first headers."""


@pytest.mark.parametrize("target", ["POST /v1/cycles", "GET /healthz", "GET /page/events", "POST /page/login"])
@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_request_ends_its_connection_without_a_traceback(
    front: Front, stack: ExitStack, caplog: pytest.LogCaptureFixture, fault: str, target: str
) -> None:
    """A malformed body of a request in progress began a second response: a traceback, 5 GB of log within an hour."""
    if fault.startswith("a second request") and target == "GET /page/events":
        return  # it waits until the stream ends
    first, *rest = MALFORMED[fault]
    connection = opened(front, stack, f"{target} HTTP/1.1\r\nhost: localhost\r\n{first}")
    with suppress(ConnectionError):
        for part in rest:
            if target != "GET /page/events":
                select.select([connection], [], [], 0.05)
            connection.sendall(part.encode())
        while connection.recv(1 << 16):
            pass
    assert "Traceback" not in caplog.text and not [line for line in caplog.records if line.exc_info]
    assert front.ask("GET", "/healthz").status == 200


def test_errors_of_connections_are_one_line_per_minute_and_place(caplog: pytest.LogCaptureFixture) -> None:
    """Only warnings had a limit. Each request that met a defect wrote a traceback."""
    once = gateway_server._OnceAMinute()

    def record(divisor: int | str) -> logging.LogRecord:
        try:
            _ = 1 / divisor  # type: ignore[operator]
        except (ZeroDivisionError, TypeError):
            return logging.LogRecord("uvicorn.error", logging.ERROR, "x", 1, "Exception", (), sys.exc_info())
        raise AssertionError

    assert [once.filter(record(0)) for _ in range(3)] == [True, False, False]
    assert once.filter(record("a"))


def test_malformed_requests_are_counted_in_one_line_per_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    lines = RefusalLog("HTTP port 127.0.0.1:80", lambda: now[0], "requests that are not HTTP", "")
    for _ in range(2416):
        lines.add(["127.0.0.9"])
    lines.write()
    lines.add(["127.0.0.9"])
    lines.write()
    (record,) = caplog.records
    assert "has requests that are not HTTP: closed 2416, of which 2416 came from 127.0.0.9. Fix: " in record.message
