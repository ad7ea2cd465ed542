"""What a term remembers of the client quotas that it controls. The type to know is `QuotaControlState`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from autothrottle.core.quotas.yielding import YieldState


@dataclass(frozen=True, slots=True)
class QuotaControlState:
    """What a term remembers of client quotas from cycle to cycle."""

    may_own_quotas: bool = True
    """Whether the ledger may have client quotas, so that their state must be read."""
    yields: YieldState = YieldState()  # noqa: RUF009 (frozen)

    def with_clock(self, at: datetime) -> QuotaControlState:
        """Return the state after the wall clock was changed; the last step counts as if it had been now."""
        return replace(self, yields=replace(self.yields, stepped_at=self.yields.stepped_at and at))
