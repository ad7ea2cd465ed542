"""The table of all options: their names, units, ranges and defaults, and how each text is read.

Here is what one option's text may be; where texts come from and what several options mean together is in
`configuration`. The type to know is `Option`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from autothrottle.core.capacity import (
    MAX_CAPACITY_MEGABYTES,
    parse_broker_cap_map,
    parse_cap_map,
    parse_capacity,
)
from autothrottle.core.loads import MEGABYTE, BytesPerSecond, Capacity
from autothrottle.core.schedule import Schedule, parse_schedule

ENVIRONMENT_PREFIX = "AUTOTHROTTLE_"

MAX_SECONDS = 1_000_000_000
"""The longest duration, 31 years: beyond it the system's timers overflow."""

T = TypeVar("T")


class Refused(ValueError):
    """A text that is no value of its option.

    Args:
        reason: what is wrong with it ("has no port").
        fix: what to do; "" leaves it to the option's example.
    """

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One option, whatever its source."""

    name: str
    """As a flag without dashes, and as key of the TOML file."""
    parse: Callable[[str], T]
    """Text -> value in our units; raises `Refused`, or core's `Invalid` with a complete message."""
    default: str
    """The text that stands for the option when it is not given."""
    meaning: str
    range: str
    """What the value must be, with its unit; completes "must be"."""
    example: str = ""
    """A good value; "" means that the default is one."""
    boolean: bool = False
    """Whether the bare flag means true."""
    secret: bool = False
    """Whether the value is never shown."""

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper().replace("-", "_")

    @property
    def good_value(self) -> str:
        """A value that is accepted, for the operator to start from."""
        return self.example or self.default


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


_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?(Z|[+-][0-9]{2}:[0-9]{2})", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9]+)?\]")
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")


def _decimal(text: str, at_least: float | Decimal, at_most: float | None, above: float | None, whole: bool) -> Decimal:
    # No number worth giving is longer, and within it a float neither overflows nor becomes 0.
    if len(text) > 40 or not (_INTEGER if whole else _NUMBER).fullmatch(text.strip()):
        raise Refused("is not an integer" if whole else "is not a number")
    value = Decimal(text.strip())
    low = value <= Decimal(above) if above is not None else value < Decimal(at_least)
    if low or (at_most is not None and value > Decimal(at_most)):
        raise Refused("is out of range")
    return value


def _number(
    name: str,
    default: str,
    meaning: str,
    unit: str,
    convert: Callable[[Decimal], T],
    *,
    at_least: int | Decimal = 0,
    at_most: int | None = None,
    above: int | None = None,
    whole: bool = False,
) -> Option[T]:
    low = f"> {above}" if above is not None else f">= {at_least}"
    high = f" and <= {at_most}" if at_most is not None else ""

    def parse(text: str) -> T:
        return convert(_decimal(text, at_least, at_most, above, whole))

    kind = "an integer" if whole else "a number"
    range = f"{kind}{' of' if unit else ''} {unit}".rstrip() + f", {low}{high}"
    return Option(name, parse, default, meaning, range)


def _point_in_time(text: str) -> datetime | None:
    if not text.strip():
        return None
    try:
        if _TIME.fullmatch(text.strip()):
            return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise Refused("is no time with its zone")


def _seconds(
    name: str,
    default: str,
    meaning: str,
    at_most: int = MAX_SECONDS,
    whole: bool = False,
    at_least: int | Decimal = 1,
) -> Option[timedelta]:
    def duration(value: Decimal) -> timedelta:
        return timedelta(seconds=float(value))

    return _number(name, default, meaning, "seconds", duration, at_least=at_least, at_most=at_most, whole=whole)


def _count(name: str, default: str, meaning: str, at_least: int) -> Option[int]:
    return _number(name, default, meaning, "", int, at_least=at_least, at_most=MAX_SECONDS, whole=True)


def _percent(
    name: str, default: str, meaning: str, *, above: int | None = None, at_most: int | None = None
) -> Option[float]:
    def ratio(value: Decimal) -> float:
        return float(value / 100)

    return _number(name, default, meaning, "percent", ratio, above=above, at_most=at_most)


def _megabytes_per_second(name: str, default: str, meaning: str) -> Option[BytesPerSecond]:
    def rate(value: Decimal) -> BytesPerSecond:
        return max(round(value * MEGABYTE), 1)

    return _number(name, default, meaning, "MB/s", rate, above=0, at_most=MAX_CAPACITY_MEGABYTES)


def _file(name: str, meaning: str, example: str, range: str) -> Option[str]:
    return replace(_text(name, "", meaning, example=example), range=range)


