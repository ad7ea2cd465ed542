"""The HTTP server of the gateway: uvicorn in a separate thread, with limits of time and of connections.

A connection counts from its accept, before the TLS handshake, until it is closed or dropped. So probes of other hosts
are answered during a burst of connections of one host.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from asyncio.sslproto import SSLProtocol
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from autothrottle.core.errors import Unavailable
from autothrottle.core.retries import ACCEPT
from autothrottle.gateway.gate import CERTIFICATE_NAMES
from autothrottle.gateway.live import LiveView
from autothrottle.gateway.web import CONNECTION, AdminService, application
from autothrottle.runtime.access import Access
from autothrottle.runtime.call_limits import RequestQuotas
from autothrottle.runtime.connections import (
    LOG_SPACING_SECONDS,
    RefusalLog,
    host_of,
    share_of_descriptors,
)
from autothrottle.runtime.health import Health
from autothrottle_client.replicas import is_loopback_host

HEADER_SECONDS = 10.0
"""Time limit for receiving headers, from the connection or the first byte of a later request."""

BODY_SECONDS = 10.0

_KEEP_ALIVE_SECONDS = 5
_GRACE = timedelta(seconds=5)
_MOST_HEADER_BYTES = 16 * 1024
_MOST_CONNECTIONS = 500

MOST_CONNECTIONS_OF_HOST = 100
"""Beyond it, a new connection ends the host's oldest one that waits for a request."""

_TLS_SHUTDOWN_SECONDS = 2.0
_MOST_REQUEST_SECONDS = 120.0
"""Time limit of a request until its client has read the response, after which the connection is dropped."""

_STREAM_END_SECONDS = 2.0
"""Time for the rest of an event stream that has ended to reach its client."""

_BACKLOG = 4096
"""Connections that wait for their accept. The kernel drops others, and their clients try again after a second."""

# asyncio's buffer for decrypted data, which each TLS connection has: 256 kB by default. A TLS record has at most 16 kB.
SSLProtocol.max_size = 32 * 1024

_LENGTHS = {b"content-length", b"transfer-encoding"}

log = logging.getLogger(__name__)


class GatewayServer:
    """Serves HTTP while its context is open. It binds on creation.

    Raises:
        Unavailable: cannot listen on the address.
    """

    def __init__(
        self,
        admin: AdminService | None,
        listen: str,
        header_seconds: float = HEADER_SECONDS,
        body_seconds: float = BODY_SECONDS,
        access: Access | None = None,
        hosts: Collection[str] = (),
        tls: Callable[[], ssl.SSLContext] | None = None,
        health: Health | None = None,
        metrics: Callable[[], str] | None = None,
        option: str = "api-listen",
        quotas: RequestQuotas | None = None,
        live: LiveView | None = None,
        recoveries: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """Bind to the address.

        Args:
            admin: the service that executes requests; None: only /metrics and the probes are served.
            listen: `host:port`; port 0 binds any free port.
            header_seconds: time limit for receiving the headers of a request.
            body_seconds: time limit for receiving the body.
            access: the known credentials; None: any caller is allowed.
            hosts: names in the `Host` header that are allowed beside the names of this host.
            tls: returns the context of HTTPS for a new connection; None: plain HTTP.
            health: the checks of the process; None: there are no checks.
            metrics: renders the metrics of the process in Prometheus' text format; None: there are none.
            option: name of the option with the address, for errors.
            quotas: the request quotas of the process; None: there are none.
            live: the live state for the page, which runs while the server does; None: its routes do not exist.
            recoveries: returns the answer of GET /page/recoveries; None: the route does not exist.
        """
        self._live = live
        self._socket = _bind(listen, option)
        self.address = f"{listen.rpartition(':')[0]}:{self._socket.getsockname()[1]}"
        """Listening address, `host:port` with the actual port."""
        self.bound_to: str = self._socket.getsockname()[0]
        """IP address of the listening socket."""

        is_local = is_loopback_host(self.bound_to)
        allowed = frozenset({*hosts, *_own_names(listen)})

        self._server = _LimitedServer(
            uvicorn.Config(
                application(
                    admin,
                    body_seconds,
                    access or Access(),
                    allowed,
                    health,
                    metrics,
                    is_local,
                    quotas,
                    live,
                    recoveries,
                ),
                http=_LimitedProtocol,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
                ssl_context_factory=(lambda *_: tls()) if tls else None,
            ),
            _AcceptedConnections(f"HTTP port {self.address}"),
            header_seconds,
            tls,
        )
        for lines in (log, logging.getLogger("uvicorn.error"), logging.getLogger("asyncio")):
            lines.addFilter(_once_a_minute)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="gateway-http")

    def start(self) -> None:
        """Start serving. Earlier requests wait in the socket's backlog."""
        if self._live is not None:
            self._live.start()
        self._thread.start()

    def __enter__(self) -> GatewayServer:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def stop(self, grace: timedelta = _GRACE) -> None:
        """End event streams, refuse new requests, let others finish within `grace`, and return. Idempotent."""
        if self._live is not None:
            self._live.close()
        self._server.config.timeout_graceful_shutdown = grace.total_seconds()  # type: ignore[assignment]
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def _own_names(listen: str) -> set[str]:
    """Return the names by which a browser on this host or another one reaches the address."""
    return {"localhost", listen.rpartition(":")[0].lower(), socket.gethostname().lower()}


