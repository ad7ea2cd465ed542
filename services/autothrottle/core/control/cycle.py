"""The records of a finished cycle and of a planner's state, for display, logs and the API.

This module defines only the records; `plan` decides. The type to know is `CycleRecord`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.core.control.changes import Outcome
from autothrottle.core.control.ownership import ForeignThrottle
from autothrottle.core.control.pause import Pause
from autothrottle.core.control.plan import Decision


@dataclass(frozen=True, slots=True)
class CycleRecord:
    """One finished cycle."""

    term: int
    """The fence of the term that ran it."""
    number: int
    """Its number within the term, from 1."""
    start: datetime
    """UTC."""
    end: datetime
    """UTC; not before `start`."""
    reason: str
    """What started it: `interval`, or the event."""
    sentence: str
    """One sentence that says what the cycle did."""
    topics: tuple[str, ...]
    """The topics in reassignment."""
    decisions: tuple[Decision, ...]
    """Ordered by broker and role."""
    outcomes: tuple[Outcome, ...]
    """One for each resource with a change."""
    findings: tuple[str, ...]
    """Foreign edits of our keys, and what could not be read; one sentence each."""
    error: str = ""
    """Why the cycle failed; "": it did not."""
    bytes_left: int | None = None
    """Bytes left to copy, summed over the known flows; None: no reassignment, or nothing is known."""
    eta: datetime | None = None
    """When the last byte is copied at the rate of the last minutes, UTC; None: unknown."""
    pause: Pause | None = None
    """The pause that prevented any decision; None: not paused."""
    shadow: bool = False
    """Whether it ran in shadow mode, which writes nothing."""
    foreign: tuple[ForeignThrottle, ...] = ()
    """Foreign throttles while nothing is in reassignment, by resource and key; they stay, or wait for the clean-up."""
    eta_low: datetime | None = None
    """Earliest end that the rates of the last minutes allow, UTC; None: unknown."""
    eta_high: datetime | None = None
    """Latest end that the rates of the last minutes allow, UTC; None: unknown."""
    eta_is_static: bool = False
    """Whether `eta` is not measured yet, but computed as bytes left divided by the current throttles."""


@dataclass(frozen=True, slots=True)
class PlannerState:
    """The leadership as one planner knows it, and its last cycle."""

    leading: bool = False
    """Whether this planner leads."""
    term: int = 0
    """The newest term that it knows; 0: none."""
    leader_address: str = ""
    """The leader's address; "": unknown."""
    last_cycle: CycleRecord | None = None
    """The last cycle that this planner ran; None: none yet."""
    failures: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> consecutive scheduled cycles without usable metrics."""
    leader_since: datetime | None = None
    """When the leader's term began, UTC; None: unknown."""
    leader_host: str = ""
    """Name of the leader's host; "": unknown."""
    cluster_name: str = ""
    """Name of the Kafka cluster; "": unknown."""
