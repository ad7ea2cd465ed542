"""Where services answer that are looked for in the list of members instead of at fixed addresses.

To `Endpoints` the members of a role are one more name to be looked up: `members:planner`.
"""

from __future__ import annotations

from datetime import timedelta

from autothrottle.adapters.endpoints import Resolve, resolved
from autothrottle.core.errors import Unavailable
from autothrottle.core.members import address_from
from autothrottle.ports.membership import Membership

_PREFIX = "members:"
_TIMEOUT = timedelta(seconds=2)


def members_address(role: str) -> str:
    """Return the address that stands for all members of a role."""
    return f"{_PREFIX}{role}"


def member_lookup(membership: Membership, host: str, resolve: Resolve = resolved) -> Resolve:
    """Return what looks up addresses of members, as a process on `host` reaches them, and all other ones as before."""

    def look_up(address: str) -> list[str]:
        if not address.startswith(_PREFIX):
            return list(resolve(address))
        role = address.removeprefix(_PREFIX)
        try:
            members = membership.members(_TIMEOUT)
        except Unavailable as error:
            raise OSError(str(error)) from error
        found = [at for member in members if (at := address_from(host, member, role))]
        if not found:
            raise OSError(f"no {role} that can be reached from {host} is listed; start one, or give --{role}-addr")
        return [target for at in found for target in _targets(at, resolve)]

    return look_up


def _targets(address: str, resolve: Resolve) -> list[str]:
    """Where one member answers; nowhere if that is no address or a name that is unknown here: others may be reached."""
    if address.startswith("unix:"):
        return [address]
    try:
        return list(resolve(address))
    except (OSError, ValueError):
        return []
