"""Opens and closes sessions with ZooKeeper, and translates kazoo's errors."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import BadVersionError, ConnectionClosedError, KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState

from autothrottle.adapters.concurrency.announcements import announce_later
from autothrottle.adapters.concurrency.subscriptions import seconds_left
from autothrottle.adapters.zookeeper.client import SecuredClient
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.security import ZooKeeperSecurity
from autothrottle.core.errors import NotLeader, Unavailable
from autothrottle.core.retries import OUTCOME
from autothrottle.core.units import MAX_INT32

_END_SECONDS = 3.0
_POLL_SECONDS = 0.05
_DROP_SECONDS = 0.3
"""How long kazoo's thread may take to notice that its session is dropped; it sleeps for 0.1 s between attempts."""

_T = TypeVar("_T")

NOT_ADMITTED = (
    "the ACL of a node does not admit this process. Fix: give it the login of the others (zk-digest-file or "
    "zk-sasl-file); `autothrottle check` names the nodes"
)
"""The cause and the fix of a `NoAuthError`."""

ANSWER_LOST = (KazooException, KazooTimeoutError)
"""Errors of the call that commits a transaction. After one, it is unknown whether the transaction was carried out."""


def connect(
    hosts: str,
    session_timeout: timedelta,
    connect_timeout: timedelta,
    stop: threading.Event | None = None,
    security: ZooKeeperSecurity | None = None,
) -> SecuredClient:
    """Return a started client; `hosts` is a comma list of `host:port` without a chroot.

    Raises:
        Unavailable: when no server answers within `connect_timeout`, or before `stop` is set. At once when every
            server refuses TLS or the login.
    """
    client = SecuredClient(hosts, session_timeout, security or ZooKeeperSecurity())
    client.start_async()
    deadline = time.monotonic() + connect_timeout.total_seconds()
    announcement = announce_later(f"ZooKeeper at {hosts.replace(',', ', ')}")
    while not client.logged_in.wait(_POLL_SECONDS):
        is_over = time.monotonic() >= deadline or (stop is not None and stop.is_set())
        if is_over or client.refusal:
            announcement.cancel()
            reasons = list(client.refusals.values())
            disconnect(client)
            raise Unavailable(
                reasons[0]
                if reasons
                else f"no ZooKeeper server of {hosts!r} answers within {connect_timeout.total_seconds():g} s; "
                "check --zk-addr and that the servers run"
            )
    announcement.cancel()
    client.logger.connected = True
    return client


def connect_in_background(
    hosts: str, session_timeout: timedelta, security: ZooKeeperSecurity | None = None
) -> SecuredClient:
    """Return a client that connects in the background, for optional uses of ZooKeeper. It logs only refusals."""
    client = SecuredClient(hosts, session_timeout, security or ZooKeeperSecurity())
    client.warns_of_refusals = True
    client.start_async()
    return client


def disconnect(client: KazooClient) -> None:
    """End the session, which removes its ephemeral nodes at once. Idempotent.

    A session without a connection is dropped. Waits for ZooKeeper's answer for 3 s, or until the session is dropped.
    """
    if not client.connected:
        drop(client)
    ending = threading.Thread(target=_end_quietly, args=(client,), name="zookeeper-end", daemon=True)
    ending.start()
    deadline = time.monotonic() + _END_SECONDS
    while client.client_state != KeeperState.CLOSED and time.monotonic() < deadline:
        ending.join(_POLL_SECONDS)
    ending.join(_POLL_SECONDS)


def _end_quietly(client: KazooClient) -> None:
    with suppress(KazooException):  # its thread has not ended yet
        client.stop()
        client._safe_close()  # `stop` does not wait for a dropped session
        client.close()


def drop(client: KazooClient) -> None:
    """End the session without an answer from ZooKeeper, where it expires. Requests in progress fail at once."""
    client.logger.connected = False  # kazoo would warn of the lost connection
    client._stopped.set()
    connection = client._connection
    if connection._socket is not None:
        with suppress(OSError):  # it is already closed
            connection._socket.shutdown(socket.SHUT_RDWR)
    if not connection.connection_stopped.wait(_DROP_SECONDS):
        client._session_callback(KeeperState.CLOSED)  # kazoo's thread is connecting, which cannot be interrupted


