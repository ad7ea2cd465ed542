"""The input of a cycle's concerns: the observation, completed with what the term knows. The type is `CycleInput`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry
from autothrottle.core.cluster.snapshot import Snapshot, TopicPartition, TopicReassignment
from autothrottle.core.cycle.input import CycleObservation, KnownLoads
from autothrottle.core.operators.catch_up import with_lagging
from autothrottle.core.operators.overrides import Overrides
from autothrottle.core.operators.sources import KnownSources
from autothrottle.core.operators.submission import Targets, with_proposed


@dataclass(frozen=True)
class SnapshotViews:
    """One snapshot, with the replicas that are copied for another reason than a running reassignment."""

    snapshot: Snapshot = Snapshot.empty()  # noqa: RUF009 (frozen)
    """The cluster as read."""
    proposed: Targets = field(default_factory=dict)
    """Partitions to submit, which Kafka has not received."""
    unseen: Targets = field(default_factory=dict)
    """Submission partitions that the snapshot does not contain yet."""
    lagging: Mapping[int, frozenset[TopicPartition]] = field(default_factory=dict)
    """Broker that catches up -> its out-of-sync replicas outside of reassignments."""

    @cached_property
    def to_throttle(self) -> Snapshot:
        """The cluster as if every reassignment and catch-up had started: the input of the decisions."""
        with_submissions = with_proposed(self.snapshot, {**self.unseen, **self.proposed})
        if with_submissions is self.snapshot:
            return self.copying
        return with_lagging(with_submissions, self.lagging)

    @cached_property
    def copying(self) -> Snapshot:
        """All that is being copied, or will be once the brokers run; without what is only proposed."""
        return with_lagging(self.snapshot, self.lagging)

    @cached_property
    def may_be_exempt(self) -> tuple[TopicReassignment, ...]:
        """`copying` without proposed partitions: those are throttled whatever their ISR is."""
        if not self.proposed:
            return self.copying.reassignments
        lags = {broker_id: rows.difference(self.proposed) for broker_id, rows in self.lagging.items()}
        return with_lagging(self.snapshot, lags).reassignments


@dataclass(frozen=True, slots=True)
class CycleInput:
    """What all concerns of a cycle read."""

    observation: CycleObservation
    at: datetime
    """UTC, when everything was read."""
    clock: float
    """Monotonic time at the same moment, in seconds."""
    fence: int
    """Number of the term."""
    number: int
    """Number of the cycle in its term."""
    sources: KnownSources
    """The sources as read, or their last known values."""
    overrides: Overrides
    """The overrides that act now."""
    loads: KnownLoads
    view: SnapshotViews
    ledger: Mapping[ConfigResource, LedgerEntry] = field(default_factory=dict)
    """The ledger of throttles and quotas, with the records of this term that the stored one has lost."""
    lost: frozenset[ConfigResource] = frozenset()
    """Resources whose stored entry lacks records."""

    @property
    def is_recovering(self) -> bool | None:
        """Whether a reassignment or a catch-up runs or is about to start; None: unknown."""
        if self.view.to_throttle.reassignments:
            return True
        return None if self.view.snapshot.problems or not self.sources.catch_ups_are_known else False