def _bind(listen: str, option: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    try:
        addresses = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # localhost resolves to 127.0.0.1 before ::1, as for the original's clients.
        family, _, _, _, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)
        both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server(address[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        # Connections inherit it. asyncio sets it only on sockets that name their protocol, which these do not.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.setblocking(False)
        return listening
    except OSError as error:
        raise Unavailable(
            f"gateway cannot listen on {listen}: {error.strerror}. Fix: stop the program that holds it, or choose "
            f"another with --{option} (127.0.0.1:0 takes any free port)."
        ) from error


def _names(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the common name and the alternative names of a verified certificate, as `getpeercert` has them."""
    subject = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return (*subject, *(value for _, value in certificate.get("subjectAltName", ())))


class _OnceAMinute(logging.Filter):
    """Lets each warning and error through once per minute: a caller can cause one with each connection or request."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}
        """Text, and the place of an exception -> time of its last line; both are fixed in the code."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log the record."""
        now, text = time.monotonic(), f"{record.msg} {_origin(record)}"
        if now - self._last.get(text, -LOG_SPACING_SECONDS) < LOG_SPACING_SECONDS:
            return False
        self._last[text] = now
        return True


def _origin(record: logging.LogRecord) -> str:
    """Return the type and the line of the exception of a record; "": it has none."""
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    place = record.exc_info[2]
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place is not None else ""
    return f"{record.exc_info[0].__name__} {where}"


_once_a_minute = _OnceAMinute()


class _AcceptedConnections:
    """The connections of a port by host, in the order of their accept. Only the server's loop uses it."""

    def __init__(self, port: str) -> None:
        """`port` names the port in the log."""
        self.log = RefusalLog(port)
        """Connections beyond the limits."""
        self.malformed = RefusalLog(port, cause="requests that are not HTTP", rule="")
        """Connections with a request that cannot be parsed."""
        self._most = share_of_descriptors(_MOST_CONNECTIONS, 8)
        self.most_of_host = min(MOST_CONNECTIONS_OF_HOST, self._most // 2)
        self._by_host: dict[str, dict[_LimitedProtocol, None]] = {}
        self._count = 0

    def has_room(self, host: str) -> bool:
        """Make room for a connection of a host: drop the oldest one that waits; False: all have requests in progress.

        At the host's limit it is one of the host itself, at the total limit one of the busiest host.
        """
        if len(self._by_host.get(host, ())) >= self.most_of_host:
            return self._dropped_one(host)
        if self._count < self._most:
            return True
        return any(map(self._dropped_one, sorted(self._by_host, key=lambda host: -len(self._by_host[host]))))

    def add(self, connection: _LimitedProtocol) -> None:
        """Count a connection."""
        self._by_host.setdefault(connection.host, {})[connection] = None
        self._count += 1

    def remove(self, connection: _LimitedProtocol) -> None:
        """Count a connection no longer. Idempotent."""
        of_host = self._by_host.get(connection.host, {})
        if connection in of_host:
            self._count -= 1
            del of_host[connection]
        if not of_host:
            self._by_host.pop(connection.host, None)

    def drop_stuck(self, now: float) -> None:
        """Drop connections whose request or end takes too long, for example because the client does not read."""
        for connection in [connection for of_host in self._by_host.values() for connection in of_host]:
            if connection.busy_seconds(now) > _MOST_REQUEST_SECONDS:
                connection.drop()

    def _dropped_one(self, host: str) -> bool:
        waiting = next((connection for connection in self._by_host[host] if connection.is_waiting), None)
        if waiting is None:
            return False
        waiting.drop()
        self.log.add([host])
        return True


class _LimitedServer(uvicorn.Server):
    """uvicorn with an accept of its own, which counts a connection before it costs more than its descriptor."""

    def __init__(
        self,
        config: uvicorn.Config,
        connections: _AcceptedConnections,
        header_seconds: float,
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        super().__init__(config)
        self._connections, self._header_seconds, self._tls = connections, header_seconds, tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start without uvicorn's listeners, and accept from these sockets."""
        await super().startup(sockets=[])
        self._loop = asyncio.get_running_loop()
        for listening in sockets or ():
            self._loop.add_reader(listening, self._accept, listening)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and shut down."""
        for listening in sockets or ():
            self._loop.remove_reader(listening)
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Drop stuck connections, and log those that were closed since the last line."""
        self._connections.drop_stuck(self._loop.time())
        self._connections.log.write()
        self._connections.malformed.write()
        return await super().on_tick(counter)

    def _accept(self, listening: socket.socket) -> None:
        """Accept all connections that wait, and begin with one of each host: a burst of one host delays no other."""
        by_host: dict[str, deque[socket.socket]] = {}
        for connection, host in self._waiting(listening):
            newest = by_host.setdefault(host, deque())
            newest.append(connection)
            if len(newest) > self._connections.most_of_host:
                newest.popleft().close()
                self._connections.log.add([host])
        for round_of_hosts in zip_longest(*by_host.values()):
            for host, connection in zip(by_host, round_of_hosts, strict=True):
                if connection is not None:
                    self._begin(connection, host)

    def _waiting(self, listening: socket.socket) -> Iterator[tuple[socket.socket, str]]:
        """Yield the connections that wait for their accept, and their hosts."""
        for _ in range(_BACKLOG):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            connection.setblocking(False)
            yield connection, host_of(address[0])

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Wait for a second, because the process or the host lacks descriptors or memory."""
        log.warning("Cannot accept connections (%s). The next attempt follows in a second", error.strerror)
        self._loop.remove_reader(listening)
        self._loop.call_later(ACCEPT.first, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if not self.should_exit:
            self._loop.add_reader(listening, self._accept, listening)

    def _begin(self, connection: socket.socket, host: str) -> None:
        """Serve a connection, from its TLS handshake on."""
        if not self._connections.has_room(host):
            connection.close()
            self._connections.log.add([host])
            return
        protocol = _LimitedProtocol(self.config, self.server_state, host, self._connections, self._header_seconds)
        protocol.begin(connection, self._tls() if self._tls else None)


class _LimitedProtocol(H11Protocol):
    """Closes connections whose headers arrive too late; uvicorn itself waits forever."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        host: str,
        connections: _AcceptedConnections,
        header_seconds: float,
    ) -> None:
        super().__init__(config, server_state, {})
        self.host, self._connections, self._seconds = host, connections, header_seconds
        self._is_dropped = self._is_stream = False
        self._timer: asyncio.TimerHandle | None = None
        self._busy: tuple[object, float] = (None, 0.0)
        """The last request, and when `busy_seconds` has noticed it."""

    def begin(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve an accepted connection. It counts from now on."""
        self._socket, self._tls = connection, tls
        self._connections.add(self)
        self._start = self.loop.create_task(self._connect())

    @property
    def is_waiting(self) -> bool:
        """Whether no request is in progress, so that the connection may be dropped."""
        return self.cycle is None or self.cycle.response_complete

    def busy_seconds(self, now: float) -> float:
        """Return for how long the current request or the end of the connection has been in progress."""
        is_closing = self.transport is not None and self.transport.is_closing()
        request = "closing" if is_closing else None if self.is_waiting else self.cycle
        if request is None or request is not self._busy[0]:
            self._busy = (request, now)
        return now - self._busy[1]

    def become_stream(self) -> None:
        """Let the current response be an event stream: streams have a limit of their own, and no time limit."""
        self._is_stream = True
        self._connections.remove(self)

    def drop(self) -> None:
        """Close at once. The connection no longer counts."""
        self._is_dropped = True
        self._connections.remove(self)
        if self.transport is not None:
            self.transport.abort()
        else:
            with suppress(OSError):  # the client has left
                self._socket.shutdown(socket.SHUT_RDWR)  # the TLS handshake reads its end

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer with the connection, and keep the names in the client's certificate for its requests."""
        names = _names(transport.get_extra_info("peercert") or {})
        self.app_state = {CERTIFICATE_NAMES: names, CONNECTION: self}
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Receive data; stop the timer when the headers are complete."""
        super().data_received(data)
        self._watch()

    def handle_events(self) -> None:
        """Handle received data, and let a request of ambiguous length close its connection (RFC 9112, 6.1)."""
        super().handle_events()
        if self.headers and {name for name, _ in self.headers} >= _LENGTHS and CLOSE_HEADER not in self.headers:
            self.headers.append(CLOSE_HEADER)

    def send_400_response(self, msg: str) -> None:
        """Answer data that is not HTTP, and close. Without an answer if it is the body of a request in progress.

        uvicorn itself would begin a second response, which fails with a traceback.
        """
        self._connections.malformed.add([self.host])
        if self.conn.our_state is h11.IDLE or (self.conn.our_state is h11.SEND_RESPONSE and self.is_waiting):
            super().send_400_response(msg)
            return
        if not self.is_waiting:
            self.cycle.disconnected = True  # its application reads the end of the request, and what it sends is dropped
            self.cycle.message_event.set()
        self.transport.close()

    def on_response_complete(self) -> None:
        """Start the timer if part of another request has arrived; otherwise the connection is idle."""
        super().on_response_complete()
        if self._is_stream:  # it no longer counts as a connection, so it must not wait for another request
            self.transport.close()
            # A client that does not read would otherwise keep its descriptor, which no limit counts.
            self.loop.call_later(_STREAM_END_SECONDS, self.transport.abort)
            return
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._unset_keepalive_if_required()
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
        self._forget()
        self._connections.remove(self)
        super().connection_lost(exc)

    async def _connect(self) -> None:
        """Start the connection after its TLS handshake, if it has one."""
        tls = self._tls
        limits = {"ssl_handshake_timeout": self._seconds, "ssl_shutdown_timeout": _TLS_SHUTDOWN_SECONDS} if tls else {}
        try:
            if tls:
                async with asyncio.timeout(self._seconds):
                    await self._first_byte()
            if not self._is_dropped:
                await self.loop.connect_accepted_socket(lambda: self, self._socket, ssl=tls, **limits)
        except OSError:  # the client has left, the handshake failed, or the first byte is late
            pass
        finally:
            if self.transport is None:
                self._connections.remove(self)
                self._socket.close()

    async def _first_byte(self) -> None:
        """Wait for the client's first byte: the state of a TLS handshake takes 60 kB."""
        arrived = asyncio.Event()
        self.loop.add_reader(self._socket, arrived.set)
        try:
            await arrived.wait()
        finally:
            self.loop.remove_reader(self._socket)

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._seconds, self._late)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            return
        body = f"the headers did not arrive within {self._seconds:g} s; send them without delay\n".encode()
        self.transport.write(
            b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            + b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()
