"""The token of a login by OAUTHBEARER: fetched when a connection needs it, and renewed before it expires.

kafka-python asks for the token in the thread that drives all connections, also when it authenticates an open connection
again (KIP-368). So `BearerTokens.token` never waits: `Connections` waits for `when_ready` before it opens a connection.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable
from autothrottle.core.retries import TOKEN
from autothrottle.core.texts import capitalized

RENEWAL_SHARE = 0.75
"""Share of a token's lifetime after which it is renewed.

A broker ends the session of a connection with the token. kafka-python logs in again after 85 to 95 % of that time,
with the renewed token if it was fetched by then.
"""
_SPARE_SHARE, _SPARE_SECONDS = 0.05, 5.0
"""The end of a token's lifetime that is not used: this share of it, and at most these seconds.

A broker whose clock is ahead accepts a token that has expired by its clock, and closes the connection at the first
request.
"""

_MAX_LIFETIME_SECONDS = 86_400.0
"""A longer lifetime counts as this one: a timer of 10^300 s would stop the loop of the connections."""
_CHECK_SECONDS = 0.1
_FETCH_SECONDS = 10.0
"""Deadline of one fetch; shorter than a request to Kafka, so that its error names the token and not Kafka."""
_DISCARD_SECONDS = 10.0
"""Age of a token that Kafka refuses, after which a new one may help: its key or its rights may have changed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token and how long it is valid."""

    text: str = field(repr=False)
    lifetime: float
    """Seconds from the request for it."""
    description: str = ""
    """Its issuer, audience and end, for messages; "": unknown."""


class TokenSource(Protocol):
    """Where tokens come from."""

    @property
    def name(self) -> str:
        """Its name in messages, without a secret."""

    def fetch(self, deadline: float) -> BearerToken:
        """Return a new token.

        Args:
            deadline: on the monotonic clock, seconds.

        Raises:
            Invalid: it refuses our credentials, or answers something else than a token.
            Unavailable: no answer in time.
        """


class BearerTokens(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
    """The current token of one source, the token provider of kafka-python. Thread-safe.

    It has a thread only while it fetches a token. Without any use the token expires, and the next use fetches another.
    """

    def __init__(
        self,
        source: TokenSource,
        extensions: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; this fetches nothing.

        Args:
            source: of the tokens.
            extensions: SASL extensions, which the broker receives with the token (KIP-342).
            clock: a monotonic clock, seconds.
        """
        self._source, self._extensions, self._clock = source, dict(extensions or {}), clock
        self._lock = threading.Lock()
        self._token: BearerToken | None = None
        self._fetched = self._expires = self._due = clock()
        self._problem: AutothrottleError = Unavailable(f"{source.name} has given no token yet")
        self._failures = 0
        self._is_fetching = False
        self._waiting: list[Callable[[AutothrottleError | None], None]] = []

    @property
    def description(self) -> str:
        """The source and the claims of the current token, for messages."""
        with self._lock:
            claims = self._token.description if self._token else ""
        return f"{self._source.name}{f', {claims}' if claims else ''}"

    def token(self) -> str:
        """Return the current token. Its renewal starts in the background if it is due.

        Raises:
            Unavailable, Invalid: every fetched token has expired, or none was fetched. The message has the source and
                the reason.
        """
        with self._lock:
            self._renew_if_due()
            if self._token is None or not self._is_valid:
                raise self._error()
            return self._token.text

    def extensions(self) -> Mapping[str, str]:
        """Return the SASL extensions."""
        return self._extensions

    def renew_if_due(self) -> float:
        """Start a renewal in the background if most of the token's lifetime is over.

        Returns:
            The seconds until the next renewal or its next attempt is due, > 0.
        """
        with self._lock:
            self._renew_if_due()
            return max(self._due - self._clock(), _CHECK_SECONDS)

    def when_ready(self, ready: Callable[[AutothrottleError | None], None]) -> None:
        """Call `ready` once: with None when there is a valid token, else with the reason. It may be another thread."""
        with self._lock:
            self._renew_if_due()
            if not self._is_valid and self._is_fetching:
                self._waiting.append(ready)
                return
            problem = None if self._is_valid else self._error()
        ready(problem)

    def discard(self) -> None:
        """Fetch another token for the next connection, because Kafka refuses this one; a new one is kept."""
        with self._lock:
            if self._token is not None and self._clock() - self._fetched >= _DISCARD_SECONDS:
                self._expires = self._due = self._clock()

    @property
    def _is_valid(self) -> bool:
        return self._token is not None and self._clock() < self._expires

    def _error(self) -> AutothrottleError:
        # A new one each time: a raised error keeps the frames of its thread.
        return type(self._problem)(str(self._problem))

    def _renew_if_due(self) -> None:
        if self._is_fetching or self._clock() < self._due:
            return
        try:
            threading.Thread(target=self._renew, name="kafka-token", daemon=True).start()
            self._is_fetching = True
        except RuntimeError as error:  # the limit of threads
            self._problem = Unavailable(f"{self._source.name} cannot be asked: {error}")
            self._due = self._clock() + TOKEN.first

    def _renew(self) -> None:
        started = self._clock()
        try:
            token: BearerToken | None = self._fetch(time.monotonic() + _FETCH_SECONDS)
            problem: AutothrottleError = Unavailable(f"the token of {self._source.name} has expired")
        except AutothrottleError as error:
            token, problem = None, error.with_traceback(None)
        except Exception as error:  # any: otherwise connections would wait for this token forever
            log.exception("Fetching a token of %s failed unexpectedly. Fix: report this", self._source.name)
            token, problem = None, Unavailable(f"{self._source.name} cannot be used ({type(error).__name__})")
        with self._lock:
            self._is_fetching, self._problem = False, problem
            if token is None:
                self._failures += 1
                self._due = self._clock() + TOKEN.wait(self._failures)
                seconds = self._expires - self._clock()
                if self._failures == 1 and seconds > 0:
                    sentence = capitalized(str(problem))
                    log.warning("%s. The current token stays in use, for %.0f s at most", sentence, seconds)
            else:
                if self._failures and self._token is not None:
                    log.info("A new token of %s is in use", self._source.name)
                self._token, self._failures, self._fetched = token, 0, started
                lifetime = min(token.lifetime, _MAX_LIFETIME_SECONDS)
                self._expires = started + lifetime - min(lifetime * _SPARE_SHARE, _SPARE_SECONDS)
                self._due = started + lifetime * RENEWAL_SHARE
            outcome = None if self._is_valid else problem
            waiting, self._waiting = self._waiting, []
        for ready in waiting:
            ready(outcome and type(outcome)(str(outcome)))

    def _fetch(self, deadline: float) -> BearerToken:
        token = self._source.fetch(deadline)
        if not token.lifetime > 0:
            raise Invalid(
                f"{self._source.name} gives a token that has expired ({token.description or 'lifetime <= 0 s'}). "
                f"Fix: compare its clock with this machine's, and check the lifetime that it is configured to give"
            )
        return token
