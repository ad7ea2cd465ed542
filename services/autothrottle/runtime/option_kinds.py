"""`Option`, and the kinds of options: seconds, rate, addresses, znode and so on.

A kind defines the valid texts of an option and converts them to our units. `configuration` declares the options with
these functions: each returns a dataclass field, typed as the option's value. The type to know is `Option`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from decimal import Decimal
from inspect import get_annotations
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from autothrottle.core.traffic.broker_matching import BrokerLabel, parse_broker_label, parse_broker_map
from autothrottle.core.traffic.capacity import MAX_CAPACITY_MEGABYTES
from autothrottle.core.traffic.counters import SeriesName
from autothrottle.core.traffic.exporters import parse_series_names
from autothrottle.core.units import MEGABYTE, BytesPerSecond, without_unit
from autothrottle.runtime.unix_sockets import long_path_problem

ENVIRONMENT_PREFIX = "AUTOTHROTTLE_"

MAX_SECONDS = 1_000_000_000
"""Longest duration, 31 years; a longer one overflows the system's timers."""

T = TypeVar("T")
Word = TypeVar("Word", bound=str)


class Refused(ValueError):
    """A text that is not a valid value of its option.

    Args:
        reason: predicate that describes the problem ("has no port").
        fix: what the operator can do; "": refer to the option's example.
    """

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One option, independent of its source."""

    parse: Callable[[str], T]
    """Text -> value in our units; raises `Refused`, or core's `Invalid` with a complete message."""
    default: str
    """Text of the option if it is not given."""
    meaning: str
    range: str
    """Allowed values, with the unit; completes the phrase "must be"."""
    example: str = ""
    """A valid value; "": the default is valid."""
    choices: tuple[str, ...] = ()
    """All valid texts; (): too many to list."""
    boolean: bool = False
    """True: the flag without a value means true."""
    file: bool = False
    """True: the value is the path of a file."""
    secret: bool = False
    """True: messages never show the value."""
    short: str = ""
    """Letter that also names the flag; "": none."""
    aliases: tuple[str, ...] = ()
    """Other names of the flag, the variable and the key, which scripts may use; (): none."""
    name: str = ""
    """Flag name without dashes, and key in the TOML file; `configuration` sets it, and the group."""
    group: str = ""
    """Title of its section in help texts and in docs/configuration.md."""
    prefix: str = ENVIRONMENT_PREFIX
    """Prefix of its environment variable."""

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return self.variable_of(self.name)

    def variable_of(self, name: str) -> str:
        """Return the environment variable of the name or of an alias."""
        return self.prefix + name.upper().replace("-", "_")

    @property
    def good_value(self) -> str:
        """A valid value as a starting point for the operator."""
        return self.example or self.default


def option(parse: Callable[[str], T], default: str, meaning: str, range: str, **more: Any) -> T:
    """Declare an option: return a dataclass field with its default value, and with the `Option` as metadata."""
    declared = Option(parse, default, meaning, range, **more)
    return field(default_factory=lambda: parse(default), repr=not declared.secret, metadata={"option": declared})


def declared_options(kind: type[Any], prefix: str = ENVIRONMENT_PREFIX) -> dict[str, Option[Any]]:
    """Return name -> option of a dataclass whose fields declare options, in their order.

    The name of a field is the name of its flag, with `_` for `-`. A name in capitals starts a group of options; its
    value is the title.
    """
    declared = {field.name: field.metadata.get("option") for field in fields(kind)}
    options: dict[str, Option[Any]] = {}
    group = ""
    for name in (name for base in reversed(kind.__mro__) for name in get_annotations(base)):
        if name.isupper():
            group = getattr(kind, name)
        elif field := declared[name]:
            flag = name.replace("_", "-")
            options[flag] = replace(field, name=flag, group=group, prefix=prefix)
    return options


def checked(is_valid: Callable[[str], object], problem: str) -> Callable[[str], str]:
    """Return a parser of texts that stay as they are; `problem` may contain `{text!r}`."""

    def parse(text: str) -> str:
        if not is_valid(text):
            raise Refused(problem.format(text=text))
        return text

    return parse


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9]+)?\]")
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")


