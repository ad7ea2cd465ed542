"""What an operator wants, as values in our units, each with its range.

How they are read from the texts of options is in `configuration_reader`. The type to know is `Configuration`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from autothrottle.adapters.tls import TlsFiles
from autothrottle.core.capacity import CapacityLimits
from autothrottle.core.limits import Limits
from autothrottle.core.loads import BytesPerSecond
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.policy.static import StaticPolicy
from autothrottle.core.schedule import Schedule


class KafkaBackend(StrEnum):
    """Through what Kafka is read and written."""

    ZOOKEEPER = "zookeeper"
    """Kafka 0.10 to 3.9 in ZooKeeper mode."""
    ADMIN = "admin"
    """Kafka's admin API, 2.4 to 4.x, whether it keeps its own state in ZooKeeper or in KRaft."""


class PolicyName(StrEnum):
    """How rates are decided."""

    ADAPTIVE = "adaptive"
    """Replication counted from log sizes, a margin that learns, and not much more than the move needs."""
    HEADROOM = "headroom"
    """The original's formula: a share of what clients leave free."""
    STATIC = "static"
    """One rate for all."""


@dataclass(frozen=True, slots=True)
class DatadogConfiguration:
    """Where loads come from and events go to."""

    url: str
    """Server, without trailing slash."""
    api_key: str = field(repr=False)
    """"" when none was given; never printed."""
    app_key: str = field(repr=False)
    """"" when none was given; never printed."""
    net_tx_query: str
    net_rx_query: str
    broker_id_tag: str
    instance_type_tag: str
    capacity_tag: str
    """"" when capacities are in no tag."""
    metrics_window: timedelta
    """Span of a query and its rollup, whole seconds, >= 1 s."""
    metrics_delay: timedelta
    """How long ago a query ends, whole seconds, >= 0 s."""
    event_tags: tuple[str, ...]
    """Beside our own."""


@dataclass(frozen=True, slots=True)
class KafkaConfiguration:
    """How Kafka is reached."""

    backend: KafkaBackend
    bootstrap_servers: tuple[str, ...]
    """Brokers, host:port each; () with the ZooKeeper backend when none were given: then nothing asks the admin API."""
    bootstrap_controllers: tuple[str, ...]
    """KRaft controllers, host:port each; () when none were given."""
    client_config: str
    """Path of Kafka's client properties; "" when none was given."""
    request_timeout: timedelta
    """Whole seconds, >= 1 s."""
    discovery_poll: timedelta
    """Between two looks at what moves, 0.1 to 3600 s; for the admin backend."""


@dataclass(frozen=True, slots=True)
class ZooKeeperConfiguration:
    """How ZooKeeper is reached, and what is where in it."""

    addresses: tuple[str, ...]
    """host:port each, without a chroot."""
    prefix: str
    """Kafka's chroot: "" or `/a/b`."""
    config_prefix: str
    """Root of our own state, `/a/b`; not below `prefix`."""
    session_timeout: timedelta
    """1 to 60 s."""

    @property
    def connect_string(self) -> str:
        """The addresses as ZooKeeper's clients take them."""
        return ",".join(self.addresses)


@dataclass(frozen=True, slots=True)
class AddressConfiguration:
    """Where this process listens and where it finds the others: `host:port`, or `unix:PATH` but for the HTTP API."""

    api_listen: str
    grpc_listen: str
    listen: str
    discovery: tuple[str, ...]
    """() when not given, as all below."""
    metrics: tuple[str, ...]
    planner: tuple[str, ...]
    applier: tuple[str, ...]
    admin: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DecisionsConfiguration:
    """Where decisions are logged."""

    uri: str
    """"" when they are not."""
    spool: str
    """A local directory; "" when none was given."""
    retention: timedelta | None
    """None: for ever."""
    cluster_name: str


@dataclass(frozen=True, slots=True)
class SecurityConfiguration:
    """Who may talk to this process."""

    tls: TlsFiles | None
    """None: nothing is encrypted, and anybody who reaches a port may."""
    api_tokens_file: str
    """"" when the HTTP API asks for no token."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What an operator wants, in our units."""

    datadog: DatadogConfiguration
    kafka: KafkaConfiguration
    zookeeper: ZooKeeperConfiguration
    addresses: AddressConfiguration
    security: SecurityConfiguration
    limits: Limits
    schedule: Schedule
    """Hours in which replication gets another share of the headroom; empty: none."""
    finish_by: datetime | None
    """When moves shall be done, UTC; None: as soon as possible."""
    policy: PolicyName
    static_rate: BytesPerSecond
    """For the static policy."""
    capacities: CapacityLimits
    interval: timedelta
    """Between two scheduled cycles, >= 1 s."""
    cleanup_after: int
    """Intervals, >= 1."""
    cleanup_foreign: bool
    shadow: bool
    """Whether nothing is changed in Kafka."""
    decisions: DecisionsConfiguration
    log_format: str
    """text or json."""
    log_level: str
    """debug, info, warning or error."""
    version: bool = False
    """Whether only the version is asked for; everything else is a default then."""
    help: bool = False
    """Whether only the help text is asked for; everything else is a default then."""
    warnings: tuple[str, ...] = ()
    """What is odd without being wrong, for the log."""

    def new_policy(self) -> Policy:
        """Return the policy that decides rates, before it has learned anything."""
        match self.policy:
            case PolicyName.HEADROOM:
                return HeadroomPolicy()
            case PolicyName.ADAPTIVE:
                return AdaptivePolicy()
            case PolicyName.STATIC:
                return StaticPolicy(self.static_rate)
