"""Who may send which request: hosts, sites, credentials, sessions and request quotas, before the body is read.

The type to know is `Gate`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from autothrottle.core.access import Caller, Role
from autothrottle.core.errors import AutothrottleError, Forbidden, Invalid, Unauthenticated, UnknownToken
from autothrottle.core.texts import ip_address_of
from autothrottle.gateway.responses import HTTP_STATUS, document, refusal
from autothrottle.gateway.sessions import CSRF_HEADER, SESSION_SECONDS, FailedLogins, Sessions, csrf_of
from autothrottle.runtime.access import AUTHORIZATION, Access, is_bearer, require_role
from autothrottle.runtime.call_limits import CLIENT_ID, REFUSAL_HEADER, LimitReached, RequestQuotas, RequestThrottle
from autothrottle.runtime.connections import host_of
from autothrottle.wire.common import code_of

CERTIFICATE_NAMES = "certificate_names"
"""Key of the request's state with the names in the verified client certificate; empty: none was given."""

LOGIN_PATH = "/page/login"

_DELAY_STEP_SECONDS = 0.1
"""A delay ends this soon after the request to stop."""

_PROXY_FIX = "A proxy must pass on the header Host (nginx: proxy_set_header Host $http_host), see docs/page.md"

_READING = ("GET", "HEAD")

Answering = Callable[[Request, bytes], Response]

log = logging.getLogger(__name__)


class WrongTokenRefusal(HTTPException):
    """The refusal of a wrong token, which `Gate.delay` delays when the request no longer counts."""


