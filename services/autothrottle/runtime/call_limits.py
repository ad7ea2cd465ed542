"""Limits of a gRPC server: sizes of requests, and concurrent calls in total and per host of their callers.

Each kind of call has its own threads, so that health checks and reads answer during long calls and open streams. A
call counts before its request is received: a refused call costs no memory, and its message stays with its sender. The
types to know are `Admission`, the server's outermost interceptor, and `LARGE_REQUESTS`.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import Any, TypeAlias
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError, Message

from autothrottle.core.access import Caller, Role
from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.core.exported_metrics import REQUEST_RATE, REQUEST_THROTTLE_TIME, MetricSample
from autothrottle.core.request_quotas import (
    ANONYMOUS,
    SAMPLE_SECONDS,
    CallerQuota,
    RequestQuotaEntity,
    RequestRates,
    RequestSensor,
    client_id_or_none_given,
    quota_of,
)
from autothrottle.ports.state_store import RequestQuotaStore
from autothrottle.runtime.connections import host_of
from autothrottle.wire.applier import MAX_REQUEST_BYTES
from autothrottle.wire.common import abort

SMALL_REQUEST = 64 * 1024
"""Largest request in bytes, except for `LARGE_REQUESTS`; useful ones have some hundred bytes."""

_MEDIUM_REQUEST = 4 * 1024 * 1024

LARGE_REQUESTS: Mapping[str, int] = {
    f"/autothrottle.v1.{service}/{method}": size
    for size, service, methods in (
        (SMALL_REQUEST, "PlacementService", ("Rebuild", "Rebalance", "Scale", "Decommission")),
        (SMALL_REQUEST, "PlacementService", ("PlanPools", "GetPoolStatus", "GetCapacity")),
        (SMALL_REQUEST, "DiscoveryService", ("GetClients",)),
        (_MEDIUM_REQUEST, "AdminService", ("SubmitReassignment", "EstimateReassignment")),
        (_MEDIUM_REQUEST, "AdminService", ("CancelReassignment", "CheckCancellation")),
        (_MEDIUM_REQUEST, "PlannerService", ("SubmitReassignment", "CancelReassignment")),
        (_MEDIUM_REQUEST, "MetricsService", ("PostEvent",)),
        (MAX_REQUEST_BYTES, "ApplierService", ("Apply", "SubmitReassignments", "CancelReassignments")),
        (MAX_REQUEST_BYTES, "DiscoveryService", ("GetSnapshot", "GetLogSizes", "GetFetchSettings", "GetQuotaState")),
    )
    for method in methods
}
"""Method -> its largest request in bytes; 10,000 partitions take up to 3 MB. Their calls may also take a minute."""

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Largest answer: clients accept no larger one. A snapshot of 100,000 partitions in reassignment takes 1.6 MB."""

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

SPARE_REFUSALS = 32
"""Refusals of wrong tokens that are delayed at a time in a process. They hold no slots."""

_HEALTH_CHECK = "/grpc.health.v1.Health/Check"

Behavior = Callable[[Any, grpc.ServicerContext], Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Handler | None]"
_Decode = Callable[[bytes], Any]


def rewrapped(
    handler: Handler, wrapped: Callable[[Behavior, bool], Behavior], encode: Callable[[Any], bytes] | None
) -> Handler:
    """Return a handler of the same kind. `wrapped` gets the method's function, and whether it answers with a stream."""
    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    kind = next(kind for kind in kinds if getattr(handler, kind))
    behavior = wrapped(getattr(handler, kind), kind.endswith("_stream"))
    make_handler = getattr(grpc, f"{kind}_rpc_method_handler")
    return make_handler(behavior, handler.request_deserializer, encode)  # type: ignore[no-any-return]


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
                slowest = time.monotonic() - self._seconds
                for sender in [sender for sender, since in begun.items() if since < slowest]:
                    sender.cancel()
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


