"""The gateway's application: routing, authentication, and checks before any call of the admin service.

This is the only asynchronous code: it reads the body, calls the admin service in a thread, and sends the response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, Protocol
from urllib.parse import parse_qsl

from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from autothrottle.core.access import Role
from autothrottle.core.cluster.configs import MAX_BROKER_ID, broker_id_of
from autothrottle.core.errors import AutothrottleError, Invalid
from autothrottle.gateway import large_answers, legacy, page_files, rest
from autothrottle.gateway.gate import LOGIN_PATH, Action, Answering, Gate, WrongTokenRefusal
from autothrottle.gateway.live import LiveView
from autothrottle.gateway.openapi import PAGE_POLICY, comments, openapi, page
from autothrottle.gateway.responses import HTTP_STATUS, document, failure, plain_text, refusal, secured
from autothrottle.gateway.sessions import Sessions
from autothrottle.gateway.streams import EventStream, EventStreams
from autothrottle.runtime.access import Access, method_role
from autothrottle.runtime.call_limits import (
    HEAVY_REQUEST,
    HEAVY_REQUESTS,
    LARGE_REQUESTS,
    SMALL_REQUEST,
    LimitReached,
    RequestQuotas,
    Slots,
)
from autothrottle.runtime.connections import host_of
from autothrottle.runtime.health import Health, Scope, without_addresses
from autothrottle.v1 import admin_pb2, placement_pb2, quotas_pb2
from autothrottle.wire.common import Metadata, code_of, forwarded_metadata

SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
SERVICES = (
    SERVICE,
    placement_pb2.DESCRIPTOR.services_by_name["PlacementService"],
    quotas_pb2.DESCRIPTOR.services_by_name["QuotaService"],
)
"""The services whose routes the gateway serves; every admin process has them all."""

CONNECTION = "connection"
"""Key of the request's state with its connection, a `streams.StreamingConnection`."""

EVENTS_PATH = "/page/events"
"""Path of the event streams."""

MAX_BODY_BYTES = SMALL_REQUEST
"""Largest request body, except for `LARGE_BODIES`."""

LARGE_BODIES: Mapping[str, int] = {
    method.name: largest
    for method in SERVICE.methods
    if (largest := LARGE_REQUESTS.get(f"/{SERVICE.full_name}/{method.name}"))
}
"""Method -> largest body in bytes."""

MAX_REQUESTS = 32
"""Requests in progress, half of them for one host. Probes do not count."""

_LARGEST = {b.path: LARGE_BODIES[b.method.name] for b in rest.bindings(SERVICE) if b.method.name in LARGE_BODIES}
"""Path -> largest body in bytes."""

_MOST_DISCARDED_BYTES = 16 * 1024 * 1024
"""This much of an oversized body is read, so that its sender is still connected for the response."""

ADMIN_TIMEOUT = timedelta(seconds=8)
"""Timeout of one call of the admin service, which itself waits for a planner at most 5 s."""

SUBMIT_TIMEOUT = timedelta(seconds=55)
"""Timeout of a submission. The planner sets the throttles, reads them back and waits a second before it submits."""

_PLANS = ("Rebuild", "Rebalance", "Scale", "Decommission", "PlanPools", "GetPoolStatus", "GetCapacity")
_REASSIGNMENTS = ("SubmitReassignment", "EstimateReassignment", "CancelReassignment", "CheckCancellation")
_TIMEOUTS = dict.fromkeys((*_REASSIGNMENTS, *_PLANS), SUBMIT_TIMEOUT)
"""Method -> timeout, if longer than `ADMIN_TIMEOUT`."""

_MOST_PARAMETERS = 32

_PROBES: Mapping[str, Scope] = {"/healthz": Scope.LIVENESS, "/readyz": Scope.READINESS}
"""Path -> the checks that it reports, without a token and outside the API."""

_Endpoint = Callable[[Request], Awaitable[Response]]


class AdminService(Protocol):
    """The admin service, local or remote."""

    def call(self, method: str, request: Message, timeout: timedelta, metadata: Metadata) -> Message:
        """Call a method by name and return its response.

        Raises:
            AutothrottleError: the service answered with an error, or did not answer.
        """
        ...


