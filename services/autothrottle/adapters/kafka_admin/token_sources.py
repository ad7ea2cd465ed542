"""Where tokens for OAUTHBEARER come from: a token endpoint of OAuth 2, a file, or the keys of AWS (IAM of MSK)."""

from __future__ import annotations

import base64
import importlib
import importlib.util
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

from urllib3 import BaseHTTPResponse

from autothrottle.adapters.http.client import Call, Failure, HttpClient, parse_json, read_body
from autothrottle.adapters.kafka_admin.bearer_tokens import BearerToken
from autothrottle.adapters.kafka_admin.key_stores import tls_context
from autothrottle.core.errors import AutothrottleError, Invalid, Unavailable
from autothrottle.core.texts import escape_unprintable

_MAX_ANSWER_BYTES = 1 << 20
_MAX_REASON = 300
"""Characters of the endpoint's own message."""
_REFUSALS = (400, 401, 403, 404)
"""Statuses of a token endpoint that come again until the operator changes something."""

_SIGNER = "aws_msk_iam_sasl_signer"
"""The package of the extra `msk`."""


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """A token endpoint that gives tokens for client credentials (RFC 6749, section 4.4)."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    audience: str = ""
    encodes_header: bool = False
    """Whether id and secret are URL-encoded before Base64, as RFC 6749 requires and many servers do not expect."""
    tls: Mapping[str, str] = field(default_factory=dict, repr=False)
    """`ssl.*` of the JAAS line, for this endpoint alone."""

    @property
    def name(self) -> str:
        """The URL without a user and without a query, either of which may hold a secret."""
        parts = urlsplit(self.url)
        return f"token endpoint {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def fetch(self, deadline: float) -> BearerToken:
        """Ask the endpoint once; the certificates that `tls` names are read again."""
        parameters = {"grant_type": "client_credentials", "scope": self.scope, "audience": self.audience}
        encode = quote_plus if self.encodes_header else str
        login = base64.b64encode(f"{encode(self.client_id)}:{encode(self.client_secret)}".encode()).decode()
        headers = {
            "Accept": "application/json",
            "Authorization": f"Basic {login}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        body = urlencode({key: value for key, value in parameters.items() if value}).encode()
        client = HttpClient("kafka-token", 1, tls=tls_context(self.tls) if self.tls else None)
        try:
            call = Call("token", partial(client.send, self.url, headers, body), self._read)
            (answer,) = client.run([call], deadline, stop_at_failure=True)
        finally:
            client.close()
        if isinstance(answer, BearerToken):
            return answer
        assert isinstance(answer, Failure)
        raise self._error(answer)

    def _error(self, failure: Failure) -> AutothrottleError:
        reason = failure.reason.replace(self.client_secret, "***")
        if failure.status in _REFUSALS:
            return Invalid(
                f"{self.name} {reason}. Fix: check sasl.oauthbearer.token.endpoint.url, the client id "
                f"{self.client_id[:100]!r}, its secret and the scope in the file that kafka-client-config names"
            )
        if "cannot be trusted" in reason:
            return Unavailable(
                f"{self.name} {reason}. Fix: name its authority in the JAAS line, as ssl.truststore.location, or check "
                f"its certificate"
            )
        if failure.status == 200:
            return Invalid(f"{self.name} {reason}. Fix: check sasl.oauthbearer.token.endpoint.url")
        return Unavailable(f"{self.name} {reason}. Fix: start it, or check the network to it")

    def _read(self, response: BaseHTTPResponse) -> BearerToken:
        body = read_body(response, _MAX_ANSWER_BYTES)
        if response.status != 200:
            raise Failure(f"refuses the request: {response.status}{_reason(body)}", response.status)
        try:
            document = parse_json(body, _MAX_ANSWER_BYTES)
        except ValueError:
            raise Failure("answers with something else than JSON", response.status) from None
        text = document.get("access_token") if isinstance(document, dict) else None
        if not isinstance(text, str) or not text.isascii() or not text.isprintable() or not text:
            raise Failure("answers without access_token", response.status)
        seconds = _number(document.get("expires_in"))
        try:
            return token_of(text, seconds)
        except ValueError as error:
            raise Failure(f"answers with a token whose lifetime is unknown: {error}", response.status) from None


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file with a token that another program renews, such as the kubelet."""

    path: str

    @property
    def name(self) -> str:
        """The path."""
        return f"token file {self.path!r}"

    def fetch(self, deadline: float) -> BearerToken:
        """Read the file."""
        try:
            text = Path(self.path).read_text("ascii").strip()
            return token_of(text, None)
        except OSError as error:
            raise Unavailable(f"{self.name} cannot be read: {error.strerror}. Fix: name a readable file") from None
        except ValueError as error:
            raise Invalid(f"{self.name} has no JSON Web Token: {error}. Fix: name a file with a token") from None


