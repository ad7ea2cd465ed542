"""Limits of calls and requests, over real gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from autothrottle.runtime import call_limits
from autothrottle.runtime.call_limits import LARGE_REQUESTS, SMALL_REQUEST, LimitReached, Slots
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1 import admin_pb2, applier_pb2, discovery_pb2, metrics_pb2, placement_pb2, planner_pb2
from tests.builders import eventually

SERVICE = "autothrottle.v1.AdminService"
LARGE = LARGE_REQUESTS[f"/{SERVICE}/SubmitReassignment"]
SLACK = 10.0
UNLIMITED = [("grpc.max_send_message_length", -1)]


class Echo:
    """A service whose calls wait until their release if the request starts with `w`."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.entered = threading.Semaphore(0)

    def say(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.entered.release()
        if request.startswith(b"w"):
            self.release.wait(SLACK * 3)
        return str(len(request)).encode()

    def watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        left = threading.Event()
        context.add_callback(left.set)
        yield b"first"
        left.wait(SLACK * 3)


def add(servicer: Any, server: grpc.Server) -> None:
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "RequestCycle": grpc.unary_unary_rpc_method_handler(servicer.say),
        "SubmitReassignment": grpc.unary_unary_rpc_method_handler(servicer.say),
        "Watch": grpc.unary_stream_rpc_method_handler(servicer.watch),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


class Client:
    """A server and a client of it, which end with the test."""

    def __init__(self, stack: ExitStack, listen: str = "127.0.0.1:0") -> None:
        self.echo = Echo()
        server = stack.enter_context(ServiceServer("echo", [(add, self.echo, SERVICE)], listen, 8, 8))
        self.channel: Any = stack.enter_context(grpc.insecure_channel(server.address, options=UNLIMITED))
        self._pool = stack.enter_context(ThreadPoolExecutor(32))
        stack.callback(self.echo.release.set)

    def ask(self, request: bytes = b"hello", method: str = "RequestCycle") -> bytes:
        answer: bytes = self.channel.unary_unary(f"/{SERVICE}/{method}")(request, timeout=SLACK * 3)
        return answer

    def occupy(self, count: int, request: bytes = b"w", method: str = "RequestCycle") -> None:
        """Start calls that wait until the end of the test."""
        for _ in range(count):
            self._pool.submit(self.ask, request, method)
        for _ in range(count):
            assert self.echo.entered.acquire(timeout=SLACK)

    def refusal(self, *arguments: Any) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            self.ask(*arguments)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return str(error.details())

    def stall(self) -> Any:
        """Start a call whose request never arrives."""
        return self.channel.stream_unary(f"/{SERVICE}/RequestCycle").future(self._nothing(), timeout=SLACK * 3)

    def _nothing(self) -> Iterator[bytes]:
        self.echo.release.wait(SLACK * 3)
        yield b"late"

    def is_healthy(self) -> bool:
        """Whether health answers within a second."""
        stub: Any = health_pb2_grpc.HealthStub(self.channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@contextmanager
def client(listen: str = "127.0.0.1:0") -> Iterator[Client]:
    with ExitStack() as stack:
        yield Client(stack, listen)


def test_large_requests_name_existing_methods() -> None:
    modules = (admin_pb2, applier_pb2, discovery_pb2, metrics_pb2, placement_pb2, planner_pb2)
    services = [service for module in modules for service in module.DESCRIPTOR.services_by_name.values()]
    methods = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert methods >= LARGE_REQUESTS.keys()


@pytest.mark.parametrize(("method", "limit"), [("RequestCycle", SMALL_REQUEST), ("SubmitReassignment", LARGE)])
def test_a_request_above_the_limit_of_its_method_is_refused_before_decoding(method: str, limit: int) -> None:
    """Every method took messages of 64 MB. 40 of 8 MB at once made the process grow by 6 GB."""
    with client() as at:
        assert at.ask(bytes(limit), method) == str(limit).encode()
        assert at.echo.entered.acquire(timeout=SLACK)
        refusal = at.refusal(bytes(limit + 1), method)
        assert f"{SERVICE}/{method} has {limit + 1} bytes, more than the limit of {limit}. Fix: " in refusal
        assert "larger than max" in at.refusal(bytes(2 * LARGE + 1), method)
        assert not at.echo.entered.acquire(blocking=False)


def test_one_host_gets_half_of_the_calls_and_health_answers_meanwhile() -> None:
    with client() as at:
        at.occupy(4)
        assert at.refusal() == (
            "echo has 4 calls in progress of ipv4:127.0.0.1, which is the limit. "
            "Fix: end one, or try again later or at another replica."
        )
        assert at.is_healthy()


def test_a_unix_socket_gets_all_calls(tmp_path: Any) -> None:
    """The gateway and the planner of `autothrottle run` call over unix sockets, each as one peer."""
    with client(f"unix:{tmp_path}/s") as at:
        at.occupy(8)
        assert "echo has 8 calls in progress, which is the limit" in at.refusal()
        assert at.is_healthy()


def test_long_calls_take_no_thread_of_short_ones() -> None:
    with client() as at:
        at.occupy(1, method="SubmitReassignment")
        assert "1 long calls in progress of ipv4:127.0.0.1" in at.refusal(b"hello", "SubmitReassignment")
        assert at.ask() == b"5"


def test_streams_leave_calls_and_health_alone() -> None:
    with client() as at:
        streams = [at.channel.unary_stream(f"/{SERVICE}/Watch")(b"", timeout=SLACK * 3) for _ in range(4)]
        assert [next(stream) for stream in streams] == [b"first"] * 4
        with pytest.raises(grpc.RpcError, match="4 open streams of ipv4:127"):
            next(at.channel.unary_stream(f"/{SERVICE}/Watch")(b"", timeout=SLACK))
        assert at.ask() == b"5"
        assert at.is_healthy()
        for stream in streams:
            stream.cancel()


def test_calls_without_a_request_are_counted_and_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call occupied a thread before its request arrived. Eight clients that sent none stopped the server."""
    monkeypatch.setattr(call_limits, "RECEIVE_SECONDS", 3.0)
    with client() as at:
        stalled = [at.stall() for _ in range(2)]
        assert at.is_healthy()
        assert not any(call.done() for call in stalled)
        assert at.ask() == b"5"
        eventually(lambda: sum(call.done() for call in stalled) >= 1)


def test_other_hosts_keep_their_share_and_a_freed_slot_is_reused() -> None:
    slots = Slots("echo", "calls", 4)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(slots.slot("a"))
        with pytest.raises(LimitReached, match="2 calls of a"):
            stack.enter_context(slots.slot("a"))
        for _ in range(2):
            stack.enter_context(slots.slot("b"))
        with pytest.raises(LimitReached, match="4 calls, which"):
            stack.enter_context(slots.slot("c"))
    with slots.slot("a"), slots.slot("a"):
        pass


def test_answer_beyond_the_limit_is_refused_with_the_limit_and_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC refuses a larger answer without naming the method or the limit."""
    monkeypatch.setattr(call_limits, "MAX_ANSWER_BYTES", 10)
    small, large = (discovery_pb2.WatchSnapshotsResponse(reason="x" * size) for size in (1, 20))
    assert call_limits._checked_answer("/Service/Method", small) is small
    with pytest.raises(
        LimitReached, match=r"answer to /Service/Method has 22 bytes, more than the limit of 10\. Fix: "
    ):
        call_limits._checked_answer("/Service/Method", large)
