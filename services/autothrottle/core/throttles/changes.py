"""The difference between the desired and the current throttles, as one list of config edits.

There are no special paths for the first write, a removal or a repair. `ownership` decides the value and the owner of a
single key.

Between cycles the leader raises rates step by step to the targets of the last plan. The types to know are `Change`
and `RampState`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

from autothrottle.core.cluster.configs import (
    LATE_WRITES,
    RATE_KEYS,
    REPLICAS_KEYS,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
    ReplicaRole,
    ResourceType,
    parse_replicas,
    texts_of,
)
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.errors import Conflict, Invalid
from autothrottle.core.operators.sources import Overrides
from autothrottle.core.quotas.keys import QuotaKey, parse_value, validate_value
from autothrottle.core.records import Outcome, OutcomeStatus, Throttle
from autothrottle.core.throttles.foreign_edits import NO_CONTESTS, Contests, ResourceEdit, resource_edit
from autothrottle.core.throttles.ownership import (
    LONGEST_PACE,
    PACE,
    RISE,
    DesiredKey,
    Pace,
    brokers_throttled_for_reassignment,
    desired_rates,
    desired_replicas,
    foreign_throttles,
)
from autothrottle.core.throttles.plan import DesiredReplicas, Plan, hold, replica_lists
from autothrottle.core.units import MAX_RATE


@dataclass(frozen=True, slots=True)
class Edit:
    """The new value of one config key."""

    key: str
    expected: str | None
    """The value at the time of the decision (None: not set); any other current value is a conflict."""
    value: str | None
    """The new value; None: delete the key."""

    @property
    def writes(self) -> bool:
        """Whether the edit changes the value; otherwise it only checks the value when the ledger takes it over."""
        return self.value != self.expected

    def validate(self, current: str | None) -> None:
        """Check that another party has not changed the value since the decision.

        Raises:
            Conflict: the current value is neither the expected one nor the new one.
        """
        if current not in (self.expected, self.value):
            raise Conflict(f"{self.key} is {current!r}, but was {self.expected!r} when the change was decided")


def edited_config(config: Mapping[str, str], edits: Iterable[Edit]) -> dict[str, str]:
    """Return a config after the edits; other keys keep their values.

    Raises:
        Conflict: another party has changed a value.
    """
    values = dict(config)
    for edit in edits:
        edit.validate(config.get(edit.key))
        if edit.value is None:
            values.pop(edit.key, None)
        else:
            values[edit.key] = edit.value
    return values


@dataclass(frozen=True, slots=True)
class Change:
    """The edits of one config resource and its new ledger entry; applied as a whole or not at all."""

    resource: ConfigResource
    edits: tuple[Edit, ...]
    """May be empty; then only the ledger changes."""
    ledger: LedgerEntry | None
    """The entry after the change; None: we no longer own anything on the resource, and no write of ours is late."""

    @property
    def records(self) -> Mapping[str, LedgerKey]:
        """The records of the keys that are ours after the change; empty: the change releases the resource."""
        return {name: key for name, key in self.ledger.keys.items() if not key.is_released} if self.ledger else {}

    @property
    def restored(self) -> tuple[Edit, ...]:
        """The edits that set a value of a key that is not ours afterwards: they restore an earlier one."""
        return tuple(edit for edit in self.edits if edit.value is not None and edit.key not in self.records)


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """All changes of a cycle, and its findings."""

    changes: tuple[Change, ...]
    """Brokers first, then topics, each sorted: no replica list is written before its rates."""
    refused: tuple[Outcome, ...]
    """Resources that cannot be read; nothing is written to them."""
    findings: tuple[str, ...]
    """Foreign edits of our keys, and problems with them, one sentence each."""
    invalid_lists: int = 0
    """Topics with a foreign replica list that no broker applies."""
    repaired: Mapping[ConfigResource, ResourceEdit] = field(default_factory=dict)
    """Resource -> what another party has edited of it."""


def changes(
    plan: Plan,
    snapshot: Snapshot,
    at: datetime,
    term: int,
    cycle: int = 0,
    pace: Pace | None = None,
    contests: Contests = NO_CONTESTS,
) -> ChangeSet:
    """Return the edits that apply the plan, and release every key that the plan does not need.

    Args:
        plan: the desired throttles.
        snapshot: the current throttles and the ledger.
        at: UTC.
        term: the term that writes, for the ledger.
        cycle: the cycle that writes, for the ledger.
        pace: time that the next ramp steps stand for; None: raise rates at once.
        contests: the resources that another party edits again and again. They have a finding of their own, and those
            that are held keep the other party's values for now.
    """
    done: list[Change] = []
    refused: list[Outcome] = []
    findings: list[str] = []
    repaired: dict[ConfigResource, ResourceEdit] = {}
    invalid_lists, contested, held_resources = 0, contests.contested, contests.held_resources
    rates, of_reassignment = plan.rates, brokers_throttled_for_reassignment(snapshot)
    tool_rates = {ConfigResource.broker(b) for b in of_reassignment}
    topics = {ConfigResource.topic(t) for t in plan.replicas}
    touched = rates.keys() | topics | snapshot.ledger.keys() | tool_rates
    for resource in sorted(touched, key=lambda resource: resource.order):
        if problem := snapshot.unreadable_configs.get(resource):
            refused.append(Outcome(resource, OutcomeStatus.REFUSED, f"{problem.path}: {problem.reason}"))
            continue
        keys = _desired_keys(plan, rates, of_reassignment, snapshot, resource, pace)
        entry, current = snapshot.ledger.get(resource), snapshot.throttles.get(resource, {})
        if entry is not None and (edited := [name for name, key in keys.items() if key.is_repaired]):
            repaired[resource] = resource_edit(entry, edited, current)
            if resource in contested:
                keys |= {name: replace(keys[name], finding="") for name in edited}
            if resource in held_resources:
                keys |= {name: DesiredKey(current.get(name), entry.keys[name]) for name in edited}
        texts = [(name, text) for name, key in keys.items() for text in (key.finding, key.warning) if text]
        findings += [f"{resource}, {name}: {text}" for name, text in texts]
        invalid_lists += any(key.is_invalid for key in keys.values())
        change = change_of(resource, keys, current, entry, at, term, cycle)
        if change is not None:
            done.append(change)
    return ChangeSet(tuple(done), tuple(refused), tuple(findings), invalid_lists, repaired)


@dataclass(frozen=True)
class Applied:
    """The changes of a cycle that were carried out. The class has no slots, so that `reported` is cached."""

    rates: Mapping[LinkSide, int | None] = field(default_factory=dict)
    """(broker id, role) -> new rate in bytes/s; None: the throttle was removed or restored."""
    topics_cleared: tuple[str, ...] = ()
    """Topics whose lists no longer contain our entries."""
    steps: frozenset[LinkSide] = frozenset()
    """New rates that need no line of the log: later steps of a ramp, and what is restored again and again."""

    @cached_property
    def reported(self) -> frozenset[LinkSide]:
        """Link sides whose new rate is logged. Of a ramp only the first step is."""
        return frozenset(side for side, rate in self.rates.items() if rate is not None) - self.steps

    @staticmethod
    def of(
        changes: Sequence[Change],
        outcomes: Sequence[Outcome],
        ledger: Mapping[ConfigResource, LedgerEntry] | None = None,
        contested: Collection[ConfigResource] = (),
    ) -> Applied:
        """Return the carried-out changes.

        Args:
            changes: those of a cycle.
            outcomes: what became of them.
            ledger: the ledger before them; None: empty.
            contested: the resources that another party edits again and again: what is restored there is not logged.
        """
        rates: dict[LinkSide, int | None] = {}
        steps: set[LinkSide] = set()
        cleared = []
        for change in applied(changes, outcomes):
            if change.resource.type is ResourceType.BROKER:
                of_change = _rates(change)
                rates |= of_change
                is_contested = change.resource in contested
                steps |= of_change.keys() if is_contested else _steps(change, (ledger or {}).get(change.resource))
            elif change.resource.type is ResourceType.TOPIC and not change.records:
                cleared.append(change.resource.name)
        return Applied(rates, tuple(cleared), frozenset(steps))


def _rates(change: Change) -> dict[LinkSide, int | None]:
    recorded = change.records
    edited = {edit.key: edit.value for edit in change.edits if edit.writes}
    return {
        (change.resource.broker_id, role): int(edited[role.rate_key] or 0) if role.rate_key in recorded else None
        for role in ReplicaRole
        if role.rate_key in edited
    }


def _steps(change: Change, old_entry: LedgerEntry | None) -> set[LinkSide]:
    """Link sides whose ramp already had the same target before this change."""
    old, new = old_entry.keys if old_entry else {}, change.ledger.keys if change.ledger else {}
    return {
        (change.resource.broker_id, role)
        for role in ReplicaRole
        if (before_key := old.get(role.rate_key)) is not None and before_key.target is not None
        if (key := new.get(role.rate_key)) is not None and key.final_rate == before_key.target
    }


def next_steps(plan: Plan, snapshot: Snapshot, at: datetime, term: int, cycle: int, pace: Pace) -> tuple[Change, ...]:
    """Return the next ramp steps of the rates that are below their targets, and no other change."""
    rates, steps = plan.rates, []
    for resource in rates:
        entry = snapshot.ledger.get(resource)
        if entry is None or all(key.target is None for key in entry.keys.values()):
            continue
        keys = _desired_keys(plan, rates, frozenset(), snapshot, resource, pace)
        change = change_of(resource, keys, snapshot.throttles.get(resource, {}), entry, at, term, cycle)
        steps += [change] if change is not None and change.edits else []
    return tuple(steps)


def with_changes(snapshot: Snapshot, done: Iterable[Change]) -> Snapshot:
    """Return the snapshot after these changes."""
    done, throttles = tuple(done), dict(snapshot.throttles)
    for change in done:
        keys = dict(throttles.get(change.resource, {}))
        for edit in change.edits:
            keys.pop(edit.key, None)
            keys |= {} if edit.value is None else {edit.key: edit.value}
        throttles[change.resource] = keys
    ledger = with_records(snapshot.ledger, done)
    return replace(snapshot, throttles={r: keys for r, keys in throttles.items() if keys}, ledger=ledger)


def with_records(
    ledger: Mapping[ConfigResource, LedgerEntry], done: Iterable[Change]
) -> Mapping[ConfigResource, LedgerEntry]:
    """Return the ledger after these changes."""
    after = dict(ledger)
    for change in done:
        after.pop(change.resource, None)
        after |= {} if change.ledger is None else {change.resource: change.ledger}
    return after


def recorded_first(
    changes: Iterable[Change], ledger: Mapping[ConfigResource, LedgerEntry], lost: Collection[ConfigResource]
) -> tuple[Change, ...]:
    """Return the changes; one that restores a value only writes its lost record, and the next cycle restores.

    A writer restores only values that are in its stored ledger.

    Args:
        changes: decided with the lost records.
        ledger: with the lost records.
        lost: resources whose stored entry lacks records.
    """
    return tuple(
        Change(change.resource, (), ledger[change.resource]) if change.resource in lost and change.restored else change
        for change in changes
    )


def removal_of_foreign(snapshot: Snapshot, term: int, cycle: int = 0) -> tuple[Change, ...]:
    """Return the edits that remove every foreign throttle (`--cleanup-foreign`)."""
    return tuple(
        Change(
            resource,
            tuple(Edit(key, value, None) for key, value in keys.items()),
            LedgerEntry(entry.keys, term, cycle) if (entry := snapshot.ledger.get(resource)) else None,
        )
        for resource, keys in foreign_throttles(snapshot).items()
    )


def validate_change(change: Change) -> None:
    """Check the values of a change before any of it is written; every change that `changes` decides is valid.

    A value without a record in the change's ledger entry restores an earlier one, so it must replace a value. It may
    be any text for a rate, since another party set it; `validate_restored` compares it with the stored ledger.

    Raises:
        Invalid: a key does not belong to the resource, is edited twice or gets a malformed value, or a value is set
            that the ledger does not record as ours.
    """
    allowed = _KEYS[change.resource.type]
    recorded = change.ledger.keys if change.ledger else {}
    names = [edit.key for edit in change.edits]
    if len(set(names)) < len(names) or not {*names, *recorded} <= {*allowed}:
        given = ", ".join([*names, *sorted(recorded.keys() - {*names})])
        raise Invalid(f"{change.resource} has the keys {given}; give each of {' and '.join(allowed)} at most once")
    for edit in change.edits:
        if edit.writes and edit.value:
            _validate_value(f"{edit.key} of {change.resource}", edit, edit.value, change.records.get(edit.key))


_KEYS: Mapping[ResourceType, Sequence[str]] = {
    ResourceType.BROKER: RATE_KEYS,
    ResourceType.TOPIC: REPLICAS_KEYS,
    ResourceType.QUOTA: tuple(QuotaKey),
}

_RATE = re.compile(r"0|[1-9][0-9]{0,18}")
"""A rate as autothrottle writes it."""


def _validate_value(where: str, edit: Edit, value: str, record: LedgerKey | None) -> None:
    if edit.key in REPLICAS_KEYS:
        parse_replicas(value)
    elif edit.key not in RATE_KEYS:
        if record is not None:
            validate_value(QuotaKey(edit.key), parse_value(QuotaKey(edit.key), value))
    elif record is not None and not (_RATE.fullmatch(value) and int(value) <= MAX_RATE):
        raise Invalid(f"{where} is {value[:60]!r}; give an integer in 0..{MAX_RATE} without sign and leading zeros")
    if record is None and edit.expected is None:
        raise Invalid(f"{where} is set to {value[:60]!r} without a record in the ledger; give the change its record")
    if record is not None and value not in (record.written, record.intent):
        raise Invalid(f"{where} is set to another value than its record in the ledger has; give the same value")


def validate_restored(change: Change, current: Mapping[str, str], ledger: LedgerEntry | None) -> None:
    """Check the values that a change restores against the stored ledger, which only its writer has read.

    A rate is the one before ours. A replica list contains only entries of the current list and of the one before ours.

    Args:
        change: a valid change.
        current: the current throttles of the resource.
        ledger: the stored entry of the resource; None: no entry.

    Raises:
        Invalid: a restored value is another one.
    """
    stored = ledger.keys if ledger else {}
    for edit in change.restored:
        value, record = current.get(edit.key), stored.get(edit.key)
        original = record.before if record else None
        if edit.value not in (value, original) and not _is_part(edit, value, original):
            raise Invalid(
                f"{edit.key} is restored to {str(edit.value)[:60]!r}, but the value before ours in the ledger is "
                f"{original if original is None else original[:60]!r}; restore that value, or record the new one"
            )


def _is_part(edit: Edit, *texts: str | None) -> bool:
    """Whether a replica list has only entries of these lists."""
    entries = {entry.strip() for text in texts if text for entry in text.split(",")}
    return edit.key in REPLICAS_KEYS and parse_replicas(edit.value or "") <= entries


def intended(change: Change, ledger: LedgerEntry | None, term: int) -> LedgerEntry | None:
    """Return the ledger entry to write before a change, if config and ledger cannot be written in one transaction.

    With this entry, `changes` works from the value before the change as well as from the value after it.

    Args:
        change: the change about to be made.
        ledger: the current entry; None: no entry.
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
    if new is None or new.is_released or edit.value is None:
        # The key is released. Until then the current value is ours, even a tool's rate that we never owned.
        return old or LedgerKey(edit.value, edit.expected)
    is_edited = old is not None and not old.is_released and not old.is_ours(edit.expected)
    replaced = old.written if old is not None and is_edited else edit.expected
    if edit.key not in REPLICAS_KEYS:
        return replace(new, written=replaced, intent=edit.value)
    return replace(new, written=replaced, part=new.owned | (old.owned if old else frozenset()), intent=edit.value)


