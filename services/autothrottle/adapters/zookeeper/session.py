"""Opens and closes sessions with ZooKeeper, and translates kazoo's errors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.core.errors import Unavailable

_END_SECONDS = 3.0


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


@contextmanager
def translated_errors(doing: str) -> Iterator[None]:
    """Turn kazoo's errors into `Unavailable`, with a description of the failed operation."""
    try:
        yield
    except (KazooException, KazooTimeoutError) as error:
        name = type(error).__name__
        raise Unavailable(f"ZooKeeper did not answer while {doing}: {name} {error}".rstrip()) from error
