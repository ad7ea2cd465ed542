"""Limits of the HTTP API: requests in progress, heavy requests and connections of one host."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

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
