"""The operator's configuration of the control loop."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from autothrottle.core.operators.schedule import NO_SCHEDULE, Schedule
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.policy.limits import Limits


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """The operator's configuration."""

    limits: Limits
    policy: Policy = AdaptivePolicy()  # noqa: RUF009 (frozen)
    """The policy at the start, before it has learned anything."""
    interval: timedelta = timedelta(seconds=180)
    """Time between two scheduled cycles, >= 1 s."""
    metrics_window: timedelta = timedelta(seconds=120)
    """How long event cycles may use the last loads."""
    cleanup_after: int = 60
    """Idle intervals after which foreign throttles are removed, >= 1; only with `cleanup_foreign`."""
    cleanup_foreign: bool = False
    schedule: Schedule = NO_SCHEDULE
    """Hours with another share of the headroom."""
    finish_by: datetime | None = None
    """Deadline of reassignments, UTC: they get no more than twice the rate that it needs. None: as fast as possible."""
    shadow: bool = False
    """Whether to decide and record, but not write, post or submit anything."""
    cluster: str = "kafka"
    """The cluster's name in the decision log, events, traces and the state."""
