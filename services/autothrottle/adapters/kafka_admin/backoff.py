"""When each address may be tried again after connecting to it has failed. The type to know is `Backoff`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from autothrottle.core.retries import BROKER

Address = tuple[str, int]
"""Host and TCP port."""


class ConnectFailure(NamedTuple):
    """Why connecting to an address has failed."""

    error: BaseException
    time: float
    """On the monotonic clock."""


@dataclass(slots=True)
class _Outage:
    """Consecutive failures of one address."""

    failures: int
    next_try: float
    """On the monotonic clock."""
    last: ConnectFailure


class Backoff:
    """The addresses to which connecting has failed since it last succeeded. Thread-safe.

    All connections with one login share it, so that they try an address as rarely as one connection would. As soon as
    one of them succeeds, each address may be tried at once: the brokers, or the network to them, are back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._outages: dict[Address, _Outage] = {}
        self._lock = threading.Lock()

    def begin(self, address: Address) -> ConnectFailure | None:
        """Claim the next try of an address; return the last failure if it must wait."""
        with self._lock:
            if (outage := self._outages.get(address)) is None:
                return None
            started = self._clock()
            if started < outage.next_try:
                return outage.last
            outage.next_try = started + BROKER.wait(outage.failures)
            return None

    def failed(self, address: Address, error: BaseException) -> None:
        """Count a failure."""
        with self._lock:
            failures = self._outages[address].failures + 1 if address in self._outages else 1
            failed = self._clock()
            self._outages[address] = _Outage(failures, failed + BROKER.wait(failures), ConnectFailure(error, failed))

    def succeeded(self, address: Address) -> None:
        """Forget the failures of an address, and let the others be tried at once."""
        with self._lock:
            if self._outages.pop(address, None) is not None:
                for outage in self._outages.values():
                    outage.next_try = 0.0
