"""Edits of our throttles by other parties while something moves: how they are noticed, and how often they are undone.

Discovery compares what Kafka holds with what the ledger has as written (`edits`), and starts a cycle for each edit that
it has seen twice (`ForeignEdits`). The cycle restores our value. A party that removes it again and again is named with
its rhythm, and our value is then restored every 10 s at most (`Contests`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from operator import is_
from statistics import median

from autothrottle.core.cluster.configs import (
    RATE_KEYS,
    REPLICAS_KEYS,
    ConfigResource,
    LedgerEntry,
    LedgerKey,
    ReplicaRole,
    ResourceType,
    parse_replicas,
)
from autothrottle.core.cluster.snapshot import TopicReassignment, TopicReassignments
from autothrottle.core.errors import Invalid
from autothrottle.core.texts import excerpt, id_ranges

RECHECK = timedelta(seconds=0.2)
"""Delay before an apparent edit of our throttles by another party is checked again."""

Throttles = Mapping[ConfigResource, Mapping[str, str]]
"""Resource -> its own throttle configs (key -> value), for resources that were read."""

Needed = Mapping[ConfigResource, tuple[str, ...]]
"""Resource -> the throttle keys that reassignments need there."""

Edits = Mapping[tuple[ConfigResource, str], tuple[str | None, int, int]]
"""(resource, key) -> (the current value, which is not ours, None: not set; the term and the cycle that wrote last)."""


def needed_lists(reassignments: Iterable[TopicReassignment]) -> Needed:
    """Return the lists that throttle reassignments. A topic that copies nothing needs none: its lists get removed."""
    return {ConfigResource.topic(r.topic): REPLICAS_KEYS for r in reassignments if r.copying.followers}


def needed_rates(reassignments: Iterable[TopicReassignment]) -> Needed:
    """Return the rates that throttle reassignments, for the roles of each broker."""
    participants = TopicReassignments(reassignments).participants
    return {
        ConfigResource.broker(b): tuple(role.rate_key for role in ReplicaRole if role in roles)
        for b, roles in sorted(participants.items())
    }


@dataclass(slots=True)
class NeededThrottles:
    """The lists and rates that reassignments need, computed once while no reassignment changes."""

    lists: Needed = field(default_factory=dict)
    rates: Needed = field(default_factory=dict)
    _reassignments: tuple[TopicReassignment, ...] = ()

    def of(self, reassignments: Iterable[TopicReassignment]) -> NeededThrottles:
        """Return the throttles of these reassignments; equal ones that are other objects count as changed."""
        current = tuple(reassignments)
        if len(current) == len(self._reassignments) and all(map(is_, current, self._reassignments)):
            return self
        return NeededThrottles(needed_lists(current), needed_rates(current), current)


def edits(needed: Needed, current: Throttles, ledger: Mapping[ConfigResource, LedgerEntry]) -> Edits:
    """Return the current values that differ from our written or intended ones.

    Args:
        needed: the keys to compare; we may be removing others ourselves.
        current: resource -> its throttle configs; a resource that is absent was not read.
        ledger: our entries, read after `current`, because each of our writes is recorded there first.
    """
    foreign = {}
    for resource, keys in needed.items():
        entry = ledger.get(resource)
        if entry is None or resource not in current:
            continue
        for key in keys:
            value, ledger_key = current[resource].get(key), entry.keys.get(key)
            if ledger_key is not None and not _is_ours(key, value, ledger_key):
                foreign[resource, key] = value, entry.term, entry.cycle
    return foreign


def _is_ours(key: str, current: str | None, ledger_key: LedgerKey) -> bool:
    if ledger_key.is_ours(current):
        return True
    if key in RATE_KEYS or current is None:
        return False
    try:
        present, written = parse_replicas(current), parse_replicas(ledger_key.written or "")
        # A list is edited entry by entry, so the entries common to both versions never disappear.
        intended = written if ledger_key.intent is None else parse_replicas(ledger_key.intent)
    except Invalid:
        return False
    return written & intended <= present <= written | intended | ledger_key.late


@dataclass(slots=True)
class ForeignEdits:
    """Tracks edits by other parties of throttles that reassignments need."""

    reported: Edits = field(default_factory=dict)
    """Edits that were reported and are still in place. An edit of a value that we have written again is another one."""
    suspected: Edits = field(default_factory=dict)
    """Edits that were seen once. The queried broker may lag behind, or we are in the middle of a write."""

    def confirmed(
        self, current: Edits, resources: Collection[ConfigResource] | None = None
    ) -> frozenset[ConfigResource]:
        """Store the edits; return resources whose edits were now seen twice and not reported yet.

        Args:
            current: the edits that are in place.
            resources: those that were compared; None: all. The state of the others stays.
        """
        others_reported, others_suspected = (
            {} if resources is None else {place: edit for place, edit in earlier.items() if place[0] not in resources}
            for earlier in (self.reported, self.suspected)
        )
        fresh = current.items() - self.reported.items()
        twice = fresh & self.suspected.items()
        self.reported = others_reported | dict((current.items() - fresh) | twice)
        self.suspected = others_suspected | dict(fresh - twice)
        return frozenset(resource for (resource, _), _ in twice)


def edited_reason(resource: ConfigResource) -> str:
    """Return why a cycle starts after an edit of a resource."""
    return f"another party edited the throttles of {resource}"


CONTEST = 3
"""Edits of a resource within `_CONTEST_SPAN` after which our values are restored every `RESTORE_PAUSE` at most."""

_CONTEST_SPAN = timedelta(minutes=1)

RESTORE_PAUSE = timedelta(seconds=10)

_REMEMBERED = timedelta(minutes=10)
"""How long an edit is remembered: Strimzi's operators reconcile every 2 minutes by default."""

