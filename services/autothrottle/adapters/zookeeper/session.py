"""One session with ZooKeeper, and its errors in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from autothrottle.core.errors import Unavailable


def connect(hosts: str, session_timeout: timedelta, connect_timeout: timedelta) -> KazooClient:
    """Return a started client; `hosts` is a comma list of `host:port` without a chroot.

    Raises:
        Unavailable: when no server answers within `connect_timeout`.
    """
    client = KazooClient(
        hosts=hosts,
        timeout=session_timeout.total_seconds(),
        connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 2.0, "backoff": 2},
        command_retry={"max_tries": 0},
    )
    try:
        client.start(timeout=connect_timeout.total_seconds())
    except KazooTimeoutError as error:
        client.close()
        raise Unavailable(
            f"no ZooKeeper server of {hosts!r} answers within {connect_timeout.total_seconds():g} s; "
            "check --zk-addr and that the servers run"
        ) from error
    return client


def disconnect(client: KazooClient) -> None:
    """End the session; its ephemeral nodes go at once. Idempotent."""
    client.stop()
    client.close()


@contextmanager
def translated_errors(doing: str) -> Iterator[None]:
    """Turn kazoo's errors into `Unavailable` with what was being done."""
    try:
        yield
    except (KazooException, KazooTimeoutError) as error:
        name = type(error).__name__
        raise Unavailable(f"ZooKeeper did not answer while {doing}: {name} {error}".rstrip()) from error
