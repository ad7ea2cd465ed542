"""This process's certificate, and the authorities whose certificates it takes: mutual TLS between services.

Certificates are renewed while a process runs: the files are looked at whenever a connection is made or taken, and a
replica that was connected to with an old one is connected to anew. What speaks over a unix socket needs no certificate:
file permissions say who may.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from autothrottle.adapters.renewed import Renewed
from autothrottle.core.errors import Invalid


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the certificates are, PEM each."""

    certificate: str
    """This process's, with those between it and the authority behind it."""
    key: str
    """Its private key, without a password; may be in the same file."""
    authorities: str
    """Of whoever calls and is called."""
    server_name: str = ""
    """What the certificates of those who are called must bear; "": the host of their address."""


@dataclass(frozen=True, slots=True)
class _Pems:
    certificate: bytes
    key: bytes
    authorities: bytes


class Tls:
    """The certificates as they are now. Threads may share it.

    Raises:
        Invalid: when a file cannot be read, is no PEM, or the key is not that of the certificate.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Read the files."""
        self._files = files
        self._pems = Renewed((files.certificate, files.key, files.authorities), lambda: _read(files))

    @property
    def generation(self) -> int:
        """How often the certificates were renewed, counted from 1."""
        return self._pems.current()[1]

    def channel(self, target: str, address: str, options: Sequence[tuple[str, int]]) -> grpc.Channel:
        """Return a channel, without connecting yet.

        Args:
            target: `ip:port` or `unix:path`.
            address: what led to the target, `host:port`; its host must stand in the certificate of the other side. What
                is no such address (`members:planner`) stands for many hosts: there the target's own IP address must.
            options: gRPC's.
        """
        if target.startswith("unix:"):
            return grpc.insecure_channel(target, options=list(options))
        pems, _ = self._pems.current()
        name = self._files.server_name or _host(address) or _host(target)
        credentials = grpc.ssl_channel_credentials(pems.authorities, pems.key, pems.certificate)
        return grpc.secure_channel(target, credentials, options=[*options, ("grpc.ssl_target_name_override", name)])

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a server that takes nobody without a certificate of the authorities."""
        pems, given = self._pems.current()

        # gRPC takes None for "as before"; its types do not say so.
        def renewed() -> Any:
            nonlocal given
            pems, generation = self._pems.current()
            if generation == given:
                return None
            given = generation
            return _server_certificates(pems)

        return grpc.dynamic_ssl_server_credentials(_server_certificates(pems), renewed, True)

    def http_context(self) -> ssl.SSLContext:
        """Return the context of an HTTPS server, which asks its clients for no certificate."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._files.certificate, self._files.key, password="")
        given = self.generation

        def renew(*_: object) -> None:
            nonlocal given
            if (generation := self.generation) != given:
                given = generation
                context.load_cert_chain(self._files.certificate, self._files.key, password="")

        # It is called at each handshake, before the certificate is sent.
        context.sni_callback = renew
        return context


def _host(address: str) -> str:
    host, _, port = address.rpartition(":")
    return host.strip("[]") if port.isdecimal() else ""


def _read(files: TlsFiles) -> _Pems:
    pems = _Pems(*map(_content, (files.certificate, files.key, files.authorities)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password given OpenSSL would ask for it on the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except (OSError, ValueError) as error:
        raise Invalid(
            f"tls-cert {files.certificate!r} and tls-key {files.key!r} are not a PEM certificate and its private key "
            f"without a password ({error}). Fix: give the two that belong together"
        ) from error
    try:
        context.load_verify_locations(cadata=pems.authorities.decode("ascii"))
    except (OSError, ValueError) as error:
        raise Invalid(
            f"tls-ca {files.authorities!r} holds no PEM certificates ({error}). "
            "Fix: give the file with the certificates of those who sign"
        ) from error
    return pems


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Invalid(f"{path!r} cannot be read: {error.strerror}. Fix: name a readable PEM file") from error


def _server_certificates(pems: _Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.certificate)], pems.authorities)
