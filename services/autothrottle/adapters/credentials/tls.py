"""Mutual TLS between services: this process's certificate and the authorities that it trusts.

Certificates may be renewed while a process runs. Each new or accepted connection checks the files for changes, and
clients reconnect to replicas that they reached with an old certificate. Unix sockets use no TLS: file permissions
control access.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from autothrottle.adapters.credentials.reloaded_files import ReloadedFiles
from autothrottle.core.errors import Invalid


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of the PEM files."""

    certificate: str
    """This process's certificate, followed by its intermediate certificates."""
    key: str
    """The private key, without a password; may be in the same file."""
    authorities: str
    """Certificates of the authorities that sign clients and servers."""
    server_name: str = ""
    """Name that server certificates must contain; "": the host of the server's address."""


@dataclass(frozen=True, slots=True)
class _Pems:
    certificate: bytes
    key: bytes
    authorities: bytes


class Tls:
    """The current certificates. Thread-safe.

    Raises:
        Invalid: a file cannot be read or is not a PEM file, or the key does not match the certificate.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._pems = ReloadedFiles((files.certificate, files.key, files.authorities), lambda: _read(files))

    @property
    def generation(self) -> int:
        """Generation of the certificates: 1, plus 1 for each renewal."""
        return self._pems.current()[1]

    def channel(self, target: str, address: str, options: Sequence[tuple[str, int]]) -> grpc.Channel:
        """Return a channel, which connects on the first call.

        Args:
            target: `ip:port` or `unix:path`.
            address: the configured address of the target. The server's certificate must contain the host of a
                `host:port`. An address that stands for many hosts (`members:planner`) has none; then the certificate
                must contain the target's IP address.
            options: gRPC channel options.
        """
        if target.startswith("unix:"):
            return grpc.insecure_channel(target, options=list(options))
        pems, _ = self._pems.current()
        name = self._files.server_name or _host(address) or _host(target)
        credentials = grpc.ssl_channel_credentials(pems.authorities, pems.key, pems.certificate)
        return grpc.secure_channel(target, credentials, options=[*options, ("grpc.ssl_target_name_override", name)])

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a server that requires client certificates signed by the authorities."""
        pems, given = self._pems.current()

        # None means "unchanged" to gRPC, which its type stubs do not show.
        def renewed() -> Any:
            nonlocal given
            pems, generation = self._pems.current()
            if generation == given:
                return None
            given = generation
            return _server_certificates(pems)

        return grpc.dynamic_ssl_server_credentials(_server_certificates(pems), renewed, True)

    def http_context(self) -> ssl.SSLContext:
        """Return the context of an HTTPS server, which does not require client certificates."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._files.certificate, self._files.key, password="")
        given = self.generation

        def renew(*_: object) -> None:
            nonlocal given
            if (generation := self.generation) != given:
                given = generation
                context.load_cert_chain(self._files.certificate, self._files.key, password="")

        # OpenSSL calls it at each handshake, before it sends the certificate.
        context.sni_callback = renew
        return context


def _host(address: str) -> str:
    host, _, port = address.rpartition(":")
    return host.strip("[]") if port.isdecimal() else ""


def _read(files: TlsFiles) -> _Pems:
    pems = _Pems(*map(_content, (files.certificate, files.key, files.authorities)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password, OpenSSL would prompt for it on the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except (OSError, ValueError) as error:
        raise Invalid(
            f"tls-cert {files.certificate!r} and tls-key {files.key!r} are not a PEM certificate and its private key "
            f"without a password ({error}). Fix: give a matching pair"
        ) from error
    try:
        context.load_verify_locations(cadata=pems.authorities.decode("ascii"))
    except (OSError, ValueError) as error:
        raise Invalid(
            f"tls-ca {files.authorities!r} holds no PEM certificates ({error}). "
            "Fix: give the file with the certificates of the authorities"
        ) from error
    return pems


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Invalid(f"{path!r} cannot be read: {error.strerror}. Fix: name a readable PEM file") from error


def _server_certificates(pems: _Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.certificate)], pems.authorities)
