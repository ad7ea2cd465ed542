"""The gateway's application: routing, authentication, and checks before any call of the admin service.

This is the only asynchronous code: it reads the body, calls the admin service in a thread, and sends the response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from autothrottle.core.errors import AutothrottleError
from autothrottle.gateway import legacy, rest
from autothrottle.gateway.answers import AdminService, Answer, Call, document, failure, refusal, text
from autothrottle.gateway.openapi import comments, openapi
from autothrottle.gateway.page import page
from autothrottle.gateway.tokens import Tokens
from autothrottle.v1 import admin_pb2
from autothrottle.wire.common import forwarded_metadata

SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]

MAX_BODY_BYTES = 64 * 1024
"""Largest request body, except for `LARGE_BODIES`; useful ones have some hundred bytes."""

LARGE_BODIES: Mapping[str, int] = dict.fromkeys(
    ("SubmitReassignment", "CancelReassignment", "EstimateReassignment"), 16 * 1024 * 1024
)
"""Method -> largest body in bytes; 100,000 partitions take 8 MB."""

_MOST_DISCARDED_BYTES = 16 * 1024 * 1024
"""This much of an oversized body is read, so that its sender is still connected for the response."""

_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
}

_Answering = Callable[[Request, bytes], Answer]
_Endpoint = Callable[[Request], Awaitable[Response]]

log = logging.getLogger(__name__)


def application(admin: AdminService, body_seconds: float, tokens: Tokens | None = None) -> Starlette:
    """Return the application.

    Args:
        admin: the service that executes requests.
        body_seconds: time limit for receiving a request body.
        tokens: tokens of allowed users; None: any caller is allowed. The page and the OpenAPI document are public.
    """
    routes, descriptions = rest.bindings(SERVICE), comments()
    described, shown = openapi(routes, descriptions), page(routes, descriptions)
    public: dict[str, dict[str, _Answering]] = {
        "/": {"GET": lambda request, body: Answer(200, shown, "text/html; charset=utf-8")},
        "/openapi.json": {"GET": lambda request, body: document(200, described)},
    }
    paths: dict[str, dict[str, _Answering]] = {}
    for binding in routes:
        paths.setdefault(binding.path, {})[binding.verb] = _rest(binding, admin)
    text_api = _legacy(admin)
    for path in ("/throttle", "/throttle/{rest:path}"):
        paths[path] = {"GET": text_api, "POST": text_api}
    largest = {b.path: LARGE_BODIES[b.method.name] for b in routes if b.method.name in LARGE_BODIES}
    application = Starlette(
        routes=[
            Route(path, _endpoint(verbs, body_seconds, largest.get(path, MAX_BODY_BYTES), needed), methods=[*verbs])
            for table, needed in ((public, None), (paths, tokens))
            for path, verbs in table.items()
        ],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    application.router.redirect_slashes = False
    return application


def _rest(binding: rest.Binding, admin: AdminService) -> _Answering:
    def answer(request: Request, body: bytes) -> Answer:
        if_match = None if binding.verb == "GET" else request.headers.get("if-match")
        try:
            return rest.answer(binding, _call(request, admin), request.path_params, _query(request), body, if_match)
        except AutothrottleError as error:
            return failure(error)

    return answer


def _legacy(admin: AdminService) -> _Answering:
    def answer(request: Request, body: bytes) -> Answer:
        verb = "GET" if request.method == "HEAD" else request.method
        return legacy.answer(_call(request, admin), verb, request.url.path, _query(request))

    return answer


def _call(request: Request, admin: AdminService) -> Call:
    client = f"{request.client.host}:{request.client.port}" if request.client else ""
    name = getattr(request.state, "name", "")
    metadata = forwarded_metadata(f"{name} at {client}" if name else client, request.headers)
    return lambda method, message, timeout: admin.call(method, message, timeout, metadata)


def _endpoint(
    verbs: Mapping[str, _Answering], body_seconds: float, most_bytes: int, tokens: Tokens | None = None
) -> _Endpoint:
    async def answer(request: Request) -> Response:
        _refuse_other_sites(request)
        if tokens is not None:
            request.state.name = _authenticated_name(request, tokens)
        body = await _body(request, body_seconds, most_bytes)
        verb = "GET" if request.method == "HEAD" else request.method
        return _response(await run_in_threadpool(verbs[verb], request, body))

    return answer


def _refuse_other_sites(request: Request) -> None:
    """Refuse requests that a page of another site makes in an operator's browser; loopback does not stop browsers."""
    origin = request.headers.get("origin")
    if origin is None or request.method in ("GET", "HEAD"):
        return
    if _site(origin) != request.headers.get("host", "").lower():
        raise HTTPException(403, f"a page of {origin} may not change anything; use another client, or this origin")


def _site(origin: str) -> str | None:
    """Return the host and port of an origin; None: it is not a URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _authenticated_name(request: Request, tokens: Tokens) -> str:
    """Return the user of the request's token, before the body is read."""
    name = tokens.name_of(request.headers.get("authorization", ""))
    if name is None:
        message = "the request has no known token; send `Authorization: Bearer TOKEN`"
        raise HTTPException(401, message, {"www-authenticate": "Bearer", "connection": "close"})
    return name


async def _body(request: Request, seconds: float, most_bytes: int) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            body = await _collected(request, most_bytes)
    except TimeoutError:
        raise HTTPException(
            408, f"the body did not arrive within {seconds:g} s; send it without delay", {"connection": "close"}
        ) from None
    except ClientDisconnect:
        raise HTTPException(400, "the connection was closed before the body was complete") from None
    if len(body) > most_bytes:
        raise HTTPException(
            413, f"the body is larger than {most_bytes} bytes; send one operation", {"connection": "close"}
        )
    return body


async def _collected(request: Request, most_bytes: int) -> bytes:
    """Return the body, or slightly more than `most_bytes` of it; memory is bounded by that and one chunk."""
    kept, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if len(kept) <= most_bytes:
            kept += chunk
        if size > max(_MOST_DISCARDED_BYTES, most_bytes):
            break
    return bytes(kept)


def _query(request: Request) -> str:
    return bytes(request.scope["query_string"]).decode("latin-1")


def _response(answer: Answer) -> Response:
    headers = {**_HEADERS, **answer.headers, "content-type": answer.media_type}
    return Response(answer.body.encode(), answer.status, headers)


async def _refused(request: Request, error: Exception) -> Response:
    """Respond to a request without a route, or refused before its route."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    path = request.url.path
    is_legacy = path == "/throttle" or path.startswith("/throttle/")
    if error.status_code == 405 and is_legacy:
        return _response(legacy.disallowed(path))
    if error.status_code == 405:
        allowed = ", ".join(sorted(headers.pop("Allow", "").split(", ")))
        headers["allow"] = allowed
        message = f"disallowed method {request.method}; use {allowed}"
    elif error.status_code == 404:
        message = f"no route for {path}; GET / lists all"
    else:
        message = error.detail
    made = text(error.status_code, message) if is_legacy else refusal(error.status_code, message)
    return _response(Answer(made.status, made.body, made.media_type, headers))


async def _failed(request: Request, error: Exception) -> Response:
    """Respond to an unexpected exception; the log contains the traceback."""
    message = f"unexpected {type(error).__name__}; report it with the traceback in the gateway's log"
    return _response(refusal(500, message))
