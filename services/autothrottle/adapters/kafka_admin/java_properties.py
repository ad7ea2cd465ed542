r"""Reads Java's properties files as `java.util.Properties` does, for all of Kafka's own tools read them with it.

A line ends at `\n`, `\r` or `\r\n`. A backslash at its end joins it with the next one, whose leading white space is
left out. The name ends at the first `=`, `:` or white space that has no backslash. Of two lines with the same name, the
last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SPACE = " \t\f"


def parse_properties(content: str) -> Mapping[str, str]:
    r"""Return name -> value.

    >>> parse_properties('client.id = a \\\n   b\nname\\ with\\:signs:\\u0041\n# a comment')
    {'client.id': 'a b', 'name with:signs': 'A'}

    Raises:
        ValueError: `\u` without four hexadecimal digits; the message has its line.
    """
    return {_unescaped(name): _unescaped(value) for name, value in map(_split, _logical_lines(content))}


def unescape(text: str) -> str:
    r"""Return a text in which `\t`, `\n`, `\r` and `\f` stand for these characters, and `\x` for any other x."""
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), text, flags=re.DOTALL)


def _logical_lines(content: str) -> Iterator[str]:
    """Yield lines without comments; a backslash at the end joins a line with the next one."""
    logical = ""
    for line in re.split(r"\r\n|\n|\r", content):
        line = line.lstrip(_SPACE)
        if not logical and (not line or line[0] in "#!"):  # also after a line with nothing but a backslash
            continue
        logical += line
        if (len(line) - len(line.rstrip("\\"))) % 2:
            logical = logical[:-1]
        else:
            yield logical
            logical = ""
    if logical:
        yield logical


def _split(line: str) -> tuple[str, str]:
    matched = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line, re.DOTALL)
    assert matched  # it matches everything
    return matched[1], matched[2]


def _unescaped(text: str) -> str:
    def character(matched: re.Match[str]) -> str:
        code, other = matched[1], matched[2]
        if code is None and other == "u":
            raise ValueError(r"\u without four hexadecimal digits")
        return chr(int(code, 16)) if code else _ESCAPES.get(other, other)

    return re.sub(r"\\(?:u([0-9A-Fa-f]{4})|(.))", character, text, flags=re.DOTALL)