def _boolean(name: str, meaning: str) -> Option[bool]:
    def parse(text: str) -> bool:
        if text not in (*_TRUE, *_FALSE):
            raise Refused("is neither true nor false")
        return text in _TRUE

    return Option(name, parse, "false", meaning, "true or false", boolean=True)


def _text(
    name: str, default: str, meaning: str, *, required: bool = False, example: str = "", secret: bool = False
) -> Option[str]:
    """Return an option for one line of text; white space around it does not count."""

    def parse(text: str) -> str:
        if required and not text.strip():
            raise Refused("is empty")
        if not text.isprintable():
            raise Refused("holds a control character")
        return text.strip()

    range = "printable text that is not empty" if required else "printable text"
    return Option(name, parse, default, meaning, range, example=example, secret=secret)


def _tag(name: str, default: str, meaning: str, example: str) -> Option[str]:
    """Return an option for a tag's name; an empty default means that the tag may be left out."""

    def parse(text: str) -> str:
        if not text and not default:
            return ""
        if not re.fullmatch(r"[^\s:,{}]+", text) or not text.isprintable():
            raise Refused("is no tag name")
        return text

    range = "a Datadog tag name, without white space, ':', ',', '{' and '}'"
    return Option(name, parse, default, meaning, range, example=example)


def _choice(name: str, default: str, meaning: str, *choices: str) -> Option[str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise Refused("is not one of them")
        return text

    return Option(name, parse, default, meaning, f"one of {', '.join(choices)}")


def host_port(text: str, lowest_port: int = 1) -> str:
    """Return `host:port` as it was given.

    Raises:
        Refused: when it is no such thing.
    """
    if text.startswith("/") or "/" in text:
        raise Refused(
            f"holds a path in {text!r}",
            "give host:port only; Kafka's chroot in ZooKeeper belongs to zk-prefix",
        )
    host, colon, port = text.rpartition(":")
    if not colon or not _HOST.fullmatch(host):
        raise Refused(f"has no host:port in {text!r}")
    if not _INTEGER.fullmatch(port) or not lowest_port <= int(port[:7]) <= 65_535:
        raise Refused(f"has no port from {lowest_port} to 65535 in {text!r}")
    return text


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text.strip() else ()


def _addresses(name: str, default: str, meaning: str, example: str = "", unix: bool = False) -> Option[tuple[str, ...]]:
    """Return an option for a comma list of addresses; an empty default means that it may be left out."""

    def parse(text: str) -> tuple[str, ...]:
        if default and not text.strip():
            raise Refused("is empty")
        return tuple(_unix(item) if unix and item.startswith("unix:") else host_port(item) for item in _items(text))

    range = "a comma list of host:port" + (" or unix:PATH" if unix else "")
    return Option(name, parse, default, meaning, range, example=example)


def _service_addresses(name: str, meaning: str, example: str) -> Option[tuple[str, ...]]:
    return _addresses(name, "", f"{meaning}; found by the list of members if empty", example, unix=True)


def _unix(text: str) -> str:
    if text == "unix:" or not text.isprintable():
        raise Refused(f"has no path in {text!r}")
    return text


def _listen(name: str, default: str, meaning: str, unix: bool = True) -> Option[str]:
    def parse(text: str) -> str:
        if unix and text.startswith("unix:"):
            return _unix(text)
        # Go's ":8080" means every interface of the host.
        return host_port(f"[::]{text}" if text.startswith(":") else text, lowest_port=0)

    range = "host:port, port 0 takes any free one" + ("; or unix:PATH" if unix else "")
    return Option(name, parse, default, meaning, range)


def _znode(name: str, default: str, meaning: str, example: str) -> Option[str]:
    """Return an option for a znode; the value is "" (only with an empty default) or `/a/b`."""

    def parse(text: str) -> str:
        path = text.strip().removeprefix("/").removesuffix("/")
        if text.strip() in ("", "/"):
            if default:
                raise Refused("is empty")
            return ""
        if not path.isprintable():
            raise Refused("holds a control character")
        for part in path.split("/"):
            if part in ("", ".", ".."):
                raise Refused(f"holds the part {part!r}")
        if path.split("/")[0] == "zookeeper":
            raise Refused("lies under /zookeeper, which is ZooKeeper's own")
        return f"/{path}"

    range = "a path of a znode without empty, '.' or '..' parts" + ("" if default else ", or empty")
    return Option(name, parse, default, meaning, range, example=example)


def _url(name: str, default: str, meaning: str) -> Option[str]:
    def parse(text: str) -> str:
        try:
            url = urlsplit(text)
            good = url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port > 0)
        except ValueError:
            good = None
        if not good or not text.isprintable() or re.search(r"\s", text):
            raise Refused("is no http or https URL")
        if url.query or url.fragment or "@" in url.netloc:
            raise Refused("holds a user, a query or a fragment", "give the server only; keys have options of their own")
        return text.rstrip("/")

    return Option(name, parse, default, meaning, "a URL with http or https, without user and query")


