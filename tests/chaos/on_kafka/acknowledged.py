"""An operator who edits one override all the time, and notices if an acknowledged edit is lost.

The override is that of a broker that does not exist, so that it changes no throttle. Each edit names the version that
it replaces. So an edit whose answer is lost may take effect later, but never after a newer one was acknowledged.
"""

from __future__ import annotations

import threading

from autothrottle.core.errors import AutothrottleError, Missing
from autothrottle_client import AdminClient
from autothrottle_lab.servers.processes import Startable
from tests.chaos.checker import Violation

LOST_EDIT = "an acknowledged edit that is lost"

_BROKER_ID = 9999
_FIRST_RATE = 1_000_000
_PAUSE_SECONDS = 1.0


class AcknowledgedEdits(Startable):
    """Raises the rate of the override again and again, in a thread of its own."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self.acknowledged_rate = 0
        """The rate of the last acknowledged edit; 0: none was acknowledged."""
        self.acknowledged = 0
        """Number of acknowledged edits."""
        self.violations: list[Violation] = []
        self._rate = _FIRST_RATE
        """The rate of the next edit."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._edit_until_the_end, name="edits", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()

    def check(self, client: AdminClient) -> bool:
        """Read the override through these processes; return whether one answers."""
        try:
            self._read(client)
        except AutothrottleError:
            return False
        return True

    def _edit_until_the_end(self) -> None:
        while not self._ending.wait(_PAUSE_SECONDS):
            try:
                etag = self._read(self._client)
                rate, self._rate = self._rate, self._rate + 1
                self._client.set_override(rate, _BROKER_ID, etag=etag)
            except AutothrottleError:  # it may take effect later
                continue
            self.acknowledged_rate, self.acknowledged = rate, self.acknowledged + 1

    def _read(self, client: AdminClient) -> str:
        """Return the etag of the override; "": none is set."""
        acknowledged_rate = self.acknowledged_rate
        try:
            override = client.get_override(_BROKER_ID)
            rate, etag = override.rate_bytes_per_second, override.etag
        except Missing:
            rate, etag = 0, ""
        if rate < acknowledged_rate:
            details = f"the override has {rate} bytes/s after {acknowledged_rate} bytes/s were acknowledged"
            self.violations.append(Violation(LOST_EDIT, 0, details))
        return etag
