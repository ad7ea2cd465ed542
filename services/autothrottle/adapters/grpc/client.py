"""Base class of all service clients: the client package's connection, with core's errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from autothrottle.adapters.client_errors import as_core_errors
from autothrottle_client.addresses import Resolve, resolved
from autothrottle_client.client import StubClient
from autothrottle_client.replicas import Connection, Interceptor, Rpc
from autothrottle_client.tls import Certificates

# Services of one cluster connect directly; proxy environment variables do not apply.
_OPTIONS = (("grpc.enable_http_proxy", 0),)

_Stub = TypeVar("_Stub")
_Response = TypeVar("_Response")


class ServiceClient(StubClient[_Stub]):
    """A client of one service. All errors are core's."""

    connection = Connection()
    """How its replicas are called."""

    def __init__(
        self,
        addresses: Sequence[str],
        interceptors: Sequence[Interceptor] = (),
        resolve: Resolve = resolved,
        tls: Certificates | None = None,
        token: str = "",
    ) -> None:
        connection = replace(
            self.connection,
            certificates=tls,
            token=token,
            interceptors=tuple(interceptors),
            resolve=resolve,
            options=_OPTIONS,
        )
        with as_core_errors():
            super().__init__(addresses, connection)

    def _call(self, rpc: Rpc[_Response], timeout: timedelta | None, probe: Rpc[object] | None = None) -> _Response:
        with as_core_errors():
            return super()._call(rpc, timeout, probe)
