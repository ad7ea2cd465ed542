"""Proxied connections that break on demand: cut, held, delayed, half-closed, or held during a request.

A `Link` is the proxy between one process and some servers. For ZooKeeper and Kafka it parses the frames, so that a
`Trap` can hold a request, or its response: in ZooKeeper, the transaction that writes throttles.

Source: the framing of ZooKeeper's client protocol (length, xid, type) and of Kafka's (length, API key, API version,
correlation id). The first frame in each direction opens the session, or negotiates the versions.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Literal, NamedTuple, Protocol

_MULTI = 14
_HELD_SECONDS = 60.0
"""Longest time to hold a frame, so that a failing run ends."""
_CONNECT_SECONDS = 1.0
"""Longest wait for a server to accept. A frozen one stops to accept once its queue is full, and a connection that waits
for it until then is tried again only after many seconds."""

_LENGTH, _REQUEST, _VERSION = struct.Struct(">i"), struct.Struct(">ii"), struct.Struct(">i")
_KAFKA_REQUEST = struct.Struct(">hhi")


class Framing(Enum):
    """The protocol whose frames a link parses. A response begins with the id of its request."""

    ZOOKEEPER = "xid, type"
    KAFKA = "API key, API version, correlation id"

    def request_id(self, frame: bytes) -> int:
        """Return the id of a request."""
        return int(_LENGTH.unpack_from(frame)[0] if self is Framing.ZOOKEEPER else _KAFKA_REQUEST.unpack_from(frame)[2])


def kafka_api(frame: bytes) -> int:
    """Return the API key of one of Kafka's requests; -1: the frame is too short."""
    return int(_KAFKA_REQUEST.unpack_from(frame)[0]) if len(frame) >= _KAFKA_REQUEST.size else -1


class Answer(NamedTuple):
    """What a client gets."""

    frame: bytes | None
    """The response; None: the connection is cut."""
    seconds: float = 0.0
    """Delay."""


class Liar(Protocol):
    """Changes responses; `lies` has one."""

    def answer(self, request: bytes, response: bytes, /) -> Answer:
        """Return what the client gets instead of a response."""


class Timing(Enum):
    """The time of a fault, relative to a request: in ZooKeeper, a transaction that writes throttles."""

    REQUEST = "before the commit"
    """The client has sent the request, and the server has not received it."""
    FORWARDED = "after the request"
    """The server has just received the request. Kafka only."""
    ANSWER = "after the commit"
    """The server has executed the request, and the client has not received the response."""
    ANY = "at any time"


class Trap:
    """Holds the first request that matches, or its response, until `release`. It is thread-safe."""

    def __init__(self, timing: Timing, matches: Callable[[bytes], bool]) -> None:
        """Prepare a trap.

        Args:
            timing: when to hold: the request, or its response.
            matches: frame of a request -> whether to hold it.
        """
        self.timing = timing
        self.request = b""
        """The held request; empty before."""
        self._matches = matches
        self._lock = threading.Lock()
        self._claimed = False
        self._caught, self._released = threading.Event(), threading.Event()
        self._dropped = False

    def wait(self, seconds: float) -> bool:
        """Wait until a frame is held, at most `seconds`; return whether one is."""
        return self._caught.wait(seconds)

    def disarm(self) -> None:
        """Hold no more frames."""
        with self._lock:
            self._claimed = True

    def rearm(self) -> None:
        """Hold another request, because the connection ended before the response."""
        with self._lock:
            self._claimed = False

    def release(self, dropped: bool = False) -> None:
        """Forward the held frame, or drop it together with its connection."""
        self._dropped = dropped
        self._released.set()

    def claim(self, frame: bytes) -> bool:
        """Return whether to hold this frame: it is the first request that matches."""
        if not self._matches(frame):
            return False
        with self._lock:
            first, self._claimed = not self._claimed, True
        if first:
            self.request = frame
        return first

    def hold(self) -> bool:
        """Wait for `release`; return whether to drop the frame."""
        self._caught.set()
        self._released.wait(_HELD_SECONDS)
        return self._dropped


class TransactionTrap(Trap):
    """Holds the first of ZooKeeper's transactions on throttles, or its response."""

    def __init__(self, timing: Timing, term_path: str) -> None:
        super().__init__(timing, self._is_apply)
        self._term_path = term_path.encode()

    @property
    def fence(self) -> int:
        """The term that the held transaction checks; 0 before."""
        if not self.request:
            return 0
        return int(_VERSION.unpack_from(self.request, self.request.find(self._term_path) + len(self._term_path))[0])

    def _is_apply(self, frame: bytes) -> bool:
        is_multi = len(frame) >= _REQUEST.size and _REQUEST.unpack_from(frame)[1] == _MULTI
        return is_multi and self._term_path in frame and b"/config/" in frame


