"""Answers of ZooKeeper that cannot be parsed; no test needs a server."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from kazoo.exceptions import ConnectionDropped, ConnectionLoss, KazooException
from kazoo.protocol.serialization import CheckVersion, ReplyHeader, Transaction

from autothrottle.adapters.zookeeper.bulk import get_many_async
from autothrottle.adapters.zookeeper.client import SecuredClient
from autothrottle.adapters.zookeeper.mirror import ZnodeMirror
from autothrottle.adapters.zookeeper.security import ZooKeeperSecurity

REQUESTS = {
    "get": lambda client: client.get_async("/a"),
    "children": lambda client: client.get_children_async("/a", include_data=True),
    "exists": lambda client: client.exists_async("/a"),
    "sync": lambda client: client.sync_async("/"),
    "create": lambda client: client.create_async("/a", b""),
    "transaction": lambda client: client.transaction().commit_async(),
    "bulk read": lambda client: get_many_async(client, ["/a", "/b"]),
}
Call = Callable[[SecuredClient], Any]


@pytest.fixture
def client() -> SecuredClient:
    """A client that is not connected, and queues requests."""
    client = SecuredClient("127.0.0.1:1", timedelta(seconds=2), ZooKeeperSecurity())
    client._state = "CONNECTED"
    client._connection._write_sock = _Sink()
    return client


class _Sink:
    def send(self, data: bytes) -> None:
        """Send nothing."""


def answered(client: SecuredClient, call: Call, header: ReplyHeader, body: bytes) -> Any:
    """Let a server answer a call, and return the answer."""
    answer = call(client)
    request, result = client._queue.popleft()
    client._pending.append((request, result, 7))
    client._connection._read_header = lambda timeout: (header, body, 0)
    client._connection._read_socket(1.0)
    return answer


@pytest.mark.parametrize("call", REQUESTS.values(), ids=REQUESTS)
def test_answer_that_ends_early_fails_its_call_like_a_lost_one(
    client: SecuredClient, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """The call raised struct.error, which no caller expects: a traceback, and no cycle."""
    client.logger.connected = True
    with caplog.at_level(logging.WARNING):
        answer = answered(client, call, ReplyHeader(7, 1, 0), b"")
    with pytest.raises(KazooException):
        answer.get(timeout=1)
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize(
    "header", [ReplyHeader(7, 1, -77), ReplyHeader(8, 1, 0), ReplyHeader(-1, 1, 0)], ids=["code", "id", "event"]
)
def test_answer_with_a_wrong_header_ends_the_connection_and_not_the_client(
    client: SecuredClient, header: ReplyHeader
) -> None:
    """kazoo's thread ended with the error. The process had no connection any more, and never led again."""
    with pytest.raises(ConnectionDropped, match="an answer of ZooKeeper is damaged"):
        answered(client, REQUESTS["get"], header, b"\x00")


def test_call_whose_answer_has_an_unknown_error_code_fails_at_once(client: SecuredClient) -> None:
    answers: list[Any] = []

    def call(client: SecuredClient) -> Any:
        answers.append(client.get_async("/a"))
        return answers[0]

    with pytest.raises(ConnectionDropped):
        answered(client, call, ReplyHeader(7, 1, -77), b"")
    with pytest.raises(ConnectionLoss):
        answers[0].get(timeout=1)


@pytest.fixture
def refused(client: SecuredClient, monkeypatch: pytest.MonkeyPatch) -> SecuredClient:
    """A client that has seen transaction 6, which a server refuses for it, and then reaches a server."""
    refusals = iter([ConnectionDropped("socket connection broken")])

    def connect(host: str, ip: str, port: int) -> tuple[int, int]:
        for error in refusals:
            raise error
        assert client.last_zxid == 0
        return 1_000, 1_000

    monkeypatch.setattr(client, "_connect_unsecured", connect)
    monkeypatch.setattr(client, "_accepts_only_tls", lambda ip, port: False)
    client._connection._socket, client._connection._xid = object(), 0
    answered(client, REQUESTS["exists"], ReplyHeader(7, 6, -101), b"")
    assert client.last_zxid == 6
    with pytest.raises(ConnectionDropped):
        client._connect("h", "127.0.0.1", 1)
    return client


