"""What separates the desired throttles from those that stand: one list of config edits, whatever the story.

There is no special path for the first time, for a removal or for a repair. A rate is taken over as a whole
and what stood before is put back; of a replica list each entry is owned by itself. What belongs to somebody
else is not touched. The type to know is `Change`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum

from autothrottle.core.configs import (
    MAX_VALUE_BYTES,
    RATE_KEYS,
    WILDCARD,
    ConfigResource,
    ReplicaRole,
    ResourceType,
    format_replicas,
    limiting_rate,
    parse_replicas,
)
from autothrottle.core.errors import Invalid
from autothrottle.core.ledger import LedgerEntry, LedgerKey
from autothrottle.core.plan import DesiredReplicas, Plan
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
class Edit:
    """One config key's new value."""

    key: str
    expected: str | None
    """What stood when this was decided (None: nothing); anything else by now is a conflict."""
    value: str | None
    """What shall stand; None: the key goes."""

    @property
    def writes(self) -> bool:
        """Whether it changes anything; if not it only demands that this stands when the ledger takes it over."""
        return self.value != self.expected


@dataclass(frozen=True, slots=True)
class Change:
    """The edits of one config resource and its ledger entry afterwards, carried out all or not at all."""

    resource: ConfigResource
    edits: tuple[Edit, ...]
    """May be empty: then only the ledger changes."""
    ledger: LedgerEntry | None
    """None: nothing on the resource is ours any more."""


