"""What a planner is given: what the operator configured, and everything of the outside that it talks to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from autothrottle.core.limits import Limits
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.schedule import NO_SCHEDULE, Schedule
from autothrottle.ports.catch_ups import CatchUpStore
from autothrottle.ports.cluster import ConfigWriter, Reassigner, SnapshotSource
from autothrottle.ports.decisions import DecisionSink
from autothrottle.ports.fetch_settings import FetchSettingsSource
from autothrottle.ports.leadership import Election
from autothrottle.ports.metrics import EventSink, LoadSource
from autothrottle.ports.overrides import OverrideStore
from autothrottle.ports.pauses import PauseStore
from autothrottle.ports.tracing import UNTRACED, Tracer

CLUSTER_TIMEOUT = timedelta(seconds=20)
"""For reading the cluster and for writing to it: enough for 100,000 partitions read anew."""

IN_SHADOW = "the planner runs in shadow and changes nothing in Kafka; start it without --shadow"


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """What the operator configured."""

    limits: Limits
    policy: Policy = AdaptivePolicy()  # noqa: RUF009 (frozen)
    """How rates are decided, before it has learned anything."""
    interval: timedelta = timedelta(seconds=180)
    """Between two scheduled cycles, >= 1 s."""
    metrics_window: timedelta = timedelta(seconds=120)
    """How long loads that were read may be used by cycles that an event starts."""
    cleanup_after: int = 60
    """Idle intervals after which foreign throttles are removed, >= 1; only with `cleanup_foreign`."""
    cleanup_foreign: bool = False
    schedule: Schedule = NO_SCHEDULE
    """Hours in which replication gets another share of the headroom."""
    finish_by: datetime | None = None
    """When moves shall be done, UTC: until then they take no more than that needs; None: as soon as possible."""
    shadow: bool = False
    """Whether everything is decided and recorded, and nothing written, posted or submitted."""
    cluster: str = "kafka"
    """The cluster's name in the decision log."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything of the outside that a planner talks to."""

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
    """Where decisions are logged; None: nowhere."""
