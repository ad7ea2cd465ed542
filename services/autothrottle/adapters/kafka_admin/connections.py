"""Sends requests to brokers in parallel, each bounded by a deadline, over kafka-python's event loop and connections.

This module handles what kafka-python 3.0.12 leaves to its user:

- It waits for a TLS handshake without limit, and leaves the socket of a failed attempt to the garbage collector. Here
  the setup has a limit, and closes its socket if it fails (`_ClosingManager`, `_DirectConnection`).
- Its errors keep the connection that failed, and all that its coroutines held. `NoResponse` drops their tracebacks.
- It counts failures per broker id, and none of a broker that accepts and closes connections. `Backoff` counts those of
  an address.
- It resolves host names in the thread that drives all connections. Here each name gets its own thread (`_BrokerNames`).
- A request that was buffered while its connection was being set up outlives its timeout. Here the connection is awaited
  first, so it is also known which requests were certainly never sent.
- Its bootstrap hides why a connection failed (a wrong password, for example), and its metadata refresh repeats the
  bootstrap without limit. Neither is used; metadata is requested like anything else.
- It leaves sockets with unsent data to the garbage collector (see `_CollectedSocket`), and loses what a broker sent
  right before it closed the connection (see `_DelayedEnd`).
- It believes a broker that asks for a pause of days, and an answer that lacks what was asked for. Here a pause has a
  limit (`_MAX_PAUSE_SECONDS`), and every answer is completed (see `completeness`).
- It reads no more from a connection after an answer that it cannot decode. Here the connection ends.
- At level DEBUG it logs passwords. Its loggers are limited to CRITICAL; its errors reach the caller as values.

The type to know is `Connections`. Which broker gets a request is decided in `routing`.
"""

from __future__ import annotations

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

from autothrottle.adapters.concurrency.subscriptions import seconds_left
from autothrottle.adapters.kafka_admin.backoff import Address, Backoff
from autothrottle.adapters.kafka_admin.completeness import complete, is_repeatable
from autothrottle.core.errors import Unavailable
from autothrottle.core.retries import ANSWER
from autothrottle.core.texts import ip_address_of

with warnings.catch_warnings():
    # kafka-python reads its schemas with a deprecated function of importlib.resources.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors
    import kafka.future
    import kafka.net.connection
    import kafka.net.inet
    import kafka.net.manager
    import kafka.net.sasl.oauth
    import kafka.net.selector
    import kafka.net.transport
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer
    import kafka.record

__all__ = ["CLIENT", "LOGIN_REFUSALS", "CollectedTlsSocket", "Connections", "NoResponse", "Node", "kafka"]

Node = int | str
"""A broker id, or `bootstrap-N` for the Nth configured server, of which only the address is known."""
Request = Any
Response = Any
"""Classes of kafka-python, which has no type information."""

CLIENT: Mapping[str, Any] = {"proxy_url": "direct://"}
"""Options for every kafka-python client; `direct` selects `_DirectConnection`."""

LOGIN_REFUSALS = (
    kafka.errors.SaslAuthenticationFailedError,
    kafka.errors.UnsupportedSaslMechanismError,
    kafka.errors.IllegalSaslStateError,
    kafka.errors.AuthorizationError,
)

_MAX_ABANDONED = 20
"""Number of connections without success or failure at their deadline, after which all connections are replaced."""
_CLOSE_SECONDS = 3.0
_TURN_SECONDS = 0.5
"""How long a request waits for the next try of its address. If the last one failed just now: `_CHECK_SECONDS`."""
_CHECK_SECONDS = 0.1
"""Time between two checks whether a response is still awaited, or an address may be tried."""
_NAME_SECONDS = 10.0
"""How long the answer of a name server is cached."""
_ANSWER_REPEATS = 3
"""How often a request is repeated whose answer lacks something, beyond the time for which a client quota delays it."""
_MAX_PAUSE_SECONDS = 5.0
"""Longest pause that a broker can ask for. A longer one may be damage, or mute this connection for hours; a request
after it gets an answer, or its deadline replaces the connection."""
_METADATA_API, _VOTE_API = 3, 52
"""Kafka's numbers of a request that each broker supports, and of one that each KRaft controller supports."""
_TIMEOUT_SHARE = 0.95
"""Share of the time left that kafka-python gets, so that an established connection times out its request itself."""

_ANSWER_FIX = "Fix: check the broker's log and the proxies to it"

