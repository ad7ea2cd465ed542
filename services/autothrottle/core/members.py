"""Who takes part: the processes of autothrottle that run at the moment.

A member is a process; one of `autothrottle run` has all roles. The type to know is `Member`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Member:
    """One process that serves."""

    service: str
    """The command that it runs: `discovery`, `metrics`, `planner`, `applier`, `admin`, `gateway` or `run`."""
    roles: tuple[str, ...]
    """The services that it is: the one of its name, or all of them in `run`."""
    version: str
    """Of its program."""
    address: str
    """Where it answers, `host:port` or `unix:path`, as it listens: `0.0.0.0` is every interface of its host."""
    host: str
    """The name of its host."""
    pid: int
    """Its process id there."""
    started: datetime
    """UTC, by its own clock."""


_OF_RUN = ("admin", "planner")
"""The roles in which `run` answers others; its other services are for itself."""


def address_from(host: str, member: Member, role: str) -> str | None:
    """Return where a member answers in a role, as a process on a host reaches it; None where it does not.

    What listens on every interface is reached by the name of its host; loopback and sockets only from there.
    """
    if member.service != role and not (member.service == "run" and role in _OF_RUN):
        return None
    if member.address.startswith("unix:"):
        return member.address if member.host == host else None
    name, _, port = member.address.rpartition(":")
    if _is(name, "is_unspecified"):
        own = "[::1]" if name.startswith("[") else "127.0.0.1"
        return f"{own if member.host == host else member.host}:{port}"
    if name == "localhost" or _is(name, "is_loopback"):
        return member.address if member.host == host else None
    return member.address


def _is(name: str, what: str) -> bool:
    """Whether a name is an IP address of that kind."""
    try:
        return bool(getattr(ipaddress.ip_address(name.strip("[]")), what))
    except ValueError:
        return False


def ordered(members: Iterable[Member]) -> tuple[Member, ...]:
    """Return members by service, then by start."""
    return tuple(sorted(members, key=lambda m: (m.service, m.started, m.host, m.pid)))