def _desired_keys(
    plan: Plan,
    rates: Mapping[ConfigResource, Mapping[str, int]],
    of_reassignment: frozenset[int],
    snapshot: Snapshot,
    resource: ConfigResource,
    pace: Pace | None,
) -> dict[str, DesiredKey]:
    """Return the keys of one resource with their desired values."""
    current, records = snapshot.throttles.get(resource, {}), snapshot.records.get(resource, {})
    if resource.type is ResourceType.BROKER:
        broker_id = resource.broker_id
        is_taken_over, is_held = broker_id in of_reassignment, plan.hold.rates_of(broker_id)
        return desired_rates(broker_id, rates.get(resource, {}), current, records, is_taken_over, is_held, pace)
    lists, is_held = plan.replicas.get(resource.name, DesiredReplicas()), plan.hold.lists_of(resource.name)
    return {
        role.replicas_key: desired_replicas(
            lists, role, current.get(role.replicas_key), records.get(role.replicas_key), is_held, plan.hold.entries_of
        )
        for role in ReplicaRole
    }


def change_of(
    resource: ConfigResource,
    keys: Mapping[str, DesiredKey],
    current: Mapping[str, str],
    entry: LedgerEntry | None,
    at: datetime,
    term: int,
    cycle: int,
) -> Change | None:
    """Return the edits that give the keys of one resource their desired values; None: nothing changes.

    A write of unknown outcome may arrive later, see `LATE_WRITES`. Until then the ledger remembers its value, also of a
    key that is released: such a value is ours, and is restored.

    Args:
        resource: the resource.
        keys: key -> its desired value.
        current: key -> its current value.
        entry: the resource's entry in the ledger.
        at: UTC.
        term: the term that writes, for the ledger.
        cycle: the cycle that writes, for the ledger.
    """
    ledger_keys = entry.keys if entry else {}
    records = {name: _record(key, ledger_keys.get(name), current.get(name), at) for name, key in keys.items()}
    ledger = {name: record for name, record in records.items() if record is not None}
    edits = tuple(
        Edit(name, current.get(name), key.value)
        for name, key in keys.items()
        if key.value != current.get(name) or _must_be_unchanged(name, ledger.get(name), ledger_keys.get(name))
    )
    if not edits and ledger == ledger_keys:
        return None
    return Change(resource, edits, LedgerEntry(ledger, term, cycle) if ledger else None)


