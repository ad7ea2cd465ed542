"""Whose turn it is among real servers on the loopback, and what becomes of names whose answers change."""

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

from autothrottle.adapters.endpoints import Endpoints, resolved
from autothrottle.core.errors import Invalid, Unavailable
from tests.builders import eventually

TIMEOUT = timedelta(seconds=30)
NOBODY = "127.0.0.1:1"
"""A port where nothing listens: connections are refused at once."""


class Health(health_pb2_grpc.HealthServicer):
    """Says what it is told to say."""

    def __init__(self) -> None:
        self.checks = 0
        self.serving = True

    def Check(self, request: object, context: object) -> health_pb2.HealthCheckResponse:
        self.checks += 1
        status = health_pb2.HealthCheckResponse.SERVING if self.serving else health_pb2.HealthCheckResponse.NOT_SERVING
        return health_pb2.HealthCheckResponse(status=status)


class Server:
    """A replica of a service of one method, which says who it is."""

    def __init__(self, name: str, address: str = "127.0.0.1:0", health: Health | None = None) -> None:
        self.name, self.calls = name, 0
        self.failing = False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._pool = ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        method: Any = grpc.unary_unary_rpc_method_handler(self._answer)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", {"Who": method}),))
        if health is not None:
            health_pb2_grpc.add_HealthServicer_to_server(health, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(address)}"
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


def who(channel: grpc.Channel, seconds: float) -> str:
    ask: Any = channel.unary_unary("/test.Service/Who")
    return str(ask(b"", timeout=seconds), "utf-8")


def asked(endpoints: Endpoints, times: int = 1) -> list[str]:
    return [endpoints.call(who, TIMEOUT) for _ in range(times)]


class NameServer:
    """Knows one name, and changes its mind when told so."""

    def __init__(self, *found: str) -> None:
        self.found: Sequence[str] = found
        self.asked = 0
        self.error: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, address: str) -> Sequence[str]:
        assert address == "service.test:4001"
        self.asked += 1
        self.may_answer.wait(30)
        if self.error:
            raise self.error
        return self.found


NAME = "service.test:4001"

Serve = Callable[..., Server]
Open = Callable[..., Endpoints]


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
    def start(*addresses: str, **arguments: Any) -> Endpoints:
        return stack.enter_context(closing(Endpoints("the service", addresses, **arguments)))

    return start


# Whose turn it is.


def test_calls_go_round(serve: Serve, connect: Open) -> None:
    endpoints = connect(*(serve(name).address for name in "abc"), rotates=True)
    assert asked(endpoints, 6) == [*"abcabc"]


def test_calls_that_do_not_go_round_stay_with_the_one_that_answered(serve: Serve, connect: Open) -> None:
    servers = [serve(name) for name in "abc"]
    endpoints = connect(*(server.address for server in servers))
    assert asked(endpoints, 3) == [*"aaa"]
    servers[0].stop()
    assert asked(endpoints, 3) == [*"bbb"]
    serve("a again", address=servers[0].address)
    assert asked(endpoints, 3) == [*"bbb"]
    servers[1].stop()
    assert asked(endpoints)[0] in ("a again", "c")


def test_one_that_is_not_there_is_passed_over_and_not_asked_again_at_once(serve: Serve, connect: Open) -> None:
    endpoints = connect(NOBODY, serve("a").address, serve("b").address, rotates=True)
    assert asked(endpoints, 5) == [*"ababa"]


def test_one_that_failed_has_its_turn_again_when_it_says_that_it_serves(serve: Serve, connect: Open) -> None:
    health = Health()
    failing, other = serve("failing", health=health), serve("other")
    failing.failing, health.serving = True, False
    endpoints = connect(failing.address, other.address, rotates=True)

    def asks_for_health(times: int) -> bool:
        assert asked(endpoints) == ["other"]
        return health.checks >= times

    eventually(lambda: asks_for_health(2), 60)
    assert failing.calls == 1
    failing.failing, health.serving = False, True
    eventually(lambda: asked(endpoints) == ["failing"], 60)


def test_a_server_without_health_that_answers_is_there(serve: Serve, connect: Open) -> None:
    first = serve("first")
    endpoints = connect(first.address, serve("second").address, rotates=True)
    first.failing = True
    assert asked(endpoints) == ["second"]
    first.failing = False
    eventually(lambda: asked(endpoints) == ["first"], 60)


