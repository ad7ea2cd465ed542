"""What operators ask for, as read from the state store, and what applies if it cannot be read.

Their schedule, hours of the day in which replication gets a different share of the headroom, comes from the command
line. The types to know are `KnownSources`, `StoredMap` and `Schedule`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta, tzinfo
from itertools import permutations
from typing import TypeVar
from zoneinfo import ZoneInfo

from autothrottle.core.cluster.flows import Flow, link_sides_of
from autothrottle.core.cluster.snapshot import Assignment, Snapshot, TopicPartition, TopicReassignment
from autothrottle.core.errors import AutothrottleError, Conflict, Incomplete, Invalid
from autothrottle.core.policy.interface import Limits
from autothrottle.core.quotas.keys import TemporaryQuotas
from autothrottle.core.quotas.yielding import YieldRules
from autothrottle.core.records import CatchUp, Pause
from autothrottle.core.traffic.loads import MAX_LINK_RATE, BrokerLoad
from autothrottle.core.units import MEGABYTE, BytesPerSecond, format_megabytes

_ETAG = re.compile(r"[1-9a-f][0-9a-f]{0,15}")


@dataclass(frozen=True, slots=True)
class StoredOverride:
    """A rate set by an operator for the cluster or for one broker."""

    rate: BytesPerSecond
    """Bytes/s; 0: marked for removal (the original's convention)."""
    autoremove: bool = False
    """Whether the cluster override ends with the last reassignment; no effect on a broker override."""
    version: int = 0
    """The store's version; a removal applies to this version and to no later one. 0: none, or unknown."""
    expire_time: datetime | None = None
    """When it expires, UTC; None: never."""
    beyond_capacity: bool = False
    """Whether it applies also above the capacity of a link."""

    def is_over(self, now: datetime) -> bool:
        """Return whether it has expired."""
        return self.expire_time is not None and self.expire_time <= now


@dataclass(frozen=True, slots=True)
class Overrides:
    """All overrides at one time."""

    cluster: StoredOverride | None = None
    """Applies to every broker that takes part in a reassignment."""
    brokers: Mapping[int, StoredOverride] = field(default_factory=dict)
    """Broker id -> its override; applies at once and in both roles, whether or not the broker takes part in a
    reassignment."""
    unreadable: Mapping[int | None, str] = field(default_factory=dict)
    """Broker id (None: the cluster) -> why its override cannot be read."""
    warnings: tuple[str, ...] = ()
    """Unknown objects among the overrides, which are ignored; one sentence each."""

    def of(self, broker_id: int) -> StoredOverride | None:
        """Return the override in force on a broker that takes part in a reassignment; None: no override."""
        own = self.brokers.get(broker_id)
        if own is not None and own.rate > 0:
            return own
        if self.cluster is not None and self.cluster.rate > 0:
            return self.cluster
        return None

    @property
    def active_brokers(self) -> frozenset[int]:
        """Ids of the brokers with a broker override."""
        return frozenset(b for b, o in self.brokers.items() if o.rate > 0)

    def expired(self, now: datetime) -> dict[int | None, StoredOverride]:
        """Return broker id (None: the cluster) -> its expired override."""
        found: dict[int | None, StoredOverride] = {b: o for b, o in self.brokers.items() if o.is_over(now)}
        return {None: self.cluster, **found} if self.cluster is not None and self.cluster.is_over(now) else found

    def acting(self, now: datetime) -> Overrides:
        """Return the overrides without expired ones."""
        expired = self.expired(now)
        if not expired:
            return self
        cluster = None if None in expired else self.cluster
        return replace(self, cluster=cluster, brokers={b: o for b, o in self.brokers.items() if b not in expired})

    def next_expiry(self, now: datetime) -> datetime | None:
        """Return when the next override expires; None: none of the remaining ones expires."""
        current = [*self.brokers.values(), *([self.cluster] if self.cluster is not None else [])]
        return min((o.expire_time for o in current if o.expire_time and not o.is_over(now)), default=None)

    def keeping_unreadable(self, last: Overrides) -> Overrides:
        """Return these overrides, with the last read value of each unreadable one."""
        cluster = last.cluster if None in self.unreadable else self.cluster
        kept = {b: last.brokers[b] for b in self.unreadable if b is not None and b in last.brokers}
        return replace(self, cluster=cluster, brokers={**self.brokers, **kept})


def override_owner(broker_id: int | None) -> str:
    """Return the owner of an override for messages: `the cluster`, or `broker` and its id."""
    return "the cluster" if broker_id is None else f"broker {broker_id}"


def validate_rate(rate: int) -> BytesPerSecond:
    """Return the rate of an override.

    Raises:
        Invalid: it is not in 1..10^12 bytes/s. A larger rate was probably given in another unit.
    """
    if not 0 < rate <= MAX_LINK_RATE:
        raise Invalid(
            f"override rate {rate} bytes/s is outside of 1..{MAX_LINK_RATE}; give a positive rate "
            f"(1 MB/s is {MEGABYTE}), or remove the override"
        )
    return rate


def capacity_warnings(broker_id: int | None, override: StoredOverride, loads: Mapping[int, BrokerLoad]) -> list[str]:
    """Return a sentence if an override is above the capacity of a link.

    Args:
        broker_id: the broker; None: the cluster override.
        override: its rate, and whether the capacity limits it.
        loads: broker id -> its load and capacity; absent: unknown.
    """
    capacities = {b: min(load.capacity.outbound, load.capacity.inbound) for b, load in loads.items()}
    exceeded = {b: c for b, c in capacities.items() if c < override.rate and broker_id in (None, b)}
    if not exceeded:
        return []
    least, capacity = min(exceeded.items(), key=lambda item: (item[1], item[0]))
    more = f" and those of {len(exceeded) - 1} other brokers" if len(exceeded) > 1 else ""
    effect = (
        "it does not limit replication there; check its unit, or give a rate below the capacity"
        if override.beyond_capacity
        else "the capacity limits it there; check its unit, or allow more with --beyond-capacity"
    )
    return [
        f"the override of {format_megabytes(override.rate)} MB/s is above the capacity of broker {least}, "
        f"{format_megabytes(capacity)} MB/s{more}: {effect}"
    ]


def validate_expire_time(expire_time: datetime, now: datetime) -> datetime:
    """Return the expire time of an override or a client quota.

    Raises:
        Invalid: it is not after `now`.
    """
    if expire_time <= now:
        raise Invalid(
            f"expire time {expire_time.isoformat()} is not after the present time {now.isoformat(timespec='seconds')}; "
            "give a later time, in UTC, or remove it"
        )
    return expire_time


def format_etag(version: int) -> str:
    """Return the etag of a version of an override; "" for 0.

    >>> format_etag(255)
    'ff'
    """
    return f"{version:x}" if version else ""


def parse_etag(etag: str) -> int:
    """Return the version that an etag names; 0 for "".

    Raises:
        Invalid: it does not have the form of an etag.
    """
    if etag and not _ETAG.fullmatch(etag):
        raise Invalid(f"etag {etag[:40]!r} is invalid: give the etag of a response, or none to change any version")
    return int(etag, 16) if etag else 0


def check_version(broker_id: int | None, wanted: int, current: int) -> None:
    """Check that the current version is the wanted one; `wanted` 0 accepts any version.

    Raises:
        Conflict: the current version is another one, or the override does not exist (`current` 0).
    """
    if wanted and wanted != current:
        actual = f"its etag is now {format_etag(current)}" if current else "it does not exist"
        raise Conflict(
            f"the override of {override_owner(broker_id)} with etag {format_etag(wanted)} has been changed or removed: "
            f"{actual}; read it again, then decide again"
        )


K = TypeVar("K")
V = TypeVar("V")


class StoredMap(dict[K, V]):
    """The readable entries of a map, and why others cannot be read; it equals a dict with the same readable entries."""

    def __init__(self, entries: Mapping[K, V] | None = None, unreadable: Mapping[str, str] | None = None) -> None:
        super().__init__(entries or {})
        self.unreadable = unreadable or {}
        """Stored name of an entry -> one sentence with its path, the cause and the fix. Such an entry is not absent."""


def readable(read: Callable[[], Mapping[K, V]]) -> Mapping[K, V]:
    """Return what `read` returns; if no entry can be read, an empty map whose `unreadable` says why."""
    try:
        return read()
    except Incomplete as error:
        return StoredMap({}, {"": str(error)})


def keeping_unreadable(entries: Mapping[K, V], last: Mapping[K, V], name: Callable[[K], str]) -> Mapping[K, V]:
    """Return the entries, with the last read value of each unreadable one; `name` returns the stored name of a key."""
    unreadable = unreadable_entries(entries)
    if not unreadable:
        return entries
    return StoredMap({**{key: value for key, value in last.items() if name(key) in unreadable}, **entries}, unreadable)


def unreadable_entries(entries: Mapping[K, V]) -> Mapping[str, str]:
    """Return the `unreadable` entries of a stored map; other maps have none."""
    return entries.unreadable if isinstance(entries, StoredMap) else {}


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
    pause, overrides, findings = readings.pause, readings.overrides, tuple[str, ...]()
    if not isinstance(pause, AutothrottleError):
        latest = replace(latest, pause=pause, pause_is_known=True)
    elif latest.pause_is_known:
        findings = (f"the pause cannot be read; the last known state applies: {pause}",)
    else:
        return AdoptedSources(latest, error=pause)
    if latest.overrides is None and isinstance(overrides, AutothrottleError):
        return AdoptedSources(latest, findings, overrides)
    catch_ups, catch_up_findings = _catch_ups(latest, readings.catch_ups)
    quotas, quota_findings = _entries("temporary quotas", latest.quotas, readings.quotas, lambda entity: entity.path)
    rules, rule_findings = _entries("yield rules", latest.rules, readings.rules, str)
    sources = KnownSources(
        latest.pause,
        latest.pause_is_known,
        _overrides(latest.overrides or Overrides(), overrides),
        {} if catch_ups is None else catch_ups,
        catch_ups is not None,
        quotas,
        rules,
    )
    return AdoptedSources(sources, (*findings, *catch_up_findings, *quota_findings, *rule_findings))


def _overrides(last: Overrides, overrides: Overrides | AutothrottleError) -> Overrides:
    if isinstance(overrides, AutothrottleError):
        reason = f"the overrides cannot be read; the last known ones apply: {overrides}"
        overrides = Overrides(unreadable={None: reason, **{b: reason for b in last.brokers}})
    return overrides.keeping_unreadable(last)


def _catch_ups(
    latest: KnownSources, reading: Mapping[int, CatchUp] | AutothrottleError
) -> tuple[Mapping[int, CatchUp] | None, tuple[str, ...]]:
    """Return the catch-ups (None: never read) and findings. A catch-up that cannot be read any more does not stay."""
    if not isinstance(reading, AutothrottleError):
        return reading, tuple(unreadable_entries(reading).values())
    last = latest.catch_ups if latest.catch_ups_are_known else None
    return last, (_unread("catch-ups", "nothing is removed", last, reading),)


def _entries(
    what: str, last: Mapping[K, V] | None, reading: Mapping[K, V] | AutothrottleError, name: Callable[[K], str]
) -> tuple[Mapping[K, V] | None, tuple[str, ...]]:
    """Return the entries (None: never read) and findings. An entry that cannot be read any more stays."""
    if isinstance(reading, AutothrottleError):
        return last, (_unread(what, "no quota changes", last, reading),)
    return keeping_unreadable(reading, last or {}, name), tuple(unreadable_entries(reading).values())


def _unread(what: str, effect: str, last: object | None, error: AutothrottleError) -> str:
    effect = f"{effect} until they can be read" if last is None else "the last known ones stay"
    return f"the {what} cannot be read; {effect}: {error}"


Lagging = Mapping[int, Collection[TopicPartition]]
"""Broker id -> its replicas that are out of sync and not part of a reassignment."""

NOTHING_LAGS: Lagging = {}


def partitions_on(snapshot: Snapshot, broker_ids: Collection[int]) -> frozenset[TopicPartition]:
    """Return the partitions with a replica on one of these brokers.

    `snapshot.replicas` must contain these brokers.
    """
    return frozenset(
        (topic, partition)
        for broker_id in broker_ids
        for topic, partitions in snapshot.replicas.get(broker_id, {}).items()
        for partition in partitions
    )


def lagging(
    assignments: Mapping[TopicPartition, Assignment], broker_ids: Collection[int]
) -> Mapping[int, frozenset[TopicPartition]]:
    """Return broker id -> its out-of-sync replicas, without those that a reassignment adds or removes.

    Args:
        assignments: the assignments of the brokers' partitions; may contain others.
        broker_ids: the brokers that catch up.
    """
    found: dict[int, set[TopicPartition]] = {broker_id: set() for broker_id in broker_ids}
    for row, assignment in assignments.items():
        for broker_id in found.keys() & set(assignment.replicas):
            moving = (*assignment.adding_replicas, *assignment.removing_replicas)
            if broker_id not in assignment.isr and broker_id not in moving:
                found[broker_id].add(row)
    return {broker_id: frozenset(rows) for broker_id, rows in found.items()}


def with_lagging(snapshot: Snapshot, lags: Lagging) -> Snapshot:
    """Return the snapshot with the lagging replicas shown as adding replicas."""
    reassignments = reassignments_with_lagging(snapshot.reassignments, lags, snapshot.assignments)
    if reassignments is snapshot.reassignments:
        return snapshot
    copying = {Flow(snapshot.assignments[row].leader, broker_id) for broker_id, rows in lags.items() for row in rows}
    return replace(snapshot, reassignments=reassignments, catching_up=link_sides_of(copying))


def reassignments_with_lagging(
    reassignments: tuple[TopicReassignment, ...], lags: Lagging, assignments: Mapping[TopicPartition, Assignment]
) -> tuple[TopicReassignment, ...]:
    """Return the reassignments by topic, with the lagging replicas shown as adding replicas.

    Leaders and ISRs stay. If a partition is already in reassignment, the lagging replica joins its adding replicas.

    Args:
        reassignments: the actual reassignments; returned unchanged if nothing lags.
        lags: the lagging replicas of each broker.
        assignments: assignments of at least the lagging partitions.
    """
    pending: dict[str, dict[int, set[int]]] = {}
    for broker_id, rows in lags.items():
        for topic, partition in rows:
            pending.setdefault(topic, {}).setdefault(partition, set()).add(broker_id)
    if not pending:
        return reassignments
    real = {reassignment.topic: reassignment for reassignment in reassignments}
    changed = {topic: _with_pending(topic, real.get(topic), found, assignments) for topic, found in pending.items()}
    merged = {**real, **changed}
    return tuple(merged[topic] for topic in sorted(merged))


def _with_pending(
    topic: str,
    real: TopicReassignment | None,
    pending: Mapping[int, set[int]],
    assignments: Mapping[TopicPartition, Assignment],
) -> TopicReassignment:
    """Return the topic's reassignment with the pending replicas added."""
    rows = real.by_partition() if real else {}
    for partition, brokers in pending.items():
        current = assignments[topic, partition]
        leader, isr, adding, removing = rows.get(partition, (current.leader, current.isr, (), ()))
        rows[partition] = (leader, isr, (*adding, *sorted(brokers.difference(adding))), removing)
    return TopicReassignment.of_partitions(topic, rows)


_WINDOW = re.compile(r"([01]?[0-9]|2[0-4]):([0-5][0-9])-([01]?[0-9]|2[0-4]):([0-5][0-9])=([0-9]{1,3}(?:\.[0-9]{1,3})?)")
_DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class ScheduleWindow:
    """Some hours of every day; the window spans midnight if it ends before it starts."""

    start: int
    """Minute of the day, in 0..1439, inclusive."""
    end: int
    """Minute of the day, in 1..1440, exclusive."""
    max_ratio: float
    """Share of the headroom given to replication, in (0, 1]."""

    def holds(self, minute: int) -> bool:
        """Return whether the window contains a minute of the day."""
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end

    def limits(self, limits: Limits) -> Limits:
        """Return the limits with the window's share in both directions."""
        return replace(limits, max_tx_ratio=self.max_ratio, max_rx_ratio=self.max_ratio)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The windows of every day; outside them the usual share applies."""

    windows: tuple[ScheduleWindow, ...] = ()
    """The windows; they do not overlap."""
    zone: tzinfo = UTC
    """Time zone of the windows."""

    def window(self, now: datetime) -> ScheduleWindow | None:
        """Return the active window; None: no window is active."""
        local = now.astimezone(self.zone)
        minute = local.hour * 60 + local.minute
        return next((window for window in self.windows if window.holds(minute)), None)

    def next_change(self, now: datetime) -> datetime | None:
        """Return when the next window starts or ends, UTC; None: there are no windows."""
        local = now.astimezone(self.zone)
        days = [local.date() + timedelta(days=n) for n in range(3)]
        edges = {edge % _DAY for window in self.windows for edge in (window.start, window.end)}
        times = (datetime.combine(day, time(edge // 60, edge % 60), self.zone) for day in days for edge in edges)
        return min((at.astimezone(UTC) for at in times if at > now), default=None)


NO_SCHEDULE = Schedule()


def parse_schedule(text: str, zone: Callable[[str], tzinfo] = ZoneInfo) -> Schedule:
    """Return the schedule in a text: windows of hours with a percentage, then `@` and the time zone (default UTC).

    >>> day, night = parse_schedule("09:00-17:00=50, 22:00-06:00=95").windows
    >>> day, night.holds(0)
    (ScheduleWindow(start=540, end=1020, max_ratio=0.5), True)

    Raises:
        Invalid: a window or the zone is malformed, a window is empty, a percentage is not in (0, 100], or two windows
            overlap.
    """
    if not text.strip():
        return NO_SCHEDULE
    listed, _, name = text.partition("@")
    windows = tuple(_window(part.strip()) for part in listed.split(","))
    for window, other in permutations(windows, 2):
        if window.holds(other.start):
            raise Invalid(f"schedule: {_clock(other.start)} is in two windows; end one where the other starts")
    return Schedule(windows, _zone(name.strip(), zone) if "@" in text else UTC)


def _window(text: str) -> ScheduleWindow:
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise Invalid(f"schedule: {text[:40]!r} is not a window of hours with a percentage")
    start, end = (int(found[n]) * 60 + int(found[n + 1]) for n in (1, 3))
    if start >= _DAY or end > _DAY or start == end:
        raise Invalid(f"schedule: {text!r} must start in 00:00..23:59 and end at another time, at most 24:00")
    ratio = float(found[5]) / 100
    if not 0 < ratio <= 1:
        raise Invalid(f"schedule: {found[5]} % of {text!r} is outside of (0, 100]")
    return ScheduleWindow(start, end or _DAY, ratio)


def _zone(name: str, zone: Callable[[str], tzinfo]) -> tzinfo:
    if name.upper() == "UTC":
        return UTC
    try:
        return zone(name)
    except (OSError, ValueError, KeyError):
        raise Invalid(f"schedule: {name[:40]!r} is not a time zone known to this host (UTC always is)") from None


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
