"""A client whose calls end at their deadline: each runs in a thread, and another thread can shut down its socket."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool, PoolManager, exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection

from autothrottle.core.errors import Unavailable
from autothrottle.core.texts import json_integer
from autothrottle_client.tls import reloaded_authorities

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Limit of a response's decoded body: it is in memory as a whole, and a server may send it without an end."""
MAX_ERROR_BYTES = 64 * 1024
"""Bytes of an error's body that are read; the rest is cut off."""

_MAX_OFFSET_SECONDS = 2.0
"""Difference between the clocks that is not corrected: the Date header has whole seconds."""
_MAX_CORRECTED_SECONDS = 3600.0
"""Largest difference that is corrected. A larger one is an error of a clock or a proxy, not the time of samples."""

log = logging.getLogger(__name__)


def read_body(response: BaseHTTPResponse, limit: int = MAX_BODY_BYTES) -> bytes:
    """Read a response to its end; raises `Failure` if it has more bytes than `limit`. Errors are cut off."""
    if response.status >= 300:
        return response.read(MAX_ERROR_BYTES)
    body = response.read(limit + 1)
    if len(body) > limit:
        response.close()
        raise Failure(f"answers with more than {limit} bytes; the rest is not read", response.status)
    return body


def parse_json(body: bytes, limit: int = MAX_BODY_BYTES) -> Any:
    """Parse a body in which one odd text or number does not make the rest unreadable.

    Args:
        body: JSON in UTF-8.
        limit: the limit of the body. One with too many values for it, such as millions of empty lists, is a `Failure`:
            each list takes 64 bytes.
    """
    if body.count(b"[") + body.count(b"{") > limit // 32 or body.count(b",") > limit // 8:
        raise Failure(
            f"answers with too many values: more than {limit // 32} lists and objects, or {limit // 8} commas"
        )
    return json.loads(body.decode("utf-8", "replace"), parse_int=json_integer)


def read_json(response: BaseHTTPResponse, limit: int = MAX_BODY_BYTES) -> object:
    """Read a response to its end and parse it."""
    return parse_json(read_body(response, limit), limit)


