"""All that a planner remembers from cycle to cycle. The type to know is `ControllerState`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.cycle.input import QuotaControlState, ThrottleState
from autothrottle.core.operators.overrides import Overrides
from autothrottle.core.operators.submission import SubmissionState
from autothrottle.core.quotas.keys import TemporaryQuotas
from autothrottle.core.quotas.yielding import YieldRules
from autothrottle.core.records import CatchUp, Pause
from autothrottle.core.throttles.ramp import RampState, WriteHistory
from autothrottle.core.traffic.loads import Loads

_METRICS_PAUSE = timedelta(seconds=15)
"""Time after a failed read in which event cycles do not read metrics, so that a hanging source does not delay them."""


@dataclass(frozen=True, slots=True)
class KnownSources:
    """The pause, the overrides and the catch-ups as last read in this term."""

    pause: Pause | None = None
    pause_is_known: bool = False
    overrides: Overrides | None = None
    """None: not read yet."""
    catch_ups: Mapping[int, CatchUp] = field(default_factory=dict)
    """Broker id -> its catch-up."""
    catch_ups_are_known: bool = False
    """Until then no throttle is removed: it may belong to a catch-up."""
    quotas: TemporaryQuotas | None = None
    """The temporary client quotas; None: not read yet, so no quota is written or restored."""
    rules: YieldRules | None = None
    """The rules for clients that yield to a recovery; None: not read yet, so no quota is written or restored."""


@dataclass(frozen=True, slots=True)
class KnownLoads:
    """The loads as last read in this term."""

    loads: Loads = Loads()  # noqa: RUF009 (frozen)
    read_at: float | None = None
    """Monotonic time of the last attempt, in seconds; None: none yet."""
    error: str = ""
    """Why the last attempt failed; "": it did not."""

    def are_due(self, clock: float, window: timedelta) -> bool:
        """Return whether the loads are too old for an event cycle. Scheduled cycles read them in any case."""
        lifetime = _METRICS_PAUSE if self.error else window
        return self.read_at is None or clock - self.read_at >= lifetime.total_seconds()


@dataclass(frozen=True, slots=True)
class TermState:
    """State that lasts from cycle to cycle within a term. Each term starts with an empty one."""

    fence: int = 0
    """0: no term."""
    cycles: int = 0
    """Number of the last cycle."""
    clock_origin: datetime | None = None
    """Wall-clock time at monotonic zero, as of the last cycle; None: no cycle yet."""
    version: int = 0
    """Version of the last snapshot."""
    accepts_partial: bool = False
    """Whether the next snapshot may be partial: the last one was whole and without a reassignment."""
    ledger: Mapping[ConfigResource, LedgerEntry] = field(default_factory=dict)
    """The ledger after the last cycle, so that an entry that the store loses does not make our values foreign."""
    sources: KnownSources = KnownSources()
    loads: KnownLoads = KnownLoads()
    isr_partitions: frozenset[TopicPartition] = frozenset()
    """Partitions with a replica on a broker of `observation.brokers_with_isr`, as last read."""
    throttles: ThrottleState = ThrottleState()  # noqa: RUF009 (frozen)
    has_reassignments: bool = False
    """Whether there was a reassignment in the last cycle that could write."""
    foreign_cycles: int = 0
    """Scheduled cycles with foreign throttles and without a reassignment, without a gap."""
    troubles: int = 0
    """Consecutive failed cycles."""
    submissions: SubmissionState = SubmissionState()  # noqa: RUF009 (frozen)
    quotas: QuotaControlState = QuotaControlState()  # noqa: RUF009 (frozen)
    ramp: RampState = RampState()  # noqa: RUF009 (frozen)


@dataclass(frozen=True, slots=True)
class ControllerState:
    """All that a planner remembers between cycles."""

    term: TermState = TermState()
    written: WriteHistory = WriteHistory()  # noqa: RUF009 (frozen)
    """Survives terms."""

    def begin_term(self, fence: int) -> ControllerState:
        """Return the state at the start of a term."""
        return ControllerState(TermState(fence), self.written)

    def after_bug(self, is_counted: bool) -> ControllerState:
        """Return the state after an unexpected error in a cycle.

        Args:
            is_counted: whether `step` has already counted the cycle.
        """
        term = self.term
        term = replace(term, cycles=term.cycles + (not is_counted), troubles=term.troubles + 1)
        return ControllerState(term, self.written)
