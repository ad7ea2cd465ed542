"""The gateway's application: routing, authentication, and checks before any call of the admin service.

This is the only asynchronous code: it reads the body, calls the admin service in a thread, and sends the response.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import grpc
from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from autothrottle.core.access import Caller, Role
from autothrottle.core.cluster.configs import MAX_BROKER_ID, broker_id_of
from autothrottle.core.errors import AutothrottleError, Forbidden, Invalid, Unauthenticated
from autothrottle.core.texts import ip_address_of
from autothrottle.gateway import legacy, page_files, rest
from autothrottle.gateway.live import LiveView
from autothrottle.gateway.openapi import PAGE_POLICY, comments, openapi, page
from autothrottle.gateway.sessions import CSRF_HEADER, SESSION_SECONDS, FailedLogins, Sessions, csrf_of
from autothrottle.gateway.streams import EventStreams
from autothrottle.runtime.access import AUTHORIZATION, Access, method_role, require_role
from autothrottle.runtime.call_limits import (
    CLIENT_ID,
    HEAVY_REQUEST,
    HEAVY_REQUESTS,
    LARGE_REQUESTS,
    REFUSAL_HEADER,
    SMALL_REQUEST,
    LimitReached,
    RequestQuotas,
    RequestThrottle,
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

CERTIFICATE_NAMES = "certificate_names"
"""Key of the request's state with the names in the verified client certificate; empty: none was given."""

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

_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}
"""Headers of each response that does not have its own."""

ADMIN_TIMEOUT = timedelta(seconds=8)
"""Timeout of one call of the admin service, which itself waits for a planner at most 5 s."""

SUBMIT_TIMEOUT = timedelta(seconds=55)
"""Timeout of a submission. The planner sets the throttles, reads them back and waits a second before it submits."""

_PLANS = ("Rebuild", "Rebalance", "Scale", "Decommission", "PlanPools", "GetPoolStatus", "GetCapacity")
_TIMEOUTS = dict.fromkeys(("SubmitReassignment", "EstimateReassignment", *_PLANS), SUBMIT_TIMEOUT)
"""Method -> timeout, if longer than `ADMIN_TIMEOUT`."""

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

_MOST_PARAMETERS = 32

_READING = ("GET", "HEAD")

_LOGIN = "/page/login"

_PROBES: Mapping[str, Scope] = {"/healthz": Scope.LIVENESS, "/readyz": Scope.READINESS}
"""Path -> the checks that it reports, without a token and outside the API."""

_Answering = Callable[[Request, bytes], Response]
_Endpoint = Callable[[Request], Awaitable[Response]]

log = logging.getLogger(__name__)


