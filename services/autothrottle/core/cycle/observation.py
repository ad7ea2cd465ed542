"""The input of one cycle: what was read, and what the snapshot must contain. The type to know is `CycleObservation`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from autothrottle.core.cluster.fetch_settings import ClusterSettings
from autothrottle.core.cluster.snapshot import Snapshot, TopicPartition
from autothrottle.core.cycle.state import KnownLoads, KnownSources, TermState
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.operators.catch_up import partitions_on
from autothrottle.core.operators.overrides import Overrides
from autothrottle.core.operators.stored_map import keeping_unreadable, unreadable_entries
from autothrottle.core.operators.submission import SubmissionRequest
from autothrottle.core.quotas.changes import QuotaState
from autothrottle.core.quotas.clients import ClientReading
from autothrottle.core.quotas.temporary import TemporaryQuotas
from autothrottle.core.quotas.yielding import YieldRules
from autothrottle.core.records import CatchUp, Pause


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
class AdoptedSources:
    """The sources that apply in a cycle."""

    latest: KnownSources
    findings: tuple[str, ...] = ()
    """One sentence for each source that was not read, so that its last known value applies."""
    error: AutothrottleError | None = None
    """Why the cycle cannot decide: the pause or the overrides were never read in this term. None: it can."""


def adopted(latest: KnownSources, readings: SourceReadings) -> AdoptedSources:
    """Return the sources that apply: what was read, and for the rest the last known values."""
    pauses = _with_pause(latest, readings.pause)
    if pauses.error is not None:
        return pauses
    overrides = _with_overrides(pauses.latest, readings.overrides)
    if overrides.error is not None:
        return replace(overrides, findings=pauses.findings)
    catch_ups = _with_catch_ups(overrides.latest, readings.catch_ups)
    quotas = _with_temporary_quotas(catch_ups.latest, readings.quotas)
    rules = _with_rules(quotas.latest, readings.rules)
    return AdoptedSources(rules.latest, (*pauses.findings, *catch_ups.findings, *quotas.findings, *rules.findings))


def _with_pause(latest: KnownSources, pause: Pause | AutothrottleError | None) -> AdoptedSources:
    if not isinstance(pause, AutothrottleError):
        return AdoptedSources(replace(latest, pause=pause, pause_is_known=True))
    if not latest.pause_is_known:
        return AdoptedSources(latest, error=pause)
    return AdoptedSources(latest, (f"the pause cannot be read; the last known state applies: {pause}",))


def _with_overrides(latest: KnownSources, overrides: Overrides | AutothrottleError) -> AdoptedSources:
    if isinstance(overrides, AutothrottleError):
        if latest.overrides is None:
            return AdoptedSources(latest, error=overrides)
        reason = f"the overrides cannot be read; the last known ones apply: {overrides}"
        overrides = Overrides(unreadable={None: reason, **{b: reason for b in latest.overrides.brokers}})
    return AdoptedSources(replace(latest, overrides=overrides.keeping_unreadable(latest.overrides or Overrides())))


def _with_catch_ups(latest: KnownSources, catch_ups: Mapping[int, CatchUp] | AutothrottleError) -> AdoptedSources:
    if isinstance(catch_ups, AutothrottleError):
        effect = (
            "the last known ones stay" if latest.catch_ups_are_known else "nothing is removed until they can be read"
        )
        return AdoptedSources(latest, (f"the catch-ups cannot be read; {effect}: {catch_ups}",))
    problems = tuple(unreadable_entries(catch_ups).values())
    return AdoptedSources(replace(latest, catch_ups=catch_ups, catch_ups_are_known=True), problems)


def _with_temporary_quotas(latest: KnownSources, quotas: TemporaryQuotas | AutothrottleError) -> AdoptedSources:
    if isinstance(quotas, AutothrottleError):
        return AdoptedSources(latest, (_unread("temporary quotas", latest.quotas is None, quotas),))
    merged = keeping_unreadable(quotas, latest.quotas or {}, lambda entity: entity.path)
    return AdoptedSources(replace(latest, quotas=merged), tuple(unreadable_entries(quotas).values()))


def _with_rules(latest: KnownSources, rules: YieldRules | AutothrottleError) -> AdoptedSources:
    if isinstance(rules, AutothrottleError):
        return AdoptedSources(latest, (_unread("yield rules", latest.rules is None, rules),))
    merged = keeping_unreadable(rules, latest.rules or {}, str)
    return AdoptedSources(replace(latest, rules=merged), tuple(unreadable_entries(rules).values()))


def _unread(source: str, is_first: bool, error: AutothrottleError) -> str:
    effect = "no quota changes until they can be read" if is_first else "the last known ones stay"
    return f"the {source} cannot be read; {effect}: {error}"


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
    sources: AdoptedSources
    snapshot: Snapshot | AutothrottleError
    """The error may also be that of a source that the term has never read."""
    isr_partitions: frozenset[TopicPartition] = frozenset()
    """Partitions with a replica on a broker of `SnapshotRequest.with_known_isr`."""
    loads: KnownLoads | None = None
    """The loads; None: not read for this cycle."""
    settings: SettingsReading = SettingsReading()
    quotas: QuotaState | AutothrottleError | None = None
    """The client quotas of `quotas_needed`; None: not read."""
    clients: ClientReading | AutothrottleError | None = None
    """The clients that Kafka knows; None: not read for this cycle."""
    request: SubmissionRequest | None = None
    """The reassignment that a caller waits for; None: no caller waits."""
    cancelled: frozenset[TopicPartition] = frozenset()
    """Partitions whose reassignment was cancelled since the last cycle."""


MAX_ISR_PARTITIONS = 400_000
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
        return frozenset(snapshot.participants).intersection(self.replicas_of).union(self.catching_up)

    def isr_partitions(self, snapshot: Snapshot) -> frozenset[TopicPartition]:
        """Return the partitions on these brokers, at most `MAX_ISR_PARTITIONS`; those of catch-ups are first.

        A partition beyond the limit counts as one whose ISR is unknown: the override of its broker lists it.
        """
        urgent = partitions_on(snapshot, self.catching_up)
        others = partitions_on(snapshot, self.with_known_isr(snapshot)) - urgent
        return urgent.union(islice(sorted(others), max(0, MAX_ISR_PARTITIONS - len(urgent))) if others else ())


def needed(term: TermState, sources: KnownSources, request: SubmissionRequest | None, now: datetime) -> SnapshotRequest:
    """Return what the snapshot must contain.

    Args:
        term: the state; `isr_partitions` has the partitions whose ISR is read, as far as they are known.
        sources: those that apply in the cycle.
        request: the reassignment that a caller waits for.
        now: UTC.
    """
    overridden = sources.overrides.acting(now).active_brokers if sources.overrides else frozenset()
    rows = {*term.submissions.unseen, *(request.targets if request else ()), *term.isr_partitions}
    catching_up = tuple(sorted(sources.catch_ups))
    return SnapshotRequest(tuple(sorted(overridden.union(catching_up))), tuple(sorted(rows)), catching_up)
