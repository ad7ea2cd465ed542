"""What a cycle should see at once, told from two looks at the cluster: the same words whatever the backend."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from autothrottle.core.topology import TopicReassignment

Item = tuple[str, bool]
"""What happened, in one sentence, and whether bytes move unthrottled until a cycle has seen it."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the cluster saw."""

    brokers: frozenset[int] = frozenset()
    """Ids of the registered brokers."""
    moving: Mapping[str, TopicReassignment] = field(default_factory=dict)
    """Topic -> its reassignment."""


class News:
    """Compares each look at the cluster with those before it; not thread-safe."""

    def __init__(self) -> None:
        self._known: list[Look] = []

    def since_last_look(self, look: Look, told: Collection[str] = ()) -> list[Item]:
        """Return what happened since this was asked last, but for the start of those topics that was told meanwhile."""
        known, self._known = self._known, [look]
        if not known:
            # Whoever began to watch before the first look was over would wait for these in vain.
            return [(f"reassignment found: [{' '.join(sorted(look.moving))}]", True)] if look.moving else []
        return list(dict.fromkeys(item for old in known for item in _news(old, look, told)))

    def handed_out(self, look: Look) -> None:
        """Note what somebody was told past this: when it was behind the last look, the next one tells that again."""
        if self._known and look != self._known[0]:
            self._known.append(look)


def started_line(topics: Iterable[str]) -> str:
    """Say that the reassignment of some topics started."""
    return f"reassignment started: [{' '.join(topics)}]"


def _news(old: Look, new: Look, told: Collection[str]) -> Iterator[Item]:
    if started := sorted(new.moving.keys() - old.moving.keys() - set(told)):
        yield started_line(started), True
    if ended := sorted(old.moving.keys() - new.moving.keys()):
        yield f"reassignment ended: [{' '.join(ended)}]", False
    for topic in sorted(new.moving.keys() & old.moving.keys()):
        before, after = old.moving[topic], new.moving[topic]
        if after is not before and after != before:
            yield from _differences(before, after)
    if appeared := sorted(new.brokers - old.brokers):
        yield f"brokers registered: {appeared}", False


def _differences(old: TopicReassignment, new: TopicReassignment) -> Iterator[Item]:
    """What changed in a topic's reassignment: one sentence for each kind."""
    before, after = _by_partition(old), _by_partition(new)
    both = before.keys() & after.keys()
    if after.keys() - before.keys() or any(before[p].adding != after[p].adding for p in both):
        yield f"reassignment of {new.topic} grew", True
    if before.keys() - after.keys():
        yield f"partitions of {new.topic} are done", False
    if any(before[p].leader != after[p].leader for p in both):
        yield f"leader of {new.topic} changed", True
    if any(before[p].isr != after[p].isr for p in both):
        yield f"ISR of {new.topic} changed", False


class _Partition(NamedTuple):
    leader: int
    isr: frozenset[int]
    adding: tuple[int, ...]


def _by_partition(reassignment: TopicReassignment) -> dict[int, _Partition]:
    columns = (reassignment.leaders, map(frozenset, reassignment.isr), reassignment.adding_replicas)
    return dict(zip(reassignment.partitions, map(_Partition, *columns), strict=True))
