"""Texts from outside, made safe for messages, logs and files."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence

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


MAX_TAG = 200
"""Longest tag in characters; Datadog cuts longer ones."""


def datadog_tag(text: str) -> str:
    """Return a tag as Datadog stores it: in lower case, with `_` for runs of other characters and of `_`.

    Source: docs.datadoghq.com/getting_started/tagging, and the normalisation in Datadog's trace agent.

    >>> datadog_tag("topic:Orders.V2"), datadog_tag("topic:__transaction_state"), datadog_tag("topic:a__b_")
    ('topic:orders.v2', 'topic:_transaction_state', 'topic:a_b')
    """
    return re.sub(r"(?:[^\w:./-]|_)+", "_", text.lower())[:MAX_TAG].rstrip("_")


def ip_address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a text is, without brackets and port; None: it is not one.

    >>> ip_address_of("10.0.0.7"), ip_address_of("kafka1")
    (IPv4Address('10.0.0.7'), None)
    """
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def excerpt(items: Sequence[object], most: int, separator: str = ", ") -> str:
    """Return the first items of a list, and how many more there are.

    >>> excerpt([1001, 1002, 1003], 2), excerpt(["a", "b"], 2, ":")
    ('1001, 1002 and 1 more', 'a:b')
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return separator.join(map(str, items[:most])) + more


def first_lines(lines: Sequence[str], most: int, noun: str = "") -> list[str]:
    """Return the first lines and, if there are more, a line with their number.

    >>> first_lines(["a", "b", "c"], 1, "reason"), first_lines(["a", "b"], 1), first_lines(["a"], 1)
    (['a', 'and 2 more reasons'], ['a', 'and 1 more'], ['a'])
    """
    more = len(lines) - most
    plural = f" {noun}{'s' * (more > 1)}" if noun else ""
    return [*lines[:most], *([f"and {more} more{plural}"] if more > 0 else [])]


_PEER = re.compile(r"(?:ipv[46]:)?(.*?)(?::[0-9]+)?")
"""An address as gRPC or a gateway names it; its host is the first group."""


def caller_name(who: str) -> str:
    """Return who did something, in short: the login or the certificate's name if there is one, else the host.

    Logs, JSON and stored records have the whole text: the name, the address, and the service through which it called.

    >>> caller_name("anna at 10.0.0.9:5000 through unix:/run/a.sock"), caller_name("anna at ipv4:10.0.0.9:5000")
    ('anna', 'anna')
    >>> caller_name("10.0.0.9:5000 through ipv4:10.0.0.1:4711"), caller_name("ipv6:%5B::1%5D:4711")
    ('10.0.0.9', '::1')
    >>> caller_name("unix:"), caller_name("planner, term 3")
    ('local socket', 'planner, term 3')
    """
    client = who.rpartition(" through ")[0] or who
    name, _, address = client.rpartition(" at ")
    if name:
        return name
    if address.startswith("unix:"):
        return "local socket"
    match = _PEER.fullmatch(address)
    host = match[1] if match else address
    return host.removeprefix("%5B").removesuffix("%5D").removeprefix("[").removesuffix("]")


def without_numbers(text: str) -> str:
    """Return a text with its numbers replaced, so that texts that differ only in these are equal.

    >>> without_numbers("broker 1001 carries 12.5 MB/s")
    'broker # carries # MB/s'
    """
    return _NUMBER.sub("#", text)


def id_ranges(ids: Iterable[int], most: int = 10, separator: str = " ") -> str:
    """Return the ids as ranges, at most this many, and how many more ids there are.

    >>> id_ranges([1003, 1001, 1002, 1007]), id_ranges(range(1, 20, 2), 2), id_ranges([0, 1, 7], separator=",")
    ('1001-1003 1007', '1 3 and 8 more', '0-1,7')
    """
    ranges: list[list[int]] = []
    for number in sorted(set(ids)):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    shown = separator.join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in ranges[:most])
    more = sum(map(len, ranges[most:]))
    return f"{shown} and {more} more" if more else shown


def no_end_words(down_brokers: Sequence[int]) -> str:
    """Return that reassignments do not end while their destinations are down; "": none is down.

    >>> no_end_words((1004,)), no_end_words((1004, 1005))
    ('no end while broker 1004 is down', 'no end while brokers 1004, 1005 are down')
    """
    if not down_brokers:
        return ""
    ids = excerpt(down_brokers, 5)
    return f"no end while brokers {ids} are down" if len(down_brokers) > 1 else f"no end while broker {ids} is down"


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


_SECRET_NAME = re.compile(
    r"password|passwd|secret|token|(?:api|app|access|account)[-_.]?key|credential|signature|\bsig", re.IGNORECASE
)
_NO_SECRETS = ("file", "ca", "url", "location")
"""Ends of names whose values are paths and addresses."""

_NAME_BEFORE = re.compile(r"[\w.-]*")
_VALUE = re.compile(r"""(?!["']?\.\.\.(?:["'\s;,]|$))("[^"]*"|'[^']*'|[^\s&;,'"]+)""")
"""A value, unless it is a placeholder."""

_AUTHORIZATION = re.compile(r"\b(Bearer|Basic) [\w.~+/=-]{16,}")
"""A value of the header `Authorization`. Shorter words are prose, such as `Bearer authentication`."""

_AUTHORITY = re.compile(r"""[^\s'"]{0,500}""")
_MOST_NAME_CHARACTERS = 100
_MASK = "***"


def without_secrets(text: str) -> str:
    """Return a text with `***` in place of users in URIs, values of secrets, and tokens in `Authorization` headers.

    The name of a value says whether it is a secret. Every error of autothrottle and every log line passes through this
    function. Other code that shows a URI or a setting calls it. Its time is linear in the length of the text, which
    others may have chosen.

    >>> without_secrets("s3://key:secret@bucket/log?region=eu&session_token=x cannot be read")
    's3://***@bucket/log?region=eu&session_token=*** cannot be read'
    >>> without_secrets('org.example.Login required username="a" password="b";')
    'org.example.Login required username="a" password=***;'
    """
    if "://" in text and "@" in text:
        text = _masked(text, "://", _user)
    if "Bearer " in text or "Basic " in text:
        text = _AUTHORIZATION.sub(rf"\1 {_MASK}", text)
    return _masked(text, "=", _secret_value)


def _masked(text: str, mark: str, end_of_secret: Callable[[str, int, int], int]) -> str:
    """Return a text with a mask behind each mark that precedes a secret.

    Args:
        text: the text.
        mark: what precedes secrets.
        end_of_secret: returns the end of the secret behind a mark, given the text, the mark's start and its end; the
            mark's end if no secret follows.
    """
    parts: list[str] = []
    position = 0
    start = text.find(mark)
    while start >= 0:
        begin = start + len(mark)
        end = end_of_secret(text, start, begin)
        if end > begin:
            parts += text[position:begin], _MASK
            position = end
        start = text.find(mark, end)
    return "".join((*parts, text[position:]))


def _user(text: str, start: int, begin: int) -> int:
    """Return the end of the user and password in a URI, whose password may contain a slash."""
    authority = text[begin : _AUTHORITY.match(text, begin).end()]  # type: ignore[union-attr]
    host = re.split("[/?#]", authority, maxsplit=1)[0]
    user = host if "@" in host else authority if ":" in authority.partition("/")[0] else ""
    return begin + max(user.rfind("@"), 0)


def _secret_value(text: str, start: int, begin: int) -> int:
    """Return the end of the value of a name that says that it is a secret."""
    before = text[max(start - _MOST_NAME_CHARACTERS, 0) : start][::-1]
    name = _NAME_BEFORE.match(before).group()[::-1]  # type: ignore[union-attr]
    if not _SECRET_NAME.search(name) or name.lower().endswith(_NO_SECRETS):
        return begin
    value = _VALUE.match(text, begin)
    return value.end() if value else begin


def capitalized(text: str) -> str:
    """Return a text as a log line, which begins with a capital unless it begins with a name such as `sasl.mechanism`.

    >>> capitalized("broker 1001 has no metrics"), capitalized("sasl.mechanism is missing")
    ('Broker 1001 has no metrics', 'sasl.mechanism is missing')
    """
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+[ :,]", text) else text
