"""Sessions of the page: signed cookies, the tokens against requests of other sites, and the limit of failed logins.

The gateway stores no session, only those that were ended here before their time. The key of a session's signature is
derived from its token in the file of tokens: every gateway with that file accepts the cookie, and none does after the
token has left the file. The types to know are `Sessions` and `FailedLogins`.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
import time
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from autothrottle.adapters.credentials import equal_token
from autothrottle.core.access import Caller, Role
from autothrottle.core.errors import Unauthenticated
from autothrottle.runtime.call_limits import LimitReached

SESSION_SECONDS = 12 * 3600
"""Duration of a session, from its login."""

CSRF_HEADER = "x-csrf-token"
"""Header with the token that only a page of this gateway can read."""

MOST_FAILED_LOGINS = 10
"""Failed logins of a host within `FAILURE_SECONDS`; further logins are refused without a look at their token."""

FAILURE_SECONDS = 60.0

_CLOCK_SKEW_SECONDS = 300
"""Difference between the clocks of two gateways at which a new session of one is valid on the other."""

_MOST_HOSTS = 10_000

_MOST_ENDED = 10_000
"""Number of sessions that a gateway remembers after their logout."""

_SIGNED = re.compile(r"(([0-9]{1,12})\.([\w-]{43})\.[\w-]{22})\.([\w-]{43})", re.ASCII)
"""End in seconds since 1970, the id of the token, a random number, and the signature of all three."""

_UNSIGNED = re.compile(r"[\w-]{43}", re.ASCII)
"""The cookie of a caller whose credentials are not a session."""


@dataclass(frozen=True, slots=True)
class Session:
    """A valid session."""

    caller: Caller
    csrf: str


class Sessions:
    """Creates and checks sessions. Thread-safe."""

    def __init__(self, tokens: Callable[[], Mapping[str, Caller]] | None, clock: Callable[[], float] = time.time):
        """Store the source of tokens.

        Args:
            tokens: returns token -> its caller, as the file has them now; None: there are no tokens, so no sessions.
            clock: seconds since 1970.
        """
        self._tokens, self._clock = tokens, clock
        self._key = secrets.token_bytes(32)
        self._index: tuple[Mapping[str, Caller], Mapping[str, str]] = ({}, {})
        """Token -> its caller, and id -> token for the same tokens."""
        self._lock = threading.Lock()
        self._ended: OrderedDict[str, None] = OrderedDict()
        """The signed parts of the cookies of ended sessions; guarded by `_lock`."""

    @property
    def has_login(self) -> bool:
        """Whether a token can be given."""
        return self._tokens is not None

    def login(self, token: str) -> tuple[Session, str]:
        """Return a new session of the caller with a token, and its cookie.

        Raises:
            Unauthenticated: the token is unknown.
        """
        tokens, _ = self._current()
        stored = equal_token(tokens, token)
        if stored is None:
            raise Unauthenticated("the token is unknown; give a token of the file api-tokens-file")
        content = f"{int(self._clock()) + SESSION_SECONDS}.{_id(stored)}.{secrets.token_urlsafe(16)}"
        return _session(stored, tokens[stored], content), f"{content}.{_signature(stored, content)}"

    def session(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None: it is not a session, has ended, or its token is not in the file."""
        match = _SIGNED.fullmatch(cookie)
        if match is None or not 0 < int(match[2]) - self._clock() <= SESSION_SECONDS + _CLOCK_SKEW_SECONDS:
            return None
        with self._lock:
            if match[1] in self._ended:
                return None
        tokens, by_id = self._current()
        token = by_id.get(match[3])
        if token is None or not hmac.compare_digest(_signature(token, match[1]), match[4]):
            return None
        return _session(token, tokens[token], match[1])

    def logout(self, cookie: str) -> None:
        """End a session on this gateway. Other gateways accept a copy of its cookie until the session's own end."""
        if self.session(cookie) is None:
            return
        with self._lock:
            self._ended[cookie.rpartition(".")[0]] = None
            if len(self._ended) > _MOST_ENDED:
                self._ended.popitem(last=False)

    def new_cookie(self, caller: Caller) -> str:
        """Return the cookie of a caller without a session, the same for each of its tabs."""
        return _text(self._key, "cookie", caller.name)

    def _current(self) -> tuple[Mapping[str, Caller], Mapping[str, str]]:
        """Return token -> its caller, and id -> token, as the file has them now."""
        tokens = self._tokens() if self._tokens else {}
        if tokens is not self._index[0]:
            self._index = (tokens, {_id(token): token for token in tokens})
        return self._index


def csrf_of(cookie: str) -> str:
    """Return the CSRF token that belongs to the cookie of a caller without a session; "": the cookie has none."""
    return _text(cookie.encode(), "csrf", "") if _UNSIGNED.fullmatch(cookie) else ""


def _session(token: str, caller: Caller, content: str) -> Session:
    """Return a session. The page needs no more than the role operator, so a session has no more."""
    role = None if caller.role is None else min(caller.role, Role.OPERATOR)
    return Session(replace(caller, role=role), _text(token.encode(), "csrf", content))


def _id(token: str) -> str:
    """Return by what a cookie names its token; the token cannot be computed from it."""
    return _text(token.encode(), "id", "")


def _signature(token: str, content: str) -> str:
    return _text(token.encode(), "session", content)


def _text(secret: bytes, purpose: str, content: str) -> str:
    """Return an HMAC in 43 characters. Its key is derived from the secret, one for each purpose."""
    key = hmac.digest(secret, f"autothrottle page {purpose}".encode(), "sha256")
    return urlsafe_b64encode(hmac.digest(key, content.encode(), "sha256")).rstrip(b"=").decode()


class FailedLogins:
    """Limits failed logins by host, so that tokens cannot be guessed. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._by_host: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Host -> (time of its first failure, failures since then), by that time."""

    @contextmanager
    def attempt(self, host: str) -> Iterator[None]:
        """Count a login until it succeeds. A failure raises `Unauthenticated` and stays counted.

        Raises:
            LimitReached: the host has failed too often.
        """
        start = self._count(host)
        yield
        with self._lock:
            first, count = self._by_host.get(host, (start, 0))
            if first == start and count:
                self._by_host[host] = (first, count - 1)

    def _count(self, host: str) -> float:
        """Count a login before its token is checked, since many may be in progress; return the start of the count."""
        with self._lock:
            now = self._clock()
            first, count = self._by_host.get(host, (now, 0))
            if now - first >= FAILURE_SECONDS:
                del self._by_host[host]
                first, count = now, 0
            if count >= MOST_FAILED_LOGINS:
                seconds = FAILURE_SECONDS - (now - first)
                raise LimitReached(
                    f"{count} logins from {host} failed within a minute; wait for {seconds:.0f} s before the next"
                )
            self._by_host[host] = (first, count + 1)
            if len(self._by_host) > _MOST_HOSTS:
                self._by_host.popitem(last=False)
            return first
