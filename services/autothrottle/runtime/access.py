"""Authorisation of gRPC calls and HTTP requests: who calls, with which role, and what the call needs.

The role that a method needs stands beside it in the proto. A method without a role is refused. `core.access` has the
rules, `AccessInterceptor` applies them to gRPC, and the gateway to its routes. The type to know is `Access`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from autothrottle.adapters.credentials import Tokens
from autothrottle.core.access import Caller, CertificateRoles, Role, role_of_certificate
from autothrottle.core.errors import AutothrottleError, Forbidden, Unauthenticated, UnknownToken
from autothrottle.runtime.call_limits import (
    SPARE_REFUSALS,
    Behavior,
    Continuation,
    Handler,
    RequestQuotas,
    caller_host,
    rewrapped,
)
from autothrottle.v1 import access_pb2
from autothrottle.wire.common import caller, to_status

OPEN_ENDPOINTS = {"health": health.SERVICE_NAME, "reflection": reflection.SERVICE_NAME}
"""Name in --open-endpoints -> full name of the gRPC service that it opens to every caller."""

AUTHORIZATION = "authorization"
"""Key of the metadata, and name of the header, with `Bearer TOKEN`."""

_CERTIFICATE_NAMES = ("x509_common_name", "x509_subject_alternative_name")

_LOG_SPACING = 1.0
"""Seconds between two log lines about refusals of the same kind."""

FREE_WRONG_TOKENS = 10
"""Wrong tokens of a host that are refused at once."""

LONGEST_DELAY_SECONDS = 5.0
"""Longest delay of a refusal, less than the time limits of callers, so that they learn its cause."""

_DELAY_STEP_SECONDS, _FORGIVEN_SECONDS = 0.02, 2.0
"""By which each delay is longer than the one before, and the time after which one wrong token is forgiven."""

_MOST_LEVEL = FREE_WRONG_TOKENS + LONGEST_DELAY_SECONDS / _DELAY_STEP_SECONDS
"""So that a host is as good as new nine minutes after its last wrong token."""

_MOST_DELAYED_REFUSALS = SPARE_REFUSALS

_MOST_HOSTS = 10_000

_caller: ContextVar[Caller] = ContextVar("caller")
"""The caller of the method that this thread executes; not set: the server checks no caller, so none is trusted."""

logger = logging.getLogger(__name__)


def method_role(method: MethodDescriptor) -> Role | None:
    """Return the least role of a caller of a method; None: the proto gives no role."""
    number = method.GetOptions().Extensions[access_pb2.role]
    return Role(number) if number else None


def role_of_path(path: str) -> Role | None:
    """Return the least role for a gRPC method like `/package.Service/Method`; None: every caller is refused."""
    service, _, name = path.removeprefix("/").rpartition("/")
    if service in OPEN_ENDPOINTS.values():
        return Role.VIEWER
    try:
        return method_role(descriptor_pool.Default().FindMethodByName(f"{service}.{name}"))
    except KeyError:
        return Role.VIEWER  # the server itself answers calls of unknown methods


def has_request_quota(path: str) -> bool:
    """Whether request quotas apply to a gRPC method: not to health, nor to the methods that only services may call."""
    return not path.startswith(f"/{health.SERVICE_NAME}/") and role_of_path(path) is not Role.SERVICE


class WrongTokens:
    """Delays the refusals of wrong tokens by host, each longer than the last one. Thread-safe.

    A call with a valid token never waits, also of the same host: behind a proxy, all callers are one host. Only
    `_MOST_DELAYED_REFUSALS` wait at a time. Others are refused at once: no guesser may take all threads.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, ended: threading.Event | None = None) -> None:
        """`clock` returns monotonic seconds; `ended` ends all delays when it is set."""
        self._clock, self.ended = clock, ended or threading.Event()
        self._lock = threading.Lock()
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Host -> (its wrong tokens, less those that time has forgiven; when it gave the last one)."""
        self._delayed = 0

    @contextmanager
    def refusal(self, host: str) -> Iterator[float]:
        """Count a wrong token of a host, and yield for how many seconds its refusal waits within the context."""
        with self._lock:
            level = self._level(host) + 1
            self._levels[host] = min(level, _MOST_LEVEL), self._clock()
            self._levels.move_to_end(host)
            if len(self._levels) > _MOST_HOSTS:
                self._levels.popitem(last=False)
            seconds = min(max(0.0, level - FREE_WRONG_TOKENS) * _DELAY_STEP_SECONDS, LONGEST_DELAY_SECONDS)
            if self._delayed >= _MOST_DELAYED_REFUSALS or self.ended.is_set():
                seconds = 0.0
            self._delayed += bool(seconds)
        try:
            yield seconds
        finally:
            with self._lock:
                self._delayed -= bool(seconds)

    def is_slowed(self, host: str) -> bool:
        """Whether the next wrong token of a host is delayed."""
        with self._lock:
            return self._level(host) >= FREE_WRONG_TOKENS

    def _level(self, host: str) -> float:
        level, last = self._levels.get(host, (0.0, 0.0))
        return max(0.0, level - (self._clock() - last) / _FORGIVEN_SECONDS)


class Access:
    """The credentials that a process knows. Without any it is open: every caller has the role service. Thread-safe."""

    def __init__(
        self,
        certificate_roles: CertificateRoles | None = None,
        tokens: Tokens | None = None,
        open_endpoints: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
        ended: threading.Event | None = None,
    ) -> None:
        """Store the credentials.

        Args:
            certificate_roles: roles of the names in client certificates; None: no TLS.
            tokens: known tokens; None: tokens are ignored.
            open_endpoints: keys of `OPEN_ENDPOINTS` that need no credentials.
            clock: monotonic seconds, for the limit of log lines and the delays of wrong tokens.
            ended: ends all delays of wrong tokens when it is set.
        """
        self.wrong_tokens = WrongTokens(clock, ended)
        self._certificate_roles, self._tokens, self._clock = certificate_roles, tokens, clock
        self.tokens = tokens.current if tokens is not None else None
        """Returns token -> its caller, as the file has them now; None: tokens are ignored."""
        self.open_services = frozenset(OPEN_ENDPOINTS[name] for name in open_endpoints)
        """Full names of gRPC services that need no credentials."""
        self._lock = threading.Lock()
        self._logged: dict[str, tuple[float, int]] = {}
        """Kind of refusal -> (time of its last log line, refusals since then); guarded by `_lock`."""

    def caller(self, certificate_names: Sequence[str], authorization: str) -> Caller:
        """Return the caller over a network. A token beats a certificate.

        Args:
            certificate_names: names in the verified client certificate; empty: none was given.
            authorization: the `authorization` metadata or header; "": none was given.

        Raises:
            Unauthenticated: no credentials were given, or the tokens cannot be read.
            UnknownToken: the token is unknown.
        """
        if self._tokens is not None and is_bearer(authorization):
            caller = self._tokens.caller_of(authorization)
            if caller is None and self._tokens.problem:
                raise Unauthenticated("no token is accepted, because the service cannot read its api-tokens-file")
            if caller is None:
                raise UnknownToken("the token is unknown; send `Authorization: Bearer TOKEN` with a known token")
            return caller
        if self._certificate_roles is not None and certificate_names:
            return Caller(certificate_names[0], role_of_certificate(certificate_names, self._certificate_roles))
        if self._certificate_roles is None and self._tokens is None:
            return Caller(role=Role.SERVICE, is_proven=False)
        ways = ["send `Authorization: Bearer TOKEN`"] if self._tokens is not None else []
        ways += ["use a client certificate"] if self._certificate_roles is not None else []
        raise Unauthenticated(f"the request has no credentials; {' or '.join(ways)}")

    def log_refusal(self, kind: str, text: str) -> None:
        """Log a refusal, at most one per second and kind; the line has the number of those that were not logged."""
        now = self._clock()
        with self._lock:
            last_line, count = self._logged.get(kind, (now - _LOG_SPACING, 0))
            is_due = now - last_line >= _LOG_SPACING
            self._logged[kind] = (now, 0) if is_due else (last_line, count + 1)
        if is_due:
            more = f" ({count} more refusals of this kind since the last line)" if count else ""
            logger.warning("Refused with %s: %s%s", kind, text, more)


def is_bearer(authorization: str) -> bool:
    """Whether an `Authorization` header has a token. Others count as absent: proxies pass on those of basic logins."""
    return authorization.partition(" ")[0].lower() == "bearer"


def require_role(caller: Caller, needed: Role | None, action: str) -> None:
    """Return if the caller may do the action.

    Args:
        caller: the caller.
        needed: the least role for the action; None: the action is not allowed to any caller.
        action: name of the action, for the message.

    Raises:
        Forbidden: the caller does not have the role.
    """
    if needed is None:
        raise Forbidden(f"{action} has no role, so it is refused. Fix: update this program")
    if caller.role is None or caller.role < needed:
        who = caller.name or "the caller"
        has = "has no role" if caller.role is None else f"has the role {caller.role}"
        raise Forbidden(
            f"{who} {has}, and {action} needs {needed}. "
            "Fix: give the role in certificate-roles (certificate) or api-tokens-file (token)"
        )


class AccessInterceptor(grpc.ServerInterceptor):
    """Refuses gRPC calls whose callers do not have the role, and applies request quotas. It must be the first one.

    The request of a refused call is not received: it stays with its sender, except for a flow-control window.

    A unix socket is protected by the permissions of its file, so its callers have the role service. A streaming call is
    checked when it begins.
    """

    def __init__(self, access: Access, quotas: RequestQuotas | None = None) -> None:
        self._access, self._quotas = access, quotas or RequestQuotas()

    def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """Check the caller before the method's function runs."""
        method = handler_call_details.method
        handler = continuation(handler_call_details)
        if handler is None or method.removeprefix("/").rpartition("/")[0] in self._access.open_services:
            return handler
        return rewrapped(handler, lambda behavior, _: self._guarded(behavior, method), handler.response_serializer)

    def _guarded(self, behavior: Behavior, method: str) -> Behavior:
        needed, is_limited = role_of_path(method), has_request_quota(method)

        @wraps(behavior)  # keeps the attribute with the threads of the method
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                caller = self._caller(context)
                require_role(caller, needed, method.rpartition("/")[2][:100])
            except UnknownToken as error:
                with self._access.wrong_tokens.refusal(caller_host(context.peer())) as seconds:
                    self._access.wrong_tokens.ended.wait(seconds)
                self._refuse(error, method, context)
            except (Unauthenticated, Forbidden) as error:
                self._refuse(error, method, context)
            _caller.set(caller)
            with self._quotas.throttled(caller, context) if is_limited else nullcontext():
                return behavior(request, context)

        return answer

    def _caller(self, context: grpc.ServicerContext) -> Caller:
        if context.peer().startswith("unix:"):
            return Caller(role=Role.SERVICE)
        certificate: Mapping[str, Iterable[bytes]] = context.auth_context()  # type: ignore[assignment]
        names = [name.decode("utf-8", "replace") for key in _CERTIFICATE_NAMES for name in certificate.get(key, ())]
        return self._access.caller(names, _authorization(context.invocation_metadata()))

    def _refuse(self, error: AutothrottleError, method: str, context: grpc.ServicerContext) -> None:
        code, message, _ = to_status(error)
        self._access.log_refusal(code.name, f"{method[:200]} from {context.peer()}: {message}")
        context.abort(code, message)


def author(context: grpc.ServicerContext) -> str:
    """Return the caller of the current method, for the log and the audit; only a service may name another client."""
    current = _caller.get(Caller())
    metadata = context.invocation_metadata() if current.role is Role.SERVICE else ()
    return caller(context.peer(), metadata, current.name)


def _authorization(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    return next((value for key, value in metadata if key == AUTHORIZATION and isinstance(value, str)), "")
