"""What autothrottle has written to a cluster, so that it can take everything back and nothing else.

One entry for each config resource. A rate is owned as a whole; of a replica list the entries are owned one by
one. What is not in the ledger is somebody else's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """What we know of one throttle key that we wrote."""

    before: str | None
    """The value to put back when we let go; None: delete the key."""
    written: str
    """The value that we wrote last; any other standing value was written by somebody else."""
    owned: frozenset[str] = frozenset()
    """Of a replica list: the entries that are ours. Empty for a rate."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What we wrote to one config resource; never empty (the entry goes with its last key)."""

    keys: Mapping[str, LedgerKey]
    """Config key -> what we know of it."""
    term: int
    """The term that wrote it last."""
    cycle: int = 0
    """The cycle of that term that wrote it last."""
