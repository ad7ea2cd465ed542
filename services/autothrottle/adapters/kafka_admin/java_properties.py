r"""Reads Java's properties files as `java.util.Properties` does, for all of Kafka's own tools read them with it.

A line ends at `\n`, `\r` or `\r\n`. A backslash at its end joins it with the next one, whose leading white space is
left out. The name ends at the first `=`, `:` or white space that has no backslash. Of two lines with the same name, the
last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_VOCABULARY = """
acknowledgement acks acquire adaptive after age algorithm algorithms allow api arn assertion assignment assignor async
aud audience auth auto availability aws backoff basic batch before block bootstrap broker buffer builder bytes cache
callback certificate certificates chain changes check cipher claim class classes cleanable cleanup client clock cmd
commit compaction compression config connect connection connections consumer controllers copy crcs create credentials
debug default delay delete delivery deserializer dirty disable dn dns do downconversion election enable enabled
endpoint engine exclude exp expected extension factor factory fetch file flight flush group gzip handler header
heartbeat id idempotence identification idle ignore implementation in include index info inner instance insync inter
interceptor internal interval isolation iss issuer jaas jitter jmx jti jwks jwt kerberos key keymanager keys keystore
keytab kinit krb5 lag leader level linger list local location log login lookup lz4 mapping max mechanism mechanisms
memory message messages metadata metric metrics min mode module ms name nbf not num oauth oauthbearer of offset on
only partition partitioner partitioning passphrase password per period phase policy poll principal private producer
profile prompt properties protocol protocols provider providers proxy push rack random ratio read reauth rebalance
rebootstrap receive reconnect recording records recovery refresh region registry relogin remote renew replicas
reporter reporters request requests reset retention retriever retry role rules sample samples san sasl schema scope
seconds secret secure security segment send serde serializer server servers service session setup share size skew
socket source ssl stable storage store strategy sts sub suites tab template throw ticket time timeout timestamp to
token tokenauth topic topics transaction transactional trigger trustmanager truststore two type unclean unsecured
unsupported uri url urlencode use user username validator value wait window zstd
"""
_WORDS = frozenset(_VOCABULARY.split())
"""Words of which the names of Kafka's properties (3.9 and 4.3) and of JAAS options consist."""

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SPACE = " \t\f"


def shown_name(name: str) -> str:
    """Return the name of a property or of a JAAS option for a message; `***` if it may be a part of a secret.

    A password on a line of its own, after a line that should have ended in a backslash, is the name of a property.

    >>> shown_name("max.poll.records"), shown_name("useKeyTab"), shown_name("correct-horse"), shown_name("sasl.xK9")
    ('max.poll.records', 'useKeyTab', '***', '***')
    """
    words = re.findall(r"[A-Z]?[a-z0-9]+", name)
    is_whole = "".join(words) == re.sub(r"[._-]", "", name)
    return name if words and is_whole and all(word.lower() in _WORDS for word in words) else "***"


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
