"""The table of all options: their names, units, ranges and defaults.

What a kind of option may be is in `option_kinds`; where texts come from is in `sources`, and what several options mean
together in `configuration_reader`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from textwrap import fill
from typing import Any

from autothrottle.core.capacity import (
    MAX_CAPACITY_MEGABYTES,
    parse_broker_cap_map,
    parse_cap_map,
    parse_capacity,
)
from autothrottle.core.loads import Capacity
from autothrottle.core.schedule import Schedule, parse_schedule
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
    raise Refused("is no time with its zone")


def _location(text: str) -> str:
    if not text.isprintable():
        raise Refused("is not printable")
    return text.strip()


def _cluster_name(text: str) -> str:
    # It is a part of the names of files and folders.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text):
        raise Refused("is no name of a cluster")
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

_KEY_FILE = "a readable file that holds the key and nothing else"
API_KEY = kinds.text("api-key", "", "Datadog API key", example="the key", secret=True)
APP_KEY = kinds.text("app-key", "", "Datadog application key", example="the key", secret=True)
API_KEY_FILE = kinds.file("api-key-file", "File that holds the Datadog API key", "/run/secrets/api-key", _KEY_FILE)
APP_KEY_FILE = kinds.file(
    "app-key-file", "File that holds the Datadog application key", "/run/secrets/app-key", _KEY_FILE
)
DATADOG_URL = kinds.url("datadog-url", "https://api.datadoghq.com", "Datadog server")
NET_TX_QUERY = kinds.text(
    "net-tx-query",
    "avg:system.net.bytes_sent{service:kafka} by {host}",
    "Datadog query for outbound bandwidth by host",
    required=True,
)
NET_RX_QUERY = kinds.text(
    "net-rx-query",
    "avg:system.net.bytes_rcvd{service:kafka} by {host}",
    "Datadog query for inbound bandwidth by host",
    required=True,
)
BROKER_ID_TAG = kinds.tag("broker-id-tag", "broker_id", "Datadog host tag that holds the broker id", "")
INSTANCE_TYPE_TAG = kinds.tag("instance-type-tag", "instance-type", "Datadog host tag that holds the instance type", "")
METRICS_WINDOW = kinds.seconds(
    "metrics-window", "120", "Time span of metrics that is queried, and the rollup", whole=True
)
METRICS_DELAY = kinds.seconds(
    "metrics-delay", "0", "How late Datadog has the newest points: queries end so long ago", whole=True, at_least=0
)
DD_EVENT_TAGS = kinds.tags("dd-event-tags", "Tags of Datadog events beside our own")

KAFKA_BACKEND = kinds.choice(
    "kafka-backend", "zookeeper", "Through what Kafka is read and written", *(b.value for b in KafkaBackend)
)
KAFKA_NATIVE_MODE = kinds.boolean("kafka-native-mode", "The same as kafka-backend admin")
BOOTSTRAP_SERVERS = kinds.addresses(
    "bootstrap-servers",
    "",
    "Kafka, for the admin backend (localhost:9092 if not given); for log sizes and for starting reassignments with the "
    "zookeeper backend, too",
    "localhost:9092",
)
KAFKA_BOOTSTRAP_CONTROLLERS = kinds.addresses(
    "kafka-bootstrap-controllers",
    "",
    "KRaft controllers, by which the throttle of a broker that is down is removed (admin backend)",
    "localhost:9093",
)
KAFKA_CLIENT_CONFIG = kinds.file(
    "kafka-client-config",
    "Java properties file with SASL and TLS to Kafka, in Kafka's own names",
    "/etc/autothrottle/client.properties",
    "a readable Java properties file",
)
KAFKA_API_REQUEST_TIMEOUT = kinds.seconds(
    "kafka-api-request-timeout", "15", "Deadline of a request to Kafka", whole=True
)
DISCOVERY_POLL = kinds.seconds(
    "discovery-poll",
    "0.5",
    "Time between two looks at what moves (admin backend)",
    at_most=3600,
    at_least=Decimal("0.1"),
)

ZK_ADDR = kinds.addresses("zk-addr", "localhost:2181", "ZooKeeper servers")
ZK_PREFIX = kinds.znode("zk-prefix", "", "Kafka's chroot in ZooKeeper", "/kafka")
ZK_CONFIG_PREFIX = kinds.znode("zk-config-prefix", "autothrottle", "Where our own state lives; not under zk-prefix", "")
ZK_SESSION_TIMEOUT = kinds.seconds("zk-session-timeout", "6", "ZooKeeper session; bounds a failover", at_most=60)

POLICY = kinds.choice(
    "policy", PolicyName.ADAPTIVE.value, "How rates are decided", *(policy.value for policy in PolicyName)
)
STATIC_RATE = kinds.megabytes_per_second(
    "static-rate", "50", "Rate of every broker in each role, with the static policy"
)
INTERVAL = kinds.seconds("interval", "180", "Time between two scheduled cycles")
MIN_RATE = kinds.megabytes_per_second("min-rate", "10", "Lowest throttle, and the one without metrics")
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
    "change-threshold", "10", "A measured rate that differs by less is not written", at_most=1_000_000
)
FAILURE_THRESHOLD = kinds.count("failure-threshold", "1", "Cycles without metrics before min-rate is set", 0)
CLEANUP_AFTER = kinds.count("cleanup-after", "60", "Idle intervals before throttles that were left over go", 1)
PAUSE_OVER_CAPACITY = kinds.boolean(
    "pause-over-capacity", "When clients need the link, throttle below min-rate, down to a full pause"
)
SCHEDULE: Option[Schedule] = Option(
    "schedule",
    parse_schedule,
    "",
    "Hours of the day in which replication gets another share of the headroom than max-rate, in both directions",
    "a comma list of HH:MM-HH:MM=PERCENT, each > 0 and <= 100, no two over one another, then @ZONE; UTC without one",
    example="09:00-17:00=50,22:00-06:00=95@Europe/Berlin",
)
FINISH_BY: Option[datetime | None] = Option(
    "finish-by",
    _point_in_time,
    "",
    "When moves shall be done: until then they take twice what that needs, and no more",
    "a time with its zone, or empty: as soon as possible",
    example="2030-01-31T06:00:00Z",
)
SHADOW = kinds.boolean(
    "shadow", "Decide and record, and change nothing in Kafka; give it a zk-config-prefix of its own"
)
CLEANUP_FOREIGN = kinds.boolean("cleanup-foreign", "Remove throttles that others left over, too")
SKIP_AUTO_DELETE_THROTTLES = kinds.boolean("skip-auto-delete-throttles", "Never remove throttles at the end of a move")

DECISIONS = Option(
    "decisions",
    _location,
    "",
    "Where decisions are logged, for `autothrottle score`; nowhere if empty",
    "a local path or a URI such as s3://bucket/path",
    example="/var/lib/autothrottle/decisions",
)
DECISIONS_SPOOL = Option(
    "decisions-spool",
    _location,
    "",
    "Where decisions wait until they are a file; with a local path of decisions, below it if empty",
    "a local path",
    example="/var/lib/autothrottle/spool",
)
DECISIONS_RETENTION: Option[int] = kinds.number(
    "decisions-retention",
    "0",
    "Days after which logged decisions are removed; never if 0",
    "days",
    int,
    at_most=100_000,
    whole=True,
)
CLUSTER_NAME = Option(
    "cluster-name",
    _cluster_name,
    "kafka",
    "The cluster's name in the decision log",
    "1 to 100 letters, digits, '.', '_' and '-', the first a letter or digit",
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
    "Capacity by broker id; beats the tag, the instance type and the default",
    _CAPACITIES,
    example='{"1001":120}',
)
CAPACITY_TAG = kinds.tag(
    "capacity-tag", "", "Datadog host tag that holds the capacity in MB/s; none if empty", "capacity"
)
DEFAULT_CAPACITY: Option[Capacity | None] = Option(
    "default-capacity",
    _default_capacity,
    "",
    "Capacity of brokers of which nothing else is known; they fail alone if empty",
    _CAPACITY,
    example="120",
)

API_LISTEN = kinds.listen("api-listen", "localhost:8080", "Where the HTTP API answers", unix=False)
GRPC_LISTEN = kinds.listen("grpc-listen", "127.0.0.1:0", "Where the gRPC API of `autothrottle run` answers")
LISTEN = kinds.listen("listen", "127.0.0.1:0", "Where a single service answers")
DISCOVERY_ADDR = kinds.service_addresses("discovery-addr", "Where discovery answers", "127.0.0.1:4001")
METRICS_ADDR = kinds.service_addresses("metrics-addr", "Where metrics answers", "127.0.0.1:4002")
PLANNER_ADDR = kinds.service_addresses("planner-addr", "Where the planners answer", "127.0.0.1:4003")
APPLIER_ADDR = kinds.service_addresses("applier-addr", "Where the applier answers", "127.0.0.1:4004")
ADMIN_ADDR = kinds.service_addresses("admin-addr", "Where admin answers", "127.0.0.1:4005")

_PEM_FILE = "a readable PEM file"
TLS_CERT = kinds.file(
    "tls-cert",
    "This process's certificate, with those between it and its authority: for what listens and for who calls; gRPC "
    "over a network is mutual TLS then, and the HTTP API is HTTPS",
    "/etc/autothrottle/tls/tls.crt",
    _PEM_FILE,
)
TLS_KEY = kinds.file(
    "tls-key", "Private key of tls-cert, without a password", "/etc/autothrottle/tls/tls.key", _PEM_FILE
)
TLS_CA = kinds.file(
    "tls-ca",
    "Certificates of the authorities by which whoever calls and is called over gRPC must be known",
    "/etc/autothrottle/tls/ca.crt",
    _PEM_FILE,
)
TLS_SERVER_NAME = kinds.text(
    "tls-server-name",
    "",
    "Name that the certificates of the other services bear; the host of their address if empty",
    example="autothrottle.internal",
)
API_TOKENS_FILE = kinds.file(
    "api-tokens-file",
    "Who may use the HTTP API, a line `NAME TOKEN` each, read again when it changes; everybody if empty",
    "/run/secrets/api-tokens",
    "a readable file with a name and a token of at least 16 characters in each line",
)

LOG_FORMAT = kinds.choice("log-format", "text", "Format of log lines", *FORMATS)
LOG_LEVEL = kinds.choice("log-level", "info", "Least level that is logged", *LEVELS)

OPTIONS: Mapping[str, Option[Any]] = {
    option.name: option for option in list(globals().values()) if isinstance(option, Option)
}
"""Name -> option, in the order of the help text."""


def help_text(service: str, names: Collection[str] = OPTIONS.keys()) -> str:
    """Return the options of a command line, all if none are named, with units, ranges, defaults and variables."""
    sources = (
        "An option is a flag (-name value or --name=value), an environment variable or a key of the "
        "TOML file that --config names; a flag beats the environment, which beats the file, which beats the "
        "default."
    )
    head = f"Usage: autothrottle {service} [options]\n\n{fill(sources, 100)}\n\n"
    return head + "\n".join(_help_entry(option) for option in OPTIONS.values() if option.name in names)


def _help_entry(option: Option[Any]) -> str:
    value = f"Default: {option.default}" if option.default else f"Example: {option.example}"
    text = f"{option.meaning}. Value: {option.range}. {value}. [{option.variable}]"
    body = fill(text, 100, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False)
    return f"  --{option.name}\n{body}\n"