@dataclass(frozen=True, slots=True)
class Action:
    """What one verb of a path does."""

    name: str
    answer: Answering
    role: Role | None = None
    """The least role of its caller; None: every caller is refused."""
    is_public: bool = False
    """True: it needs no caller and no role, since the answer is the same for every cluster, or it is about the caller
    itself."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """Who sends a request, and how it proves that a page of this gateway sends it."""

    caller: Caller
    csrf: str
    """The CSRF token that the request must carry; "": the caller has not received one."""
    has_session: bool = False


_ADDRESSES = Action("addresses in probes", lambda request, body: Response(), Role.VIEWER)


@dataclass(frozen=True, slots=True)
class Gate:
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

    def admitted(self, request: Request, action: Action) -> Caller:
        """Return the caller of an allowed request; otherwise respond with 401, 403 or 421, and log that."""
        try:
            return self._caller(request, action)
        except (HTTPException, Unauthenticated, Forbidden) as error:
            raise self._refusal(request, error) from None

    def may_see_addresses(self, request: Request) -> bool:
        """Whether the caller of a probe has a role; False also for a host that guesses tokens. A probe never waits."""
        try:
            with self._unguessed(request):
                self._caller(request, _ADDRESSES)
        except (HTTPException, Unauthenticated, Forbidden):
            return False
        return True

    @contextmanager
    def _unguessed(self, request: Request) -> Iterator[None]:
        """Count a wrong token of a public route, without a delay. Tokens of a host that guesses are not looked at.

        Raises:
            Unauthenticated: the host guesses.
        """
        wrong_tokens, host = self.access.wrong_tokens, _host(request)
        if is_bearer(request.headers.get(AUTHORIZATION, "")) and wrong_tokens.is_slowed(host):
            raise Unauthenticated("tokens of this host are not looked at here, because many were wrong")
        try:
            yield
        except UnknownToken:
            with wrong_tokens.refusal(host):
                raise

    def is_still_admitted(self, request: Request, action: Action) -> bool:
        """Whether the caller may do the action now; nothing is logged."""
        try:
            self._caller(request, action)
        except (HTTPException, Unauthenticated, Forbidden):
            return False
        return True

    def session(self, request: Request, body: bytes) -> Response:
        """Tell the page who uses it. A caller without a session gets the cookie of its CSRF token."""
        try:
            with self._unguessed(request):
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
            return refusal(400, "this gateway has no tokens to log in with. Fix: start it with api-tokens-file")
        host = _host(request)
        try:
            token = _token(request, body)
            with self.failed_logins.attempt(host):
                session, cookie = self.sessions.login(token)
        except Invalid as error:
            return refusal(400, str(error))
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
        return document(200, {"name": caller.name, "role": role, "login": self.sessions.has_login, "csrf": csrf})

    def _refusal(self, request: Request, error: HTTPException | AutothrottleError) -> HTTPException:
        """Return the response to a refused request, and log it."""
        refused = error if isinstance(error, HTTPException) else HTTPException(HTTP_STATUS[code_of(error)], str(error))
        client = request.client.host if request.client else "an unknown address"
        what = f"{request.method} {request.url.path[:200]!r} from {client}: {refused.detail}"
        self.access.log_refusal(f"HTTP {refused.status_code}", what)
        challenge = {"www-authenticate": "Bearer"} if refused.status_code == 401 else {}
        headers = {**(refused.headers or {}), **challenge, "connection": "close"}
        kind = WrongTokenRefusal if isinstance(error, UnknownToken) else HTTPException
        return kind(refused.status_code, refused.detail, headers)

    async def delay(self, request: Request) -> None:
        """Wait as long as the refusal of a wrong token of this caller must."""
        wrong_tokens = self.access.wrong_tokens
        with wrong_tokens.refusal(_host(request)) as seconds:
            deadline = time.monotonic() + seconds
            while (remaining := deadline - time.monotonic()) > 0 and not wrong_tokens.ended.is_set():
                await asyncio.sleep(min(remaining, _DELAY_STEP_SECONDS))

    def _caller(self, request: Request, action: Action) -> Caller:
        _refuse_other_hosts(request, self.hosts)
        _refuse_other_sites(request)
        if action.is_public:
            self._refuse_public(request, action)
            return Caller()
        identity = self._identity(request)
        _refuse_without_csrf(request, identity)
        require_role(identity.caller, action.role, action.name)
        return identity.caller

    def _refuse_public(self, request: Request, action: Action) -> None:
        """Refuse a change of a session by a request without its CSRF token; a login does not need it."""
        session = None if action.name == LOGIN_PATH else self.sessions.session(_cookie(request))
        if session is not None:
            _refuse_without_csrf(request, _Identity(session.caller, session.csrf, True))

    def _identity(self, request: Request) -> _Identity:
        """Return who sends a request. A token in the header beats a session, and a session beats a certificate.

        Raises:
            Unauthenticated: no credentials were given, the token is unknown, or the session has ended.
        """
        given, cookie = request.headers.get(AUTHORIZATION, ""), _cookie(request)
        authorization = given if is_bearer(given) else ""
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


def _host(request: Request) -> str:
    return host_of(request.client.host) if request.client else ""


def _refuse_without_csrf(request: Request, identity: _Identity) -> None:
    """Refuse changes by a browser that do not prove that a page of this gateway asks for them.

    A browser adds cookies and certificates to requests of any page by itself, but never a bearer token. It names the
    page's site in each request that changes something; other programs do not.
    """
    if request.method in _READING or is_bearer(request.headers.get(AUTHORIZATION, "")):
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


def _refuse_other_hosts(request: Request, hosts: frozenset[str]) -> None:
    """Refuse names that are not ours. A page may give its own name our address (DNS rebinding), but not an address."""
    given = request.headers.get("host", "")
    host = re.sub(r":[0-9]*$", "", given).lower().removesuffix(".")
    if host and host not in hosts and ip_address_of(host.strip("[]")) is None:
        raise HTTPException(
            421,
            f"{given[:100]!r} is not a name of this service; use its address, or add the name to api-hosts. "
            f"{_PROXY_FIX}",
        )


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
        fix = f". {_PROXY_FIX}" if is_foreign else ""
        raise HTTPException(403, f"a page of {page} may not change anything; use another client, or this origin{fix}")


def _site(origin: str) -> str | None:
    """Return the host and port of an origin; None: it is not a URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None