def number(
    default: str,
    meaning: str,
    unit: str,
    convert: Callable[[Decimal], T],
    *,
    at_least: int | Decimal = 0,
    at_most: int | None = None,
    above: int | None = None,
    whole: bool = False,
) -> T:
    """Declare a decimal number, or an integer if `whole`; `convert` changes it to our units."""

    def parse(text: str) -> T:
        text = without_unit(text) if unit == "MB/s" else text
        # A useful number is not longer; within this length a float neither overflows nor becomes 0.
        if len(text) > 40 or not (_INTEGER if whole else _NUMBER).fullmatch(text.strip()):
            raise Refused("is not an integer" if whole else "is not a number")
        value = Decimal(text.strip())
        low = value < at_least if above is None else value <= above
        if low or (at_most is not None and value > at_most):
            raise Refused("is out of range")
        return convert(value)

    lowest = f">= {at_least}" if above is None else f"> {above}"
    highest = f" and <= {at_most}" if at_most is not None else ""
    kind = "an integer" if whole else "a number"
    return option(parse, default, meaning, f"{kind}{f' of {unit}' if unit else ''}, {lowest}{highest}")


def seconds(
    default: str, meaning: str, *, at_least: int | Decimal = 1, at_most: int = MAX_SECONDS, whole: bool = False
) -> timedelta:
    """Declare a duration in seconds."""

    def duration(value: Decimal) -> timedelta:
        return timedelta(seconds=float(value))

    return number(default, meaning, "seconds", duration, at_least=at_least, at_most=at_most, whole=whole)


def count(default: str, meaning: str, *, at_least: int) -> int:
    """Declare an integer."""
    return number(default, meaning, "", int, at_least=at_least, at_most=MAX_SECONDS, whole=True)


def percent(default: str, meaning: str, *, above: int | None = None, at_most: int) -> float:
    """Declare a percentage; the value is the share, 0.9 for 90."""
    return number(default, meaning, "percent", lambda value: float(value / 100), above=above, at_most=at_most)


def megabytes_per_second(default: str, meaning: str) -> BytesPerSecond:
    """Declare a rate, > 0 MB/s, with or without its unit; the value is in bytes/s, at least 1."""

    def rate(value: Decimal) -> BytesPerSecond:
        return max(round(value * MEGABYTE), 1)

    return number(default, meaning, "MB/s", rate, above=0, at_most=MAX_CAPACITY_MEGABYTES)


def boolean(meaning: str, default: str = "false") -> bool:
    """Declare an option that is true or false."""

    def parse(text: str) -> bool:
        if text not in (*_TRUE, *_FALSE):
            raise Refused("is neither true nor false")
        return text in _TRUE

    return option(parse, default, meaning, "true or false", boolean=True)


def text(default: str, meaning: str, range: str = "printable text", **more: Any) -> str:
    """Declare one line of text, without surrounding white space; not empty if the default is not."""

    def parse(text: str) -> str:
        if default and not text.strip():
            raise Refused("is empty")
        if not text.isprintable():
            raise Refused("contains a control character")
        return text.strip()

    return option(parse, default, meaning, f"non-empty {range}" if default else range, **more)


def file(meaning: str, example: str, range: str) -> str:
    """Declare the path of a file; "" if not given."""
    return text("", meaning, range, example=example, file=True)


def client_properties() -> str:
    """Declare the option kafka-client-config."""
    meaning = "Java properties file with the login at Kafka and TLS, as for Kafka's own tools, see docs/security.md"
    return file(meaning, "/etc/autothrottle/client.properties", "a readable Java properties file")


_PEM_FILE = "a readable PEM file"
_ZOOKEEPER_FILES: Mapping[str, tuple[str, str, str]] = {
    "tls-ca": (
        "Certificates of the authorities of ZooKeeper's servers; turns on TLS",
        "/etc/autothrottle/zk/ca.crt",
        _PEM_FILE,
    ),
    "tls-cert": (
        "Certificate of this process for ZooKeeper, with its intermediates",
        "/etc/autothrottle/zk/tls.crt",
        _PEM_FILE,
    ),
    "tls-key": ("Private key of zk-tls-cert, without a password", "/etc/autothrottle/zk/tls.key", _PEM_FILE),
    "digest": (
        "Login with ZooKeeper's scheme digest; further lines have earlier passwords, see docs/security.md",
        "/run/secrets/zk-digest",
        "a readable file with lines of USER:PASSWORD",
    ),
    "sasl": (
        "Login with SASL and DIGEST-MD5",
        "/run/secrets/zk-sasl",
        "a readable file with USER:PASSWORD alone",
    ),
}
"""Purpose -> meaning, example and content of the file."""


