"""The errors of a call, with the names that the services themselves use.

    AutothrottleError
    ├── Invalid        what was given is wrong: change it, then try again
    ├── Missing        what was named does not exist
    ├── Conflict       it changed meanwhile: read again, then decide again
    ├── NotLeader      none of the planners that answered leads; carries the leader's address if one knew it
    ├── Incomplete     only a part could be read: nothing may be concluded from what is absent
    └── Unavailable    the other side does not answer: try again later

The messages are those of the service, which name the value, the range and the fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import grpc

LEADER_ADDRESS = "leader-address"
"""Key of the trailing metadata in which a planner that does not lead names the one that does."""


class AutothrottleError(Exception):
    """Anything that autothrottle or its client reports."""


class Invalid(AutothrottleError):
    """What was given is outside of its range; the message names the value, the range and the fix."""


class Missing(AutothrottleError):
    """What was named does not exist."""


class Conflict(AutothrottleError):
    """What was to be changed has been changed by somebody else since it was read."""


class NotLeader(AutothrottleError):
    """The planner that was asked does not lead."""

    def __init__(self, message: str, leader_address: str = "") -> None:
        super().__init__(message)
        self.leader_address = leader_address
        """Where the leading planner answers, `host:port`; "" when it is unknown."""


class Incomplete(AutothrottleError):
    """Only a part could be read; what is absent may well exist."""


class Unavailable(AutothrottleError):
    """The other side does not answer in time."""


CODES: Mapping[grpc.StatusCode, type[AutothrottleError]] = MappingProxyType(
    {
        grpc.StatusCode.INVALID_ARGUMENT: Invalid,
        grpc.StatusCode.NOT_FOUND: Missing,
        grpc.StatusCode.ABORTED: Conflict,
        grpc.StatusCode.FAILED_PRECONDITION: NotLeader,
        grpc.StatusCode.DATA_LOSS: Incomplete,
        grpc.StatusCode.UNAVAILABLE: Unavailable,
        grpc.StatusCode.INTERNAL: AutothrottleError,
    }
)
"""Code that a service answers with -> its error."""

_FOREIGN: Mapping[grpc.StatusCode, type[AutothrottleError]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Unavailable,
    grpc.StatusCode.ALREADY_EXISTS: Conflict,
    grpc.StatusCode.OUT_OF_RANGE: Invalid,
}
"""Code that gRPC makes itself, or a proxy on the way -> the error that a caller sees."""


def from_rpc_error(error: grpc.RpcError, peer: str, seconds: float | None = None) -> AutothrottleError:
    """Return the error that a failed call stands for.

    Args:
        error: what the call raised.
        peer: the address that was called, for failures that it did not word itself.
        seconds: the time that the call was given; None: a stream without end.
    """
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = (error.details() if hasattr(error, "details") else str(error)) or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unavailable(f"{peer} did not answer {'in time' if seconds is None else f'within {seconds:.3g} s'}")
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return NotLeader(details, _leader_address(error))
    kind = CODES.get(code) or _FOREIGN.get(code, AutothrottleError)
    if code in CODES:
        return kind(f"{peer}: {details}" if kind is Unavailable else details)
    return kind(f"{peer} answered {code.name}: {details}")


def _leader_address(error: grpc.RpcError) -> str:
    metadata = error.trailing_metadata() if hasattr(error, "trailing_metadata") else ()
    return next((str(datum.value) for datum in metadata or () if datum.key == LEADER_ADDRESS), "")
