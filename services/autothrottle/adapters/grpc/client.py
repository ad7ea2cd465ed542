"""Base class of all service clients: the client package's connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from autothrottle_client.replicas import Connection, Interceptor, Resolve, StubClient, resolved
from autothrottle_client.tls import Certificates

# Services of one cluster connect directly; proxy environment variables do not apply.
_OPTIONS = (("grpc.enable_http_proxy", 0),)

_Stub = TypeVar("_Stub")


class ServiceClient(StubClient[_Stub]):
    """A client of one service."""

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
        super().__init__(addresses, connection)