def zookeeper_file(purpose: str) -> str:
    """Declare the path of a file of TLS or of the login with ZooKeeper."""
    return file(*_ZOOKEEPER_FILES[purpose])


def tag(default: str, meaning: str, example: str = "") -> str:
    """Declare a tag name; an empty default makes it optional."""

    def is_valid(text: str) -> bool:
        return text == default == "" or (text.isprintable() and bool(re.fullmatch(r"[^\s:,{}]+", text)))

    range = "a Datadog tag name, without white space, ':', ',', '{' and '}'"
    return option(checked(is_valid, "is not a tag name"), default, meaning, range, example=example)


def items(
    parse_item: Callable[[str], T],
    default: str,
    meaning: str,
    range: str,
    example: str = "",
    aliases: tuple[str, ...] = (),
) -> tuple[T, ...]:
    """Declare a comma-separated list; not empty if the default is not."""

    def parse(text: str) -> tuple[T, ...]:
        if default and not text.strip():
            raise Refused("is empty")
        return tuple(parse_item(item.strip()) for item in text.split(",")) if text.strip() else ()

    return option(parse, default, meaning, f"a comma-separated list of {range}", example=example, aliases=aliases)


def tags(meaning: str) -> tuple[str, ...]:
    """Declare a comma-separated list of Datadog tags."""
    parse = checked(lambda text: text and text.isprintable(), "contains an empty or unprintable tag")
    return items(parse, "", meaning, "tags", "team:kafka,env:prod")


def choice(default: str, meaning: str, choices: Iterable[Word], short: str = "") -> Word:
    """Declare a choice of one of several words; `short` is the letter of its short flag."""
    words = {str(word): word for word in choices}

    def parse(text: str) -> Word:
        if text not in words:
            raise Refused("is not one of them")
        return words[text]

    return option(parse, default, meaning, f"one of {', '.join(words)}", choices=tuple(words), short=short)


def choices(meaning: str, choices: Iterable[str]) -> tuple[str, ...]:
    """Declare a comma-separated list of words."""
    words = tuple(choices)
    return items(checked(words.__contains__, "contains {text!r}"), "", meaning, ", ".join(words), ",".join(words))


def _host_port(text: str, lowest_port: int = 1) -> str:
    """Return `host:port` unchanged.

    Raises:
        Refused: the text is malformed.
    """
    if "/" in text:
        raise Refused(
            f"contains a path in {text!r}",
            "give host:port only; Kafka's chroot in ZooKeeper belongs in zk-prefix",
        )
    host, colon, port = text.rpartition(":")
    if not colon or not _HOST.fullmatch(host):
        raise Refused(f"has no host:port in {text!r}")
    if not _INTEGER.fullmatch(port) or not lowest_port <= int(port[:7]) <= 65_535:
        raise Refused(f"has no port from {lowest_port} to 65535 in {text!r}")
    return text


def _unix(text: str) -> str:
    if text == "unix:" or not text.isprintable():
        raise Refused(f"has no path in {text!r}")
    if problem := long_path_problem(text):
        raise Refused(f"is {text[:200]!r}, but {problem}", "give a shorter path, or a link to its directory")
    return text