class OutcomeStatus(Enum):
    """What became of one change."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the change of one resource."""

    resource: ConfigResource
    status: OutcomeStatus
    reason: str = ""
    """Why it was refused, in one sentence that names the thing and the fix."""


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Everything that is to be done, and what was found on the way."""

    changes: tuple[Change, ...]
    """Brokers first, then topics, each by name: no list stands without its rates."""
    refused: tuple[Outcome, ...]
    """Resources that cannot be read, so that nothing is written to them."""
    findings: tuple[str, ...]
    """What somebody else did to our keys, one sentence each."""


@dataclass(frozen=True, slots=True)
class _Key:
    """What shall become of one key."""

    value: str | None
    ledger: LedgerKey | None
    finding: str = ""
    warning: str = ""


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
        for resource, keys in sorted(snapshot.throttles.items(), key=lambda item: _order(item[0]))
    }
    return {resource: keys for resource, keys in found.items() if keys}


def removal_of_foreign(snapshot: Snapshot, term: int, cycle: int = 0) -> tuple[Change, ...]:
    """Return the edits that remove every throttle that is not ours (`--cleanup-foreign`)."""
    return tuple(
        Change(
            resource,
            tuple(Edit(key, value, None) for key, value in keys.items()),
            LedgerEntry(entry.keys, term, cycle) if (entry := snapshot.ledger.get(resource)) else None,
        )
        for resource, keys in foreign_throttles(snapshot).items()
    )


def intended(change: Change, ledger: LedgerEntry | None, term: int) -> LedgerEntry | None:
    """Return the ledger entry to stand while a change is carried out, for who cannot write both at once.

    With it `changes` finds the way from what stood before as well as from what stands afterwards.

    Args:
        change: what is about to be done.
        ledger: the entry that stands.
        term: the term that writes.
    """
    old, new = ledger.keys if ledger else {}, change.ledger.keys if change.ledger else {}
    keys = dict(new)
    for edit in change.edits:
        keys[edit.key] = _intended(edit, old.get(edit.key), new.get(edit.key))
    if not keys or (ledger and keys == old):
        return ledger if keys else None
    return LedgerEntry(keys, term, change.ledger.cycle if change.ledger else 0)


def _intended(edit: Edit, old: LedgerKey | None, new: LedgerKey | None) -> LedgerKey:
    if new is None or edit.value is None:
        # It goes. What stands is ours until it has gone; a rate of the move that never was, from now on.
        return old or LedgerKey(edit.value, edit.expected)
    replaced = edit.expected if old is None or old.is_ours(edit.expected) else old.written
    if edit.key in RATE_KEYS:
        return LedgerKey(new.before, replaced, intent=edit.value, target=new.target)
    return LedgerKey(new.before, replaced, new.owned | (old.owned if old else frozenset()), edit.value)


Pace = Callable[[int, ReplicaRole], timedelta]
"""(Broker id, role) -> how long ago its rate was raised by a step; see `ramp.step`."""


def changes(plan: Plan, snapshot: Snapshot, term: int, cycle: int = 0, pace: Pace | None = None) -> ChangeSet:
    """Return the edits that make the cluster carry the plan, and give back what the plan does not need.

    Args:
        plan: the desired throttles.
        snapshot: what stands, and what of it is ours.
        term: the term that writes, for the ledger.
        cycle: the cycle that writes, for the ledger.
        pace: how rates rise; None: at once.
    """
    done: list[Change] = []
    refused: list[Outcome] = []
    findings: list[str] = []
    rates, of_the_move = plan.rates, _brokers_throttled_for_the_move(snapshot)
    tool_rates = {ConfigResource.broker(b) for b in of_the_move}
    topics = {ConfigResource.topic(t) for t in plan.replicas}
    for resource in sorted(rates.keys() | topics | snapshot.ledger.keys() | tool_rates, key=_order):
        if problem := snapshot.unreadable_configs.get(resource):
            refused.append(Outcome(resource, OutcomeStatus.REFUSED, f"{problem.path}: {problem.reason}"))
            continue
        keys = dict(_keys(plan, rates, of_the_move, snapshot, resource, pace))
        found = [(name, text) for name, key in keys.items() for text in (key.finding, key.warning) if text]
        findings += [f"{resource}, {name}: {text}" for name, text in found]
        change = _change(snapshot, resource, keys, term, cycle)
        if change is not None:
            done.append(change)
    return ChangeSet(tuple(done), tuple(refused), tuple(findings))


def next_steps(plan: Plan, snapshot: Snapshot, term: int, cycle: int, pace: Pace) -> tuple[Change, ...]:
    """Return the next steps of the rates that are on their way to what the plan wants, and no other change."""
    rates, found = plan.rates, []
    for resource in rates:
        entry = snapshot.ledger.get(resource)
        if entry is None or all(key.target is None for key in entry.keys.values()):
            continue
        keys = dict(_keys(plan, rates, frozenset(), snapshot, resource, pace))
        change = _change(snapshot, resource, keys, term, cycle)
        found += [change] if change is not None and change.edits else []
    return tuple(found)


def carried_out(snapshot: Snapshot, done: Iterable[Change]) -> Snapshot:
    """Return a snapshot as it is after some changes."""
    throttles, ledger = dict(snapshot.throttles), dict(snapshot.ledger)
    for change in done:
        keys = dict(throttles.get(change.resource, {}))
        for edit in change.edits:
            keys.pop(edit.key, None)
            keys |= {} if edit.value is None else {edit.key: edit.value}
        throttles[change.resource] = keys
        ledger.pop(change.resource, None)
        ledger |= {} if change.ledger is None else {change.resource: change.ledger}
    return replace(snapshot, throttles={r: keys for r, keys in throttles.items() if keys}, ledger=ledger)


def _order(resource: ConfigResource) -> tuple[int, int, str]:
    if resource.type is ResourceType.BROKER:
        return 0, resource.broker_id, ""
    return 1, 0, resource.name


def _keys(
    plan: Plan,
    rates: Mapping[ConfigResource, Mapping[str, int]],
    of_the_move: frozenset[int],
    snapshot: Snapshot,
    resource: ConfigResource,
    pace: Pace | None,
) -> Iterator[tuple[str, _Key]]:
    standing = snapshot.throttles.get(resource, {})
    entry = snapshot.ledger.get(resource)
    ours = entry.keys if entry else {}
    if resource.type is ResourceType.BROKER:
        belongs = resource.broker_id in of_the_move
        for role in ReplicaRole:
            key, desired = role.rate_key, rates.get(resource, {}).get(role.rate_key)
            elapsed = pace(resource.broker_id, role) if pace else None
            yield key, _rate(desired, standing.get(key), ours.get(key), belongs, plan.hold, elapsed)
    else:
        lists = plan.replicas.get(resource.name, DesiredReplicas())
        for role in ReplicaRole:
            key = role.replicas_key
            yield (
                key,
                _replicas(lists, role, standing.get(key), ours.get(key), plan.hold),
            )


def _rate(
    desired: int | None,
    standing: str | None,
    ours: LedgerKey | None,
    of_the_move: bool,
    hold: bool,
    elapsed: timedelta | None,
) -> _Key:
    """What shall become of a rate; without an `elapsed` time since its last step it rises at once."""
    if ours is None:
        return _rate_of_others(desired, standing, of_the_move, hold, elapsed)
    edited = not ours.is_ours(standing)
    if desired is not None:
        value, target = _step(standing, desired, elapsed, ours.target is not None)
        finding = f"{_rate_edit(standing, ours)}; repaired" if edited and standing != value else ""
        return _Key(value, LedgerKey(ours.before, value, target=target), finding)
    if hold:
        return _Key(standing, ours)
    if not edited or standing == ours.before:
        return _Key(ours.before, None)
    return _Key(standing, None, f"{_rate_edit(standing, ours)}; left as it is")


def _step(standing: str | None, desired: int, elapsed: timedelta | None, is_rising: bool) -> tuple[str, str | None]:
    """What to write of a rate, and what it is a step to; None: it is all of it."""
    now = limiting_rate(standing or "")
    if now is None or elapsed is None or not (is_rising or needs_ramp(now, desired)):
        return str(desired), None
    value = step(now, desired, elapsed)
    return str(value), None if value == desired else str(desired)


def _rate_of_others(
    desired: int | None, standing: str | None, of_the_move: bool, hold: bool, elapsed: timedelta | None
) -> _Key:
    """A key that is not in the ledger; a rate that belongs to the move is not put back."""
    before = None if of_the_move else standing
    if desired is not None and of_the_move:
        value, target = _step(standing, desired, elapsed, is_rising=False)
        return _Key(value, LedgerKey(None, value, target=target))
    if desired is not None:
        # Without lists it has held nothing back: the meter has seen what there was.
        return _Key(str(desired), LedgerKey(before, str(desired)))
    if hold and of_the_move and standing is not None:
        # The lists that tell that it belongs to the move become ours now: from then on only the ledger knows.
        return _Key(standing, LedgerKey(None, standing))
    return _Key(before, None)


def _rate_edit(standing: str | None, ours: LedgerKey) -> str:
    written = ours.intent if ours.written is None else ours.written
    if standing is None:
        return f"somebody removed the rate of {written}"
    return f"somebody set a rate of {standing} in place of {written}"


def _replicas(
    lists: DesiredReplicas, role: ReplicaRole, standing: str | None, ours: LedgerKey | None, hold: bool
) -> _Key:
    desired, moving, exact = lists.of(role), lists.moving, lists.texts.get(role)
    if ours and _is_all_ours(standing, ours) and (ours.written == exact or desired == ours.owned):
        return _Key(standing, ours)
    if ours is None and standing is None and exact and len(exact) <= MAX_VALUE_BYTES:
        return _Key(exact, LedgerKey(None, exact))  # the start of a move, known without comparing 100,000 entries
    entries = _entries(standing)
    owned = _owned(ours, entries)
    replaced = entries is None or (WILDCARD in entries) != (WILDCARD in owned)
    if replaced and (ours is None or not desired):
        finding = f"{_replacement(standing)}; left as it is"
        return _Key(standing, ours if hold else None, finding if desired or (ours and not hold) else "")
    present: frozenset[str] = frozenset() if replaced or entries is None else entries
    base = parse_replicas(ours.before or "") if ours and (replaced or WILDCARD in owned) else present
    foreign = frozenset(e for e in base - owned if _partition(e) not in moving)
    kept = owned | _of_partitions(present, moving) if hold else frozenset()
    wanted = (desired | kept) - foreign
    text = ours.before if ours else standing
    before = text if parse_replicas(text or "") == foreign else _listed(foreign)
    if not wanted:
        return _Key(before, None)
    wanted, value, too_long = _fitting(wanted, foreign, exact if wanted == desired else None)
    if standing is not None and parse_replicas(value) == present:
        value = standing
    if replaced:
        finding = f"{_replacement(standing)}; repaired"
    else:
        added = _of_partitions(present, moving) - wanted - owned
        finding = _list_edit(_confirmed(owned, ours), present, added) if ours else ""
    return _Key(value, LedgerKey(before, value, wanted), finding, too_long)


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


def _brokers_throttled_for_the_move(snapshot: Snapshot) -> frozenset[int]:
    """The brokers whose rates stand together with somebody's lists of moving partitions.

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


def _change(
    snapshot: Snapshot, resource: ConfigResource, keys: Mapping[str, _Key], term: int, cycle: int
) -> Change | None:
    standing, entry = snapshot.throttles.get(resource, {}), snapshot.ledger.get(resource)
    known = entry.keys if entry else {}
    edits = tuple(
        Edit(name, standing.get(name), key.value)
        for name, key in keys.items()
        if key.value != standing.get(name) or _takes_over(name, key, known)
    )
    ledger = {name: key.ledger for name, key in keys.items() if key.ledger is not None}
    if not edits and ledger == known:
        return None
    return Change(resource, edits, LedgerEntry(ledger, term, cycle) if ledger else None)


def _takes_over(name: str, key: _Key, known: Mapping[str, LedgerKey]) -> bool:
    """Whether a rate becomes ours as it stands: by then it must not be another, or we would put back a wrong one."""
    return name in RATE_KEYS and key.ledger is not None and name not in known
