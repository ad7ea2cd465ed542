"""What a cycle decided. The type to know is `CycleDecision`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cycle.decision import Action, WakeUp
from autothrottle.core.cycle.input import ControllerState, SnapshotViews
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.forecast.progress import Remainder
from autothrottle.core.operators.overrides import Overrides
from autothrottle.core.policy.limits import Limits
from autothrottle.core.records import Outcome, Pause
from autothrottle.core.throttles.changes import Change
from autothrottle.core.throttles.ownership import ForeignThrottles
from autothrottle.core.throttles.plan import Plan
from autothrottle.core.throttles.ramp import RampState
from autothrottle.core.traffic.loads import Loads


@dataclass(frozen=True)
class CycleDecision:
    """What a cycle decided. `apply` carries out the changes first, then the actions in their order."""

    state: ControllerState
    """The next state; `settle` completes it."""
    at: datetime
    scheduled: bool
    view: SnapshotViews = SnapshotViews()  # noqa: RUF009 (frozen)
    remainder: Remainder | None = None
    """Bytes left to copy, with the ETA. None: no reassignment runs, or they are unknown."""
    pause: Pause | None = None
    overrides: Overrides = Overrides()  # noqa: RUF009 (frozen)
    """The active overrides."""
    loads: Loads = Loads()  # noqa: RUF009 (frozen)
    limits: Limits | None = None
    """The operator's limits at this time; None: no rates were decided."""
    plan: Plan = Plan()  # noqa: RUF009 (frozen)
    ramp: RampState = RampState()  # noqa: RUF009 (frozen)
    """The ramps that continue once the changes are written."""
    changes: tuple[Change, ...] = ()
    would: tuple[Change, ...] = ()
    """In shadow mode: the changes that are not written."""
    refused: tuple[Outcome, ...] = ()
    """Resources that cannot be read; nothing is written to them."""
    invalid_lists: int = 0
    """Topics with a foreign replica list that no broker applies."""
    actions: tuple[Action, ...] = ()
    findings: tuple[str, ...] = ()
    """One sentence each."""
    stale: tuple[str, ...] = ()
    """Topics whose replica lists are stale because of a pause."""
    foreign: ForeignThrottles = field(default_factory=dict)
    """Foreign throttles while there are no reassignments, without those that this cycle removes."""
    stalled: tuple[str, ...] = ()
    """New stalls, one sentence each."""
    wake_ups: tuple[WakeUp, ...] = ()
    answer: AutothrottleError | None = None
    """Why the requested reassignment cannot be submitted."""
    ticket: int = 0
    """Ticket of the requested reassignment that this decision throttles; 0: none."""
    needs: frozenset[ConfigResource] = frozenset()
    """Resources that must be throttled before that reassignment is submitted."""
    clock_change: timedelta | None = None
    """How far the wall clock was changed since the last cycle; None: it was not."""
    error: AutothrottleError | None = None
    """Why nothing could be decided; None: it was."""
    between_cycles: bool = False
    """Whether it has only the ramp steps that are due between two cycles."""
