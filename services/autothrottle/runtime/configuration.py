"""All options, declared once: their names, kinds, defaults and meanings, and the values that the operator gave.

The name of a field is the name of its flag, with `_` for `-`. Help texts, docs/configuration.md and shell completion
come from these declarations. `configuration_reader` reads the texts and checks combinations of options. The type to
know is `Configuration`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Any, ClassVar

from autothrottle.adapters.credentials import TlsFiles
from autothrottle.adapters.zookeeper.security import OtherClients, SecurityFiles
from autothrottle.core.access import CertificateRoles, parse_certificate_roles
from autothrottle.core.cluster.configs import TOPIC_NAME
from autothrottle.core.operators.sources import Schedule, parse_schedule
from autothrottle.core.policy.interface import Limits, Policy
from autothrottle.core.policy.registry import POLICIES, POLICY_GROUP, is_installed, policy_class
from autothrottle.core.traffic.broker_matching import BrokerLabel
from autothrottle.core.traffic.capacity import (
    MAX_CAPACITY_MEGABYTES,
    CapacityLimits,
    parse_broker_cap_map,
    parse_cap_map,
    parse_capacity,
)
from autothrottle.core.traffic.counters import SeriesKind, SeriesName
from autothrottle.core.traffic.exporters import EXPORTERS, Exporter
from autothrottle.core.traffic.loads import Capacity
from autothrottle.core.units import MEGABYTE, BytesPerSecond
from autothrottle.runtime import option_kinds as kinds
from autothrottle.runtime.access import OPEN_ENDPOINTS
from autothrottle.runtime.logs import FORMATS, LEVELS
from autothrottle.runtime.option_kinds import Option, Refused, declared_options, option


class KafkaBackend(StrEnum):
    """How to access Kafka: ZooKeeper or the Admin API."""

    ZOOKEEPER = "zookeeper"
    """Kafka 0.10 to 3.9 in ZooKeeper mode."""
    ADMIN = "admin"
    """Kafka's Admin API, 2.4 to 4.x, in ZooKeeper mode or KRaft mode."""


class StateStore(StrEnum):
    """Where the election, the ledger and what operators set are stored."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    """A topic of the cluster itself, over the Admin API backend."""


OUTPUTS = ("text", "json")
"""Formats of findings."""

METRICS_SOURCES: Mapping[str, tuple[str, ...]] = {
    "datadog": ("api-key", "app-key"),
    "prometheus": ("prometheus-url",),
    "scrape": (),
    "kafka": (),
    "none": (),
}
"""Metrics source -> the options that it requires; `X-file` replaces `X`."""

METRICS_SOURCE_GROUP = "autothrottle.metrics_sources"
"""Group of the entry points with further metrics sources: factories `(Configuration) -> LoadSource`."""


def _metrics_source(text: str) -> str:
    if text not in METRICS_SOURCES and text not in entry_points(group=METRICS_SOURCE_GROUP).names:
        raise Refused("is not installed")
    return text


def _policy(text: str) -> str:
    if not is_installed(text):
        raise Refused("is not installed")
    return text


_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?(Z|[+-][0-9]{2}:[0-9]{2})", re.ASCII)


def _point_in_time(text: str) -> datetime | None:
    if not text.strip():
        return None
    try:
        if _TIME.fullmatch(text.strip()):
            return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise Refused("is not a time with its time zone")


_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""It is part of file and folder names."""


def _capacity(name: str, meaning: str, example: str) -> Capacity | None:
    def parse(text: str) -> Capacity | None:
        return parse_capacity(text, name) if text.strip() else None

    return option(parse, "", meaning, _CAPACITY, example=example)


_PROMQL = "PromQL: a range vector of counters, or an instant vector of rates in bytes/s"


def _series_kind(text: str) -> SeriesKind | None:
    if text not in ("", *SeriesKind):
        raise Refused("is neither counter nor rate")
    return SeriesKind(text) if text else None


