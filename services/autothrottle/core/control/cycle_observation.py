"""The input of one cycle: what was read, and when. The type to know is `CycleObservation`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from autothrottle.core.cluster.fetch_settings import ClusterSettings
from autothrottle.core.cluster.snapshot import (
    Snapshot,
    TopicPartition,
    participants,
)
from autothrottle.core.control.catch_up import CatchUp
from autothrottle.core.control.overrides import Overrides
from autothrottle.core.control.pause import Pause
from autothrottle.core.control.state import KnownLoads, KnownSources, TermState
from autothrottle.core.control.submission_state import (
    Wanted,
)
from autothrottle.core.errors import AutothrottleError


@dataclass(frozen=True, slots=True)
class SourceReadings:
    """The small sources of a cycle; each is a value, or the error of its reading."""

    pause: Pause | AutothrottleError | None
    overrides: Overrides | AutothrottleError
    catch_ups: Mapping[int, CatchUp] | AutothrottleError


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
    wanted: Wanted | None = None
    """The reassignment that a caller waits for; None: no caller waits."""
    cancelled: frozenset[TopicPartition] = frozenset()
    """Partitions whose reassignment was cancelled since the last cycle."""


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
        known = replace(known, catch_ups=read.catch_ups, catch_ups_are_known=True)
    return AdoptedSources(known, tuple(findings))
