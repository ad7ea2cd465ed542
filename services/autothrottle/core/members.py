"""The autothrottle processes that are running.

Each process is one member; a process of `autothrottle run` has all roles. The type to know is `Member`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from autothrottle.core.errors import Invalid
from autothrottle.core.texts import ip_address_of
from autothrottle.core.units import MAX_INT32


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
    """Where others call it, `host:port` or `unix:path`; `0.0.0.0` means every interface of its host."""
    host: str
    """Name of its host."""
    pid: Annotated[int, range(MAX_INT32 + 1)]
    """Its process id on that host."""
    start_time: datetime
    """UTC, by its own clock."""


_PORT = re.compile(r":[0-9]+$")

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


def published_address(listening: str, advertise: str) -> str:
    """Return the address to publish for a listening address; `advertise` without a port takes the listening port.

    Raises:
        Invalid: a unix socket has no port, and `advertise` names none.
    """
    if not advertise:
        return listening
    if _PORT.search(advertise):
        return advertise
    if listening.startswith("unix:"):
        raise Invalid(
            f"advertise is {advertise!r} without a port, and {listening} has no port to add. "
            f"Fix: --advertise={advertise}:PORT, with the port at which others reach this process"
        )
    return f"{advertise}:{listening.rpartition(':')[2]}"


def leader_address(member: Member) -> str:
    """Return the address of a leading planner for callers on all hosts: the host's name for every interface."""
    name, _, port = member.address.rpartition(":")
    return f"{member.host}:{port}" if _has_ip_property(name, "is_unspecified") else member.address


def page_url(listening: str, host: str, is_tls: bool) -> str:
    """Return the URL of the page for an operator's browser.

    >>> page_url("127.0.0.1:8080", "kafka7", False), page_url("0.0.0.0:8080", "kafka7", True)
    ('http://127.0.0.1:8080/', 'https://kafka7:8080/')

    Args:
        listening: address of the HTTP API, `host:port`.
        host: name of this host, for an API on every interface.
        is_tls: whether the API needs TLS.
    """
    name, _, port = listening.rpartition(":")
    return f"http{'s' * is_tls}://{host if _has_ip_property(name, 'is_unspecified') else name}:{port}/"


def hosts_without_route(member: Member, members: Iterable[Member]) -> tuple[str, ...]:
    """Return the other hosts in the list that cannot call a member, because its address is loopback or a socket."""
    hosts = {other.host for other in members}
    return tuple(sorted(host for host in hosts if address_from(host, member, member.service) is None))


def _has_ip_property(name: str, attribute: str) -> bool:
    """Return whether a name is an IP address with this property, for example `is_loopback`."""
    return bool(getattr(ip_address_of(name.strip("[]")), attribute, False))


def ordered(members: Iterable[Member]) -> tuple[Member, ...]:
    """Return the members sorted by service, then by start time."""
    return tuple(sorted(members, key=lambda m: (m.service, m.start_time, m.host, m.pid)))
