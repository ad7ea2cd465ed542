"""Limits of a gRPC server: sizes of requests, and concurrent calls in total and per host of their callers.

Each kind of call has its own threads, so that health checks and reads answer during long calls and open streams. A
call counts before its request is received: a refused call costs no memory, and its message stays with its sender. The
types to know are `Admission`, the server's outermost interceptor, and `LARGE_REQUESTS`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from enum import Enum
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError, Message

from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.runtime.connections import host_of
from autothrottle.wire.applier import MAX_REQUEST_BYTES
from autothrottle.wire.common import abort

SMALL_REQUEST = 64 * 1024
"""Largest request in bytes, except for `LARGE_REQUESTS`; useful ones have some hundred bytes."""

LARGE_REQUESTS: Mapping[str, int] = {
    **dict.fromkeys(
        (
            "/autothrottle.v1.PlacementService/Rebuild",
            "/autothrottle.v1.PlacementService/Rebalance",
            "/autothrottle.v1.PlacementService/Scale",
            "/autothrottle.v1.PlacementService/Decommission",
            "/autothrottle.v1.PlacementService/PlanPools",
            "/autothrottle.v1.PlacementService/GetPoolStatus",
            "/autothrottle.v1.PlacementService/GetCapacity",
            "/autothrottle.v1.DiscoveryService/GetClients",
        ),
        SMALL_REQUEST,
    ),
    **dict.fromkeys(
        (
            "/autothrottle.v1.AdminService/SubmitReassignment",
            "/autothrottle.v1.AdminService/CancelReassignment",
            "/autothrottle.v1.AdminService/EstimateReassignment",
            "/autothrottle.v1.PlannerService/SubmitReassignment",
            "/autothrottle.v1.PlannerService/CancelReassignment",
            "/autothrottle.v1.MetricsService/PostEvent",
        ),
        4 * 1024 * 1024,
    ),
    **dict.fromkeys(
        (
            "/autothrottle.v1.ApplierService/Apply",
            "/autothrottle.v1.ApplierService/SubmitReassignments",
            "/autothrottle.v1.ApplierService/CancelReassignments",
            "/autothrottle.v1.DiscoveryService/GetSnapshot",
            "/autothrottle.v1.DiscoveryService/GetLogSizes",
            "/autothrottle.v1.DiscoveryService/GetFetchSettings",
            "/autothrottle.v1.DiscoveryService/GetQuotaState",
        ),
        MAX_REQUEST_BYTES,
    ),
}
"""Method -> its largest request in bytes; 10,000 partitions take up to 3 MB. Their calls may also take a minute."""

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Largest answer: clients accept no larger one."""

HEAVY_REQUEST = 128 * 1024
"""Only one request of more than this size is in progress per host: it takes up to 100 times its size in memory."""

HEAVY_REQUESTS = 2
"""Limit of these requests."""

RECEIVE_SECONDS = 10.0
"""A request that takes longer to arrive is cancelled when other requests of its host wait."""

_RECEIVE_CHECK_SECONDS = 0.2
"""`RECEIVE_SECONDS` of health checks, which wait for no other call."""

_RECEIVERS = 2
"""Requests per host that are received at a time. All others stay with their sender."""

_SPARE_THREADS = 4
"""Threads that refuse calls while all others work."""

MOST_DELAYED = 64
"""Responses that request quotas delay at a time in a process, half of them for one entity. They hold no slots."""

_HEALTH_CHECK = "/grpc.health.v1.Health/Check"

_Decode = Callable[[bytes], Any]
_Behavior = Callable[[Any, grpc.ServicerContext], Any]


class Kind(Enum):
    """Kinds of calls, each with threads and a limit of its own."""

    CHECK = "health checks"
    CALL = "calls in progress"
    LONG = "long calls in progress"
    STREAM = "open streams"
    UPLOAD = "open client streams"


class LimitReached(Exception):
    """A call or request beyond a limit; the message names the limit."""


def caller_host(peer: str) -> str:
    """Return the host of a peer in gRPC's format; IPv6 callers count by their /64.

    >>> caller_host("ipv4:10.0.0.1:4711"), caller_host("unix:/run/a.sock")
    ('ipv4:10.0.0.1', 'unix')
    >>> caller_host("ipv6:%5B2001:db8::7:8:9:a%5D:4711")
    'ipv6:2001:db8::/64'
    """
    if peer.startswith("unix:"):
        return "unix"
    family, _, address = unquote(peer.rpartition(":")[0]).partition(":")
    return f"{family}:{host_of(address.strip('[]'))}"


