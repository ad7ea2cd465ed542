"""Brokers that catch up under throttle: shown to the cycles as if their lagging replicas were being moved to them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import timedelta

from autothrottle.core.catch_up import CatchUp, held_partitions, lagging, with_lagging
from autothrottle.core.configs import ConfigResource
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.topology import Snapshot, TopicPartition
from autothrottle.ports.catch_ups import CatchUpStore

log = logging.getLogger(__name__)

LOOKED_AFTER = timedelta(seconds=2)
"""Until the next cycle while a broker catches up: nothing tells that a replica which does not move joins the ISR."""


class CatchingUp:
    """Which brokers catch up, and what they lack, from cycle to cycle. Only for the planner's thread."""

    def __init__(self, store: CatchUpStore) -> None:
        self._store = store
        self._standing: Mapping[int, CatchUp] = {}
        self._held: frozenset[TopicPartition] = frozenset()
        self._lagging: Mapping[int, frozenset[TopicPartition]] = {}
        self._told: dict[int, int] = {}
        self.is_known = False
        """Whether they were read in this term: until then no throttle may go, it may be a catch-up's."""

    def begin_term(self) -> None:
        """Forget what was read in another term: catch-ups may have begun and ended since."""
        self._standing, self._held, self._lagging, self.is_known = {}, frozenset(), {}, False

    @property
    def brokers(self) -> Collection[int]:
        """Ids of the brokers whose replicas the snapshot must list."""
        return self._standing.keys()

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The partitions whose assignments the snapshot must have, as far as they are known."""
        return self._held

    @property
    def active(self) -> bool:
        """Whether any broker catches up."""
        return bool(self._standing)

    @property
    def shows(self) -> bool:
        """Whether the last `show` showed anything that lags."""
        return any(self._lagging.values())

    def read(self) -> list[str]:
        """Read which brokers catch up; return what is wrong with that, a sentence each: the last ones hold then."""
        try:
            self._standing = self._store.read_catch_ups()
        except AutothrottleError as error:
            fate = "the last ones hold" if self.is_known else "nothing is removed until they can"
            return [f"the catch-ups cannot be read, {fate}: {error}"]
        self.is_known = True
        return []

    def lacks(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot has to be read again, with more assignments."""
        held = held_partitions(snapshot, self.brokers)
        more, self._held = bool(held - self._held), held
        return more

    def show(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the lagging replicas as if they were being moved to their brokers."""
        self._lagging = lagging(snapshot.assignments, self.brokers)
        self._tell()
        return with_lagging(snapshot, self._lagging)

    def beside(self, read: Snapshot, proposed: Collection[TopicPartition]) -> Snapshot:
        """Return the cluster as it is with what was last shown to lag, but for partitions that are only proposed."""
        return with_lagging(read, {b: rows.difference(proposed) for b, rows in self._lagging.items()})

    def end(self, fence: int, refused: Collection[ConfigResource]) -> None:
        """Forget the brokers that are in sync; their throttles are gone by now, but for those that were refused.

        Raises:
            NotLeader: when the term is over.
        """
        for broker_id in sorted(b for b, rows in self._lagging.items() if not rows):
            if ConfigResource.broker(broker_id) in refused:
                continue
            if self._store.purge_catch_up(fence, self._standing[broker_id]):
                log.info("Broker %d is in sync: its catch-up under throttle is over", broker_id)

    def _tell(self) -> None:
        """Log when a broker begins, and whenever it has caught up with some more."""
        counts = {broker_id: len(rows) for broker_id, rows in self._lagging.items() if rows}
        for broker_id, count in counts.items():
            if count != self._told.get(broker_id):
                log.info("Broker %d catches up under throttle: %d replicas are not in sync", broker_id, count)
        self._told = counts
