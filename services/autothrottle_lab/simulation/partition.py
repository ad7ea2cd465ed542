"""A partition of a simulated cluster: its replicas, its reassignment, and the bytes that each replica has copied."""

from __future__ import annotations

from dataclasses import dataclass, field

from autothrottle.core.cluster.snapshot import NO_LEADER, TopicPartition
from autothrottle.core.errors import Invalid
from autothrottle.core.units import BytesPerSecond


@dataclass(slots=True, kw_only=True)
class SimulatedPartition:
    """A partition: its size, its replicas, and its reassignment."""

    topic: str
    partition: int
    size: float
    """Bytes in the leader's log."""
    replicas: tuple[int, ...]
    """Broker ids in Kafka's order; during a reassignment the target, then the removing replicas."""
    isr: tuple[int, ...]
    """Broker ids of the in-sync replicas."""
    leader: int
    """Broker id of the leader, or -1."""
    produce_rate: BytesPerSecond = 0
    """Bytes/s appended to the log. It is a part of the leader's inbound client traffic, not added to it."""
    copied: dict[int, float] = field(default_factory=dict)
    """Broker id -> bytes that this replica has."""
    adding: tuple[int, ...] = ()
    """`adding_replicas` of a reassignment."""
    removing: tuple[int, ...] = ()
    """`removing_replicas` of a reassignment."""
    leader_epoch: int = 0
    """Increases with every change of the leader."""
    version: int = 0
    """Increases with every change of replicas, ISR or leader."""

    def __post_init__(self) -> None:
        if not self.replicas or len(set(self.replicas)) != len(self.replicas):
            raise Invalid(f"replicas {list(self.replicas)} of {self.name}: name at least one broker, each once")
        if not set(self.isr) <= set(self.replicas) or self.leader not in (*self.isr, NO_LEADER):
            raise Invalid(
                f"{self.name}: replicas {list(self.replicas)}, ISR {list(self.isr)}, leader {self.leader}: "
                "the ISR must be a subset of the replicas, and the leader must be in the ISR or -1"
            )
        self.copied = {b: self.size if b in self.isr else self.copied.get(b, 0.0) for b in self.replicas}

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def name(self) -> str:
        """As Kafka writes it: `topic-partition`."""
        return f"{self.topic}-{self.partition}"

    @property
    def reassigning(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding or self.removing)

    def bytes_left(self, broker_id: int) -> float:
        """Return the bytes that a replica still has to copy."""
        return max(self.size - self.copied[broker_id], 0.0)

    def reassign(self, target: tuple[int, ...]) -> None:
        """Start a reassignment to `target`; it replaces one in progress."""
        origin = [b for b in self.replicas if b not in self.adding]
        self.adding = tuple(b for b in target if b not in origin)
        self.removing = tuple(b for b in origin if b not in target)
        self._keep(target + self.removing)

    def join(self, broker_id: int) -> None:
        """Add a replica that has caught up to the ISR."""
        self.copied[broker_id] = self.size
        self.isr = (*self.isr, broker_id)
        self.version += 1

    def lead(self, leader: int) -> None:
        """Make another in-sync replica the leader; -1: no leader. An in-sync replica has the whole log."""
        if leader == self.leader:
            return
        self.leader = leader
        self.leader_epoch += 1
        self.version += 1
        if leader != NO_LEADER:
            self.copied[leader] = self.size

    def drop(self, broker_id: int) -> None:
        """Remove the replica of a failed broker from the ISR, unless it is the last one."""
        if broker_id in self.isr and len(self.isr) > 1:
            self.isr = tuple(b for b in self.isr if b != broker_id)
            self.version += 1

    def finish(self) -> None:
        """End the reassignment and drop the removing replicas. Call it once all adding replicas are in sync."""
        self._keep(tuple(b for b in self.replicas if b not in self.removing))
        self.adding = self.removing = ()

    def _keep(self, replicas: tuple[int, ...]) -> None:
        self.replicas = replicas
        self.copied = {b: self.copied.get(b, 0.0) for b in replicas}
        self.isr = tuple(b for b in self.isr if b in replicas)
        self.version += 1
        if self.leader not in replicas:
            self.leader = next((b for b in replicas if b in self.isr), NO_LEADER)
            self.leader_epoch += 1
