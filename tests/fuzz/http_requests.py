"""The door of HTTP: requests that the OpenAPI document describes, hostile in one part, and the text API.

The application answers in this process, without a socket; behind it are running services on in-memory twins.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from starlette.types import Message

from autothrottle.adapters.grpc import AdminServiceClient
from autothrottle.gateway import legacy
from autothrottle.gateway.openapi import comments, openapi
from autothrottle.gateway.rest import bindings
from autothrottle.gateway.web import SERVICES, application
from autothrottle.runtime.access import Access
from tests.fuzz import hostile
from tests.fuzz.hostile import Choices
from tests.fuzz.series import require
from tests.fuzz.twins import EXAMPLES, RESET_INPUTS, reset, twins

EXPECTED = {200, 400, 401, 403, 404, 405, 408, 409, 413, 421, 429, 503}
"""Statuses of answers. 500 is a defect: nothing of the twins is damaged."""

SECONDS = 5.0
"""Time limit of a request, longer than a hang."""

HEADERS = (
    "content-type",
    "if-match",
    "content-length",
    "traceparent",
    "tracestate",
    "x-forwarded-for",
    "host",
    "origin",
    "sec-fetch-site",
    "cookie",
    "x-csrf-token",
)


class Attack(NamedTuple):
    """One request."""

    verb: str
    target: str
    body: bytes
    headers: Mapping[str, str]


class _Route(NamedTuple):
    verb: str
    path: str
    parameters: Sequence[str]
    """Names of the parameters in the query."""
    bodies: Sequence[Any]
    """Valid bodies; empty: the route takes none."""


class HttpRequests:
    """The gateway's application."""

    name = "HTTP"

    def __init__(self) -> None:
        self._services = twins()
        self._admin = AdminServiceClient([self._services.address("admin")])
        self._application = application(self._admin, SECONDS, Access(), ("localhost",))
        self._routes = [*_described_routes(), *_text_routes()]
        self._loop = asyncio.new_event_loop()
        self._inputs = 0

    def make(self, choices: Choices) -> Attack:
        route = choices.of(self._routes)
        verb = (
            choices.of(("GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "TRACE")) if choices.one_in(30) else route.verb
        )
        path = _path(route, choices)
        body = b""
        if route.bodies and not choices.one_in(20):
            body = hostile.json_text(route.bodies, choices) if choices.one_in(2) else hostile.encoded(route.bodies[0])
        elif choices.one_in(20):
            body = hostile.encoded(hostile.value(choices))
        headers = {"host": "localhost"}
        if choices.one_in(6):
            headers[choices.of(HEADERS)] = _header(choices)
        return Attack(verb, path, body, headers)

    def check(self, attack: Attack) -> None:
        self._inputs += 1
        if self._inputs % RESET_INPUTS == 0:
            reset(self._services)
        status, headers, body = self._loop.run_until_complete(asyncio.wait_for(self._answer(attack), SECONDS))
        for entity in self._services.request_quotas.read():  # it would delay our next requests
            self._services.request_quotas.remove(entity)
        where = f"{attack.verb} {attack.target.partition('?')[0][:30]}"
        require(status in EXPECTED, f"{status} {_message(body)}" if status >= 500 else f"{status} from {where}")
        body.decode()
        if headers.get("content-type") == "application/json" and attack.verb != "HEAD":
            json.loads(body, parse_constant=_refuse_constant)

    async def _answer(self, attack: Attack) -> tuple[int, Mapping[str, str], bytes]:
        path, _, query = attack.target.partition("?")
        sent: list[Message] = []
        received = iter([{"type": "http.request", "body": attack.body, "more_body": False}])

        async def receive() -> Message:
            return next(received, {"type": "http.disconnect"})

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": attack.verb,
            "scheme": "http",
            "path": _decoded(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), text.encode("latin-1")) for name, text in attack.headers.items()],
            "client": ("127.0.0.1", 5000),
            "server": ("127.0.0.1", 8080),
            "state": {},
        }
        await self._application(scope, receive, send)
        headers = {name.decode(): text.decode("latin-1") for name, text in sent[0]["headers"]}
        return sent[0]["status"], headers, b"".join(part.get("body", b"") for part in sent[1:])

    def close(self) -> None:
        """Stop the services."""
        self._loop.close()
        self._admin.close()
        self._services.__exit__(None, None, None)


def _refuse_constant(text: str) -> None:
    raise AssertionError(f"an answer contains {text}, which is not JSON")


def _message(body: bytes) -> str:
    """Return the cause of a failed request, without its values."""
    text = body.decode(errors="replace")
    return text.partition("unexpected ")[2].partition(".")[0] or text[:80]


def _decoded(path: str) -> str:
    from urllib.parse import unquote

    return unquote(path)


def _described_routes() -> Iterator[_Route]:
    """The routes of the OpenAPI document."""
    routes = [binding for service in SERVICES for binding in bindings(service)]
    document = openapi(routes, comments())
    by_route = {(route.verb, route.path): route for route in routes}
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            binding = by_route[verb.upper(), path]
            example: Any = EXAMPLES.get(binding.method.name, {})
            body = example if binding.body == "*" else example.get(_json_name(binding.body), {})
            names = [parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "query"]
            yield _Route(verb.upper(), path, names, [body] if binding.body else [])


def _json_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _text_routes() -> Iterator[_Route]:
    for verb, path, _ in legacy.ROUTES:
        yield _Route(verb, path.partition("?")[0].replace("{id}", "{brokerId}"), ("rate", "autoremove"), ())
    for path in ("/", "/api", "/openapi.json", "/healthz", "/readyz", "/page/session", "/page/static/{name}"):
        yield _Route("GET", path, (), ())
    yield _Route("POST", "/page/login", (), [{"token": "t" * 32}])
    yield _Route("POST", "/page/logout", (), ())


def _path(route: _Route, choices: Choices) -> str:
    path = route.path.replace("{brokerId}", _text(choices) if choices.one_in(2) else "1001").replace("{name}", "batch")
    if choices.one_in(20):
        path += choices.of(("/", "//", "/..", "/%00", "/x", "%", "?", ";a", "/%ff"))
    given = [name for name in route.parameters if choices.one_in(2)]
    pairs = [f"{name}={_text(choices)}" for name in given]
    if choices.one_in(15):
        pairs.append(choices.of(("x=1", "=", "&", "%ff=%ff", "a=1&a=2", *pairs[:1], *[f"p{n}=1" for n in (1, 2)])))
    return path + ("?" + "&".join(pairs) if pairs else "")


def _text(choices: Choices) -> str:
    kind = choices.below(4)
    text = (
        str(hostile.integer(choices))
        if kind == 0
        else choices.of(hostile.TEXTS if kind > 1 else ("a", "1001", "5", "true"))
    )
    return quote(text[:2_000], safe="", errors="surrogatepass")


def _header(choices: Choices) -> str:
    texts = [text for text in hostile.TEXTS if text.isascii() and text.isprintable()]
    return choices.of(('"5"', '"7","8"', "*", 'W/"1"', "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "\xff", *texts))[
        :8_000
    ]
