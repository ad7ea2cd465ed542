"""The list of running processes in memory."""

from __future__ import annotations

from datetime import timedelta

from autothrottle.adapters.memory.outages import Outages
from autothrottle.core.errors import Unavailable
from autothrottle.core.members import Member, ordered


class MemoryMembers(Outages):
    """The list of members that all processes share. During an outage, joining and leaving still work."""

    _outage = "the members cannot be read; try again"

    def __init__(self) -> None:
        self.joined: list[Member] = []

    def read(self) -> tuple[Member, ...]:
        self._raise_if_down()
        return ordered(self.joined)


class MemoryMembership:
    """One process's view of the list (a `Membership`), without a session that could expire."""

    def __init__(self, shared: MemoryMembers) -> None:
        self._shared = shared
        self._member: Member | None = None

    def join(self, member: Member) -> None:
        self._member = member
        self._shared.joined.append(member)

    def leave(self) -> None:
        left, self._member = self._member, None
        if left is not None:
            self._shared.joined.remove(left)

    def members(self, timeout: timedelta) -> tuple[Member, ...]:
        return self._shared.read()

    def problem(self) -> str:
        try:
            self._shared.read()
        except Unavailable as error:
            return str(error)
        return "" if self._member in self._shared.joined else "this process is not registered as a member"