class Slots:
    """Counts calls of one kind. One host gets half of the slots; unix sockets, which belong to our user, get all."""

    def __init__(self, name: str, what: str, total: int) -> None:
        """`what` names the calls in the plural, for errors."""
        self._name, self._what, self._total, self._per_host = name, what, total, (total + 1) // 2
        self._used: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def slot(self, host: str) -> Iterator[None]:
        """Occupy a slot.

        Raises:
            LimitReached: the host or all hosts have reached the limit.
        """
        with self._lock:
            of_host = self._total if host == "unix" else self._per_host
            if self._used.total() >= self._total:
                raise LimitReached(self._refusal(self._total, ""))
            if self._used[host] >= of_host:
                raise LimitReached(self._refusal(of_host, f" of {host}"))
            self._used[host] += 1
        try:
            yield
        finally:
            with self._lock:
                self._used[host] -= 1
                if not self._used[host]:
                    del self._used[host]

    def _refusal(self, limit: int, whose: str) -> str:
        return (
            f"{self._name} has {limit} {self._what}{whose}, which is the limit. "
            "Fix: end one, or try again later or at another replica."
        )


class _Receiving:
    """Lets each host send a few requests at a time. A host's slow senders give way to its waiting ones."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: time from which a sender is slow."""
        self._seconds = seconds
        self._begun: dict[str, dict[grpc.ServicerContext, float]] = {}
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, host: str, context: grpc.ServicerContext) -> Iterator[None]:
        """Wait until the host has a turn.

        Raises:
            LimitReached: the caller left meanwhile.
        """
        with self._changed:
            begun = self._begun.setdefault(host, {})
            while len(begun) >= _RECEIVERS:
                self._cancel_slow(begun)
                self._changed.wait(self._seconds / 10)
                if not context.is_active():
                    raise LimitReached("the caller has left")
                begun = self._begun.setdefault(host, {})
            begun[context] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del begun[context]
                if not begun and self._begun.get(host) is begun:
                    del self._begun[host]
                self._changed.notify_all()

    def _cancel_slow(self, begun: Mapping[grpc.ServicerContext, float]) -> None:
        limit = time.monotonic() - self._seconds
        for context in [context for context, since in begun.items() if since < limit]:
            context.cancel()


