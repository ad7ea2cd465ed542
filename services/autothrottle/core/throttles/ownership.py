"""The owner of each current throttle (autothrottle, the reassignment's tool, or another party), and its desired value.

A rate is taken over as a whole, and its earlier value is restored later. The entries of a replica list are owned one by
one. Foreign values are not changed. `changes` applies this to a whole cluster; the ledger records what we wrote. The
type to know is `DesiredKey`; `changes.RampState` tells why a rate rises in steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil, isinf

from autothrottle.core.cluster.configs import (
    MAX_VALUE_BYTES,
    REPLICAS_KEYS,
    WILDCARD,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
    ReplicaRole,
    format_replicas,
    limiting_rate,
    parse_replicas,
)
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.errors import Invalid
from autothrottle.core.records import ForeignThrottle
from autothrottle.core.texts import excerpt
from autothrottle.core.throttles.plan import DesiredReplicas
from autothrottle.core.units import BytesPerSecond

_SHOWN_ENTRIES, _SHOWN_BYTES = 8, 70
"""How much of a list a finding shows."""

_TOO_LONG = (
    f"the exact list exceeds Kafka's limit of {MAX_VALUE_BYTES} bytes, so `*` is set instead: the traffic of the "
    "topic's in-sync replicas then counts against the rate, too. No metrics source reports that traffic, so the rate "
    "is not raised for it and the reassignment gets less than its rate; reassign fewer partitions of the topic at once"
)

_UNRECORDED = (
    "the rate {} is not in the ledger, so it counts as another party's and is restored after the reassignment; if an "
    "earlier term of autothrottle set it and its record was lost, remove the rate then"
)


@dataclass(frozen=True, slots=True)
class DesiredKey:
    """The desired value of one key."""

    value: str | None
    """The new value; None: delete the key."""
    ledger: LedgerKey | None
    """The ledger's record after the change; None: we no longer own anything of it."""
    finding: str = ""
    """A sentence about another party's edit; "": none."""
    warning: str = ""
    """A sentence about a limitation of the value; "": none."""
    is_invalid: bool = False
    """Whether the current value is a list that no broker applies."""
    is_repaired: bool = False
    """Whether the value replaces another party's edit of ours."""


def shown_foreign(foreign: Mapping[ConfigResource, Mapping[str, str]]) -> tuple[ForeignThrottle, ...]:
    """Return foreign throttles for display, by resource and key."""
    return tuple(ForeignThrottle(r, key, _shown(value)) for r, keys in foreign.items() for key, value in keys.items())


ForeignThrottles = Mapping[ConfigResource, Mapping[str, str]]
"""Resource -> its current throttle keys that are not in the ledger -> their values."""


def foreign_throttles(snapshot: Snapshot) -> ForeignThrottles:
    """Return the current throttle keys that are not in the ledger, with their values."""
    foreign = {
        resource: {key: value for key, value in sorted(keys.items()) if key not in records}
        for resource, keys in sorted(snapshot.throttles.items(), key=lambda item: item[0].order)
        for records in (snapshot.records.get(resource, {}),)
    }
    return {resource: keys for resource, keys in foreign.items() if keys}


def with_lost_records(
    ledger: Mapping[ConfigResource, LedgerEntry],
    written: Mapping[ConfigResource, LedgerEntry],
    current: Mapping[ConfigResource, Mapping[str, str]],
    unreadable: Collection[ConfigResource],
) -> tuple[Mapping[ConfigResource, LedgerEntry], frozenset[ConfigResource]]:
    """Return the ledger with the records of this term that it has lost, and their resources.

    A record counts as lost only while our value is still set: if both are gone, the key was released. A lost record
    returns as an unconfirmed one, so that `changes` writes it again. An unreadable entry keeps its last records.

    Args:
        ledger: as read.
        written: the ledger after the last cycle of this term.
        current: resource -> key -> current value.
        unreadable: resources whose entry or config cannot be read.
    """
    complete, lost = dict(ledger), set[ConfigResource]()
    for resource, entry in written.items():
        stored, values = ledger[resource].keys if resource in ledger else {}, current.get(resource, {})
        if resource in unreadable:
            complete.setdefault(resource, entry)
            continue
        missing = {
            key: record if record.is_released or record.intent else replace(record, intent=record.written)
            for key, record in entry.keys.items()
            if key not in stored and key in values and _is_still_set(key, record, values[key])
        }
        if missing:
            lost.add(resource)
            complete[resource] = LedgerEntry({**stored, **missing}, entry.term, entry.cycle)
    return complete, frozenset(lost)


