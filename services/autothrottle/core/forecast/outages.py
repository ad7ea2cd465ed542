"""Brokers that are down while partitions in reassignment wait for them. The type to know is `OutageWatch`.

A reassignment waits for a destination that is down: it neither ends nor fails. Without its source, a partition without
another in-sync replica is offline. The bytes left of such a broker are those of its last known log sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkTraffic, Progress
from autothrottle.core.cluster.snapshot import NO_LEADER, Snapshot, named
from autothrottle.core.forecast.progress import Remainder
from autothrottle.core.texts import excerpt
from autothrottle.core.units import format_size

_BROKERS_SHOWN, _PARTITIONS_SHOWN = 3, 5


@dataclass(frozen=True, slots=True)
class Outage:
    """A broker that is down, and the partitions in reassignment that wait for it."""

    broker_id: int
    since: datetime
    """When the first cycle saw it down, UTC."""
    is_older: bool
    """Whether it was down already when this term began, or when the reassignment began."""
    destination_of: tuple[str, ...]
    """The partitions that it shall copy, as `topic-number`."""
    source_of: tuple[str, ...]
    """The offline partitions that have no other in-sync replica, as `topic-number`."""
    bytes_left: int | None
    """Bytes left to copy to it when its log sizes were last known; None: they never were."""

    @property
    def sentence(self) -> str:
        """What waits for it, and what the operator can do."""
        since = f"since {'before ' * self.is_older}{self.since:%Y-%m-%dT%H:%M:%SZ}"
        parts, fixes = [], [f"start broker {self.broker_id}: the copying goes on"]
        if self.source_of:
            verbs = ("has", "is") if len(self.source_of) == 1 else ("have", "are")
            parts.append("{} {} no other in-sync replica and {} offline".format(_listed(self.source_of), *verbs))
            fixes.append(
                "only if its disks are lost, elect another leader, which loses records: kafka-leader-election.sh "
                "--election-type unclean"
            )
        if self.destination_of:
            size = "an unknown size" if self.bytes_left is None else format_size(self.bytes_left)
            verb = "waits" if len(self.destination_of) == 1 else "wait"
            parts.append(f"{_listed(self.destination_of)} {verb} for it to copy them, with {size} left")
            fixes.append(
                f"give the moves up with `throttlectl cancel --broker {self.broker_id}`, then move the partitions to "
                "another broker with `throttlectl reassign FILE`"
            )
        return f"broker {self.broker_id} is down {since}: {', and '.join(parts)}. Fix: {'; or '.join(fixes)}"


def _listed(partitions: tuple[str, ...]) -> str:
    noun = "partition" if len(partitions) == 1 else "partitions"
    return f"{len(partitions)} {noun} ({excerpt(partitions, _PARTITIONS_SHOWN)})"


@dataclass(frozen=True, slots=True)
class OutageWatch:
    """What a term remembers of its brokers; immutable, `observe` returns a new watch."""

    outages: tuple[Outage, ...] = ()
    """By broker id."""
    registered: frozenset[int] | None = None
    """The brokers that ran in the last cycle; None: there was none."""
    down_since: Mapping[int, tuple[datetime, bool]] = field(default_factory=dict)
    """Broker that is down -> `Outage.since` and `is_older`."""
    bytes_left: Mapping[int, int] = field(default_factory=dict)
    """Follower -> bytes left when its log sizes were last known."""

    def observe(self, snapshot: Snapshot, at: datetime) -> OutageWatch:
        """Return the watch after one more cycle.

        Args:
            snapshot: the cluster; without running brokers, nothing is known.
            at: UTC.
        """
        if not snapshot.brokers:
            return self
        destinations, sources = _waiting(snapshot)
        down = destinations.keys() | sources.keys()
        registered = self.registered or frozenset()
        down_since = {b: self.down_since.get(b, (at, b not in registered)) for b in sorted(down)}
        bytes_left = self._bytes_left(snapshot)
        outages = tuple(
            Outage(b, *down_since[b], tuple(destinations.get(b, ())), tuple(sources.get(b, ())), bytes_left.get(b))
            for b in down_since
        )
        return OutageWatch(outages, snapshot.brokers, down_since, bytes_left)

    def _bytes_left(self, snapshot: Snapshot) -> dict[int, int]:
        progress = snapshot.progress or Progress()
        traffic, last = progress.link_traffic, progress.last_bytes_left
        followers = [b for b, roles in snapshot.participants.items() if ReplicaRole.FOLLOWER in roles]
        sides = {b: traffic.get((b, ReplicaRole.FOLLOWER), LinkTraffic()) for b in followers}
        current = {b: side.bytes_left + last.get(b, 0) for b, side in sides.items() if side.counts or b in last}
        return {b: size for b in followers if (size := current.get(b, self.bytes_left.get(b))) is not None}

    @property
    def findings(self) -> Iterator[str]:
        """A sentence for each of the first brokers that are down, and the number of the others."""
        yield from (outage.sentence for outage in self.outages[:_BROKERS_SHOWN])
        if others := [outage.broker_id for outage in self.outages[_BROKERS_SHOWN:]]:
            yield f"{len(others)} more brokers that partitions in reassignment wait for are down: {excerpt(others, 20)}"

    def in_remainder(self, remainder: Remainder | None, snapshot: Snapshot) -> Remainder | None:
        """Return the remainder with the last known bytes left of the brokers that are down, which have no end.

        Args:
            remainder: of the running brokers; None: nothing is known of them.
            snapshot: the same snapshot.
        """
        waits = {outage.broker_id: outage.bytes_left for outage in self.outages if outage.destination_of}
        progress = snapshot.progress or Progress()
        if not waits or progress.at is None:
            return remainder
        # The progress may be older than the outage, so that it still has the flows to these brokers.
        running = [progress.flows.get(flow) for flow in snapshot.running_flows if flow.follower not in waits]
        sizes = [
            *(count.bytes_left for count in running if count),
            *(size for size in waits.values() if size is not None),
        ]
        return Remainder(sum(sizes), len(running) + len(waits) - len(sizes), None, progress.at, down=tuple(waits))


def _waiting(snapshot: Snapshot) -> tuple[Mapping[int, list[str]], Mapping[int, list[str]]]:
    """Return (broker that is down -> the partitions it shall copy, broker that is down -> its offline partitions)."""
    destinations: dict[int, list[str]] = {}
    sources: dict[int, list[str]] = {}
    for reassignment in snapshot.reassignments:
        is_offline = NO_LEADER in reassignment.leaders
        if not is_offline and reassignment.copying.followers <= snapshot.brokers:
            continue
        for partition, leader, isr, pending in reassignment.rows():
            name = named((reassignment.topic, partition))
            for broker_id in pending:
                if broker_id not in snapshot.brokers:
                    destinations.setdefault(broker_id, []).append(name)
            if leader == NO_LEADER:
                for broker_id in isr:
                    if broker_id not in snapshot.brokers:
                        sources.setdefault(broker_id, []).append(name)
    return destinations, sources
