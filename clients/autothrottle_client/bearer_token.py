"""Bearer tokens of calls. A token is sent only where no other host can read it."""

from __future__ import annotations

import grpc

from autothrottle_client.call_metadata import AddedMetadata
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
    return grpc.intercept_channel(channel, AddedMetadata(("authorization", f"Bearer {token}")))