logging.getLogger("kafka").setLevel(logging.CRITICAL)


class _DelayedEnd:
    """Socket mixin that delivers what a broker sends right before it closes the connection.

    kafka-python drops received data if it finds the end of the stream at once after it. This happens when a broker
    refuses a password, so the reason was lost. Therefore the end is reported one read after the data.
    """

    _got_data = False

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Return the received data; b"" at the end of the stream.

        Raises:
            BlockingIOError: no data has arrived, or only the end of the stream directly after data.
        """
        data: bytes = super().recv(buflen, flags)  # type: ignore[misc]
        if not data and self._got_data:
            self._got_data = False
            raise BlockingIOError
        self._got_data = bool(data)
        return data


class _CollectedSocket(_DelayedEnd, socket.socket):
    """A socket that closes itself when it is garbage-collected."""

    def __del__(self) -> None:
        self.close()


class CollectedTlsSocket(_DelayedEnd, ssl.SSLSocket):
    """The same with TLS, for `SSLContext.sslsocket_class`."""

    def __del__(self) -> None:
        self.close()


class _DirectConnection(kafka.net.inet.KafkaNetSocket):  # type: ignore[misc]
    """A connection without a proxy; kafka-python finds this class by its scheme.

    kafka-python 3.0.12 leaves the sockets of failed attempts to the garbage collector. The error of the attempt can
    keep them for as long as it lives itself.
    """

    SCHEMES = ("direct",)

    def dns_lookup(self, host: str, port: int, raise_error: bool = False) -> Any:
        """Return the addresses found by `_BrokerNames`; look the name up only without them."""
        return _cached_addresses(host, port) or super().dns_lookup(host, port, raise_error)

    def socket(self, family: int, sock_type: int, proto: int) -> socket.socket:
        return _CollectedSocket(family, sock_type, proto)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        """Connect, or close the socket."""
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:  # also when the loop ends
            sock.close()
            raise


class _CheckedConnection(kafka.net.connection.KafkaConnection):  # type: ignore[misc]
    """A connection that ends at an answer that cannot be decoded.

    kafka-python stops to read from it after an IndexError, so that all its requests waited for their deadlines.
    """

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except kafka.errors.KafkaProtocolError:
            raise
        except Exception as error:  # whatever the decoder stumbles over
            raise kafka.errors.KafkaProtocolError(f"an answer cannot be decoded: {error!r}") from None


class _ClosingManager(kafka.net.manager.KafkaConnectionManager):  # type: ignore[misc]
    """Makes connections, and closes the sockets of those that fail at TLS, or at the time limit of the setup."""

    def get_connection(self, node_id: Any, **options: Any) -> Any:
        connection = super().get_connection(node_id, **options)
        connection.__class__ = _CheckedConnection
        return connection

    async def _build_transport(self, node: Any, timeout_at: float) -> Any:
        options = self.config
        peer = await kafka.net.inet.create_connection(
            self._net, node.host, node.port, options["socket_options"], options["proxy_url"], timeout_at
        )
        if not self.ssl_enabled:
            return kafka.net.transport.KafkaTCPTransport(self._net, peer, host=node.host)
        tls_options = {name: value for name, value in options.items() if name.startswith("ssl_")}
        transport = kafka.net.transport.KafkaSSLTransport(self._net, peer, host=node.host, **tls_options)
        # The handshake waits for data, and reads the end of the stream then.
        limit = self._net.call_at(timeout_at, lambda: transport._sock.shutdown(socket.SHUT_RDWR))
        try:
            await transport.handshake()
        except BaseException as error:
            transport.abort(error)
            reason = error if time.monotonic() < timeout_at else "no answer in time"
            raise kafka.errors.KafkaConnectionError(f"Handshake failed: {reason}") from None
        finally:
            self._net.cancel(limit)
        return transport


_names: dict[tuple[str, int], tuple[float, Any]] = {}
"""(host, port) -> (time at which the entry expires, addresses)."""


def _cached_addresses(host: str, port: int) -> Any:
    until, addresses = _names.get((host, port), (0.0, None))
    return addresses if time.monotonic() < until else None


class _BrokerNames:
    """Resolves names in separate threads; all calls must come from the event loop's thread."""

    def __init__(self, net: Any) -> None:
        self._net = net
        self._pending: dict[tuple[str, int], Any] = {}

    async def resolve(self, host: str, port: int) -> None:
        """Wait until the name is resolved, or fails to resolve."""
        if ip_address_of(host.partition("%")[0]) is not None or _cached_addresses(host, port):
            return
        name = (host, port)
        if name not in self._pending:
            self._pending[name] = kafka.future.Future()
            threading.Thread(target=self._look_up, args=name, name="kafka-name", daemon=True).start()
        await self._pending[name]

    def _look_up(self, host: str, port: int) -> None:
        try:
            addresses = socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
            _names[host, port] = (time.monotonic() + _NAME_SECONDS, addresses)
            outcome: OSError | None = None
        except Exception as error:  # any: otherwise the event loop would wait for this name forever
            outcome = OSError(f"the name {host} cannot be resolved: {error}")
        with suppress(Exception):  # the loop has ended
            self._net.call_soon_threadsafe(lambda: self._settle((host, port), outcome))

    def _settle(self, name: tuple[str, int], error: OSError | None) -> None:
        future = self._pending.pop(name)
        if error:
            future.failure(error)
        else:
            future.success(None)


