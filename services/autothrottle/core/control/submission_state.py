"""A submission from cycle to cycle: a reassignment that is throttled first and then submitted to Kafka.

Cycles see a proposed reassignment as if it were in progress. The first cycle that reads back all of its throttles
submits it, after the brokers had time to apply them. A submitted reassignment stays in the cycles' view until the
snapshot contains it, so that no cycle removes its throttles in between. The type to know is `SubmissionState`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from autothrottle.core.cluster.snapshot import Snapshot, TopicPartition
from autothrottle.core.control.submission import ProposedReassignment, Targets, proposal, unseen

SETTLED_AFTER = timedelta(seconds=1)
"""Time from the write of a throttle to the submission. A broker applies a config 7 to 70 ms after the write. A KRaft
broker that reads both in one batch of its metadata log starts to fetch before it applies the config."""

VISIBLE_WITHIN = timedelta(seconds=30)
"""Time within which a submitted reassignment must appear in a snapshot."""

CHECK_FIRST = "list the reassignments before you try again"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A reassignment that a caller waits for."""

    ticket: int
    """Identifies the call, > 0."""
    targets: Targets


@dataclass(frozen=True, slots=True)
class SubmissionState:
    """The current submission of a term, and submitted partitions that no snapshot contains yet."""

    unseen: Mapping[TopicPartition, tuple[tuple[int, ...], float]] = field(default_factory=dict)
    """Submitted partition -> (its target, monotonic time of the submission in seconds)."""
    ticket: int = 0
    """The call whose reassignment was throttled in the last cycle; 0: none."""
    proposal: ProposedReassignment = ProposedReassignment({})  # noqa: RUF009 (frozen)
    throttled_since: float | None = None
    """Monotonic time since which all its throttles are written, in seconds; None: they are not."""
    in_vain: bool = True
    """Whether Kafka has certainly accepted nothing of it."""

    @property
    def submitted(self) -> Targets:
        """The submitted partitions that no snapshot contains yet."""
        return {row: target for row, (target, _) in self.unseen.items()}

    def without(self, rows: Collection[TopicPartition]) -> SubmissionState:
        """Return the state without these partitions: they were cancelled or refused."""
        if self.unseen.keys().isdisjoint(rows):
            return self
        return replace(self, unseen={row: known for row, known in self.unseen.items() if row not in rows})

    def with_sent(self, start: Targets, clock: float) -> SubmissionState:
        """Return the state in which Kafka may have received these partitions."""
        return replace(self, unseen={**self.unseen, **{row: (target, clock) for row, target in start.items()}})

    def observe(self, snapshot: Snapshot, wanted: Wanted | None, clock: float) -> SubmissionState:
        """Return the state of the next cycle.

        Args:
            snapshot: has the assignments of all these partitions.
            wanted: the reassignment that a caller waits for; None: no caller waits.
            clock: monotonic time in seconds.

        Raises:
            Missing, Invalid, Conflict: the wanted reassignment is not possible. Observe again without it.
        """
        left, oldest = unseen(snapshot, self.submitted), clock - VISIBLE_WITHIN.total_seconds()
        waiting = {row: known for row, known in self.unseen.items() if row in left and known[1] >= oldest}
        if wanted is None:
            return SubmissionState(waiting)
        found = proposal(snapshot, wanted.targets)
        if wanted.ticket != self.ticket:
            return SubmissionState(waiting, wanted.ticket, found)
        return replace(self, unseen=waiting, proposal=found)
