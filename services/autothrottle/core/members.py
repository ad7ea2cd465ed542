"""The autothrottle processes that are running.

Each process is one member; a process of `autothrottle run` has all roles. The type to know is `Member`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Member:
    """One running process."""

    service: str
    """Its command: `discovery`, `metrics`, `planner`, `applier`, `admin`, `gateway` or `run`."""
    roles: tuple[str, ...]
    """The services that it hosts: the service of the same name, or all of them in `run`."""
    version: str
    """Version of the program."""
    address: str
    """Its listen address, `host:port` or `unix:path`; `0.0.0.0` means every interface of its host."""
    host: str
    """Name of its host."""
    pid: int
    """Its process id on that host."""
    started: datetime
    """Start time, UTC, by its own clock."""


_PUBLIC_ROLES_OF_RUN = ("admin", "planner")
"""The roles in which `run` serves other processes; its other services serve only itself."""


def address_from(host: str, member: Member, role: str) -> str | None:
    """Return the address at which a process on `host` reaches a member in a role; None: it cannot.

    A member that listens on every interface is reached by its host's name. Loopback addresses and Unix sockets are
    reachable only from the member's own host.
    """
    if member.service != role and not (member.service == "run" and role in _PUBLIC_ROLES_OF_RUN):
        return None
    if member.address.startswith("unix:"):
        return member.address if member.host == host else None
    name, _, port = member.address.rpartition(":")
    if _has_ip_property(name, "is_unspecified"):
        own = "[::1]" if name.startswith("[") else "127.0.0.1"
        return f"{own if member.host == host else member.host}:{port}"
    if name == "localhost" or _has_ip_property(name, "is_loopback"):
        return member.address if member.host == host else None
    return member.address


def _has_ip_property(name: str, attribute: str) -> bool:
    """Return whether a name is an IP address with this property, for example `is_loopback`."""
    try:
        return bool(getattr(ipaddress.ip_address(name.strip("[]")), attribute))
    except ValueError:
        return False


def ordered(members: Iterable[Member]) -> tuple[Member, ...]:
    """Return the members sorted by service, then by start time."""
    return tuple(sorted(members, key=lambda m: (m.service, m.started, m.host, m.pid)))
