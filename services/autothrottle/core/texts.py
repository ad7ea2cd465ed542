"""Texts from outside, made safe for messages, logs and files."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

MAX_TEXT = 1_000
"""Characters of a text from outside that messages and logs show."""


def encodable(text: str, limit: int | None = MAX_TEXT) -> str:
    r"""Return a text that UTF-8 can encode: lone surrogates are escaped, and the end of a long text is cut off.

    Args:
        text: a text from outside.
        limit: its largest length, in characters; None: any, for texts that identify something.

    >>> encodable("b1"), encodable("\ud800"), encodable("123456789", 8)
    ('b1', '\\ud800', '1234 ...')
    """
    shown = text if limit is None or len(text) <= limit else f"{text[: limit - 4]} ..."
    return shown if shown.isascii() else shown.encode("utf-8", "backslashreplace").decode()


def ip_address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a text is, without brackets and port; None: it is not one.

    >>> ip_address_of("10.0.0.7"), ip_address_of("kafka1")
    (IPv4Address('10.0.0.7'), None)
    """
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def excerpt(items: Sequence[object], most: int, separator: str = ", ") -> str:
    """Return the first items of a list, and how many more there are.

    >>> excerpt([1001, 1002, 1003], 2), excerpt(["a", "b"], 2, ":")
    ('1001, 1002 and 1 more', 'a:b')
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return separator.join(map(str, items[:most])) + more


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error, or its type if it has no text.

    >>> first_line(ValueError("no file\nat 0x00")), first_line(KeyboardInterrupt())
    ('no file', 'KeyboardInterrupt')
    """
    return (str(error).splitlines() or [type(error).__name__])[0]


def json_integer(text: str) -> int | float:
    """Return an integer of a JSON text, for `parse_int`: a longer one than 64 bits becomes a float, perhaps infinite.

    `int` refuses more than 4,300 digits, and with them the whole text.
    """
    return int(text) if len(text) < 20 else float(text)


def escape_unprintable(text: str) -> str:
    r"""Return the text with all characters escaped that control a terminal or a line.

    These are control characters, line ends, bidirectional and invisible marks, unusual blanks and lone surrogates.

    >>> print(escape_unprintable("orders\n2026/01/01 forged \x1b[2J\u202e"))
    orders\n2026/01/01 forged \x1b[2J\u202e
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


_USER_IN_URI = re.compile(r"""(?<=://)(?:[^\s/?#'"]*|[^\s/'"]*:[^\s'"]*)@""")
_SECRET_VALUE = re.compile(
    r"""(\b[\w.-]*(?:password|passwd|secret|token|(?:api|app|access|account)[-_.]?key|credential|signature|\bsig)[\w.-]*
    (?<!file)(?<!ca)(?<!url)(?<!location)=)  # paths and addresses are no secrets
    (?!["']?\.\.\.["'\s;,]|["']?\.\.\.$)  # a placeholder
    ("[^"]*"|'[^']*'|[^\s&;,'"]+)""",
    re.IGNORECASE | re.VERBOSE,
)
_MASK = "***"


def without_secrets(text: str) -> str:
    """Return a text with `***` in place of users in URIs, and of values whose names say that they are secrets.

    Every error of autothrottle and every log line passes through it. Other code that shows a URI or a setting calls it.

    >>> without_secrets("s3://key:secret@bucket/log?region=eu&session_token=x cannot be read")
    's3://***@bucket/log?region=eu&session_token=*** cannot be read'
    >>> without_secrets('org.example.Login required username="a" password="b";')
    'org.example.Login required username="a" password=***;'
    """
    if "://" in text and "@" in text:
        text = _USER_IN_URI.sub(f"{_MASK}@", text)
    return _SECRET_VALUE.sub(rf"\1{_MASK}", text) if "=" in text else text


def capitalized(text: str) -> str:
    """Return a text as a log line, which begins with a capital unless it begins with a name such as `sasl.mechanism`.

    >>> capitalized("broker 1001 has no metrics"), capitalized("sasl.mechanism is missing")
    ('Broker 1001 has no metrics', 'sasl.mechanism is missing')
    """
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+[ :,]", text) else text