def _record(key: DesiredKey, old: LedgerKey | None, current: str | None, at: datetime) -> LedgerKey | None:
    """Return the record of a key after its change, with the values of our writes that may still arrive."""
    new = key.ledger
    if old is None or not (old.intent or old.late) or (new is not None and new.intent is not None):
        return new
    late, settles = old.late, old.settles
    if old.intent is not None and old.intent != old.written:  # equal in a record that the store had lost
        sent = texts_of(old.intent)
        late, settles = late | (sent if old.part is None else sent & old.part), at + LATE_WRITES
    if settles is None or (at >= settles and not (new is not None and old.is_late(current))):
        late = frozenset()
    if new is not None:
        return replace(new, late=late, settles=settles if late else None)
    late -= texts_of(key.value)
    return LedgerKey(key.value, key.value, late=late, settles=settles) if late else None


def _must_be_unchanged(name: str, new: LedgerKey | None, old: LedgerKey | None) -> bool:
    """Return whether a value that stays must be checked again when the ledger is written.

    That is the case for a rate that we take over unchanged, since otherwise we would later restore a wrong value. It is
    also the case for a key that we release while one of our writes to it is unconfirmed, or has become impossible.
    """
    if new is not None and not new.is_released:
        return name in RATE_KEYS and (old is None or old.is_released)
    return old is not None and (old.intent is not None or (old.is_released and new is None))