_MOST_EDITS = 8
"""Maximum number of edits to remember of a resource; a rhythm is the median of the times between them."""

_RHYTHMS = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300)
"""The rhythms that findings name, seconds. An edit is noticed up to 2 s late, so shorter ones cannot be told apart."""

_STEADY = 2
"""A finding keeps its rhythm while the measured one differs by at most this factor, so that the log has it once."""


@dataclass(frozen=True, slots=True)
class Contest:
    """The edits of one resource's throttles by another party. Times are monotonic, in seconds."""

    edited: tuple[float, ...] = ()
    """When each edit was noticed, ascending."""
    gaps: tuple[float, ...] = ()
    """The time before each edit but the first, in which our value or the previous edit stood."""
    restored: float | None = None
    """When our value was last restored; None: it was not."""
    writer: tuple[int, int] = (0, 0)
    """(term, cycle) that last restored our value."""
    is_held: bool = False
    """Whether the last edit stays until `RESTORE_PAUSE` has passed."""
    removes: bool = False
    """Whether an edit has removed something; otherwise the values were changed."""
    rhythm: int = 0
    """Time between two edits as the finding names it, seconds; 0: not known yet."""

    @property
    def due(self) -> float:
        """When our value may be restored next."""
        return (self.restored or 0.0) + RESTORE_PAUSE.total_seconds()

    def observe(self, edit: ResourceEdit, writer: tuple[int, int], now: float) -> Contest:
        """Return the state in a cycle that sees an edit of the resource.

        Args:
            edit: what was edited.
            writer: (term, cycle) of this cycle.
            now: monotonic time.
        """
        contest = self
        # A value that we could not restore yet is still the same edit.
        if not self.edited or (not self.is_held and edit.is_after(self.writer)):
            # A value that stood for `RESTORE_PAUSE` because it was held says nothing about the party's rhythm.
            since = self._stood_since()
            gaps = self.gaps if since is None else (*self.gaps, now - since)
            contest = replace(self, edited=(*self.edited, now)[-_MOST_EDITS:], gaps=gaps[-_MOST_EDITS:])
        recent = sum(at >= now - _CONTEST_SPAN.total_seconds() for at in contest.edited)
        is_held = recent >= CONTEST and contest.restored is not None and now < contest.due
        removes, rhythm = self.removes or edit.removes, contest._steady_rhythm()
        if is_held:
            return replace(contest, is_held=True, removes=removes, rhythm=rhythm)
        return replace(contest, is_held=False, removes=removes, rhythm=rhythm, restored=now, writer=writer)

    def _stood_since(self) -> float | None:
        """Return the time from which on the time to the next edit counts; None: there was no edit before."""
        if not self.edited or self.restored is None:
            return None
        was_prompt = self.restored - self.edited[-1] < RESTORE_PAUSE.total_seconds() / 2
        return self.edited[-1] if was_prompt else self.restored

    def _steady_rhythm(self) -> int:
        if len(self.edited) < CONTEST or not self.gaps:
            return 0
        seconds = median(self.gaps)
        least = 0.0 if self.rhythm == _RHYTHMS[0] else self.rhythm / _STEADY
        if self.rhythm and least <= seconds <= self.rhythm * _STEADY:
            return self.rhythm
        return min(_RHYTHMS, key=lambda rhythm: abs(rhythm - seconds))

    def is_over(self, now: float) -> bool:
        """Return whether the party has stopped, as far as one can tell."""
        silence = max(_CONTEST_SPAN.total_seconds(), 3.0 * self.rhythm) if self.rhythm else _REMEMBERED.total_seconds()
        return now - self.edited[-1] > silence


@dataclass(frozen=True, slots=True)
class ResourceEdit:
    """What another party has edited of one resource, as a cycle sees it."""

    removes: bool
    """Whether a rate, a list or entries of a list are gone."""
    written: tuple[int, int] = (0, 0)
    """(term, cycle) that last wrote the resource's ledger entry."""
    is_confirmed: bool = True
    """Whether Kafka has confirmed our last write of the edited keys."""

    def is_after(self, writer: tuple[int, int]) -> bool:
        """Return whether the edit was made after a restoration by this (term, cycle), not before it."""
        return self.is_confirmed and self.written >= writer