@dataclass(frozen=True, slots=True)
class MskSigner:
    """Signs tokens for MSK with the keys of AWS that its own libraries find (environment, profile, role, instance)."""

    profile: str = ""
    role_arn: str = ""
    session_name: str = ""

    @property
    def name(self) -> str:
        """The kind of the keys."""
        identity = (
            f"of profile {self.profile!r}" if self.profile else f"of role {self.role_arn!r}" if self.role_arn else ""
        )
        return f"IAM of AWS {identity}".rstrip()

    def fetch(self, deadline: float) -> BearerToken:
        """Sign a token, which is valid for 15 minutes. Only a role or an instance makes it send a request."""
        signer: Any = importlib.import_module(f"{_SIGNER}.MSKAuthTokenProvider")
        try:
            region = self._region()
            if self.profile:
                text, expires = signer.generate_auth_token_from_profile(region, self.profile)
            elif self.role_arn:
                session = {"sts_session_name": self.session_name} if self.session_name else {}
                text, expires = signer.generate_auth_token_from_role_arn(region, self.role_arn, **session)
            else:
                text, expires = signer.generate_auth_token(region)
        except Invalid:
            raise
        except Exception as error:  # botocore has no common base class, and no keys are an AttributeError
            reason = escape_unprintable(str(error))[:_MAX_REASON]
            raise Unavailable(
                f"{self.name} gives no token ({type(error).__name__}: {reason}). Fix: give keys of AWS in the "
                f"environment, a profile or a role"
            ) from None
        return BearerToken(text, expires / 1000 - time.time(), f"region {region}")

    def _region(self) -> str:
        for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
            if region := os.environ.get(variable):
                return region
        session: Any = importlib.import_module("botocore.session")
        if region := session.Session(profile=self.profile or None).get_config_variable("region"):
            return str(region)
        raise Invalid(f"{self.name} needs the region of the cluster, which is not given. Fix: set AWS_REGION")


def has_signer() -> bool:
    """Whether the extra `msk` is installed."""
    return importlib.util.find_spec(_SIGNER) is not None


def token_of(text: str, seconds: float | None) -> BearerToken:
    """Return a token with its lifetime: `seconds`, else until its claim `exp` on this machine's clock.

    Raises:
        ValueError: the lifetime is unknown, or the text is not a token.
    """
    if not text or not text.isprintable():
        raise ValueError("it is empty or not printable")
    claims = _claims(text)
    end = _number(claims.get("exp"))
    if seconds is None:
        if end is None:
            raise ValueError("it has no claim exp")
        seconds = end - time.time()
    parts = [f"{name} {escape_unprintable(str(claims[key]))[:100]}" for key, name in _NAMES.items() if key in claims]
    if end is not None and 0 <= end < 1e11:
        parts.append(f"valid until {datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M:%S} UTC")
    return BearerToken(text, seconds, ", ".join(parts))


_NAMES = {"iss": "issuer", "aud": "audience", "sub": "subject", "scope": "scope"}
"""Claim -> its name in messages."""


def _claims(text: str) -> Mapping[str, Any]:
    """Return the claims of a JSON Web Token, unverified; empty if it is none. The broker verifies them."""
    try:
        payload = text.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _number(value: object) -> float | None:
    """Return a number of seconds; some servers write it as a text."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _reason(body: bytes) -> str:
    """Return the error of a response (RFC 6749, section 5.2), with a space before it; "": it has none."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(document, dict):
        return ""
    texts = [document.get(key) for key in ("error", "error_description")]
    reason = ": ".join(text for text in texts if isinstance(text, str) and text)
    return f" {escape_unprintable(reason)[:_MAX_REASON].rstrip('.')}" if reason else ""
