"""What a term remembers of its throttles. The type to know is `ThrottleState`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autothrottle.core.policy.interface import Policy
from autothrottle.core.throttles.guards import GuardState, ThrottleEffect
from autothrottle.core.traffic.throttle_history import ThrottleHistory


@dataclass(frozen=True, slots=True)
class ThrottleState:
    """What a term remembers of its throttles from cycle to cycle."""

    failures: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> consecutive scheduled cycles without usable metrics."""
    history: ThrottleHistory = field(default_factory=ThrottleHistory)
    policy: Policy | None = None
    """The policy with what it has learned; None: nothing yet."""
    after_reassignment: bool = False
    """Whether there was a reassignment since the last purge of an autoremove override."""
    withdrawn: bool = False
    """Whether the lists in the ledger belong to a catch-up or to a submission that failed, not to a reassignment."""
    guards: GuardState = GuardState()  # noqa: RUF009 (frozen)
    effect: ThrottleEffect = field(default_factory=ThrottleEffect)

    def without_measurements(self) -> ThrottleState:
        """Return the state without measurements, whose age is wrong after the wall clock was changed."""
        return replace(self, history=ThrottleHistory(), policy=None, guards=GuardState(), effect=ThrottleEffect())
