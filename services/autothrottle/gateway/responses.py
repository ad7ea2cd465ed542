"""Responses of the gateway: their headers, their forms, and the status of each error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import grpc
from starlette.responses import PlainTextResponse, Response

from autothrottle.core.errors import AutothrottleError
from autothrottle.wire.common import code_of

HTTP_STATUS: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
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
    **{status: code.name for code, status in HTTP_STATUS.items()},
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    421: "PERMISSION_DENIED",
    429: "RESOURCE_EXHAUSTED",
}
"""HTTP status of a refusal by the gateway itself -> the code in its body."""

_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}
"""Headers of each response that does not have its own."""


def plain_text(status: int, *lines: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a plain-text response; each line ends in a newline."""
    return PlainTextResponse("".join(f"{line}\n" for line in lines), status, headers)


def document(status: int, value: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(json_text(value), status, headers, "application/json")


def json_text(value: Mapping[str, Any]) -> str:
    """Return a JSON document on one line."""
    return json.dumps(value, ensure_ascii=False) + "\n"


def failure(error: AutothrottleError) -> Response:
    """Return the JSON response to a request that failed with an error of the product."""
    code = code_of(error)
    return document(HTTP_STATUS[code], {"code": code.name, "message": str(error)})


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a refusal by the gateway itself as a JSON response."""
    return document(status, {"code": _CODES.get(status, "UNKNOWN"), "message": message}, headers)


def secured(response: Response) -> Response:
    """Return the response with the headers of every response."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response
