"""A token endpoint of OAuth 2 with its keys (JWKS), as brokers and clients of OAUTHBEARER need them.

It gives JSON Web Tokens for client credentials. The type to know is `TokenEndpointEmulator`.
"""

from __future__ import annotations

import base64
import json
import math
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from autothrottle_lab.emulators.http_server import EmulatorRoutes, EmulatorServer

ISSUER, AUDIENCE, KEY_ID = "https://idp.example/", "kafka", "lab"


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A request for a token."""

    at: float
    """`time.monotonic()`."""
    authorization: str
    parameters: Mapping[str, Sequence[str]]


class TokenEndpointEmulator(EmulatorServer):
    """An HTTP server with `/token` and `/jwks`."""

    def __init__(self, clients: Mapping[str, str], tls: ssl.SSLContext | None = None) -> None:
        """Start on a free port of 127.0.0.1.

        Args:
            clients: client id -> secret.
            tls: of an HTTPS server; None: HTTP.
        """
        self.clients = dict(clients)
        """Settable."""
        self.lifetime = 300.0
        """Settable: seconds until a new token expires; negative: it has expired."""
        self.stated_lifetime: float | None = None
        """Settable: the field expires_in; None: the lifetime."""
        self.fault: int | str = ""
        """Settable: an HTTP status, or a body, instead of a token; "hang": no answer until `close`."""
        self.requests: list[TokenRequest] = []
        self._key = _private_key()
        self._scheme = "https" if tls else "http"
        self._tls = tls
        super().__init__(_TokenRoutes)

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        if self._tls is not None:  # the handshake is in the thread of the connection
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self.address}"

    @property
    def token_url(self) -> str:
        """The value of `sasl.oauthbearer.token.endpoint.url`."""
        return f"{self.url}/token"

    @property
    def keys_url(self) -> str:
        """The value of a broker's `sasl.oauthbearer.jwks.endpoint.url`."""
        return f"{self.url}/jwks"

    def token(self, subject: str) -> str:
        """Return a new token."""
        end = math.ceil(time.time() + self.lifetime)
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "iat": min(int(time.time()), end - 60), "exp": end}
        header = {"alg": "RS256", "typ": "JWT", "kid": KEY_ID}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        return f"{signed}.{_encoded(self._key.sign(signed.encode(), padding.PKCS1v15(), SHA256()))}"

    def keys(self) -> Mapping[str, object]:
        """Return the JSON Web Key Set."""
        numbers = self._key.public_key().public_numbers()
        parts = {
            name: _encoded(number.to_bytes((number.bit_length() + 7) // 8))
            for name, number in (("n", numbers.n), ("e", numbers.e))
        }
        return {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": KEY_ID, **parts}]}


class _TokenRoutes(EmulatorRoutes):
    server: TokenEndpointEmulator

    def do_GET(self) -> None:
        if self.path == "/jwks":
            self._send(200, self.server.keys())
        else:
            self._send(404, {})

    def do_POST(self) -> None:
        emulator, authorization = self.server, self.headers.get("Authorization", "")
        emulator.requests.append(TokenRequest(time.monotonic(), authorization, parse_qs(self.body().decode())))
        if emulator.fault == "hang":
            emulator.closing.wait()
        elif isinstance(emulator.fault, int):
            self._send(emulator.fault, {})
        elif emulator.fault:
            self.send(200, emulator.fault.encode(), {})
        else:
            self._give_token(authorization)

    def _give_token(self, authorization: str) -> None:
        emulator = self.server
        client, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if not secret or emulator.clients.get(client) != secret:
            self._send(401, {"error": "invalid_client", "error_description": "Invalid client or its secret"})
            return
        seconds = emulator.lifetime if emulator.stated_lifetime is None else emulator.stated_lifetime
        self._send(200, {"access_token": emulator.token(client), "token_type": "Bearer", "expires_in": seconds})

    def _send(self, status: int, document: object) -> None:
        self.send(status, json.dumps(document).encode(), {})


@cache
def _private_key() -> rsa.RSAPrivateKey:
    """Return the key of this process; making one takes a quarter of a second."""
    return rsa.generate_private_key(65537, 2048)


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