@dataclass(frozen=True, slots=True)
class Contests:
    """The parties that edit our throttles, as a term remembers them."""

    resources: Mapping[ConfigResource, Contest] = field(default_factory=dict)
    """Resource with edits in the last minutes -> its edits."""

    def observe(
        self,
        current: Mapping[ConfigResource, ResourceEdit],
        owned: Collection[ConfigResource],
        writer: tuple[int, int],
        now: float,
    ) -> Contests:
        """Return the state in a cycle that sees these edits.

        Args:
            current: resource -> what was edited since our last write.
            owned: the resources with throttles of ours; none if nothing moves, which ends all contests.
            writer: (term, cycle) of this cycle.
            now: monotonic time.
        """
        if not current and not self.resources:
            return self
        recent = {r: contest for r, contest in self.resources.items() if r in owned and not contest.is_over(now)}
        settled = {r: replace(contest, is_held=False) for r, contest in recent.items() if r not in current}
        observed = {r: recent.get(r, Contest()).observe(edit, writer, now) for r, edit in current.items() if r in owned}
        return Contests({**settled, **observed})

    @property
    def contested(self) -> frozenset[ConfigResource]:
        """The resources that another party edits again and again."""
        return frozenset(resource for resource, contest in self.resources.items() if contest.rhythm)

    @property
    def held_resources(self) -> frozenset[ConfigResource]:
        """The resources whose edits stay for now."""
        return frozenset(resource for resource, contest in self.resources.items() if contest.is_held)

    def next_restoration(self, now: float) -> timedelta | None:
        """Return the time until a value that is held may be restored; None: none is held."""
        waits = [contest.due - now for contest in self.resources.values() if contest.is_held]
        return timedelta(seconds=max(0.0, min(waits))) if waits else None

    def findings(self) -> Iterator[str]:
        """Yield a sentence for each kind of resource and rhythm, with the resources and what to do."""
        groups: dict[tuple[ResourceType, bool, int], list[ConfigResource]] = {}
        for resource in sorted(self.contested, key=lambda resource: resource.order):
            contest = self.resources[resource]
            groups.setdefault((resource.type, contest.removes, contest.rhythm), []).append(resource)
        for (kind, removes, rhythm), resources in groups.items():
            what, restored, fix = _OF_BROKERS if kind is ResourceType.BROKER else _OF_TOPICS
            verb = "removes" if removes else "changes"
            names = _brokers(resources) if kind is ResourceType.BROKER else _topics(resources)
            when = "every few seconds" if rhythm == _RHYTHMS[0] else f"about every {rhythm} s"
            yield (
                f"another program {verb} the {what} of {names} {when}; autothrottle restores "
                f"{restored}, after {CONTEST} times in a minute every {RESTORE_PAUSE.total_seconds():.0f} s at most, "
                f"and copies may run unthrottled until then. Fix: {fix}"
            )


NO_CONTESTS = Contests()


def resource_edit(entry: LedgerEntry, edited: Sequence[str], current: Mapping[str, str]) -> ResourceEdit:
    """Return what was edited of a resource.

    Args:
        entry: its entry in the ledger.
        edited: the keys whose values are not ours.
        current: key -> its current value.
    """
    records = [entry.keys[key] for key in edited]
    removes = any(_is_removal(key, current.get(key), record) for key, record in zip(edited, records, strict=True))
    return ResourceEdit(removes, (entry.term, entry.cycle), all(record.intent is None for record in records))


def _is_removal(key: str, current: str | None, record: LedgerKey) -> bool:
    if current is None or key in RATE_KEYS:
        return current is None
    try:
        return not record.owned <= parse_replicas(current)
    except Invalid:
        return False


_SHOWN = 20
"""Maximum number of topics in a finding."""

_OF_BROKERS = (
    "throttle",
    "it",
    "stop that program until the reassignment ends. Kafka's kafka-reassign-partitions with --cancel or --verify "
    "removes the throttles of all brokers unless it gets --preserve-throttles, and Cruise Control removes those of its "
    "own replication throttle. To set another rate, use `throttlectl set`",
)
_OF_TOPICS = (
    "throttled replica lists",
    "them",
    "stop that program until the reassignment ends. Strimzi's Topic Operator removes the lists of topics with a "
    "KafkaTopic: annotate it with strimzi.io/managed=false, see docs/kubernetes.md; Kafka's kafka-reassign-partitions "
    "with --cancel or --verify needs --preserve-throttles",
)


def _brokers(resources: Sequence[ConfigResource]) -> str:
    ids = [resource.broker_id for resource in resources]
    return f"broker {ids[0]}" if len(ids) == 1 else f"{len(ids)} brokers [{id_ranges(ids)}]"


def _topics(resources: Sequence[ConfigResource]) -> str:
    names = [resource.name for resource in resources]
    return f"topic {names[0]}" if len(names) == 1 else f"{len(names)} topics [{excerpt(names, _SHOWN, ' ')}]"
