"""Base class of all service clients: the client package's connection, with core's errors."""

from __future__ import annotations

from collections.abc import Sequence
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

    rotates = False
    """Whether calls rotate over the replicas; if not, they stay with the one that answered last."""
    has_leader = False
    """Whether NotLeader is retried at the leader that a replica names."""

    def __init__(
        self,
        addresses: Sequence[str],
        interceptors: Sequence[Interceptor] = (),
        resolve: Resolve = resolved,
        tls: Certificates | None = None,
    ) -> None:
        connection = Connection(
            certificates=tls,
            interceptors=tuple(interceptors),
            resolve=resolve,
            rotates=self.rotates,
            has_leader=self.has_leader,
            options=_OPTIONS,
        )
        with as_core_errors():
            super().__init__(addresses, connection)

    def _call(self, rpc: Rpc[_Response], timeout: timedelta | None, probe: Rpc[object] | None = None) -> _Response:
        with as_core_errors():
            return super()._call(rpc, timeout, probe)
