"""`Option`, and the kinds of options: seconds, rate, addresses, znode and so on.

A kind defines the valid texts of an option and converts them to our units. `options` lists the options. The type to
know is `Option`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from autothrottle.core.traffic.capacity import MAX_CAPACITY_MEGABYTES
from autothrottle.core.units import MEGABYTE, BytesPerSecond

ENVIRONMENT_PREFIX = "AUTOTHROTTLE_"

MAX_SECONDS = 1_000_000_000
"""Longest duration, 31 years; a longer one overflows the system's timers."""

T = TypeVar("T")


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

    name: str
    """Flag name without dashes, and key in the TOML file."""
    parse: Callable[[str], T]
    """Text -> value in our units; raises `Refused`, or core's `Invalid` with a complete message."""
    default: str
    """Text of the option if it is not given."""
    meaning: str
    range: str
    """Allowed values, with the unit; completes the phrase "must be"."""
    example: str = ""
    """A valid value; "": the default is valid."""
    boolean: bool = False
    """True: the flag without a value means true."""
    secret: bool = False
    """True: messages never show the value."""

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper().replace("-", "_")

    @property
    def good_value(self) -> str:
        """A valid value as a starting point for the operator."""
        return self.example or self.default


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9]+)?\]")
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")


def _decimal(text: str, at_least: float | Decimal, at_most: float | None, above: float | None, whole: bool) -> Decimal:
    # A useful number is not longer; within this length a float neither overflows nor becomes 0.
    if len(text) > 40 or not (_INTEGER if whole else _NUMBER).fullmatch(text.strip()):
        raise Refused("is not an integer" if whole else "is not a number")
    value = Decimal(text.strip())
    low = value <= Decimal(above) if above is not None else value < Decimal(at_least)
    if low or (at_most is not None and value > Decimal(at_most)):
        raise Refused("is out of range")
    return value


