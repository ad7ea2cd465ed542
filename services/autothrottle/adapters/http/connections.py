"""Connections of urllib3 that the exchange of their thread can cut."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
from collections.abc import Mapping
from typing import Any, cast

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.response import HTTPResponse

from autothrottle.adapters.http.bounded_calls import Exchange, read_body


def cut_by_exchanges(pools: PoolManager) -> PoolManager:
    """Let exchanges cut the connections of these pools, also during a TLS handshake; all calls must run in one."""
    # It would log the whole URL, which may hold a token, with each odd header.
    logging.getLogger("urllib3.connection").setLevel(logging.ERROR)
    pools.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
    return pools


def get(pools: PoolManager, url: str, headers: Mapping[str, str]) -> object:
    """Send a GET request; return the unread response."""
    seconds = Exchange.current().seconds_left()
    return pools.request(
        "GET", url, headers=headers, timeout=seconds, retries=False, redirect=False, preload_content=False
    )


def drop_idle_connections(pools: PoolManager) -> None:
    """Close idle connections; a firewall would drop them before the next call."""
    connection_pools = [pool.pool for pool in map(pools.pools.get, pools.pools.keys()) if pool and pool.pool]
    pools.clear()
    # A failed call keeps its pool, with all idle connections, alive until the next garbage collection.
    for connections in connection_pools:
        _close_all(connections)


def _close_all(connections: queue.LifoQueue[Any]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            if connection := connections.get(block=False):
                connection.close()


class _BoundedResponse(HTTPResponse):
    """A response whose `data`, which the Datadog client reads, is limited like all other bodies."""

    @property
    def data(self) -> bytes:
        if self._body is None:
            self._body = read_body(self)
        return cast(bytes, self._body)


class _HttpConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        connection = super()._new_conn()
        Exchange.current().hold(connection)
        return connection

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        Exchange.current().hold(self.sock)
        response = super().getresponse()
        response.__class__ = _BoundedResponse  # urllib3 has no option for the class of its responses
        return response


class _HttpsConnection(_HttpConnection, HTTPSConnection):
    """The same with TLS."""


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection
