"""What the clients of all services share: addresses, a time-out, and an end."""

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
    """A client of one service; threads may share it. `service` is its name in errors."""

    service = ""

    def __init__(
        self, addresses: str | Sequence[str], timeout: timedelta = DEFAULT_TIMEOUT, tls: Tls | None = None
    ) -> None:
        """Open nothing yet; the first call connects.

        Args:
            addresses: of all replicas, `host:port` or `unix:path`, at least one; a text is a comma list.
            timeout: for each call with all its attempts, > 0 and at most a day.
            tls: with which connections are made; None: they are plain.

        Raises:
            Invalid: when an address or the time-out is not as it must be.
        """
        self._replicas = Replicas(self.service, addresses, timeout, tls)
        self._watches: list[CycleWatch] = []

    def close(self) -> None:
        """End the watches and the connections. Idempotent."""
        for watch in self._watches:
            watch.close()
        self._replicas.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _again(self) -> Replicas:
        """The same replicas over connections of their own, which end with the watch that uses them."""
        return Replicas(self.service, self._replicas.addresses, self._replicas.timeout, self._replicas.tls)

    def _watching(self, watch: CycleWatch) -> CycleWatch:
        self._watches = [w for w in self._watches if not w.closed] + [watch]
        return watch