def application(
    admin: AdminService | None,
    body_seconds: float,
    access: Access,
    hosts: Collection[str],
    health: Health | None = None,
    metrics: Callable[[], str] | None = None,
    is_local: bool = False,
    quotas: RequestQuotas | None = None,
    live: LiveView | None = None,
    recoveries: Callable[[], Mapping[str, Any]] | None = None,
) -> Starlette:
    """Return the application.

    Args:
        admin: the service that executes requests; None: only /metrics and the probes are served.
        body_seconds: time limit for receiving a request body.
        access: the known credentials. The page's files, the descriptions of the API and the probes are public.
        hosts: allowed names in the `Host` header, in lower case; IP addresses are always allowed.
        health: the checks of the process; None: there are no checks.
        metrics: renders the metrics of the process in Prometheus' text format; None: there are none.
        is_local: whether only this host reaches the server; then /metrics needs no credentials.
        quotas: the request quotas of the process; None: there are none.
        live: the live state for the page; None: its routes do not exist.
        recoveries: returns the answer of GET /page/recoveries; None: the route does not exist.
    """
    gate = Gate(access, frozenset(hosts), quotas or RequestQuotas(), Sessions(access.tokens))
    limits = _Limits(body_seconds)
    paths = {} if admin is None else _api(admin) | _page(gate)
    if live is not None:
        paths |= _live(live)
    if recoveries is not None:
        action = Action("/page/recoveries", lambda request, body: document(200, recoveries()), Role.VIEWER)
        paths["/page/recoveries"] = {"GET": action}
    if metrics is not None:
        paths["/metrics"] = {"GET": Action("/metrics", _rendered(metrics), Role.VIEWER, is_local)}
    application = Starlette(
        routes=[
            Route(path, _endpoint(actions, limits, _LARGEST.get(path, MAX_BODY_BYTES), gate), methods=[*actions])
            for path, actions in paths.items()
        ]
        + ([] if live is None else [Route(EVENTS_PATH, _events(live, limits, gate), methods=["GET"])])
        + [Route(path, _probe(health, scope, gate)) for path, scope in _PROBES.items()],
        exception_handlers={
            HTTPException: _refused,
            WrongTokenRefusal: partial(_refused_late, gate),
            Exception: _failed,
        },
    )
    application.router.redirect_slashes = False
    return application


def _api(admin: AdminService) -> dict[str, dict[str, Action]]:
    """Path -> verb -> action of the API and its descriptions."""
    routes, descriptions = [binding for service in SERVICES for binding in rest.bindings(service)], comments()
    described, shown = openapi(routes, descriptions), page(routes, descriptions)
    paths: dict[str, dict[str, Action]] = {
        "/api": {"GET": Action("/api", lambda request, body: HTMLResponse(shown, headers=PAGE_POLICY), is_public=True)},
        "/openapi.json": {
            "GET": Action("/openapi.json", lambda request, body: document(200, described), is_public=True)
        },
    }
    for binding in routes:
        method = binding.method
        action = Action(method.name, partial(_rest, binding, admin), method_role(method))
        paths.setdefault(binding.path, {})[binding.verb] = action
    text_api = {
        verb: Action(f"{verb} /throttle", partial(_legacy, admin), method_role(SERVICE.methods_by_name[method]))
        for verb, method in legacy.METHODS.items()
    }
    return paths | {"/throttle": text_api, "/throttle/{rest:path}": text_api}


def _live(live: LiveView) -> dict[str, dict[str, Action]]:
    """Path -> verb -> action of what the page reads beside its events."""
    return {
        "/page/explain/{broker}": {"GET": Action("/page/explain", partial(_of_broker, live.explanation), Role.VIEWER)},
        "/page/history/{broker}": {"GET": Action("/page/history", partial(_of_broker, live.history), Role.VIEWER)},
    }


