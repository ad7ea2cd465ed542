"""Clients of HTTP servers whose connections the exchange of their thread can cut."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.response import HTTPResponse

from autothrottle.adapters.http.bounded_calls import Call, Exchange, Exchanges, Failure, first_failure
from autothrottle.core.errors import Unavailable


class HttpClient:
    """Sends concurrent requests, each until a deadline. `close` ends all running requests and the threads."""

    def __init__(
        self,
        name: str,
        width: int,
        server: str = "",
        advice: Mapping[int, str] | None = None,
        ca_file: str = "",
        most_servers: int = 10,
    ) -> None:
        """Prepare; this sends nothing.

        Args:
            name: of the threads.
            width: number of concurrent requests.
            server: the server in messages.
            advice: status -> what an operator can do about a response with it.
            ca_file: PEM file with the authorities of the server's certificate; "": those of the system.
            most_servers: number of servers whose connections stay open until `drop_idle_connections`.
        """
        # It would log the whole URL, which may hold a token, with each odd header.
        logging.getLogger("urllib3.connection").setLevel(logging.ERROR)
        self._exchanges = Exchanges(width, name)
        self._server, self._advice = server, advice or {}
        self._pools = PoolManager(most_servers, maxsize=width, ca_certs=ca_file or None)
        self._pools.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}

    def close(self) -> None:
        """End all running requests and threads."""
        self._exchanges.close()
        self._pools.clear()

    def send(self, url: str, headers: Mapping[str, str], body: bytes | None = None) -> BaseHTTPResponse:
        """Send a GET request, or a POST request with a body, from within a call; return the unread response."""
        seconds = Exchange.current().seconds_left()
        return self._pools.request(
            "GET" if body is None else "POST",
            url,
            body=body,
            headers=headers,
            timeout=seconds,
            retries=False,
            redirect=False,
            preload_content=False,
        )

    def run(self, calls: Sequence[Call], deadline: float, *, stop_at_failure: bool) -> list[object | Failure]:
        """Return the result of each call, in order; see `Exchanges.run`."""
        return self._exchanges.run(calls, deadline, stop_at_failure=stop_at_failure)

    def fetch(self, calls: Sequence[Call], deadline: float) -> list[object | Failure]:
        """Return the result of each call, in order. Only an optional call can have a failure.

        Raises:
            Unavailable: another call failed; the message names it.
        """
        answers = self.run(calls, deadline, stop_at_failure=True)
        if failed := first_failure(calls, answers):
            raise self.error(*failed)
        return answers

    def error(self, call: Call, failure: Failure) -> Unavailable:
        advice = self._advice.get(failure.status or 0, "")
        return Unavailable(f"{self._server} ({call.name}) {self.shown(failure.reason)}{advice}")

    def shown(self, reason: str) -> str:
        """Return the reason of a failure for messages."""
        return reason

    def drop_idle_connections(self) -> None:
        """Close idle connections; a firewall would drop them before the next call."""
        pools = self._pools.pools
        connection_pools = [pool.pool for pool in map(pools.get, pools.keys()) if pool and pool.pool]
        self._pools.clear()
        # A failed call keeps its pool, with all idle connections, alive until the next garbage collection.
        for connections in connection_pools:
            _close_all(connections)


def _close_all(connections: queue.LifoQueue[Any]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            if connection := connections.get(block=False):
                connection.close()


class _HttpConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        connection = super()._new_conn()
        Exchange.current().hold(connection)
        return connection

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        Exchange.current().hold(self.sock)
        return super().getresponse()


class _HttpsConnection(_HttpConnection, HTTPSConnection):
    """The same with TLS."""


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection
