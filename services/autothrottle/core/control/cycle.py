"""The values of one cycle: what was read, the decision, the results, and the record for display, logs and the API.

This module defines only the values; `step` decides. The types to know are `CycleObservation`, `CycleDecision` and
`Cycle`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice

from autothrottle.core.cluster.configs import ConfigResource, ResourceType
from autothrottle.core.cluster.fetch_settings import ClusterSettings
from autothrottle.core.cluster.snapshot import (
    Snapshot,
    TopicPartition,
    TopicReassignment,
    participants,
)
from autothrottle.core.control.catch_up import partitions_on, with_lagging
from autothrottle.core.control.changes import Applied, Change
from autothrottle.core.control.overrides import Overrides
from autothrottle.core.control.ownership import ForeignThrottles
from autothrottle.core.control.plan import Plan
from autothrottle.core.control.quota_changes import QuotaState
from autothrottle.core.control.state import ControllerState, KnownLoads, KnownSources, TermState
from autothrottle.core.control.stored_map import keeping_unreadable, unreadable_entries
from autothrottle.core.control.submission import Targets, Wanted, with_proposed
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.forecast.progress import Remainder
from autothrottle.core.policy.limits import Limits
from autothrottle.core.quotas.clients import ClientReading
from autothrottle.core.quotas.temporary import TemporaryQuota, TemporaryQuotas
from autothrottle.core.quotas.yielding import YieldRules
from autothrottle.core.records import (
    CatchUp,
    Outcome,
    OutcomeStatus,
    Pause,
    Submission,
)
from autothrottle.core.traffic.loads import Loads


@dataclass(frozen=True, slots=True)
class SourceReadings:
    """The small sources of a cycle; each is a value, or the error of its reading."""

    pause: Pause | AutothrottleError | None
    overrides: Overrides | AutothrottleError
    catch_ups: Mapping[int, CatchUp] | AutothrottleError
    quotas: TemporaryQuotas | AutothrottleError = field(default_factory=dict)
    """The temporary client quotas."""
    rules: YieldRules | AutothrottleError = field(default_factory=dict)
    """The rules for clients that yield to a recovery."""


@dataclass(frozen=True, slots=True)
class SettingsReading:
    """The broker and topic settings as last read in the background."""

    settings: ClusterSettings = ClusterSettings()  # noqa: RUF009 (frozen)
    complete_for: tuple[Collection[int], Collection[str]] | None = None
    """(broker ids, topics) that the last read asked for; None: a read is due or has not ended."""


@dataclass(frozen=True, slots=True)
class CycleObservation:
    """The input of one cycle."""

    at: datetime
    """UTC, when everything was read."""
    clock: float
    """Monotonic time at the same moment, in seconds."""
    scheduled: bool
    """Whether it is the regular cycle of an interval. Only those count failures and idle intervals."""
    sources: SourceReadings
    snapshot: Snapshot | AutothrottleError
    """The error may also be that of a source which the term has never read."""
    held: frozenset[TopicPartition] = frozenset()
    """Partitions with a replica on a broker of `SnapshotRequest.with_known_isr`."""
    loads: KnownLoads | None = None
    """The loads; None: not read for this cycle."""
    settings: SettingsReading = SettingsReading()
    quotas: QuotaState | AutothrottleError | None = None
    """The client quotas of `quotas_needed`; None: not read."""
    clients: ClientReading | AutothrottleError | None = None
    """The clients that Kafka knows; None: not read for this cycle."""
    wanted: Wanted | None = None
    """The reassignment that a caller waits for; None: no caller waits."""
    cancelled: frozenset[TopicPartition] = frozenset()
    """Partitions whose reassignment was cancelled since the last cycle."""


MAX_HELD = 400_000
"""Limit of the partitions on brokers with an override whose ISR a cycle reads."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """What the snapshot of a cycle must contain."""

    replicas_of: tuple[int, ...]
    """Brokers that catch up, and brokers with an override."""
    partitions: tuple[TopicPartition, ...]
    catching_up: tuple[int, ...]

    def with_known_isr(self, snapshot: Snapshot) -> frozenset[int]:
        """Return the brokers whose in-sync replicas a cycle must know: the ISR of all their partitions is read.

        These are the brokers that catch up, and those with an override that take part in a reassignment.
        """
        return frozenset(participants(snapshot)).intersection(self.replicas_of).union(self.catching_up)

    def held(self, snapshot: Snapshot) -> frozenset[TopicPartition]:
        """Return the partitions on these brokers; those of brokers that catch up first, the others up to `MAX_HELD`.

        A partition beyond the limit counts as one whose ISR is unknown: the override of its broker lists it.
        """
        held = partitions_on(snapshot, self.catching_up)
        others = partitions_on(snapshot, self.with_known_isr(snapshot)) - held
        return held.union(islice(sorted(others), max(0, MAX_HELD - len(held))) if others else ())


def needed(term: TermState, sources: KnownSources, wanted: Wanted | None, now: datetime) -> SnapshotRequest:
    """Return what the snapshot must contain.

    Args:
        term: the state; `held` has the partitions whose ISR is read, as far as they are known.
        sources: the result of `adopted`.
        wanted: the reassignment that a caller waits for.
        now: UTC.
    """
    overridden = sources.overrides.acting(now).active_brokers if sources.overrides else frozenset()
    rows = {*term.submissions.unseen, *(wanted.targets if wanted else ()), *term.held}
    catching_up = tuple(sorted(sources.catch_ups))
    return SnapshotRequest(tuple(sorted(overridden.union(catching_up))), tuple(sorted(rows)), catching_up)


def quotas_needed(term: TermState, sources: KnownSources, clock: float) -> frozenset[ConfigResource] | None:
    """Return the quota entities whose state a cycle needs, beside those in the ledger; None: it needs no quotas.

    Args:
        term: the state.
        sources: the result of `adopted`.
        clock: monotonic time in seconds.
    """
    if sources.quotas is None or sources.rules is None or sources.pause is not None:
        return None
    if not sources.quotas and term.yields.are_quotas_fresh(sources.rules, clock):
        return None
    yielding = term.yields.asked(sources.rules)
    if not (sources.quotas or yielding or term.may_own_quotas):
        return None
    found = {entity.resource for entity in sources.quotas}
    found |= {resource for resource in term.ledger if resource.type is ResourceType.QUOTA}
    return frozenset(found.union(*((target.resource, *target.fallbacks) for target in yielding)))


@dataclass(frozen=True, slots=True)
class AdoptedSources:
    """The sources that apply in a cycle."""

    known: KnownSources
    findings: tuple[str, ...] = ()
    """One sentence for each source that was not read, so that its last known value applies."""
    error: AutothrottleError | None = None
    """Why the cycle cannot decide: the pause or the overrides were never read in this term. None: it can."""


def adopted(known: KnownSources, read: SourceReadings) -> AdoptedSources:
    """Return the sources that apply: what was read, and for the rest the last known values."""
    findings: list[str] = []
    if not isinstance(read.pause, AutothrottleError):
        known = replace(known, pause=read.pause, pause_is_known=True)
    elif not known.pause_is_known:
        return AdoptedSources(known, error=read.pause)
    else:
        findings.append(f"the pause cannot be read; the last known state applies: {read.pause}")
    overrides = read.overrides
    if isinstance(overrides, AutothrottleError):
        if known.overrides is None:
            return AdoptedSources(known, tuple(findings), overrides)
        reason = f"the overrides cannot be read; the last known ones apply: {overrides}"
        overrides = Overrides(unreadable={None: reason, **{b: reason for b in known.overrides.brokers}})
    known = replace(known, overrides=overrides.keeping_unreadable(known.overrides or Overrides()))
    if isinstance(read.catch_ups, AutothrottleError):
        effect = (
            "the last known ones stay" if known.catch_ups_are_known else "nothing is removed until they can be read"
        )
        findings.append(f"the catch-ups cannot be read; {effect}: {read.catch_ups}")
    else:
        findings += unreadable_entries(read.catch_ups).values()
        known = replace(known, catch_ups=read.catch_ups, catch_ups_are_known=True)
    if isinstance(read.quotas, AutothrottleError):
        effect = "no quota changes until they can be read" if known.quotas is None else "the last known ones stay"
        findings.append(f"the temporary quotas cannot be read; {effect}: {read.quotas}")
    else:
        findings += unreadable_entries(read.quotas).values()
        quotas = keeping_unreadable(read.quotas, known.quotas or {}, lambda entity: entity.path)
        known = replace(known, quotas=quotas)
    if isinstance(read.rules, AutothrottleError):
        effect = "no quota changes until they can be read" if known.rules is None else "the last known ones stay"
        findings.append(f"the yield rules cannot be read; {effect}: {read.rules}")
    else:
        findings += unreadable_entries(read.rules).values()
        known = replace(known, rules=keeping_unreadable(read.rules, known.rules or {}, str))
    return AdoptedSources(known, tuple(findings))


@dataclass(frozen=True)
class SnapshotViews:
    """One snapshot, with the replicas that are copied for another reason than a running reassignment."""

    read: Snapshot = Snapshot.empty()  # noqa: RUF009 (frozen)
    """The cluster as read."""
    proposed: Targets = field(default_factory=dict)
    """Partitions to submit, which Kafka has not received."""
    unseen: Targets = field(default_factory=dict)
    """Submitted partitions that the snapshot does not contain yet."""
    lagging: Mapping[int, frozenset[TopicPartition]] = field(default_factory=dict)
    """Broker that catches up -> its out-of-sync replicas outside of reassignments."""

    @cached_property
    def to_throttle(self) -> Snapshot:
        """The cluster as if every reassignment and catch-up had started: the input of the decisions."""
        with_submissions = with_proposed(self.read, {**self.unseen, **self.proposed})
        if with_submissions is self.read:
            return self.copying
        return with_lagging(with_submissions, self.lagging)

    @cached_property
    def copying(self) -> Snapshot:
        """All that is being copied, or will be once the brokers run; without what is only proposed."""
        return with_lagging(self.read, self.lagging)

    @cached_property
    def may_be_exempt(self) -> tuple[TopicReassignment, ...]:
        """`copying` without proposed partitions: those are throttled whatever their ISR is."""
        if not self.proposed:
            return self.copying.reassignments
        lags = {broker_id: rows.difference(self.proposed) for broker_id, rows in self.lagging.items()}
        return with_lagging(self.read, lags).reassignments


@dataclass(frozen=True, slots=True)
class WakeUp:
    """A request for another cycle."""

    reason: str
    after: timedelta = timedelta(0)
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Submit:
    """Submits a throttled reassignment to Kafka, unless its caller has withdrawn it."""

    ticket: int
    start: Targets
    needs: frozenset[ConfigResource] = frozenset()
    """Resources whose change must not have been refused; so in the other actions."""


@dataclass(frozen=True, slots=True)
class PurgeOverride:
    """Removes an override at the version that was read."""

    broker_id: int | None
    """None: the cluster override."""
    version: int
    reason: str
    needs: frozenset[ConfigResource] = frozenset()


@dataclass(frozen=True, slots=True)
class PurgeCatchUp:
    """Ends the catch-up of a broker that is in sync."""

    catch_up: CatchUp
    needs: frozenset[ConfigResource] = frozenset()


@dataclass(frozen=True, slots=True)
class PurgeQuota:
    """Ends a temporary client quota whose earlier values are restored."""

    quota: TemporaryQuota
    reason: str
    needs: frozenset[ConfigResource] = frozenset()


Action = Submit | PurgeOverride | PurgeCatchUp | PurgeQuota


@dataclass(frozen=True)
class CycleDecision:
    """What a cycle decided. `apply` carries out the changes first, then the actions in their order."""

    state: ControllerState
    """The next state; `settle` completes it."""
    at: datetime
    scheduled: bool
    view: SnapshotViews = SnapshotViews()
    left: Remainder | None = None
    """Bytes left to copy, with the ETA. None: no reassignment runs, or they are unknown."""
    pause: Pause | None = None
    overrides: Overrides = Overrides()  # noqa: RUF009 (frozen)
    """The active overrides."""
    loads: Loads = Loads()  # noqa: RUF009 (frozen)
    limits: Limits | None = None
    """The operator's limits at this time; None: no rates were decided."""
    plan: Plan = Plan()  # noqa: RUF009 (frozen)
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
    """Why the wanted reassignment cannot be submitted."""
    ticket: int = 0
    """Ticket of the wanted reassignment that this decision throttles; 0: none."""
    needs: frozenset[ConfigResource] = frozenset()
    """Resources that must be throttled before that reassignment is submitted."""
    clock_change: timedelta | None = None
    """How far the wall clock was changed since the last cycle; None: it was not."""
    error: AutothrottleError | None = None
    """Why nothing could be decided; None: it was."""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The result of one action that was tried."""

    action: Action
    done: bool = True
    """Whether it was carried out. False: its override or catch-up has changed, or its caller has withdrawn it."""
    refused: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Partition that Kafka refused -> the reason; only for `Submit`."""
    error: AutothrottleError | None = None


@dataclass(frozen=True, slots=True)
class CycleResults:
    """What became of a decision."""

    at: datetime
    """UTC, when the changes were written."""
    clock: float
    """Monotonic time at the same moment, in seconds."""
    outcomes: tuple[Outcome, ...] = ()
    """Those of the decision, then one for each change."""
    actions: tuple[ActionResult, ...] = ()
    error: AutothrottleError | None = None
    """Why the rest was not tried; None: everything was."""
    are_written: bool = True
    """Whether the changes were tried; otherwise their outcomes are unknown."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What to report of a cycle, besides its decision."""

    outcomes: tuple[Outcome, ...] = ()
    applied: Applied = Applied()  # noqa: RUF009 (frozen)
    wake_ups: tuple[WakeUp, ...] = ()
    answer: Submission | AutothrottleError | None = None
    """The result for the caller who waits for a reassignment; None: not yet."""

    @property
    def refused(self) -> tuple[Outcome, ...]:
        """The outcomes of refused changes."""
        return tuple(outcome for outcome in self.outcomes if outcome.status is OutcomeStatus.REFUSED)
