"""Limits of connections and descriptors, on real sockets. The hosts are addresses of the loopback interface."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from autothrottle.core.access import Role
from autothrottle.runtime import connections
from autothrottle.runtime.access import Access, AccessInterceptor, author
from autothrottle.runtime.call_limits import LimitReached, Slots, caller_host
from autothrottle.runtime.connections import (
    ConnectionLimit,
    RefusalLog,
    descriptors_problem,
    host_of,
    raise_descriptor_limit,
)
from autothrottle.runtime.server import ServiceServer
from tests.builders import eventually
from tests.resources import open_descriptors

SERVICE = "autothrottle.v1.AdminService"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def soft_limit() -> Iterator[int]:
    """The hard limit of descriptors. The soft limit is restored after the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Port:
    """A listening socket with accepted connections, whose descriptors belong to this process as gRPC's do."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"

    def connect(self, host: str, sent: bytes = b"") -> socket.socket:
        """Return the client's end of a new connection."""
        client = self._stack.enter_context(socket.socket())
        client.bind((host, 0))
        client.connect(self._listening.getsockname())
        self._stack.enter_context(self._listening.accept()[0])
        client.sendall(sent)
        client.setblocking(False)
        return client


def is_open(client: socket.socket) -> bool:
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True


def test_the_least_active_connections_of_a_host_beyond_its_limit_are_closed(
    stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """1,024 idle connections of one host took all descriptors of the process: it could not reach ZooKeeper any more.

    Connections that have sent the most stay, and so do those of other hosts.
    """
    port = Port(stack)
    active = port.connect("127.0.0.2", b"a call")
    silent = [port.connect("127.0.0.2") for _ in range(4)]
    other = port.connect("127.0.0.3")
    ConnectionLimit("admin", port.address, total=10, of_host=2).enforce()
    assert is_open(active) and is_open(other)
    assert sum(map(is_open, silent)) == 1
    (line,) = caplog.messages
    assert line.startswith(
        f"gRPC port {port.address} of admin has too many connections: closed 3, of which 3 came from"
    )


def test_beyond_the_total_the_busiest_hosts_lose_connections(stack: ExitStack) -> None:
    port = Port(stack)
    clients = {host: [port.connect(f"127.0.0.{host}") for _ in range(host)] for host in (2, 3, 5)}
    ConnectionLimit("admin", port.address, total=6, of_host=5).enforce()
    assert {host: sum(map(is_open, group)) for host, group in clients.items()} == {2: 2, 3: 2, 5: 2}


def test_connections_to_other_ports_are_left_alone(stack: ExitStack) -> None:
    port, other = Port(stack), Port(stack)
    clients = [other.connect("127.0.0.2") for _ in range(5)]
    ConnectionLimit("admin", port.address, total=2, of_host=1).enforce()
    assert all(map(is_open, clients))


def test_a_port_logs_closed_connections_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """A flood of refused connections wrote 11 MB of log in 40 s."""
    clock = [0.0]
    log = RefusalLog("the port", lambda: clock[0])
    for second in range(61):
        clock[0] = float(second)
        log.add(["10.0.0.1", "10.0.0.1", "10.0.0.2"])
        log.write()
    log.write()
    first, second_line = caplog.messages
    assert "closed 3, of which 2 came from 10.0.0.1" in first
    assert "closed 180, of which 120 came from 10.0.0.1" in second_line


def test_ipv6_callers_count_by_their_64(stack: ExitStack) -> None:
    """A host has all addresses of its /64, so each of its connections could count as another host."""
    slots = Slots("admin", "calls", 4)
    peers = [f"ipv6:%5B2001:db8:1:2::{number}%5D:4711" for number in range(3)]
    for peer in peers[:2]:
        stack.enter_context(slots.slot(caller_host(peer)))
    with pytest.raises(LimitReached, match="2001:db8:1:2::/64"):
        stack.enter_context(slots.slot(caller_host(peers[2])))
    stack.enter_context(slots.slot(caller_host("ipv6:%5B2001:db8:1:3::1%5D:4711")))
    assert host_of("::ffff:10.0.0.1") != host_of("::ffff:10.0.0.2")
    assert host_of("fe80::1%eth0") == host_of("fe80::2%eth0")


def test_a_process_uses_all_descriptors_that_it_may_open(soft_limit: int) -> None:
    """systemd's soft limit is 1,024, the hard limit 524,288."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, soft_limit))
    raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft_limit, soft_limit)


def test_the_check_of_descriptors_fails_while_few_are_free(soft_limit: int) -> None:
    """The probes answered 200 while the process could not open a connection."""
    assert descriptors_problem() is None
    count = open_descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, soft_limit))
    problem = descriptors_problem()
    assert problem is not None and f"of {count} file descriptors are open" in problem


def test_limits_shrink_with_the_descriptors_of_the_process(soft_limit: int) -> None:
    """A process with a hard limit of 1,024 keeps half of its descriptors for itself."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, soft_limit))
    options = dict(connections.grpc_options(tls=False))
    assert options["grpc.max_allowed_incoming_connections"] == 512


class Names:
    """A service that answers with its caller."""

    def name(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return f"{author(context)} {caller_host(context.peer())}".encode()


def add(servicer: Any, server: grpc.Server) -> None:
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "GetClusterState": grpc.unary_unary_rpc_method_handler(servicer.name)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def test_a_server_closes_silent_connections_and_callers_keep_their_address(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC waited for two minutes for the first byte of a connection, and for ever after it."""
    monkeypatch.setattr(connections, "_HANDSHAKE_SECONDS", 0.3)
    access = AccessInterceptor(Access())
    server = stack.enter_context(ServiceServer("admin", [(add, Names(), SERVICE)], access=access))
    host, _, port = server.address.rpartition(":")
    silent = stack.enter_context(socket.create_connection((host, int(port)), 10, source_address=("127.0.0.2", 0)))
    channel: Any = stack.enter_context(grpc.insecure_channel(server.address))
    caller = channel.unary_unary(f"/{SERVICE}/GetClusterState")(b"", timeout=10).decode()
    assert caller.startswith("ipv4:127.0.0.1:") and caller.endswith(" ipv4:127.0.0.1")
    while silent.recv(100):
        pass  # the server's settings
    stub: Any = health_pb2_grpc.HealthStub(channel)
    assert stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status == health_pb2.HealthCheckResponse.SERVING


def test_a_caller_over_tcp_never_has_the_role_of_a_unix_socket(stack: ExitStack) -> None:
    access = AccessInterceptor(Access(certificate_roles={"service": Role.SERVICE}))
    server = stack.enter_context(ServiceServer("admin", [(add, Names(), SERVICE)], access=access))
    channel: Any = stack.enter_context(grpc.insecure_channel(server.address))
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(f"/{SERVICE}/GetClusterState")(b"", timeout=10)
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED


def test_the_thread_of_a_server_closes_connections(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_GRPC_CONNECTIONS", 4)
    server = stack.enter_context(ServiceServer("admin", [(add, Names(), SERVICE)]))
    host, _, port = server.address.rpartition(":")
    clients = [
        stack.enter_context(socket.create_connection((host, int(port)), 10, source_address=("127.0.0.2", 0)))
        for _ in range(10)
    ]
    for client in clients:
        client.setblocking(False)
    eventually(lambda: sum(map(is_still_open, clients)) == 2, 10)


def is_still_open(client: socket.socket) -> bool:
    """Whether the server has not ended the connection; its settings are read."""
    try:
        while client.recv(1_000):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
