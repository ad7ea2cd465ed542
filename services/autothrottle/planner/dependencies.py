"""The ports that a planner uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from autothrottle.ports.kafka import ConfigWriter, FetchSettingsSource, QuotaSource, Reassigner, SnapshotSource
from autothrottle.ports.state_store import (
    CatchUpStore,
    Election,
    OverrideStore,
    PauseStore,
    TemporaryQuotaStore,
    YieldRuleStore,
)
from autothrottle.ports.telemetry import UNTRACED, DecisionSink, EventSink, LoadSource, Tracer

CLUSTER_TIMEOUT = timedelta(seconds=20)
"""Timeout for reading from and writing to the cluster: enough to read 100,000 partitions."""


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
    quotas: QuotaSource
    temporary_quotas: TemporaryQuotaStore
    yield_rules: YieldRuleStore
    tracer: Tracer = UNTRACED
    decisions: DecisionSink | None = None
    """The decision log; None: decisions are not logged."""
    broker_pools: Callable[[], Mapping[int, str]] = dict
    """Returns broker id -> the only pool that it is in, for the exported metrics."""
    on_failure: Callable[[], None] = lambda: None
    """Ends the process. The planner's thread calls it after its loop has failed and its term is given up."""
