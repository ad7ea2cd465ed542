"""Catch-ups under throttle: cycles see each lagging replica of such a broker as a reassignment to it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import timedelta

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.snapshot import Snapshot, TopicPartition
from autothrottle.core.control.catch_up import CatchUp, lagging, partitions_on, with_lagging
from autothrottle.core.errors import AutothrottleError
from autothrottle.ports.state_store import CatchUpStore

log = logging.getLogger(__name__)

CATCH_UP_POLL = timedelta(seconds=2)
"""Time to the next cycle while a broker catches up: Kafka sends no event when a replica outside a reassignment joins
the ISR."""


class CatchingUp:
    """Tracks which brokers catch up and which of their replicas lag. Only for the planner's thread."""

    def __init__(self, store: CatchUpStore) -> None:
        self._store = store
        self._current: Mapping[int, CatchUp] = {}
        self._held: frozenset[TopicPartition] = frozenset()
        self._lagging: Mapping[int, frozenset[TopicPartition]] = {}
        self._logged: dict[int, int] = {}
        self.is_known = False
        """Whether this term has read the catch-ups. Until then no throttle is removed: it may belong to a catch-up."""

    def begin_term(self) -> None:
        """Forget the previous term: catch-ups may have begun or ended since."""
        self._current, self._held, self._lagging, self.is_known = {}, frozenset(), {}, False

    @property
    def brokers(self) -> Collection[int]:
        """Brokers whose replicas the snapshot must list."""
        return self._current.keys()

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """Partitions whose assignments the snapshot must contain, as far as they are known."""
        return self._held

    @property
    def active(self) -> bool:
        return bool(self._current)

    @property
    def shows(self) -> bool:
        """Whether the last `show` added any lagging replica."""
        return any(self._lagging.values())

    def read(self) -> list[str]:
        """Read which brokers catch up; return the findings. On an error the last known ones stay."""
        try:
            self._current = self._store.read_catch_ups()
        except AutothrottleError as error:
            effect = "the last known ones stay" if self.is_known else "nothing is removed until they can be read"
            return [f"the catch-ups cannot be read; {effect}: {error}"]
        self.is_known = True
        return []

    def lacks(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot lacks assignments that catch-ups need, so that it must be read again."""
        held = partitions_on(snapshot, self.brokers)
        more, self._held = bool(held - self._held), held
        return more

    def show(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with each lagging replica as a reassignment to its broker."""
        self._lagging = lagging(snapshot.assignments, self.brokers)
        self._log_progress()
        return with_lagging(snapshot, self._lagging)

    def beside(self, read: Snapshot, proposed: Collection[TopicPartition]) -> Snapshot:
        """Return `read` with the lagging replicas of the last `show`, except those of proposed partitions."""
        return with_lagging(read, {b: rows.difference(proposed) for b, rows in self._lagging.items()})

    def end(self, fence: int, refused: Collection[ConfigResource]) -> None:
        """End the catch-ups of brokers that are in sync, unless the removal of their throttles was refused.

        Raises:
            NotLeader: when the term is over.
        """
        for broker_id in sorted(b for b, rows in self._lagging.items() if not rows):
            if ConfigResource.broker(broker_id) in refused:
                continue
            if self._store.purge_catch_up(fence, self._current[broker_id]):
                log.info("Broker %d is in sync: its catch-up under throttle has ended", broker_id)

    def _log_progress(self) -> None:
        """Log each broker's number of lagging replicas when it changes."""
        counts = {broker_id: len(rows) for broker_id, rows in self._lagging.items() if rows}
        for broker_id, count in counts.items():
            if count != self._logged.get(broker_id):
                log.info("Broker %d catches up under throttle: %d replicas are out of sync", broker_id, count)
        self._logged = counts
