"""The record of what autothrottle has written to a cluster, so that it can restore that and nothing else.

There is one entry for each config resource. A rate is owned as a whole; the entries of a replica list are owned one by
one. Every value that is not in the ledger is foreign. Where config and ledger cannot be written in one transaction,
the ledger first records the value that is about to be written (the intent), and later that it was written. If that is
interrupted, the current value is one of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autothrottle.core.cluster.configs import parse_replicas


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """The ledger's record of one throttle key that autothrottle wrote.

    >>> LedgerKey(None, "0:1,0:2", frozenset({"0:1", "0:2"})) == LedgerKey(None, "0:1,0:2")
    True
    """

    before: str | None
    """The value to restore when we release the key; None: delete the key."""
    written: str | None
    """The value that we wrote last. Any other current value is foreign, unless it is the intent.

    While there is an intent, this is the value that it replaces; None: the key was not set.
    """
    part: frozenset[str] | None = None
    """The entries that we own, for a replica list that also has foreign entries; those of the intent included, never
    empty. None: we own all of `written` and `intent`, as with every rate. This avoids sending, storing and reading the
    lists of 100,000 partitions twice."""
    intent: str | None = None
    """The value that was about to be written, while the write is unconfirmed; None: it is confirmed."""
    target: str | None = None
    """The rate at which the current ramp ends; None: this value is not a ramp step."""

    def __post_init__(self) -> None:
        # Normalise: full ownership is stored as None.
        if self.part is not None and self.part in (frozenset(), self._entries()):
            object.__setattr__(self, "part", None)

    def _entries(self) -> frozenset[str]:
        return frozenset(e for text in (self.written, self.intent) if text for e in text.split(","))

    @property
    def owned(self) -> frozenset[str]:
        """The entries of a replica list that we own, including those of the intent."""
        if self.part is not None:
            return self.part
        return parse_replicas(self.written or "") | parse_replicas(self.intent or "")

    @property
    def final_rate(self) -> str | None:
        """The rate at which a ramp ends; for an unconfirmed write, the one before it."""
        return self.written if self.target is None else self.target

    def is_ours(self, current: str | None) -> bool:
        """Return whether a current value is the one that we wrote or were about to write."""
        return current == self.written or (self.intent is not None and current == self.intent)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What we wrote to one config resource; never empty (the entry is deleted with its last key)."""

    keys: Mapping[str, LedgerKey]
    """Config key -> its record."""
    term: int
    """The term that last wrote the entry."""
    cycle: int = 0
    """The cycle of that term that last wrote the entry."""
