"""Which planner leads: an election whose winner holds a term, and the fence that ends with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Term:
    """One tenure of leadership."""

    fence: int
    """Grows with every term; every write carries it and is refused once a later term began."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who holds the newest term."""

    fence: int
    address: str
    """Where its planner service answers, `host:port` or `unix:path`."""
    since: datetime | None = None
    """When its term began, UTC; None: unknown."""


class Election(Protocol):
    """One candidate's part in the election."""

    @property
    def term(self) -> Term | None:
        """The term that this candidate holds at this moment; None while it does not lead."""
        ...

    def leader(self) -> Leader | None:
        """Return who led last; None before the first term.

        Raises:
            Unavailable: when it cannot be read.
        """
        ...

    def join(self, address: str, on_change: Callable[[], None]) -> None:
        """Stand for election from now on; `on_change` is called whenever `term` changed, and must not block."""
        ...

    def leave(self) -> None:
        """Give up the term and the candidacy at once, so that another can lead. Idempotent."""
        ...
