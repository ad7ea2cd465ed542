"""Connections that break on demand: cut, held, delayed, half-closed, or caught in the middle of a transaction.

A `Link` stands between one process and the servers of one kind. On the way to ZooKeeper it understands where a request
begins and ends, so that a `Trap` can hold exactly the transaction that writes throttles, or exactly its answer.

Source: the framing of ZooKeeper's client protocol (length, xid, type); the first frame each way opens the session.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Literal

_MULTI = 14
_HELD_SECONDS = 60.0
"""After so long whatever is held goes on, lest a run that fails never ends."""

_LENGTH, _REQUEST, _VERSION = struct.Struct(">i"), struct.Struct(">ii"), struct.Struct(">i")


class Moment(Enum):
    """When something happens to whoever writes throttles."""

    REQUEST = "before the commit"
    """The transaction is on its way, and ZooKeeper does not have it yet."""
    ANSWER = "after the commit"
    """It is carried out, and whoever asked for it does not know yet."""
    ANY = "at any moment"


class Trap:
    """Holds the first transaction on throttles that comes by, or its answer, until it is let go."""

    def __init__(self, moment: Moment, term_path: str) -> None:
        self.moment = moment
        self.fence = 0
        """The term that the transaction checks, once it is caught."""
        self._term_path = term_path.encode()
        self._lock = threading.Lock()
        self._claimed = False
        self._caught, self._free = threading.Event(), threading.Event()
        self._dropped = False

    def wait(self, seconds: float) -> bool:
        """Whether something is caught by then."""
        return self._caught.wait(seconds)

    def give_up(self) -> None:
        """Catch nothing any more."""
        with self._lock:
            self._claimed = True

    def look_out_again(self) -> None:
        """Catch another one: the connection ended before the answer came."""
        with self._lock:
            self._claimed = False

    def release(self, dropped: bool = False) -> None:
        """Let what is held go on, or lose it together with its connection."""
        self._dropped = dropped
        self._free.set()

    def claim(self, frame: bytes) -> bool:
        """Whether this frame is the one that is caught."""
        if not self._is_apply(frame):
            return False
        with self._lock:
            first, self._claimed = not self._claimed, True
        if first:
            (self.fence,) = _VERSION.unpack_from(frame, frame.find(self._term_path) + len(self._term_path))
        return first

    def hold(self) -> bool:
        """Wait until it is let go; return whether it is to be lost."""
        self._caught.set()
        self._free.wait(_HELD_SECONDS)
        return self._dropped

    def _is_apply(self, frame: bytes) -> bool:
        is_multi = len(frame) >= _REQUEST.size and _REQUEST.unpack_from(frame)[1] == _MULTI
        return is_multi and self._term_path in frame and b"/config/" in frame


class Link:
    """All connections between one process and some servers on 127.0.0.1; a context manager."""

    def __init__(self, ports: Sequence[int], framed: bool) -> None:
        """Say where connections go.

        Args:
            ports: of the servers; there is one listener for each.
            framed: whether ZooKeeper's protocol is spoken; else bytes are passed on as they come.
        """
        self.trap: Trap | None = None
        """What looks out for a transaction on throttles; only where frames are known."""
        self.delay_seconds = 0.0
        """How much later everything arrives."""
        self.framed = framed
        self._open, self._closing = threading.Event(), threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._threads: list[threading.Thread] = []
        self._listeners = [(socket.create_server(("127.0.0.1", 0)), port) for port in ports]

    def __enter__(self) -> Link:
        for listener, port in self._listeners:
            self._begin(self._accept, listener, port)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._open.set()
        if self.trap is not None:
            self.trap.release(dropped=True)
        for listener, _port in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut()
        while self._threads:
            self._threads.pop().join()

    @property
    def connect(self) -> str:
        """Connection string, `host:port` by comma."""
        return ",".join(f"127.0.0.1:{listener.getsockname()[1]}" for listener, _ in self._listeners)

    # What breaks.

    def cut(self) -> None:
        """Close every connection; new ones are welcome."""
        for connection in self._standing():
            connection.cut()

    def half_close(self, towards: Literal["client", "server"]) -> None:
        """Say on every connection that nothing more will come from the other side, which goes on listening."""
        for connection in self._standing():
            connection.half_close(towards)

    def hold(self) -> None:
        """Let nothing through, without closing anything; new connections are accepted by nobody."""
        self._open.clear()

    def resume(self) -> None:
        """Let everything through again, what was held first."""
        self.delay_seconds = 0.0
        self._open.set()

    # Passing on.

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="link", daemon=True)
        with self._lock:
            self._threads = [other for other in self._threads if other.is_alive()]
            self._threads.append(thread)
            thread.start()

    def _standing(self) -> list[_Connection]:
        with self._lock:
            return list(self._connections)

    def _accept(self, listener: socket.socket, port: int) -> None:
        while not self._closing.is_set():
            try:
                client = listener.accept()[0]
            except OSError:
                return
            self._open.wait()
            try:
                server = socket.create_connection(("127.0.0.1", port))
            except OSError:
                client.close()
                continue
            connection = _Connection(client, server)
            with self._lock:
                self._connections.add(connection)
            if self._closing.is_set():
                connection.cut()
            self._begin(self._pass_on, connection, client, server, self._ask)
            self._begin(self._pass_on, connection, server, client, self._answer)

    def _pass_on(
        self,
        connection: _Connection,
        source: socket.socket,
        sink: socket.socket,
        may_pass: Callable[[_Connection, bytes], bool],
    ) -> None:
        whole = False
        with contextlib.suppress(OSError):
            for number, piece in enumerate(_frames(source) if self.framed else _pieces(source)):
                # The first frame opens the session and looks like any other.
                if self.framed and number and not may_pass(connection, piece):
                    raise ConnectionAbortedError("what was caught is lost")
                if self.delay_seconds:
                    time.sleep(self.delay_seconds)
                self._open.wait()
                sink.sendall(_LENGTH.pack(len(piece)) + piece if self.framed else piece)
            sink.shutdown(socket.SHUT_WR)
            whole = True
        if not whole:
            connection.cut()  # a direction that broke takes the other one along
        if connection.ended():
            with self._lock:
                self._connections.discard(connection)
            if connection.awaited is not None:
                connection.awaited[0].look_out_again()

    def _ask(self, connection: _Connection, frame: bytes) -> bool:
        trap = self.trap
        if trap is None or not trap.claim(frame):
            return True
        if trap.moment is Moment.REQUEST:
            return not trap.hold()
        connection.awaited = trap, _REQUEST.unpack_from(frame)[0]
        return True

    def _answer(self, connection: _Connection, frame: bytes) -> bool:
        awaited = connection.awaited
        if awaited is None or _LENGTH.unpack_from(frame)[0] != awaited[1]:
            return True
        connection.awaited = None
        return not awaited[0].hold()


class _Connection:
    """Two sockets, and what is expected on one of them."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.awaited: tuple[Trap, int] | None = None
        """The answer to hold, by its xid."""
        self._lock = threading.Lock()
        self._ended = 0

    def half_close(self, towards: Literal["client", "server"]) -> None:
        with contextlib.suppress(OSError):
            (self.client if towards == "client" else self.server).shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Break both; whoever reads from them wakes up."""
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def ended(self) -> bool:
        """Note that one direction is over; whether the other one was already, so that all is closed."""
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
    """Yield what the lengths in the stream say belongs together, without the lengths."""
    rest = b""
    for piece in _pieces(source):
        rest += piece
        while len(rest) >= _LENGTH.size and len(rest) >= _LENGTH.size + (length := _LENGTH.unpack_from(rest)[0]):
            yield rest[_LENGTH.size : _LENGTH.size + length]
            rest = rest[_LENGTH.size + length :]
