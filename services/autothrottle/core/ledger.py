"""What autothrottle has written to a cluster, so that it can take everything back and nothing else.

One entry for each config resource. A rate is owned as a whole; of a replica list the entries are owned one by
one. What is not in the ledger is somebody else's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autothrottle.core.configs import parse_replicas


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """What we know of one throttle key that we wrote.

    >>> LedgerKey(None, "0:1,0:2", frozenset({"0:1", "0:2"})) == LedgerKey(None, "0:1,0:2")
    True
    """

    before: str | None
    """The value to put back when we let go; None: delete the key."""
    written: str
    """The value that we wrote last; any other standing value was written by somebody else."""
    part: frozenset[str] | None = None
    """Of a replica list with entries of others: those that are ours, never empty. None: all of `written` is, as of
    every rate. So the lists of 100,000 partitions need not be told, kept and read twice."""

    def __post_init__(self) -> None:
        """Let what is all ours be the same value however it was made."""
        if self.part is not None and self.part in (frozenset(), frozenset(self.written.split(","))):
            object.__setattr__(self, "part", None)

    @property
    def owned(self) -> frozenset[str]:
        """The entries of a replica list that are ours."""
        return parse_replicas(self.written) if self.part is None else self.part


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What we wrote to one config resource; never empty (the entry goes with its last key)."""

    keys: Mapping[str, LedgerKey]
    """Config key -> what we know of it."""
    term: int
    """The term that wrote it last."""
    cycle: int = 0
    """The cycle of that term that wrote it last."""
