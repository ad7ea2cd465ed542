"""Whose the throttles are that stand, and so what shall become of each key: what is ours, the move's and others'.

A rate is taken over as a whole and what stood before is put back; of a replica list each entry is owned by itself. What
belongs to somebody else is not touched. What comes of it for a cluster is in `changes`, what we wrote is in `ledger`.
The type to know is `DesiredKey`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from autothrottle.core.configs import (
    MAX_VALUE_BYTES,
    WILDCARD,
    ConfigResource,
    ReplicaRole,
    format_replicas,
    limiting_rate,
    parse_replicas,
)
from autothrottle.core.errors import Invalid
from autothrottle.core.ledger import LedgerKey
from autothrottle.core.plan import DesiredReplicas
from autothrottle.core.ramp import needs_ramp, step
from autothrottle.core.topology import Snapshot

_SHOWN_ENTRIES, _SHOWN_BYTES = 8, 80
"""How much of a list a finding shows."""

_TOO_LONG = (
    f"the exact list exceeds Kafka's limit of {MAX_VALUE_BYTES} bytes, so that `*` stands for it: the traffic of the "
    "topic's in-sync replicas then counts against the rate too. No metrics source tells that traffic, so the rate is "
    "not raised by it and the move gets less than its rate; move fewer partitions of the topic at a time"
)


@dataclass(frozen=True, slots=True)
class DesiredKey:
    """What shall become of one key."""

    value: str | None
    """What shall stand; None: the key goes."""
    ledger: LedgerKey | None
    """What we know of it afterwards; None: nothing of it is ours any more."""
    finding: str = ""
    """What somebody else did to it, a sentence; empty: nothing."""
    warning: str = ""
    """What of it is not as it should be; empty: nothing."""


@dataclass(frozen=True, slots=True)
class ForeignThrottle:
    """One throttle key that somebody else has left, as it is shown."""

    resource: ConfigResource
    key: str
    value: str
    """What stands; of a long list its beginning."""


def shown_foreign(found: Mapping[ConfigResource, Mapping[str, str]]) -> tuple[ForeignThrottle, ...]:
    """Return throttles of others as they are shown, by resource and key."""
    return tuple(ForeignThrottle(r, key, _shown(value)) for r, keys in found.items() for key, value in keys.items())


def foreign_throttles(snapshot: Snapshot) -> Mapping[ConfigResource, Mapping[str, str]]:
    """Return the throttle keys that stand and that are not in the ledger, with their values."""
    found = {
        resource: {
            key: value
            for key, value in sorted(keys.items())
            if resource not in snapshot.ledger or key not in snapshot.ledger[resource].keys
        }
        for resource, keys in sorted(snapshot.throttles.items(), key=lambda item: item[0].order)
    }
    return {resource: keys for resource, keys in found.items() if keys}


def desired_rate(
    desired: int | None,
    standing: str | None,
    ours: LedgerKey | None,
    of_the_move: bool,
    hold: bool,
    elapsed: timedelta | None,
) -> DesiredKey:
    """Return what shall become of a rate: what the plan wants, or what stood before ours.

    Args:
        desired: what the plan wants, bytes/s; None: no throttle.
        standing: what stands; None: nothing.
        ours: what we know of it; None: we have written nothing.
        of_the_move: whether a rate of others belongs to the move, see `brokers_throttled_for_the_move`.
        hold: whether nothing may be removed.
        elapsed: since its last step on the way up; None: it rises at once.
    """
    if ours is None:
        return _rate_of_others(desired, standing, of_the_move, hold, elapsed)
    edited = not ours.is_ours(standing)
    if desired is not None:
        value, target = _step(standing, desired, elapsed, ours.target is not None)
        finding = f"{_rate_edit(standing, ours)}; repaired" if edited and standing != value else ""
        return DesiredKey(value, LedgerKey(ours.before, value, target=target), finding)
    if hold:
        return DesiredKey(standing, ours)
    if not edited or standing == ours.before:
        return DesiredKey(ours.before, None)
    return DesiredKey(standing, None, f"{_rate_edit(standing, ours)}; left as it is")


def _step(standing: str | None, desired: int, elapsed: timedelta | None, is_rising: bool) -> tuple[str, str | None]:
    """What to write of a rate, and what it is a step to; None: it is all of it."""
    now = limiting_rate(standing or "")
    if now is None or elapsed is None or not (is_rising or needs_ramp(now, desired)):
        return str(desired), None
    value = step(now, desired, elapsed)
    return str(value), None if value == desired else str(desired)


def _rate_of_others(
    desired: int | None, standing: str | None, of_the_move: bool, hold: bool, elapsed: timedelta | None
) -> DesiredKey:
    """A key that is not in the ledger; a rate that belongs to the move is not put back."""
    before = None if of_the_move else standing
    if desired is not None and of_the_move:
        value, target = _step(standing, desired, elapsed, is_rising=False)
        return DesiredKey(value, LedgerKey(None, value, target=target))
    if desired is not None:
        # Without lists it has held nothing back: the meter has seen what there was.
        return DesiredKey(str(desired), LedgerKey(before, str(desired)))
    if hold and of_the_move and standing is not None:
        # The lists that tell that it belongs to the move become ours now: from then on only the ledger knows.
        return DesiredKey(standing, LedgerKey(None, standing))
    return DesiredKey(before, None)


def _rate_edit(standing: str | None, ours: LedgerKey) -> str:
    written = ours.intent if ours.written is None else ours.written
    if standing is None:
        return f"somebody removed the rate of {written}"
    return f"somebody set a rate of {standing} in place of {written}"


def desired_replicas(
    lists: DesiredReplicas, role: ReplicaRole, standing: str | None, ours: LedgerKey | None, hold: bool
) -> DesiredKey:
    """Return what shall become of a replica list: the plan's entries, and those of others beside them.

    Args:
        lists: what the plan wants of the topic.
        role: which of its two lists.
        standing: what stands; None: nothing.
        ours: what we know of it; None: we have written nothing.
        hold: whether nothing may be removed.
    """
    desired, moving, exact = lists.of(role), lists.moving, lists.texts.get(role)
    if ours and _is_all_ours(standing, ours) and (ours.written == exact or desired == ours.owned):
        return DesiredKey(standing, ours)
    if ours is None and standing is None and exact and len(exact) <= MAX_VALUE_BYTES:
        return DesiredKey(exact, LedgerKey(None, exact))  # the start of a move, known without comparing 100,000 entries
    entries = _entries(standing)
    owned = _owned(ours, entries)
    replaced = entries is None or (WILDCARD in entries) != (WILDCARD in owned)
    if replaced and (ours is None or not desired):
        finding = f"{_replacement(standing)}; left as it is"
        return DesiredKey(standing, ours if hold else None, finding if desired or (ours and not hold) else "")
    present: frozenset[str] = frozenset() if replaced or entries is None else entries
    base = parse_replicas(ours.before or "") if ours and (replaced or WILDCARD in owned) else present
    foreign = frozenset(e for e in base - owned if _partition(e) not in moving)
    kept = owned | _of_partitions(present, moving) if hold else frozenset()
    kept -= _of_partitions(kept, lists.free)
    wanted = (desired | kept) - foreign
    text = ours.before if ours else standing
    before = text if parse_replicas(text or "") == foreign else _listed(foreign)
    if not wanted:
        return DesiredKey(before, None)
    wanted, value, too_long = _fitting(wanted, foreign, exact if wanted == desired else None)
    if standing is not None and parse_replicas(value) == present:
        value = standing
    if replaced:
        finding = f"{_replacement(standing)}; repaired"
    else:
        added = _of_partitions(present, moving) - wanted - owned
        finding = _list_edit(_confirmed(owned, ours), present, added) if ours else ""
    return DesiredKey(value, LedgerKey(before, value, wanted), finding, too_long)


def _owned(ours: LedgerKey | None, entries: frozenset[str] | None) -> frozenset[str]:
    """What is ours of what stands; between a wildcard and an exact list the standing one tells which it is."""
    if ours is None or ours.intent is None or WILDCARD not in ours.owned:
        return ours.owned if ours else frozenset()
    return frozenset({WILDCARD}) if entries and WILDCARD in entries else ours.owned - {WILDCARD}


def _confirmed(owned: frozenset[str], ours: LedgerKey) -> frozenset[str]:
    """The entries that must stand: while there is an intent, only those that it has in common with what was."""
    if ours.intent is None:
        return owned
    return owned & (_entries(ours.written) or frozenset()) & (_entries(ours.intent) or frozenset())


def _is_all_ours(standing: str | None, ours: LedgerKey) -> bool:
    """Whether a list stands as we wrote it, without foreign entries: the usual case, known without reading it."""
    return standing == ours.written and ours.intent is None and ours.part is None and not ours.before


def _replacement(standing: str | None) -> str:
    if standing is None:
        return "somebody removed the replica list"
    return f"the replica list {_shown(standing)!r} is not ours"


def _shown(value: str) -> str:
    return value if len(value) <= _SHOWN_BYTES else f"{value[:_SHOWN_BYTES]}..."


def _entries(standing: str | None) -> frozenset[str] | None:
    """The entries of a standing list; None when it is no list."""
    try:
        return parse_replicas(standing or "")
    except Invalid:
        return None


def _fitting(wanted: frozenset[str], foreign: frozenset[str], text: str | None) -> tuple[frozenset[str], str, str]:
    """The entries to own, the list to write (`*` if Kafka's clients cannot read the exact one), and what that means."""
    value = format_replicas(wanted | foreign) if foreign or text is None else text
    if WILDCARD in wanted:
        return frozenset({WILDCARD}), WILDCARD, ""
    if len(value) > MAX_VALUE_BYTES:
        return frozenset({WILDCARD}), WILDCARD, _TOO_LONG
    return wanted, value, ""


def _list_edit(owned: frozenset[str], entries: frozenset[str], added: frozenset[str]) -> str:
    """What somebody did to a list of ours, in one sentence; "" when nothing."""
    lost = owned - entries
    deeds = [f"removed {_some(lost)} from"] if lost else []
    deeds += [f"added {_some(added)} to"] if added else []
    return f"somebody {' and '.join(deeds)} the replica list; repaired" if deeds else ""


def _some(entries: frozenset[str]) -> str:
    first = format_replicas(entries).split(",")[:_SHOWN_ENTRIES]
    return ",".join(first) + (f" and {len(entries) - len(first)} more" if len(entries) > len(first) else "")


def _of_partitions(entries: frozenset[str], partitions: frozenset[int]) -> frozenset[str]:
    return frozenset(e for e in entries if e != WILDCARD and _partition(e) in partitions)


def _listed(entries: frozenset[str]) -> str | None:
    return format_replicas(entries) if entries else None


def _partition(entry: str) -> int:
    return int(entry.partition(":")[0])


def brokers_throttled_for_the_move(snapshot: Snapshot) -> frozenset[int]:
    """Return the brokers whose rates stand together with somebody's lists of moving partitions.

    So Kafka's own tool sets them. Such rates belong to the move: they are taken over and go at its end.
    """
    found: set[int] = set()
    for reassignment in snapshot.reassignments:
        resource, moving = ConfigResource.topic(reassignment.topic), frozenset(reassignment.partitions)
        entry = snapshot.ledger.get(resource)
        for role in ReplicaRole:
            key = role.replicas_key
            ours, standing = entry.keys.get(key) if entry else None, snapshot.throttles.get(resource, {}).get(key)
            if ours and _is_all_ours(standing, ours):
                continue
            entries = _entries(standing) or frozenset()
            foreign = entries - (ours.owned if ours else frozenset())
            found |= {int(e.partition(":")[2]) for e in _of_partitions(foreign, moving)}
    return frozenset(b for b in found if _has_foreign_rate(snapshot, b))


def _has_foreign_rate(snapshot: Snapshot, broker_id: int) -> bool:
    resource = ConfigResource.broker(broker_id)
    entry = snapshot.ledger.get(resource)
    return bool(snapshot.throttles.get(resource, {}).keys() - (entry.keys.keys() if entry else set()))
