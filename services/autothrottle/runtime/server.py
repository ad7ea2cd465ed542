"""The gRPC server of every service: limits, health, reflection, error mapping and graceful shutdown.

`call_limits` has the threads and limits of calls. The type to know is `ServiceServer`.

Rules for servicers: raise core's errors, because only their messages reach a caller. Never block a stream forever:
`context.add_callback` reports that the caller has left or the server stops.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from autothrottle.core.errors import AutothrottleError, Unavailable
from autothrottle.runtime.call_limits import MAX_ANSWER_BYTES, Admission, Behavior, Continuation, Handler, rewrapped
from autothrottle.runtime.connections import ConnectionLimit, grpc_options
from autothrottle.runtime.health import Health
from autothrottle.runtime.unix_sockets import long_path_problem
from autothrottle.wire.common import abort

STREAM_LINGER = timedelta(seconds=0.25)
"""A stopping server lets streams (a snapshot in chunks) end by themselves for this long, then cancels them."""

DEFAULT_GRACE = timedelta(seconds=5)

LONGEST_CALL = timedelta(seconds=60)
"""Time limit of a unary call or a snapshot if its caller sets no deadline, or a later one."""

Servicer = tuple[Callable[[Any, grpc.Server], None], object, str]
"""(generated add_..._to_server function, servicer, full name of the service)."""

_Message = TypeVar("_Message", bound=Message)

_OPTIONS = [
    # A second process on the same port must fail instead of silently taking a share of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", MAX_ANSWER_BYTES),
    # A request that is not being received must stay with its sender; probes let the windows grow to megabytes.
    ("grpc.http2.bdp_probe", 0),
    # A caller on a dead host sends nothing: without pings its streams would count as open forever.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Callers may ping us, more often than gRPC's default of once in five minutes.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

logger = logging.getLogger(__name__)


def time_left(context: grpc.ServicerContext, share: float = 0.95) -> timedelta:
    """Return the time limit of a call: this share of the time to the caller's deadline, at most `LONGEST_CALL`."""
    seconds_left = context.time_remaining()
    longest = LONGEST_CALL.total_seconds()
    return timedelta(seconds=longest if seconds_left is None else min(longest, max(seconds_left * share, 0.001)))


def encoded_once(kind: type[_Message], encoded: bytes) -> _Message:
    """Return an encoded message as the result of a servicer, so that one encoding serves 100 callers.

    Concatenated messages decode as one merged message. A shared part may therefore follow an individual part.
    """
    return cast(_Message, encoded)


