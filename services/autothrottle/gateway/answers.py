"""HTTP responses of the gateway, and the mapping from core's errors to HTTP status codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import parse_qsl

import grpc
from google.protobuf.message import Message

from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.wire.common import Metadata, code_of

ADMIN_TIMEOUT = timedelta(seconds=8)
"""Timeout of one call of the admin service, which itself waits for a planner at most 5 s."""

SUBMIT_TIMEOUT = timedelta(seconds=55)
"""Timeout of a submission. The planner sets the throttles, reads them back and waits a second before it submits."""

HTTP_STATUS: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.DATA_LOSS: 500,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
}
"""gRPC status code -> HTTP status code, as documented in google.rpc.Code."""

_CODES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    421: "PERMISSION_DENIED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
}
"""HTTP status of a refusal by the gateway itself -> the code in its body."""

_MOST_PARAMETERS = 32


class AdminService(Protocol):
    """The admin service, local or remote."""

    def call(self, method: str, request: Message, timeout: timedelta, metadata: Metadata) -> Message:
        """Call a method by name and return its response.

        Raises:
            AutothrottleError: the service answered with an error, or did not answer.
        """
        ...


Call = Callable[[str, Message, timedelta], Message]
"""Calls a method of the admin service by name, with the author and the trace of one HTTP request."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One complete HTTP response."""

    status: int
    body: str
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


def text(status: int, *lines: str) -> Answer:
    """Return a plain-text response; each line ends in a newline."""
    return Answer(status, "".join(f"{line}\n" for line in lines), "text/plain; charset=utf-8")


def document(status: int, value: Mapping[str, Any]) -> Answer:
    """Return a JSON response."""
    return Answer(status, json.dumps(value, ensure_ascii=False) + "\n", "application/json")


def http_status(error: AutothrottleError) -> int:
    """Return the HTTP status of an error."""
    return HTTP_STATUS[code_of(error)]


def failure(error: AutothrottleError) -> Answer:
    """Return an error as a JSON response."""
    return document(http_status(error), {"code": code_of(error).name, "message": str(error)})


def refusal(status: int, message: str) -> Answer:
    """Return a refusal by the gateway itself as a JSON response."""
    return document(status, {"code": _CODES.get(status, "UNKNOWN"), "message": message})


def parameters(query: str) -> dict[str, str]:
    """Return the parameters of a URL query, name -> text.

    Raises:
        Invalid: a parameter is repeated, there are more than 32, or the text is not UTF-8.
    """
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS)
    except ValueError as error:
        raise Invalid(f"the query of the URL cannot be read: {error}; give name=value&name=value, in UTF-8") from None
    parameters = dict(pairs)
    for name in parameters:
        if sum(name == other for other, _ in pairs) > 1:
            raise Invalid(f"{name} param must be given once")
    return parameters