class Link:
    """The proxy of all connections between one process and some servers on 127.0.0.1; a context manager."""

    def __init__(self, ports: Sequence[int], framing: Framing | None, own_ports: Sequence[int] | None = None) -> None:
        """Open one listener for each server.

        Args:
            ports: ports of the servers.
            framing: the protocol to parse; None: forward bytes as they arrive.
            own_ports: ports of the listeners, which `refuse` needs; None: any.
        """
        self.trap: Trap | None = None
        """The trap for requests; it needs a `framing`."""
        self.observe: Callable[[bytes], None] = _ignore
        """Called with each request before it is forwarded, by several threads; it needs a `framing`."""
        self.observe_response: Callable[[bytes], None] = _ignore
        """Called with each response right before the client gets it, by several threads; it needs a `framing`."""
        self.liar: Liar | None = None
        """Changes the responses; it needs a `framing`."""
        self.delay_seconds = 0.0
        """Delay of each frame in each direction."""
        self.framing = framing
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._threads: list[threading.Thread] = []
        self._ports = ports
        self._listeners = [socket.create_server(("127.0.0.1", port)) for port in own_ports or [0] * len(ports)]
        self._own_ports: list[int] = [listener.getsockname()[1] for listener in self._listeners]
        self._reserved: dict[int, socket.socket] = {}
        """Server -> the reserved port of its listener, while connections are refused."""
        self._gates = [threading.Event() for _ in ports]
        """For each server: whether data is forwarded."""
        self.resume()

    def __enter__(self) -> Link:
        for server in range(len(self._ports)):
            self._listen(server)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self.resume()
        if self.trap is not None:
            self.trap.release(dropped=True)
        for listener in self._listeners:
            _end_listener(listener)
        for reserved in self._reserved.values():
            reserved.close()
        self.cut()
        while True:
            with self._lock:  # a thread is in the list right before it is started
                if not self._threads:
                    return
                thread = self._threads.pop()
            thread.join()

    @property
    def connect(self) -> str:
        """Connection string: `host:port`, separated by commas."""
        return ",".join(f"127.0.0.1:{port}" for port in self._own_ports)

    # Faults

    def cut(self) -> None:
        """Close every connection; new ones are accepted."""
        for connection in self._current():
            connection.cut()

    def half_close(self, towards: Literal["client", "server"]) -> None:
        """Send FIN towards one side of every connection; data in the opposite direction still passes."""
        for connection in self._current():
            connection.half_close(towards)

    def hold(self, server: int | None = None) -> None:
        """Stop forwarding without closing connections; new connections are not served.

        Args:
            server: position of the server; None: all servers.
        """
        for gate in self._gates if server is None else [self._gates[server]]:
            gate.clear()

    def resume(self, server: int | None = None) -> None:
        """Forward again without delay, held data first; `server` as in `hold`."""
        self.delay_seconds = 0.0
        for gate in self._gates if server is None else [self._gates[server]]:
            gate.set()

    def refuse(self, server: int) -> None:
        """Refuse new connections to a server, as the host of a process that has ended does."""
        _end_listener(self._listeners[server])
        self._reserved[server] = reserved_port(self._own_ports[server])

    def accept(self, server: int) -> None:
        """Accept connections again after `refuse`."""
        self._listeners[server] = socket.create_server(("127.0.0.1", self._own_ports[server]))
        self._reserved.pop(server).close()
        self._listen(server)

    def reset(self) -> None:
        """Forward again, without trap, observers and liar, so that another run can use the link."""
        self.trap, self.observe, self.observe_response, self.liar = None, _ignore, _ignore, None
        self.resume()

    # Forwarding

    def _listen(self, server: int) -> None:
        self._start_thread(self._accept, self._listeners[server], self._ports[server], self._gates[server])

    def _start_thread(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="link", daemon=True)
        with self._lock:
            self._threads = [other for other in self._threads if other.is_alive()]
            self._threads.append(thread)
            thread.start()

    def _current(self) -> list[_Connection]:
        with self._lock:
            return list(self._connections)

    def _accept(self, listener: socket.socket, port: int, gate: threading.Event) -> None:
        while not self._closing.is_set():
            try:
                client = listener.accept()[0]
            except OSError:
                return
            gate.wait()
            try:
                server = socket.create_connection(("127.0.0.1", port), _CONNECT_SECONDS)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            connection = _Connection(client, server)
            with self._lock:
                self._connections.add(connection)
            if self._closing.is_set():
                connection.cut()
            self._start_thread(self._forward, connection, client, server, gate, self._on_request)
            self._start_thread(self._forward, connection, server, client, gate, self._on_response)

    def _forward(
        self,
        connection: _Connection,
        source: socket.socket,
        sink: socket.socket,
        gate: threading.Event,
        handle: Callable[[_Connection, bytes], bool],
    ) -> None:
        complete = False
        with contextlib.suppress(OSError):
            for number, piece in enumerate(_frames(source) if self.framing else _pieces(source)):
                # The first frame opens the session; its bytes may look like a request.
                if self.framing is Framing.KAFKA and not number and sink is connection.server:
                    connection.first = piece
                if self.framing and number and not handle(connection, piece):
                    raise ConnectionAbortedError("the held frame is dropped")
                if self.delay_seconds:
                    time.sleep(self.delay_seconds)
                gate.wait()
                if self.framing and sink is connection.client:
                    piece = self._lied(connection, number, piece)
                    self.observe_response(piece)
                sink.sendall(_LENGTH.pack(len(piece)) + piece if self.framing else piece)
                if sink is connection.server and (trap := connection.forwarded_trap(piece)) and trap.hold():
                    raise ConnectionAbortedError("the connection is cut after the request")
            sink.shutdown(socket.SHUT_WR)
            complete = True
        if not complete:
            connection.cut()  # an error in one direction ends the other one, too
        if connection.ended():
            with self._lock:
                self._connections.discard(connection)
            if connection.awaited_response is not None:
                connection.awaited_response[0].rearm()

    def _lied(self, connection: _Connection, number: int, response: bytes) -> bytes:
        """Return what the client gets instead of the Nth response."""
        request = connection.requests.pop(_LENGTH.unpack_from(response)[0], None) if number else connection.first
        if self.liar is None or request is None:
            return response
        frame, seconds = self.liar.answer(request, response)
        if frame is None:
            raise ConnectionAbortedError("the connection is cut after the request")
        self._closing.wait(seconds)
        return frame

    def _on_request(self, connection: _Connection, frame: bytes) -> bool:
        self.observe(frame)
        if self.liar is not None and self.framing is not None and len(frame) >= _KAFKA_REQUEST.size:
            connection.requests[self.framing.request_id(frame)] = frame
        trap = self.trap
        if trap is None or self.framing is None or not trap.claim(frame):
            return True
        if trap.timing is Timing.REQUEST:
            return not trap.hold()
        connection.awaited_response = trap, self.framing.request_id(frame)
        return True

    def _on_response(self, connection: _Connection, frame: bytes) -> bool:
        awaited_response = connection.awaited_response
        if awaited_response is None or _LENGTH.unpack_from(frame)[0] != awaited_response[1]:
            return True
        connection.awaited_response = None
        return not awaited_response[0].hold()