def release_of_ours(snapshot: Snapshot, at: datetime, term: int, cycle: int = 0) -> ChangeSet:
    """Return the edits that restore the earlier value of each of our throttles, even during reassignments.

    Throttles that another party set for a reassignment are not ours and stay.
    """
    return changes(Plan(), replace(snapshot, reassignments=()), at, term, cycle)


def stale_lists(snapshot: Snapshot, overrides: Overrides, keep_throttles: bool = False) -> tuple[str, ...]:
    """Return the topics whose replica lists would change without the pause, by name.

    In these topics, new reassignments run without a throttle, or finished ones are still in the lists.

    Args:
        snapshot: the cluster with its current throttles.
        overrides: the overrides; brokers with an override have list entries of their own.
        keep_throttles: whether throttles would stay after the last reassignment.
    """
    lists = Plan(replicas=replica_lists(snapshot, overrides), hold=hold(snapshot, overrides, keep_throttles))
    change_set = changes(lists, snapshot, _BEGINNING, term=0)
    return tuple(c.resource.name for c in change_set.changes if c.resource.type is ResourceType.TOPIC and c.edits)


_BEGINNING = datetime.min.replace(tzinfo=UTC)
"""A time at which every late write may still arrive."""

BUDGET = 10_000
"""Maximum number of config changes in `BUDGET_SPAN`. Every broker reads each change notification, and ZooKeeper's Java
client loses its connection at about 38,000 of them."""

