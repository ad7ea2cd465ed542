"""What a planner has in mind: of the cycle in hand, and from one cycle of its term to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.core.changes import Change, Outcome, OutcomeStatus
from autothrottle.core.cycle import CycleRecord
from autothrottle.core.history import ThrottleHistory
from autothrottle.core.loads import Loads
from autothrottle.core.overrides import Override, Overrides
from autothrottle.core.ownership import ForeignThrottle
from autothrottle.core.pause import Pause
from autothrottle.core.plan import Plan
from autothrottle.core.policy.interface import Policy
from autothrottle.core.progress import Remainder
from autothrottle.core.topology import Snapshot
from autothrottle.planner import narration
from autothrottle.ports.leadership import Term


@dataclass(slots=True)
class Memory:
    """What one term remembers from cycle to cycle; a new term begins with none of it."""

    cycles: int = 0
    clock_origin: datetime | None = None
    """When the monotonic clock was 0, by the other one, at the last cycle; None: there was none."""
    version: int = 0
    is_presumed: bool = False
    """Whether the last snapshot said something that is only presumed."""
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
    """With what it has learned; None: nothing yet."""
    after_reassignment: bool = False
    withdrawn: bool = False
    """Whether the lists in the ledger are of no reassignment: of one that was not submitted, or of what catches up."""
    foreign: tuple[ForeignThrottle, ...] = ()
    foreign_cycles: int = 0
    troubles: int = 0
    findings: frozenset[str] = frozenset()
    would: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)


class CycleInHand:
    """One cycle on its way."""

    def __init__(self, term: Term, number: int) -> None:
        self.term, self.number = term, number
        self.read = Snapshot.empty()
        """The cluster as it is."""
        self.is_read = False
        """Whether that is known."""
        self.copied = Snapshot.empty()
        """The same with what brokers lack that catch up: all that is being copied, or will be when they run."""
        self.snapshot = Snapshot.empty()
        """The same with what is to be throttled though it does not move yet: what is decided on."""
        self.left: Remainder | None = None
        """Of what is being copied; None: nothing is, or nothing is known."""
        self.pause: Pause | None = None
        self.overrides = Overrides()
        """Those that act."""
        self.expired: Mapping[int | None, Override] = {}
        """Those whose time has come, which are to go."""
        self.loads = Loads()
        self.plan = Plan()
        self.changes: list[Change] = []
        self.would: tuple[Change, ...] = ()
        """In shadow: what would be written."""
        self.outcomes: list[Outcome] = []
        self.findings: list[str] = []
        self.foreign: tuple[ForeignThrottle, ...] = ()
        """What others set and what stands while nothing moves."""
        self.applied = narration.Applied()
        self.error = ""

    @property
    def refused(self) -> list[Outcome]:
        """The outcomes of what was not written."""
        return [outcome for outcome in self.outcomes if outcome.status is OutcomeStatus.REFUSED]

    def record(self, start: datetime, end: datetime, reason: str, shadow: bool) -> CycleRecord:
        """Return what is kept of it."""
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