def test_one_that_hangs_costs_the_time_of_one_call(serve: Serve, connect: Open) -> None:
    """A frozen process takes connections and says nothing: it is not asked for its health in anybody's call."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoints = connect(f"127.0.0.1:{silent.getsockname()[1]}", serve("a").address, rotates=True)
        tried: list[grpc.Channel] = []

        def noted(channel: grpc.Channel, seconds: float) -> str:
            tried.append(channel)
            return who(channel, seconds)

        until = time.monotonic() + 2.0  # some rests of 0.5 s and more
        while time.monotonic() < until:
            assert endpoints.call(noted, TIMEOUT) == "a"
        assert tried.count(tried[0]) == 1 < len(tried)


def test_when_all_have_failed_all_are_asked(serve: Serve, connect: Open) -> None:
    servers = [serve(name) for name in "ab"]
    endpoints = connect(*(server.address for server in servers), rotates=True)
    for server in servers:
        server.failing = True
    with pytest.raises(Unavailable) as error:
        asked(endpoints)
    assert all(f"{server.address}: not now" in str(error.value) for server in servers)
    servers[1].failing = False
    assert asked(endpoints) == ["b"]


def test_what_must_not_be_done_twice_is_sent_to_one_replica_that_answers(serve: Serve, connect: Open) -> None:
    """An override that was removed by the first replica, whose answer was lost, was Missing at the second: 404."""
    first, second = serve("a", health=Health()), serve("b")
    endpoints = connect(NOBODY, first.address, second.address)
    first.failing = True
    with pytest.raises(Unavailable, match=f"{first.address}: not now. It may have been done nevertheless"):
        endpoints.call(who, TIMEOUT, once=True)
    assert (first.calls, second.calls) == (1, 0)
    assert endpoints.call(who, TIMEOUT, once=True) == "b"
    assert (first.calls, second.calls) == (1, 1)


def test_threads_share_them(serve: Serve, connect: Open) -> None:
    servers = [serve(name) for name in "ab"]
    endpoints = connect(*(server.address for server in servers), rotates=True)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: asked(endpoints)[0], range(200)))
    assert sorted(set(answers)) == ["a", "b"]
    assert [server.calls for server in servers] == [100, 100]


# Names.


def test_a_name_stands_for_all_of_its_addresses(serve: Serve, connect: Open) -> None:
    names = NameServer(serve("a").address, serve("b").address)
    endpoints = connect(NAME, serve("c").address, rotates=True, resolve=names)
    asked(endpoints)
    eventually(lambda: sorted(asked(endpoints, 3)) == ["a", "b", "c"], 60)


def test_an_address_that_two_names_lead_to_is_one_replica(serve: Serve, connect: Open) -> None:
    a, b = serve("a"), serve("b")
    endpoints = connect(NAME, a.address, rotates=True, resolve=NameServer(a.address, b.address))
    eventually(lambda: sorted(asked(endpoints, 2)) == ["a", "b"], 60)
    before = a.calls, b.calls
    asked(endpoints, 10)
    assert (a.calls - before[0], b.calls - before[1]) == (5, 5)


def test_a_name_is_looked_up_again_when_its_replica_fails(serve: Serve, connect: Open) -> None:
    old, new = serve("old"), serve("new")
    names = NameServer(old.address)
    endpoints = connect(NAME, resolve=names, refresh=timedelta(hours=1))
    assert asked(endpoints) == ["old"]
    old.stop()
    names.found = (new.address,)
    eventually(lambda: moved(endpoints), 60)


def test_a_name_is_looked_up_again_from_time_to_time(serve: Serve, connect: Open) -> None:
    names = NameServer(serve("old").address)
    endpoints = connect(NAME, resolve=names, refresh=timedelta(seconds=0.05))
    assert asked(endpoints) == ["old"]
    names.found = (serve("new").address,)
    eventually(lambda: asked(endpoints) == ["new"], 60)
    assert asked(endpoints, 3) == ["new"] * 3


def test_a_name_that_was_looked_up_lately_is_not_looked_up(serve: Serve, connect: Open) -> None:
    names = NameServer(serve("a").address)
    asked(connect(NAME, resolve=names, refresh=timedelta(hours=1)), 20)
    assert names.asked == 1


def test_a_call_that_is_under_way_ends_though_its_address_has_gone(serve: Serve, connect: Open) -> None:
    old, new = serve("old"), serve("new")
    names = NameServer(old.address)
    endpoints = connect(NAME, resolve=names, refresh=timedelta(seconds=0.05))
    old.may_answer.clear()
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(asked, endpoints)
        eventually(lambda: old.calls == 1, 60)
        names.found = (new.address,)
        # Some may go to the one that hangs, for as long as the name leads there.
        eventually(lambda: moved(endpoints), 60)
        old.may_answer.set()
        assert under_way.result(30) == ["old"]


def moved(endpoints: Endpoints) -> bool:
    """Whether a short call is answered by the new replica."""
    try:
        return endpoints.call(who, timedelta(seconds=0.5)) == "new"
    except Unavailable:
        return False


def test_without_a_name_server_the_addresses_that_were_known_are_used(serve: Serve, connect: Open) -> None:
    names = NameServer(serve("a").address)
    endpoints = connect(NAME, resolve=names, refresh=timedelta(0))
    assert asked(endpoints) == ["a"]
    names.error = OSError("the name server is away")
    eventually(lambda: asked(endpoints) == ["a"] and names.asked > 3, 60)
    assert asked(endpoints) == ["a"]


def test_a_name_that_leads_nowhere_is_named_with_the_reason(connect: Open) -> None:
    names = NameServer()
    names.error = socket.gaierror(-2, "Name or service not known")
    with pytest.raises(Unavailable) as error:
        connect(NAME, NOBODY, resolve=names).call(who, TIMEOUT)
    assert f"{NAME}: the name cannot be looked up" in str(error.value) and "Name or service" in str(error.value)
    assert NOBODY in str(error.value)
    with pytest.raises(Unavailable, match=rf"{NAME}: the name has no address"):
        connect(NAME, resolve=NameServer()).call(who, TIMEOUT)


def test_after_an_answer_that_makes_no_sense_a_name_is_looked_up_again(serve: Serve, connect: Open) -> None:
    server = serve("a")
    lookup = NameServer(server.address)
    lookup.error = ValueError("no port")
    endpoints = connect(NAME, resolve=lookup)
    with pytest.raises(Unavailable, match="no port"):
        endpoints.call(who, timedelta(seconds=5))
    lookup.error = None

    def answers() -> bool:
        with suppress(Unavailable):
            return asked(endpoints) == ["a"]
        return False

    eventually(answers)


def test_an_error_names_the_address_as_it_was_given_and_where_it_leads(connect: Open) -> None:
    with pytest.raises(Unavailable, match=rf"{NAME} \({NOBODY}\): "):
        connect(NAME, resolve=NameServer(NOBODY)).call(who, TIMEOUT)


def test_a_name_server_that_hangs_holds_nobody_beyond_his_time(serve: Serve, connect: Open) -> None:
    names = NameServer(NOBODY)
    names.may_answer.clear()
    with pytest.raises(Unavailable, match=rf"{NAME}: it is still looked up"):
        connect(NAME, resolve=names).call(who, timedelta(seconds=0.3))
    assert asked(connect(NAME, serve("a").address, resolve=names)) == ["a"]
    names.may_answer.set()


def test_localhost_leads_to_a_server_on_the_loopback(serve: Serve, connect: Open) -> None:
    server = serve("a")
    port = server.address.rpartition(":")[2]
    assert server.address in resolved(f"localhost:{port}")
    assert asked(connect(f"localhost:{port}", rotates=True), 3) == ["a"] * 3


def test_an_address_of_ip_version_6_is_taken_as_it_is(connect: Open) -> None:
    with pytest.raises(Unavailable, match=r"\[::1\]:1: "):
        connect("[::1]:1", resolve=NameServer()).call(who, TIMEOUT)


# The end.


def test_without_an_address_there_is_nobody_to_ask() -> None:
    with pytest.raises(Invalid, match="the service has no address"):
        Endpoints("the service", [])


def test_endpoints_can_be_closed_twice_and_answer_no_more(connect: Open) -> None:
    endpoints = connect(NOBODY, rotates=True)
    endpoints.close()
    endpoints.close()
    with pytest.raises(Unavailable, match="the client of the service is closed; make a new one"):
        asked(endpoints)