BUDGET_SPAN = timedelta(minutes=15)
"""Time for which brokers keep a change notification."""

_RESERVE = BUDGET // 10
"""Changes that ramps leave for lowerings and replica lists."""


@dataclass(frozen=True, slots=True)
class WriteHistory:
    """The config changes of the last 15 minutes, in every term: brokers keep the notifications of all leaders."""

    written: tuple[tuple[float, int], ...] = ()
    """(monotonic time in seconds, number of changes), ascending."""

    def add(self, now: float, count: int) -> WriteHistory:
        """Return the history with this many more changes."""
        oldest = now - BUDGET_SPAN.total_seconds()
        recent = tuple(entry for entry in self.written if entry[0] > oldest)
        return WriteHistory((*recent, (now, count)) if count else recent)

    def spent(self, now: float) -> int:
        """Return the number of changes in the last 15 minutes."""
        oldest = now - BUDGET_SPAN.total_seconds()
        return sum(count for at, count in self.written if at > oldest)


@dataclass(frozen=True, slots=True)
class RampState:
    """The rising rates of the last plan of a term. Times are monotonic, in seconds.

    A broker limits the mean over about 11 s. After a raise by d, it lets 11 s of d through at link speed, then nothing
    for seconds, then the next burst, for most of a minute. With steps of one second, each burst is only a step's share.
    A step has the same size however late it is: a larger one would be such a burst. A ramp is desired state: the ledger
    keeps its target beside the current rate, so a new leader continues from the current rate. A lowering needs no ramp,
    and cancels one.

    Each step is fenced like the writes of a cycle, and expects the config that the previous step left. A foreign change
    or a new leader ends the ramp; the next cycle reads the current throttles. `ownership.step` has the rule of a single
    rate.

    Source: Kafka's SimpleRate (the window).
    """

    plan: Plan = Plan()  # noqa: RUF009 (frozen)
    snapshot: Snapshot = Snapshot.empty()  # noqa: RUF009 (frozen)
    """The cluster as the last write left it."""
    raised: Mapping[LinkSide, float] = field(default_factory=dict)
    """Rising link side -> time of its last step."""
    refused: frozenset[ConfigResource] = frozenset()
    """Excluded until the next cycle retries them: a broker that is down does not delay the others."""
    brokers: int = 1
    """Number of brokers with a rising rate, >= 1."""

    def pace(self, history: WriteHistory, now: float) -> Pace:
        """Return for each link side the time that its next step stands for, 0 while it must wait.

        This is the time since its last step, at most the planned time between two steps: a late step is not larger. The
        first step is due at once, also under a new leader.
        """
        return Pace(self.raised, self._interval(history, now), now)

    def steps(self, history: WriteHistory, at: datetime, now: float, fence: int, cycle: int) -> tuple[Change, ...]:
        """Return the changes of the steps that are due."""
        due = next_steps(self.plan, self.snapshot, at, fence, cycle, self.pace(history, now))
        return tuple(change for change in due if change.resource not in self.refused)

    def begin(
        self, plan: Plan, snapshot: Snapshot, held_resources: frozenset[ConfigResource] = frozenset()
    ) -> RampState:
        """Return the state before the writes of a cycle.

        Args:
            plan: of the cycle.
            snapshot: of the cycle.
            held_resources: brokers whose rates do not rise before the next cycle.
        """
        return replace(self, plan=plan, snapshot=snapshot, refused=held_resources)

    def after_writes(self, changes: Sequence[Change], outcomes: Sequence[Outcome], now: float) -> RampState:
        """Return the state after these changes were written."""
        changed = applied(changes, outcomes)
        refused = frozenset(outcome.resource for outcome in outcomes if outcome.status is OutcomeStatus.REFUSED)
        raised = {**self.raised, **{side: now for change in changed for side in _raised(change)}}
        after = replace(
            self,
            snapshot=with_changes(self.snapshot, changed) if changed else self.snapshot,
            refused=self.refused | refused,
        )
        rising = after._rising()
        return replace(
            after,
            raised={side: since for side, since in raised.items() if side in rising},
            brokers=max(1, len({broker_id for broker_id, _ in rising})),
        )

    def due_in(self, history: WriteHistory, now: float) -> timedelta | None:
        """Return the time until the next step; None: no rate rises."""
        rising = self._rising()
        if not rising:
            return None
        interval, longest = self._interval(history, now), LONGEST_PACE.total_seconds()
        last = min(self.raised.get(side, now) for side in rising)
        return timedelta(seconds=max(0.0, last + interval - now if interval <= longest else longest))

    def throttles(self, history: WriteHistory, at: datetime, now: float) -> tuple[Throttle, ...]:
        """Return the throttles of all brokers as the last write left them, by broker and role.

        Args:
            history: the recent writes.
            at: UTC.
            now: monotonic time at the same moment, in seconds.
        """
        rising, records, interval = self._rising(), self.snapshot.rate_records, self._interval(history, now)
        throttles = []
        for broker_id, role in sorted(self.snapshot.rates, key=lambda side: (side[0], side[1].value)):
            rate = self.snapshot.rates[broker_id, role]
            target = records[broker_id, role].target if (broker_id, role) in rising else None
            if target is None or int(target) <= rate:
                throttles.append(Throttle(broker_id, role, rate))
                continue
            wait = self.raised.get((broker_id, role), now) - now + _ramp_seconds(rate, int(target), interval)
            arrival = None if math.isinf(wait) else _whole_seconds(at + timedelta(seconds=max(wait, 0.0)))
            throttles.append(Throttle(broker_id, role, rate, int(target), arrival))
        return tuple(throttles)

    def _rising(self) -> set[LinkSide]:
        """Link sides whose rate is below its target in the plan."""
        sides = {(decision.broker_id, decision.role) for decision in self.plan.decisions}
        return {
            side
            for side, record in self.snapshot.rate_records.items()
            if record.target is not None and side in sides and ConfigResource.broker(side[0]) not in self.refused
        }

    def _interval(self, history: WriteHistory, now: float) -> float:
        """Seconds between two steps; inf: no budget. More rising brokers or recent writes mean fewer, larger steps."""
        steps = (BUDGET - _RESERVE - history.spent(now)) // self.brokers
        if steps < 1:
            return math.inf
        return min(max(RISE.total_seconds() / (steps / 2), PACE.total_seconds()), LONGEST_PACE.total_seconds())


