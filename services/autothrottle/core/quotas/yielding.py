"""Rules for clients that yield to a recovery. The type to know is `YieldRule`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from autothrottle.core.quotas.keys import QuotaKey

BYTE_RATES = frozenset({QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE})
"""The keys that a rule can limit."""


@dataclass(frozen=True, slots=True)
class YieldRule:
    """Limits the clients that match while a reassignment or a catch-up runs.

    A rule has a pattern for users, for client ids, or for both. In a pattern, `*` stands for any characters and `?` for
    one. A rule with client ids only limits the entity of the default user and the client id, which is level 4.
    """

    name: str
    """Unique among the rules."""
    user: str | None
    """Pattern; None: any user."""
    client_id: str | None
    """Pattern; None: any client id."""
    at_most: int | None
    """The highest quota in bytes/s per broker; None: it is a share."""
    at_most_share: float | None
    """The highest quota as a share of the smallest broker's capacity, above 0 to 1; None: it is a rate."""
    floor: int
    """The lowest quota in bytes/s per broker, at least 1."""
    keys: frozenset[QuotaKey]
    """Which of `BYTE_RATES` are limited; never empty."""
    author: str
    """Who set it."""
    time: datetime
    """When it was set, UTC."""


YieldRules = Mapping[str, YieldRule]
"""Name -> rule."""
