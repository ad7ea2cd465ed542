"""The planner's configuration and the ports that it uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from autothrottle.core.control.schedule import NO_SCHEDULE, Schedule
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.policy.limits import Limits
from autothrottle.ports.kafka import ConfigWriter, FetchSettingsSource, Reassigner, SnapshotSource
from autothrottle.ports.state_store import CatchUpStore, Election, OverrideStore, PauseStore
from autothrottle.ports.telemetry import UNTRACED, DecisionSink, EventSink, LoadSource, Tracer

CLUSTER_TIMEOUT = timedelta(seconds=20)
"""Timeout for reading from and writing to the cluster: enough to read 100,000 partitions."""

IN_SHADOW = "the planner runs in shadow mode and does not change Kafka; restart it without --shadow"


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
    """The cluster's name in the decision log."""


@dataclass(frozen=True, slots=True)
class PlannerDependencies:
    """The ports that a planner uses."""

    election: Election
    snapshots: SnapshotSource
    loads: LoadSource
    events: EventSink
    writer: ConfigWriter
    reassigner: Reassigner
    overrides: OverrideStore
    pauses: PauseStore
    catch_ups: CatchUpStore
    settings: FetchSettingsSource
    tracer: Tracer = UNTRACED
    decisions: DecisionSink | None = None
    """The decision log; None: decisions are not logged."""
    on_failure: Callable[[], None] = lambda: None
    """Ends the process. The planner's thread calls it after its loop has failed and its term is given up."""
