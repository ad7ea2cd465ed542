"""The list of running processes in memory."""

from __future__ import annotations

import threading
from datetime import timedelta

from autothrottle.core.errors import Unavailable
from autothrottle.core.members import Member, ordered


class MemoryMembers:
    """The list of members that all processes share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._joined: list[Member] = []
        self._down = False

    def unavailable(self, down: bool) -> None:
        """Set whether reading raises Unavailable; joining and leaving still work."""
        self._down = down

    def _read(self) -> tuple[Member, ...]:
        if self._down:
            raise Unavailable("the members cannot be read; try again")
        with self._lock:
            return ordered(self._joined)

    def _add(self, member: Member) -> None:
        with self._lock:
            self._joined.append(member)

    def _remove(self, member: Member) -> None:
        with self._lock:
            self._joined.remove(member)


class MemoryMembership:
    """One process's view of the list (a `Membership`), without a session that could expire."""

    def __init__(self, shared: MemoryMembers) -> None:
        self._shared = shared
        self._member: Member | None = None

    def join(self, member: Member) -> None:
        self._member = member
        self._shared._add(member)

    def leave(self) -> None:
        left, self._member = self._member, None
        if left is not None:
            self._shared._remove(left)

    def members(self, timeout: timedelta) -> tuple[Member, ...]:
        return self._shared._read()
