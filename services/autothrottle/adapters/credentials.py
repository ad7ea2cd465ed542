"""The certificates of this process and the tokens of its callers, reloaded when their files change.

Mutual TLS between services uses the client package's certificates; each accepted connection checks the files for
changes. `Tokens` has the callers with a bearer token: names, tokens and roles.
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from autothrottle.core.access import ROLES, Caller, Role
from autothrottle.core.errors import Invalid
from autothrottle_client import tls
from autothrottle_client.files import ReloadedFiles
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


SHORTEST_TOKEN = 16
"""Minimum length of a token, in characters."""


class Tokens:
    """The current tokens of a file. Thread-safe.

    Raises:
        Invalid: the file cannot be read, or a line is not a name, a token and an optional role.
    """

    def __init__(self, path: str) -> None:
        """Read the file."""
        self._tokens = ReloadedFiles((path,), lambda: _read_tokens(path), Invalid)

    @property
    def of_services(self) -> str:
        """The first token with the role service, by which services call one another; "": none."""
        tokens, _ = self._tokens.current()
        return next((token for token, caller in tokens.items() if caller.role is Role.SERVICE), "")

    def current(self) -> Mapping[str, Caller]:
        """Return token -> its caller, as the file has them now."""
        tokens, _ = self._tokens.current()
        return tokens

    def caller_of(self, authorization: str) -> Caller | None:
        """Return the caller with the token in an `Authorization` header; None: unknown or absent token."""
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        tokens, _ = self._tokens.current()
        # Compare with all tokens in constant time: the duration reveals nothing about a token.
        found = [
            caller for token, caller in tokens.items() if hmac.compare_digest(token.encode(), given.strip().encode())
        ]
        return found[0] if found else None


def _read_tokens(path: str) -> Mapping[str, Caller]:
    """Return token -> its caller."""
    subject = f"api-tokens-file {path!r}"
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except OSError as error:
        raise Invalid(f"{subject} cannot be read: {error.strerror}. Fix: name a readable file") from error
    except ValueError as error:
        raise Invalid(f"{subject} is not UTF-8 text ({error})") from error
    tokens: dict[str, Caller] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        # Headers are bytes, and clients encode non-ASCII letters differently.
        is_token = len(words) in (2, 3) and words[1].isascii() and len(words[1]) >= SHORTEST_TOKEN
        if not is_token or not line.isprintable() or words[1] in tokens:
            # The message omits the line, because it may contain a token.
            raise Invalid(
                f"{subject}: line {number} must be a name, a space and a unique token of at least {SHORTEST_TOKEN} "
                "ASCII characters, then optionally a role. Fix: for example `anna $(openssl rand -hex 32) viewer`"
            )
        name, token, role = *words[:2], words[2] if len(words) == 3 else str(Role.OPERATOR)
        if role not in ROLES:
            # The message omits the word: with a blank in the name, the third word is the token.
            raise Invalid(f"{subject}: the third word of line {number} must be a role: {', '.join(ROLES)}")
        tokens[token] = Caller(name, ROLES[role])
    if not tokens:
        raise Invalid(f"{subject} contains no token, so every request would be refused. Fix: add a line")
    return tokens
