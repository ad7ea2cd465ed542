"""A partition of a simulated cluster: who has it, who is to have it, and what each replica lacks."""

from __future__ import annotations

from dataclasses import dataclass, field

from autothrottle.core.errors import Invalid
from autothrottle.core.loads import BytesPerSecond
from autothrottle.core.topology import NO_LEADER, TopicPartition


@dataclass(slots=True, kw_only=True)
class SimulatedPartition:
    """A partition: its size, who has it, and who is to have it."""

    topic: str
    partition: int
    size: float
    """Bytes in the leader's log."""
    replicas: tuple[int, ...]
    """Broker ids in Kafka's order; during a reassignment the target, then what will be removed."""
    isr: tuple[int, ...]
    """Broker ids of the replicas that are in sync."""
    leader: int
    """Broker id of the leader, or -1."""
    produce_rate: BytesPerSecond = 0
    """How fast the log grows, bytes/s; a part of the clients' traffic into the leader, not added to it."""
    landed: dict[int, float] = field(default_factory=dict)
    """Broker id -> bytes that this replica has."""
    adding: tuple[int, ...] = ()
    """`adding_replicas` of a reassignment."""
    removing: tuple[int, ...] = ()
    """`removing_replicas` of a reassignment."""
    leader_epoch: int = 0
    """Grows with every change of the leader."""
    version: int = 0
    """Grows with every change of replicas, ISR or leader."""

    def __post_init__(self) -> None:
        if not self.replicas or len(set(self.replicas)) != len(self.replicas):
            raise Invalid(f"replicas {list(self.replicas)} of {self.name}: name at least one broker, each once")
        if not set(self.isr) <= set(self.replicas) or self.leader not in (*self.isr, NO_LEADER):
            raise Invalid(
                f"{self.name}: replicas {list(self.replicas)}, ISR {list(self.isr)}, leader {self.leader}: "
                "the ISR are replicas, and the leader is one of the ISR or -1"
            )
        self.landed = {b: self.size if b in self.isr else self.landed.get(b, 0.0) for b in self.replicas}

    @property
    def key(self) -> TopicPartition:
        """Topic and partition number."""
        return self.topic, self.partition

    @property
    def name(self) -> str:
        """Kafka's way to write it: `topic-partition`."""
        return f"{self.topic}-{self.partition}"

    @property
    def reassigning(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.adding or self.removing)

    def lacks(self, broker_id: int) -> float:
        """Return the bytes that a replica has still to copy."""
        return max(self.size - self.landed[broker_id], 0.0)

    def reassign(self, target: tuple[int, ...]) -> None:
        """Begin to move to `target`, instead of a reassignment that is under way."""
        origin = [b for b in self.replicas if b not in self.adding]
        self.adding = tuple(b for b in target if b not in origin)
        self.removing = tuple(b for b in origin if b not in target)
        self._keep(target + self.removing)

    def join(self, broker_id: int) -> None:
        """Take a replica that has everything into the ISR."""
        self.landed[broker_id] = self.size
        self.isr = (*self.isr, broker_id)
        self.version += 1

    def lead(self, leader: int) -> None:
        """Let another in-sync replica lead, which has everything; -1: none."""
        if leader == self.leader:
            return
        self.leader = leader
        self.leader_epoch += 1
        self.version += 1
        if leader != NO_LEADER:
            self.landed[leader] = self.size

    def drop(self, broker_id: int) -> None:
        """Take the replica of a broker that is down out of the ISR, unless it is the last one."""
        if broker_id in self.isr and len(self.isr) > 1:
            self.isr = tuple(b for b in self.isr if b != broker_id)
            self.version += 1

    def finish(self) -> None:
        """End the reassignment once all adding replicas are in sync: the removing ones go."""
        self._keep(tuple(b for b in self.replicas if b not in self.removing))
        self.adding = self.removing = ()

    def _keep(self, replicas: tuple[int, ...]) -> None:
        self.replicas = replicas
        self.landed = {b: self.landed.get(b, 0.0) for b in replicas}
        self.isr = tuple(b for b in self.isr if b in replicas)
        self.version += 1
        if self.leader not in replicas:
            self.leader = next((b for b in replicas if b in self.isr), NO_LEADER)
            self.leader_epoch += 1
