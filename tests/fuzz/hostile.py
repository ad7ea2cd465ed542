"""Hostile values, and valid documents in which one of them replaces a part."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

LONG_DIGITS = "9" * 5_000
"""More digits than `int` accepts in a text."""

MOST_REPEATED = 20_000
"""Bytes of an input that are repeated, so that no input has more than about 1 MB."""

DEPTH = 10_000
"""More levels than any parser's stack has."""

INTEGERS = (
    *(0, -1, 1, 7, -7, 1001, 2**15, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32, 2**32 + 1001, 2**40, 2**53),
    *(2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 2**70, -(2**70), 10**400),
)
NAN, INFINITY = float("nan"), float("inf")
FLOATS = (NAN, INFINITY, -INFINITY, 1e308, -1e308, 5e-324, -0.0, 0.5, 7.0, -1.5, 1e19, 9e18, 1.8e12, 253402300800.0)
TEXTS = (
    *(
        "",
        " ",
        "0",
        "7",
        "-1",
        "+7",
        " 7 ",
        "07",
        "7.0",
        "7_7",
        "\u0667",
        "\u0667\u0667\u0667",
        "1e3",
        "0x7",
        "7\n",
        "\u00b2",
    ),
    *("2147483648", "4294967297", "9223372036854775807", "9223372036854775808", "-9223372036854775809", LONG_DIGITS),
    *("NaN", "nan", "Infinity", "-inf", "1e999", "true", "null", "None", "*", "*,0:1", "0:1,*", "0:1", "0:1:2", ":"),
    *(
        f"0:{LONG_DIGITS}",
        f"{LONG_DIGITS}:1",
        "0:4294967297",
        "\u0667:\u0667",
        "0:1," * 5_000,
        "," * 40_000,
        "0:" * 9_000,
    ),
    *("\ud800", "\udfff\ud800", "a\udc80b", "\x00", "a\x00b", "\n", "a\r\nERROR forged", "\x1b[2J", "\u202e", "\ufeff"),
    *("é" * 300, "😀", "x" * 40_000, "/", "..", "../..", "a/b", "%00", "%ZZ", "%", "<default>", "%3Cdefault%3E"),
    *("users/a", "users/a/clients/b", "clients/<default>", "ips/::1", "ips/\u0667", "brokers/1001", "topics/t"),
    *("2026-11-02T12:00:00+00:00", "2026-11-02T12:00:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"),
    *(
        "2026-11-02",
        "1970-01-01T00:00:00Z",
        "2026-11-02T12:00:00+99:99",
        "3600s",
        "315576000001s",
        "-1s",
        "0.0000000001s",
    ),
    *(
        "MODE_KEEP",
        "keep",
        "clear",
        "set",
        "purge",
        "host:b1",
        "b1.example:9100",
        "[::1",
        "[",
        "://",
        "PLAINTEXT://[",
        "::1",
    ),
    *(
        "(a+)+$",
        "(.*)*x",
        "(a{1,1000}){1000}",
        "[",
        "\\",
        '"',
        "'",
        "{}",
        "{",
        "leader.replication.throttled.rate",
        "producer_byte_rate",
    ),
)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], [{}], {"": None}, {"a": {}}, [0, "", None, [], {}])


class Verbatim(str):
    """A piece of JSON as it is, because no value of Python is written like this."""


class Pairs(tuple[tuple[str, Any], ...]):
    """An object whose names may occur twice."""


VERBATIM = tuple(
    map(
        Verbatim,
        (
            *(
                LONG_DIGITS,
                f"-{LONG_DIGITS}",
                f"0.{LONG_DIGITS}",
                "1e999",
                "-1e999",
                "1E400",
                "-0",
                "01",
                "1.",
                ".5",
                "+1",
            ),
            *(
                "NaN",
                "Infinity",
                "-Infinity",
                "nul",
                "'a'",
                '"\\ud800"',
                '"\\udc00\\ud800"',
                '"\\u0000"',
                '"\\x"',
                '"a',
            ),
            *('{"a":1,"a":2}', '{"version":1,"version":2}', "[" * DEPTH, '{"a":' * DEPTH, "[" * 500 + "]" * 500, ""),
        ),
    )
)
STRUCTURES = tuple(
    Verbatim(json.dumps(structure))
    for structure in (
        [7] * 2_000,
        [2**40, -9],
        list(range(2_000)),
        {str(number): number for number in range(1_000)},
        {"7": [1], "07": [2], "7 ": [3]},
    )
)
BYTES = (
    b"\xff",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\x00",
    b"\xf0\x9f",
    b"\xef\xbb\xbf",
    b"\x1f\x8b",
    b"\n",
    b" ",
    b"{",
    b'"',
)