class Admission(grpc.ServerInterceptor):
    """The outermost interceptor: counts a call, receives and decodes its request, and calls the method.

    To gRPC, every method is client-streaming: such a method runs before its request is received.
    """

    def __init__(self, name: str, calls: int, streams: int, large_requests: Mapping[str, int] = LARGE_REQUESTS) -> None:
        """Create the pools of threads.

        Args:
            name: the server's name in errors.
            calls: limit of concurrent short calls. A quarter of it limits each other kind of call, except streams.
            streams: limit of open streams.
            large_requests: method -> its largest request in bytes, if above `SMALL_REQUEST`.
        """
        few = (calls + 3) // 4
        totals = {Kind.CHECK: few, Kind.CALL: calls, Kind.LONG: few, Kind.STREAM: streams, Kind.UPLOAD: few}
        self._large = large_requests
        self._slots = {kind: Slots(name, kind.value, total) for kind, total in totals.items()}
        self._heavy = Slots(name, f"requests of more than {HEAVY_REQUEST} bytes in progress", HEAVY_REQUESTS)
        self._receiving, self._receiving_checks = _Receiving(RECEIVE_SECONDS), _Receiving(_RECEIVE_CHECK_SECONDS)
        self._pools = {
            kind: ThreadPoolExecutor(total + _SPARE_THREADS + MOST_DELAYED, thread_name_prefix=f"{name}-grpc")
            for kind, total in totals.items()
        }

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The threads of short calls."""
        return self._pools[Kind.CALL]

    def shutdown(self) -> None:
        """End the threads as soon as they are idle."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def largest_request(self, services: Sequence[str]) -> int:
        """Return the size of the largest request of these services, in bytes."""
        sizes = [size for method, size in self._large.items() if method.split("/")[1] in services]
        return max(sizes, default=SMALL_REQUEST)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the method's function."""
        method, handler = handler_call_details.method, continuation(handler_call_details)
        if handler is None:
            return None
        kind = Kind.CHECK if method == _HEALTH_CHECK else Kind.LONG if method in self._large else Kind.CALL
        encode = handler.response_serializer
        if handler.unary_unary:
            answer = self._unary(handler.unary_unary, kind, method, handler.request_deserializer)
            return grpc.stream_unary_rpc_method_handler(answer, None, encode)
        if handler.unary_stream:
            stream = self._stream(handler.unary_stream, method, handler.request_deserializer)
            return grpc.stream_stream_rpc_method_handler(stream, None, encode)
        if handler.stream_unary:
            answer = self._upload(handler.stream_unary)
            return grpc.stream_unary_rpc_method_handler(answer, handler.request_deserializer, encode)
        assert handler.stream_stream is not None
        chat = self._chat(handler.stream_stream)
        return grpc.stream_stream_rpc_method_handler(chat, handler.request_deserializer, encode)

    def _unary(self, behavior: _Behavior, kind: Kind, method: str, decode: _Decode | None) -> _Behavior:
        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            with (
                self._admitted(kind, context) as host,
                self._request(requests, context, host, method, decode) as request,
            ):
                return _checked_answer(method, behavior(request, context))

        return self._in_pool(kind, answer)

    def _stream(self, behavior: _Behavior, method: str, decode: _Decode | None) -> _Behavior:
        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            with self._admitted(Kind.STREAM, context) as host:
                with self._request(requests, context, host, method, decode) as request:
                    answers = behavior(request, context)
                for part in answers:
                    yield _checked_answer(method, part)

        return self._in_pool(Kind.STREAM, answer)

    def _upload(self, behavior: _Behavior) -> _Behavior:
        def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            with self._admitted(Kind.UPLOAD, context):
                return behavior(requests, context)

        return self._in_pool(Kind.UPLOAD, answer)

    def _chat(self, behavior: _Behavior) -> _Behavior:
        def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            with self._admitted(Kind.UPLOAD, context):
                yield from behavior(requests, context)

        return self._in_pool(Kind.UPLOAD, answer)

    def _in_pool(self, kind: Kind, behavior: _Behavior) -> _Behavior:
        """Let gRPC run a function in the threads of its kind."""
        behavior.experimental_thread_pool = self._pools[kind]  # type: ignore[attr-defined]
        return behavior

    @contextmanager
    def _admitted(self, kind: Kind, context: grpc.ServicerContext) -> Iterator[str]:
        """Count the call while it is open; yield its caller's host."""
        host = caller_host(context.peer())
        try:
            with self._slots[kind].slot(host):
                yield host
        except LimitReached as error:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except AutothrottleError as error:
            abort(context, error)

    @contextmanager
    def _request(
        self,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
        host: str,
        method: str,
        decode: _Decode | None,
    ) -> Iterator[Any]:
        """Receive a request, check its size and decode it.

        Raises:
            LimitReached: it is too large, or another large one of the host is in progress.
            Invalid: the request is missing or cannot be decoded.
        """
        receiving = self._receiving_checks if method == _HEALTH_CHECK else self._receiving
        with receiving.turn(host, context) if host != "unix" else nullcontext():
            data = next(requests, None)
        if data is None:
            raise Invalid(f"{method} needs a request; the call ended without one")
        size, limit = len(data), self._large.get(method, SMALL_REQUEST)
        if size > limit:
            raise LimitReached(
                f"the request for {method} has {size} bytes, more than the limit of {limit}. Fix: send less."
            )
        with self._heavy.slot(host) if size > HEAVY_REQUEST and host != "unix" else nullcontext():
            request = _decoded(data, method, decode)
            del data
            yield request


def _checked_answer(method: str, answer: Any) -> Any:
    """Return an answer. gRPC itself would refuse a larger one without naming the cause.

    Raises:
        LimitReached: it is too large.
    """
    size = answer.ByteSize() if isinstance(answer, Message) else 0
    if size > MAX_ANSWER_BYTES:
        raise LimitReached(
            f"the answer to {method} has {size} bytes, more than the limit of {MAX_ANSWER_BYTES}. "
            "Fix: ask for fewer topics, partitions or brokers at a time, or without optional parts."
        )
    return answer


def _decoded(data: bytes, method: str, decode: _Decode | None) -> Any:
    """Decode a request. gRPC itself would answer INTERNAL without a reason.

    Raises:
        Invalid: it cannot be decoded.
    """
    try:
        return decode(data) if decode else data
    except DecodeError:
        raise Invalid(
            f"malformed request for {method}: {len(data)} bytes that cannot be decoded. "
            "Fix: generate the client from proto/autothrottle/v1, or use throttlectl."
        ) from None
