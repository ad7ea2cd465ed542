"""Kafka's client properties: what reaches kafka-python, what is refused, and that no message contains a secret."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.kafka_admin import sasl as sasl_module
from autothrottle.adapters.kafka_admin.bearer_tokens import BearerTokens
from autothrottle.adapters.kafka_admin.client_properties import (
    SUPPORTED,
    ClientOptions,
    client_options,
    read_client_properties,
)
from autothrottle.adapters.kafka_admin.login import KafkaLogin
from autothrottle.adapters.kafka_admin.sasl import CLASSES
from autothrottle.adapters.kafka_admin.token_sources import MskSigner, TokenEndpoint, TokenFile
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.core.errors import Invalid
from tests.paths import CERTIFICATES
from tests.unit.autothrottle.adapters.kafka_admin.test_key_stores import PASSWORD, keystore, tls, truststore

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer"
URL = "https://idp.example/oauth2/token"


def read(directory: Path, content: str) -> ClientOptions:
    file = directory / "client.properties"
    file.write_bytes(content.encode("latin-1"))
    return client_options(read_client_properties(str(file)))


def refused(properties: Mapping[str, str]) -> str:
    with pytest.raises(Invalid) as caught:
        client_options(properties)
    message = str(caught.value)
    assert "Fix: " in message and PASSWORD not in message
    assert caught.value.__cause__ is None
    return message


def sasl(mechanism: str, jaas: str, protocol: str = "SASL_SSL") -> dict[str, str]:
    return {"security.protocol": protocol, "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


def oauth(**jaas: str) -> dict[str, str]:
    """Return a valid login by OAUTHBEARER, with more options in its JAAS line."""
    options = {"clientId": "throttle", "clientSecret": PASSWORD, **jaas}
    line = " ".join([f"{OAUTH}.OAuthBearerLoginModule required", *(f'{k}="{v}"' for k, v in options.items())])
    return {**sasl("OAUTHBEARER", f"{line};"), "sasl.oauthbearer.token.endpoint.url": URL}


def tokens(options: Mapping[str, Any]) -> BearerTokens:
    provider = options["sasl_oauth_token_provider"]
    assert isinstance(provider, BearerTokens)
    return provider


# Files of the documentation of Kafka and of its distributions, each rewritten. {dir} has stores with the password.


@dataclass(frozen=True)
class Used:
    """What a file means."""

    options: Mapping[str, object]
    """Of kafka-python, without the context of TLS; `source` stands for that of the token provider."""
    warnings: tuple[str, ...] = ()
    """A part of each warning, in order."""
    extensions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """What a refusal says."""

    text: str


def password_of(mechanism: str, protocol: str = "SASL_SSL") -> Mapping[str, object]:
    return {
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "throttle",
        "sasl_plain_password": PASSWORD,
    }


def token_of(source: object) -> Mapping[str, object]:
    return {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "source": source}


FILES: Mapping[str, tuple[str, Used | Refused]] = {
    "Kafka: TLS with the default type of the store": (
        """
        security.protocol=SSL
        ssl.truststore.location={dir}/truststore.p12
        ssl.truststore.password=s3cret
        """,
        Used({"security_protocol": "SSL"}),
    ),
    "Kafka: TLS with a key in another password": (
        """
        security.protocol=SSL
        ssl.truststore.location={dir}/truststore.p12
        ssl.truststore.password=s3cret
        ssl.keystore.location={dir}/keystore.p12
        ssl.keystore.password=s3cret
        ssl.key.password=s3cret
        ssl.enabled.protocols=TLSv1.2
        ssl.trustmanager.algorithm=PKIX
        ssl.secure.random.implementation=SHA1PRNG
        """,
        Used({"security_protocol": "SSL"}, ("ssl.secure.random.implementation: ignored",)),
    ),
    "Kafka: TLS with JKS": (
        """
        security.protocol=SSL
        ssl.truststore.location={dir}/truststore.jks
        ssl.truststore.password=s3cret
        """,
        Refused("keytool -importkeystore -srckeystore {dir}/truststore.jks -destkeystore {dir}/truststore.p12"),
    ),
    "Kafka: ciphers": (
        "security.protocol=SSL\nssl.cipher.suites=TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        Refused("'ssl.cipher.suites' is not supported, and without it the connections may be less secure"),
    ),
    "Kafka: no check of the host name": (
        """
        security.protocol=SSL
        ssl.truststore.location={dir}/truststore.p12
        ssl.truststore.password=s3cret
        ssl.endpoint.identification.algorithm=
        """,
        Used({"security_protocol": "SSL"}, ("is empty: the host name in the brokers' certificates is not checked",)),
    ),
    "Kafka: PLAIN over several lines": (
        f"""
        sasl.jaas.config={PLAIN} required \\\\
            username="throttle" \\\\
            password="s3cret";
        security.protocol=SASL_SSL
        sasl.mechanism=PLAIN
        """,
        Used(password_of("PLAIN")),
    ),
    "Kafka: PLAIN without encryption": (
        f"""
        security.protocol=SASL_PLAINTEXT
        sasl.mechanism=PLAIN
        sasl.jaas.config={PLAIN} required username="throttle" password="s3cret";
        """,
        Used(password_of("PLAIN", "SASL_PLAINTEXT"), ("SASL_PLAINTEXT sends the password without encryption",)),
    ),
    "Kafka: SCRAM": (
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=SCRAM-SHA-512
        sasl.jaas.config={SCRAM} required username="throttle" password="s3cret";
        """,
        Used(password_of("SCRAM-SHA-512")),
    ),
    "Kafka: delegation token": (
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=SCRAM-SHA-256
        sasl.jaas.config={SCRAM} required username="tokenID123" password="s3cret" tokenauth="true";
        """,
        Refused("tokenauth in sasl.jaas.config is not supported"),
    ),
    "Kafka: Kerberos": (
        """
        security.protocol=SASL_PLAINTEXT
        sasl.mechanism=GSSAPI
        sasl.kerberos.service.name=kafka
        sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true \\\\
            keyTab="/etc/security/kafka_client.keytab" principal="kafka-client-1@EXAMPLE.COM";
        """,
        Refused("sasl.mechanism GSSAPI (Kerberos) is not supported: it needs the Kerberos libraries"),
    ),
    "Kafka: Kerberos by default": (
        "security.protocol=SASL_SSL\nsasl.kerberos.service.name=kafka",
        Refused("sasl.mechanism is not given, and Kafka's default GSSAPI (Kerberos) is not supported"),
    ),
    "Kafka 4: OAUTHBEARER": (
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=OAUTHBEARER
        sasl.jaas.config={OAUTH}.OAuthBearerLoginModule required ;
        sasl.login.callback.handler.class={OAUTH}.OAuthBearerLoginCallbackHandler
        sasl.oauthbearer.jwt.retriever.class={OAUTH}.ClientCredentialsJwtRetriever
        sasl.oauthbearer.client.credentials.client.id=throttle
        sasl.oauthbearer.client.credentials.client.secret=s3cret
        sasl.oauthbearer.scope=kafka.write kafka.read
        sasl.oauthbearer.token.endpoint.url={URL}
        sasl.login.refresh.window.factor=0.9
        """,
        Used(
            token_of(TokenEndpoint(URL, "throttle", PASSWORD, "kafka.write kafka.read")),
            ("sasl.login.refresh.window.factor: ignored",),
        ),
    ),
    "Kafka 3: OAUTHBEARER in the JAAS line": (
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=OAUTHBEARER
        sasl.login.callback.handler.class={OAUTH}.secured.OAuthBearerLoginCallbackHandler
        sasl.oauthbearer.token.endpoint.url={URL}
        sasl.oauthbearer.header.urlencode=true
        sasl.oauthbearer.sub.claim.name=client
        sasl.jaas.config={OAUTH}.OAuthBearerLoginModule required \\\\
            clientId="throttle" clientSecret="s3cret" scope="kafka" \\\\
            ssl.truststore.location="{{dir}}/truststore.p12" ssl.truststore.password="s3cret" \\\\
            extension_traceId="123";
        """,
        Used(
            token_of(
                TokenEndpoint(
                    URL,
                    "throttle",
                    PASSWORD,
                    "kafka",
                    encodes_header=True,
                    tls={"ssl.truststore.location": "{dir}/truststore.p12", "ssl.truststore.password": PASSWORD},
                )
            ),
            ("sasl.oauthbearer.sub.claim.name: ignored",),
            {"traceId": "123"},
        ),
    ),
    "Kafka 4: properties before the JAAS line": (
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=OAUTHBEARER
        sasl.oauthbearer.token.endpoint.url={URL}
        sasl.oauthbearer.client.credentials.client.id=throttle
        sasl.jaas.config={OAUTH}.OAuthBearerLoginModule required clientId="old" clientSecret="s3cret";
        """,
        Used(
            token_of(TokenEndpoint(URL, "throttle", PASSWORD)),
            ("clientId in sasl.jaas.config is ignored, because sasl.oauthbearer.client.credentials.client.id is",),
        ),
    ),
    "Kafka: token in a file": (
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=OAUTHBEARER
        sasl.jaas.config={OAUTH}.OAuthBearerLoginModule required;
        sasl.login.callback.handler.class={OAUTH}.OAuthBearerLoginCallbackHandler
        sasl.oauthbearer.token.endpoint.url=file:///var/run/secrets/kafka/token
        """,
        Used(token_of(TokenFile("/var/run/secrets/kafka/token"))),
    ),
    "Kafka 4: assertions": (
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=OAUTHBEARER
        sasl.oauthbearer.jwt.retriever.class={OAUTH}.JwtBearerJwtRetriever
        """,
        Refused("JwtBearerJwtRetriever' is not supported: autothrottle cannot sign assertions with a key"),
    ),
    "Kafka 4.3: assertions of the client": (
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=OAUTHBEARER
        sasl.oauthbearer.token.endpoint.url={URL}
        sasl.oauthbearer.assertion.private.key.file=/etc/kafka/key.pem
        """,
        Refused("'sasl.oauthbearer.assertion.private.key.file' is not supported"),
    ),
    "Kafka: unsecured tokens": (
        f"""
        security.protocol=SASL_PLAINTEXT
        sasl.mechanism=OAUTHBEARER
        sasl.jaas.config={OAUTH}.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="throttle";
        """,
        Refused("sasl.jaas.config has unsecuredLogin options: any client can make such a token"),
    ),
    "Kafka: a tool's whole file": (
        f"""
        # List of brokers used for bootstrapping
        bootstrap.servers=kafka1:9092
        compression.type=none
        acks=all
        request.timeout.ms=30000
        security.protocol=SASL_SSL
        sasl.mechanism=SCRAM-SHA-256
        sasl.jaas.config={SCRAM} required username="throttle" password="s3cret";
        sasl.kerberos.service.name=kafka
        """,
        Used(
            password_of("SCRAM-SHA-256"),
            (
                "bootstrap.servers is ignored, because autothrottle has the option bootstrap-servers for it",
                "request.timeout.ms is ignored, because autothrottle has the option kafka-api-request-timeout for it",
                "compression.type, acks, sasl.kerberos.service.name: ignored",
            ),
        ),
    ),
    "Kafka: secrets of a provider": (
        f"""
        config.providers=file
        config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
        security.protocol=SASL_SSL
        sasl.mechanism=PLAIN
        sasl.jaas.config={PLAIN} required username="throttle" password="${{file:/etc/kafka/secrets:password}}";
        """,
        Refused("'config.providers' is not supported"),
    ),
    "Strimzi: mutual TLS of a KafkaUser": (
        """
        security.protocol=SSL
        ssl.truststore.location={dir}/truststore.p12
        ssl.truststore.type=PKCS12
        ssl.truststore.password=s3cret
        ssl.keystore.location={dir}/keystore.p12
        ssl.keystore.type=PKCS12
        ssl.keystore.password=s3cret
        """,
        Used({"security_protocol": "SSL"}),
    ),
    "Strimzi: SCRAM over TLS": (
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=SCRAM-SHA-512
        sasl.jaas.config={SCRAM} required \\\\
            username="throttle" \\\\
            password="s3cret";
        ssl.truststore.location={{dir}}/truststore.p12
        ssl.truststore.type=PKCS12
        ssl.truststore.password=s3cret
        """,
        Used(password_of("SCRAM-SHA-512")),
    ),
    "Strimzi: OAuth": (
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=OAUTHBEARER
        sasl.jaas.config={OAUTH}.OAuthBearerLoginModule required \\\\
            oauth.token.endpoint.uri="{URL}" \\\\
            oauth.client.id="throttle" \\\\
            oauth.client.secret="s3cret" \\\\
            oauth.scope="kafka" \\\\
            oauth.audience="cluster" ;
        sasl.login.callback.handler.class=io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler
        """,
        Used(token_of(TokenEndpoint(URL, "throttle", PASSWORD, "kafka", "cluster"))),
    ),
    "Strimzi: OAuth with a refresh token": (
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=OAUTHBEARER
        sasl.jaas.config={OAUTH}.OAuthBearerLoginModule required oauth.refresh.token="s3cret";
        sasl.login.callback.handler.class=io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler
        """,
        Refused("oauth.refresh.token in sasl.jaas.config is not supported; supported are oauth.token.endpoint.uri"),
    ),
    "MSK: IAM": (
        """
        security.protocol=SASL_SSL
        sasl.mechanism=AWS_MSK_IAM
        sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required;
        sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler
        """,
        Used(token_of(MskSigner())),
    ),
    "MSK: IAM with a role": (
        """
        security.protocol=SASL_SSL
        sasl.mechanism=AWS_MSK_IAM
        sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required \\
            awsRoleArn="arn:aws:iam::123456789012:role/throttle" awsRoleSessionName="at" awsStsRegion="eu-west-1";
        sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler
        """,
        Used(
            token_of(MskSigner("", "arn:aws:iam::123456789012:role/throttle", "at")),
            ("awsStsRegion: ignored in sasl.jaas.config",),
        ),
    ),
    "MSK: IAM by OAUTHBEARER": (
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=OAUTHBEARER
        sasl.jaas.config={OAUTH}.OAuthBearerLoginModule required awsProfileName="throttle";
        sasl.login.callback.handler.class=software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler
        sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler
        """,
        Used(token_of(MskSigner("throttle"))),
    ),
    "MSK: IAM without encryption": (
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=AWS_MSK_IAM",
        Refused("security.protocol must be SASL_SSL with IAM of MSK"),
    ),
    "MSK: SCRAM": (
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=SCRAM-SHA-512
        ssl.truststore.location={{dir}}/truststore.p12
        ssl.truststore.password=s3cret
        sasl.jaas.config={SCRAM} required username=throttle password=s3cret;
        """,
        Used(password_of("SCRAM-SHA-512")),
    ),
    "Confluent Cloud: API key": (
        f"""
        # Required connection configs for Kafka producer, consumer, and admin
        bootstrap.servers=pkc-1.eu-west-1.aws.confluent.cloud:9092
        security.protocol=SASL_SSL
        sasl.jaas.config={PLAIN} required username='throttle' password='s3cret';
        sasl.mechanism=PLAIN
        # Required for correctness in Apache Kafka clients prior to 2.6
        client.dns.lookup=use_all_dns_ips
        session.timeout.ms=45000
        client.id=ccloud-java-client-1
        schema.registry.url=https://psrc-1.eu-west-1.aws.confluent.cloud
        basic.auth.credentials.source=USER_INFO
        basic.auth.user.info=key:s3cret
        """,
        Used(
            {**password_of("PLAIN"), "client_id": "ccloud-java-client-1"},
            (
                "bootstrap.servers is ignored",
                "client.dns.lookup, session.timeout.ms, schema.registry.url, basic.auth.credentials.source, "
                "basic.auth.user.info: ignored, because autothrottle does not use it",
            ),
        ),
    ),
    "Confluent Cloud: OAuth": (
        f"""
        security.protocol=SASL_SSL
        sasl.mechanism=OAUTHBEARER
        sasl.login.callback.handler.class={OAUTH}.OAuthBearerLoginCallbackHandler
        sasl.oauthbearer.token.endpoint.url={URL}
        sasl.jaas.config={OAUTH}.OAuthBearerLoginModule required \\\\
            clientId='throttle' clientSecret='s3cret' scope='api://kafka/.default' \\\\
            extension_logicalCluster='lkc-1' extension_identityPoolId='pool-1';
        """,
        Used(
            token_of(TokenEndpoint(URL, "throttle", PASSWORD, "api://kafka/.default")),
            extensions={"logicalCluster": "lkc-1", "identityPoolId": "pool-1"},
        ),
    ),
    "Confluent Platform: metadata service": (
        """
        security.protocol=SASL_SSL
        sasl.mechanism=OAUTHBEARER
        sasl.login.callback.handler.class=io.confluent.kafka.clients.plugins.auth.token.TokenUserLoginCallbackHandler
        """,
        Refused("TokenUserLoginCallbackHandler' is not supported. It must be one of "),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_file_of_a_distribution(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl_module, "has_signer", lambda: True)
    truststore(tmp_path)
    keystore(tmp_path)
    (tmp_path / "truststore.jks").write_bytes(b"\xfe\xed\xfe\xed" + bytes(100))
    content, expected = FILES[name]
    content = content.replace("\\\\\n", "\\\n").replace("{dir}", str(tmp_path)).replace("{{", "{").replace("}}", "}")
    if isinstance(expected, Refused):
        with pytest.raises(Invalid) as caught:
            read(tmp_path, content)
        message = str(caught.value)
        assert expected.text.replace("{dir}", str(tmp_path)) in message
        assert "Fix: " in message and PASSWORD not in message
        return
    client = read(tmp_path, content)
    options = dict(client.options)
    has_tls = options["security_protocol"] in ("SSL", "SASL_SSL")
    assert isinstance(options.pop("ssl_context", None), ssl.SSLContext) == has_tls
    if provider := options.pop("sasl_oauth_token_provider", None):
        options["source"] = provider._source
        assert provider.extensions() == expected.extensions
    expected_options = dict(expected.options)
    if isinstance(source := expected_options.get("source"), TokenEndpoint):
        stores = {key: value.replace("{dir}", str(tmp_path)) for key, value in source.tls.items()}
        expected_options["source"] = replace(source, tls=stores)
    assert options == expected_options
    assert len(client.warnings) == len(expected.warnings), client.warnings
    for warning, part in zip(client.warnings, expected.warnings, strict=True):
        assert part in warning and PASSWORD not in warning


# Names


def test_empty_file_means_plaintext(tmp_path: Path) -> None:
    assert read(tmp_path, "") == ClientOptions({"security_protocol": "PLAINTEXT"}, ())


def test_every_supported_property_reaches_the_client() -> None:
    """Each property is a part of one of the files above or of this test."""
    pem = (CERTIFICATES / "client.pem").read_text()
    key, chain = pem[: pem.index("-----BEGIN CERT")], pem[pem.index("-----BEGIN CERT") :]
    inline = {
        "security.protocol": "SSL",
        "connections.max.idle.ms": "60000",
        "ssl.protocol": "TLSv1.3",
        "ssl.keystore.certificate.chain": chain,
        "ssl.keystore.key": key,
        "ssl.keystore.type": "PEM",
        "ssl.truststore.certificates": (CERTIFICATES / "ca.pem").read_text(),
        "ssl.truststore.type": "PEM",
        "sasl.oauthbearer.jwt.validator.class": "",
    }
    texts = "\n".join([*inline, *(content for content, _ in FILES.values())])
    assert [name for name in SUPPORTED if name not in texts] == []
    del inline["sasl.oauthbearer.jwt.validator.class"]
    options = client_options(inline).options
    assert options["connections_max_idle_ms"] == 60000
    assert options["ssl_context"].maximum_version == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize("name", ["ssl.provider", "sasl.login.class", "Security.Protocol", "ssl.keymanager.algorithm"])
def test_unknown_property_of_security_is_refused_by_name(name: str) -> None:
    message = refused({name: PASSWORD})
    assert repr(name) in message and "Supported are client.id, " in message


@pytest.mark.parametrize("name", ["acks", "", "max.poll.records", "schema.registry.basic.auth.user.info"])
def test_other_unknown_property_is_a_warning_that_names_it(name: str) -> None:
    (warning,) = client_options({name: PASSWORD}).warnings
    assert warning.isprintable() and PASSWORD not in warning
    assert warning.partition(":")[0] in (name, "(no name)")


@pytest.mark.parametrize("secret", ["hunter2", "correcthorse", "S3CRET;", "a.b/c+d", "s\x00", "n" * 200, "{}"])
def test_a_secret_as_the_name_of_a_property_is_masked(secret: str) -> None:
    """A password on a line of its own, without a backslash before it, is a name in Java. The warning showed it."""
    jaas = sasl("PLAIN", f'{PLAIN} required username=u password=x "{secret}"=y;')
    logins = [
        sasl("PLAIN", f"{PLAIN} required username=u password=x {name}=y;") for name in (secret, f"oauth.{secret}")
    ]
    for properties in ({secret: ""}, {f"x.{secret}": "y"}, *logins):
        try:
            texts = client_options(properties).warnings
        except Invalid as error:  # a name that no JAAS line can have
            texts = (str(error),)
        assert texts and not any(secret in text for text in texts)
    assert refused(jaas).count(secret) == 0
    for prefix in ("ssl.", "sasl.", "sasl.oauthbearer.", "security."):
        assert secret not in refused({prefix + secret: "x"})
    (warning,) = client_options({secret: ""}).warnings
    assert warning.startswith("***: ignored, ") and "Fix: end lines that continue with a backslash" in warning


@pytest.mark.parametrize(
    "properties",
    [
        {"sasl.mechanism": "PLAIN"},
        {"security.protocol": "SSL", "sasl.mechanism": "PLAIN"},
        {"ssl.truststore.location": "/s3cret"},
        sasl("PLAIN", f"{PLAIN} required username=u password=s3cret;", "SASL_PLAINTEXT")
        | {"ssl.key.password": "s3cret"},
    ],
)
def test_property_that_the_protocol_does_not_use_is_refused(properties: dict[str, str]) -> None:
    assert "does not use it" in refused(properties)


def test_property_that_the_mechanism_does_not_use_is_a_warning() -> None:
    properties = sasl("PLAIN", f"{PLAIN} required username=u password=s3cret serviceName=kafka other=x;")
    client = client_options(properties | {"sasl.oauthbearer.token.endpoint.url": URL})
    assert client.warnings == (
        "sasl.oauthbearer.token.endpoint.url: ignored, because sasl.mechanism PLAIN does not use it",
        "***: ignored in sasl.jaas.config, because autothrottle does not use it",
    )


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"security.protocol": "TLS"}, "security.protocol 'TLS'"),
        ({"connections.max.idle.ms": "0"}, "connections.max.idle.ms '0'"),
        ({"connections.max.idle.ms": "1m"}, "connections.max.idle.ms '1m'"),
        (sasl("DIGEST-MD5", "x"), "'DIGEST-MD5' is not supported; it must be one of PLAIN, SCRAM-SHA-256"),
        ({"security.protocol": "SSL", **tls(ssl_truststore_location="/no/such")}, "'/no/such' cannot be read"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.jaas.config is not given"),
        (oauth() | {"sasl.oauthbearer.token.endpoint.url": ""}, "sasl.oauthbearer.token.endpoint.url is not given"),
        (oauth() | {"sasl.oauthbearer.token.endpoint.url": "idp:8080"}, "token.endpoint.url is not a URL"),
        (oauth() | {"sasl.oauthbearer.token.endpoint.url": "https://a:s3cret@idp/"}, "token.endpoint.url has a user"),
        (oauth() | {"sasl.oauthbearer.token.endpoint.url": "https://[s3cret"}, "token.endpoint.url is not a URL"),
        (
            oauth(clientSecret=""),
            "client.secret is not given, and sasl.jaas.config has no clientSecret",
        ),
        (oauth() | {"sasl.oauthbearer.header.urlencode": "yes"}, "urlencode 'yes' must be true or false"),
        (oauth() | {"sasl.jaas.config": "s3cret"}, "sasl.jaas.config is not `...OAuthBearerLoginModule required;`"),
        (oauth(**{"ssl.truststore.location": "/no/such"}), "ssl.truststore.location '/no/such' cannot be read"),
        (
            oauth(**{"ssl.endpoint.identification.algorithm": ""}),
            "host name of the token endpoint is always checked",
        ),
        (sasl("AWS_MSK_IAM", "s3cret"), "sasl.jaas.config is not `...IAMLoginModule required;`"),
        (sasl("AWS_MSK_IAM", "x.IAMLoginModule required awsProfileName=a awsRoleArn=b;"), "are both given"),
    ],
)
def test_wrong_value_is_refused_with_the_range_and_the_fix(properties: dict[str, str], expected: str) -> None:
    assert expected in refused(properties)