def _pass_encoded(encode: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """Return an encoder that passes messages through if they are already encoded."""
    return encode and (lambda answer: answer if type(answer) is bytes else encode(answer))


class ServiceServer:
    """A synchronous gRPC server of one or more services. It binds on creation and serves from `start` to `stop`.

    Raises:
        Unavailable: cannot listen on the address.
    """

    def __init__(
        self,
        name: str,
        servicers: Sequence[Servicer],
        listen: str = "127.0.0.1:0",
        pool_size: int = 64,
        max_streams: int = 264,
        access: grpc.ServerInterceptor | None = None,
        interceptors: Sequence[grpc.ServerInterceptor] = (),
        credentials: grpc.ServerCredentials | None = None,
        checks: Health | None = None,
        option: str = "listen",
    ) -> None:
        """Bind to the address.

        Args:
            name: the service's name in log lines and errors.
            servicers: the services to run.
            listen: `host:port` (port 0: any free port) or `unix:PATH`.
            pool_size: number of concurrent unary calls, half of them for one host, independent of open streams.
            max_streams: number of open streams, half of them for one host. The default is for 100 watchers of cycles on
                one host and the services' own streams (snapshots, health).
            access: refuses callers before the limits count a call and before its request is received; None: any caller.
            interceptors: additional interceptors; they run after the limits and before the mapping of errors.
            credentials: TLS credentials for callers over a network; None: plain connections from any caller. A unix
                socket is always plain.
            checks: the checks of the process, for gRPC health; None: health is SERVING from start to stop.
            option: the option that gives the address, for errors.
        """
        self.name = name
        self._services = tuple(service for _, _, service in servicers)
        self._streams = _OpenStreams()
        self._checks = checks
        self._health = health.HealthServicer()
        self._started = False
        self._reported: dict[str, int] = {}
        self._admission = Admission(name, pool_size, max_streams)
        self._connections: ConnectionLimit | None = None
        self._server = grpc.server(
            self._admission.pool,
            interceptors=[
                *((access,) if access else ()),
                self._admission,
                *interceptors,
                _ErrorsAndStreams(name, self._streams),
            ],
            # Somewhat more, so that the refusal is ours.
            options=[
                *_OPTIONS,
                *(() if listen.startswith("unix:") else grpc_options(credentials is not None)),
                ("grpc.max_receive_message_length", 2 * self._admission.largest_request(self._services)),
            ],
        )
        for add, servicer, _ in servicers:
            add(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        self._report()
        self.address = self._bind(listen, credentials, option)
        """Listening address: `host:port` with the actual port, or `unix:PATH`."""

    def start(self) -> None:
        """Start serving; health reports SERVING as soon as all checks are ok."""
        self._server.start()
        self._started = True
        if not self.address.startswith("unix:"):
            self._connections = ConnectionLimit(self.name, self.address)
            self._connections.start()
        if self._checks is not None:
            self._checks.on_results(self._report)
        self._report()

    def stop(self, grace: timedelta = DEFAULT_GRACE) -> None:
        """Stop gracefully. Idempotent.

        Health reports NOT_SERVING, new calls are refused, open streams end (callers see CANCELLED), and unary calls
        finish. Calls that are still running after `grace` are cancelled.
        """
        if self._connections is not None:
            self._connections.stop()
        self._health.enter_graceful_shutdown()
        ended = self._server.stop(grace.total_seconds())
        self._streams.end(min(STREAM_LINGER, grace))
        ended.wait()
        self._admission.shutdown()

    def __enter__(self) -> ServiceServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _bind(self, listen: str, credentials: grpc.ServerCredentials | None, option: str) -> str:
        try:
            if credentials is None or listen.startswith("unix:"):
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            self._admission.shutdown()
            raise Unavailable(f"{self.name} cannot listen on {listen}: {_cause(listen, option)}") from error
        return listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"

    def _report(self) -> None:
        """Let health report the last results of the checks."""
        needs = {health.OVERALL_HEALTH: self._services} | {service: (service,) for service in self._services}
        for service, needed in needs.items():
            is_serving = self._started and (self._checks is None or self._checks.is_serving(needed))
            status = _SERVING if is_serving else _NOT_SERVING
            if self._reported.get(service) != status:
                self._reported[service] = status
                self._health.set(service, status)


def _cause(listen: str, option: str) -> str:
    """Return why gRPC cannot listen on an address, which its own error does not tell, and the fix."""
    if problem := long_path_problem(listen):
        return f"{problem}. Fix: choose a shorter one with --{option}, or a link to its directory"
    in_use = (
        "the address is in use or does not belong to this host. Fix: stop the program that holds it, or choose another "
        f"with --{option} (127.0.0.1:0 takes any free port)."
    )
    if not listen.startswith("unix:"):
        return in_use
    directory = os.path.dirname(listen.removeprefix("unix:")) or "."
    if not os.path.isdir(directory):
        return f"the directory {directory!r} does not exist. Fix: make it, or choose another path with --{option}"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"this user may not write to {directory!r}. Fix: allow it, or choose another path with --{option}"
    return in_use


class _OpenStreams:
    """The open streams, for the end of the server."""

    def __init__(self) -> None:
        self._contexts: set[grpc.ServicerContext] = set()
        self._changed = threading.Condition()
        self._ending = False

    @contextmanager
    def noted(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Note a stream while it is open."""
        with self._changed:
            self._contexts.add(context)
            ending = self._ending
        if ending:
            context.cancel()
        try:
            yield
        finally:
            with self._changed:
                self._contexts.discard(context)
                self._changed.notify_all()

    def end(self, linger: timedelta) -> None:
        """Wait `linger` for streams to end by themselves, then cancel the rest."""
        with self._changed:
            self._changed.wait_for(lambda: not self._contexts, linger.total_seconds())
            self._ending = True
            remaining = list(self._contexts)
        for context in remaining:
            context.cancel()


class _ErrorsAndStreams(grpc.ServerInterceptor):
    """Maps exceptions of servicers to statuses, and notes open streams."""

    def __init__(self, name: str, streams: _OpenStreams) -> None:
        self._name = name
        self._streams = streams

    def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """Wrap the method's function.

        A wrapped health watch blocks a thread, unlike the library's own. The library's watch sends while it holds a
        lock that the server's only serving thread needs when another watch ends: a deadlock.
        """
        method = handler_call_details.method
        handler = continuation(handler_call_details)
        if handler is None:
            return _unknown(method)

        def wrapped(behavior: Behavior, is_stream: bool) -> Behavior:
            return self._stream(behavior, method) if is_stream else self._unary(behavior, method)

        return rewrapped(handler, wrapped, _pass_encoded(handler.response_serializer))

    def _unary(self, behavior: Behavior, method: str) -> Behavior:
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            with self._statuses(method, context):
                return behavior(request, context)

        return answer

    def _stream(self, behavior: Behavior, method: str) -> Behavior:
        def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._statuses(method, context), self._streams.noted(context):
                yield from behavior(request, context)

        return answer

    @contextmanager
    def _statuses(self, method: str, context: grpc.ServicerContext) -> Iterator[None]:
        try:
            yield
        except AutothrottleError as error:
            abort(context, error)
        except Exception as error:
            if _is_abort(error) or not context.is_active():
                raise
            logger.exception("Call of %s failed in %s", method, self._name)
            context.abort(
                grpc.StatusCode.INTERNAL,
                f"{method} failed with an unexpected {type(error).__name__}. Fix: report it with the "
                f"traceback in the log of {self._name}.",
            )


def _is_abort(error: Exception) -> bool:
    """Whether `context.abort` raised this error: a bare Exception, after it has set the status."""
    return type(error) is Exception and not error.args


def _unknown(method: str) -> Handler:
    """Handle a method that does not exist."""

    def answer(requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        context.abort(
            grpc.StatusCode.UNIMPLEMENTED,
            f"{method[:200]} is unknown here. Fix: call a method that reflection lists (grpcurl ... list).",
        )
        yield

    return grpc.stream_stream_rpc_method_handler(answer)
