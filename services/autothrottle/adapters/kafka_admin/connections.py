"""Requests to brokers, all at once, each bounded by its deadline: an event loop of kafka-python and its connections.

What kafka-python 3.0.12 leaves to its user is done here, where its source is known:

- It waits without limit for a TLS handshake: `exchange` does not wait for it, but for an event, and what hangs is given
  up in the end.
- It asks name servers in the thread that drives all connections: here each name has a thread of its own (`_Names`).
- A request that was buffered while its connection was being made outlives its own time-out: a connection is awaited
  first, which also tells what was certainly never sent.
- Its bootstrap hides why a connection failed (a wrong password, for one), and its refresh of metadata bootstraps
  again without limit: neither is used; metadata is asked for like anything else.
- A socket whose connection failed is left to the garbage collector (see `_CollectedSocket`), and what a broker said
  right before it closed is lost (see `_LastWords`).
- At the level DEBUG it logs passwords: it is heard from CRITICAL upwards; its errors reach the caller as values.

`Connections` is the type to know. Nothing is decided here: who is asked is in `routing`.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

with warnings.catch_warnings():
    # It reads its schemas through a function of importlib.resources that is deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors
    import kafka.future
    import kafka.net.inet
    import kafka.net.manager
    import kafka.net.selector
    import kafka.protocol.admin
    import kafka.protocol.metadata

__all__ = ["CLIENT", "CollectedTlsSocket", "Connections", "Node", "Silence", "kafka"]

Node = int | str
"""A broker id, or `bootstrap-N` for the Nth configured server, of which no more is known than its address."""
Request = Any
Response = Any
"""kafka-python's own classes; it has no type information."""

CLIENT: Mapping[str, Any] = {"proxy_url": "direct://"}
"""Options for every client of kafka-python; `direct` names `_DirectConnection`."""

_RETRY_MILLISECONDS = 50
_MAX_RETRY_MILLISECONDS = 500
"""So long at most a broker that could not be reached is left alone before the next attempt."""
_MAX_ABANDONED = 20
"""After so many connections that neither came about nor failed in time they are given up, all together."""
_CLOSE_SECONDS = 3.0
_NAME_SECONDS = 10.0
"""So long the answer of a name server is taken for true."""
_EARLIER = 0.95
"""Of the time that is left: what kafka-python gets, so that a connection that stands ends its request itself."""

logging.getLogger("kafka").setLevel(logging.CRITICAL)