class Choices:
    """Choices that some bytes of entropy determine; the entropy 0 chooses the first option each time."""

    def __init__(self, entropy: bytes) -> None:
        self._rest = int.from_bytes(entropy)

    def below(self, limit: int) -> int:
        """Return a number in 0..limit - 1."""
        self._rest, chosen = divmod(self._rest, limit)
        return chosen

    def of(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def one_in(self, count: int) -> bool:
        """Return True once in `count` times; False for the entropy 0."""
        return self.below(count) == count - 1


def integer(choices: Choices) -> int:
    """Return a number near a limit, or one of any size."""
    if choices.one_in(3):
        size: int = 2 ** choices.below(80)
        return (1 - 2 * choices.below(2)) * (size + choices.below(3) - 1)
    return choices.of(INTEGERS)


def value(choices: Choices) -> Any:
    """Return a hostile value that JSON can contain; see `encoded`."""
    kind = choices.below(12)
    if kind < 3:
        return integer(choices)
    if kind < 7:
        return choices.of(TEXTS)
    return choices.of((FLOATS, OTHERS, VERBATIM, STRUCTURES, FLOATS)[kind - 7])


def mutated(document: Any, choices: Choices) -> Any:
    """Return a copy of a document in which one to three parts are hostile."""
    for _ in range(1 + max(0, choices.below(8) - 5)):
        document = _mutated_once(document, choices)
    return document


Path = tuple[str | int, ...]


def _mutated_once(document: Any, choices: Choices) -> Any:
    path = choices.of(_paths(document))
    kind = choices.below(16)
    if kind < 11 or not path:
        return _edited(document, path, lambda _: value(choices))
    if kind == 11:
        return _edited(document, path, lambda part: [part])
    if kind == 12:
        return _edited(document, path[:-1], lambda parent: _without(parent, path[-1]))
    if kind == 13:
        return _edited(document, path[:-1], lambda parent: _twice(parent, path[-1], value(choices)))
    if kind == 14:
        return _edited(document, path[:-1], lambda parent: _renamed(parent, path[-1], choices.of(TEXTS)))
    other = _at(document, choices.of(_paths(document)))
    return _edited(document, path, lambda _: other)


def _paths(document: Any) -> Sequence[Path]:
    return [(), *_inner(document)]


def _items(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list) and len(value) < 100 else ()


def _inner(document: Any, prefix: Path = ()) -> Iterable[Path]:
    for name, part in _items(document):
        yield (*prefix, name)
        yield from _inner(part, (*prefix, name))


def _at(document: Any, path: Path) -> Any:
    for name in path:
        document = document[name]
    return document


def _edited(document: Any, path: Path, change: Any) -> Any:
    if not path:
        return change(document)
    first, *rest = path
    part = _edited(document[first], tuple(rest), change)
    if isinstance(document, list):
        return [part if number == first else old for number, old in enumerate(document)]
    return {name: part if name == first else old for name, old in document.items()}


def _without(parent: Any, name: str | int) -> Any:
    if isinstance(parent, list):
        return [part for number, part in enumerate(parent) if number != name]
    return {key: part for key, part in parent.items() if key != name}


def _twice(parent: Any, name: str | int, other: Any) -> Any:
    if isinstance(parent, list):
        return [*parent, other]
    return Pairs((*parent.items(), (str(name), other)))


def _renamed(parent: Any, name: str | int, to: str) -> Any:
    if isinstance(parent, list):
        return [*parent, *parent]
    return {to if key == name else key: part for key, part in parent.items()}


def encoded(document: Any) -> bytes:
    """Return JSON, which contains `Verbatim` texts as they are; half of a surrogate pair is escaped."""
    return _written(document).encode("utf-8", "surrogatepass")


@cache
def _text_written(text: str) -> str:
    return json.dumps(text)


def _written(part: Any) -> str:
    if isinstance(part, Verbatim):
        return part
    if isinstance(part, str):
        return _text_written(part)
    if isinstance(part, Pairs | dict):
        pairs = part.items() if isinstance(part, dict) else part
        return "{" + ",".join(f"{_text_written(name)}:{_written(value)}" for name, value in pairs) + "}"
    if isinstance(part, list):
        return "[" + ",".join(map(_written, part)) + "]"
    return json.dumps(part)


def is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def damaged(data: bytes, choices: Choices) -> bytes:
    """Return a text that is cut off, or in which some bytes are wrong."""
    kind, place = choices.below(6), choices.below(len(data) + 1)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + choices.of(BYTES) + data[place:]
    if kind == 2:
        return data[:place] + bytes([choices.below(256)]) + data[place + 1 :]
    if kind == 3:
        return data[:place] + data[place + 1 + choices.below(8) :]
    if kind == 4:
        return data + data
    return choices.of(
        (b"", b" ", b"null", b"[]", b"{}", b"0", b'""', b"\x00" * 100, b"\xff" * 100, data[:MOST_REPEATED] * 50)
    )


def json_text(documents: Sequence[Any], choices: Choices) -> bytes:
    """Return one of the documents as JSON, with a hostile part or with damage."""
    document = choices.of(documents)
    if choices.one_in(8):
        return damaged(encoded(document), choices)
    text = encoded(mutated(document, choices))
    return damaged(text, choices) if len(text) < 10_000 and choices.one_in(40) else text