def answer_next_request(client: SecuredClient, header: ReplyHeader | Exception) -> list[tuple[Any, int | None]]:
    """Let the next request of the connection be answered, and return all requests."""
    requests: list[tuple[Any, int | None]] = []

    def read(timeout: float) -> tuple[ReplyHeader, bytes, int]:
        if isinstance(header, Exception):
            raise header
        return header, b"", 0

    client._connection._submit = lambda request, timeout, xid=None: requests.append((request, xid))
    client._connection._read_header = read
    return requests


@pytest.mark.parametrize(("code", "zxid"), [(0, 8), (-102, 0)], ids=["applied", "root-is-hidden"])
def test_server_that_refuses_the_last_transaction_is_asked_to_catch_up(
    refused: SecuredClient, code: int, zxid: int
) -> None:
    """Every server refuses a client that names a later transaction. After a flipped bit it never connected again.

    A server that lags refuses it, too. When the number was just forgotten, the session read older data than it wrote.
    """
    requests = answer_next_request(refused, ReplyHeader(1, 8, code))
    refused._connect("h", "127.0.0.1", 1)
    assert requests == [(Transaction([CheckVersion("/", -1)]), 1)]
    assert refused.last_zxid == zxid
    refused.last_zxid = 0
    refused._connect("h", "127.0.0.1", 1)
    assert len(requests) == 1


@pytest.mark.parametrize(
    "answer",
    [ReplyHeader(1, 8, -77), ReplyHeader(1, 8, -101), ReplyHeader(2, 8, 0), struct.error("unpack requires 16 bytes")],
    ids=["code", "another-code", "id", "short"],
)
def test_connection_whose_server_has_not_caught_up_is_not_used(
    refused: SecuredClient, answer: ReplyHeader | Exception
) -> None:
    answer_next_request(refused, answer)
    with pytest.raises(ConnectionDropped):
        refused._connect("h", "127.0.0.1", 1)
    assert refused._may_read_back


class Numbered:
    """A client whose answers have these transaction numbers."""

    def __init__(self, *zxids: int) -> None:
        self.last_zxid, self.handler = 0, self
        self._zxids: Iterator[int] = iter(zxids)

    def add_listener(self, listener: object) -> None:
        """There are no changes of the session."""

    def sync_async(self, path: str) -> Numbered:
        return self

    exists_async = sync_async

    def get(self, timeout: float) -> None:
        self.last_zxid = next(self._zxids)

    def dispatch_callback(self, callback: Any) -> None:
        callback.func()


def test_damaged_number_of_a_transaction_makes_no_version_of_a_snapshot() -> None:
    """After a flipped bit in the answer to a sync, later snapshots were too old, and each cycle of the term failed."""
    for zxids in ((7 + 2**60, 8), (7, 7 + 2**60), (7, 7)):
        assert 7 <= ZnodeMirror(Numbered(*zxids)).sync(1.0, min_zxid=7) <= 8


def test_node_without_a_name_is_a_damaged_answer(client: SecuredClient) -> None:
    """The length of a name was -1. Sorting the children raised TypeError, with a traceback in the log."""
    children = b"\x00\x00\x00\x02" + b"\x00\x00\x00\x01a" + b"\xff\xff\xff\xff" + bytes(68)
    with pytest.raises(ConnectionLoss, match="a node without a name"):
        answered(client, REQUESTS["children"], ReplyHeader(7, 1, 0), children).get(timeout=1)
    plain = answered(client, lambda client: client.get_children_async("/a"), ReplyHeader(7, 1, 0), children)
    with pytest.raises(ConnectionLoss):
        plain.get(timeout=1)
