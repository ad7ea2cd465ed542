"""Limits of the HTTP API: requests in progress, heavy requests and connections of one host."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from autothrottle.core.request_quotas import RequestQuotaEntity
from autothrottle.gateway.server import MOST_CONNECTIONS_OF_HOST
from autothrottle.gateway.web import LARGE_BODIES, MAX_REQUESTS
from autothrottle.runtime.call_limits import HEAVY_REQUEST, LARGE_REQUESTS
from tests.builders import eventually
from tests.unit.autothrottle.gateway.front import SLACK, Front


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def opened(front: Front, stack: ExitStack, head: str = "") -> socket.socket:
    """Return a connection on which this was sent."""
    host, _, port = front.server.address.rpartition(":")
    connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=SLACK))
    connection.sendall(head.encode())
    return connection


def slow_request(front: Front, stack: ExitStack, target: str, size: int) -> socket.socket:
    """Return a connection with a request whose body does not arrive."""
    return opened(front, stack, f"POST {target} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n\r\n")


def test_large_bodies_have_the_sizes_of_large_requests() -> None:
    assert LARGE_BODIES.keys() == {"SubmitReassignment", "CancelReassignment", "EstimateReassignment"}
    assert set(LARGE_BODIES.values()) <= set(LARGE_REQUESTS.values())


def test_one_host_gets_half_of_the_requests_and_probes_answer_meanwhile(front: Front, stack: ExitStack) -> None:
    """500 connections with slow requests were the only limit. One client took all threads of the gateway."""
    slow = [slow_request(front, stack, "/v1/cycles", 10) for _ in range(MAX_REQUESTS // 2)]
    eventually(lambda: front.ask("GET", "/v1/overrides").status == 429)
    reply = front.ask("GET", "/v1/overrides")
    assert "gateway has 16 requests in progress of 127.0.0.1, which is the limit" in reply.text
    assert front.ask("GET", "/healthz").status == 200
    for connection in slow:
        connection.close()
    eventually(lambda: front.ask("GET", "/v1/overrides").status == 200)


def test_only_one_heavy_request_of_a_host_is_in_progress(front: Front, stack: ExitStack) -> None:
    """Neither body arrives: a client that still sends its body may lose the early reply with the connection."""
    heavy = [slow_request(front, stack, "/v1/reassignments/estimate", HEAVY_REQUEST + 1) for _ in range(2)]
    refused, *others = select.select(heavy, [], [], SLACK)[0]
    reply = refused.makefile().read()
    assert not others and reply.startswith("HTTP/1.1 429 ") and f"requests of more than {HEAVY_REQUEST} bytes" in reply
    assert front.ask("POST", "/v1/reassignments/estimate", b"{}").status != 429


def test_a_host_with_many_connections_loses_its_oldest_idle_one(front: Front, stack: ExitStack) -> None:
    oldest = opened(front, stack)
    for _ in range(MOST_CONNECTIONS_OF_HOST - 1):
        opened(front, stack)
    assert front.ask("GET", "/healthz").status == 200
    assert oldest.recv(1) == b""


def test_a_caller_above_its_request_quota_is_delayed_and_learns_for_how_long(front: Front) -> None:
    """The delay holds no slot of the requests in progress, and probes are exempt."""
    front.services.request_quotas.set_request_quota(RequestQuotaEntity("anonymous", "ui"), 5)
    try:
        begin, ui = time.monotonic(), {"client-id": "ui"}
        replies = [front.ask("GET", "/v1/overrides", headers=ui) for _ in range(9)]
        assert time.monotonic() - begin > 9 / 5 - 1.1
        delays = [int(reply.headers["request-throttle-time-ms"]) for reply in replies]
        assert {reply.status for reply in replies} == {200} and delays[0] == 0 and 100 < max(delays) <= 1000
        assert front.ask("GET", "/v1/override", headers=ui).headers["request-throttle-time-ms"] != "0"  # 404
        for other in (front.ask("GET", "/healthz", headers=ui), front.ask("GET", "/v1/overrides")):
            assert other.status == 200 and "request-throttle-time-ms" not in other.headers
    finally:
        front.services.request_quotas.remove_request_quota(RequestQuotaEntity("anonymous", "ui"))


def test_requests_that_would_wait_for_more_than_a_second_are_answered_429(front: Front, stack: ExitStack) -> None:
    front.services.request_quotas.set_request_quota(RequestQuotaEntity(None, "many"), 2)
    try:
        head = "GET /v1/overrides HTTP/1.1\r\nhost: localhost\r\nclient-id: many\r\nconnection: close\r\n\r\n"
        connections = [opened(front, stack, head) for _ in range(12)]
        replies = [connection.makefile().read() for connection in connections]
        refused = [reply for reply in replies if reply.startswith("HTTP/1.1 429 ")]
        assert 2 <= len(replies) - len(refused) <= 6
        assert all("retry-after: 1\n" in reply and "request-throttle-time-ms: 1000\n" in reply for reply in refused)
        assert "client id many has a request quota of 2 requests/s" in refused[0]
    finally:
        front.services.request_quotas.remove_request_quota(RequestQuotaEntity(None, "many"))
