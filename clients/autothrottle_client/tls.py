"""Mutual TLS: a process's own certificate and the authorities that it trusts.

Certificates may be renewed while a process runs. Each new connection checks the files for changes, and clients
reconnect to replicas that they reached with an old certificate. Unix sockets use no TLS: file permissions control
access. The types to know are `Tls` and `Certificates`.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from autothrottle_client.errors import Invalid
from autothrottle_client.files import ReloadedFiles


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of mutual TLS. They may be renewed at any time; later calls use the new content."""

    certificate: str
    """Certificate of this process with its intermediates; the other side identifies the caller by it."""
    key: str
    """The certificate's private key, without a password; may be in the same file."""
    authorities: str
    """Certificates of the authorities that sign clients and servers."""
    server_name: str = ""
    """Name in the servers' certificates; "": the host of their address."""


@dataclass(frozen=True, slots=True)
class Pems:
    """Contents of the files, as gRPC takes them."""

    certificate: bytes
    key: bytes
    authorities: bytes


class Certificates:
    """The current certificates. Thread-safe."""

    def __init__(self, files: Tls) -> None:
        """Read the files.

        Raises:
            Invalid: a file cannot be read or is not a PEM file, or the key does not match the certificate.
        """
        self.files = files
        self._pems = ReloadedFiles((files.certificate, files.key, files.authorities), lambda: _read(files))

    def current(self) -> tuple[Pems, int]:
        """Return the contents and their generation: 1, plus 1 for each renewal."""
        return self._pems.current()

    @property
    def generation(self) -> int:
        """Generation of the certificates: 1, plus 1 for each renewal."""
        return self.current()[1]

    def channel(self, target: str, address: str, options: Sequence[tuple[str, int]]) -> grpc.Channel:
        """Return a channel, which connects on the first call.

        Args:
            target: `ip:port` or `host:port`.
            address: the configured address of the target. The server's certificate must contain the host of a
                `host:port`. An address that stands for many hosts (`members:planner`) has none; then the certificate
                must contain the target's IP address.
            options: gRPC channel options.
        """
        pems, _ = self.current()
        name = self.files.server_name or _host(address) or _host(target)
        credentials = grpc.ssl_channel_credentials(pems.authorities, pems.key, pems.certificate)
        return grpc.secure_channel(target, credentials, options=[*options, ("grpc.ssl_target_name_override", name)])


def _host(address: str) -> str:
    host, _, port = address.rpartition(":")
    return host.strip("[]") if port.isdecimal() else ""


def _read(files: Tls) -> Pems:
    pems = Pems(*map(_content, (files.certificate, files.key, files.authorities)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(context, files.certificate, files.key)
    try:
        context.load_verify_locations(cadata=pems.authorities.decode("ascii"))
    except (OSError, ValueError) as error:
        raise Invalid(
            f"tls-ca {files.authorities!r} holds no PEM certificates ({error}). "
            "Fix: give the file with the certificates of the authorities"
        ) from error
    return pems


def load_pair(
    context: ssl.SSLContext, certificate: str, key: str, options: tuple[str, str] = ("tls-cert", "tls-key")
) -> None:
    """Let a context identify itself by a certificate and its private key.

    Args:
        context: the context.
        certificate: PEM file with the certificate.
        key: PEM file with its private key.
        options: their names, for the message.

    Raises:
        Invalid: the files are not a certificate and its private key without a password.
    """
    try:
        # Without a password, OpenSSL would prompt for it on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise Invalid(
            f"{options[0]} {certificate!r} and {options[1]} {key!r} are not a PEM certificate and its private "
            f"key without a password ({error}). Fix: give a matching pair"
        ) from error


def read_authorities(path: str, servers: str, option: str = "") -> str:
    """Return the PEM text of a file with the certificates of authorities.

    Args:
        path: of the file.
        servers: whose certificates they sign, for the message.
        option: its name with a space, for the message.

    Raises:
        Invalid: the file cannot be read, or holds no such certificates.
    """
    try:
        text = Path(path).read_text("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
        return text
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Invalid(
            f"{option}{path!r} holds no PEM certificates ({reason}). Fix: give the file with the certificates of the "
            f"authorities that sign {servers}"
        ) from None


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Invalid(f"{path!r} cannot be read: {error.strerror}. Fix: name a readable PEM file") from error