def _label_name(text: str) -> str:
    if text and not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", text):
        raise Refused("is not the name of a label")
    return text


def _scrape_url(text: str) -> str:
    if text and not re.fullmatch(r"https?://[!-~]+", text):
        raise Refused("is not an http or https URL")
    if kinds.has_user(text):
        raise Refused(
            "contains a user",
            "give http://{host}:9100/metrics, and the user and password in a file with --scrape-user-file",
        )
    if text and not re.search(r"\{(host|broker)\}", text):
        raise Refused("has neither {host} nor {broker}, so all brokers would have one target")
    return text


def _decisions(text: str) -> str:
    if re.search(r"://[^/?#@]*:[^/?#]*@", text):
        raise Refused(
            "contains a password",
            "give s3://bucket/path, and the keys in the variables of the store, such as AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY",
        )
    if not text.isprintable():
        raise Refused("contains a control character")
    return text.strip()


def _promql(direction: str) -> str:
    return f"sum by (instance) (rate(node_network_{direction}_bytes_total[2m]))"


_KEY_FILE = "a readable file with the key and nothing else"
_PEM_FILE = "a readable PEM file"
_TOKEN_FILE = "a readable file with the token alone"
_USER_FILE = "a readable file with USER:PASSWORD alone"
_CAPACITY = f'MB/s or {{"tx":MB/s,"rx":MB/s}}, each > 0 and <= {MAX_CAPACITY_MEGABYTES}'
_CAPACITIES = f"a JSON object of {_CAPACITY}"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The values of all options, in our units. A name in capitals starts a group of options; its value is the title."""

    GENERAL: ClassVar[str] = "General"
    config: str = kinds.file(
        "TOML file with options; its keys are the names of the flags", "autothrottle.toml", "a readable TOML file"
    )
    version: bool = kinds.boolean("Print the version and exit")
    log_format: str = kinds.choice("text", "Format of log lines", FORMATS)
    log_level: str = kinds.choice("info", "Lowest level of log lines", LEVELS)

    CHECK: ClassVar[str] = "Check"
    output: str = kinds.choice(
        "text", "Format of the findings of `autothrottle check`; -o is its short form", OUTPUTS, short="o"
    )

    METRICS: ClassVar[str] = "Metrics"
    metrics_source: str = option(
        _metrics_source,
        "datadog",
        "Source of load and capacity. Without it: datadog with its keys, prometheus with prometheus-url, scrape with "
        "scrape-url, else kafka with bootstrap-servers",
        f"one of {', '.join(METRICS_SOURCES)}, or an entry point of the group {METRICS_SOURCE_GROUP}",
    )
    metrics_window: timedelta = kinds.seconds(
        "120", "Length of the interval that a load covers; 12 is the default with metrics-source scrape", whole=True
    )
    metrics_delay: timedelta = kinds.seconds(
        "0", "Age of the newest complete points; queries end this long ago", at_least=0, whole=True
    )

    consumer_fanout: float = kinds.number(
        "1", "How often consumers read each produced byte (metrics-source kafka)", "", float, at_most=100
    )

    broker_exporter: str = kinds.choice(
        "node_exporter", "Exporter whose metrics prometheus and scrape read, see docs/metrics-sources.md", EXPORTERS
    )
    broker_tx_series: tuple[SeriesName, ...] = kinds.series_names(
        "broker-tx-series",
        "Series with the bytes that a broker sends, all summed up; from the exporter if empty",
        "bytesout_total,replicationbytesout_total",
    )
    broker_rx_series: tuple[SeriesName, ...] = kinds.series_names(
        "broker-rx-series",
        "Series with the bytes that a broker receives, all summed up; from the exporter if empty",
        "bytesin_total,replicationbytesin_total",
    )
    broker_series_kind: SeriesKind | None = option(
        _series_kind,
        "",
        "Whether broker-tx-series, broker-rx-series and the series of own queries are counters of bytes or rates in "
        "bytes/s; from their names if empty",
        "counter, rate, or empty",
        example="counter",
    )
    broker_device_label: str = option(
        _label_name,
        "",
        "Label with the network device; from the exporter if empty",
        "the name of a label, or empty",
        example="interface",
    )
    broker_leader_quota_series: tuple[SeriesName, ...] = kinds.series_names(
        "broker-leader-quota-series",
        "Series with the throttled replication that a broker sends, bytes/s; Kafka's own names if empty",
        "kafka_server_LeaderReplication_byte_rate",
    )
    broker_follower_quota_series: tuple[SeriesName, ...] = kinds.series_names(
        "broker-follower-quota-series",
        "Series with the throttled replication that a broker receives, bytes/s; Kafka's own names if empty",
        "kafka_server_FollowerReplication_byte_rate",
    )
    net_devices: str = kinds.device_pattern(
        "Network devices whose bytes and speeds count, see docs/metrics-sources.md; from facts and names if empty"
    )
    broker_label: BrokerLabel | None = kinds.broker_label("from the exporter if empty")
    broker_map: Mapping[str, int] = kinds.broker_map()

    PROMETHEUS: ClassVar[str] = "Prometheus"
    prometheus_url: str = kinds.url("", "Prometheus server", "http://prometheus:9090")
    prometheus_selector: str = kinds.text(
        "", "Further label matchers of the exporter's queries", "PromQL label matchers", example='job="kafka"'
    )
    prometheus_tx_query: str = kinds.text(
        "", "Query for outbound traffic; from the exporter if empty", _PROMQL, example=_promql("transmit")
    )
    prometheus_rx_query: str = kinds.text(
        "", "Query for inbound traffic; from the exporter if empty", _PROMQL, example=_promql("receive")
    )
    prometheus_ca: str = kinds.file(
        "Certificates of the authorities of the server; those of the system if empty", "/etc/ssl/ca.crt", _PEM_FILE
    )
    prometheus_token_file: str = kinds.file(
        "Bearer token, read at each request", "/run/secrets/prometheus-token", _TOKEN_FILE
    )
    prometheus_user_file: str = kinds.file(
        "User and password for basic authentication",
        "/run/secrets/prometheus-user",
        _USER_FILE,
    )
    prometheus_headers_file: str = kinds.file(
        "Further headers, such as the tenant of Mimir",
        "/run/secrets/prometheus-headers",
        "a readable file with NAME: VALUE in each line",
    )

    SCRAPE: ClassVar[str] = "Scraping"
    scrape_url: str = option(
        _scrape_url,
        "",
        "Address of each broker's exporter; from the exporter if empty",
        "a URL without user, with {host} (host in the broker's registration) or {broker} (broker id)",
        example="http://{host}:9100/metrics?collect[]=netdev&collect[]=netclass",
    )
    scrape_ca: str = kinds.file(
        "Certificates of the authorities of the exporters; those of the system if empty",
        "/etc/ssl/exporters.crt",
        _PEM_FILE,
    )
    scrape_token_file: str = kinds.file("Bearer token for the exporters", "/run/secrets/scrape-token", _TOKEN_FILE)
    scrape_user_file: str = kinds.file(
        "User and password for the exporters, by basic authentication",
        "/run/secrets/scrape-user",
        _USER_FILE,
    )
    scrape_interval: timedelta = kinds.seconds("5", "Time between two readings of an exporter")

    DATADOG: ClassVar[str] = "Datadog"
    api_key: str = kinds.text("", "Datadog API key", example="the key", secret=True)
    app_key: str = kinds.text("", "Datadog application key", example="the key", secret=True)
    api_key_file: str = kinds.file("File with the Datadog API key", "/run/secrets/api-key", _KEY_FILE)
    app_key_file: str = kinds.file("File with the Datadog application key", "/run/secrets/app-key", _KEY_FILE)
    datadog_url: str = kinds.url("https://api.datadoghq.com", "Datadog server")
    net_tx_query: str = kinds.text(
        "avg:system.net.bytes_sent{service:kafka} by {host}", "Datadog query for outbound traffic by host"
    )
    net_rx_query: str = kinds.text(
        "avg:system.net.bytes_rcvd{service:kafka} by {host}", "Datadog query for inbound traffic by host"
    )
    broker_id_tag: str = kinds.tag("broker_id", "Datadog host tag with the broker id")
    instance_type_tag: str = kinds.tag("instance-type", "Datadog host tag with the instance type")
    dd_event_tags: tuple[str, ...] = kinds.tags("Additional tags of Datadog events")

    KAFKA: ClassVar[str] = "Kafka"
    kafka_backend: KafkaBackend = kinds.choice(
        KafkaBackend.ZOOKEEPER,
        "How to access Kafka: ZooKeeper or the Admin API; admin is the default with bootstrap-servers and without "
        "zk-addr and zk-prefix",
        KafkaBackend,
    )
    kafka_native_mode: bool = kinds.boolean("Same as kafka-backend admin")
    bootstrap_servers: tuple[str, ...] = kinds.addresses(
        "",
        "Kafka brokers for the admin backend (localhost:9092 if empty); with the zookeeper backend, brokers for log "
        "sizes and for submitting reassignments",
        "localhost:9092",
    )
    kafka_bootstrap_controllers: tuple[str, ...] = kinds.addresses(
        "", "KRaft controllers for writing the throttles of stopped brokers (admin backend)", "localhost:9093"
    )
    kafka_client_config: str = kinds.client_properties()
    kafka_api_request_timeout: timedelta = kinds.seconds("15", "Timeout of a request to Kafka", whole=True)
    discovery_poll: timedelta = kinds.seconds(
        "0.5", "Interval of polls for reassignments (admin backend)", at_least=Decimal("0.1"), at_most=3600
    )

    STATE: ClassVar[str] = "State store"
    state_store: StateStore = kinds.choice(
        StateStore.ZOOKEEPER,
        "Where to store our own state; kafka is the default with bootstrap-servers and without zk-addr, zk-prefix and "
        "kafka-backend",
        StateStore,
    )
    state_topic: str = option(
        kinds.checked(re.compile(TOPIC_NAME).fullmatch, "is not the name of a topic"),
        "__autothrottle_state",
        "Topic of our own state in Kafka, created at the first start (state-store kafka)",
        "a topic name: 1 to 249 letters, digits, '.', '_' and '-'",
    )
    session_timeout: timedelta = kinds.seconds(
        "6", "Session timeout of each process in the state store; bounds a failover", at_most=60
    )

    ZOOKEEPER: ClassVar[str] = "ZooKeeper"
    zk_addr: tuple[str, ...] = kinds.addresses("localhost:2181", "ZooKeeper servers")
    zk_prefix: str = kinds.znode("", "Kafka's chroot in ZooKeeper", "/kafka")
    zk_config_prefix: str = kinds.znode("autothrottle", "Root znode of our own state; not below zk-prefix")
    zk_session_timeout: timedelta = kinds.seconds("6", "Same as session-timeout", at_most=60)
    zk_tls_ca: str = kinds.zookeeper_file("tls-ca")
    zk_tls_cert: str = kinds.zookeeper_file("tls-cert")
    zk_tls_key: str = kinds.zookeeper_file("tls-key")
    zk_digest_file: str = kinds.zookeeper_file("digest")
    zk_sasl_file: str = kinds.zookeeper_file("sasl")
    zk_acl: OtherClients = kinds.choice(
        OtherClients.OPEN,
        "What clients without our login may do with our znodes; read and none need a login, see docs/security.md",
        OtherClients,
    )

    RATES: ClassVar[str] = "Rates"
    policy: str = option(
        _policy,
        next(iter(POLICIES)),
        "Policy for deciding rates, see docs/how-it-works.md",
        f"one of {', '.join(POLICIES)}, or an entry point of the group {POLICY_GROUP}",
        choices=tuple(POLICIES),
    )
    static_rate: BytesPerSecond = kinds.megabytes_per_second(
        "50", "Rate of every broker in each role with the static policy"
    )
    interval: timedelta = kinds.seconds(
        "180", "Time between scheduled cycles; 30 is the default with state-store kafka, which Kafka alone means"
    )
    min_rate: BytesPerSecond = kinds.megabytes_per_second("10", "Lowest throttle; also the throttle without metrics")
    max_rate: float = kinds.percent(
        "90", "Share of the headroom for replication; sets max-tx-rate and max-rx-rate", above=0, at_most=100
    )
    max_tx_rate: float = kinds.percent("90", "Share of the outbound headroom for replication", above=0, at_most=100)
    max_rx_rate: float = kinds.percent("90", "Share of the inbound headroom for replication", above=0, at_most=100)
    change_threshold: float = kinds.percent("10", "Smallest change of a measured rate to write", at_most=1_000_000)
    failure_threshold: int = kinds.count(
        "1", "Scheduled cycles without metrics in which a broker keeps its rates, before it gets min-rate", at_least=0
    )
    pause_over_capacity: bool = kinds.boolean("Throttle below min-rate, down to 0, while clients need the link")
    schedule: Schedule = option(
        parse_schedule,
        "",
        "Hours with another share of the headroom than max-rate, in both directions",
        "a comma-separated list of HH:MM-HH:MM=PERCENT without overlaps, each > 0 and <= 100, then @ZONE; UTC without "
        "zone",
        example="09:00-17:00=50,22:00-06:00=95@Europe/Berlin",
    )
    finish_by: datetime | None = option(
        _point_in_time,
        "",
        "Deadline of reassignments; until then they take at most twice the rate needed to meet it",
        "a time with its time zone; empty: as soon as possible",
        example="2030-01-31T06:00:00Z",
    )
    shadow: bool = kinds.boolean(
        "Decide and record, change nothing in Kafka; needs its own state-topic, or in ZooKeeper zk-config-prefix"
    )

    CAPACITY: ClassVar[str] = "Link capacity"
    cap_map: Mapping[str, Capacity] = option(
        lambda text: parse_cap_map(text, "cap-map"),
        "",
        "Link capacity by instance type",
        _CAPACITIES,
        example='{"d2.2xlarge":120}',
    )
    broker_cap_map: Mapping[int, Capacity] = option(
        lambda text: parse_broker_cap_map(text, "broker-cap-map"),
        "",
        "Link capacity by broker id; beats the capacity tag, the instance type and the default",
        _CAPACITIES,
        example='{"1001":120}',
    )
    capacity_tag: str = kinds.tag("", "Datadog host tag with the link capacity in MB/s; none if empty", "capacity")
    default_capacity: Capacity | None = _capacity(
        "default-capacity", "Fallback link capacity. Without it, brokers of unknown capacity count as failed", "120"
    )
    capacity: Capacity | None = _capacity(
        "capacity", "Same as default-capacity; metrics-source kafka needs it, or broker-cap-map", "1000MB/s"
    )

    REMOVAL: ClassVar[str] = "Removal of throttles"
    cleanup_after: int = kinds.count("60", "Idle intervals before removal of leftover throttles", at_least=1)
    cleanup_foreign: bool = kinds.boolean("Also remove leftover throttles that other tools set")
    skip_auto_delete_throttles: bool = kinds.boolean("Keep throttles when reassignments end instead of removing them")

    DECISIONS: ClassVar[str] = "Decision log"
    decisions: str = option(
        _decisions,
        "",
        "Destination of the decision log for `autothrottle score`; no log if empty",
        "a local path or a URI without password, such as s3://bucket/path",
        example="/var/lib/autothrottle/decisions",
    )
    decisions_spool: str = kinds.text(
        "",
        "Local directory for decisions that are not yet in a file; below a local decisions path if empty",
        "a local path",
        example="/var/lib/autothrottle/spool",
    )
    decisions_retention: timedelta | None = kinds.number(
        "0",
        "Days until logged decisions are removed; never if 0",
        "days",
        lambda days: timedelta(days=int(days)) or None,
        at_most=100_000,
        whole=True,
    )
    decisions_min_free: int = kinds.number(
        "256",
        "Free disk space below which no decisions are written to the spool",
        "MB",
        lambda megabytes: int(megabytes) * MEGABYTE,
        at_most=1_000_000,
        whole=True,
    )
    cluster_name: str = option(
        kinds.checked(_CLUSTER_NAME.fullmatch, "is not a cluster name"),
        "kafka",
        "Name of the cluster in the decision log, events, traces, metrics and the state",
        "1 to 100 letters, digits, '.', '_' and '-', starting with a letter or digit",
    )

    POOLS: ClassVar[str] = "Pools"
    pools: str = kinds.file(
        "Pools of topics and brokers, reloaded on change, see docs/pools.md; none if empty",
        "/etc/autothrottle/pools.toml",
        "a readable TOML file",
    )
    history: str = kinds.text(
        "",
        "Directory of the history of metricsfetcher, from which admin computes a forecast every hour; none if empty",
        "a directory",
        example="/var/lib/autothrottle/history",
    )

    PAGE: ClassVar[str] = "Page"
    clusters: str = kinds.file(
        "Other clusters that the page shows, as in contexts.toml, with credentials of a viewer; none if empty",
        "/etc/autothrottle/clusters.toml",
        "a readable TOML file with a table for each cluster",
    )
    scores: str = kinds.text(
        "",
        "Local directory in which `autothrottle score` writes, from which the page shows the last recoveries; none if "
        "empty",
        "a directory",
        example="/var/lib/autothrottle/scores",
    )

    ADDRESSES: ClassVar[str] = "Addresses"
    api_listen: str = kinds.listen("localhost:8080", "Listening address of the HTTP API", unix=False)
    grpc_listen: str = kinds.listen("127.0.0.1:8090", "Listening address of the gRPC API of `autothrottle run`")
    listen: str = kinds.listen("127.0.0.1:0", "Listening address of a single service")
    metrics_listen: str = kinds.listen(
        "",
        "Listening address of /metrics and the probes of a single service over HTTP; none if empty. `autothrottle run` "
        "and the gateway serve them at api-listen",
        unix=False,
        example="127.0.0.1:9404",
    )
    advertise: str = kinds.advertised("Address at which other hosts call this process; the listening address if empty")
    discovery_addr: tuple[str, ...] = kinds.service_addresses("discovery", "127.0.0.1:4001")
    metrics_addr: tuple[str, ...] = kinds.service_addresses("metrics", "127.0.0.1:4002")
    planner_addr: tuple[str, ...] = kinds.service_addresses("the planners", "127.0.0.1:4003")
    applier_addr: tuple[str, ...] = kinds.service_addresses("the applier", "127.0.0.1:4004")
    admin_addr: tuple[str, ...] = kinds.service_addresses("admin", "127.0.0.1:4005")

    SECURITY: ClassVar[str] = "TLS and tokens"
    tls_cert: str = kinds.file(
        "Certificate of this process with its intermediates, as server and client; turns on mutual TLS for gRPC over a "
        "network and HTTPS for the HTTP API",
        "/etc/autothrottle/tls/tls.crt",
        _PEM_FILE,
    )
    tls_key: str = kinds.file("Private key of tls-cert, without a password", "/etc/autothrottle/tls/tls.key", _PEM_FILE)
    tls_ca: str = kinds.file(
        "Certificates of the authorities of gRPC clients and servers", "/etc/autothrottle/tls/ca.crt", _PEM_FILE
    )
    tls_server_name: str = kinds.text(
        "",
        "Name in the certificates of the other services; the host of their address if empty",
        example="autothrottle.internal",
    )
    certificate_roles: CertificateRoles | None = option(
        parse_certificate_roles,
        "",
        "Roles of the names in client certificates, as patterns with * and ?; other certificates are refused. Needed "
        "with tls-cert",
        "a JSON object of viewer, operator or service",
        example='{"autothrottle-*":"service","anna":"operator"}',
    )
    api_tokens_file: str = kinds.file(
        "Callers of the HTTP and gRPC APIs with a token, one `NAME TOKEN [ROLE]` per line (role operator if absent), "
        "reloaded on change; no tokens required if empty",
        "/run/secrets/api-tokens",
        "a readable file with a name and a token of at least 16 characters in each line",
    )
    api_hosts: tuple[str, ...] = kinds.hosts(
        "Names of the HTTP API in addition to localhost, IP addresses, the host in api-listen and the host name; a "
        "request with another Host header is refused",
        "autothrottle.example.com",
    )
    open_endpoints: tuple[str, ...] = kinds.choices(
        "gRPC endpoints that need no credentials; none if empty", OPEN_ENDPOINTS
    )
    insecure_listen: bool = kinds.boolean("Listen beyond loopback without credentials of callers")

    help: bool = False
    """True: print the help text only; all other settings are defaults. Not an option, like the warnings."""
    state_store_given: bool = field(default=False, compare=False)
    """False: the state store is a default. Not an option."""
    warnings: tuple[str, ...] = ()
    """Valid but suspicious settings, for the log."""

    @property
    def limits(self) -> Limits:
        """The limits of every decision."""
        return Limits(
            min_rate=self.min_rate,
            max_tx_ratio=self.max_tx_rate,
            max_rx_ratio=self.max_rx_rate,
            change_threshold=self.change_threshold,
            failure_threshold=self.failure_threshold,
            keep_throttles=self.skip_auto_delete_throttles,
            pause_over_capacity=self.pause_over_capacity,
        )

    @property
    def capacities(self) -> CapacityLimits:
        """The capacities of links."""
        return CapacityLimits(self.broker_cap_map, self.cap_map, self.default_capacity)

    @property
    def exporter(self) -> Exporter:
        """The metrics of the brokers' exporters, with the operator's series, brokers and network devices.

        Raises:
            Invalid: the name of a series does not say whether it is a counter or a rate.
        """
        preset = EXPORTERS[self.broker_exporter].with_device_label(self.broker_device_label)
        devices = preset.with_net_devices(self.net_devices).with_brokers(self.broker_label, self.broker_map)
        quotas = devices.with_quota_rates(self.broker_leader_quota_series, self.broker_follower_quota_series)
        return quotas.with_series(self.broker_tx_series, self.broker_rx_series, self.broker_series_kind)

    @property
    def zookeeper_files(self) -> SecurityFiles:
        """The files of TLS and of the login with ZooKeeper."""
        return SecurityFiles(self.zk_tls_ca, self.zk_tls_cert, self.zk_tls_key, self.zk_digest_file, self.zk_sasl_file)

    @property
    def tls(self) -> TlsFiles | None:
        """None: no encryption, and no authentication of callers."""
        files = (self.tls_cert, self.tls_key, self.tls_ca)
        return TlsFiles(*files, self.tls_server_name) if all(files) else None

    def new_policy(self) -> Policy:
        """Return a new policy without learned state."""
        return policy_class(self.policy).new(self.static_rate)


OPTIONS: Mapping[str, Option[Any]] = declared_options(Configuration)
"""Name -> option, in the order of their declarations."""