class AdminService(Protocol):
    """The admin service, local or remote."""

    def call(self, method: str, request: Message, timeout: timedelta, metadata: Metadata) -> Message:
        """Call a method by name and return its response.

        Raises:
            AutothrottleError: the service answered with an error, or did not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Action:
    """What one verb of a path does."""

    name: str
    answer: _Answering
    role: Role | None = None
    """The least role of its caller; None: every caller is refused."""
    is_public: bool = False
    """True: it needs no caller and no role, since the answer is the same for every cluster, or it is about the caller
    itself."""


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
    gate = _Gate(access, frozenset(hosts), quotas or RequestQuotas(), Sessions(access.tokens))
    limits = _Limits(body_seconds)
    paths = {} if admin is None else _api(admin) | _page(gate)
    if live is not None:
        paths |= _live(live)
    if recoveries is not None:
        action = _Action("/page/recoveries", lambda request, body: _document(200, recoveries()), Role.VIEWER)
        paths["/page/recoveries"] = {"GET": action}
    if metrics is not None:
        paths["/metrics"] = {"GET": _Action("/metrics", _rendered(metrics), Role.VIEWER, is_local)}
    application = Starlette(
        routes=[
            Route(path, _endpoint(actions, limits, _LARGEST.get(path, MAX_BODY_BYTES), gate), methods=[*actions])
            for path, actions in paths.items()
        ]
        + ([] if live is None else [Route(EVENTS_PATH, _events(live, limits, gate), methods=["GET"])])
        + [Route(path, _probe(health, scope, gate)) for path, scope in _PROBES.items()],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    application.router.redirect_slashes = False
    return application


def _api(admin: AdminService) -> dict[str, dict[str, _Action]]:
    """Path -> verb -> action of the API and its descriptions."""
    routes, descriptions = [binding for service in SERVICES for binding in rest.bindings(service)], comments()
    described, shown = openapi(routes, descriptions), page(routes, descriptions)
    paths: dict[str, dict[str, _Action]] = {
        "/api": {
            "GET": _Action("/api", lambda request, body: HTMLResponse(shown, headers=PAGE_POLICY), is_public=True)
        },
        "/openapi.json": {
            "GET": _Action("/openapi.json", lambda request, body: _document(200, described), is_public=True)
        },
    }
    for binding in routes:
        method = binding.method
        action = _Action(method.name, _rest(binding, admin), method_role(method))
        paths.setdefault(binding.path, {})[binding.verb] = action
    text_api = {
        verb: _Action(f"{verb} /throttle", _legacy(admin), method_role(SERVICE.methods_by_name[method]))
        for verb, method in legacy.METHODS.items()
    }
    return paths | {"/throttle": text_api, "/throttle/{rest:path}": text_api}


def _live(live: LiveView) -> dict[str, dict[str, _Action]]:
    """Path -> verb -> action of what the page reads beside its events."""

    def explained(request: Request, broker_id: int) -> Response:
        return _document(200, {"lines": live.explanation(broker_id)})

    def past(request: Request, broker_id: int) -> Response:
        return _document(200, live.history(broker_id))

    return {
        "/page/explain/{broker}": {"GET": _Action("/page/explain", _of_broker(explained), Role.VIEWER)},
        "/page/history/{broker}": {"GET": _Action("/page/history", _of_broker(past), Role.VIEWER)},
    }


def _of_broker(answer: Callable[[Request, int], Response]) -> _Answering:
    """Let a route have the id of a broker in its path, and errors as JSON."""

    def of_broker(request: Request, body: bytes) -> Response:
        try:
            text = str(request.path_params["broker"])
            broker_id = broker_id_of(text)
            if broker_id is None:
                raise Invalid(f"{text[:60]!r} is not a broker id; give an integer, 0 to {MAX_BROKER_ID}")
            return answer(request, broker_id)
        except AutothrottleError as error:
            return _document(HTTP_STATUS[code_of(error)], {"code": code_of(error).name, "message": str(error)})

    return of_broker


_EVENTS = _Action(EVENTS_PATH, lambda request, body: Response(), Role.VIEWER)


def _events(live: LiveView, limits: _Limits, gate: _Gate) -> _Endpoint:
    """Answer with the event stream of the page, which counts as a request only until it begins."""
    streams = EventStreams()

    async def answer(request: Request) -> Response:
        with limits.slot(request, 0), ExitStack() as counted:
            caller = gate.admitted(request, _EVENTS)
            throttle = gate.counted(request, caller, counted)
            if throttle is not None:
                await asyncio.sleep(throttle.seconds_left)
        host = host_of(request.client.host) if request.client else ""
        response = streams.response(
            live.stream(lambda: gate.is_still_admitted(request, _EVENTS)),
            host,
            getattr(request.state, CONNECTION, None),
            lambda refused: _secured(_refusal(429, refused, {"retry-after": "1"})),
        )
        return _secured(response)

    return answer


def _page(gate: _Gate) -> dict[str, dict[str, _Action]]:
    """Path -> verb -> action of the page's files and sessions."""
    files = page_files.page_files()
    return {
        "/": {"GET": _Action("/", lambda request, body: _file(request, files, page_files.INDEX), is_public=True)},
        "/page/static/{name}": {
            "GET": _Action(
                "/page/static",
                lambda request, body: _file(request, files, request.path_params["name"]),
                is_public=True,
            )
        },
        "/page/session": {"GET": _Action("/page/session", gate.session, is_public=True)},
        "/page/login": {"POST": _Action(_LOGIN, gate.login, is_public=True)},
        "/page/logout": {"POST": _Action("/page/logout", gate.logout, is_public=True)},
    }


