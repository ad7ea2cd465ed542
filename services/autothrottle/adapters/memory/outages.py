"""Outages of the in-memory fakes."""

from __future__ import annotations

from autothrottle.core.errors import Unavailable


class Outages:
    """A fake that can be made unavailable."""

    _outage: str
    """Message of the error during an outage."""
    _down = False

    def unavailable(self, down: bool) -> None:
        """Set whether calls raise Unavailable: all calls, unless the class says which."""
        self._down = down

    def _raise_if_down(self) -> None:
        if self._down:
            raise Unavailable(self._outage)