def addresses(
    default: str, meaning: str, example: str = "", *, unix: bool = False, aliases: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Declare a comma-separated list of addresses; an empty default makes it optional."""

    def parse(text: str) -> str:
        return _unix(text) if unix and text.startswith("unix:") else _host_port(text)

    range = "host:port" + (" or unix:PATH" if unix else "")
    return items(parse, default, meaning, range, example, aliases)


def hosts(meaning: str, example: str) -> tuple[str, ...]:
    """Declare a comma-separated list of host names, without ports; the values are in lower case."""

    def parse(text: str) -> str:
        if not _HOST.fullmatch(text):
            raise Refused(f"contains {text.lower()!r}, which is not a host name")
        return text.lower()

    return items(parse, "", meaning, "host names without ports", example)


def service_addresses(service: str, example: str) -> tuple[str, ...]:
    """Declare the addresses of a service's replicas."""
    return addresses("", f"Addresses of {service}; from the list of members if empty", example, unix=True)


def listen(default: str, meaning: str, *, unix: bool = True, example: str = "") -> str:
    """Declare an address to listen on; if the default is empty, an empty one is valid."""

    def parse(text: str) -> str:
        if text == default == "":
            return text
        if unix and text.startswith("unix:"):
            return _unix(text)
        # Go's ":8080" means every interface of the host.
        return _host_port(f"[::]{text}" if text.startswith(":") else text, lowest_port=0)

    accepted = "host:port, port 0 for any free port" + ("; or unix:PATH" if unix else "")
    return option(parse, default, meaning, accepted, example=example)


def advertised(meaning: str) -> str:
    """Declare an address at which other hosts call this process; an empty one is the listening address."""

    def parse(text: str) -> str:
        host, colon, _ = text.rpartition(":")
        has_port = bool(colon) and not text.endswith("]")
        if text:
            _host_port(text if has_port else f"{text}:1")
        if (host if has_port else text).strip("[]") in ("0.0.0.0", "::"):
            raise Refused("is every interface of a host, which others cannot call")
        return text

    range = "host or host:port, IPv6 in brackets; the port is the listening one if left out"
    return option(parse, "", meaning, range, example="planner1.example.com")


def znode(default: str, meaning: str, example: str = "", *, root: bool = False) -> str:
    """Declare the path of a znode; the value is `/a/b`, or "" for the root.

    The root is allowed if the default is empty, or with `root`.
    """

    def parse(text: str) -> str:
        path = text.strip().removeprefix("/").removesuffix("/")
        if text.strip() in ("", "/"):
            if default and not root:
                raise Refused("is empty")
            return ""
        if not path.isprintable():
            raise Refused("contains a control character")
        parts = path.split("/")
        for part in {"", ".", ".."}.intersection(parts):
            raise Refused(f"contains the part {part!r}")
        if parts[0] == "zookeeper":
            raise Refused("is below /zookeeper, which belongs to ZooKeeper")
        return f"/{path}"

    range = "a path of a znode without empty, '.' or '..' parts" + ("" if default and not root else ", or empty")
    return option(parse, default, meaning, range, example=example)


def has_user(url: str) -> bool:
    """Whether a URL holds a user or a password. A backslash ends the host of some clients and not of others."""
    return bool(re.search(r"://[^/?#]*[@\\]", url))


def url(default: str, meaning: str, example: str = "") -> str:
    """Declare a server URL; an empty default makes it optional. The value has no trailing slash."""

    def parse(text: str) -> str:
        if not text and not default:
            return ""
        try:
            url = urlsplit(text)
            good = url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port > 0)
        except ValueError:
            good = None
        if not good or not text.isprintable() or re.search(r"\s", text):
            raise Refused("is not an http or https URL")
        if url.query or url.fragment or has_user(text):
            raise Refused("contains a user, a query or a fragment", "give the server only; keys have separate options")
        return text.rstrip("/")

    range = "a URL with http or https, without user and query"
    return option(parse, default, meaning, range, example=example)


def broker_label(default_label: str) -> BrokerLabel | None:
    """Declare the option broker-label; `default_label` says in its help where the label comes from without it."""
    return option(
        lambda text: parse_broker_label(text, "broker-label"),
        "",
        f"Label with the broker id, which the last group of the expression matches; {default_label}",
        "LABEL=REGEX for the whole value of the label",
        example="pod=.*-([0-9]+)",
    )


def broker_map() -> Mapping[str, int]:
    """Declare the option broker-map."""
    return option(
        lambda text: parse_broker_map(text, "broker-map"),
        "",
        "Broker id by host, or by the value of another label; beats broker-label",
        "a JSON object of broker ids",
        example='{"b1.example.com:9100":1001}',
    )


def device_pattern(meaning: str) -> str:
    """Declare a regular expression for the whole names of network devices; an empty one is valid."""

    def parse(text: str) -> str:
        try:
            pattern = re.compile(text.strip())
        except (re.error, RecursionError) as error:
            raise Refused(f"is not a regular expression ({error})") from None
        if not text.isprintable() or text.strip().startswith("!"):
            raise Refused("is not a regular expression for names")
        return pattern.pattern

    return option(parse, "", meaning, "a regular expression for the whole name", example="eth0|bond[0-9]+")


def series_names(name: str, meaning: str, example: str) -> tuple[SeriesName, ...]:
    """Declare the names of series that are summed up."""
    range = 'a comma-separated list of names of series, each with or without {label="value"}'
    return option(lambda text: parse_series_names(text, name), "", meaning, range, example=example)
