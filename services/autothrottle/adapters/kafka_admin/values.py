"""Parameters and results of Kafka's admin API as Python values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from autothrottle.adapters.kafka_admin.login import KafkaLogin
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import AutothrottleError

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """How to access Kafka's admin API."""

    bootstrap_servers: tuple[str, ...]
    """Brokers, `host:port` each, at least one."""
    bootstrap_controllers: tuple[str, ...] = ()
    """KRaft controllers, `host:port` each. Empty: the throttle of a broker that is down stays until it returns."""
    login: KafkaLogin = field(default_factory=KafkaLogin, repr=False)
    """One for all clients of a process, so that it can be replaced for all of them."""
    request_timeout: timedelta = timedelta(seconds=15)
    """Deadline of calls without a timeout of their own, > 0."""


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One config key of a broker or topic, at the levels where throttles are set."""

    value: str | None
    """The value in force; None: Kafka hides it (a password)."""
    current: str | None = None
    """The value set on this broker or topic itself; None: not set."""
    default: str | None = None
    """The value of `<default>` for brokers; None: not set."""


Configs = Mapping[str, ConfigValue]
"""Config key of a broker or topic -> its value."""


class ConfigOperation(Enum):
    """The operation of IncrementalAlterConfigs on a value, with Kafka's own names and numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    """Add entries to a list; existing entries are not duplicated."""
    SUBTRACT = 3
    """Remove entries from a list; removing the last one leaves "", not an absent key."""


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """One operation on one config key."""

    key: str
    operation: ConfigOperation
    value: str | None = None
    """None for DELETE only."""


class PartitionReassignment(NamedTuple):
    """A partition under reassignment, as ListPartitionReassignments reports it.

    A tuple, like `PartitionMetadata`, because a dataclass for each of 1,000,000 partitions takes longer to create.
    """

    replicas: tuple[int, ...]
    """All replicas, including adding and removing ones."""
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment, the preferred leader first."""
        return tuple(b for b in self.replicas if b not in self.removing_replicas)


class PartitionMetadata(NamedTuple):
    """Leader, replicas and ISR of a partition."""

    leader: int
    """Broker id; -1: the partition has no leader."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogDirs:
    """The log directories of one broker."""

    sizes: Mapping[TopicPartition, int]
    """Partition -> log size, bytes."""
    total_bytes: int | None
    """Size of the volumes; None: Kafka is older than 3.3."""
    usable_bytes: int | None
    """Free bytes of the volumes whose directories accept new replicas; None: Kafka is older than 3.3."""
    cordoned: bool
    """Whether no directory accepts new replicas (KIP-1066)."""


@dataclass(frozen=True, slots=True)
class Answers(Generic[K, T]):
    """The results of a query to many brokers or topics: values and failures."""

    values: Mapping[K, T]
    """Broker or topic -> its value."""
    failures: Mapping[K, AutothrottleError]
    """Broker or topic -> why it has no value: Unavailable, Missing or Invalid."""