def _tags(name: str, meaning: str) -> Option[tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        tags = _items(text)
        if not all(tag and tag.isprintable() for tag in tags):
            raise Refused("holds an empty or unprintable tag")
        return tags

    return Option(name, parse, "", meaning, "a comma list of tags", example="team:kafka,env:prod")


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


CONFIG = _file(
    "config",
    "TOML file with options; its keys are the names in this list",
    "autothrottle.toml",
    "a readable TOML file",
)
VERSION = _boolean("version", "Print the version and exit")

_KEY_FILE = "a readable file that holds the key and nothing else"
API_KEY = _text("api-key", "", "Datadog API key", example="the key", secret=True)
APP_KEY = _text("app-key", "", "Datadog application key", example="the key", secret=True)
API_KEY_FILE = _file("api-key-file", "File that holds the Datadog API key", "/run/secrets/api-key", _KEY_FILE)
APP_KEY_FILE = _file("app-key-file", "File that holds the Datadog application key", "/run/secrets/app-key", _KEY_FILE)
DATADOG_URL = _url("datadog-url", "https://api.datadoghq.com", "Datadog server")
NET_TX_QUERY = _text(
    "net-tx-query",
    "avg:system.net.bytes_sent{service:kafka} by {host}",
    "Datadog query for outbound bandwidth by host",
    required=True,
)
NET_RX_QUERY = _text(
    "net-rx-query",
    "avg:system.net.bytes_rcvd{service:kafka} by {host}",
    "Datadog query for inbound bandwidth by host",
    required=True,
)
BROKER_ID_TAG = _tag("broker-id-tag", "broker_id", "Datadog host tag that holds the broker id", "")
INSTANCE_TYPE_TAG = _tag("instance-type-tag", "instance-type", "Datadog host tag that holds the instance type", "")
METRICS_WINDOW = _seconds("metrics-window", "120", "Time span of metrics that is queried, and the rollup", whole=True)
METRICS_DELAY = _seconds(
    "metrics-delay", "0", "How late Datadog has the newest points: queries end so long ago", whole=True, at_least=0
)
DD_EVENT_TAGS = _tags("dd-event-tags", "Tags of Datadog events beside our own")

KAFKA_BACKEND = _choice(
    "kafka-backend", "zookeeper", "Through what Kafka is read and written", *(b.value for b in KafkaBackend)
)
KAFKA_NATIVE_MODE = _boolean("kafka-native-mode", "The same as kafka-backend admin")
BOOTSTRAP_SERVERS = _addresses(
    "bootstrap-servers",
    "",
    "Kafka, for the admin backend (localhost:9092 if not given); for log sizes and for starting reassignments with the "
    "zookeeper backend, too",
    "localhost:9092",
)
KAFKA_BOOTSTRAP_CONTROLLERS = _addresses(
    "kafka-bootstrap-controllers",
    "",
    "KRaft controllers, by which the throttle of a broker that is down is removed (admin backend)",
    "localhost:9093",
)
KAFKA_CLIENT_CONFIG = _file(
    "kafka-client-config",
    "Java properties file with SASL and TLS to Kafka, in Kafka's own names",
    "/etc/autothrottle/client.properties",
    "a readable Java properties file",
)
KAFKA_API_REQUEST_TIMEOUT = _seconds("kafka-api-request-timeout", "15", "Deadline of a request to Kafka", whole=True)
DISCOVERY_POLL = _seconds(
    "discovery-poll",
    "0.5",
    "Time between two looks at what moves (admin backend)",
    at_most=3600,
    at_least=Decimal("0.1"),
)

ZK_ADDR = _addresses("zk-addr", "localhost:2181", "ZooKeeper servers")
ZK_PREFIX = _znode("zk-prefix", "", "Kafka's chroot in ZooKeeper", "/kafka")
ZK_CONFIG_PREFIX = _znode("zk-config-prefix", "autothrottle", "Where our own state lives; not under zk-prefix", "")
ZK_SESSION_TIMEOUT = _seconds("zk-session-timeout", "6", "ZooKeeper session; bounds a failover", at_most=60)

POLICY = _choice("policy", PolicyName.ADAPTIVE.value, "How rates are decided", *(policy.value for policy in PolicyName))
STATIC_RATE = _megabytes_per_second("static-rate", "50", "Rate of every broker in each role, with the static policy")
INTERVAL = _seconds("interval", "180", "Time between two scheduled cycles")
MIN_RATE = _megabytes_per_second("min-rate", "10", "Lowest throttle, and the one without metrics")
MAX_RATE = _percent(
    "max-rate",
    "90",
    "Share of the headroom for replication; sets max-tx-rate and max-rx-rate",
    above=0,
    at_most=100,
)
MAX_TX_RATE = _percent("max-tx-rate", "90", "Share of the outbound headroom for replication", above=0, at_most=100)
MAX_RX_RATE = _percent("max-rx-rate", "90", "Share of the inbound headroom for replication", above=0, at_most=100)
CHANGE_THRESHOLD = _percent(
    "change-threshold", "10", "A measured rate that differs by less is not written", at_most=1_000_000
)
FAILURE_THRESHOLD = _count("failure-threshold", "1", "Cycles without metrics before min-rate is set", 0)
CLEANUP_AFTER = _count("cleanup-after", "60", "Idle intervals before throttles that were left over go", 1)
PAUSE_OVER_CAPACITY = _boolean(
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
SHADOW = _boolean("shadow", "Decide and record, and change nothing in Kafka; give it a zk-config-prefix of its own")
CLEANUP_FOREIGN = _boolean("cleanup-foreign", "Remove throttles that others left over, too")
SKIP_AUTO_DELETE_THROTTLES = _boolean("skip-auto-delete-throttles", "Never remove throttles at the end of a move")

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
DECISIONS_RETENTION: Option[int] = _number(
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
CAPACITY_TAG = _tag("capacity-tag", "", "Datadog host tag that holds the capacity in MB/s; none if empty", "capacity")
DEFAULT_CAPACITY: Option[Capacity | None] = Option(
    "default-capacity",
    _default_capacity,
    "",
    "Capacity of brokers of which nothing else is known; they fail alone if empty",
    _CAPACITY,
    example="120",
)

API_LISTEN = _listen("api-listen", "localhost:8080", "Where the HTTP API answers", unix=False)
GRPC_LISTEN = _listen("grpc-listen", "127.0.0.1:0", "Where the gRPC API of `autothrottle run` answers")
LISTEN = _listen("listen", "127.0.0.1:0", "Where a single service answers")
DISCOVERY_ADDR = _service_addresses("discovery-addr", "Where discovery answers", "127.0.0.1:4001")
METRICS_ADDR = _service_addresses("metrics-addr", "Where metrics answers", "127.0.0.1:4002")
PLANNER_ADDR = _service_addresses("planner-addr", "Where the planners answer", "127.0.0.1:4003")
APPLIER_ADDR = _service_addresses("applier-addr", "Where the applier answers", "127.0.0.1:4004")
ADMIN_ADDR = _service_addresses("admin-addr", "Where admin answers", "127.0.0.1:4005")

_PEM_FILE = "a readable PEM file"
TLS_CERT = _file(
    "tls-cert",
    "This process's certificate, with those between it and its authority: for what listens and for who calls; gRPC "
    "over a network is mutual TLS then, and the HTTP API is HTTPS",
    "/etc/autothrottle/tls/tls.crt",
    _PEM_FILE,
)
TLS_KEY = _file("tls-key", "Private key of tls-cert, without a password", "/etc/autothrottle/tls/tls.key", _PEM_FILE)
TLS_CA = _file(
    "tls-ca",
    "Certificates of the authorities by which whoever calls and is called over gRPC must be known",
    "/etc/autothrottle/tls/ca.crt",
    _PEM_FILE,
)
TLS_SERVER_NAME = _text(
    "tls-server-name",
    "",
    "Name that the certificates of the other services bear; the host of their address if empty",
    example="autothrottle.internal",
)
API_TOKENS_FILE = _file(
    "api-tokens-file",
    "Who may use the HTTP API, a line `NAME TOKEN` each, read again when it changes; everybody if empty",
    "/run/secrets/api-tokens",
    "a readable file with a name and a token of at least 16 characters in each line",
)

LOG_FORMAT = _choice("log-format", "text", "Format of log lines", "text", "json")
LOG_LEVEL = _choice("log-level", "info", "Least level that is logged", "debug", "info", "warning", "error")

OPTIONS: Mapping[str, Option[Any]] = {
    option.name: option for option in list(globals().values()) if isinstance(option, Option)
}
"""Name -> option, in the order of the help text."""
