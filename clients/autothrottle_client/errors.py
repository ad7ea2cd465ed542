"""The errors of a call. They have the same names as the errors of the services.

    AutothrottleError
    ├── Invalid        the request is wrong: change it, then try again
    ├── Missing        the named object does not exist
    ├── Conflict       the object has changed since it was read: read again, then decide again
    ├── NotLeader      none of the planners that answered leads; carries the leader's address if known
    ├── Incomplete     only a part could be read: draw no conclusion from absent data
    ├── Unavailable    the service does not answer: try again later
    ├── Unauthenticated  the service knows no credentials of this caller: give a token or a certificate
    └── Forbidden      this caller does not have the role that the call needs

The service writes the messages. They name the value, the allowed range and the fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import grpc

LEADER_ADDRESS = "leader-address"
"""Trailing metadata key. Its value is the leader's address, sent by a planner that does not lead."""


class AutothrottleError(Exception):
    """Base of all errors that autothrottle or its client reports."""


class Invalid(AutothrottleError):
    """A value is out of range; the message names the value, the range and the fix."""


class Missing(AutothrottleError):
    """The named object does not exist."""


class Conflict(AutothrottleError):
    """The object has been changed by another party since it was read."""


class NotLeader(AutothrottleError):
    """The planner does not lead."""

    def __init__(self, message: str, leader_address: str = "") -> None:
        super().__init__(message)
        self.leader_address = leader_address
        """Address of the leading planner, `host:port`; "" if unknown."""


class Incomplete(AutothrottleError):
    """Only a part could be read; absent data may still exist."""


class Unavailable(AutothrottleError):
    """The service does not answer in time."""


class Unauthenticated(AutothrottleError):
    """The caller gave no credentials, or the service does not know them."""


class Forbidden(AutothrottleError):
    """The caller does not have the role that the call needs."""


CODES: Mapping[grpc.StatusCode, type[AutothrottleError]] = MappingProxyType(
    {
        grpc.StatusCode.INVALID_ARGUMENT: Invalid,
        grpc.StatusCode.NOT_FOUND: Missing,
        grpc.StatusCode.ABORTED: Conflict,
        grpc.StatusCode.FAILED_PRECONDITION: NotLeader,
        grpc.StatusCode.DATA_LOSS: Incomplete,
        grpc.StatusCode.UNAVAILABLE: Unavailable,
        grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
        grpc.StatusCode.PERMISSION_DENIED: Forbidden,
        grpc.StatusCode.INTERNAL: AutothrottleError,
    }
)
"""Status code of a service -> its error."""

_FOREIGN: Mapping[grpc.StatusCode, type[AutothrottleError]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Unavailable,
    grpc.StatusCode.ALREADY_EXISTS: Conflict,
    grpc.StatusCode.OUT_OF_RANGE: Invalid,
}
"""Status code of gRPC itself or of a proxy -> the error that a caller sees."""


def from_rpc_error(error: grpc.RpcError, peer: str, seconds: float | None = None) -> AutothrottleError:
    """Convert a failed gRPC call into an error.

    Args:
        error: the exception of the call.
        peer: the called address, named in messages that the service did not write itself.
        seconds: the deadline of the call; None: a stream without a deadline.
    """
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = (error.details() if hasattr(error, "details") else str(error)) or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unavailable(
            f"{peer} did not answer {'in time' if seconds is None else f'within {max(round(seconds, 1), 0.1):g} s'}"
        )
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return NotLeader(details, _leader_address(error))
    kind = CODES.get(code) or _FOREIGN.get(code, AutothrottleError)
    if code in CODES:
        return kind(f"{peer}: {details}" if kind is Unavailable else details)
    return kind(f"{peer} answered {code.name}: {details}")


def _leader_address(error: grpc.RpcError) -> str:
    metadata = error.trailing_metadata() if hasattr(error, "trailing_metadata") else ()
    return next((str(datum.value) for datum in metadata or () if datum.key == LEADER_ADDRESS), "")
