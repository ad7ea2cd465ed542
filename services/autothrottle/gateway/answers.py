"""What the gateway answers, and the one table from core's errors to HTTP's status codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import parse_qsl

import grpc
from google.protobuf.message import Message

from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.wire.callers import Metadata
from autothrottle.wire.errors import code_of

ADMIN_TIMEOUT = timedelta(seconds=8)
"""For one call of the admin service, which itself waits for a planner at most 5 s."""

SUBMIT_TIMEOUT = timedelta(seconds=55)
"""For submitting a reassignment: its throttles are set, read back and given a second to act first."""

HTTP_STATUS: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.DATA_LOSS: 500,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
}
"""gRPC's code -> HTTP's, as google.rpc.Code documents it."""

_CODES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
}
"""Status of what the gateway itself refuses -> the code that stands in its body."""

_MOST_PARAMETERS = 32


class AdminService(Protocol):
    """The admin service, wherever it is."""

    def call(self, method: str, request: Message, timeout: timedelta, metadata: Metadata) -> Message:
        """Return what the method of this name answers.

        Raises:
            AutothrottleError: what the service answered, or that it does not.
        """
        ...


@dataclass(frozen=True, slots=True)
class Admin:
    """The admin service as one request over HTTP asks it."""

    service: AdminService
    metadata: Metadata
    """Who sent the request, and its trace."""

    def call(self, method: str, request: Message, timeout: timedelta) -> Message:
        """Return what the method of this name answers.

        Raises:
            AutothrottleError: what the service answered, or that it does not.
        """
        return self.service.call(method, request, timeout, self.metadata)


@dataclass(frozen=True, slots=True)
class Answer:
    """One response, whole."""

    status: int
    body: str
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


def text(status: int, *lines: str) -> Answer:
    """Return lines of text; each ends in a newline."""
    return Answer(status, "".join(f"{line}\n" for line in lines), "text/plain; charset=utf-8")


def document(status: int, value: Mapping[str, Any]) -> Answer:
    """Return a JSON object."""
    return Answer(status, json.dumps(value, ensure_ascii=False) + "\n", "application/json")


def http_status(error: AutothrottleError) -> int:
    """Return the status code of an error."""
    return HTTP_STATUS[code_of(error)]


def failure(error: AutothrottleError) -> Answer:
    """Return an error as JSON."""
    return document(http_status(error), {"code": code_of(error).name, "message": str(error)})


def refusal(status: int, message: str) -> Answer:
    """Return as JSON what the gateway refuses by itself."""
    return document(status, {"code": _CODES.get(status, "UNKNOWN"), "message": message})


def parameters(query: str) -> dict[str, str]:
    """Return the parameters of a URL's query, name -> text.

    Raises:
        Invalid: when one is given twice, there are more than 32, or the text is not UTF-8.
    """
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS)
    except ValueError as error:
        raise Invalid(f"the query of the URL cannot be read: {error}; give name=value&name=value, in UTF-8") from None
    found = dict(pairs)
    for name in found:
        if sum(name == other for other, _ in pairs) > 1:
            raise Invalid(f"{name} param must be given once")
    return found
