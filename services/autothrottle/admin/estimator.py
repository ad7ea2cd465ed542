"""What a reassignment would be, worked out from what discovery and metrics say now; nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from autothrottle.core.errors import AutothrottleError, Unavailable
from autothrottle.core.estimate import Estimate, Goal, estimate, only, transfers, wanted_sizes
from autothrottle.core.limits import Limits
from autothrottle.core.loads import Loads, Port
from autothrottle.core.overrides import Overrides
from autothrottle.core.plan import plan
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Observation, Policy
from autothrottle.core.reassignment import Targets, proposal, with_proposed
from autothrottle.core.schedule import NO_SCHEDULE, Schedule
from autothrottle.core.topology import Snapshot, TopicPartition, moving_ports
from autothrottle.ports.cluster import SnapshotSource
from autothrottle.ports.log_sizes import LogSizeSource
from autothrottle.ports.metrics import LoadSource
from autothrottle.ports.overrides import OverrideStore

GROWTH_SECONDS = 2.0
"""Between two readings of log sizes, which tell what is produced."""

_SHOWN = 10
"""How many brokers a note names."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """Asks whoever knows, and works it out."""

    snapshots: SnapshotSource
    sizes: LogSizeSource
    loads: LoadSource
    overrides: OverrideStore
    limits: Limits
    schedule: Schedule = NO_SCHEDULE
    """Hours in which replication gets another share of the headroom."""
    policy: Policy = HeadroomPolicy()  # noqa: RUF009 (frozen)
    """Decides the rates; it has learned nothing, since the planner's own is another one."""
    wait: Callable[[float], None] = time.sleep
    """Lets so many seconds pass."""

    def estimate(self, wanted: Targets, goal: Goal, timeout: timedelta) -> Estimate:
        """Return what a reassignment would be, or what it needs.

        Args:
            wanted: where partitions shall be; those that are on their way there count with what is left of them.
            goal: what is allowed or wanted.
            timeout: for all of it, > 0.

        Raises:
            Invalid, Missing, Conflict: when it cannot be submitted.
            Unavailable: when the cluster or the sizes of its logs cannot be read in time.
        """
        patience = _Patience(timeout)
        snapshot = self.snapshots.fetch_snapshot(partitions=wanted.keys(), timeout=patience.left())
        found = proposal(snapshot, wanted)
        moving = replace(snapshot, reassignments=only(snapshot.reassignments, found.moving))
        proposed = with_proposed(moving, found.start)
        logs = wanted_sizes(proposed.reassignments)
        sizes = self.sizes.fetch_log_sizes(logs, patience.left())
        loads, notes = self._loads(patience)
        total = self._total_partitions(snapshot, patience)
        self.wait(min(GROWTH_SECONDS, patience.left().total_seconds() / 2))
        carried = transfers(proposed.reassignments, sizes, self.sizes.fetch_log_sizes(logs, patience.left()))
        # Decided with all that moves, as the cycles would: a broker's throttle is one for all of it.
        now = datetime.now(UTC)
        limits, policy = self.schedule.limits(self.limits, now), self.policy.observe(Observation(now, snapshot, loads))
        # Where the operator says what the throttles are, an override of other ones would only hide what links have.
        overrides = self.overrides.read_overrides() if goal == Goal() else Overrides()
        decided = plan(with_proposed(snapshot, found.start), loads, limits, overrides, policy=policy)
        overridden = {d.broker_id for d in decided.decisions if d.reason.is_override}
        if ruled := overridden & {broker_id for broker_id, _ in carried.ports}:
            notes.append(f"an override rules {_which(ruled)}: their throttles are its own, whatever clients leave")
        if shared := {broker_id for broker_id, _ in _ports_of_others(snapshot, found.moving) & carried.ports.keys()}:
            notes.append(
                f"{_which(shared)} send or receive in other moves, too: these share the throttles, and it takes longer"
            )
        notes += [f"broker {b} does not tell its log sizes: {why}" for b, why in sorted(sizes.problems.items())]
        return estimate(carried, decided.decisions, goal, total, notes)

    def _loads(self, patience: _Patience) -> tuple[Loads, list[str]]:
        try:
            return self.loads.fetch_loads(patience.left() / 2), []
        except AutothrottleError as error:
            return Loads(), [f"metrics cannot be read, the rates are those without: {error}"]

    def _total_partitions(self, snapshot: Snapshot, patience: _Patience) -> int:
        """How many partitions have a replica on a broker that is registered."""
        listed = self.snapshots.fetch_snapshot(replicas_of=snapshot.brokers, timeout=patience.left())
        return len({(topic, p) for topics in listed.replicas.values() for topic, rows in topics.items() for p in rows})


def _ports_of_others(snapshot: Snapshot, own: Collection[TopicPartition]) -> frozenset[Port]:
    """The ports at which something else moves already."""
    rows = {(move.topic, partition) for move in snapshot.reassignments for partition in move.partitions}
    others = replace(snapshot, reassignments=only(snapshot.reassignments, rows.difference(own)))
    return moving_ports(others)


def _which(broker_ids: Collection[int]) -> str:
    return f"{len(broker_ids)} of its brokers" if len(broker_ids) > _SHOWN else f"brokers {sorted(broker_ids)}"


class _Patience:
    """The time that is left for all of it."""

    def __init__(self, timeout: timedelta) -> None:
        self._deadline = time.monotonic() + timeout.total_seconds()

    def left(self) -> timedelta:
        """What is left.

        Raises:
            Unavailable: when that is nothing.
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Unavailable("the estimate was not done in time; try again with a longer time-out")
        return timedelta(seconds=left)