@dataclass(frozen=True, slots=True)
class NoResponse:
    """Why a request got no response."""

    error: BaseException
    sent: bool
    """Whether the broker may still have received the request."""

    def __post_init__(self) -> None:
        """Drop the error's traceback: its frames keep the connection, which keeps the error."""
        self.error.__traceback__ = self.error.__context__ = self.error.__cause__ = None


class Connections:
    """Connections to the brokers of one cluster, driven by one thread; thread-safe."""

    def __init__(
        self,
        servers: Sequence[str],
        options: Mapping[str, Any],
        setup_timeout: timedelta,
        backoff: Backoff | None = None,
    ) -> None:
        """Start the thread; this opens no connection yet.

        Args:
            servers: `host:port` each; their nodes are `bootstrap_nodes`.
            options: of kafka-python: security_protocol, sasl_*, ssl_*, client_id. A token provider among them is one of
                `BearerTokens`.
            setup_timeout: limit for setting up a connection.
            backoff: shared by all connections with these options; None: these connections have their own.
        """
        milliseconds = int(setup_timeout.total_seconds() * 1000)
        self._net = kafka.net.selector.NetworkSelector(client_id=options.get("client_id", "autothrottle"))
        self._manager = _ClosingManager(
            self._net,
            **{"client_id": "autothrottle", **CLIENT, **options},
            bootstrap_servers=list(servers),
            socket_connection_setup_timeout_ms=milliseconds,
            socket_connection_setup_timeout_max_ms=milliseconds,
            reconnect_backoff_ms=0,
            max_in_flight_requests_per_connection=1_000,
            receive_message_max_bytes=100_000_000,
        )
        self.options = options
        self._tokens = options.get("sasl_oauth_token_provider")
        self._names = _BrokerNames(self._net)
        self._backoff = backoff or Backoff()
        self._open: dict[Node, Any] = {}
        """Node -> its connection, which may still be in setup; one that failed is not kept."""
        self._abandoned = 0
        self._net.start()
        if self._tokens is not None:
            self._schedule(self._keep_token, self._tokens)

    @property
    def should_be_replaced(self) -> bool:
        """Whether so many connections hang that this object should be replaced."""
        return self._abandoned >= _MAX_ABANDONED

    @property
    def bootstrap_nodes(self) -> Sequence[Node]:
        """Nodes of the configured servers."""
        return [node.node_id for node in self._manager.cluster.bootstrap_brokers()]

    @property
    def addresses(self) -> Mapping[Node, str]:
        """Broker -> `host:port`, according to the last metadata."""
        return {node.node_id: f"{node.host}:{node.port}" for node in self._manager.cluster.brokers()}

    def name(self, node: Node) -> str:
        """Return a node's name for messages, with its address."""
        broker = self._manager.cluster.broker_metadata(node)
        address = f"{broker.host}:{broker.port}" if broker else ""
        if isinstance(node, str):
            return address or node
        return f"broker {node} ({address})" if address else f"broker {node}"

    def exchange(
        self,
        requests: Mapping[Node, Request],
        deadline: float,
        *,
        first: bool = False,
        is_over: Callable[[], bool] | None = None,
    ) -> Mapping[Node, Response | NoResponse]:
        """Send each request to its node in parallel, and return the responses that arrive by the deadline.

        Args:
            requests: node -> its own request object, because it has the protocol version of the node.
            deadline: on the monotonic clock, in seconds.
            first: return after the first response; nodes without a response then have a `NoResponse`.
            is_over: called again and again while responses are awaited; True ends the wait. None: the deadline does.
        """
        enough = threading.Event()
        pending = len(requests)
        lock = threading.Lock()

        def arrived(answer: Response | NoResponse) -> None:
            nonlocal pending
            with lock:
                pending -= 1
            if pending == 0 or (first and not isinstance(answer, NoResponse)):
                enough.set()

        futures = {
            node: self._schedule_exchange(node, request, deadline, arrived) for node, request in requests.items()
        }
        while requests and not enough.is_set() and (left := deadline - time.monotonic()) > 0:
            if enough.wait(left if is_over is None else min(left, _CHECK_SECONDS)) or (is_over and is_over()):
                break
        return {node: self._answer(node, future, hurried=enough.is_set()) for node, future in futures.items()}

    def close(self, wait: bool = True) -> None:
        """Close all connections and end the thread; running exchanges fail.

        Returns after a few seconds at most. A thread that waits for a name server ends when that answers.
        """
        closing = threading.Thread(target=self._close, name="kafka-close", daemon=True)
        closing.start()
        if wait:
            closing.join(_CLOSE_SECONDS)

    def _close(self) -> None:
        self._schedule(self._manager.close)
        self._net.stop()
        self._net.close()

    def _schedule_exchange(self, node: Node, request: Request, deadline: float, arrived: Callable[[Any], None]) -> Any:
        future = self._schedule(self._exchange_one, node, request, deadline)
        future.add_callback(arrived)
        future.add_errback(lambda error: arrived(NoResponse(error, sent=True)))
        return future

    def _schedule(self, act: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return self._manager.call_soon(act, *arguments)
        except Exception as error:  # the loop has failed or is closed
            self._abandoned = _MAX_ABANDONED
            return kafka.future.Future().failure(error)

    def _answer(self, node: Node, future: Any, hurried: bool) -> Response | NoResponse:
        if future.is_done:
            return NoResponse(future.exception, sent=True) if future.exception is not None else future.value
        if not hurried:
            # The next call opens a new connection, instead of queueing behind one that may hang forever.
            self._abandoned += 1
            self._schedule(self._abandon, node)
        return NoResponse(kafka.errors.KafkaTimeoutError("no answer in time"), sent=True)

    async def _exchange_one(self, node: Node, request: Request, deadline: float) -> Response | NoResponse:
        """Exchange one request. This and everything below runs in the loop's thread."""
        try:
            connection = await self._connection(node, deadline)
        except Exception as error:
            return NoResponse(self._explained(error), sent=False)
        repeats, answer = 0, await self._send(connection, request, deadline)
        while not isinstance(answer, NoResponse):
            gaps = complete(request, answer)
            if not gaps.missing:
                break
            is_delayed = getattr(answer, "throttle_time_ms", 0) > 0
            repeats += not is_delayed
            wait = ANSWER.wait(max(repeats, 1))
            is_late = seconds_left(deadline) * _TIMEOUT_SHARE <= wait
            if not is_repeatable(request) or repeats > _ANSWER_REPEATS or is_late:
                if gaps.is_empty and is_repeatable(request):
                    names = f"the answer of {self.name(node)} to {type(request).__name__}"
                    return NoResponse(Unavailable(f"{names} lacks all that was asked for. {_ANSWER_FIX}"), sent=True)
                break
            await self._net.sleep(wait)
            repeated = await self._send(connection, request, deadline)
            if isinstance(repeated, NoResponse):
                if gaps.is_empty:
                    return repeated
                break  # a part is more than nothing
            answer = repeated
        # Without topics alone: kafka-python would keep 100,000 partitions, and stop this thread for 0.1 s.
        if isinstance(answer, kafka.protocol.metadata.MetadataResponse) and request.topics == []:
            self._manager.cluster.update_metadata(answer)
        return answer

    async def _send(self, connection: Any, request: Request, deadline: float) -> Response | NoResponse:
        """Send a request once, as soon as the broker does not delay this client any more."""
        patience_ends = time.monotonic() + seconds_left(deadline) * _TIMEOUT_SHARE
        while connection.paused and time.monotonic() < patience_ends:
            await self._net.sleep(_CHECK_SECONDS)
        milliseconds = (deadline - time.monotonic()) * 1000 * _TIMEOUT_SHARE
        if milliseconds <= 0:  # this process may have been stopped, and another planner may lead now
            return NoResponse(kafka.errors.KafkaTimeoutError("it was too late to send the request"), sent=False)
        try:
            response = await connection.send_request(request, request_timeout_ms=milliseconds)
        except (kafka.errors.NodeNotReadyError, kafka.errors.IncompatibleBrokerVersion) as error:
            return NoResponse(error, sent=False)
        except Exception as error:
            return NoResponse(error, sent=True)
        self._limit_pause(connection)
        return response

    def _limit_pause(self, connection: Any) -> None:
        """End a pause that the broker has just asked for after a few seconds."""
        if "throttle" in connection.paused:
            self._net.call_later(_MAX_PAUSE_SECONDS, lambda: connection.unpause("throttle"))

    async def _connection(self, node: Node, deadline: float) -> Any:
        """Return the connection of a node when it is set up. If its address must not be tried yet, raise its error."""
        broker = self._manager.cluster.broker_metadata(node)
        started, patience = time.monotonic(), seconds_left(deadline) * _TIMEOUT_SHARE
        while broker and not self._has_connection(node) and (last := self._backoff.begin((broker.host, broker.port))):
            # The next try may be due soon, and callers must not run in circles. A failure of this moment needs no wait.
            is_old = last.time < started - _TURN_SECONDS
            if time.monotonic() - started >= min(patience, _TURN_SECONDS if is_old else _CHECK_SECONDS):
                raise last.error
            await self._net.sleep(_CHECK_SECONDS)
        if broker and not self._has_connection(node):
            try:
                await self._names.resolve(broker.host, broker.port)
            except OSError as error:
                self._backoff.failed((broker.host, broker.port), error)
                raise
            if self._tokens is not None:
                await self._token_ready(self._tokens)
        connection = self._manager.get_connection(node, refresh_metadata_on_err=False)
        if self._open.get(node) is not connection:
            self._open[node] = connection
            address = (broker.host, broker.port)
            connection.init_future.add_callback(lambda _: self._backoff.succeeded(address))
            connection.init_future.add_callback(lambda _: self._limit_pause(connection))
            connection.init_future.add_errback(lambda error: self._forget(node, connection, address, error))
        await connection
        if connection.broker_version_data.api_versions.keys().isdisjoint((_METADATA_API, _VOTE_API)):
            self._manager.broker_version_data = None  # kafka-python gives it to all other connections
            connection.close(kafka.errors.KafkaConnectionError("its answer to ApiVersions is damaged"))
            raise Unavailable(
                f"the answer of {self.name(node)} to ApiVersions lacks the requests of Kafka. {_ANSWER_FIX}"
            )
        return connection

    def _has_connection(self, node: Node) -> bool:
        return node in self._open and not self._open[node].closed

    def _forget(self, node: Node, connection: Any, address: Address, error: BaseException) -> None:
        """Drop a connection whose setup failed. A refused login concerns the login, and not the address."""
        if self._open.get(node) is connection:
            del self._open[node]
        if not isinstance(error, LOGIN_REFUSALS):
            self._backoff.failed(address, error)

    def _abandon(self, node: Node) -> None:
        """Close a connection that gave no answer in time; the next call makes a new one."""
        if node in self._open:
            self._open[node].close(kafka.errors.KafkaTimeoutError("no answer in time"))

    async def _keep_token(self, tokens: Any) -> None:
        """Renew the token in time for the next login of the open connections, also while no request is sent."""
        while True:
            await self._net.sleep(tokens.renew_if_due())

    async def _token_ready(self, tokens: Any) -> None:
        """Wait for a token in another thread; kafka-python would fetch it in this one, which drives all connections."""
        ready = kafka.future.Future()

        def settle(problem: Exception | None) -> None:
            with suppress(Exception):  # the loop has ended
                self._net.call_soon_threadsafe(
                    lambda: ready.success(None) if problem is None else ready.failure(problem)
                )

        tokens.when_ready(settle)
        await ready

    def _explained(self, error: Exception) -> Exception:
        """Return the error of a refused login with the claims of its token."""
        if self._tokens is None or not isinstance(error, kafka.errors.SaslAuthenticationFailedError):
            return error
        self._tokens.discard()
        refused: Exception = kafka.errors.SaslAuthenticationFailedError(f"{error.args[0]} ({self._tokens.description})")
        return refused