class _LastWords:
    """A socket's own mixin: what a broker says right before it closes is heard.

    kafka-python drops what it has received when it finds the end in the same breath, as it does when a broker refuses a
    password: the reason was lost. So the end is not told together with data, but the next time.
    """

    _heard = False

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Return what has arrived, b"" at the end.

        Raises:
            BlockingIOError: there is nothing, or only the end, right after data.
        """
        data: bytes = super().recv(buflen, flags)  # type: ignore[misc]
        if not data and self._heard:
            self._heard = False
            raise BlockingIOError
        self._heard = bool(data)
        return data


class _CollectedSocket(_LastWords, socket.socket):
    """A socket that may be left to the garbage collector."""

    def __del__(self) -> None:
        self.close()


class CollectedTlsSocket(_LastWords, ssl.SSLSocket):
    """The same with TLS: for `SSLContext.sslsocket_class`."""

    def __del__(self) -> None:
        self.close()


class _DirectConnection(kafka.net.inet.KafkaNetSocket):  # type: ignore[misc]
    """A connection without a proxy; kafka-python finds this class by its scheme.

    kafka-python 3.0.12 leaves sockets to the garbage collector when a connection is refused, and when a client is
    closed with something unsent. Python warns of each at some later moment, which is an error in somebody's test.
    """

    SCHEMES = ("direct",)

    def dns_lookup(self, host: str, port: int, raise_error: bool = False) -> Any:
        """Return what `_Names` has found, and ask only if it was not asked."""
        return _found(host, port) or super().dns_lookup(host, port, raise_error)

    def socket(self, family: int, sock_type: int, proto: int) -> socket.socket:
        """Return a new socket."""
        return _CollectedSocket(family, sock_type, proto)


_names: dict[tuple[str, int], tuple[float, Any]] = {}
"""Host and port -> until when it is true, and what a name server said."""


def _found(host: str, port: int) -> Any:
    until, addresses = _names.get((host, port), (0.0, None))
    return addresses if time.monotonic() < until else None


class _Names:
    """Name servers, asked in threads of their own; all calls come from the loop's thread."""

    def __init__(self, net: Any) -> None:
        self._net = net
        self._asked: dict[tuple[str, int], Any] = {}

    async def ask(self, host: str, port: int) -> None:
        """Wait until the name is known, or known to be unknown."""
        if _is_address(host) or _found(host, port):
            return
        name = (host, port)
        if name not in self._asked:
            self._asked[name] = kafka.future.Future()
            threading.Thread(target=self._look_up, args=name, name="kafka-name", daemon=True).start()
        await self._asked[name]

    def _look_up(self, host: str, port: int) -> None:
        try:
            found = socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
            _names[host, port] = (time.monotonic() + _NAME_SECONDS, found)
            outcome: OSError | None = None
        except (OSError, UnicodeError) as error:
            outcome = OSError(f"the name {host} cannot be resolved: {error}")
        with suppress(Exception):  # the loop has ended meanwhile
            self._net.call_soon_threadsafe(lambda: self._tell((host, port), outcome))

    def _tell(self, name: tuple[str, int], error: OSError | None) -> None:
        future = self._asked.pop(name)
        if error:
            future.failure(error)
        else:
            future.success(None)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Silence:
    """Why there is no response."""

    error: BaseException
    sent: bool
    """Whether the request may have reached the broker all the same."""


