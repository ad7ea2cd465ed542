"""Compares two views of the cluster, and reports what a cycle should see at once, worded the same for both backends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autothrottle.core.cluster.snapshot import TopicReassignment

_SHOWN = 100
"""Maximum number of topics in a sentence."""

Difference = tuple[str, bool]
"""(what happened, in one sentence; whether bytes move unthrottled until a cycle has handled it)."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One view of the cluster."""

    brokers: frozenset[int] = frozenset()
    """Ids of the registered brokers."""
    reassignments: Mapping[str, TopicReassignment] = field(default_factory=dict)
    """Topic -> its reassignment."""


class SnapshotDifferences:
    """Compares each view of the cluster with the previous ones; not thread-safe."""

    def __init__(self) -> None:
        self._views: list[ClusterView] = []

    def since_last_view(self, view: ClusterView) -> list[Difference]:
        """Return what changed since the last call."""
        views, self._views = self._views, [view]
        if not views:
            # A watcher that subscribed before the first view was complete would otherwise never hear of these.
            return [(f"reassignment found: {_names(sorted(view.reassignments))}", True)] if view.reassignments else []
        return list(dict.fromkeys(item for old in views for item in _view_differences(old, view)))

    def note_handed_out(self, view: ClusterView) -> None:
        """Record a view that was handed out since the last call; the next call reports differences from it too."""
        if self._views and view != self._views[0]:
            self._views.append(view)


def _view_differences(old: ClusterView, new: ClusterView) -> Iterator[Difference]:
    if started := sorted(new.reassignments.keys() - old.reassignments.keys()):
        yield f"reassignment started: {_names(started)}", True
    if ended := sorted(old.reassignments.keys() - new.reassignments.keys()):
        yield f"reassignment ended: {_names(ended)}", False
    for topic in sorted(new.reassignments.keys() & old.reassignments.keys()):
        old_reassignment, new_reassignment = old.reassignments[topic], new.reassignments[topic]
        if new_reassignment is not old_reassignment and new_reassignment != old_reassignment:
            yield from _reassignment_differences(old_reassignment, new_reassignment)
    if appeared := sorted(new.brokers - old.brokers):
        yield f"brokers registered: {appeared}", False
    if gone := sorted(old.brokers - new.brokers):
        yield f"brokers gone: {gone}", False


def _names(topics: Sequence[str]) -> str:
    """The topics; the reason of a cycle, which contains them, is in every response with the cycle."""
    more = f" and {len(topics) - _SHOWN} more" if len(topics) > _SHOWN else ""
    return f"[{' '.join(topics[:_SHOWN])}{more}]"


def _reassignment_differences(old: TopicReassignment, new: TopicReassignment) -> Iterator[Difference]:
    """What changed in a topic's reassignment: one sentence per kind of change."""
    old_partitions, new_partitions = set(old.partitions), set(new.partitions)

    def changed(column: Callable[[TopicReassignment], Iterable[object]]) -> bool:
        old_values, new_values = (dict(zip(r.partitions, column(r), strict=True)) for r in (old, new))
        return any(old_values[p] != new_values[p] for p in old_partitions & new_partitions)

    if new_partitions - old_partitions or changed(lambda r: r.adding_replicas):
        yield f"reassignment of {new.topic} grew", True
    if old_partitions - new_partitions:
        yield f"partitions of {new.topic} are done", False
    if changed(lambda r: r.leaders):
        yield f"leader of {new.topic} changed", True
    if changed(lambda r: map(frozenset, r.isr)):
        yield f"ISR of {new.topic} changed", False
