"""Mutual TLS of a client: its certificate, and the authorities whose servers it trusts."""

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
    """PEM files of mutual TLS. They may be renewed at any time; later calls use the new content."""

    certificate: str
    """Certificate of this client with its intermediates; servers identify the caller by it."""
    key: str
    """The certificate's private key, without a password; may be in the same file."""
    authorities: str
    """Certificates of the servers' authorities."""
    server_name: str = ""
    """Name in the servers' certificates; "": the host of their address."""

    def stamp(self) -> tuple[tuple[int, int, int], ...] | None:
        """Return a value that changes when a file changes; None: a file is missing, perhaps only for a moment."""
        try:
            found = [os.stat(path) for path in (self.certificate, self.key, self.authorities)]
        except OSError:
            return None
        return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in found)

    def is_whole(self) -> bool:
        """Return whether key and certificate match. During a renewal one file may be new and the other old."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            # Without an explicit password, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self.certificate, self.key, password="")
            context.load_verify_locations(self.authorities)
        except (OSError, ValueError):
            return False
        return True

    def channel(self, address: str, options: Sequence[tuple[str, int]]) -> grpc.Channel:
        """Return a channel without connecting.

        Args:
            address: `host:port`.
            options: gRPC channel options.

        Raises:
            Invalid: a file cannot be read.
        """
        name = self.server_name or address.rpartition(":")[0].strip("[]")
        credentials = grpc.ssl_channel_credentials(*map(_content, (self.authorities, self.key, self.certificate)))
        return grpc.secure_channel(address, credentials, options=[*options, ("grpc.ssl_target_name_override", name)])


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Invalid(f"{path!r} cannot be read: {error.strerror}; name a readable PEM file") from error