class Connections:
    """Connections to the brokers of one cluster, driven by one thread; thread-safe."""

    def __init__(self, servers: Sequence[str], options: Mapping[str, Any], setup_timeout: timedelta) -> None:
        """Start the thread; nothing is connected yet.

        Args:
            servers: `host:port` each; their nodes are `bootstrap_nodes`.
            options: kafka-python's: security_protocol, sasl_*, ssl_*, client_id.
            setup_timeout: how long a connection may be in the making.
        """
        milliseconds = int(setup_timeout.total_seconds() * 1000)
        self._net = kafka.net.selector.NetworkSelector(client_id=options.get("client_id", "autothrottle"))
        self._manager = kafka.net.manager.KafkaConnectionManager(
            self._net,
            **{"client_id": "autothrottle", **CLIENT, **options},
            bootstrap_servers=list(servers),
            socket_connection_setup_timeout_ms=milliseconds,
            socket_connection_setup_timeout_max_ms=milliseconds,
            reconnect_backoff_ms=_RETRY_MILLISECONDS,
            reconnect_backoff_max_ms=_MAX_RETRY_MILLISECONDS,
            max_in_flight_requests_per_connection=1_000,
            receive_message_max_bytes=100_000_000,
        )
        self._names = _Names(self._net)
        self._open: dict[Node, Any] = {}
        self._abandoned = 0
        self._net.start()

    @property
    def worn(self) -> bool:
        """Whether so much hangs in it that it should be replaced."""
        return self._abandoned >= _MAX_ABANDONED

    @property
    def bootstrap_nodes(self) -> Sequence[Node]:
        """The configured servers."""
        return [node.node_id for node in self._manager.cluster.bootstrap_brokers()]

    @property
    def addresses(self) -> Mapping[Node, str]:
        """The brokers that the last metadata named, each with its `host:port`."""
        return {node.node_id: f"{node.host}:{node.port}" for node in self._manager.cluster.brokers()}

    def name(self, node: Node) -> str:
        """Return what to call a node in a message, with its address."""
        known = self._manager.cluster.broker_metadata(node)
        address = f"{known.host}:{known.port}" if known else ""
        if isinstance(node, str):
            return address or node
        return f"broker {node} ({address})" if address else f"broker {node}"

    def exchange(
        self, requests: Mapping[Node, Request], deadline: float, *, first: bool = False
    ) -> Mapping[Node, Response | Silence]:
        """Send each request to its node, all at once, and return what came back by the deadline.

        Args:
            requests: a request belongs to one node: its version is that of the node's.
            deadline: on the monotonic clock, in seconds.
            first: return at the first response; who has not answered by then is Silence.
        """
        enough = threading.Event()
        left = len(requests)
        lock = threading.Lock()

        def arrived(answer: Response | Silence) -> None:
            nonlocal left
            with lock:
                left -= 1
            if left == 0 or (first and not isinstance(answer, Silence)):
                enough.set()

        futures = {node: self._scheduled(node, request, deadline, arrived) for node, request in requests.items()}
        if requests:
            enough.wait(max(deadline - time.monotonic(), 0.0))
        return {node: self._answer(node, future, hurried=enough.is_set()) for node, future in futures.items()}

    def close(self, wait: bool = True) -> None:
        """Close all connections and end the thread; exchanges under way fail.

        Returns after a few seconds at most; a thread that waits for a name server ends when that has answered.
        """
        closing = threading.Thread(target=self._close, name="kafka-close", daemon=True)
        closing.start()
        if wait:
            closing.join(_CLOSE_SECONDS)

    def _close(self) -> None:
        self._scheduling(self._manager.close)
        self._net.stop()
        self._net.close()

    def _scheduled(self, node: Node, request: Request, deadline: float, arrived: Callable[[Any], None]) -> Any:
        async def exchanged() -> Response | Silence:
            return await self._exchanged(node, request, deadline)

        future = self._scheduling(exchanged)
        future.add_callback(arrived)
        future.add_errback(lambda error: arrived(Silence(error, sent=True)))
        return future

    def _scheduling(self, act: Callable[[], Any]) -> Any:
        try:
            return self._manager.call_soon(act)
        except Exception as error:  # what ended the loop, or that it is closed
            self._abandoned = _MAX_ABANDONED
            return _failed(error)

    def _answer(self, node: Node, future: Any, hurried: bool) -> Response | Silence:
        if future.is_done:
            return Silence(future.exception, sent=True) if future.exception is not None else future.value
        if not hurried:
            # Whoever comes next starts anew, instead of queueing behind what may never end.
            self._abandoned += 1
            self._scheduling(lambda: self._manager.close(node_id=node))
        return Silence(kafka.errors.KafkaTimeoutError("no answer in time"), sent=True)

    async def _exchanged(self, node: Node, request: Request, deadline: float) -> Response | Silence:
        """Runs in the loop's thread, as all below."""
        try:
            if (delay := self._manager.connection_delay(node)) > 0:
                await self._net.sleep(delay)
            connection = await self._connection(node)
        except Exception as error:
            return Silence(error, sent=False)
        milliseconds = (deadline - time.monotonic()) * 1000 * _EARLIER
        if milliseconds <= 0:  # a process that was stopped, and wakes when another one leads
            return Silence(kafka.errors.KafkaTimeoutError("it was too late to ask"), sent=False)
        try:
            response = await connection.send_request(request, request_timeout_ms=milliseconds)
        except (kafka.errors.NodeNotReadyError, kafka.errors.IncompatibleBrokerVersion) as error:
            return Silence(error, sent=False)
        except Exception as error:
            return Silence(error, sent=True)
        if isinstance(response, kafka.protocol.metadata.MetadataResponse) and not response.topics:
            self._manager.cluster.update_metadata(response)
        return response

    async def _connection(self, node: Node) -> Any:
        known, standing = self._manager.cluster.broker_metadata(node), self._open.get(node)
        if known and (standing is None or standing.closed):
            await self._names.ask(known.host, known.port)
        self._open[node] = connection = self._manager.get_connection(node, refresh_metadata_on_err=False)
        return await connection


def _failed(error: BaseException) -> Any:
    return kafka.future.Future().failure(error)
