"""The one table between core's errors and gRPC's status codes, read in both directions.

Every code stands for one error: a caller in another process catches what one in the same process would.

| error             | code                | why this one                                                   |
|-------------------|---------------------|----------------------------------------------------------------|
| Invalid           | INVALID_ARGUMENT    | wrong whatever the state of the cluster                        |
| Missing           | NOT_FOUND           |                                                                |
| Conflict          | ABORTED             | gRPC's word for "read again, then decide again"                |
| NotLeader         | FAILED_PRECONDITION | no use in trying again here; trailing metadata name the leader |
| Incomplete        | DATA_LOSS           | a part is missing; no library makes or retries this code       |
| Unavailable       | UNAVAILABLE         | the one code that may simply be tried again                    |
| AutothrottleError | INTERNAL            | nothing that a caller can act on                               |

Codes that gRPC itself makes are folded onto the same tree by `from_rpc_error`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

import grpc

from autothrottle.core.errors import (
    AutothrottleError,
    Conflict,
    Incomplete,
    Invalid,
    Missing,
    NotLeader,
    Unavailable,
)

LEADER_ADDRESS = "leader-address"
"""Key of the trailing metadata that name the leading planner, `host:port`; absent when it is unknown."""

MAX_MESSAGE_BYTES = 4_000
"""Longest message on the wire: gRPC sends it as a header, percent-encoded, and refuses headers above 8 kB."""

CODES: Mapping[type[AutothrottleError], grpc.StatusCode] = MappingProxyType(
    {
        Invalid: grpc.StatusCode.INVALID_ARGUMENT,
        Missing: grpc.StatusCode.NOT_FOUND,
        Conflict: grpc.StatusCode.ABORTED,
        NotLeader: grpc.StatusCode.FAILED_PRECONDITION,
        Incomplete: grpc.StatusCode.DATA_LOSS,
        Unavailable: grpc.StatusCode.UNAVAILABLE,
        AutothrottleError: grpc.StatusCode.INTERNAL,
    }
)
"""Error -> its code; a subclass that is not here has the code of its nearest ancestor."""

_FOREIGN: Mapping[grpc.StatusCode, type[AutothrottleError]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Unavailable,
    grpc.StatusCode.ALREADY_EXISTS: Conflict,
    grpc.StatusCode.OUT_OF_RANGE: Invalid,
}
"""Code that our servers never answer with -> the error that a caller sees."""

_ERRORS = {code: error for error, code in CODES.items()} | dict(_FOREIGN)


def code_of(error: AutothrottleError) -> grpc.StatusCode:
    """Return the code of an error, which is that of its nearest ancestor in the table."""
    return next(CODES[ancestor] for ancestor in type(error).__mro__ if ancestor in CODES)


def to_status(error: AutothrottleError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Return (code, message, trailing metadata) of an error."""
    metadata: tuple[tuple[str, str], ...] = ()
    if isinstance(error, NotLeader) and error.leader_address:
        metadata = ((LEADER_ADDRESS, error.leader_address),)
    return code_of(error), _fitting(str(error)), metadata


def from_rpc_error(error: grpc.RpcError, *, peer: str = "", deadline: timedelta | None = None) -> AutothrottleError:
    """Return the error of core's tree that a failed call stands for.

    Args:
        error: what the call raised.
        peer: who was called ("discovery at 127.0.0.1:4001"), for failures that the peer did not word itself.
        deadline: the time that the call was given.
    """
    code, details = _code(error), _details(error)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unavailable(_late(peer or "The other side", deadline))
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return NotLeader(details, _leader_address(error))
    kind = _ERRORS.get(code, AutothrottleError)
    if code in CODES.values():
        return kind(f"{peer}: {details}" if peer and kind is Unavailable else details)
    return kind(f"{peer or 'The other side'} answered {code.name}: {details}")


def _late(peer: str, deadline: timedelta | None) -> str:
    within = "in time" if deadline is None else f"within {deadline.total_seconds():g} s"
    return f"{peer} did not answer {within}. Fix: see whether it runs and is reachable, then try again."


def _code(error: grpc.RpcError) -> grpc.StatusCode:
    """Return the code, also of an RpcError that never became a call (it has no methods then)."""
    return error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN


def _details(error: grpc.RpcError) -> str:
    return (error.details() if hasattr(error, "details") else str(error)) or ""


def _leader_address(error: grpc.RpcError) -> str:
    metadata = error.trailing_metadata() if hasattr(error, "trailing_metadata") else ()
    return next((str(datum.value) for datum in metadata or () if datum.key == LEADER_ADDRESS), "")


def _fitting(message: str) -> str:
    """Cut a message to what fits into a header; each byte that is not printable ASCII takes three there."""
    size = 0
    for position, character in enumerate(message):
        size += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="replace"))
        if size > MAX_MESSAGE_BYTES:
            return message[:position] + " ... (cut)"
    return message
