"""The gRPC server that every service runs: its own threads, health, reflection, errors, and a graceful end.

A stream holds a thread for as long as it is open, so open streams would starve unary calls. Here streams have
a limit of their own and the pool is larger by just that many threads: however many streams are open,
`pool_size` threads remain for unary calls, and the stream beyond the limit is refused. Reflection and health
watches count as streams too. The type to know is `ServiceServer`.

What a servicer must do: raise core's errors (nothing else reaches a caller in words), and let no stream sleep
for ever: `context.add_callback` tells it that its caller has left or that the server stops.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable
from autothrottle.wire.errors import to_status

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest message in either direction; a snapshot of 100,000 moving partitions takes 1.6 MB."""

STREAM_LINGER = timedelta(seconds=0.25)
"""How long a stopping server lets streams end by themselves (a snapshot in chunks) before it ends them."""

DEFAULT_GRACE = timedelta(seconds=5)

LONGEST_CALL = timedelta(seconds=60)
"""How long a unary call or a snapshot may work when its caller sets no deadline, or a later one."""

Servicer = tuple[Callable[[Any, grpc.Server], None], object, str]
"""(the generated add_..._to_server, the servicer, the full name of its service)."""

_Message = TypeVar("_Message", bound=Message)

_Behavior = Callable[[Any, grpc.ServicerContext], Any]

