"""The table of all options: names, units, ranges and defaults.

`option_kinds` defines the kinds of options, `sources` reads their texts, and `configuration_reader` checks
combinations of options.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from textwrap import fill
from typing import Any

from autothrottle.core.control.schedule import Schedule, parse_schedule
from autothrottle.core.traffic.capacity import (
    MAX_CAPACITY_MEGABYTES,
    parse_broker_cap_map,
    parse_cap_map,
    parse_capacity,
)
from autothrottle.core.traffic.loads import Capacity
from autothrottle.runtime import option_kinds as kinds
from autothrottle.runtime.configuration import KafkaBackend, PolicyName
from autothrottle.runtime.logs import FORMATS, LEVELS
from autothrottle.runtime.option_kinds import Option, Refused

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


def _location(text: str) -> str:
    if not text.isprintable():
        raise Refused("is not printable")
    return text.strip()


def _cluster_name(text: str) -> str:
    # It is part of file and folder names.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text):
        raise Refused("is not a cluster name")
    return text


def _default_capacity(text: str) -> Capacity | None:
    return parse_capacity(text, "default-capacity") if text.strip() else None


CONFIG = kinds.file(
    "config",
    "TOML file with options; its keys are the names in this list",
    "autothrottle.toml",
    "a readable TOML file",
)
VERSION = kinds.boolean("version", "Print the version and exit")

_KEY_FILE = "a readable file with the key and nothing else"
API_KEY = kinds.text("api-key", "", "Datadog API key", example="the key", secret=True)
APP_KEY = kinds.text("app-key", "", "Datadog application key", example="the key", secret=True)
API_KEY_FILE = kinds.file("api-key-file", "File with the Datadog API key", "/run/secrets/api-key", _KEY_FILE)
APP_KEY_FILE = kinds.file("app-key-file", "File with the Datadog application key", "/run/secrets/app-key", _KEY_FILE)
DATADOG_URL = kinds.url("datadog-url", "https://api.datadoghq.com", "Datadog server")
NET_TX_QUERY = kinds.text(
    "net-tx-query",
    "avg:system.net.bytes_sent{service:kafka} by {host}",
    "Datadog query for outbound traffic by host",
    required=True,
)
NET_RX_QUERY = kinds.text(
    "net-rx-query",
    "avg:system.net.bytes_rcvd{service:kafka} by {host}",
    "Datadog query for inbound traffic by host",
    required=True,
)
BROKER_ID_TAG = kinds.tag("broker-id-tag", "broker_id", "Datadog host tag with the broker id", "")
INSTANCE_TYPE_TAG = kinds.tag("instance-type-tag", "instance-type", "Datadog host tag with the instance type", "")
METRICS_WINDOW = kinds.seconds("metrics-window", "120", "Length and rollup of Datadog queries", whole=True)
METRICS_DELAY = kinds.seconds(
    "metrics-delay", "0", "Delay of Datadog's newest points; queries end this long ago", whole=True, at_least=0
)
DD_EVENT_TAGS = kinds.tags("dd-event-tags", "Additional tags of Datadog events")

KAFKA_BACKEND = kinds.choice(
    "kafka-backend", "zookeeper", "How to access Kafka: ZooKeeper or the Admin API", *(b.value for b in KafkaBackend)
)
KAFKA_NATIVE_MODE = kinds.boolean("kafka-native-mode", "Same as kafka-backend admin")
BOOTSTRAP_SERVERS = kinds.addresses(
    "bootstrap-servers",
    "",
    "Kafka brokers for the admin backend (localhost:9092 if empty); with the zookeeper backend, brokers for log sizes "
    "and for submitting reassignments",
    "localhost:9092",
)
KAFKA_BOOTSTRAP_CONTROLLERS = kinds.addresses(
    "kafka-bootstrap-controllers",
    "",
    "KRaft controllers for the removal of a stopped broker's throttle (admin backend)",
    "localhost:9093",
)
KAFKA_CLIENT_CONFIG = kinds.file(
    "kafka-client-config",
    "Java properties file with Kafka's SASL and TLS settings",
    "/etc/autothrottle/client.properties",
    "a readable Java properties file",
)
KAFKA_API_REQUEST_TIMEOUT = kinds.seconds(
    "kafka-api-request-timeout", "15", "Timeout of a request to Kafka", whole=True
)
DISCOVERY_POLL = kinds.seconds(
    "discovery-poll",
    "0.5",
    "Interval of polls for reassignments (admin backend)",
    at_most=3600,
    at_least=Decimal("0.1"),
)

ZK_ADDR = kinds.addresses("zk-addr", "localhost:2181", "ZooKeeper servers")
ZK_PREFIX = kinds.znode("zk-prefix", "", "Kafka's chroot in ZooKeeper", "/kafka")
ZK_CONFIG_PREFIX = kinds.znode(
    "zk-config-prefix", "autothrottle", "Root znode of our own state; not below zk-prefix", ""
)
ZK_SESSION_TIMEOUT = kinds.seconds(
    "zk-session-timeout", "6", "ZooKeeper session timeout; bounds a failover", at_most=60
)

POLICY = kinds.choice(
    "policy", PolicyName.ADAPTIVE.value, "Policy for deciding rates", *(policy.value for policy in PolicyName)
)
STATIC_RATE = kinds.megabytes_per_second(
    "static-rate", "50", "Rate of every broker in each role with the static policy"
)
INTERVAL = kinds.seconds("interval", "180", "Time between scheduled cycles")
MIN_RATE = kinds.megabytes_per_second("min-rate", "10", "Lowest throttle; also the throttle without metrics")
MAX_RATE = kinds.percent(
    "max-rate",
    "90",
    "Share of the headroom for replication; sets max-tx-rate and max-rx-rate",
    above=0,
    at_most=100,
)
MAX_TX_RATE = kinds.percent("max-tx-rate", "90", "Share of the outbound headroom for replication", above=0, at_most=100)
MAX_RX_RATE = kinds.percent("max-rx-rate", "90", "Share of the inbound headroom for replication", above=0, at_most=100)
CHANGE_THRESHOLD = kinds.percent(
    "change-threshold", "10", "Smallest change of a measured rate to write", at_most=1_000_000
)
FAILURE_THRESHOLD = kinds.count("failure-threshold", "1", "Cycles without metrics before min-rate is set", 0)
CLEANUP_AFTER = kinds.count("cleanup-after", "60", "Idle intervals before removal of leftover throttles", 1)
PAUSE_OVER_CAPACITY = kinds.boolean(
    "pause-over-capacity", "Throttle below min-rate, down to 0, while clients need the link"
)
SCHEDULE: Option[Schedule] = Option(
    "schedule",
    parse_schedule,
    "",
    "Hours with another share of the headroom than max-rate, in both directions",
    "a comma-separated list of HH:MM-HH:MM=PERCENT without overlaps, each > 0 and <= 100, then @ZONE; UTC without zone",
    example="09:00-17:00=50,22:00-06:00=95@Europe/Berlin",
)
FINISH_BY: Option[datetime | None] = Option(
    "finish-by",
    _point_in_time,
    "",
    "Deadline of reassignments; until then they take at most twice the rate needed to meet it",
    "a time with its time zone; empty: as soon as possible",
    example="2030-01-31T06:00:00Z",
)
SHADOW = kinds.boolean(
    "shadow", "Decide and record without changing anything in Kafka; needs a separate zk-config-prefix"
)
CLEANUP_FOREIGN = kinds.boolean("cleanup-foreign", "Also remove leftover foreign throttles")
SKIP_AUTO_DELETE_THROTTLES = kinds.boolean(
    "skip-auto-delete-throttles", "Keep throttles when reassignments end instead of removing them"
)

DECISIONS = Option(
    "decisions",
    _location,
    "",
    "Destination of the decision log for `autothrottle score`; no log if empty",
    "a local path or a URI such as s3://bucket/path",
    example="/var/lib/autothrottle/decisions",
)
DECISIONS_SPOOL = Option(
    "decisions-spool",
    _location,
    "",
    "Spool directory of the decision log; below a local decisions path if empty",
    "a local path",
    example="/var/lib/autothrottle/spool",
)
DECISIONS_RETENTION: Option[int] = kinds.number(
    "decisions-retention",
    "0",
    "Days until logged decisions are removed; never if 0",
    "days",
    int,
    at_most=100_000,
    whole=True,
)
CLUSTER_NAME = Option(
    "cluster-name",
    _cluster_name,
    "kafka",
    "Name of the cluster in the decision log",
    "1 to 100 letters, digits, '.', '_' and '-', starting with a letter or digit",
)

_CAPACITY = f'MB/s or {{"tx":MB/s,"rx":MB/s}}, each > 0 and <= {MAX_CAPACITY_MEGABYTES}'
_CAPACITIES = f"a JSON object of {_CAPACITY}"
CAP_MAP: Option[Mapping[str, Capacity]] = Option(
    "cap-map",
    lambda text: parse_cap_map(text, "cap-map"),
    "",
    "Capacity by instance type",
    _CAPACITIES,
    example='{"d2.2xlarge":120}',
)
BROKER_CAP_MAP: Option[Mapping[int, Capacity]] = Option(
    "broker-cap-map",
    lambda text: parse_broker_cap_map(text, "broker-cap-map"),
    "",
    "Capacity by broker id; beats the capacity tag, the instance type and the default",
    _CAPACITIES,
    example='{"1001":120}',
)
CAPACITY_TAG = kinds.tag("capacity-tag", "", "Datadog host tag with the capacity in MB/s; none if empty", "capacity")
DEFAULT_CAPACITY: Option[Capacity | None] = Option(
    "default-capacity",
    _default_capacity,
    "",
    "Fallback link capacity. Without it, brokers of unknown capacity count as failed",
    _CAPACITY,
    example="120",
)

API_LISTEN = kinds.listen("api-listen", "localhost:8080", "Listening address of the HTTP API", unix=False)
GRPC_LISTEN = kinds.listen("grpc-listen", "127.0.0.1:0", "Listening address of the gRPC API of `autothrottle run`")
LISTEN = kinds.listen("listen", "127.0.0.1:0", "Listening address of a single service")
DISCOVERY_ADDR = kinds.service_addresses("discovery-addr", "Addresses of discovery", "127.0.0.1:4001")
METRICS_ADDR = kinds.service_addresses("metrics-addr", "Addresses of metrics", "127.0.0.1:4002")
PLANNER_ADDR = kinds.service_addresses("planner-addr", "Addresses of the planners", "127.0.0.1:4003")
APPLIER_ADDR = kinds.service_addresses("applier-addr", "Addresses of the applier", "127.0.0.1:4004")
ADMIN_ADDR = kinds.service_addresses("admin-addr", "Addresses of admin", "127.0.0.1:4005")

_PEM_FILE = "a readable PEM file"
TLS_CERT = kinds.file(
    "tls-cert",
    "Certificate of this process with its intermediates, as server and client; turns on mutual TLS for gRPC over a "
    "network and HTTPS for the HTTP API",
    "/etc/autothrottle/tls/tls.crt",
    _PEM_FILE,
)
TLS_KEY = kinds.file(
    "tls-key", "Private key of tls-cert, without a password", "/etc/autothrottle/tls/tls.key", _PEM_FILE
)
TLS_CA = kinds.file(
    "tls-ca",
    "Certificates of the authorities of gRPC clients and servers",
    "/etc/autothrottle/tls/ca.crt",
    _PEM_FILE,
)
TLS_SERVER_NAME = kinds.text(
    "tls-server-name",
    "",
    "Name in the certificates of the other services; the host of their address if empty",
    example="autothrottle.internal",
)
API_TOKENS_FILE = kinds.file(
    "api-tokens-file",
    "Names and tokens of HTTP API users, one `NAME TOKEN` per line, reloaded on change; no tokens required if empty",
    "/run/secrets/api-tokens",
    "a readable file with a name and a token of at least 16 characters in each line",
)

LOG_FORMAT = kinds.choice("log-format", "text", "Format of log lines", *FORMATS)
LOG_LEVEL = kinds.choice("log-level", "info", "Lowest level of log lines", *LEVELS)

OPTIONS: Mapping[str, Option[Any]] = {
    option.name: option for option in list(globals().values()) if isinstance(option, Option)
}
"""Name -> option, in the order of the help text."""


def help_text(service: str, names: Collection[str] = OPTIONS.keys()) -> str:
    """Return the help text of a command: the given options with units, ranges, defaults and variables."""
    sources = (
        "Give an option as a flag (-name value or --name=value), an environment variable or a key of the "
        "TOML file named by --config. Precedence: flag, environment, file, default."
    )
    head = f"Usage: autothrottle {service} [options]\n\n{fill(sources, 100)}\n\n"
    return head + "\n".join(_help_entry(option) for option in OPTIONS.values() if option.name in names)


def _help_entry(option: Option[Any]) -> str:
    value = f"Default: {option.default}" if option.default else f"Example: {option.example}"
    text = f"{option.meaning}. Value: {option.range}. {value}. [{option.variable}]"
    body = fill(text, 100, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False)
    return f"  --{option.name}\n{body}\n"