def _of_broker(read: Callable[[int], Mapping[str, Any]], request: Request, body: bytes) -> Response:
    """Read a document about the broker in the path. Answer with it, or with the error, as JSON."""
    try:
        text = str(request.path_params["broker"])
        broker_id = broker_id_of(text)
        if broker_id is None:
            raise Invalid(f"{text[:60]!r} is not a broker id; give an integer, 0 to {MAX_BROKER_ID}")
        return document(200, read(broker_id))
    except AutothrottleError as error:
        return failure(error)


_EVENTS = Action(EVENTS_PATH, lambda request, body: Response(), Role.VIEWER)


def _events(live: LiveView, limits: _Limits, gate: Gate) -> _Endpoint:
    """Answer with the event stream of the page, which counts as a request only until it begins."""
    streams = EventStreams()

    async def answer(request: Request) -> Response:
        with limits.slot(request, 0), ExitStack() as counted:
            caller = gate.admitted(request, _EVENTS)
            throttle = gate.counted(request, caller, counted)
            if throttle is not None:
                await asyncio.sleep(throttle.seconds_left)
        host = host_of(request.client.host) if request.client else ""
        response = EventStream(
            streams,
            live.stream(lambda: gate.is_still_admitted(request, _EVENTS)),
            host,
            getattr(request.state, CONNECTION, None),
            lambda refused: secured(refusal(429, refused, {"retry-after": "1"})),
        )
        return secured(response)

    return answer


def _page(gate: Gate) -> dict[str, dict[str, Action]]:
    """Path -> verb -> action of the page's files and sessions."""
    file = partial(_file, page_files.page_files())
    return {
        "/": {"GET": Action("/", file, is_public=True)},
        "/page/static/{name}": {"GET": Action("/page/static", file, is_public=True)},
        "/page/session": {"GET": Action("/page/session", gate.session, is_public=True)},
        "/page/login": {"POST": Action(LOGIN_PATH, gate.login, is_public=True)},
        "/page/logout": {"POST": Action("/page/logout", gate.logout, is_public=True)},
    }


def _file(files: Mapping[str, page_files.PageFile], request: Request, body: bytes) -> Response:
    """Return the file of the page that the path names, or the page itself; 304 if the browser has it."""
    file = files.get(request.path_params.get("name", page_files.INDEX))
    if file is None:
        raise HTTPException(404)
    headers = {**page_files.HEADERS, "etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


def _rendered(metrics: Callable[[], str]) -> Answering:
    return lambda request, body: PlainTextResponse(metrics(), media_type="text/plain; version=0.0.4")


def _rest(binding: rest.Binding, admin: AdminService, request: Request, body: bytes) -> Response:
    if_match = None if binding.verb == "GET" else request.headers.get("if-match")
    try:
        message = rest.request(binding, request.path_params, _parameters(request), body, if_match)
        return large_answers.answer(_call(request, admin)(binding.method.name, message))
    except AutothrottleError as error:
        return failure(error)


def _legacy(admin: AdminService, request: Request, body: bytes) -> Response:
    path, verb = request.url.path, "GET" if request.method == "HEAD" else request.method
    if verb not in legacy.allowed(path):
        return _disallowed(path)
    try:
        return plain_text(200, *legacy.answer(_call(request, admin), verb, path, _parameters(request)))
    except AutothrottleError as error:
        return plain_text(HTTP_STATUS[code_of(error)], str(error))


def _disallowed(path: str) -> Response:
    """Return the response to a method that a text route does not allow."""
    return plain_text(405, "disallowed method", headers={"allow": ", ".join(legacy.allowed(path))})


def _parameters(request: Request) -> dict[str, str]:
    """Return the parameters of the URL query, name -> text.

    Raises:
        Invalid: a parameter is repeated, there are more than 32, or the text is not UTF-8.
    """
    query = bytes(request.scope["query_string"]).decode("latin-1")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS)
    except ValueError as error:
        raise Invalid(f"the query of the URL cannot be read: {error}; give name=value&name=value, in UTF-8") from None
    parameters = dict(pairs)
    for name in parameters:
        if sum(name == other for other, _ in pairs) > 1:
            raise Invalid(f"{name} param must be given once")
    return parameters


