"""Base class of the service clients: addresses, timeout, closing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import TypeVar

from autothrottle_client.replicas import DEFAULT_TIMEOUT, Replicas
from autothrottle_client.tls import Tls
from autothrottle_client.watch import CycleWatch

_Self = TypeVar("_Self", bound="Client")


class Client:
    """A thread-safe client of one service. `service` is the service's name in errors."""

    service = ""

    def __init__(
        self, addresses: str | Sequence[str], timeout: timedelta = DEFAULT_TIMEOUT, tls: Tls | None = None
    ) -> None:
        """Create the client; the first call connects.

        Args:
            addresses: of all replicas, at least one `host:port` or `unix:path`; a string is a comma-separated list.
            timeout: for each call with all its attempts, > 0 and at most one day.
            tls: key and certificates of mutual TLS; None: plain connections.

        Raises:
            Invalid: an address or the timeout is invalid.
        """
        self._replicas = Replicas(self.service, addresses, timeout, tls)
        self._watches: list[CycleWatch] = []

    def close(self) -> None:
        """Close all watches and connections. Idempotent."""
        for watch in self._watches:
            watch.close()
        self._replicas.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _separate_replicas(self) -> Replicas:
        """Return the same replicas over separate connections, which close with the watch that uses them."""
        return Replicas(self.service, self._replicas.addresses, self._replicas.timeout, self._replicas.tls)

    def _register(self, watch: CycleWatch) -> CycleWatch:
        self._watches = [w for w in self._watches if not w.closed] + [watch]
        return watch
