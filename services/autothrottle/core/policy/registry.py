"""The policies by their names: the only place that lists them. Options, decision log, replay and advice read it.

Other packages add a policy through an entry point of the group `POLICY_GROUP`, whose name is the policy's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoints, entry_points

from autothrottle.core.errors import Incomplete, Missing
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy, StaticPolicy
from autothrottle.core.policy.interface import Policy

POLICIES: Mapping[str, type[Policy]] = {
    policy.name: policy for policy in (AdaptivePolicy, HeadroomPolicy, StaticPolicy)
}
"""Name -> the policy, of those that come with autothrottle; the default is the first."""

POLICY_GROUP = "autothrottle.policies"
"""Group of the entry points with further policies: subclasses of `Policy`."""


@cache
def _entry_points() -> EntryPoints:
    return entry_points(group=POLICY_GROUP)


def policy_names() -> list[str]:
    """Return the names of all installed policies; those of other packages come last."""
    return [*POLICIES, *sorted(_entry_points().names)]


def is_installed(name: str) -> bool:
    """Return whether there is a policy of a name."""
    return name in POLICIES or name in policy_names()


def policy_class(name: str) -> type[Policy]:
    """Return the policy of a name.

    Raises:
        Missing: no installed package has such a policy, or its module cannot be loaded; the message has the name.
    """
    if policy := POLICIES.get(name):
        return policy
    for entry_point in _entry_points().select(name=name):
        try:
            installed: type[Policy] = entry_point.load()
        except (ImportError, AttributeError) as error:
            raise Missing(f"the policy {name} cannot be loaded from {entry_point.value} ({error})") from None
        return installed
    raise Missing(f"the policy {name[:40]!r} is not installed")


def policy_text(policy: Policy) -> str:
    """Return the name of a policy, and its rate in bytes/s if that is fixed: what `policy_of` reads."""
    return policy.name if policy.fixed_rate is None else f"{policy.name} {policy.fixed_rate}"


def policy_of(text: str) -> Policy:
    """Return the policy of a text from `policy_text`, without anything learned.

    Raises:
        Incomplete: this installation has no such policy.
    """
    name, _, rate = text.partition(" ")
    try:
        return policy_class(name).new(int(rate or 0))
    except (Missing, ValueError):
        raise Incomplete(f"the policy {text[:40]!r} is unknown to this version") from None
