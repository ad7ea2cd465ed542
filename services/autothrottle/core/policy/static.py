"""One rate for every port, whatever clients do: what an operator would set by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autothrottle.core.loads import BytesPerSecond, Port
from autothrottle.core.policy.interface import Basis, Observation, Proposal, Sight


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """The same rate for all."""

    rate: BytesPerSecond
    """> 0."""

    @property
    def name(self) -> str:
        """As `--policy` has it."""
        return "static"

    def observe(self, seen: Observation) -> StaticPolicy:
        """It learns nothing."""
        return self

    def propose(self, sight: Sight) -> Mapping[Port, Proposal]:
        """The rate, for each port."""
        return dict.fromkeys(sight.ports, Proposal(self.rate, basis=Basis.STATIC))
