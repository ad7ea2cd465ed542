"""The certificate that a client shows, and the authorities whose servers it trusts."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from autothrottle_client.errors import Invalid


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for mutual TLS; they may be renewed: a call that begins later is made with what they hold then."""

    certificate: str
    """Of this client, with those between it and its authority; the servers know who calls by it."""
    key: str
    """Its private key, without a password; may be in the same file."""
    authorities: str
    """Of the servers."""
    server_name: str = ""
    """What the servers' certificates must bear; "": the host of their address."""

    def stamp(self) -> tuple[tuple[int, int, int], ...] | None:
        """Return what changes when a file does; None: one is away, perhaps for a moment."""
        try:
            found = [os.stat(path) for path in (self.certificate, self.key, self.authorities)]
        except OSError:
            return None
        return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in found)

    def is_whole(self) -> bool:
        """Return whether the key is that of the certificate: of a renewal one file may be new and the other not yet."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            # Without a password given OpenSSL would ask for it on the terminal.
            context.load_cert_chain(self.certificate, self.key, password="")
            context.load_verify_locations(self.authorities)
        except (OSError, ValueError):
            return False
        return True

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