def read_after_outage(client: KazooClient, read: Callable[[], _T], deadline: float) -> _T | None:
    """Return the result of `read` as soon as ZooKeeper answers again; None: it does not answer until the deadline."""
    while time.monotonic() < deadline:
        try:
            # ZooKeeper carries out a request that was under way before this sync, or never.
            client.sync_async("/").get(timeout=seconds_left(deadline))
            return read()
        except ConnectionClosedError:
            return None  # this process is stopping
        except ANSWER_LOST:
            time.sleep(OUTCOME.first)
    return None


@contextmanager
def translated_errors(doing: str) -> Iterator[None]:
    """Turn kazoo's errors into `Unavailable`, with a description of the failed operation."""
    try:
        yield
    except NoAuthError as error:
        raise Unavailable(f"ZooKeeper denies access while {doing}: {NOT_ADMITTED}") from error
    except ANSWER_LOST as error:
        name = type(error).__name__
        raise Unavailable(f"ZooKeeper did not answer while {doing}: {name} {error}".rstrip()) from error


_MAX_VERSION = MAX_INT32
"""ZooKeeper's largest version of a node; every origin is larger."""

_ORIGIN = re.compile(r"[1-9][0-9]{9,17}")

_TERMS_PER_MILLISECOND = 1000
"""Stores that were created one after the other have origins so far apart that their terms never meet."""


@dataclass(frozen=True, slots=True)
class FenceCheck:
    """The operations with which each transaction of a term begins."""

    fence: int
    nodes: tuple[tuple[str, int], ...]
    """(path, version) of each node to check; version -1: it must exist."""

    def begin(self, client: KazooClient) -> TransactionRequest:
        """Return a transaction that first checks the term."""
        transaction = client.transaction()
        for path, version in self.nodes:
            transaction.check(path, version)
        return transaction

    def require(self, results: Sequence[Any], consequence: str) -> Sequence[Any]:
        """Return the results of the operations after the checks.

        Raises:
            NotLeader: a check failed, so the whole transaction was rolled back.
        """
        checks = results[: len(self.nodes)]
        if any(isinstance(result, BadVersionError | NoNodeError) for result in checks):
            raise _ended(self.fence, consequence)
        return results[len(self.nodes) :]


def term_check(client: KazooClient, own: OwnPaths, fence: int, timeout: float, consequence: str) -> FenceCheck:
    """Return the check of a term.

    Args:
        client: connected.
        own: autothrottle's paths.
        fence: the term's number.
        timeout: for reading the origin, in seconds.
        consequence: the part of the error that says what happens because the term is over.

    Raises:
        NotLeader: the term is one of another store.
    """
    if fence <= _MAX_VERSION:
        return FenceCheck(fence, ((own.term, fence),))
    origin = read_origin(client, own, timeout)
    if not origin or not 0 < fence - origin <= _MAX_VERSION:
        raise _ended(fence, consequence)
    return FenceCheck(fence, ((own.term, fence - origin), (origin_path(own, origin), -1)))


def read_origin(client: KazooClient, own: OwnPaths, timeout: float) -> int:
    """Return the origin of the store's terms; 0: only an older version of autothrottle has led."""
    try:
        names = client.get_children_async(own.term).get(timeout=timeout)
    except NoNodeError:
        return 0
    origins = [int(name) for name in names if _ORIGIN.fullmatch(name)]
    return max((origin for origin in origins if origin > _MAX_VERSION), default=0)


def new_origin(created: int) -> int:
    """Return the origin of a store whose term node was created at this time, in milliseconds since 1970.

    Later stores have larger origins. The numbers stay below 2^53 until the year 2255, so that a double holds them.
    """
    return max(created * _TERMS_PER_MILLISECOND, _MAX_VERSION + 1)


def origin_path(own: OwnPaths, origin: int) -> str:
    """Return the node whose name is the origin."""
    return f"{own.term}/{origin}"


def _ended(fence: int, consequence: str) -> NotLeader:
    return NotLeader(f"term {fence} is over; {consequence}")
