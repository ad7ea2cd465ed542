"""Failover, rotation and name resolution of replicas, with real servers on the loopback interface."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from autothrottle.v1 import planner_pb2
from autothrottle.v1.planner_pb2_grpc import PlannerServiceStub
from autothrottle_client import Unavailable
from autothrottle_client.replicas import Connection, Replica, Replicas, check_health, resolved
from autothrottle_lab.servers.processes import free_address
from tests.builders import eventually

TIMEOUT = timedelta(seconds=30)
REFUSING_ADDRESS = "127.0.0.1:1"
"""Nothing listens on this port: connections are refused at once."""


class Health(health_pb2_grpc.HealthServicer):
    """A health service with a settable status."""

    def __init__(self) -> None:
        self.checks = 0
        self.serving = True

    def Check(self, request: object, context: object) -> health_pb2.HealthCheckResponse:
        self.checks += 1
        status = health_pb2.HealthCheckResponse.SERVING if self.serving else health_pb2.HealthCheckResponse.NOT_SERVING
        return health_pb2.HealthCheckResponse(status=status)


class Server:
    """A replica of a service with one method, which returns the replica's name."""

    def __init__(self, name: str, address: str = "", health: Health | None = None) -> None:
        self.name, self.calls = name, 0
        self.failing = False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._pool = ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        method: Any = grpc.unary_unary_rpc_method_handler(self._answer)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", {"Name": method}),))
        if health is not None:
            health_pb2_grpc.add_HealthServicer_to_server(health, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(address or free_address())}"
        self._server.start()

    def _answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        self.may_answer.wait(30)
        if self.failing:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return self.name.encode()

    def stop(self) -> None:
        self.may_answer.set()
        self._server.stop(None).wait(30)
        self._pool.shutdown()


def fetch_name(replica: Replica, seconds: float) -> str:
    rpc: Any = replica.channel.unary_unary("/test.Service/Name")
    return str(rpc(b"", timeout=seconds), "utf-8")


def answers(replicas: Replicas, times: int = 1) -> list[str]:
    return [replicas.call(fetch_name, TIMEOUT) for _ in range(times)]


class NameServer:
    """A name server for one name, whose answer can change."""

    def __init__(self, *found: str) -> None:
        self.found: Sequence[str] = found
        self.lookups = 0
        self.error: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, address: str) -> Sequence[str]:
        assert address == "service.test:4001"
        self.lookups += 1
        self.may_answer.wait(30)
        if self.error:
            raise self.error
        return self.found


NAME = "service.test:4001"

Serve = Callable[..., Server]
Open = Callable[..., Replicas]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def serve(stack: ExitStack) -> Serve:
    def start(name: str, **arguments: Any) -> Server:
        server = Server(name, **arguments)
        stack.callback(server.stop)
        return server

    return start


@pytest.fixture
def connect(stack: ExitStack) -> Open:
    def start(*addresses: str, **arguments: Any) -> Replicas:
        # The connection of the services: every address of a name is a replica, and each replica is tried once.
        connection = Connection(**{"resolve": resolved, **arguments})
        return stack.enter_context(closing(Replicas("the service", addresses, connection)))

    return start


# Silence.


