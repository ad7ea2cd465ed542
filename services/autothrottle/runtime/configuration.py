"""The operator's settings, converted to our units and validated.

`configuration_reader` parses them from the texts of options. The type to know is `Configuration`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from autothrottle.adapters.credentials.tls import TlsFiles
from autothrottle.core.control.schedule import Schedule
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.policy.limits import Limits
from autothrottle.core.policy.static import StaticPolicy
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.units import BytesPerSecond


class KafkaBackend(StrEnum):
    """How to access Kafka: ZooKeeper or the Admin API."""

    ZOOKEEPER = "zookeeper"
    """Kafka 0.10 to 3.9 in ZooKeeper mode."""
    ADMIN = "admin"
    """Kafka's Admin API, 2.4 to 4.x, in ZooKeeper mode or KRaft mode."""


class PolicyName(StrEnum):
    """The policy that decides rates."""

    ADAPTIVE = "adaptive"
    """Counts replication from log sizes, learns its margin, and gives little more than the reassignment needs."""
    HEADROOM = "headroom"
    """The original's formula: a share of the capacity that clients leave free."""
    STATIC = "static"
    """One rate for all brokers."""


@dataclass(frozen=True, slots=True)
class DatadogConfiguration:
    """Source of loads and destination of events."""

    url: str
    """Server URL without trailing slash."""
    api_key: str = field(repr=False)
    """"" if not given; never printed."""
    app_key: str = field(repr=False)
    """"" if not given; never printed."""
    net_tx_query: str
    net_rx_query: str
    broker_id_tag: str
    instance_type_tag: str
    capacity_tag: str
    """"" if no tag holds capacities."""
    metrics_window: timedelta
    """Length and rollup of a query, whole seconds, >= 1 s."""
    metrics_delay: timedelta
    """Age of a query's end, whole seconds, >= 0 s."""
    event_tags: tuple[str, ...]
    """Tags in addition to our own."""


@dataclass(frozen=True, slots=True)
class KafkaConfiguration:
    """How to connect to Kafka."""

    backend: KafkaBackend
    bootstrap_servers: tuple[str, ...]
    """Brokers, host:port each; () if not given to the ZooKeeper backend, which then makes no Admin API calls."""
    bootstrap_controllers: tuple[str, ...]
    """KRaft controllers, host:port each; () if not given."""
    client_config: str
    """Path of Kafka's client properties; "" if not given."""
    request_timeout: timedelta
    """Whole seconds, >= 1 s."""
    discovery_poll: timedelta
    """Interval of polls for reassignments, 0.1 to 3600 s; for the admin backend."""


@dataclass(frozen=True, slots=True)
class ZooKeeperConfiguration:
    """How to connect to ZooKeeper, and the paths of its trees."""

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
        """The addresses in the form of ZooKeeper's clients."""
        return ",".join(self.addresses)


@dataclass(frozen=True, slots=True)
class AddressConfiguration:
    """Listening addresses and the services' addresses: `host:port`, or `unix:PATH` except for the HTTP API."""

    api_listen: str
    grpc_listen: str
    listen: str
    discovery: tuple[str, ...]
    """() if not given, like all addresses below."""
    metrics: tuple[str, ...]
    planner: tuple[str, ...]
    applier: tuple[str, ...]
    admin: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DecisionsConfiguration:
    """Settings of the decision log."""

    uri: str
    """Destination; "" turns the log off."""
    spool: str
    """A local directory; "" if not given."""
    retention: timedelta | None
    """None: forever."""
    cluster_name: str


@dataclass(frozen=True, slots=True)
class SecurityConfiguration:
    """Authentication and encryption of this process's ports."""

    tls: TlsFiles | None
    """None: no encryption, and no authentication of callers."""
    api_tokens_file: str
    """"" if the HTTP API requires no token."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """All settings, in our units."""

    datadog: DatadogConfiguration
    kafka: KafkaConfiguration
    zookeeper: ZooKeeperConfiguration
    addresses: AddressConfiguration
    security: SecurityConfiguration
    limits: Limits
    schedule: Schedule
    """Hours with another share of the headroom for replication; may be empty."""
    finish_by: datetime | None
    """Deadline of reassignments, UTC; None: as soon as possible."""
    policy: PolicyName
    static_rate: BytesPerSecond
    """For the static policy."""
    capacities: CapacityLimits
    interval: timedelta
    """Time between scheduled cycles, >= 1 s."""
    cleanup_after: int
    """Intervals, >= 1."""
    cleanup_foreign: bool
    shadow: bool
    """True: change nothing in Kafka."""
    decisions: DecisionsConfiguration
    log_format: str
    """text or json."""
    log_level: str
    """debug, info, warning or error."""
    version: bool = False
    """True: print the version only; all other settings are defaults."""
    help: bool = False
    """True: print the help text only; all other settings are defaults."""
    warnings: tuple[str, ...] = ()
    """Valid but suspicious settings, for the log."""

    def new_policy(self) -> Policy:
        """Return a new policy without learned state."""
        match self.policy:
            case PolicyName.HEADROOM:
                return HeadroomPolicy()
            case PolicyName.ADAPTIVE:
                return AdaptivePolicy()
            case PolicyName.STATIC:
                return StaticPolicy(self.static_rate)
