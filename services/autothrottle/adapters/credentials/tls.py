"""Mutual TLS between services: the client package's certificates, and their use by our servers.

Each accepted connection checks the files for changes.
"""

from __future__ import annotations

import ssl
from typing import Any

import grpc

from autothrottle_client import tls
from autothrottle_client.tls import Certificates, Pems

TlsFiles = tls.Tls
"""Paths of the PEM files."""


class ServiceCertificates(Certificates):
    """The current certificates, for clients and servers. Thread-safe.

    Raises:
        Invalid: a file cannot be read or is not a PEM file, or the key does not match the certificate.
    """

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a server that requires client certificates signed by the authorities."""
        pems, given = self.current()

        # None means "unchanged" to gRPC, which its type stubs do not show.
        def renewed() -> Any:
            nonlocal given
            pems, generation = self.current()
            if generation == given:
                return None
            given = generation
            return _server_certificates(pems)

        return grpc.dynamic_ssl_server_credentials(_server_certificates(pems), renewed, True)

    def http_context(self) -> ssl.SSLContext:
        """Return the context of an HTTPS server, which accepts client certificates of the authorities.

        A renewal adds authorities; a removed one is trusted until the process restarts.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_OPTIONAL
        given = self._load(context)

        def renew(*_: object) -> None:
            nonlocal given
            if self.generation != given:
                given = self._load(context)

        # OpenSSL calls it at each handshake, before it sends the certificate.
        context.sni_callback = renew
        return context

    def _load(self, context: ssl.SSLContext) -> int:
        """Load the current files into a context; return their generation."""
        pems, generation = self.current()
        context.load_cert_chain(self.files.certificate, self.files.key, password="")
        context.load_verify_locations(cadata=pems.authorities.decode("ascii"))
        return generation


def _server_certificates(pems: Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.certificate)], pems.authorities)
