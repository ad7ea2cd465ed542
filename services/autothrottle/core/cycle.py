"""What one turn of the planner's loop did, as it is shown, logged and sent; and how a planner stands.

Here live the records only; what a cycle decides is in `plan`. The type to know is `CycleRecord`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.core.changes import Outcome
from autothrottle.core.ownership import ForeignThrottle
from autothrottle.core.pause import Pause
from autothrottle.core.plan import Decision


@dataclass(frozen=True, slots=True)
class CycleRecord:
    """One cycle after its end."""

    term: int
    """The fence of the term that ran it."""
    number: int
    """Its number within the term, from 1."""
    start: datetime
    """UTC."""
    end: datetime
    """UTC; not before `start`."""
    reason: str
    """What started it: `interval`, or what happened."""
    sentence: str
    """What it did."""
    topics: tuple[str, ...]
    """The topics in reassignment."""
    decisions: tuple[Decision, ...]
    """Ordered by broker and role."""
    outcomes: tuple[Outcome, ...]
    """One for each resource that was to change."""
    findings: tuple[str, ...]
    """What somebody else did to our keys, and what could not be read; one sentence each."""
    error: str = ""
    """Why it failed; empty when it did not."""
    bytes_left: int | None = None
    """What is left to be copied, of the flows that are known; None: nothing moves, or nothing is known."""
    eta: datetime | None = None
    """When the last byte lands at the rate of the last minutes, UTC; None: unknown."""
    pause: Pause | None = None
    """That nothing was decided, and why; None: it was not paused."""
    shadow: bool = False
    """Whether it ran in shadow: nothing was written."""
    foreign: tuple[ForeignThrottle, ...] = ()
    """What others set and what stands while nothing moves, by resource and key; it is left, or waits for clean-up."""
    eta_low: datetime | None = None
    """Not before this the last byte lands, as far as the rates of the last minutes tell, UTC; None: unknown."""
    eta_high: datetime | None = None
    """Not after this, likewise."""
    eta_is_static: bool = False
    """Whether `eta` is no measurement yet but what is left by the throttles that stand."""


@dataclass(frozen=True, slots=True)
class PlannerState:
    """Who leads, and what one planner did last."""

    leading: bool = False
    """Whether this planner leads."""
    term: int = 0
    """The newest term that it knows; 0: none."""
    leader_address: str = ""
    """Where the leader answers; empty when unknown."""
    last_cycle: CycleRecord | None = None
    """The last cycle that this planner ran; None: none yet."""
    failures: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> scheduled cycles in a row without usable metrics."""
    leader_since: datetime | None = None
    """When the leader's term began, UTC; None: unknown."""
