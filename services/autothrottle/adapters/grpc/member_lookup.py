"""Service discovery through the list of members, instead of fixed addresses.

`Replicas` resolves the members of a role like a host name, for example `members:planner`.
"""

from __future__ import annotations

from datetime import timedelta

from autothrottle.core.errors import Unavailable
from autothrottle.core.members import address_from
from autothrottle.ports.state_store import Membership
from autothrottle_client.replicas import Resolve, resolved

_PREFIX = "members:"
_TIMEOUT = timedelta(seconds=2)


def members_address(role: str) -> str:
    """Return the address of all members of a role, for example `members:planner`."""
    return f"{_PREFIX}{role}"


def member_lookup(membership: Membership, host: str, resolve: Resolve = resolved) -> Resolve:
    """Return a resolver of `members:` addresses, as a process on `host` reaches them; others go to `resolve`."""

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
            raise OSError(f"no {role} that is reachable from {host} is registered; start one, or give --{role}-addr")
        return [target for at in found for target in _targets(at, resolve)]

    return look_up


def _targets(address: str, resolve: Resolve) -> list[str]:
    """Targets of one member; none if its address is invalid or unknown here, since other members may be reachable."""
    if address.startswith("unix:"):
        return [address]
    try:
        return list(resolve(address))
    except (OSError, ValueError):
        return []