def server_of(url: str) -> str:
    """Return scheme, host and port of a URL, for messages: the other parts may hold a user, a password or a token.

    >>> server_of("https://user:secret@b1.example:9100/metrics?token=abc")
    'https://b1.example:9100'
    """
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    except ValueError:
        return f"{url.partition('://')[0]}://(invalid)"


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a server."""

    name: str
    """Name of the request in messages."""
    send: Callable[[], BaseHTTPResponse]
    """Sends the request with `HttpClient.send`, which returns an unread response; raises `Failure` for an error of its
    own."""
    parse: Callable[[BaseHTTPResponse], object] = read_json
    """Reads and parses the response; raises `Failure` or ValueError if it is malformed."""
    is_optional: bool = False
    """Whether the other calls are of use without it. Its failure is its result and does not cut them."""


class Failure(Exception):
    """A call failed."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        """Predicate of the server: "does not answer (ReadTimeoutError)"."""
        self.status = status
        """HTTP status; None: no response."""


class TimedOut(Failure):
    """A call had no response at its deadline."""

    def __init__(self) -> None:
        super().__init__("does not answer in time")


class Exchange:
    """One call in progress; `cut` shuts down its socket, which ends any wait for the server."""

    _of_thread = threading.local()

    def __init__(self, call: Call, deadline: float) -> None:
        self._call = call
        self._deadline = deadline
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cut = False

    @classmethod
    def current(cls) -> Exchange:
        return cast(Exchange, cls._of_thread.exchange)

    def seconds_left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.001)

    def run(self) -> object:
        if self._is_cut or time.monotonic() >= self._deadline:
            raise TimedOut
        self._of_thread.exchange = self
        try:
            return self._call.parse(self._call.send())
        except Exception as error:  # one server's odd answer must not end the thread that reads all of them
            if self._call.is_optional:
                return _failure_of(error)
            raise _failure_of(error) from None
        finally:
            self.hold(None)

    def hold(self, connection: socket.socket | None) -> None:
        """Let `cut` end the waits for this connection; None: the call has ended.

        Holds a duplicate: TLS takes the descriptor away from the original socket, and a TLS socket must not be shut
        down under the thread that reads from it.
        """
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = connection and socket.fromfd(connection.fileno(), connection.family, connection.type)
            if self._is_cut:
                self._shut()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            self._shut()

    def _shut(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the server has already closed the connection
                self._socket.shutdown(socket.SHUT_RDWR)


def _failure_of(error: Exception) -> Failure:
    if isinstance(error, Failure):
        return error.with_traceback(None)  # it would keep the response, and so its socket
    is_refused = isinstance(error, exceptions.NewConnectionError)  # a subclass of ConnectTimeoutError
    if isinstance(error, TimeoutError | exceptions.TimeoutError) and not is_refused:
        return TimedOut()  # the socket's timeout came just before ours
    if isinstance(error, exceptions.SSLError):
        is_untrusted = bool(error.args) and isinstance(error.args[0], ssl.SSLCertVerificationError)
        return Failure(f"{'cannot be trusted' if is_untrusted else 'cannot agree on TLS'}: {error}")
    if isinstance(error, exceptions.HTTPError | OSError):
        return Failure(f"does not answer ({type(error).__name__})")
    if isinstance(error, UnicodeError):
        return Failure(f"cannot be called or read: {error}")
    if isinstance(error, ValueError | RecursionError):
        return Failure("answers with invalid JSON")
    log.error("Reading a response failed unexpectedly; it counts as unreadable. Fix: report this", exc_info=error)
    return Failure(f"cannot be read ({type(error).__name__}: {error})")


class HttpClient:
    """Sends concurrent requests, each until a deadline. `close` ends all running requests and the threads."""

    def __init__(
        self,
        name: str,
        width: int,
        server: str = "",
        advice: Mapping[int, str] | None = None,
        ca_file: str = "",
        most_servers: int = 10,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare; this sends nothing.

        Args:
            name: of the threads.
            width: number of concurrent requests.
            server: the server in messages.
            advice: status -> what an operator can do about a response with it.
            ca_file: PEM file with the authorities of the server's certificate; "": those of the system.
            most_servers: number of servers whose connections stay open until `drop_idle_connections`.
            tls: the context of TLS, instead of `ca_file`; None: one with the authorities in it.
        """
        # It would log the whole URL, which may hold a token, with each odd header.
        logging.getLogger("urllib3.connection").setLevel(logging.ERROR)
        self._threads = ThreadPoolExecutor(width, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._running: set[Exchange] = set()
        self._is_closed = False
        self._server, self._advice = server, advice or {}
        self._new_pools = partial(PoolManager, most_servers, maxsize=width, ssl_context=tls)
        self.authorities = reloaded_authorities(ca_file, "the server") if ca_file else None
        """Those of the server's certificate, read again when they change; None: the system's, or those of `tls`."""
        self._pools, self._pools_generation = self._new_pools(), 0
        self._renew_pools()

    def _renew_pools(self) -> None:
        """Connect anew from now on if the authorities have changed. Running requests finish on their connections."""
        pem, generation = self.authorities.current() if self.authorities else (None, 1)
        with self._lock:
            if generation == self._pools_generation:
                return
            old, self._pools_generation = self._pools, generation
            self._pools = self._new_pools(ca_cert_data=pem)
            self._pools.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
        _drop_idle(old)

    def close(self) -> None:
        """End all running requests and threads."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for exchange in running:
            exchange.cut()
        self._threads.shutdown(wait=True)
        self._pools.clear()

    def send(
        self, url: str, headers: Mapping[str, str], body: bytes | None = None, method: str = ""
    ) -> BaseHTTPResponse:
        """Send a request from within a call; return the unread response.

        Args:
            url: with its query.
            headers: names and values.
            body: of a request; None: no body.
            method: of HTTP; "": GET without a body, POST with one.
        """
        seconds = Exchange.current().seconds_left()
        self._renew_pools()
        return self._pools.request(
            method or ("GET" if body is None else "POST"),
            url,
            body=body,
            headers=headers,
            timeout=seconds,
            retries=False,
            redirect=False,
            preload_content=False,
        )

    def run(self, calls: Sequence[Call], deadline: float, *, stop_at_failure: bool) -> list[object | Failure]:
        """Return the result of each call, in order; `stop_at_failure` cuts the others at the first failure.

        Optional calls take at most half of the time that the others leave, so that the caller has the rest.
        """
        exchanges = [Exchange(call, deadline) for call in calls]
        futures = self._start(exchanges)
        required = [future for call, future in zip(calls, futures, strict=True) if not call.is_optional]
        until = FIRST_EXCEPTION if stop_at_failure else ALL_COMPLETED
        try:
            pending = wait(required, max(deadline - time.monotonic(), 0), until).not_done
            if not pending:
                wait(futures, max(deadline - time.monotonic(), 0) / 2)
            return [_answer(future) for future in futures]
        finally:
            for exchange in exchanges:
                exchange.cut()
            with self._lock:
                self._running.difference_update(exchanges)

    def fetch(self, calls: Sequence[Call], deadline: float) -> list[object | Failure]:
        """Return the result of each call, in order. Only an optional call can have a failure.

        Raises:
            Unavailable: another call failed; the message names it.
        """
        answers = self.run(calls, deadline, stop_at_failure=True)
        failed = [
            (call, answer)
            for call, answer in zip(calls, answers, strict=True)
            if isinstance(answer, Failure) and not call.is_optional
        ]
        if failed:
            # A failure that is not a timeout cut the other calls, which then count as timed out.
            raise self.error(*min(failed, key=lambda pair: isinstance(pair[1], TimedOut)))
        return answers

    def error(self, call: Call, failure: Failure) -> Unavailable:
        advice = self._advice.get(failure.status or 0, "")
        return Unavailable(f"{self._server} ({call.name}) {self.shown(failure.reason)}{advice}")

    def shown(self, reason: str) -> str:
        """Return the reason of a failure for messages."""
        return reason

    def drop_idle_connections(self) -> None:
        """Close idle connections; a firewall would drop them before the next call."""
        _drop_idle(self._pools)

    def _start(self, exchanges: Sequence[Exchange]) -> list[Future[object]]:
        with self._lock:
            if self._is_closed:
                raise Unavailable("this client is closed; create a new one")
            self._running.update(exchanges)
            return [self._threads.submit(exchange.run) for exchange in exchanges]


def _answer(future: Future[object]) -> object | Failure:
    if not future.done():
        return TimedOut()
    error = future.exception()
    return error if isinstance(error, Failure) else future.result()


def _drop_idle(manager: PoolManager) -> None:
    pools = manager.pools
    connection_pools = [pool.pool for pool in map(pools.get, pools.keys()) if pool and pool.pool]
    manager.clear()
    # A failed call keeps its pool, with all idle connections, alive until the next garbage collection.
    for connections in connection_pools:
        _close_all(connections)


def _close_all(connections: queue.LifoQueue[Any]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            if connection := connections.get(block=False):
                connection.close()


class _HttpConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        connection = super()._new_conn()
        Exchange.current().hold(connection)
        return connection

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        Exchange.current().hold(self.sock)
        return super().getresponse()


class _HttpsConnection(_HttpConnection, HTTPSConnection):
    """The same with TLS."""


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


class ServerClock:
    """A server's clock, which the Date headers of its responses show. Threads may note responses at the same time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Assume our own clock, which returns seconds since the epoch, until the first response."""
        self._clock = clock
        self._noted = 0.0
        self._refused = 0.0
        self.offset = 0.0
        """The server's clock minus ours, seconds; 0: at most 2 s."""

    def now(self) -> float:
        """Return the time on the server's clock, seconds since the epoch."""
        return self._clock() + self.offset

    def note(self, headers: Mapping[str, str]) -> None:
        """Remember the time of a response; one without a valid Date header changes nothing.

        A time that differs by more than an hour is only reported, see `warnings`.
        """
        try:
            sent = parsedate_to_datetime(headers["date"]).timestamp()
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        offset = sent - self._clock()
        if abs(offset) <= _MAX_CORRECTED_SECONDS:
            self._noted, self._refused = offset, 0.0
        else:
            self._refused = offset

    def corrected(self) -> bool:
        """Correct the offset by the last response; return whether it has changed."""
        noted = self._noted
        changed = abs(noted - self.offset) > _MAX_OFFSET_SECONDS
        if changed:
            self.offset = noted if abs(noted) > _MAX_OFFSET_SECONDS else 0.0
        return changed

    def warnings(self, server: str) -> tuple[str, ...]:
        """Return warnings that name the server if its clock differs from ours."""
        refused, offset = self._refused, self.offset
        warnings = []
        if refused:
            warnings.append(
                f"the Date header of {server} differs by {refused:+.0f} s from the clock of this host. It is ignored, "
                f"because it differs by more than {_MAX_CORRECTED_SECONDS:.0f} s. Fix: correct the clock of the server "
                "or of this host, or the proxy between them"
            )
        if offset:
            warnings.append(
                f"the clock of {server} differs by {offset:+.0f} s from the clock of this host. Its samples are used, "
                "with this difference. Fix: synchronise both clocks"
            )
        return tuple(warnings)
