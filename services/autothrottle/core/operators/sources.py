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
