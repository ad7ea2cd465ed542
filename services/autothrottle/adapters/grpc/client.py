"""Base class of all service clients: replicas, interceptors, certificates and `close`."""

from __future__ import annotations

from collections.abc import Sequence

from autothrottle.adapters.credentials.tls import Tls
from autothrottle.adapters.grpc.endpoints import Endpoints, Interceptor, Resolve, resolved


class ServiceClient:
    """A client of one service."""

    service = ""
    """Name of the service in errors."""
    rotates = False
    """Whether calls rotate over the replicas; if not, they stay with the one that answered last."""

    def __init__(
        self,
        addresses: Sequence[str],
        interceptors: Sequence[Interceptor] = (),
        resolve: Resolve = resolved,
        tls: Tls | None = None,
    ) -> None:
        self._interceptors, self._tls = tuple(interceptors), tls
        self._endpoints = Endpoints(
            self.service, addresses, interceptors, rotates=self.rotates, resolve=resolve, tls=tls
        )

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._endpoints.close()
