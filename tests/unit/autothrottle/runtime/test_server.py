from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from autothrottle.core.errors import Conflict, NotLeader, Unavailable
from autothrottle.runtime.health import Health
from autothrottle.runtime.server import ServiceServer
from autothrottle_client import errors as client_errors
from autothrottle_client.errors import from_rpc_error
from tests.builders import eventually

SERVICE = "test.Echo"
SLACK = 10.0
"""Time limit of any operation on a busy machine, in seconds."""

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Echo:
    """A service of bytes; the request selects its behavior."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.entered = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)

    def say(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if request == b"conflict":
            raise Conflict("version 3 is not 4; read again")
        if request == b"follower":
            raise NotLeader("another planner leads", "10.0.0.7:4003")
        if request == b"bug":
            raise KeyError("secret-value")
        if request == b"abort":
            context.abort(grpc.StatusCode.OUT_OF_RANGE, "by hand")
        if request == b"wait":
            self.entered.release()
            self.release.wait(SLACK)
        return request

    def watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        left = threading.Event()
        context.add_callback(left.set)
        yield b"first"
        if request == b"conflict":
            raise Conflict("gone")
        if request == b"short":
            yield b"second"
            return
        left.wait(SLACK * 3)
        self.ended.release()

    def chat(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from requests


def add(servicer: Any, server: grpc.Server) -> None:
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Say": grpc.unary_unary_rpc_method_handler(servicer.say),
        "Watch": grpc.unary_stream_rpc_method_handler(servicer.watch),
        "Chat": grpc.stream_stream_rpc_method_handler(servicer.chat),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


@contextmanager
def serving(echo: Echo, **settings: Any) -> Iterator[tuple[ServiceServer, Any]]:
    server = ServiceServer("echo", [(add, echo, SERVICE)], **settings)
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with server, grpc.insecure_channel(server.address, options=options) as channel:
        yield server, channel


def say(channel: Any, request: bytes) -> bytes:
    answer: bytes = channel.unary_unary(f"/{SERVICE}/Say")(request, timeout=SLACK)
    return answer


def watch(channel: Any, request: bytes = b"long") -> Any:
    return channel.unary_stream(f"/{SERVICE}/Watch")(request)


def health(channel: grpc.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel)


def failure(call: Callable[[], object]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def opened(channel: Any, request: bytes = b"long") -> Any:
    """Open a stream as soon as a slot is free; an ended stream frees its slot a moment later."""
    deadline = time.monotonic() + SLACK
    while True:
        call = watch(channel, request)
        try:
            assert next(call) == b"first"
            return call
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert time.monotonic() < deadline, "no slot became free"
            time.sleep(0.01)


def test_port_zero_binds_a_free_port_and_the_address_names_it() -> None:
    with serving(Echo()) as (server, channel):
        assert server.address.startswith("127.0.0.1:")
        assert int(server.address.rpartition(":")[2]) > 0
        assert say(channel, b"hello") == b"hello"


def test_a_unix_socket_is_served_and_removed_at_the_end(tmp_path: Path) -> None:
    with serving(Echo(), listen=f"unix:{tmp_path}/s") as (_, channel):
        assert say(channel, b"hello") == b"hello"
    assert list(tmp_path.iterdir()) == []


def test_an_address_in_use_is_unavailable_with_address_and_fix() -> None:
    with (
        serving(Echo()) as (server, _),
        pytest.raises(Unavailable, match=rf"echo cannot listen on {server.address}.*Fix: stop the program"),
    ):
        ServiceServer("echo", [(add, Echo(), SERVICE)], listen=server.address)


def test_an_error_of_core_reaches_the_caller_unchanged() -> None:
    with serving(Echo()) as (_, channel):
        failed = failure(lambda: say(channel, b"conflict"))
    assert failed.code() is grpc.StatusCode.ABORTED
    returned = from_rpc_error(failed, "echo")
    assert (type(returned), str(returned)) == (client_errors.Conflict, "version 3 is not 4; read again")


def test_not_leader_reaches_the_caller_with_the_leaders_address() -> None:
    with serving(Echo()) as (_, channel):
        returned = from_rpc_error(failure(lambda: say(channel, b"follower")), "echo")
    assert isinstance(returned, client_errors.NotLeader)
    assert returned.leader_address == "10.0.0.7:4003"


def test_an_error_in_a_stream_reaches_the_caller_after_the_messages() -> None:
    with serving(Echo()) as (_, channel):
        call = watch(channel, b"conflict")
        assert next(call) == b"first"
        assert type(from_rpc_error(failure(lambda: next(call)), "echo")) is client_errors.Conflict


def test_an_unexpected_exception_becomes_internal_and_only_the_log_has_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(Echo()) as (_, channel):
        failed = failure(lambda: say(channel, b"bug"))
    assert failed.code() is grpc.StatusCode.INTERNAL
    assert "unexpected KeyError" in str(failed.details())
    assert "secret-value" not in str(failed.details())
    (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert record.getMessage() == f"Call of /{SERVICE}/Say failed in echo"
    assert record.exc_info is not None


def test_a_status_set_by_a_servicer_is_kept() -> None:
    with serving(Echo()) as (_, channel):
        assert failure(lambda: say(channel, b"abort")).code() is grpc.StatusCode.OUT_OF_RANGE


def test_bidirectional_calls_work() -> None:
    with serving(Echo()) as (_, channel):
        chat = channel.stream_stream(f"/{SERVICE}/Chat")
        assert list(chat(iter([b"a", b"b"]), timeout=SLACK)) == [b"a", b"b"]


def test_open_streams_never_starve_unary_calls_and_a_stream_beyond_the_limit_is_refused() -> None:
    """Ten open streams on a pool of ten threads left no thread for unary calls. Each call waited until its deadline."""
    with serving(Echo(), pool_size=1, max_streams=20) as (_, channel):
        streams = [watch(channel) for _ in range(10)]
        assert [next(stream) for stream in streams] == [b"first"] * 10
        assert say(channel, b"hello") == b"hello"
        refused = failure(lambda: next(watch(channel)))
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "echo has 10 open streams of ipv4:127.0.0.1" in str(refused.details())
        assert say(channel, b"hello again") == b"hello again"
        streams[0].cancel()
        streams[0] = opened(channel)
        for stream in streams:
            stream.cancel()


def test_a_stream_frees_its_slot_however_it_ends() -> None:
    with serving(Echo(), max_streams=1) as (_, channel):
        for request in (b"short", b"conflict", b"long", b"short"):
            call = opened(channel, request)
            if request == b"long":
                call.cancel()
            with pytest.raises((grpc.RpcError, StopIteration)):
                while True:
                    next(call)


def test_health_reports_the_server_and_each_service() -> None:
    server = ServiceServer("echo", [(add, Echo(), SERVICE)])
    with grpc.insecure_channel(server.address) as channel:
        check = health(channel).Check
        with server:
            request = health_pb2.HealthCheckRequest(service=SERVICE)
            assert check(request, timeout=SLACK).status == SERVING
            assert check(health_pb2.HealthCheckRequest(), timeout=SLACK).status == SERVING
            unknown = failure(lambda: check(health_pb2.HealthCheckRequest(service="no.Such"), timeout=SLACK))
            assert unknown.code() is grpc.StatusCode.NOT_FOUND


def test_a_health_watch_sees_not_serving_before_the_server_ends() -> None:
    with serving(Echo()) as (server, channel), ThreadPoolExecutor(1) as pool:
        watched = health(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert next(watched).status == SERVING
        following = pool.submit(next, watched)
        started = time.monotonic()
        server.stop(timedelta(seconds=30))
        assert following.result(SLACK).status == NOT_SERVING
        assert time.monotonic() - started < 15


def test_health_and_its_watch_follow_the_checks_of_the_process() -> None:
    """Health reported SERVING from start to stop, also while the state store or Kafka was unreachable."""
    problem = [""]
    checks = Health(period_seconds=0.01)
    checks.add("store", lambda: problem[0], service=SERVICE)
    checks.add("other", lambda: "down", service="test.Other")
    with closing(checks), serving(Echo(), checks=checks) as (_, channel):
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        assert health(channel).Check(request, timeout=SLACK).status == NOT_SERVING
        checks.start()
        eventually(lambda: health(channel).Check(request, timeout=SLACK).status == SERVING)
        watched = health(channel).Watch(request, timeout=SLACK * 3)
        assert next(watched).status == SERVING
        problem[0] = "frozen"
        assert next(watched).status == NOT_SERVING
        assert health(channel).Check(health_pb2.HealthCheckRequest(), timeout=SLACK).status == NOT_SERVING
        problem[0] = ""
        assert next(watched).status == SERVING


def test_reflection_lists_the_services() -> None:
    with serving(Echo()) as (_, channel):
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = list(stub.ServerReflectionInfo(iter([request]), timeout=SLACK))
    names = {service.name for service in answer.list_services_response.service}
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


def test_stop_finishes_unary_calls_ends_streams_and_refuses_new_calls() -> None:
    echo = Echo()
    with serving(echo) as (server, channel), ThreadPoolExecutor(2) as pool:
        answer = pool.submit(say, channel, b"wait")
        assert echo.entered.acquire(timeout=SLACK)
        stream = watch(channel)
        assert next(stream) == b"first"
        stopped = pool.submit(server.stop, timedelta(seconds=30))
        assert failure(lambda: next(stream)).code() is grpc.StatusCode.CANCELLED
        assert echo.ended.acquire(timeout=SLACK)
        with grpc.insecure_channel(server.address) as late:
            assert failure(lambda: say(late, b"hello")).code() is grpc.StatusCode.UNAVAILABLE
        assert not stopped.done()
        echo.release.set()
        assert answer.result(SLACK) == b"wait"
        stopped.result(SLACK)


def test_calls_still_running_after_the_grace_are_cancelled() -> None:
    echo = Echo()
    with serving(echo) as (server, channel), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(say, channel, b"wait")
        assert echo.entered.acquire(timeout=SLACK)
        server.stop(timedelta(seconds=0.2))
        assert isinstance(answer.exception(SLACK), grpc.RpcError)
        echo.release.set()


def test_stop_leaves_no_thread() -> None:
    with serving(Echo()) as (_, channel):
        assert say(channel, b"hello") == b"hello"
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("echo-grpc")])


def test_a_second_stop_does_nothing() -> None:
    with serving(Echo()) as (server, _):
        server.stop()
        server.stop()


def test_two_servers_in_one_process_share_no_thread() -> None:
    first, second = Echo(), Echo()
    with ExitStack() as stack:
        _, busy = stack.enter_context(serving(first, pool_size=4, max_streams=1))
        _, idle = stack.enter_context(serving(second, pool_size=1, max_streams=1))
        pool = stack.enter_context(ThreadPoolExecutor(2))
        waiting = [pool.submit(say, busy, b"wait") for _ in range(2)]
        for _ in waiting:
            assert first.entered.acquire(timeout=SLACK)
        assert say(idle, b"hello") == b"hello"
        first.release.set()
        assert [call.result(SLACK) for call in waiting] == [b"wait"] * 2
