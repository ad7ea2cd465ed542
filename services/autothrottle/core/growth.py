"""How fast the logs on a broker grow: what clients do right now, minutes before a metric says so.

Here live the values only. Who reads the sizes of all logs of a broker can give them to a policy; none needs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class LogGrowth:
    """What came into the logs of one broker: counts that only grow (what retention deletes does not count)."""

    led: int
    """Bytes by which the logs that this broker leads grew: what was produced to it."""
    received: int
    """Bytes by which all its logs grew, but for replicas that are still being copied: what it took in for clients."""
    at: datetime
    """When it was read, UTC."""
    since: datetime
    """When counting began, UTC; subtract only counts with the same `since`."""