def _is_still_set(key: str, record: LedgerKey, current: str) -> bool:
    """Return whether a current value is ours, or a replica list still has entries of ours."""
    if record.is_late(current) or (record.is_ours(current) and not record.is_released):
        return True
    return key in REPLICAS_KEYS and not record.owned.isdisjoint(_entries(current) or ())


def lost_finding(resource: ConfigResource) -> str:
    """Return one sentence about a resource of `with_lost_records`."""
    return (
        f"{resource}: its record in the ledger is lost; this term has written the current value, so it counts as "
        "autothrottle's and the record is written again"
    )


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the next steps of the rates that rise stand for."""

    raised: Mapping[LinkSide, float]
    """Rising link side -> monotonic time of its last step, in seconds."""
    interval: float
    """Planned time between two steps, seconds; infinite: no step is possible."""
    now: float
    """Monotonic time in seconds."""

    def elapsed(self, side: LinkSide) -> timedelta:
        """Return the time that the next step of a rate stands for, 0 while it must wait; see `step`."""
        if isinf(self.interval):
            return timedelta(0)
        if (since := self.raised.get(side)) is None:
            return PACE
        # Wait for half of the interval, so that rates that started at different times rise together.
        elapsed = self.now - since
        return timedelta(seconds=min(elapsed, self.interval) if elapsed >= self.interval / 2 else 0)


def desired_rates(
    broker_id: int,
    desired: Mapping[str, int],
    current: Mapping[str, str],
    records: Mapping[str, LedgerKey],
    of_reassignment: bool,
    hold: bool,
    pace: Pace | None,
) -> dict[str, DesiredKey]:
    """Return rate key -> its new value, for one broker; the arguments are those of `desired_rate`, by key.

    Args:
        broker_id: the broker.
        desired: the plan's rates.
        current: the current values.
        records: the ledger's records.
        of_reassignment: whether foreign rates belong to the reassignment.
        hold: whether nothing may be removed.
        pace: time that the next ramp steps stand for; None: raise the rates at once.
    """
    return {
        role.rate_key: desired_rate(
            desired.get(role.rate_key),
            current.get(role.rate_key),
            records.get(role.rate_key),
            of_reassignment,
            hold,
            pace.elapsed((broker_id, role)) if pace else None,
        )
        for role in ReplicaRole
    }


def desired_rate(
    desired: int | str | None,
    current: str | None,
    ledger_key: LedgerKey | None,
    of_reassignment: bool = False,
    hold: bool = False,
    elapsed: timedelta | None = None,
) -> DesiredKey:
    """Return the new value of a rate or a client quota: the desired one, or the value before ours.

    Args:
        desired: the plan's rate, bytes/s, or the text of a quota; None: no throttle.
        current: the current value; None: not set.
        ledger_key: the ledger's record; None: we have not written the key.
        of_reassignment: whether a foreign rate belongs to the reassignment, see `brokers_throttled_for_reassignment`.
        hold: whether nothing may be removed.
        elapsed: time that the next ramp step stands for; None: raise the rate at once.
    """
    if ledger_key is None:
        return _foreign_rate(desired, current, of_reassignment, hold, elapsed)
    if desired is not None and current == str(desired) == ledger_key.written and _is_final(ledger_key):
        return DesiredKey(current, ledger_key)
    edited = not ledger_key.is_ours(current)
    if desired is not None:
        value, target = _step(current, desired, elapsed, ledger_key.target is not None)
        record = LedgerKey(ledger_key.before, value, target=target)
        if edited and current != value:
            return DesiredKey(value, record, f"{_rate_edit(current, ledger_key)}; repaired", is_repaired=True)
        return DesiredKey(value, record)
    if hold:
        return DesiredKey(current, ledger_key)
    if not edited or current == ledger_key.before:
        return DesiredKey(ledger_key.before, None)
    return DesiredKey(current, None, f"{_rate_edit(current, ledger_key)}; left unchanged")


def _is_final(ledger_key: LedgerKey) -> bool:
    return ledger_key.intent is None and ledger_key.target is None


def _step(
    current: str | None, desired: int | str, elapsed: timedelta | None, is_rising: bool
) -> tuple[str, str | None]:
    """Return (the rate to write, the ramp's target); target None: the rate is final."""
    current_rate = limiting_rate(current or "")
    if current_rate is None or elapsed is None or isinstance(desired, str):
        return str(desired), None
    if not is_rising and not needs_ramp(current_rate, desired):
        return str(desired), None
    value = step(current_rate, desired, elapsed)
    return str(value), None if value == desired else str(desired)


def _foreign_rate(
    desired: int | str | None, current: str | None, of_reassignment: bool, hold: bool, elapsed: timedelta | None
) -> DesiredKey:
    """Return the new value of a rate that is not in the ledger; a rate of the reassignment is not restored later."""
    original = None if of_reassignment else current
    if desired is not None and of_reassignment:
        value, target = _step(current, desired, elapsed, is_rising=False)
        return DesiredKey(value, LedgerKey(None, value, target=target))
    if desired is not None:
        # Without replica lists the foreign rate limited nothing, so the broker's meter has already seen all traffic.
        finding = _UNRECORDED.format(current) if isinstance(desired, int) and current is not None else ""
        return DesiredKey(str(desired), LedgerKey(original, str(desired)), finding)
    if hold and of_reassignment and current is not None:
        # We now take over the lists that show that the rate belongs to the reassignment; only the ledger can show it
        # from now on.
        return DesiredKey(current, LedgerKey(None, current))
    return DesiredKey(original, None)


def _rate_edit(current: str | None, ledger_key: LedgerKey) -> str:
    written = ledger_key.intent if ledger_key.written is None else ledger_key.written
    if current is None:
        return f"another party removed the rate of {written}"
    return f"another party changed the rate from {written} to {current}"


def desired_replicas(
    lists: DesiredReplicas,
    role: ReplicaRole,
    current: str | None,
    ledger_key: LedgerKey | None,
    hold: bool,
    held_brokers: frozenset[int] = frozenset(),
) -> DesiredKey:
    """Return the new value of a replica list: the plan's entries and the foreign ones.

    Args:
        lists: the plan's lists of the topic.
        role: which of the two lists.
        current: the current value; None: not set.
        ledger_key: the ledger's record; None: we have not written the key.
        hold: whether nothing may be removed.
        held_brokers: brokers whose entries may not be removed in any case.
    """
    exact = lists.text(role)
    if ledger_key and _is_all_ours(current, ledger_key):
        if current and not (exact or lists.of(role) or hold or held_brokers):
            # The end of a reassignment, detected without parsing 100,000 entries.
            return DesiredKey(ledger_key.before, None)
        if ledger_key.written == exact or lists.of(role) == ledger_key.owned:
            return DesiredKey(current, ledger_key)
    if ledger_key is None and current is None and exact and len(exact) <= MAX_VALUE_BYTES:
        # The start of a reassignment, detected without comparing 100,000 entries.
        return DesiredKey(exact, LedgerKey(None, exact))
    desired, moving, entries = lists.of(role), lists.moving, _entries(current)
    owned = _owned(ledger_key, entries)
    replaced = entries is None or (WILDCARD in entries) != (WILDCARD in owned)
    if replaced and (ledger_key is None or not desired):
        finding = f"{_replacement(current)}; left unchanged" if desired or (ledger_key and not hold) else ""
        return DesiredKey(current, ledger_key if hold else None, finding, is_invalid=entries is None)
    present: frozenset[str] = frozenset() if replaced or entries is None else entries
    base = parse_replicas(ledger_key.before or "") if ledger_key and (replaced or WILDCARD in owned) else present
    foreign = frozenset(e for e in base - owned if _partition(e) not in moving)
    expected = owned & ledger_key.owned if ledger_key else owned
    retained = expected | _of_partitions(present, moving) if hold else _of_brokers(expected, held_brokers)
    retained -= _of_partitions(retained, lists.free)
    target_entries = (desired | retained) - foreign
    text = ledger_key.before if ledger_key else current
    original = text if parse_replicas(text or "") == foreign else _listed(foreign)
    if not target_entries:
        return DesiredKey(original, None)
    target_entries, value, too_long = _fitting(target_entries, foreign, exact if target_entries == desired else None)
    if current is not None and parse_replicas(value) == present:
        value = current
    if replaced:
        finding = f"{_replacement(current)}; repaired"
    else:
        added = _of_partitions(present, moving) - target_entries - owned
        finding = _list_edit(_confirmed(owned, ledger_key), present, added) if ledger_key else ""
    record = LedgerKey(original, value, target_entries)
    return DesiredKey(value, record, finding, too_long, is_invalid=entries is None, is_repaired=bool(finding))


def _owned(ledger_key: LedgerKey | None, entries: frozenset[str] | None) -> frozenset[str]:
    """Return our entries, also late ones; between a wildcard and an exact list, the current value decides."""
    if ledger_key is None:
        return frozenset()
    owned = ledger_key.owned | ledger_key.late
    if WILDCARD not in owned or (ledger_key.intent is None and not ledger_key.late):
        return owned
    return frozenset({WILDCARD}) if entries and WILDCARD in entries else owned - {WILDCARD}


def _confirmed(owned: frozenset[str], ledger_key: LedgerKey) -> frozenset[str]:
    """Return our entries that must be present; with an intent, only those in both the old and the intended value."""
    owned &= ledger_key.owned
    if ledger_key.intent is None:
        return owned
    return owned & (_entries(ledger_key.written) or frozenset()) & (_entries(ledger_key.intent) or frozenset())


def _is_all_ours(current: str | None, ledger_key: LedgerKey) -> bool:
    """Return whether a list is as we wrote it, without foreign entries: the usual case, detected without parsing."""
    is_whole = ledger_key.intent is None and ledger_key.part is None and not ledger_key.late
    return is_whole and current == ledger_key.written and not ledger_key.before


def _replacement(current: str | None) -> str:
    if current is None:
        return "another party removed the replica list"
    in_force = "" if _entries(current) is not None else ", which no broker applies"
    return f"another party set the replica list {_shown(current)!r}{in_force}"


def _shown(value: str) -> str:
    return value if len(value) <= _SHOWN_BYTES else f"{value[:_SHOWN_BYTES]}..."


def _entries(current: str | None) -> frozenset[str] | None:
    """Return the entries of a current value; None: it is not a valid list."""
    try:
        return parse_replicas(current or "")
    except Invalid:
        return None


def _fitting(
    target_entries: frozenset[str], foreign: frozenset[str], text: str | None
) -> tuple[frozenset[str], str, str]:
    """Return (entries to own, list to write, warning); the list is `*` if the exact one is too long for Kafka."""
    value = format_replicas(target_entries | foreign) if foreign or text is None else text
    if WILDCARD in target_entries:
        return frozenset({WILDCARD}), WILDCARD, ""
    if len(value) > MAX_VALUE_BYTES:
        return frozenset({WILDCARD}), WILDCARD, _TOO_LONG
    return target_entries, value, ""


def _list_edit(owned: frozenset[str], entries: frozenset[str], added: frozenset[str]) -> str:
    """Return one sentence about another party's edit of our list; "": no edit."""
    lost = owned - entries
    edits = [f"removed {_first_entries(lost)} from"] if lost else []
    edits += [f"added {_first_entries(added)} to"] if added else []
    return f"another party {' and '.join(edits)} the replica list; repaired" if edits else ""


def _first_entries(entries: frozenset[str]) -> str:
    return excerpt(format_replicas(entries).split(","), _SHOWN_ENTRIES, ",")


def _of_partitions(entries: frozenset[str], partitions: frozenset[int]) -> frozenset[str]:
    return frozenset(e for e in entries if e != WILDCARD and _partition(e) in partitions)


def _of_brokers(entries: frozenset[str], broker_ids: frozenset[int]) -> frozenset[str]:
    if not broker_ids:
        return frozenset()
    return frozenset(e for e in entries if e == WILDCARD or int(e.partition(":")[2]) in broker_ids)


def _listed(entries: frozenset[str]) -> str | None:
    return format_replicas(entries) if entries else None


def _partition(entry: str) -> int:
    return int(entry.partition(":")[0])


def brokers_throttled_for_reassignment(snapshot: Snapshot) -> frozenset[int]:
    """Return the brokers with a foreign rate that are in a foreign replica list of a partition in reassignment.

    Kafka's own tool sets both together. Such rates belong to the reassignment: we take them over and delete them at its
    end.
    """
    broker_ids: set[int] = set()
    for reassignment in snapshot.reassignments:
        resource, moving = ConfigResource.topic(reassignment.topic), frozenset(reassignment.partitions)
        records = snapshot.records.get(resource, {})
        for role in ReplicaRole:
            key = role.replicas_key
            ledger_key, current = records.get(key), snapshot.throttles.get(resource, {}).get(key)
            if ledger_key and _is_all_ours(current, ledger_key):
                continue
            entries = _entries(current) or frozenset()
            foreign = entries - (ledger_key.owned | ledger_key.late if ledger_key else frozenset())
            broker_ids |= {int(e.partition(":")[2]) for e in _of_partitions(foreign, moving)}
    return frozenset(b for b in broker_ids if _has_foreign_rate(snapshot, b))


def _has_foreign_rate(snapshot: Snapshot, broker_id: int) -> bool:
    resource = ConfigResource.broker(broker_id)
    return bool(snapshot.throttles.get(resource, {}).keys() - snapshot.records.get(resource, {}).keys())


RISE = timedelta(seconds=30)
"""Duration of a ramp from 0 to the target; a raise to three times the rate takes two thirds of it.

It is the shortest time with which a simulated meter lets through at most twice the new rate in any second, also if a
new leader continues the ramp.
"""

PACE = timedelta(seconds=1)
"""Time between two steps."""

LONGEST_PACE = timedelta(seconds=5)
"""Longest time between two steps, with few notifications left; a step is then a sixth of the target."""

_SHARES = 10
"""A raise by at most a tenth of the rate needs no ramp."""


def needs_ramp(current: BytesPerSecond, target: BytesPerSecond) -> bool:
    """Return whether a raise is large enough to need a ramp.

    >>> needs_ramp(100, 110), needs_ramp(100, 111), needs_ramp(100, 20)
    (False, True, False)
    """
    return (target - current) * _SHARES > current


def step(current: BytesPerSecond, target: BytesPerSecond, elapsed: timedelta) -> BytesPerSecond:
    """Return the next rate of a ramp, bytes/s.

    `min(target, current + target * elapsed / RISE)` for a raise; a lowering is immediate.

    Args:
        current: the current rate, bytes/s, >= 0.
        target: the rate at the end of the ramp, bytes/s, >= 0.
        elapsed: time since the last step, at most the planned time between two steps; below `PACE / 2` the rate stays.

    >>> second = timedelta(seconds=1)
    >>> step(30, 90, second), step(88, 90, second), step(30, 90, LONGEST_PACE), step(90, 30, 0 * second)
    (33, 90, 45, 30)
    """
    if target <= current:
        return target
    if elapsed < PACE / 2:
        return current
    # Rounded up: rounded down, a raise by 59 bytes/s would take 59 steps.
    return min(target, current + ceil(target * (elapsed / RISE)))
