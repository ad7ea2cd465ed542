"""What Kafka's admin API takes and gives, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Generic, TypeVar

from autothrottle.core.errors import AutothrottleError

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """How Kafka's admin API is reached."""

    bootstrap_servers: tuple[str, ...]
    """Brokers, `host:port` each, at least one."""
    bootstrap_controllers: tuple[str, ...] = ()
    """KRaft controllers, `host:port` each; empty: the throttle of a broker that is down stays until it returns."""
    client_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Kafka's own names (`security.protocol`, `sasl.jaas.config`, ...) -> values; holds secrets."""
    request_timeout: timedelta = timedelta(seconds=15)
    """The deadline of a call that names none, > 0."""


class ConfigSource(Enum):
    """From where a config value comes: Kafka's own names and numbers."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    """Set for this broker."""
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    """Set for `<default>`: all brokers without a value of their own."""
    STATIC_BROKER_CONFIG = 4
    """In the broker's file."""
    DEFAULT_CONFIG = 5
    """Nobody set it."""


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One config key of a broker or topic, at all levels where it is set."""

    value: str | None
    """The value in force; None when Kafka hides it (a password)."""
    source: ConfigSource
    """Whose value is in force."""
    levels: Mapping[ConfigSource, str] = field(default_factory=dict)
    """Source -> the value set there, also when another one is in force."""

    @property
    def standing(self) -> str | None:
        """The value set on this very broker or topic; None: there is none."""
        return self.levels.get(ConfigSource.DYNAMIC_BROKER_CONFIG, self.levels.get(ConfigSource.DYNAMIC_TOPIC_CONFIG))

    @property
    def default(self) -> str | None:
        """The value that `<default>` sets for brokers; None: there is none."""
        return self.levels.get(ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


class ConfigOperation(Enum):
    """What IncrementalAlterConfigs does with a value: Kafka's own names and numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    """Add entries to a list; those that are there already are not added again."""
    SUBTRACT = 3
    """Take entries from a list; the last one leaves "", not an absent key."""


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """One operation on one config key."""

    key: str
    operation: ConfigOperation
    value: str | None = None
    """None for DELETE only."""


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A partition under reassignment, as ListPartitionReassignments reports it."""

    replicas: tuple[int, ...]
    """All replicas, those that come and those that go included."""
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Where a partition is."""

    leader: int
    """Broker id, -1 while there is none."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answers(Generic[K, T]):
    """What was asked of many: the answers, and why there is none."""

    values: Mapping[K, T]
    """Who answered -> what."""
    failures: Mapping[K, AutothrottleError]
    """Who did not answer -> why: Unavailable, Missing or Invalid."""
