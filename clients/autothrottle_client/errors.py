"""The errors of a call: those of the services (`autothrottle.core.errors`, which draws the tree).

The service writes the messages. They name the value, the allowed range and the fix.
"""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from autothrottle.core.errors import AutothrottleError as AutothrottleError
from autothrottle.core.errors import Conflict as Conflict
from autothrottle.core.errors import Forbidden as Forbidden
from autothrottle.core.errors import Incomplete as Incomplete
from autothrottle.core.errors import Invalid as Invalid
from autothrottle.core.errors import Missing as Missing
from autothrottle.core.errors import NotLeader as NotLeader
from autothrottle.core.errors import Unauthenticated as Unauthenticated
from autothrottle.core.errors import Unavailable as Unavailable
from autothrottle.messages import CODES, LEADER_ADDRESS

_KINDS: Mapping[grpc.StatusCode, type[AutothrottleError]] = {code: kind for kind, code in CODES.items()}
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
    kind = _KINDS.get(code) or _FOREIGN.get(code, AutothrottleError)
    if code in _KINDS:
        return kind(f"{peer}: {details}" if kind is Unavailable else details)
    return kind(f"{peer} answered {code.name}: {details}")


def _leader_address(error: grpc.RpcError) -> str:
    metadata = error.trailing_metadata() if hasattr(error, "trailing_metadata") else ()
    return next((str(datum.value) for datum in metadata or () if datum.key == LEADER_ADDRESS), "")
