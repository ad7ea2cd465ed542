"""The planner's state: `CycleInHand` for the current cycle, `Memory` for the term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.control.changes import Change, Outcome, OutcomeStatus
from autothrottle.core.control.cycle import CycleRecord
from autothrottle.core.control.overrides import Override, Overrides
from autothrottle.core.control.ownership import ForeignThrottle
from autothrottle.core.control.pause import Pause
from autothrottle.core.control.plan import Plan
from autothrottle.core.forecast.progress import Remainder
from autothrottle.core.policy.interface import Policy
from autothrottle.core.traffic.loads import Loads
from autothrottle.core.traffic.throttle_history import ThrottleHistory
from autothrottle.planner import narration
from autothrottle.ports.state_store import Term


@dataclass(slots=True)
class Memory:
    """State that lasts from cycle to cycle within a term. Each term starts with an empty one."""

    cycles: int = 0
    clock_origin: datetime | None = None
    """Wall-clock time at monotonic zero, as of the last cycle; None: no cycle yet."""
    version: int = 0
    topics: frozenset[str] = frozenset()
    announced: tuple[str, ...] = ()
    overrides: Overrides | None = None
    pause: Pause | None = None
    pause_is_known: bool = False
    loads: Loads = field(default_factory=Loads)
    loads_read: float | None = None
    loads_error: str = ""
    failures: dict[int, int] = field(default_factory=dict)
    history: ThrottleHistory = field(default_factory=ThrottleHistory)
    policy: Policy | None = None
    """The policy with what it has learned; None: nothing yet."""
    after_reassignment: bool = False
    withdrawn: bool = False
    """Whether the lists in the ledger belong to a catch-up or to a submission that failed, not to a reassignment."""
    foreign: tuple[ForeignThrottle, ...] = ()
    foreign_cycles: int = 0
    troubles: int = 0
    findings: frozenset[str] = frozenset()
    would: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)


class CycleInHand:
    """The data of the current cycle."""

    def __init__(self, term: Term, number: int) -> None:
        self.term, self.number = term, number
        self.read = Snapshot.empty()
        """The cluster as read."""
        self.is_read = False
        """Whether `read` was read."""
        self.copied = Snapshot.empty()
        """`read` plus the lagging replicas of catch-ups: all that is being copied, or will be once the brokers run."""
        self.snapshot = Snapshot.empty()
        """`copied` plus submissions that Kafka does not show yet: the input of the decisions."""
        self.left: Remainder | None = None
        """Bytes left to copy, with the ETA. None: no reassignment runs, or they are unknown."""
        self.pause: Pause | None = None
        self.overrides = Overrides()
        """The active overrides."""
        self.expired: Mapping[int | None, Override] = {}
        """Expired overrides, to be purged. Broker id (None: the cluster override) -> override."""
        self.loads = Loads()
        self.plan = Plan()
        self.changes: list[Change] = []
        self.would: tuple[Change, ...] = ()
        """In shadow mode: the changes that were not written."""
        self.outcomes: list[Outcome] = []
        self.findings: list[str] = []
        self.foreign: tuple[ForeignThrottle, ...] = ()
        """Foreign throttles found while there are no reassignments."""
        self.applied = narration.Applied()
        self.error = ""

    @property
    def refused(self) -> list[Outcome]:
        """The outcomes of refused changes."""
        return [outcome for outcome in self.outcomes if outcome.status is OutcomeStatus.REFUSED]

    def record(self, start: datetime, end: datetime, reason: str, shadow: bool) -> CycleRecord:
        """Return the record of the finished cycle."""
        left = self.left
        sentence = narration.sentence(self.snapshot, self.changes, self.outcomes, left)
        if shadow:
            sentence = narration.shadow_sentence(self.snapshot, self.would, left)
        if self.pause is not None:
            sentence = narration.paused_sentence(self.pause, sentence)
        return CycleRecord(
            term=self.term.fence,
            number=self.number,
            start=start,
            end=end,
            reason=reason,
            sentence="" if self.error else sentence,
            topics=self.snapshot.topics,
            decisions=self.plan.decisions,
            outcomes=tuple(self.outcomes),
            findings=tuple(self.findings),
            error=self.error,
            bytes_left=left.bytes_left if left else None,
            eta=left.eta if left else None,
            pause=self.pause,
            shadow=shadow,
            foreign=self.foreign,
            eta_low=left.eta_low if left else None,
            eta_high=left.eta_high if left else None,
            eta_is_static=left.eta_is_static if left else False,
        )
