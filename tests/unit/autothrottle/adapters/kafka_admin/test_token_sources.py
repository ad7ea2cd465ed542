"""Where tokens come from: a token endpoint, a file, and the signer of AWS."""

from __future__ import annotations

import base64
import json
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin.token_sources import MskSigner, TokenEndpoint, TokenFile, token_of
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle_lab.emulators.tokens import TokenEndpointEmulator
from tests.paths import CERTIFICATES

CLIENT, SECRET = "throttle", "s3cret:ü/"


@pytest.fixture
def endpoint() -> Iterator[TokenEndpointEmulator]:
    with TokenEndpointEmulator({CLIENT: SECRET}) as emulator:
        yield emulator


def fetch(source: TokenEndpoint | TokenFile | MskSigner, seconds: float = 5.0) -> Any:
    return source.fetch(time.monotonic() + seconds)


def jwt(**claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{payload}.c2ln"


# A token endpoint


def test_token_is_fetched_by_client_credentials(endpoint: TokenEndpointEmulator) -> None:
    endpoint.lifetime = 120
    token = fetch(TokenEndpoint(f"{endpoint.token_url}?tenant=a", CLIENT, SECRET, "read write", "kafka"))
    assert token.text.count(".") == 2 and token.lifetime == 120
    assert token.description.startswith("issuer https://idp.example/, audience kafka, subject throttle, valid until 20")
    (request,) = endpoint.requests
    assert request.parameters == {
        "grant_type": ["client_credentials"],
        "scope": ["read write"],
        "audience": ["kafka"],
    }
    assert base64.b64decode(request.authorization.removeprefix("Basic ")).decode() == f"{CLIENT}:{SECRET}"


def test_scope_and_audience_are_left_out_without_a_value(endpoint: TokenEndpointEmulator) -> None:
    fetch(TokenEndpoint(endpoint.token_url, CLIENT, SECRET))
    assert endpoint.requests[0].parameters == {"grant_type": ["client_credentials"]}


def test_header_can_be_encoded_as_the_rfc_says(endpoint: TokenEndpointEmulator) -> None:
    encoded = "s3cret%3A%C3%BC%2F"
    endpoint.clients[CLIENT] = encoded
    fetch(TokenEndpoint(endpoint.token_url, CLIENT, SECRET, encodes_header=True))
    assert base64.b64decode(endpoint.requests[0].authorization.removeprefix("Basic ")).decode() == f"{CLIENT}:{encoded}"


def test_wrong_secret_is_reported_with_the_endpoint_and_without_the_secret(endpoint: TokenEndpointEmulator) -> None:
    with pytest.raises(Invalid) as caught:
        fetch(TokenEndpoint(f"{endpoint.token_url}?key=hush", CLIENT, "wr0ng"))
    message = str(caught.value)
    assert message == (
        f"token endpoint {endpoint.token_url} refuses the request: 401 invalid_client: Invalid client or its secret. "
        f"Fix: check sasl.oauthbearer.token.endpoint.url, the client id 'throttle', its secret and the scope in the "
        f"file that kafka-client-config names"
    )


@pytest.mark.parametrize(
    ("fault", "kind", "expected"),
    [
        (503, Unavailable, "refuses the request: 503. Fix: start it"),
        (404, Invalid, "refuses the request: 404. Fix: check sasl.oauthbearer.token.endpoint.url"),
        (302, Unavailable, "refuses the request: 302"),
        ("<html>", Invalid, "answers with something else than JSON"),
        ("[]", Invalid, "answers without access_token"),
        ('{"access_token": ""}', Invalid, "answers without access_token"),
        ('{"access_token": "a\\u0001auth=b"}', Invalid, "answers without access_token"),
        ('{"access_token": "opaque"}', Invalid, "whose lifetime is unknown: it has no claim exp"),
        ('{"access_token": "opaque", "expires_in": "soon"}', Invalid, "whose lifetime is unknown"),
        ("hang", Unavailable, "does not answer in time"),
    ],
)
def test_useless_answer_is_reported_with_the_endpoint(
    endpoint: TokenEndpointEmulator, fault: int | str, kind: type[Exception], expected: str
) -> None:
    endpoint.fault = fault
    with pytest.raises(kind) as caught:
        fetch(TokenEndpoint(endpoint.token_url, CLIENT, SECRET), 0.5)
    message = str(caught.value)
    assert message.startswith(f"token endpoint {endpoint.token_url} ") and expected in message
    assert "Fix: " in message and SECRET not in message


def test_endpoint_that_is_down_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"token endpoint http://127.0.0.1:1/token does not answer .+ Fix: start it"):
        fetch(TokenEndpoint("http://127.0.0.1:1/token", CLIENT, SECRET))