_OPTIONS = [
    # A second process on the same port is an error, not a silent share of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A caller whose host is gone says nothing: without pings its streams would count as open for ever.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Callers may do the same to us, more often than gRPC's default of once in five minutes.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

logger = logging.getLogger(__name__)


def time_left(context: grpc.ServicerContext, share: float = 0.95) -> timedelta:
    """Return how long a call may work: this share of what is left to its caller's deadline, at most `LONGEST_CALL`."""
    left = context.time_remaining()
    return LONGEST_CALL if left is None else min(LONGEST_CALL, timedelta(seconds=max(left * share, 0.001)))


def ready(kind: type[_Message], encoded: bytes) -> _Message:
    """Return an answer that is encoded already, for a servicer to give: what 100 callers ask for is encoded once.

    Messages one after the other are one message, so a part that all share can be put behind one that differs.
    """
    return cast(_Message, encoded)


def _encoding(encode: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """Let answers pass that are `ready`."""
    return encode and (lambda answer: answer if type(answer) is bytes else encode(answer))


class ServiceServer:
    """A synchronous gRPC server of one or more services; bound when made, answering from `start` to `stop`.

    Raises:
        Unavailable: when the address cannot be listened on.
    """

    def __init__(
        self,
        name: str,
        servicers: Sequence[Servicer],
        listen: str = "127.0.0.1:0",
        pool_size: int = 8,
        max_streams: int = 32,
        interceptors: Sequence[grpc.ServerInterceptor] = (),
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """Bind.

        Args:
            name: the service as log lines and errors call it.
            servicers: what is served.
            listen: `host:port` (port 0: any free one) or `unix:PATH`.
            pool_size: unary calls that are answered at the same time, whatever streams are open.
            max_streams: streams that may be open at the same time; one more is refused.
            interceptors: further ones, outside of ours.
            credentials: what callers over a network must match; None: anybody is answered. A unix socket is plain.
        """
        self.name = name
        self._services = tuple(service for _, _, service in servicers)
        self._streams = _OpenStreams(name, max_streams)
        self._health = health.HealthServicer()
        self._pool = ThreadPoolExecutor(pool_size + max_streams, thread_name_prefix=f"{name}-grpc")
        self._server = grpc.server(
            self._pool, interceptors=[*interceptors, _Answers(name, self._streams)], options=_OPTIONS
        )
        for add, servicer, _ in servicers:
            add(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        self._report(_NOT_SERVING)
        self.address = self._bind(listen, credentials)
        """Where it answers: `host:port` with the port that was taken, or `unix:PATH`."""

    def start(self) -> None:
        """Answer calls; health says SERVING."""
        self._server.start()
        self._report(_SERVING)

    def stop(self, grace: timedelta = DEFAULT_GRACE) -> None:
        """Stop gracefully; may be called again.

        Health says NOT_SERVING, no call is taken any more, open streams end (callers see CANCELLED),
        unary calls finish. What is not done after `grace` is cancelled.
        """
        self._health.enter_graceful_shutdown()
        ended = self._server.stop(grace.total_seconds())
        self._streams.end(min(STREAM_LINGER, grace))
        ended.wait()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> ServiceServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _bind(self, listen: str, credentials: grpc.ServerCredentials | None) -> str:
        try:
            if credentials is None or listen.startswith("unix:"):
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            self._pool.shutdown(wait=False)
            raise Unavailable(
                f"{self.name} cannot listen on {listen}: the address is in use or not of this host. "
                f"Fix: stop the program that holds it, or choose another (127.0.0.1:0 takes any free port)."
            ) from error
        return listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"

    def _report(self, status: int) -> None:
        for service in (health.OVERALL_HEALTH, *self._services):
            self._health.set(service, status)


class _OpenStreams:
    """The streams that are open now, and their limit."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._contexts: set[grpc.ServicerContext] = set()
        self._changed = threading.Condition()
        self._ending = False

    @contextmanager
    def slot(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Hold one of the places while the stream is open.

        Raises:
            _TooManyStreams: when all are taken.
        """
        with self._changed:
            if len(self._contexts) >= self._limit:
                raise _TooManyStreams(
                    f"{self._name} has {self._limit} streams open, and no more are allowed. "
                    f"Fix: end one, or try again later or at another replica."
                )
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
        """Wait until all have ended by themselves, then end the others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._contexts, linger.total_seconds())
            self._ending = True
            remaining = list(self._contexts)
        for context in remaining:
            context.cancel()


class _TooManyStreams(Exception):
    """A stream beyond the limit."""


class _Answers(grpc.ServerInterceptor):
    """Turns what a servicer raises into a status, and counts streams."""

    def __init__(self, name: str, streams: _OpenStreams) -> None:
        self._name = name
        self._streams = streams

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the method's function.

        A wrapped health watch blocks, unlike the library's own: that one sends while it holds the lock which
        the server's only serving thread needs when another watch ends, and then neither goes on.
        """
        method = handler_call_details.method
        found = continuation(handler_call_details)
        return _unknown(method) if found is None else _rewrapped(found, method, self)

    def unary(self, behavior: _Behavior, method: str) -> Callable[..., Any]:
        """Return the function with its errors as statuses."""

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            with self._statuses(method, context):
                return behavior(_readable(request), context)

        return answer

    def counted(self, behavior: _Behavior, method: str) -> Callable[..., Any]:
        """Return the function of a method that its caller alone streams to; that holds a thread as well."""

        def answer(requests: Any, context: grpc.ServicerContext) -> Any:
            with self._statuses(method, context), self._streams.slot(context):
                return behavior(requests, context)

        return answer

    def stream(self, behavior: _Behavior, method: str) -> Callable[..., Iterator[Any]]:
        """Return the function of a method that streams its answers."""

        def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._statuses(method, context), self._streams.slot(context):
                yield from behavior(_readable(request), context)

        return answer

    @contextmanager
    def _statuses(self, method: str, context: grpc.ServicerContext) -> Iterator[None]:
        try:
            yield
        except AutothrottleError as error:
            code, message, metadata = to_status(error)
            context.set_trailing_metadata(metadata)
            context.abort(code, message)
        except _TooManyStreams as error:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except Exception as error:
            if _is_abort(error) or not context.is_active():
                raise
            logger.exception("%s: %s failed", self._name, method)
            context.abort(
                grpc.StatusCode.INTERNAL,
                f"{method} failed with an unexpected {type(error).__name__}. Fix: report it with the "
                f"traceback that {self._name} has logged.",
            )


def _is_abort(error: Exception) -> bool:
    """Whether this is what `context.abort` raises: a bare Exception, the status being set already."""
    return type(error) is Exception and not error.args


def _lenient(decode: Callable[[bytes], Any], method: str) -> Callable[[bytes], Any]:
    """Decode, or return why not: to gRPC that is an INTERNAL error without a word about the reason."""

    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError:
            return Invalid(
                f"what {method} was sent is no message of it: {len(data)} bytes that cannot be read. "
                "Fix: generate the client from proto/autothrottle/v1, or use throttlectl."
            )

    return decoded


def _readable(request: Any) -> Any:
    if isinstance(request, Invalid):
        raise request
    return request


def _unknown(method: str) -> grpc.RpcMethodHandler[Any, Any]:
    """Answer for a method that there is not."""

    def answer(requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        context.abort(
            grpc.StatusCode.UNIMPLEMENTED,
            f"{method[:200]} is unknown here. Fix: ask for one that reflection lists (grpcurl ... list).",
        )
        yield

    return grpc.stream_stream_rpc_method_handler(answer)


def _rewrapped(
    found: grpc.RpcMethodHandler[Any, Any], method: str, answers: _Answers
) -> grpc.RpcMethodHandler[Any, Any]:
    decode, encode = found.request_deserializer, _encoding(found.response_serializer)
    codecs, lenient = (decode, encode), (decode and _lenient(decode, method), encode)
    if found.unary_unary:
        return grpc.unary_unary_rpc_method_handler(answers.unary(found.unary_unary, method), *lenient)
    if found.stream_unary:
        return grpc.stream_unary_rpc_method_handler(answers.counted(found.stream_unary, method), *codecs)
    if found.unary_stream:
        return grpc.unary_stream_rpc_method_handler(answers.stream(found.unary_stream, method), *lenient)
    assert found.stream_stream is not None
    return grpc.stream_stream_rpc_method_handler(answers.stream(found.stream_stream, method), *codecs)
