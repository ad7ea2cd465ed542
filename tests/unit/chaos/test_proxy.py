"""A link forwards all data, and breaks on demand."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from autothrottle_lab.servers.processes import free_ports
from tests.builders import AT_ONCE, Stopwatch
from tests.chaos.proxy import Framing, Link, Timing, TransactionTrap, reserved_port

LIMIT_SECONDS = 30.0
TERM = "/own/term"


def frame(xid: int, kind: int, payload: bytes = b"") -> bytes:
    body = struct.pack(">ii", xid, kind) + payload
    return struct.pack(">i", len(body)) + body


def apply_frame(xid: int, fence: int) -> bytes:
    check = TERM.encode() + struct.pack(">i", fence)
    return frame(xid, 14, check + b"/config/brokers/1001")


class Server:
    """An echo server for frames."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.received: list[bytes] = []
        self.news = threading.Condition()
        self.answers = True
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def _serve(self) -> None:
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            while received := receive(connection):
                with self.news:
                    self.received.append(received)
                    self.news.notify_all()
                if not self.answers:
                    continue
                try:
                    connection.sendall(received)
                except OSError:
                    return

    def wait_for(self, wanted: bytes) -> None:
        with self.news:
            assert self.news.wait_for(lambda: wanted in self.received, LIMIT_SECONDS)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # already closed
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join(LIMIT_SECONDS)


def receive(connection: socket.socket) -> bytes:
    """Return one frame; b"" at the end of the stream, or if none arrives in time."""
    try:
        head = exactly(connection, 4)
        return head + exactly(connection, struct.unpack(">i", head)[0]) if head else b""
    except OSError:
        return b""


def exactly(connection: socket.socket, length: int) -> bytes:
    content = b""
    while len(content) < length and (piece := connection.recv(length - len(content))):
        content += piece
    return content


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def link(server: Server) -> Iterator[Link]:
    with Link([server.port], framing=Framing.ZOOKEEPER) as link:
        yield link


@pytest.fixture
def client(link: Link) -> Iterator[socket.socket]:
    with opened(link) as connection:
        yield connection


def opened(link: Link) -> socket.socket:
    """Return a connection whose first frame was echoed."""
    host, port = link.connect.split(":")
    connection = socket.create_connection((host, int(port)), LIMIT_SECONDS)
    # The frame that opens a session may look like a transaction: bytes 4 to 8 are a part of the last zxid.
    connection.sendall(apply_frame(0, 1))
    assert receive(connection) == apply_frame(0, 1)
    return connection


def test_frames_sent_in_pieces_arrive_unchanged(client: socket.socket) -> None:
    whole = frame(1, 3, b"x" * 200_000)
    for piece in (whole[:2], whole[2:9], whole[9:]):
        client.sendall(piece)
    assert receive(client) == whole


def test_cut_ends_all_connections_and_new_ones_are_accepted(link: Link, client: socket.socket) -> None:
    link.cut()
    assert receive(client) == b""
    opened(link).close()


def test_held_frames_arrive_after_resume(link: Link, server: Server, client: socket.socket) -> None:
    link.hold()
    client.sendall(frame(1, 3))
    client.settimeout(0.2)
    assert receive(client) == b""
    assert frame(1, 3) not in server.received
    link.resume()
    client.settimeout(LIMIT_SECONDS)
    assert receive(client) == frame(1, 3)


def test_half_closed_connection_still_carries_the_other_direction(
    link: Link, server: Server, client: socket.socket
) -> None:
    link.half_close("client")
    assert client.recv(1) == b""
    client.sendall(frame(1, 3))
    server.wait_for(frame(1, 3))


def test_unframed_link_forwards_bytes(server: Server) -> None:
    with Link([server.port], framing=None) as link, opened(link) as client:
        client.sendall(frame(5, 14))
        assert receive(client) == frame(5, 14)


def test_unreachable_server_ends_the_connection_at_once(link: Link, server: Server) -> None:
    server.close()
    stopwatch = Stopwatch()
    host, port = link.connect.split(":")
    with socket.create_connection((host, int(port)), LIMIT_SECONDS) as connection:
        assert receive(connection) == b""
        assert stopwatch.seconds < AT_ONCE