def test_secret_that_the_endpoint_repeats_is_masked(endpoint: TokenEndpointEmulator) -> None:
    source = TokenEndpoint(endpoint.token_url, "refuses the request", "401")
    with pytest.raises(Invalid, match=r"refuses the request: \*\*\* invalid_client"):
        fetch(source)


def test_tls_of_the_endpoint_uses_the_store_in_the_jaas_line() -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATES / "server.pem")
    with TokenEndpointEmulator({CLIENT: SECRET}, tls) as endpoint:
        trust = {"ssl.truststore.location": str(CERTIFICATES / "ca.pem")}
        assert fetch(TokenEndpoint(endpoint.token_url, CLIENT, SECRET, tls=trust)).lifetime == 300
        with pytest.raises(Unavailable, match=r"cannot be trusted: .+ Fix: name its authority in the JAAS line"):
            fetch(TokenEndpoint(endpoint.token_url, CLIENT, SECRET))


# The lifetime


def test_lifetime_is_that_of_the_response_else_that_of_the_claim() -> None:
    end = time.time() + 50
    assert token_of(jwt(exp=end), 40.0).lifetime == 40
    assert token_of(jwt(exp=end), None).lifetime == pytest.approx(50, abs=2)
    assert token_of("opaque", 30.0).description == ""
    assert token_of(jwt(exp=1e300, iss="a\nb"), 30.0).description == "issuer a\\nb"


@pytest.mark.parametrize("text", ["a.!!.c", "a.e30.c", "opaque", "a.WzFd.c", jwt(exp=True), jwt(exp="x")])
def test_token_without_a_lifetime_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no claim exp"):
        token_of(text, None)


# A file


def test_token_of_a_file_is_read_again_at_each_renewal(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for subject in ("one", "two"):
        file.write_text(jwt(exp=time.time() + 60, sub=subject) + "\n")
        assert f"subject {subject}" in fetch(TokenFile(str(file))).description


def test_useless_file_is_reported_with_its_path(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(Unavailable, match="cannot be read: No such file"):
        fetch(TokenFile(str(file)))
    for content in ("", "s3cret", "ü"):
        file.write_text(content)
        with pytest.raises(Invalid, match="has no JSON Web Token") as caught:
            fetch(TokenFile(str(file)))
        assert str(file) in str(caught.value) and "s3cret" not in str(caught.value)


# MSK


class Signer:
    """The functions of AWS's library that are used, which record their arguments."""

    calls: list[tuple[Any, ...]]

    def __init__(self) -> None:
        self.calls = []

    def _token(self, *arguments: Any) -> tuple[str, int]:
        self.calls.append(arguments)
        return "signed", int((time.time() + 900) * 1000)

    def generate_auth_token(self, region: str) -> tuple[str, int]:
        return self._token(region)

    def generate_auth_token_from_profile(self, region: str, aws_profile: str) -> tuple[str, int]:
        return self._token(region, aws_profile)

    def generate_auth_token_from_role_arn(
        self, region: str, role_arn: str, sts_session_name: str = "default"
    ) -> tuple[str, int]:
        return self._token(region, role_arn, sts_session_name)


@pytest.fixture
def signer(monkeypatch: pytest.MonkeyPatch) -> Signer:
    signer: Any = Signer()
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer.MSKAuthTokenProvider", signer)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert isinstance(signer, Signer)
    return signer


def test_msk_token_is_signed_with_the_keys_that_the_jaas_line_chooses(signer: Signer) -> None:
    for source in (MskSigner(), MskSigner("work"), MskSigner("", "arn:x"), MskSigner("", "arn:x", "night")):
        token = fetch(source)
        assert (token.text, token.description) == ("signed", "region eu-west-1")
        assert token.lifetime == pytest.approx(900, abs=5)
    region = "eu-west-1"
    assert signer.calls == [(region,), (region, "work"), (region, "arn:x", "default"), (region, "arn:x", "night")]


def test_region_comes_from_the_configuration_of_aws_without_a_variable(
    signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    regions = {"work": "us-east-2"}
    library: Any = ModuleType("botocore.session")
    library.Session = lambda profile: SimpleNamespace(get_config_variable=lambda name: regions.get(profile))
    monkeypatch.setitem(sys.modules, "botocore.session", library)
    fetch(MskSigner("work"))
    assert signer.calls == [("us-east-2", "work")]
    with pytest.raises(Invalid, match=r"IAM of AWS needs the region .+ Fix: set AWS_REGION"):
        fetch(MskSigner())


def test_absent_keys_of_aws_are_reported(signer: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(region: str) -> tuple[str, int]:
        raise AttributeError("'NoneType' object has no attribute 'access_key'")

    monkeypatch.setattr(signer, "generate_auth_token", fail)
    with pytest.raises(Unavailable, match=r"IAM of AWS gives no token \(AttributeError: .+ Fix: give keys of AWS"):
        fetch(MskSigner())
