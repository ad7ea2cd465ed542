"""Permissions in memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from autothrottle.adapters.memory.outages import Outages


class MemoryPermissions(Outages):
    """A `PermissionSource` with settable answers."""

    _outage = "the other side does not answer; try again"

    def __init__(self, missing: Mapping[str, str] | None = None) -> None:
        self.missing = dict(missing or {})
        """Resource -> the operations that may not be done, and the fix."""

    def fetch_missing_permissions(self, timeout: timedelta) -> Mapping[str, str]:
        self._raise_if_down()
        return self.missing
