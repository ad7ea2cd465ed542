"""What separates the desired throttles from those that stand: one list of config edits, whatever the story.

There is no special path for the first time, for a removal or for a repair. What becomes of a single key, and whose it
is, is in `ownership`. The type to know is `Change`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum

from autothrottle.core.configs import RATE_KEYS, ConfigResource, ReplicaRole, ResourceType
from autothrottle.core.ledger import LedgerEntry, LedgerKey
from autothrottle.core.ownership import (
    DesiredKey,
    brokers_throttled_for_the_move,
    desired_rate,
    desired_replicas,
    foreign_throttles,
)
from autothrottle.core.plan import DesiredReplicas, Plan
from autothrottle.core.topology import Snapshot


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
    rates, of_the_move = plan.rates, brokers_throttled_for_the_move(snapshot)
    tool_rates = {ConfigResource.broker(b) for b in of_the_move}
    topics = {ConfigResource.topic(t) for t in plan.replicas}
    touched = rates.keys() | topics | snapshot.ledger.keys() | tool_rates
    for resource in sorted(touched, key=lambda resource: resource.order):
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


def _keys(
    plan: Plan,
    rates: Mapping[ConfigResource, Mapping[str, int]],
    of_the_move: frozenset[int],
    snapshot: Snapshot,
    resource: ConfigResource,
    pace: Pace | None,
) -> Iterator[tuple[str, DesiredKey]]:
    standing = snapshot.throttles.get(resource, {})
    entry = snapshot.ledger.get(resource)
    ours = entry.keys if entry else {}
    if resource.type is ResourceType.BROKER:
        belongs = resource.broker_id in of_the_move
        for role in ReplicaRole:
            key, desired = role.rate_key, rates.get(resource, {}).get(role.rate_key)
            elapsed = pace(resource.broker_id, role) if pace else None
            yield key, desired_rate(desired, standing.get(key), ours.get(key), belongs, plan.hold, elapsed)
    else:
        lists = plan.replicas.get(resource.name, DesiredReplicas())
        for role in ReplicaRole:
            key = role.replicas_key
            yield (
                key,
                desired_replicas(lists, role, standing.get(key), ours.get(key), plan.hold),
            )


def _change(
    snapshot: Snapshot, resource: ConfigResource, keys: Mapping[str, DesiredKey], term: int, cycle: int
) -> Change | None:
    standing, entry = snapshot.throttles.get(resource, {}), snapshot.ledger.get(resource)
    known = entry.keys if entry else {}
    edits = tuple(
        Edit(name, standing.get(name), key.value)
        for name, key in keys.items()
        if key.value != standing.get(name) or _must_still_stand(name, key, known.get(name))
    )
    ledger = {name: key.ledger for name, key in keys.items() if key.ledger is not None}
    if not edits and ledger == known:
        return None
    return Change(resource, edits, LedgerEntry(ledger, term, cycle) if ledger else None)


def _must_still_stand(name: str, key: DesiredKey, ours: LedgerKey | None) -> bool:
    """Whether what stands, and stays, is to be looked at again when the ledger is written.

    A rate that becomes ours as it stands: by then it must not be another, or we would put back a wrong one. And what is
    given back while a write of ours may still become known.
    """
    if key.ledger is None:
        return ours is not None and ours.intent is not None
    return name in RATE_KEYS and ours is None