class Admission(grpc.ServerInterceptor):
    """The outermost interceptor: counts a call, receives and decodes its request, and calls the method.

    To gRPC, every method is client-streaming: such a method runs before its request is received.
    """

    def __init__(self, name: str, calls: int, streams: int) -> None:
        """Create the pools of threads.

        Args:
            name: the server's name in errors.
            calls: limit of concurrent short calls. A quarter of it limits each other kind of call, except streams.
            streams: limit of open streams.
        """
        few = (calls + 3) // 4
        totals = {Kind.CHECK: few, Kind.CALL: calls, Kind.LONG: few, Kind.STREAM: streams, Kind.UPLOAD: few}
        self._slots = {kind: Slots(name, kind.value, total) for kind, total in totals.items()}
        self._heavy = Slots(name, f"requests of more than {HEAVY_REQUEST} bytes in progress", HEAVY_REQUESTS)
        self._receiving, self._receiving_checks = _Receiving(RECEIVE_SECONDS), _Receiving(_RECEIVE_CHECK_SECONDS)
        spare = _SPARE_THREADS + MOST_DELAYED + SPARE_REFUSALS
        self._pools = {
            kind: ThreadPoolExecutor(total + spare, thread_name_prefix=f"{name}-grpc") for kind, total in totals.items()
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
        sizes = [size for method, size in LARGE_REQUESTS.items() if method.split("/")[1] in services]
        return max(sizes, default=SMALL_REQUEST)

    def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """Wrap the method's function."""
        method, handler = handler_call_details.method, continuation(handler_call_details)
        if handler is None:
            return None
        kind = Kind.CHECK if method == _HEALTH_CHECK else Kind.LONG if method in LARGE_REQUESTS else Kind.CALL
        encode = handler.response_serializer
        if handler.unary_unary:
            answer = self._unary(handler.unary_unary, kind, method, handler.request_deserializer)
            return grpc.stream_unary_rpc_method_handler(answer, None, encode)
        if handler.unary_stream:
            stream = self._stream(handler.unary_stream, method, handler.request_deserializer)
            return grpc.stream_stream_rpc_method_handler(stream, None, encode)
        assert handler.stream_stream is not None, "no method of ours, of health or of reflection has one answer to many"
        chat = self._chat(handler.stream_stream)
        return grpc.stream_stream_rpc_method_handler(chat, handler.request_deserializer, encode)

    def _unary(self, behavior: Behavior, kind: Kind, method: str, decode: _Decode | None) -> Behavior:
        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            with (
                self._admitted(kind, context) as host,
                self._request(requests, context, host, method, decode) as request,
            ):
                return _checked_answer(method, behavior(request, context))

        return self._in_pool(kind, answer)

    def _stream(self, behavior: Behavior, method: str, decode: _Decode | None) -> Behavior:
        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            with self._admitted(Kind.STREAM, context) as host:
                with self._request(requests, context, host, method, decode) as request:
                    answers = behavior(request, context)
                for part in answers:
                    yield _checked_answer(method, part)

        return self._in_pool(Kind.STREAM, answer)

    def _chat(self, behavior: Behavior) -> Behavior:
        def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            with self._admitted(Kind.UPLOAD, context):
                yield from behavior(requests, context)

        return self._in_pool(Kind.UPLOAD, answer)

    def _in_pool(self, kind: Kind, behavior: Behavior) -> Behavior:
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
        size, limit = len(data), LARGE_REQUESTS.get(method, SMALL_REQUEST)
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
    size = answer.ByteSize() if isinstance(answer, Message) else len(answer) if isinstance(answer, bytes) else 0
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


CLIENT_ID = "client-id"
"""Key of the metadata, and name of the header, by which a client names itself."""

THROTTLE_TIME = "request-throttle-time-ms"
"""Key of the trailing metadata, and name of the header, with the delay of a response in milliseconds."""

MOST_SENSORS = 1_000
"""Entities whose requests are counted at a time. Beyond it, the one that called the longest ago starts anew."""

MOST_LABELLED = 50
"""Entities with exported metrics: those with the highest request rates."""


@dataclass(frozen=True, slots=True)
class RequestThrottle:
    """The delay of one response."""

    seconds: float
    """From the arrival of the request; 0: none."""
    until: float
    """When the response may leave, on the clock of the quotas."""
    clock: Callable[[], float]

    @property
    def seconds_left(self) -> float:
        """Seconds until the response may leave."""
        return max(0.0, self.until - self.clock())

    @property
    def header(self) -> tuple[str, str]:
        """The pair for trailing metadata and headers."""
        return THROTTLE_TIME, str(round(self.seconds * 1000))


REFUSAL_HEADER = (THROTTLE_TIME, str(round(SAMPLE_SECONDS * 1000)))
"""The pair of a refused request: the time after which the caller may try again."""


class RequestQuotas:
    """The request quotas of a process and its sensors; no quotas until it follows a store. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._rates: RequestRates = {}
        self._sensors: OrderedDict[RequestQuotaEntity, RequestSensor] = OrderedDict()
        """The entity that called the longest ago comes first; guarded by `_lock`."""
        self._lock = threading.Lock()
        self._delayed = Slots("this process", "delayed responses", MOST_DELAYED)

    def follow(self, store: RequestQuotaStore) -> None:
        """Apply the quotas of a store as soon as they are read. While it does not answer, the last ones apply."""

        def apply(rates: RequestRates) -> None:
            self._rates = rates

        store.follow(apply)

    @contextmanager
    def reserved(self, caller: Caller, client_id: str) -> Iterator[RequestThrottle | None]:
        """Count a request; its response must wait until the yielded throttle ends. None: no quota applies.

        Raises:
            LimitReached: the caller has so many delayed requests that this one would wait for more than a second.
        """
        quota = self._quota_of(caller, client_id) if self._rates else None
        if quota is None:
            yield None
            return
        with ExitStack() as slots:
            with self._lock:
                now = self._clock()
                sensor = self._sensor(quota.entity, now)
                delay = sensor.delay(now, quota.rate)
                if delay > SAMPLE_SECONDS:
                    raise LimitReached(_refusal(quota, delay))
                if delay:
                    slots.enter_context(self._delayed.slot(str(quota.entity)))
                sensor.count(now, delay)
            yield RequestThrottle(delay, now + delay, self._clock)

    @contextmanager
    def throttled(self, caller: Caller, context: grpc.ServicerContext) -> Iterator[None]:
        """Delay the end of the context, so that the response of a gRPC call leaves after its throttle time.

        An error is a response, too. A stream is delayed at its beginning.
        """
        if not self._rates:
            yield
            return
        metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        try:
            with self.reserved(caller, metadata.get(CLIENT_ID, "")) as throttle:
                try:
                    yield
                finally:
                    if throttle is not None:
                        time.sleep(throttle.seconds_left)
                        context.set_trailing_metadata((*(context.trailing_metadata() or ()), throttle.header))
        except LimitReached as error:
            context.set_trailing_metadata((REFUSAL_HEADER,))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    def samples(self) -> Iterable[MetricSample]:
        """Return the request rate and the throttle time of the busiest entities."""
        with self._lock:
            now = self._clock()
            self._expire(now)
            rates = ((sensor.rate(now), sensor.average_delay(now), who) for who, sensor in self._sensors.items())
            busiest = heapq.nlargest(MOST_LABELLED, rates, key=itemgetter(0))
        for rate, delay, who in busiest:
            labels = (who.user or "", who.client_id or "")
            yield REQUEST_RATE.sample(rate, *labels)
            yield REQUEST_THROTTLE_TIME.sample(delay, *labels)

    def _quota_of(self, caller: Caller, client_id: str) -> CallerQuota | None:
        """Return the quota of a caller; services of autothrottle have none if their credentials prove them."""
        if caller.is_proven and caller.role is Role.SERVICE:
            return None
        return quota_of(self._rates, caller.name or ANONYMOUS, client_id_or_none_given(client_id))

    def _sensor(self, entity: RequestQuotaEntity, now: float) -> RequestSensor:
        sensor = self._sensors.setdefault(entity, RequestSensor())
        self._sensors.move_to_end(entity)
        self._expire(now, keep=1)
        return sensor

    def _expire(self, now: float, keep: int = 0) -> None:
        while len(self._sensors) > keep:
            first = next(iter(self._sensors))
            if len(self._sensors) <= MOST_SENSORS and not self._sensors[first].is_idle(now):
                return
            del self._sensors[first]


def _refusal(quota: CallerQuota, delay: float) -> str:
    return (
        f"{quota.entity} has a request quota of {quota.rate} requests/s and so many requests in progress that this one "
        f"would wait for {delay:.1f} s. Fix: send fewer requests at a time, try again in a second, or ask an operator "
        "for another quota (throttlectl request-quota set)."
    )
