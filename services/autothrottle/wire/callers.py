"""On whose behalf a call is made: the gateway passes on who asked it, and the trace that the request belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

FORWARDED_FOR = "forwarded-for"
"""Key of the metadata that name the client of the service that calls."""

_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_PLAIN = re.compile(r"[ -~]{1,512}")

_NAMES = ("x509_common_name", "x509_subject_alternative_name")

Metadata = tuple[tuple[str, str], ...]


def forwarded(client: str, headers: Mapping[str, str]) -> Metadata:
    """Return the metadata of calls on behalf of a request over HTTP.

    Args:
        client: who sent it, `host:port`.
        headers: names in lower case; of them the trace goes along (W3C `traceparent`, `tracestate`), if it is one.
    """
    client = _ascii(client)
    parent, state = headers.get("traceparent", ""), headers.get("tracestate", "")
    found: Metadata = ((FORWARDED_FOR, client),) if _PLAIN.fullmatch(client) else ()
    if not _TRACE_PARENT.fullmatch(parent):
        return found
    return (*found, ("traceparent", parent), *((("tracestate", state),) if _PLAIN.fullmatch(state) else ()))


def caller(peer: str, metadata: Iterable[tuple[str, str | bytes]], certificate: Mapping[str, Any] | None = None) -> str:
    """Return who calls, for the log: the peer, and for whom it says that it does.

    Args:
        peer: the address, as gRPC has it.
        metadata: of the call.
        certificate: what gRPC tells of the peer's, lists of bytes under gRPC's keys; its common name, or else its first
            alternative name, is who it is.

    >>> caller("ipv4:10.0.0.1:4711", [(FORWARDED_FOR, "10.0.0.9:5000")])
    '10.0.0.9:5000 through ipv4:10.0.0.1:4711'
    >>> caller("ipv4:10.0.0.9:5000", [], {"x509_common_name": [b"anna"]})
    'anna at ipv4:10.0.0.9:5000'
    """
    names = [name for key in _NAMES for name in (certificate or {}).get(key, ())]
    if names and _PLAIN.fullmatch(name := _ascii(names[0].decode("utf-8", "replace"))):
        peer = f"{name} at {peer}"
    clients = [value for key, value in metadata if key == FORWARDED_FOR and isinstance(value, str)]
    return f"{clients[-1]} through {peer}" if clients and _PLAIN.fullmatch(clients[-1]) else peer


def _ascii(name: str) -> str:
    """A name as metadata can hold it: who is called Jürgen must not be nobody in the record."""
    return name.encode("ascii", "backslashreplace").decode()