def number(
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
    """Return an option for a decimal number, or an integer if `whole`; `convert` changes it to our units."""
    low = f"> {above}" if above is not None else f">= {at_least}"
    high = f" and <= {at_most}" if at_most is not None else ""

    def parse(text: str) -> T:
        return convert(_decimal(text, at_least, at_most, above, whole))

    kind = "an integer" if whole else "a number"
    range = f"{kind}{' of' if unit else ''} {unit}".rstrip() + f", {low}{high}"
    return Option(name, parse, default, meaning, range)


def seconds(
    name: str,
    default: str,
    meaning: str,
    at_most: int = MAX_SECONDS,
    whole: bool = False,
    at_least: int | Decimal = 1,
) -> Option[timedelta]:
    """Return an option for a duration in seconds."""

    def duration(value: Decimal) -> timedelta:
        return timedelta(seconds=float(value))

    return number(name, default, meaning, "seconds", duration, at_least=at_least, at_most=at_most, whole=whole)


def count(name: str, default: str, meaning: str, at_least: int) -> Option[int]:
    """Return an option for an integer."""
    return number(name, default, meaning, "", int, at_least=at_least, at_most=MAX_SECONDS, whole=True)


def percent(
    name: str, default: str, meaning: str, *, above: int | None = None, at_most: int | None = None
) -> Option[float]:
    """Return an option for a percentage; the value is the share, 0.9 for 90."""

    def ratio(value: Decimal) -> float:
        return float(value / 100)

    return number(name, default, meaning, "percent", ratio, above=above, at_most=at_most)


def megabytes_per_second(name: str, default: str, meaning: str) -> Option[BytesPerSecond]:
    """Return an option for a rate, > 0 MB/s; the value is in bytes/s, at least 1."""

    def rate(value: Decimal) -> BytesPerSecond:
        return max(round(value * MEGABYTE), 1)

    return number(name, default, meaning, "MB/s", rate, above=0, at_most=MAX_CAPACITY_MEGABYTES)


def file(name: str, meaning: str, example: str, range: str) -> Option[str]:
    """Return an option for the path of a file; "" if not given."""
    return replace(text(name, "", meaning, example=example), range=range)


def boolean(name: str, meaning: str) -> Option[bool]:
    """Return an option with default false."""

    def parse(text: str) -> bool:
        if text not in (*_TRUE, *_FALSE):
            raise Refused("is neither true nor false")
        return text in _TRUE

    return Option(name, parse, "false", meaning, "true or false", boolean=True)


def text(
    name: str, default: str, meaning: str, *, required: bool = False, example: str = "", secret: bool = False
) -> Option[str]:
    """Return an option for one line of text, without surrounding white space."""

    def parse(text: str) -> str:
        if required and not text.strip():
            raise Refused("is empty")
        if not text.isprintable():
            raise Refused("contains a control character")
        return text.strip()

    range = "non-empty printable text" if required else "printable text"
    return Option(name, parse, default, meaning, range, example=example, secret=secret)


def tag(name: str, default: str, meaning: str, example: str) -> Option[str]:
    """Return an option for a tag name; an empty default makes it optional."""

    def parse(text: str) -> str:
        if not text and not default:
            return ""
        if not re.fullmatch(r"[^\s:,{}]+", text) or not text.isprintable():
            raise Refused("is not a tag name")
        return text

    range = "a Datadog tag name, without white space, ':', ',', '{' and '}'"
    return Option(name, parse, default, meaning, range, example=example)


def choice(name: str, default: str, meaning: str, *choices: str) -> Option[str]:
    """Return an option for one of several words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise Refused("is not one of them")
        return text

    return Option(name, parse, default, meaning, f"one of {', '.join(choices)}")


def _host_port(text: str, lowest_port: int = 1) -> str:
    """Return `host:port` unchanged.

    Raises:
        Refused: the text is malformed.
    """
    if text.startswith("/") or "/" in text:
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


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text.strip() else ()


def addresses(name: str, default: str, meaning: str, example: str = "", unix: bool = False) -> Option[tuple[str, ...]]:
    """Return an option for a comma-separated list of addresses; an empty default makes it optional."""

    def parse(text: str) -> tuple[str, ...]:
        if default and not text.strip():
            raise Refused("is empty")
        return tuple(_unix(item) if unix and item.startswith("unix:") else _host_port(item) for item in _items(text))

    range = "a comma-separated list of host:port" + (" or unix:PATH" if unix else "")
    return Option(name, parse, default, meaning, range, example=example)


def service_addresses(name: str, meaning: str, example: str) -> Option[tuple[str, ...]]:
    """Return an option for the addresses of a service's replicas."""
    return addresses(name, "", f"{meaning}; from the list of members if empty", example, unix=True)


def _unix(text: str) -> str:
    if text == "unix:" or not text.isprintable():
        raise Refused(f"has no path in {text!r}")
    return text


def listen(name: str, default: str, meaning: str, unix: bool = True) -> Option[str]:
    """Return an option for an address to listen on."""

    def parse(text: str) -> str:
        if unix and text.startswith("unix:"):
            return _unix(text)
        # Go's ":8080" means every interface of the host.
        return _host_port(f"[::]{text}" if text.startswith(":") else text, lowest_port=0)

    range = "host:port, port 0 for any free port" + ("; or unix:PATH" if unix else "")
    return Option(name, parse, default, meaning, range)


def znode(name: str, default: str, meaning: str, example: str) -> Option[str]:
    """Return an option for a znode path; the value is `/a/b`, or "" if the default is empty."""

    def parse(text: str) -> str:
        path = text.strip().removeprefix("/").removesuffix("/")
        if text.strip() in ("", "/"):
            if default:
                raise Refused("is empty")
            return ""
        if not path.isprintable():
            raise Refused("contains a control character")
        for part in path.split("/"):
            if part in ("", ".", ".."):
                raise Refused(f"contains the part {part!r}")
        if path.split("/")[0] == "zookeeper":
            raise Refused("is below /zookeeper, which belongs to ZooKeeper")
        return f"/{path}"

    range = "a path of a znode without empty, '.' or '..' parts" + ("" if default else ", or empty")
    return Option(name, parse, default, meaning, range, example=example)


def url(name: str, default: str, meaning: str) -> Option[str]:
    """Return an option for a server URL; the value has no trailing slash."""

    def parse(text: str) -> str:
        try:
            url = urlsplit(text)
            good = url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port > 0)
        except ValueError:
            good = None
        if not good or not text.isprintable() or re.search(r"\s", text):
            raise Refused("is not an http or https URL")
        if url.query or url.fragment or "@" in url.netloc:
            raise Refused("contains a user, a query or a fragment", "give the server only; keys have separate options")
        return text.rstrip("/")

    return Option(name, parse, default, meaning, "a URL with http or https, without user and query")


def tags(name: str, meaning: str) -> Option[tuple[str, ...]]:
    """Return an option for a comma-separated list of Datadog tags."""

    def parse(text: str) -> tuple[str, ...]:
        tags = _items(text)
        if not all(tag and tag.isprintable() for tag in tags):
            raise Refused("contains an empty or unprintable tag")
        return tags

    return Option(name, parse, "", meaning, "a comma-separated list of tags", example="team:kafka,env:prod")