def _call(request: Request, admin: AdminService) -> rest.Call:
    client = f"{request.client.host}:{request.client.port}" if request.client else ""
    name = getattr(request.state, "name", "")
    metadata = forwarded_metadata(f"{name} at {client}" if name else client, request.headers)
    return lambda method, message: admin.call(method, message, _TIMEOUTS.get(method, ADMIN_TIMEOUT), metadata)


class _Limits:
    """Limits of requests in progress."""

    def __init__(self, body_seconds: float) -> None:
        self.body_seconds = body_seconds
        self._requests = Slots("gateway", "requests in progress", MAX_REQUESTS)
        self._heavy = Slots("gateway", f"requests of more than {HEAVY_REQUEST} bytes in progress", HEAVY_REQUESTS)

    @contextmanager
    def slot(self, request: Request, most_bytes: int) -> Iterator[None]:
        """Count a request before anything else, and a heavy one twice."""
        host = host_of(request.client.host) if request.client else ""
        length = request.headers.get("content-length", "")
        # int() refuses thousands of digits. Without the header, the body is chunked.
        size = int(length) if length.isdecimal() and len(length) <= 20 else most_bytes
        is_heavy = request.method != "GET" and min(size, most_bytes) > HEAVY_REQUEST
        try:
            with self._requests.slot(host), self._heavy.slot(host) if is_heavy else nullcontext():
                yield
        except LimitReached as error:
            raise HTTPException(429, str(error), {"connection": "close", "retry-after": "1"}) from None


def _endpoint(actions: Mapping[str, Action], limits: _Limits, most_bytes: int, gate: Gate) -> _Endpoint:
    async def answer(request: Request) -> Response:
        with ExitStack() as counted:
            with limits.slot(request, most_bytes):
                action = actions["GET" if request.method == "HEAD" else request.method]
                caller = gate.admitted(request, action)
                throttle = gate.counted(request, caller, counted)
                request.state.name = caller.name
                body = await _body(request, limits.body_seconds, most_bytes)
                response = secured(await run_in_threadpool(action.answer, request, body))
            if throttle is not None:
                await asyncio.sleep(throttle.seconds_left)
                response.headers.append(*throttle.header)
            return response

    return answer


def _probe(health: Health | None, scope: Scope, gate: Gate) -> _Endpoint:
    """Report the last results of checks; it waits for no thread of the pool, and for no other service.

    Only callers with a role see addresses in messages.
    """

    async def answer(request: Request) -> Response:
        results = health.results(scope) if health else ()
        ok = all(result.ok for result in results)
        shown = str if gate.may_see_addresses(request) else without_addresses
        checks = [
            {"name": r.name, "ok": r.ok, "since": r.since.isoformat(timespec="seconds"), "message": shown(r.message)}
            for r in results
        ]
        return secured(document(200 if ok else 503, {"ok": ok, "checks": checks}))

    return answer


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
    body, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if len(body) <= most_bytes:
            body += chunk
        if size > max(_MOST_DISCARDED_BYTES, most_bytes):
            break
    return bytes(body)


async def _refused(request: Request, error: Exception) -> Response:
    """Respond to a request without a route, or refused before its route."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    path = request.url.path
    is_legacy = path == "/throttle" or path.startswith("/throttle/")
    if error.status_code == 405 and is_legacy:
        return secured(_disallowed(path))
    if error.status_code == 405:
        allowed = ", ".join(sorted(headers.pop("Allow", "").split(", ")))
        headers["allow"] = allowed
        message = f"disallowed method {request.method}; use {allowed}"
    elif error.status_code == 404:
        message = f"no route for {path}; GET /api lists all"
    else:
        message = error.detail
    if is_legacy:
        return secured(plain_text(error.status_code, message, headers=headers))
    return secured(refusal(error.status_code, message, headers))


async def _refused_late(gate: Gate, request: Request, error: Exception) -> Response:
    """Respond to a request with a wrong token after its delay. The request holds no slot meanwhile."""
    await gate.delay(request)
    return await _refused(request, error)


async def _failed(request: Request, error: Exception) -> Response:
    """Respond to an unexpected exception; the log contains the traceback."""
    message = f"unexpected {type(error).__name__}; report it with the traceback in the gateway's log"
    return secured(refusal(500, message))
