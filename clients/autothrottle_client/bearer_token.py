"""Bearer tokens of calls. A token is sent only where no other host can read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc

from autothrottle_client.errors import Invalid


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


def with_token(channel: grpc.Channel, token: str, target: str, is_secure: bool) -> grpc.Channel:
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
    return grpc.intercept_channel(channel, _Bearer(token))


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class _Bearer(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Adds the token to the metadata of calls; our services have no client streaming."""

    def __init__(self, token: str) -> None:
        self._metadatum = ("authorization", f"Bearer {token}")

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        unchanged = {name: getattr(client_call_details, name) for name in _Details._fields}
        metadata = (*(client_call_details.metadata or ()), self._metadatum)
        return continuation(_Details(**{**unchanged, "metadata": metadata}), request)

    intercept_unary_stream = intercept_unary_unary
