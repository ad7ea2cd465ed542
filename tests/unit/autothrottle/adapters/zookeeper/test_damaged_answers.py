"""Answers of ZooKeeper that cannot be parsed; no test needs a server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from kazoo.exceptions import ConnectionDropped, ConnectionLoss, KazooException
from kazoo.protocol.serialization import ReplyHeader

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


def test_number_of_a_transaction_that_no_server_has_is_forgotten_after_a_session_timeout(
    client: SecuredClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every server refuses a client that has seen a later transaction. After a flipped bit it never connected again.

    A server that lags refuses it, too. When the number was forgotten at once, the session could read older data there
    than it had written.
    """
    zxids: list[int] = []

    def refuse(host: str, ip: str, port: int) -> None:
        zxids.append(client.last_zxid)
        raise ConnectionDropped("socket connection broken")

    monkeypatch.setattr(client, "_connect_unsecured", refuse)
    monkeypatch.setattr(client, "_accepts_only_tls", lambda ip, port: False)
    client._connection._socket = object()
    answered(client, REQUESTS["exists"], ReplyHeader(7, 6, -101), b"")
    for _ in range(3):
        with pytest.raises(ConnectionDropped):
            client._connect("h", "127.0.0.1", 1)
    assert client._refused_since is not None
    client._refused_since -= client._session_seconds
    for _ in range(2):
        with pytest.raises(ConnectionDropped):
            client._connect("h", "127.0.0.1", 1)
    assert zxids == [6, 6, 6, 6, 0]


def test_servers_that_refused_long_ago_count_from_the_next_refusal(
    client: SecuredClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the first server that lags after a restart of the ensemble would be believed at once."""
    monkeypatch.setattr(client, "_connect_unsecured", lambda host, ip, port: (1, 1))
    client._refused_since = 0.0
    client._connect("h", "127.0.0.1", 1)
    assert client._refused_since is None


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
