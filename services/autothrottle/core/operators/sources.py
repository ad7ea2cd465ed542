"""What operators ask for, as read from the state store, and what applies if it cannot be read.

The types to know are `KnownSources` and `StoredMap`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from autothrottle.core.errors import AutothrottleError, Incomplete
from autothrottle.core.operators.overrides import Overrides
from autothrottle.core.quotas.keys import TemporaryQuotas
from autothrottle.core.quotas.yielding import YieldRules
from autothrottle.core.records import CatchUp, Pause

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