def _file(request: Request, files: Mapping[str, page_files.PageFile], name: str) -> Response:
    """Return a file of the page, or 304 if the browser has it."""
    file = files.get(name)
    if file is None:
        raise HTTPException(404)
    headers = {**page_files.HEADERS, "etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


def _rendered(metrics: Callable[[], str]) -> _Answering:
    return lambda request, body: PlainTextResponse(metrics(), media_type="text/plain; version=0.0.4")


def _rest(binding: rest.Binding, admin: AdminService) -> _Answering:
    def answer(request: Request, body: bytes) -> Response:
        if_match = None if binding.verb == "GET" else request.headers.get("if-match")
        try:
            message = rest.request(binding, request.path_params, _parameters(request), body, if_match)
            return _document(200, *rest.response(_call(request, admin)(binding.method.name, message)))
        except AutothrottleError as error:
            return _document(HTTP_STATUS[code_of(error)], {"code": code_of(error).name, "message": str(error)})

    return answer


def _legacy(admin: AdminService) -> _Answering:
    def answer(request: Request, body: bytes) -> Response:
        path, verb = request.url.path, "GET" if request.method == "HEAD" else request.method
        if verb not in legacy.allowed(path):
            return _disallowed(path)
        try:
            return _text(200, *legacy.answer(_call(request, admin), verb, path, _parameters(request)))
        except AutothrottleError as error:
            return _text(HTTP_STATUS[code_of(error)], str(error))

    return answer


def _disallowed(path: str) -> Response:
    """Return the response to a method that a text route does not allow."""
    return _text(405, "disallowed method", headers={"allow": ", ".join(legacy.allowed(path))})


def _text(status: int, *lines: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a plain-text response; each line ends in a newline."""
    return PlainTextResponse("".join(f"{line}\n" for line in lines), status, headers)


def _document(status: int, value: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(json.dumps(value, ensure_ascii=False) + "\n", status, headers, "application/json")


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


def _endpoint(actions: Mapping[str, _Action], limits: _Limits, most_bytes: int, gate: _Gate) -> _Endpoint:
    async def answer(request: Request) -> Response:
        with ExitStack() as counted:
            with limits.slot(request, most_bytes):
                action = actions["GET" if request.method == "HEAD" else request.method]
                caller = gate.admitted(request, action)
                throttle = gate.counted(request, caller, counted)
                request.state.name = caller.name
                body = await _body(request, limits.body_seconds, most_bytes)
                response = _secured(await run_in_threadpool(action.answer, request, body))
            if throttle is not None:
                await asyncio.sleep(throttle.seconds_left)
                response.headers.append(*throttle.header)
            return response

    return answer


@dataclass(frozen=True, slots=True)
class _Identity:
    """Who sends a request, and how it proves that a page of this gateway sends it."""

    caller: Caller
    csrf: str
    """The token that a page gives; "": there is none for this request."""
    has_session: bool = False


@dataclass(frozen=True, slots=True)
class _Gate:
    """Checks requests before their bodies are read, and begins and ends sessions."""

    access: Access
    hosts: frozenset[str]
    quotas: RequestQuotas
    sessions: Sessions
    failed_logins: FailedLogins = field(default_factory=FailedLogins)

    def counted(self, request: Request, caller: Caller, stack: ExitStack) -> RequestThrottle | None:
        """Count a request for the caller's request quota until the stack closes; otherwise respond with 429."""
        try:
            return stack.enter_context(self.quotas.reserved(caller, request.headers.get(CLIENT_ID, "")))
        except LimitReached as error:
            raise HTTPException(429, str(error), dict((("retry-after", "1"), REFUSAL_HEADER))) from None

    def admitted(self, request: Request, action: _Action) -> Caller:
        """Return the caller of an allowed request; otherwise respond with 401, 403 or 421, and log that."""
        try:
            return self._caller(request, action)
        except (HTTPException, Unauthenticated, Forbidden) as error:
            raise self._refusal(request, error) from None

    def may_see_addresses(self, request: Request) -> bool:
        """Whether the caller of a probe has a role."""
        return self.is_still_admitted(request, _ADDRESSES)

    def is_still_admitted(self, request: Request, action: _Action) -> bool:
        """Whether the caller may do the action now; nothing is logged."""
        try:
            self._caller(request, action)
        except (HTTPException, Unauthenticated, Forbidden):
            return False
        return True

    def session(self, request: Request, body: bytes) -> Response:
        """Tell the page who uses it. A caller without a session gets the cookie of its CSRF token."""
        try:
            identity = self._identity(request)
        except Unauthenticated:
            return self._described(Caller(), "")
        if identity.csrf:
            return self._described(identity.caller, identity.csrf)
        cookie = self.sessions.new_cookie(identity.caller)
        return _with_cookie(self._described(identity.caller, csrf_of(cookie)), request, cookie, None)

    def login(self, request: Request, body: bytes) -> Response:
        """Begin the session of a token."""
        if not self.sessions.has_login:
            return _refusal(400, "this gateway has no tokens to log in with. Fix: start it with api-tokens-file")
        host = host_of(request.client.host) if request.client else ""
        try:
            token = _token(request, body)
            with self.failed_logins.attempt(host):
                session, cookie = self.sessions.login(token)
        except Invalid as error:
            return _refusal(400, str(error))
        except Unauthenticated as error:
            raise self._refusal(request, error) from None
        except LimitReached as error:
            raise self._refusal(request, HTTPException(429, str(error), {"retry-after": "60"})) from None
        log.info("%s logged in to the page from %s", session.caller.name, host)
        return _with_cookie(self._described(session.caller, session.csrf), request, cookie, SESSION_SECONDS)

    def logout(self, request: Request, body: bytes) -> Response:
        """End the session on this gateway and in this browser."""
        self.sessions.logout(_cookie(request))
        return _with_cookie(self._described(Caller(), ""), request, "", 0)

    def _described(self, caller: Caller, csrf: str) -> Response:
        role = "" if caller.role is None else str(caller.role)
        return _document(200, {"name": caller.name, "role": role, "login": self.sessions.has_login, "csrf": csrf})

    def _refusal(self, request: Request, error: HTTPException | AutothrottleError) -> HTTPException:
        """Return the response to a refused request, and log it."""
        refused = error if isinstance(error, HTTPException) else HTTPException(HTTP_STATUS[code_of(error)], str(error))
        client = request.client.host if request.client else "an unknown address"
        what = f"{request.method} {request.url.path[:200]!r} from {client}: {refused.detail}"
        self.access.log_refusal(f"HTTP {refused.status_code}", what)
        challenge = {"www-authenticate": "Bearer"} if refused.status_code == 401 else {}
        headers = {**(refused.headers or {}), **challenge, "connection": "close"}
        return HTTPException(refused.status_code, refused.detail, headers)

    def _caller(self, request: Request, action: _Action) -> Caller:
        _refuse_other_hosts(request, self.hosts)
        _refuse_other_sites(request)
        if action.is_public:
            self._refuse_public(request, action)
            return Caller()
        identity = self._identity(request)
        _refuse_without_csrf(request, identity)
        require_role(identity.caller, action.role, action.name)
        return identity.caller

    def _refuse_public(self, request: Request, action: _Action) -> None:
        """Refuse a change of a session by a request without its CSRF token; a login does not need it."""
        session = None if action.name == _LOGIN else self.sessions.session(_cookie(request))
        if session is not None:
            _refuse_without_csrf(request, _Identity(session.caller, session.csrf, True))

    def _identity(self, request: Request) -> _Identity:
        """Return who sends a request. A token in the header beats a session, and a session beats a certificate.

        Raises:
            Unauthenticated: no credentials were given, the token is unknown, or the session has ended.
        """
        authorization, cookie = request.headers.get(AUTHORIZATION, ""), _cookie(request)
        session = None if authorization else self.sessions.session(cookie)
        if session is not None:
            return _Identity(session.caller, session.csrf, True)
        try:
            caller = self.access.caller(getattr(request.state, CERTIFICATE_NAMES, ()), authorization)
        except Unauthenticated:
            if cookie and not authorization:
                raise Unauthenticated("the session has ended; log in to the page again") from None
            raise
        return _Identity(caller, csrf_of(cookie))


def _refuse_without_csrf(request: Request, identity: _Identity) -> None:
    """Refuse changes by a browser that do not prove that a page of this gateway asks for them.

    A browser adds cookies and certificates to requests of any page by itself, but never a bearer token. It names the
    page's site in each request that changes something; other programs do not.
    """
    if request.method in _READING or request.headers.get(AUTHORIZATION, "").lower().startswith("bearer "):
        return
    is_browser = "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none"
    if not identity.has_session and not is_browser:
        return
    given = request.headers.get(CSRF_HEADER, "")
    if not identity.csrf or not hmac.compare_digest(given.encode(), identity.csrf.encode()):
        raise HTTPException(
            403,
            f"the header {CSRF_HEADER} must have the csrf that GET /page/session gives now. Fix: load the page again",
        )


def _cookie_name(request: Request) -> str:
    """Return the name of the cookie: browsers send cookies to every port of a host, and each may be another cluster."""
    port = re.search(r":([0-9]{1,5})$", request.headers.get("host", ""))
    # No other host can set a cookie with this prefix, and no plain HTTP server.
    prefix = "__Host-" if request.url.scheme == "https" else ""
    return f"{prefix}autothrottle{f'-{port[1]}' if port else ''}"


def _cookie(request: Request) -> str:
    """Return the page's cookie; "": none was given."""
    return request.cookies.get(_cookie_name(request), "")


def _with_cookie(response: Response, request: Request, cookie: str, seconds: int | None) -> Response:
    """Return the response with the page's cookie.

    Args:
        response: the response.
        request: its request.
        cookie: the cookie.
        seconds: after this time, the browser forgets it; None: when it ends.
    """
    # A proxy may end TLS, which the browser's origin shows.
    is_https = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
    response.set_cookie(
        _cookie_name(request), cookie, seconds, path="/", secure=is_https, httponly=True, samesite="strict"
    )
    return response


def _token(request: Request, body: bytes) -> str:
    """Return the token in the body of a login.

    Raises:
        Invalid: the body is not a JSON object with a token.
    """
    try:
        value = json.loads(body) if _is_json(request) else None
    except (ValueError, RecursionError):
        value = None
    token = value.get("token") if isinstance(value, dict) else None
    if not isinstance(token, str):
        # The message omits the body, because it may contain a token.
        raise Invalid('a login must be application/json with a token, such as {"token": "..."}')
    return token.strip()


def _is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


_ADDRESSES = _Action("addresses in probes", lambda request, body: Response(), Role.VIEWER)


def _refuse_other_hosts(request: Request, hosts: frozenset[str]) -> None:
    """Refuse names that are not ours. A page may give its own name our address (DNS rebinding), but not an address."""
    given = request.headers.get("host", "")
    host = re.sub(r":[0-9]*$", "", given).lower().removesuffix(".")
    if host and host not in hosts and ip_address_of(host.strip("[]")) is None:
        raise HTTPException(
            421, f"{given[:100]!r} is not a name of this service; use its address, or add the name to api-hosts"
        )


def _probe(health: Health | None, scope: Scope, gate: _Gate) -> _Endpoint:
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
        return _secured(_document(200 if ok else 503, {"ok": ok, "checks": checks}))

    return answer


def _refuse_other_sites(request: Request) -> None:
    """Refuse requests that a page of another site makes in an operator's browser; loopback does not stop browsers."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
    if request.method in _READING:
        if request.url.path.startswith("/page/") and site not in ("none", "same-origin"):
            raise HTTPException(403, f"a page of another site ({site[:100]}) may not read the page's data")
        return
    is_foreign = origin is not None and _site(origin) != request.headers.get("host", "").lower()
    if is_foreign or site not in ("none", "same-origin"):
        page = (origin or f"another site ({site})")[:100]
        raise HTTPException(403, f"a page of {page} may not change anything; use another client, or this origin")


def _site(origin: str) -> str | None:
    """Return the host and port of an origin; None: it is not a URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


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


def _secured(response: Response) -> Response:
    """Return the response with the headers of every response."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _refused(request: Request, error: Exception) -> Response:
    """Respond to a request without a route, or refused before its route."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    path = request.url.path
    is_legacy = path == "/throttle" or path.startswith("/throttle/")
    if error.status_code == 405 and is_legacy:
        return _secured(_disallowed(path))
    if error.status_code == 405:
        allowed = ", ".join(sorted(headers.pop("Allow", "").split(", ")))
        headers["allow"] = allowed
        message = f"disallowed method {request.method}; use {allowed}"
    elif error.status_code == 404:
        message = f"no route for {path}; GET /api lists all"
    else:
        message = error.detail
    if is_legacy:
        return _secured(_text(error.status_code, message, headers=headers))
    return _secured(_refusal(error.status_code, message, headers))


def _refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a refusal by the gateway itself as a JSON response."""
    return _document(status, {"code": _CODES.get(status, "UNKNOWN"), "message": message}, headers)


async def _failed(request: Request, error: Exception) -> Response:
    """Respond to an unexpected exception; the log contains the traceback."""
    message = f"unexpected {type(error).__name__}; report it with the traceback in the gateway's log"
    return _secured(_refusal(500, message))