def reserved_port(port: int) -> socket.socket:
    """Return a socket that keeps `free_ports` of other programs from giving away the port of a server that is down.

    It refuses connections. The server can listen again before or after the socket is closed.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", port))
    return holder


def _end_listener(listener: socket.socket) -> None:
    """Close a listener, and wake up the thread that accepts its connections."""
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _ignore(frame: bytes) -> None:
    """Observe nothing."""


class _Connection:
    """Both sockets of a proxied connection."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.first: bytes | None = None
        """Kafka's first request, for the versions."""
        self.requests: dict[int, bytes] = {}
        """Id -> request without a response yet, for a liar."""
        self.awaited_response: tuple[Trap, int] | None = None
        """The trap and the id of the response to hold."""
        self._lock = threading.Lock()
        self._ended = 0

    def forwarded_trap(self, frame: bytes) -> Trap | None:
        """Return the trap that holds the connection now that its request is forwarded."""
        trap = self.awaited_response[0] if self.awaited_response else None
        return trap if trap is not None and trap.timing is Timing.FORWARDED and trap.request is frame else None

    def half_close(self, towards: Literal["client", "server"]) -> None:
        with contextlib.suppress(OSError):
            (self.client if towards == "client" else self.server).shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Shut down both sockets, which wakes up their readers."""
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def ended(self) -> bool:
        """Record the end of one direction; close the sockets and return True at the end of the second one."""
        with self._lock:
            self._ended += 1
            over = self._ended == 2
        if over:
            self.client.close()
            self.server.close()
        return over


def _pieces(source: socket.socket) -> Iterator[bytes]:
    return iter(lambda: source.recv(65536), b"")


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Yield the frames of a stream, without their lengths."""
    rest = b""
    for piece in _pieces(source):
        rest += piece
        while len(rest) >= _LENGTH.size and len(rest) >= _LENGTH.size + (length := _LENGTH.unpack_from(rest)[0]):
            yield rest[_LENGTH.size : _LENGTH.size + length]
            rest = rest[_LENGTH.size + length :]