def test_classes_of_java_that_autothrottle_replaces_are_listed() -> None:
    for name, classes in CLASSES.items():
        message = refused(oauth() | {name: "com.example.Own"})
        assert f"{name} 'com.example.Own' is not supported" in message and ", ".join(classes) in message


def test_plain_http_to_the_token_endpoint_of_another_host_is_a_warning() -> None:
    name = "sasl.oauthbearer.token.endpoint.url"
    (warning,) = client_options(oauth() | {name: "http://idp.example/token"}).warnings
    assert "is plain http to another host" in warning
    assert client_options(oauth() | {name: "http://127.0.0.1:1/token"}).warnings == ()


def test_msk_without_its_extra_is_refused_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl_module, "has_signer", lambda: False)
    properties = sasl("AWS_MSK_IAM", "software.amazon.msk.auth.iam.IAMLoginModule required;")
    assert "Fix: install autothrottle with the extra `msk`" in refused(properties)


# PLAIN and SCRAM


@pytest.mark.parametrize(
    ("mechanism", "jaas"),
    [
        ("PLAIN", f'{PLAIN} required username="alice" password="s3cret";'),
        ("PLAIN", f"{PLAIN} required username=alice password=s3cret ;"),
        ("PLAIN", f"\n  {PLAIN}   required\n  password='s3cret'\n  username = 'alice'\n  other=\"x\"; \n"),
        ("plain", f'{PLAIN} required username="alice" password="s3cret";'),
        ("SCRAM-SHA-256", f'{SCRAM} required username="alice" password="s3cret";'),
        ("SCRAM-SHA-512", f'{SCRAM} required username="alice" password="s3cret" tokenauth=false;'),
    ],
)
def test_credentials_come_from_the_jaas_config(mechanism: str, jaas: str) -> None:
    assert client_options(sasl(mechanism, jaas, "SASL_PLAINTEXT")).options == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism.upper(),
        "sasl_plain_username": "alice",
        "sasl_plain_password": "s3cret",
    }