def test_refused_connections_are_accepted_again_at_the_same_port(server: Server) -> None:
    with Link([server.port], framing=Framing.ZOOKEEPER, own_ports=free_ports(1)) as link:
        host, port = link.connect.split(":")
        with opened(link) as connection:
            link.refuse(0)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)), LIMIT_SECONDS)
            connection.sendall(frame(1, 3))
            assert receive(connection) == frame(1, 3)
        link.accept(0)
        opened(link).close()


def test_reserved_port_is_not_free_and_its_server_can_listen_again() -> None:
    """Another program got the port of a broker that was down for 44 s. The broker could not start again."""
    (port,) = free_ports(1)
    holder = reserved_port(port)
    with holder, socket.socket() as probe:
        with pytest.raises(OSError, match="in use"):
            probe.bind(("127.0.0.1", port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)):
            socket.create_connection(("127.0.0.1", port)).close()


def test_full_queue_of_a_frozen_server_does_not_hold_up_later_connections() -> None:
    """A proxy waited two minutes for a frozen broker with a full queue. No process reached the broker that returned."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        port = listener.getsockname()[1]
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))  # the queue is full now
        with Link([port], framing=None) as link:
            host, own_port = link.connect.split(":")
            stopwatch = Stopwatch()
            with socket.create_connection((host, int(own_port)), LIMIT_SECONDS) as connection:
                assert receive(connection) == b""
            assert stopwatch.seconds < LIMIT_SECONDS / 2


@pytest.mark.parametrize("dropped", [False, True])
def test_trap_holds_a_transaction_before_the_server_receives_it(
    link: Link, server: Server, client: socket.socket, dropped: bool
) -> None:
    trap = link.trap = TransactionTrap(Timing.REQUEST, TERM)
    client.sendall(frame(1, 14, b"foreign"))
    assert receive(client) == frame(1, 14, b"foreign")
    client.sendall(apply_frame(2, 41))
    assert trap.wait(LIMIT_SECONDS)
    assert trap.fence == 41
    assert apply_frame(2, 41) not in server.received
    trap.release(dropped)
    assert receive(client) == (b"" if dropped else apply_frame(2, 41))
    assert (apply_frame(2, 41) in server.received) is not dropped


@pytest.mark.parametrize("dropped", [False, True])
def test_trap_holds_the_response_of_a_committed_transaction(
    link: Link, server: Server, client: socket.socket, dropped: bool
) -> None:
    trap = link.trap = TransactionTrap(Timing.ANSWER, TERM)
    client.sendall(apply_frame(7, 42))
    assert trap.wait(LIMIT_SECONDS)
    assert (trap.fence, apply_frame(7, 42) in server.received) == (42, True)
    trap.release(dropped)
    assert receive(client) == (b"" if dropped else apply_frame(7, 42))


def test_trap_holds_one_transaction_and_none_after_disarm(link: Link) -> None:
    trap = link.trap = TransactionTrap(Timing.REQUEST, TERM)
    with ExitStack() as stack:
        first, second = (stack.enter_context(opened(link)) for _ in range(2))
        first.sendall(apply_frame(1, 1))
        assert trap.wait(LIMIT_SECONDS)
        second.sendall(apply_frame(2, 1))
        assert receive(second) == apply_frame(2, 1)
        trap.release()
        assert receive(first) == apply_frame(1, 1)
        given_up = link.trap = TransactionTrap(Timing.REQUEST, TERM)
        given_up.disarm()
        first.sendall(apply_frame(3, 1))
        assert receive(first) == apply_frame(3, 1)
        assert not given_up.wait(0)


def test_trap_rearms_when_the_connection_ends_before_the_response(link: Link, server: Server) -> None:
    trap = link.trap = TransactionTrap(Timing.ANSWER, TERM)
    with opened(link) as first:
        server.answers = False
        first.sendall(apply_frame(1, 1))
        server.wait_for(apply_frame(1, 1))
        link.cut()
        assert receive(first) == b""
    server.answers = True
    assert not trap.wait(0)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not trap.wait(0) and time.monotonic() < deadline:  # the link may see the end of the first connection later
        with opened(link) as second:
            second.settimeout(0.1)
            second.sendall(apply_frame(2, 2))
            receive(second)
    assert (trap.wait(0), trap.fence) == (True, 2)
    trap.release()
