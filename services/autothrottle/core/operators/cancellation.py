"""Cancellations: which replicas a partition keeps, and whether that is safe.

A cancelled partition keeps its original replicas alone. If none of them is alive and in sync, it is offline or loses
records. Kafka in ZooKeeper mode cancels nevertheless (KAFKA-14424), and so does KRaft where unclean leader elections
are enabled. If fewer than `min.insync.replicas` are left in sync, producers with acks=all fail. No option overrides
this rule. The types to know are `CancelRule` and `Cancellation`.

Source: KIP-455, KAFKA-14424.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from autothrottle.core.cluster.snapshot import Assignment, LogSizes, TopicPartition, named
from autothrottle.core.records import CancelEffect


@dataclass(frozen=True, slots=True)
class Cancellation:
    """The partitions whose reassignments were not cancelled, each with the reason."""

    refused: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Partitions without a reassignment, and those that Kafka refused."""
    unsafe: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Partitions that are not safe on their original replicas; their reassignments go on."""

    @property
    def not_cancelled(self) -> Mapping[TopicPartition, str]:
        """All of them."""
        return {**self.refused, **self.unsafe}


@dataclass(frozen=True, slots=True)
class CancelRule:
    """Brokers and topics, as read directly before partitions are cancelled."""

    live: Collection[int]
    """Ids of the registered brokers."""
    min_in_sync_replicas: Mapping[str, int]
    """Topic -> its `min.insync.replicas`; absent: unknown, so that a cancellation must not lower the ISR."""
    silent: Mapping[int, str] = field(default_factory=dict)
    """Registered broker that does not answer -> why. It does not count as alive."""

    def hazard(self, row: TopicPartition, assignment: Assignment) -> str:
        """Return why a partition must not be cancelled, and what to do; "": it is safe.

        At least min(`min.insync.replicas`, live in-sync replicas) of the original replicas must be alive and in sync,
        never none. A broker that does not answer counts as in sync for the first part, because it may be alive.
        """
        originals = assignment.original
        isr = frozenset(assignment.isr)
        safe = [b for b in originals if b in isr and b in self.live and b not in self.silent]
        live_isr = len(isr.intersection(self.live))
        least = self.min_in_sync_replicas.get(row[0])
        required = max(1, live_isr if least is None else min(least, live_isr))
        if len(safe) >= required:
            return ""
        basis = "min.insync.replicas is unknown" if least is None else f"min.insync.replicas is {least}"
        problems = ", ".join(self._problem(b, isr) for b in originals if b not in safe)
        problems = f": {problems}" if problems else ""
        return (
            f"it needs {required} of its original replicas {list(originals)} alive and in sync, and has {len(safe)}"
            f"{problems} ({basis}, {live_isr} in sync now). {named(row)} goes on moving; let it finish, or cancel it "
            "when enough of them are in sync"
        )

    def _problem(self, broker_id: int, isr: Collection[int]) -> str:
        if broker_id not in self.live:
            return f"broker {broker_id} is down"
        if broker_id in self.silent:
            return f"broker {broker_id} does not answer"
        return f"broker {broker_id} is not in sync"


def cancel_effect(row: TopicPartition, assignment: Assignment, sizes: LogSizes) -> CancelEffect:
    """Return the effect on a partition.

    Args:
        row: the partition, which is being reassigned.
        assignment: its replicas.
        sizes: sizes of the logs on the brokers that gain replicas; those of absent brokers are unknown.
    """
    dropped = tuple(sorted(assignment.adding_replicas))
    logs = [sizes.brokers[b].sizes for b in dropped if b in sizes.brokers]
    lost = sum(log.get(row, 0) for log in logs) if len(logs) == len(dropped) else None
    return CancelEffect(*row, assignment.original, dropped, lost)


def without_reassignment(row: TopicPartition, assignment: Assignment | None) -> str:
    """Return why there is nothing to cancel; None: the partition does not exist; "": it is being reassigned."""
    if assignment is None:
        return f"{named(row)} does not exist; name a partition that does"
    return "" if assignment.moves else f"{named(row)} is not being reassigned; there is nothing to cancel"
