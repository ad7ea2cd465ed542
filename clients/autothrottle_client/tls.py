"""The certificate that a client shows, and the authorities whose servers it trusts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from autothrottle_client.errors import Invalid


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for mutual TLS; they are read whenever a connection is made, so that they may be renewed."""

    certificate: str
    """Of this client, with those between it and its authority; the servers know who calls by it."""
    key: str
    """Its private key, without a password; may be in the same file."""
    authorities: str
    """Of the servers."""
    server_name: str = ""
    """What the servers' certificates must bear; "": the host of their address."""

    def channel(self, address: str, options: Sequence[tuple[str, int]]) -> grpc.Channel:
        """Return a channel, without connecting yet.

        Args:
            address: `host:port`.
            options: gRPC's.

        Raises:
            Invalid: when a file cannot be read.
        """
        name = self.server_name or address.rpartition(":")[0].strip("[]")
        credentials = grpc.ssl_channel_credentials(*map(_content, (self.authorities, self.key, self.certificate)))
        return grpc.secure_channel(address, credentials, options=[*options, ("grpc.ssl_target_name_override", name)])


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Invalid(f"{path!r} cannot be read: {error.strerror}; name a PEM file that you may read") from error
