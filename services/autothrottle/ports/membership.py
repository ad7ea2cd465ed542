"""Which processes of autothrottle run: each tells of itself, and everybody may look."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from autothrottle.core.members import Member


class Membership(Protocol):
    """One process's part in the list of those that run."""

    def join(self, member: Member) -> None:
        """Be on the list from now on, until `leave`; returns at once, whether the list can be reached or not.

        Whoever is dropped from it, after a lost session for one, gets on it again by itself. To be called once.
        """
        ...

    def leave(self) -> None:
        """Be off the list at once. Idempotent; the list need not answer."""
        ...

    def members(self, timeout: timedelta) -> tuple[Member, ...]:
        """Return all who are on the list, by service and start; who died leaves it with its session.

        Raises:
            Unavailable: when the list cannot be read in time.
        """
        ...
