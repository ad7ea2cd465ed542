"""Metadata of calls: the bearer token, the client id of request quotas, and how long they delayed the responses.

A token is sent only where no other host can read it. The type to know is `ThrottleTimes`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import grpc

from autothrottle.core.request_quotas import validate_client_id
from autothrottle_client.errors import Invalid

CLIENT_ID = "client-id"
"""Metadata key of the client id."""

THROTTLE_TIME = "request-throttle-time-ms"
"""Trailing metadata key. Its value is the delay of the response, in milliseconds."""


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class AddedMetadata(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Adds metadata to calls; our services have no client streaming."""

    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata

    def metadata(self) -> Sequence[tuple[str, str]]:
        """Return the metadata to add to a call."""
        return self._metadata

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        """Make the call with the metadata."""
        unchanged = {name: getattr(client_call_details, name) for name in _Details._fields}
        metadata = (*(client_call_details.metadata or ()), *self.metadata())
        return continuation(_Details(**{**unchanged, "metadata": metadata}), request)

    intercept_unary_stream = intercept_unary_unary


def validate_token(token: str) -> str:
    """Return the token; "" is none.

    Raises:
        Invalid: it has other characters than printable ASCII without blanks, which a header cannot hold.
    """
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise Invalid(
            "the token has characters other than printable ASCII without blanks; give it as in the tokens file"
        )
    return token


class _Token(AddedMetadata):
    """Adds the bearer token, which may change between two calls."""

    def __init__(self, token: Callable[[], str]) -> None:
        super().__init__()
        self._token = token

    def metadata(self) -> Sequence[tuple[str, str]]:
        """Return the token's metadata."""
        return (("authorization", f"Bearer {self._token()}"),)


def with_token(channel: grpc.Channel, token: Callable[[], str], target: str, is_secure: bool) -> grpc.Channel:
    """Return a channel that sends the token with every call.

    Raises:
        Invalid: the connection is neither encrypted nor local.
    """
    if not is_secure:
        channel.close()
        raise Invalid(
            f"the token is not sent to {target}, because the connection is not encrypted and leaves this host; give "
            "tls-cert, tls-key and tls-ca, or a unix socket or loopback address"
        )
    return grpc.intercept_channel(channel, _Token(token))


class ThrottleTimes(AddedMetadata):
    """Average and maximum throttle time of a client since it was created. Thread-safe.

    It counts responses of calls, not of streams, to which a request quota applies.
    """

    def __init__(self, client_id: str = "") -> None:
        """Send the client id with every call; "": none.

        Raises:
            Invalid: the client id is not valid.
        """
        super().__init__(*([(CLIENT_ID, validate_client_id(client_id))] if client_id else []))
        self._lock = threading.Lock()
        self._count, self._total, self._maximum = 0, 0, 0

    @property
    def counted(self) -> int:
        """Number of responses to which a request quota applied."""
        return self._count

    @property
    def average(self) -> timedelta:
        """Mean throttle time of the counted responses; zero: there are none."""
        with self._lock:
            return timedelta(milliseconds=self._total / max(1, self._count))

    @property
    def maximum(self) -> timedelta:
        """Longest throttle time of a counted response; zero: there are none."""
        return timedelta(milliseconds=self._maximum)

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        """Make the call, and count its throttle time when it is done."""
        call = super().intercept_unary_unary(continuation, client_call_details, request)
        call.add_done_callback(lambda done: self._count_response(done.trailing_metadata()))
        return call

    def _count_response(self, metadata: Any) -> None:
        given = next((str(value) for key, value in metadata or () if key == THROTTLE_TIME), "")
        if not re.fullmatch(r"[0-9]{1,9}", given):
            return
        with self._lock:
            self._count += 1
            self._total += int(given)
            self._maximum = max(self._maximum, int(given))
