"""One fixed rate for every link side, as an operator would set it by hand, independent of the client load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.policy.interface import Policy, PolicyInput, RateProposal
from autothrottle.core.records import Basis
from autothrottle.core.units import BytesPerSecond


@dataclass(frozen=True, slots=True)
class StaticPolicy(Policy):
    """The same rate for every link side."""

    name = "static"
    rate: BytesPerSecond
    """Bytes/s, > 0."""

    @property
    def fixed_rate(self) -> BytesPerSecond:
        return self.rate

    def propose(self, policy_input: PolicyInput) -> Mapping[LinkSide, RateProposal]:
        return dict.fromkeys(policy_input.sides, RateProposal(self.rate, basis=Basis.STATIC))
