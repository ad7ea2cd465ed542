"""Opens and closes sessions with ZooKeeper, and translates kazoo's errors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.adapters.concurrency.deadlines import seconds_left
from autothrottle.core.errors import NotLeader, Unavailable

_END_SECONDS = 3.0
_RETRY_SECONDS = 0.05

_T = TypeVar("_T")

ANSWER_LOST = (KazooException, KazooTimeoutError)
"""Errors of the call that commits a transaction. After one, it is unknown whether the transaction was carried out."""


def connect(hosts: str, session_timeout: timedelta, connect_timeout: timedelta) -> KazooClient:
    """Return a started client; `hosts` is a comma list of `host:port` without a chroot.

    Raises:
        Unavailable: when no server answers within `connect_timeout`.
    """
    client = _client(hosts, session_timeout)
    try:
        client.start(timeout=connect_timeout.total_seconds())
    except KazooTimeoutError as error:
        client.close()
        raise Unavailable(
            f"no ZooKeeper server of {hosts!r} answers within {connect_timeout.total_seconds():g} s; "
            "check --zk-addr and that the servers run"
        ) from error
    client.logger.connected = True
    return client


def connect_in_background(hosts: str, session_timeout: timedelta) -> KazooClient:
    """Return a client that connects in the background, without log lines, for optional uses of ZooKeeper."""
    client = _client(hosts, session_timeout)
    client.start_async()
    return client


def _client(hosts: str, session_timeout: timedelta) -> KazooClient:
    return KazooClient(
        hosts=hosts,
        timeout=session_timeout.total_seconds(),
        connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 2.0, "backoff": 2},
        command_retry={"max_tries": 0},
        logger=ClientLog(hosts),
    )


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """kazoo's log lines with the addresses of the servers, without warnings until the first connection.

    kazoo warns at every attempt to connect, and does not name the server. Until the first connection the client's user
    logs the problem once.
    """

    def __init__(self, hosts: str) -> None:
        super().__init__(logging.getLogger("kazoo.client"))
        self.hosts, self.connected = hosts, False

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if (self.connected or level >= logging.ERROR) and self.isEnabledFor(level):
            self.logger.log(level, f"ZooKeeper (%s): {msg}", self.hosts, *args, **kwargs)


def disconnect(client: KazooClient) -> None:
    """End the session, which removes its ephemeral nodes at once. Idempotent."""
    client.stop()
    client.close()


def disconnect_soon(client: KazooClient) -> None:
    """End the session, but wait at most a few seconds: kazoo waits longer for a connection without answers."""
    ending = threading.Thread(target=_disconnect_quietly, args=(client,), name="zookeeper-end", daemon=True)
    ending.start()
    ending.join(_END_SECONDS)


def _disconnect_quietly(client: KazooClient) -> None:
    with suppress(KazooException):  # its thread has not ended yet
        disconnect(client)


def read_after_outage(client: KazooClient, read: Callable[[], _T], deadline: float) -> _T | None:
    """Return the result of `read` as soon as ZooKeeper answers again; None: it does not answer until the deadline."""
    while time.monotonic() < deadline:
        try:
            # ZooKeeper carries out a request that was under way before this sync, or never.
            client.sync_async("/").get(timeout=seconds_left(deadline))
            return read()
        except ANSWER_LOST:
            time.sleep(_RETRY_SECONDS)
    return None


def require_term(fence: int, term_check: object, consequence: str) -> None:
    """Raise NotLeader if a transaction's check of the term failed; the whole transaction was then rolled back."""
    if isinstance(term_check, BadVersionError | NoNodeError):
        raise NotLeader(f"term {fence} is over; {consequence}")


@contextmanager
def translated_errors(doing: str) -> Iterator[None]:
    """Turn kazoo's errors into `Unavailable`, with a description of the failed operation."""
    try:
        yield
    except ANSWER_LOST as error:
        name = type(error).__name__
        raise Unavailable(f"ZooKeeper did not answer while {doing}: {name} {error}".rstrip()) from error
