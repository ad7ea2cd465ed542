"""What the clients of all services share: replicas, interceptors, certificates, and an end."""

from __future__ import annotations

from collections.abc import Sequence

from autothrottle.adapters.endpoints import Endpoints, Interceptor, Resolve, resolved
from autothrottle.adapters.tls import Tls


class Client:
    """A client of one service; `service` is its name in errors."""

    service = ""
    rotates = False
    """Whether calls go round the replicas; else they stay with the one that answered last."""

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
