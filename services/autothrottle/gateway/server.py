"""The HTTP server of the gateway: uvicorn in a separate thread, with time limits for slow clients."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from autothrottle.core.errors import Unavailable
from autothrottle.gateway.answers import AdminService
from autothrottle.gateway.web import CERTIFICATE_NAMES, application
from autothrottle.runtime.access import Access
from autothrottle.runtime.health import Health
from autothrottle.runtime.request_quotas import RequestQuotas
from autothrottle_client.addresses import is_loopback_host

HEADER_SECONDS = 10.0
"""Time limit for receiving headers, from the connection or the first byte of a later request."""

BODY_SECONDS = 10.0

_KEEP_ALIVE_SECONDS = 5
_GRACE = timedelta(seconds=5)
_MOST_HEADER_BYTES = 16 * 1024
_MOST_CONNECTIONS = 500

MOST_CONNECTIONS_OF_HOST = 100
"""Beyond it, a new connection ends the host's oldest one that waits for a request."""

_BACKLOG = 128


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
        tls: ssl.SSLContext | None = None,
        health: Health | None = None,
        metrics: Callable[[], str] | None = None,
        option: str = "api-listen",
        quotas: RequestQuotas | None = None,
    ) -> None:
        """Bind to the address.

        Args:
            admin: the service that executes requests; None: only /metrics and the probes are served.
            listen: `host:port`; port 0 binds any free port.
            header_seconds: time limit for receiving the headers of a request.
            body_seconds: time limit for receiving the body.
            access: the known credentials; None: any caller is allowed.
            hosts: names in the `Host` header that are allowed beside the names of this host.
            tls: context for HTTPS; None: plain HTTP.
            health: the checks of the process; None: there are no checks.
            metrics: renders the metrics of the process in Prometheus' text format; None: there are none.
            option: name of the option with the address, for errors.
            quotas: the request quotas of the process; None: there are none.
        """
        self._socket = _bind(listen, option)
        self.address = f"{listen.rpartition(':')[0]}:{self._socket.getsockname()[1]}"
        """Listening address, `host:port` with the actual port."""
        self.bound_to: str = self._socket.getsockname()[0]
        """IP address of the listening socket."""

        is_local = is_loopback_host(self.bound_to)
        allowed = frozenset({*hosts, *_own_names(listen)})

        class Protocol(_LimitedProtocol):
            seconds = header_seconds
            open_by_host: ClassVar[dict[str, dict[_LimitedProtocol, None]]] = {}

        self._server = uvicorn.Server(
            uvicorn.Config(
                application(admin, body_seconds, access or Access(), allowed, health, metrics, is_local, quotas),
                http=Protocol,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=_MOST_CONNECTIONS,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
                ssl_context_factory=(lambda *_: tls) if tls else None,
            )
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="gateway-http")

    def start(self) -> None:
        """Start serving. Earlier requests wait in the socket's backlog."""
        self._thread.start()

    def __enter__(self) -> GatewayServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self, grace: timedelta = _GRACE) -> None:
        """Refuse new requests, let requests in progress finish within `grace`, and return. Idempotent."""
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
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # localhost resolves to 127.0.0.1 before ::1, as for the original's clients.
        family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
        both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server(address[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        # Connections inherit it. asyncio sets it only on sockets that name their protocol, which these do not.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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


class _LimitedProtocol(H11Protocol):
    """Closes connections whose headers arrive too late; uvicorn itself waits forever. Limits connections per host."""

    seconds = HEADER_SECONDS
    open_by_host: ClassVar[dict[str, dict[_LimitedProtocol, None]]]
    """Host -> its open connections, oldest first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer with the connection, and keep the names in the client's certificate for its requests."""
        self.app_state = {**self.app_state, CERTIFICATE_NAMES: _names(transport.get_extra_info("peercert") or {})}
        super().connection_made(transport)
        open_there = self.open_by_host.setdefault(self._host, {})
        if len(open_there) >= MOST_CONNECTIONS_OF_HOST:
            waiting = (other for other in open_there if other.conn.their_state is h11.IDLE)
            next(waiting, self).transport.close()
        open_there[self] = None
        self._watch()

    @property
    def _host(self) -> str:
        return self.client[0] if self.client else ""

    def data_received(self, data: bytes) -> None:
        """Receive data; stop the timer when the headers are complete."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Start the timer if part of another request has arrived; otherwise the connection is idle."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._unset_keepalive_if_required()
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
        self._forget()
        open_there = self.open_by_host[self._host]
        del open_there[self]
        if not open_there:
            del self.open_by_host[self._host]
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._late)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            return
        body = f"the headers did not arrive within {self.seconds:g} s; send them without delay\n".encode()
        self.transport.write(
            b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            + b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()
