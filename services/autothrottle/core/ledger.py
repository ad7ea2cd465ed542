"""What autothrottle has written to a cluster, so that it can take everything back and nothing else.

One entry for each config resource. A rate is owned as a whole; of a replica list the entries are owned one by
one. What is not in the ledger is somebody else's. Where config and ledger cannot be written together, the ledger
says first what is about to be written (the intent) and then that it was: whenever that is interrupted, what stands
is one of the two.
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
    written: str | None
    """The value that we wrote last; any other standing value was written by somebody else, but for the intent.

    While an intent stands: what it replaces, which is None when nothing stood.
    """
    part: frozenset[str] | None = None
    """Of a replica list with entries of others: those that are ours, those of the intent too, never empty. None: all of
    `written` and `intent` is, as of every rate. So the lists of 100,000 partitions need not be told, kept and read
    twice."""
    intent: str | None = None
    """The value that was about to be written, where that was not confirmed; None: it was."""
    target: str | None = None
    """The rate that this one is a step to; None: it is no step."""

    def __post_init__(self) -> None:
        """Let what is all ours be the same value however it was made."""
        if self.part is not None and self.part in (frozenset(), self._entries()):
            object.__setattr__(self, "part", None)

    def _entries(self) -> frozenset[str]:
        return frozenset(e for text in (self.written, self.intent) if text for e in text.split(","))

    @property
    def owned(self) -> frozenset[str]:
        """The entries of a replica list that are ours, those of the intent too."""
        if self.part is not None:
            return self.part
        return parse_replicas(self.written or "") | parse_replicas(self.intent or "")

    @property
    def aim(self) -> str | None:
        """The rate that we want to stand in the end; where a write was not confirmed, as before it."""
        return self.written if self.target is None else self.target

    def is_ours(self, standing: str | None) -> bool:
        """Whether a standing value is as we left it."""
        return standing == self.written or (self.intent is not None and standing == self.intent)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What we wrote to one config resource; never empty (the entry goes with its last key)."""

    keys: Mapping[str, LedgerKey]
    """Config key -> what we know of it."""
    term: int
    """The term that wrote it last."""
    cycle: int = 0
    """The cycle of that term that wrote it last."""