@given(st.text(min_size=1), st.sampled_from("\"'"))
def test_any_password_can_be_quoted(password: str, quote: str) -> None:
    quoted = password.replace("\\", "\\\\").replace(quote, f"\\{quote}")
    jaas = f"{PLAIN} required username=alice password={quote}{quoted}{quote};"
    properties = sasl("PLAIN", jaas, "SASL_PLAINTEXT")
    assert client_options(properties).options["sasl_plain_password"] == password


def test_signs_of_scram_in_a_user_name_are_escaped() -> None:
    properties = sasl("SCRAM-SHA-256", f'{SCRAM} required username="a,b=c" password="s3cret";', "SASL_PLAINTEXT")
    assert client_options(properties).options["sasl_plain_username"] == "a=2Cb=3Dc"


@pytest.mark.parametrize(
    "jaas",
    [
        "s3cret",
        f'{PLAIN} required username="alice" password="s3cret"',
        f'{PLAIN} username="alice" password="s3cret";',
        f'{PLAIN} required username="alice" passwort="s3cret";',
        f'{PLAIN} required username="alice" password="";',
        f'{PLAIN} required username="alice" password="s3cret;',
        f'{PLAIN} required username="alice" password="s3"cret";',
        f'{PLAIN} required username="alice", password="s3cret";',
        f'{SCRAM} required username="alice" password="s3cret";',
    ],
)
def test_wrong_jaas_config_is_refused_without_showing_it(jaas: str) -> None:
    message = refused(sasl("PLAIN", jaas))
    assert f'Fix: give {PLAIN} required username="..." password="...";' in message
    assert "s3" not in message and "alice" not in message


# The login


def test_repr_of_the_settings_contains_no_secret() -> None:
    for properties in (sasl("PLAIN", f'{PLAIN} required username="alice" password="s3cret";'), oauth()):
        login = KafkaLogin(properties)
        provider = login.options.get("sasl_oauth_token_provider")
        shown = [repr(KafkaSettings(("127.0.0.1:1",), login=login)), repr(client_options(properties)), repr(provider)]
        shown += [repr(provider._source)] if provider else []
        assert PASSWORD not in "".join(shown)
