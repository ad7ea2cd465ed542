"""The official client, with deadlines."""

from __future__ import annotations

import contextlib
import queue
import socket
from typing import Any

from datadog_api_client import ApiClient, Configuration
from datadog_api_client.rest import RESTClientObject
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, Retry
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.response import HTTPResponse

from autothrottle.adapters.datadog.bounded_calls import Exchange
from autothrottle.adapters.datadog.settings import DatadogSettings

CONCURRENT_READS = 24
"""1,000 hosts at 45 ms a request take 2 s."""
CONCURRENT_POSTS = 2


class DatadogApiClient(ApiClient):
    """The official client, whose calls end when their exchange ends; every call must run in an `Exchange`."""

    def __init__(self, settings: DatadogSettings) -> None:
        super().__init__(_configuration(settings))

    def _build_rest_client(self) -> _Rest:
        return _Rest(self.configuration, maxsize=CONCURRENT_READS + CONCURRENT_POSTS)

    def drop_idle_connections(self) -> None:
        """Close idle connections; a firewall would drop them before the next call."""
        pools = self.rest_client.pool_manager.pools
        idle = [pool.pool for pool in map(pools.get, pools.keys()) if pool]
        self.rest_client.pool_manager.clear()
        # A failed call keeps its pool, with all idle connections, alive until the next garbage collection.
        for connections in idle:
            _close_all(connections)


def _close_all(connections: queue.LifoQueue[Any]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            if connection := connections.get(block=False):
                connection.close()


class _Rest(RESTClientObject):
    """The client's HTTP layer, with a timeout for each call instead of one for all."""

    def __init__(self, configuration: Configuration, maxsize: int) -> None:
        super().__init__(configuration, maxsize=maxsize)  # type: ignore[no-untyped-call]
        self.pool_manager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}

    def request(self, *arguments: Any, **keywords: Any) -> Any:
        keywords["request_timeout"] = Exchange.current().seconds_left()
        return super().request(*arguments, **keywords)  # type: ignore[no-untyped-call]


class _HttpConnection(HTTPConnection):
    """A connection whose exchange can cut every wait for the server, also that of a TLS handshake."""

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


def _configuration(settings: DatadogSettings) -> Configuration:
    configuration = Configuration(
        host=None if settings.url is None else settings.url.rstrip("/"),
        preload_content=False,  # we parse responses, so that one odd series does not break the others
        retry_policy=Retry(total=False),  # no retry, and no redirect, which would send the keys elsewhere
    )
    # Set explicitly: the client fills empty values from DD_API_KEY, DD_APP_KEY and DD_SITE.
    configuration.api_key = {"apiKeyAuth": settings.api_key, "appKeyAuth": settings.app_key}
    configuration.server_variables = {}
    return configuration