def test_a_connected_replica_is_silent_only_after_a_longer_time(
    serve: Serve, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each `throttlectl estimate` said that it waits for admin, which measures the growth of logs for 2 s."""
    monkeypatch.setattr("autothrottle_client.replicas.PATIENCE", timedelta(seconds=0.1))
    said, server = threading.Event(), serve("slow")
    server.may_answer.clear()
    replicas = connect(server.address, on_silence=said.set)
    answering = threading.Timer(0.3, server.may_answer.set)
    answering.start()
    assert answers(replicas) == ["slow"]
    answering.join()
    replicas.close()
    assert not said.is_set()
    monkeypatch.setattr("autothrottle_client.replicas.SLOW", timedelta(seconds=0.1))
    server.may_answer.clear()
    with ThreadPoolExecutor(1) as executor:
        answer = executor.submit(answers, connect(server.address, on_silence=said.set))
        assert said.wait(30), "an answer that takes too long has its line"
        server.may_answer.set()
        assert answer.result() == ["slow"]


# Rotation and failover.


def test_calls_rotate_over_the_replicas(serve: Serve, connect: Open) -> None:
    replicas = connect(*(serve(name).address for name in "abc"), rotates=True)
    assert answers(replicas, 6) == [*"abcabc"]


def test_calls_without_rotation_stay_with_the_replica_that_answered(serve: Serve, connect: Open) -> None:
    servers = [serve(name) for name in "abc"]
    replicas = connect(*(server.address for server in servers))
    assert answers(replicas, 3) == [*"aaa"]
    servers[0].stop()
    assert answers(replicas, 3) == [*"bbb"]
    serve("a again", address=servers[0].address)
    assert answers(replicas, 3) == [*"bbb"]
    servers[1].stop()
    assert answers(replicas)[0] in ("a again", "c")


def test_unreachable_replica_is_skipped_and_not_retried_at_once(serve: Serve, connect: Open) -> None:
    replicas = connect(REFUSING_ADDRESS, serve("a").address, serve("b").address, rotates=True)
    assert answers(replicas, 5) == [*"ababa"]


def test_failed_replica_is_used_again_after_its_health_check_succeeds(serve: Serve, connect: Open) -> None:
    health = Health()
    failing, other = serve("failing", health=health), serve("other")
    failing.failing, health.serving = True, False
    replicas = connect(failing.address, other.address, rotates=True)

    def has_health_checks(times: int) -> bool:
        assert answers(replicas) == ["other"]
        return health.checks >= times

    eventually(lambda: has_health_checks(2), 60)
    assert failing.calls == 1
    failing.failing, health.serving = False, True
    eventually(lambda: answers(replicas) == ["failing"], 60)


def test_server_without_a_health_service_counts_as_healthy(serve: Serve, connect: Open) -> None:
    first = serve("first")
    replicas = connect(first.address, serve("second").address, rotates=True)
    first.failing = True
    assert answers(replicas) == ["second"]
    first.failing = False
    eventually(lambda: answers(replicas) == ["first"], 60)


def test_hanging_replica_delays_only_one_call(serve: Serve, connect: Open) -> None:
    """A frozen process accepts connections and never answers. Health checks must not delay any call."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        replicas = connect(f"127.0.0.1:{silent.getsockname()[1]}", serve("a").address, rotates=True)
        tried: list[Replica] = []

        def recorded(replica: Replica, seconds: float) -> str:
            tried.append(replica)
            return fetch_name(replica, seconds)

        until = time.monotonic() + 2.0  # several probe delays of 0.5 s and more
        while time.monotonic() < until:
            assert replicas.call(recorded, TIMEOUT) == "a"
            time.sleep(0.01)
        assert tried.count(tried[0]) == 1 < len(tried)


def test_all_failed_replicas_are_tried(serve: Serve, connect: Open) -> None:
    servers = [serve(name) for name in "ab"]
    replicas = connect(*(server.address for server in servers), rotates=True)
    for server in servers:
        server.failing = True
    with pytest.raises(Unavailable) as error:
        answers(replicas)
    assert all(f"{server.address}: not now" in str(error.value) for server in servers)
    servers[1].failing = False
    assert answers(replicas) == ["b"]


def test_unrepeatable_request_is_sent_to_a_single_healthy_replica(serve: Serve, connect: Open) -> None:
    """The first replica removed an override, but its answer was lost. The retry at the second returned Missing: 404."""
    first, second = serve("a", health=Health()), serve("b")
    replicas = connect(REFUSING_ADDRESS, first.address, second.address)
    first.failing = True
    with pytest.raises(Unavailable, match=f"{first.address}: not now. The request may have taken effect"):
        replicas.call(fetch_name, TIMEOUT, check_health)
    assert (first.calls, second.calls) == (1, 0)
    assert replicas.call(fetch_name, TIMEOUT, check_health) == "b"
    assert (first.calls, second.calls) == (1, 1)


def test_threads_share_the_replicas_evenly(serve: Serve, connect: Open) -> None:
    servers = [serve(name) for name in "ab"]
    replicas = connect(*(server.address for server in servers), rotates=True)
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: answers(replicas)[0], range(200)))
    assert sorted(set(names)) == ["a", "b"]
    assert [server.calls for server in servers] == [100, 100]


# Names.


def test_every_address_of_a_name_is_a_replica(serve: Serve, connect: Open) -> None:
    names = NameServer(serve("a").address, serve("b").address)
    replicas = connect(NAME, serve("c").address, rotates=True, resolve=names)
    answers(replicas)
    eventually(lambda: sorted(answers(replicas, 3)) == ["a", "b", "c"], 60)


def test_address_of_two_names_is_one_replica(serve: Serve, connect: Open) -> None:
    a, b = serve("a"), serve("b")
    replicas = connect(NAME, a.address, rotates=True, resolve=NameServer(a.address, b.address))
    eventually(lambda: sorted(answers(replicas, 2)) == ["a", "b"], 60)
    before = a.calls, b.calls
    answers(replicas, 10)
    assert (a.calls - before[0], b.calls - before[1]) == (5, 5)


def test_name_is_looked_up_again_after_a_failure(serve: Serve, connect: Open) -> None:
    old, new = serve("old"), serve("new")
    names = NameServer(old.address)
    replicas = connect(NAME, resolve=names, refresh=timedelta(hours=1))
    assert answers(replicas) == ["old"]
    old.stop()
    names.found = (new.address,)
    eventually(lambda: reaches_new(replicas), 60)


def test_name_is_looked_up_again_after_the_refresh_time(serve: Serve, connect: Open) -> None:
    names = NameServer(serve("old").address)
    replicas = connect(NAME, resolve=names, refresh=timedelta(seconds=0.05))
    assert answers(replicas) == ["old"]
    names.found = (serve("new").address,)
    eventually(lambda: answers(replicas) == ["new"], 60)
    assert answers(replicas, 3) == ["new"] * 3


def test_recent_lookup_is_reused(serve: Serve, connect: Open) -> None:
    names = NameServer(serve("a").address)
    answers(connect(NAME, resolve=names, refresh=timedelta(hours=1)), 20)
    assert names.lookups == 1


def test_running_call_completes_after_its_address_is_removed(serve: Serve, connect: Open) -> None:
    old, new = serve("old"), serve("new")
    names = NameServer(old.address)
    replicas = connect(NAME, resolve=names, refresh=timedelta(seconds=0.05))
    old.may_answer.clear()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(answers, replicas)
        eventually(lambda: old.calls == 1, 60)
        names.found = (new.address,)
        # Calls may go to the hanging replica while the name still resolves to it.
        eventually(lambda: reaches_new(replicas), 60)
        old.may_answer.set()
        assert running.result(30) == ["old"]


def reaches_new(replicas: Replicas) -> bool:
    """Whether the new replica answers a short call."""
    try:
        return replicas.call(fetch_name, timedelta(seconds=0.5)) == "new"
    except Unavailable:
        return False


def test_known_addresses_are_used_while_the_name_server_fails(serve: Serve, connect: Open) -> None:
    names = NameServer(serve("a").address)
    replicas = connect(NAME, resolve=names, refresh=timedelta(0))
    assert answers(replicas) == ["a"]
    names.error = OSError("the name server is unreachable")
    eventually(lambda: answers(replicas) == ["a"] and names.lookups > 3, 60)
    assert answers(replicas) == ["a"]


def test_close_ends_a_call_that_waits_for_a_name_server(connect: Open) -> None:
    """A stopping service waited for the name server until the deadline of its call."""
    asked, may_answer = threading.Event(), threading.Event()

    def resolve(name: str) -> Sequence[str]:
        asked.set()
        may_answer.wait(60)
        return ()

    replicas = connect(NAME, resolve=resolve)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(replicas.call, fetch_name, timedelta(seconds=60))
        assert asked.wait(30)
        replicas.close()
        with pytest.raises(Unavailable, match="closed"):
            call.result(30)
    may_answer.set()


def test_error_names_an_unresolvable_name_and_the_reason(connect: Open) -> None:
    names = NameServer()
    names.error = socket.gaierror(-2, "Name or service not known")
    with pytest.raises(Unavailable) as error:
        connect(NAME, REFUSING_ADDRESS, resolve=names).call(fetch_name, TIMEOUT)
    assert f"{NAME}: the name cannot be resolved" in str(error.value) and "Name or service" in str(error.value)
    assert REFUSING_ADDRESS in str(error.value)
    with pytest.raises(Unavailable, match=rf"{NAME}: the name has no address"):
        connect(NAME, resolve=NameServer()).call(fetch_name, TIMEOUT)


def test_name_is_looked_up_again_after_an_invalid_answer(serve: Serve, connect: Open) -> None:
    server = serve("a")
    lookup = NameServer(server.address)
    lookup.error = ValueError("no port")
    replicas = connect(NAME, resolve=lookup)
    with pytest.raises(Unavailable, match="no port"):
        replicas.call(fetch_name, timedelta(seconds=5))
    lookup.error = None

    def succeeds() -> bool:
        with suppress(Unavailable):
            return answers(replicas) == ["a"]
        return False

    eventually(succeeds)


def test_error_names_the_configured_and_the_resolved_address(connect: Open) -> None:
    with pytest.raises(Unavailable, match=rf"{NAME} \({REFUSING_ADDRESS}\): "):
        connect(NAME, resolve=NameServer(REFUSING_ADDRESS)).call(fetch_name, TIMEOUT)


def test_hanging_name_server_does_not_delay_a_call_beyond_its_deadline(serve: Serve, connect: Open) -> None:
    names = NameServer(REFUSING_ADDRESS)
    names.may_answer.clear()
    with pytest.raises(Unavailable, match=rf"{NAME}: the lookup is still running"):
        connect(NAME, resolve=names).call(fetch_name, timedelta(seconds=0.3))
    assert answers(connect(NAME, serve("a").address, resolve=names)) == ["a"]
    names.may_answer.set()


def test_localhost_resolves_to_the_loopback_interface(serve: Serve, connect: Open) -> None:
    server = serve("a")
    port = server.address.rpartition(":")[2]
    assert server.address in resolved(f"localhost:{port}")
    assert answers(connect(f"localhost:{port}", rotates=True), 3) == ["a"] * 3


def test_ipv6_address_is_not_looked_up(connect: Open) -> None:
    with pytest.raises(Unavailable, match=r"\[::1\]:1: "):
        connect("[::1]:1", resolve=NameServer()).call(fetch_name, TIMEOUT)


# Closing.


def test_closing_is_idempotent_and_later_calls_are_unavailable(connect: Open) -> None:
    replicas = connect(REFUSING_ADDRESS, rotates=True)
    replicas.close()
    replicas.close()
    with pytest.raises(Unavailable, match="the client of the service is closed; create a new one"):
        answers(replicas)


def test_a_call_whose_channel_is_closed_meanwhile_is_unavailable(connect: Open) -> None:
    """A process that stopped during a call could end with a segmentation fault: gRPC registered a method too late."""
    replicas = connect(REFUSING_ADDRESS)

    def call(replica: Replica, seconds: float) -> object:
        replicas.close()
        return PlannerServiceStub(replica.channel).GetState(planner_pb2.GetStateRequest(), timeout=seconds)

    with pytest.raises(Unavailable, match="closed"):
        replicas.call(call, TIMEOUT)
