"""Who may call what: roles, and the rules that give a caller its role. The types to know are `Role` and `Caller`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase

from autothrottle.core.errors import Invalid


class Role(IntEnum):
    """What a caller may do. Each role includes the lower ones. The numbers are those of the proto."""

    VIEWER = 1
    OPERATOR = 2
    SERVICE = 3

    def __str__(self) -> str:
        return self.name.lower()


ROLES = {str(role): role for role in Role}
"""Name -> role."""

CertificateRoles = Mapping[str, Role]
"""Pattern of names in certificates -> role."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller whose credentials are known."""

    name: str = ""
    """Name in its certificate or of its token; "": the caller needs no credentials."""
    role: Role | None = None
    """None: the caller may do nothing."""
    is_proven: bool = True
    """Whether a certificate, a token or a unix socket proves who calls; False: this process checks no credentials."""


def parse_certificate_roles(text: str) -> CertificateRoles | None:
    """Return pattern -> role from a JSON object; None: the text is empty.

    >>> parse_certificate_roles('{"planner-*": "service"}')
    {'planner-*': <Role.SERVICE: 3>}

    Raises:
        Invalid: the text is not a JSON object, a pattern is empty or given twice, or a role is unknown.
    """
    if not text.strip():
        return None
    try:
        pairs = json.loads(text, object_pairs_hook=lambda found: tuple(_pair(*pair) for pair in found))
    except (ValueError, RecursionError):
        pairs = None
    if not isinstance(pairs, tuple):
        raise Invalid(f"certificate-roles is {text[:100]!r}, which is not a JSON object")
    if len(dict(pairs)) < len(pairs):
        raise Invalid(f"certificate-roles is {text[:100]!r}, which gives a pattern twice")
    return dict(pairs)


def _pair(pattern: str, role: object) -> tuple[str, Role]:
    if not pattern or not isinstance(role, str) or role not in ROLES:
        raise Invalid(f"certificate-roles has {str(role)[:60]!r} for the name {pattern[:60]!r}, which is not a role")
    return pattern, ROLES[role]


def role_of_certificate(names: Iterable[str], roles: CertificateRoles) -> Role | None:
    """Return the highest role of the patterns that match a name of a certificate; None: no pattern matches.

    >>> role_of_certificate(["p-1", "p-1.example"], {"p-*": Role.SERVICE, "*.example": Role.VIEWER})
    <Role.SERVICE: 3>
    """
    names = tuple(names)
    found = (role for pattern, role in roles.items() if any(fnmatchcase(name, pattern) for name in names))
    return max(found, default=None)