def _ramp_seconds(rate: int, target: int, interval: float) -> float:
    """Return the time from one step to the last one, in seconds; inf: the budget allows no steps.

    >>> _ramp_seconds(30, 90, 1.0)
    20.0
    """
    if math.isinf(interval):
        return interval
    return interval * math.ceil((target - rate) / math.ceil(target * interval / RISE.total_seconds()))


def _whole_seconds(time: datetime) -> datetime:
    """Return a time rounded up to a second, so that each step of a ramp gives the same one."""
    return (time + timedelta(microseconds=999_999)).replace(microsecond=0)


def applied(changes: Sequence[Change], outcomes: Sequence[Outcome]) -> tuple[Change, ...]:
    """Return the changes that were carried out."""
    done = {outcome.resource for outcome in outcomes if outcome.status is OutcomeStatus.APPLIED}
    return tuple(change for change in changes if change.resource in done)


def _raised(change: Change) -> list[LinkSide]:
    """Link sides that this change raises by a step, or whose rate it takes over as the start of a ramp."""
    keys = change.ledger.keys if change.ledger else {}
    return [
        (change.resource.broker_id, role)
        for role in ReplicaRole
        if change.resource.type is ResourceType.BROKER
        if (key := keys.get(role.rate_key)) is not None and key.target is not None
        if any(edit.key == role.rate_key for edit in change.edits)
    ]
