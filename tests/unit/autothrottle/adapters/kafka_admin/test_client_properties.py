"""Kafka's client properties: how files are read, what reaches kafka-python, and that no message contains a secret."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.kafka_admin.client_properties import SUPPORTED, client_options, read_client_properties
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.core.errors import Invalid
from tests.paths import CERTIFICATES

TLS = CERTIFICATES
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def write(directory: Path, content: str) -> str:
    file = directory / "client.properties"
    file.write_bytes(content.encode("latin-1"))
    return str(file)


def options_of(directory: Path, content: str) -> Mapping[str, object]:
    return client_options(read_client_properties(write(directory, content)))


def refused(properties: Mapping[str, str]) -> str:
    with pytest.raises(Invalid) as caught:
        client_options(properties)
    message = str(caught.value)
    assert "Fix: " in message
    assert caught.value.__cause__ is None
    return message


def sasl(mechanism: str, jaas: str, protocol: str = "SASL_PLAINTEXT") -> dict[str, str]:
    return {"security.protocol": protocol, "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


def tls(**properties: str | Path) -> dict[str, str]:
    """TLS properties by name, with `_` for dots."""
    given = {name.replace("_", "."): str(value) for name, value in properties.items()}
    return {"security.protocol": "SSL", "ssl.truststore.location": str(TLS / "ca.pem"), **given}


def context(properties: Mapping[str, str]) -> ssl.SSLContext:
    made = client_options(properties)["ssl_context"]
    assert isinstance(made, ssl.SSLContext)
    return made


def server(pem: str = "server.pem", client_needed: bool = False) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(TLS / pem)
    if client_needed:
        made.verify_mode = ssl.CERT_REQUIRED
        made.load_verify_locations(TLS / "ca.pem")
    return made


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "127.0.0.1") -> ssl.SSLObject:
    """Do a handshake in memory; return the server's side after both sides are done and one byte has passed."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [ours, theirs]
    for _ in range(20):
        for port in list(waiting):
            try:
                port.do_handshake()
                waiting.remove(port)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            ours.write(b"x")
            assert theirs.read(1) == b"x"
            return theirs
    raise AssertionError("the handshake did not end")


# Java's format


def test_file_is_parsed_as_in_java(tmp_path: Path) -> None:
    content = (
        "# a comment\n! another = one\n\n"
        "  client.id = a b \\\n     c\r\n"
        "security.protocol:SASL_PLAINTEXT\n"
        "sasl.mechanism   PLAIN\r"
        'sasl.jaas.config=x required username="\\u0041" password="p\\\\=\\"#";'
    )
    assert read_client_properties(write(tmp_path, content)) == {
        "client.id": "a b c",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": 'x required username="A" password="p\\="#";',
    }


@given(st.sampled_from(SUPPORTED), st.text(st.characters(max_codepoint=0xFFFF, blacklist_categories=["Cs"])))
def test_values_escaped_as_java_does_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: str
) -> None:
    escaped = "".join(f"\\u{ord(c):04x}" for c in value)
    file = write(tmp_path_factory.mktemp("properties"), f"{name}={escaped}\n")
    assert read_client_properties(file) == {name: value}


def test_last_line_of_a_repeated_name_wins_as_in_java(tmp_path: Path) -> None:
    assert read_client_properties(write(tmp_path, "client.id=a\nclient.id=b\n")) == {"client.id": "b"}


def test_empty_file_means_plaintext(tmp_path: Path) -> None:
    assert options_of(tmp_path, "") == {"security_protocol": "PLAINTEXT"}


def test_error_names_an_unreadable_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(Invalid, match=r"cannot be read: .+ Fix: ") as caught:
            read_client_properties(str(path))
        assert str(path) in str(caught.value)


# Names


def test_every_supported_property_reaches_the_client(tmp_path: Path) -> None:
    pem = (TLS / "client.pem").read_text()
    key, chain = pem[: pem.index("-----BEGIN CERT")], pem[pem.index("-----BEGIN CERT") :]
    every = {
        "client.id": "throttle",
        "connections.max.idle.ms": "60000",
        "sasl.jaas.config": f'{PLAIN} required username="u" password="p";',
        "sasl.mechanism": "PLAIN",
        "security.protocol": "SASL_SSL",
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.endpoint.identification.algorithm": "",
        "ssl.key.password": "open-sesame",
        "ssl.keystore.certificate.chain": chain,
        "ssl.keystore.key": key,
        "ssl.keystore.location": str(TLS / "client-encrypted.pem"),
        "ssl.keystore.type": "PEM",
        "ssl.truststore.certificates": (TLS / "ca.pem").read_text(),
        "ssl.truststore.location": str(TLS / "ca.pem"),
        "ssl.truststore.type": "PEM",
    }
    assert every.keys() == set(SUPPORTED)
    inline = {"ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.truststore.certificates", "ssl.key.password"}
    stored = {"ssl.keystore.location", "ssl.truststore.location"}
    for left_out in (inline - {"ssl.key.password"}, stored):
        options = client_options({name: value for name, value in every.items() if name not in left_out})
        assert (options["client_id"], options["connections_max_idle_ms"]) == ("throttle", 60000)
        assert (options["security_protocol"], options["sasl_mechanism"]) == ("SASL_SSL", "PLAIN")
        assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("u", "p")
        made = options["ssl_context"]
        assert isinstance(made, ssl.SSLContext)
        assert (made.minimum_version, made.check_hostname) == (ssl.TLSVersion.TLSv1_3, False)
        assert shake_hands(made, server(client_needed=True), "any.example").getpeercert()


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("bootstrap.servers", "bootstrap-servers"),
        ("bootstrap.controllers", "kafka-bootstrap-controllers"),
        ("request.timeout.ms", "kafka-api-request-timeout"),
    ],
)
def test_property_with_an_own_option_is_refused_with_its_name(tmp_path: Path, name: str, option: str) -> None:
    assert f"give the option {option} instead" in refused({name: "s3cret"})


@pytest.mark.parametrize("name", ["ssl.cipher.suites", "sasl.login.class", "Security.Protocol", "acks", "", "s\x00"])
def test_unsupported_property_is_refused_by_name(tmp_path: Path, name: str) -> None:
    message = refused({name: "s3cret"})
    assert repr(name) in message and "supported are client.id, " in message and "s3cret" not in message
    if name.isprintable() and name:
        with pytest.raises(Invalid, match="is not a supported property"):
            read_client_properties(write(tmp_path, f"{name}=s3cret\n"))


@pytest.mark.parametrize(
    "properties",
    [
        {"sasl.mechanism": "PLAIN"},
        {"security.protocol": "SSL", "sasl.mechanism": "PLAIN"},
        {"ssl.truststore.location": "/s3cret"},
        sasl("PLAIN", f"{PLAIN} required username=u password=s3cret;") | {"ssl.key.password": "s3cret"},
    ],
)
def test_property_that_the_protocol_does_not_use_is_refused(properties: dict[str, str]) -> None:
    message = refused(properties)
    assert "does not use it" in message and "s3cret" not in message


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"security.protocol": "TLS"}, "security.protocol 'TLS'"),
        ({"connections.max.idle.ms": "0"}, "connections.max.idle.ms '0'"),
        ({"connections.max.idle.ms": "1m"}, "connections.max.idle.ms '1m'"),
        (sasl("GSSAPI", "x"), "sasl.mechanism 'GSSAPI' is not supported; it must be one of PLAIN, SCRAM-SHA-256"),
        (tls(ssl_truststore_type="JKS"), "ssl.truststore.type 'JKS' is not supported; it must be PEM"),
        (tls(ssl_keystore_type="pkcs12"), "ssl.keystore.type 'PKCS12' is not supported; it must be PEM"),
        (tls(ssl_enabled_protocols="TLSv1.1,TLSv1.2"), "ssl.enabled.protocols 'TLSv1.1,TLSv1.2'"),
        (tls(ssl_endpoint_identification_algorithm="LDAPS"), "algorithm 'LDAPS' is not supported"),
        (tls(ssl_truststore_location="/no/such/file"), "'/no/such/file' cannot be read: No such file"),
        (tls(ssl_truststore_location=__file__), "is not a PEM file"),
        (tls(ssl_keystore_location=TLS / "ca.pem"), "has no private key with its certificate"),
        (tls(ssl_keystore_location=TLS / "client-encrypted.pem"), "or ssl.key.password does not decrypt it"),
        (
            tls(ssl_keystore_location=TLS / "client-encrypted.pem", ssl_key_password="s3cret"),
            "or ssl.key.password does not decrypt it",
        ),
        (tls(ssl_keystore_key="-----BEGIN s3cret"), "only one of ssl.keystore.key and"),
        (
            tls(ssl_keystore_key="-----BEGIN s3cret", ssl_keystore_certificate_chain="x"),
            "ssl.keystore.key has no private key",
        ),
        (tls(ssl_truststore_certificates="x"), "ssl.truststore.location and ssl.truststore.certificates are both"),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": "x"}, "contains no valid certificate"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is not given"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.jaas.config is not given"),
    ],
)
def test_wrong_value_is_refused_with_the_range_and_the_fix(properties: dict[str, str], expected: str) -> None:
    message = refused(properties)
    assert expected in message
    assert "s3cret" not in message


# SASL


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
    assert client_options(sasl(mechanism, jaas)) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism.upper(),
        "sasl_plain_username": "alice",
        "sasl_plain_password": "s3cret",
    }


@given(st.text(min_size=1), st.sampled_from("\"'"))
def test_any_password_can_be_quoted(password: str, quote: str) -> None:
    quoted = password.replace("\\", "\\\\").replace(quote, f"\\{quote}")
    jaas = f"{PLAIN} required username=alice password={quote}{quoted}{quote};"
    assert client_options(sasl("PLAIN", jaas))["sasl_plain_password"] == password


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


def test_repr_of_the_settings_contains_no_secret() -> None:
    jaas = f'{PLAIN} required username="alice" password="s3cret";'
    assert "s3cret" not in repr(KafkaSettings(("127.0.0.1:1",), client_properties=sasl("PLAIN", jaas)))


# TLS


def test_only_the_truststore_decides_which_brokers_are_trusted() -> None:
    shake_hands(context(tls()), server())
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context({"security.protocol": "SSL"}), server())


def test_broker_host_name_is_checked_unless_disabled() -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context(tls()), server("elsewhere.pem"))
    shake_hands(context(tls(ssl_endpoint_identification_algorithm="")), server("elsewhere.pem"))


def test_untrusted_broker_is_refused_even_without_host_name_check() -> None:
    properties = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""}
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context(properties), server())


@pytest.mark.parametrize(
    "keystore",
    [
        tls(ssl_keystore_location=TLS / "client.pem"),
        tls(ssl_keystore_location=TLS / "client-encrypted.pem", ssl_key_password="open-sesame"),
    ],
)
def test_client_presents_the_certificate_of_its_keystore(keystore: dict[str, str]) -> None:
    shown = shake_hands(context(keystore), server(client_needed=True)).getpeercert()
    assert shown and (("commonName", "autothrottle"),) in shown["subject"]


def test_client_without_a_keystore_presents_no_certificate() -> None:
    with pytest.raises(ssl.SSLError):
        shake_hands(context(tls()), server(client_needed=True))


def test_only_enabled_tls_versions_are_used() -> None:
    old = server()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake_hands(context(tls()), old).version() == "TLSv1.2"
    with pytest.raises(ssl.SSLError):
        shake_hands(context(tls(ssl_enabled_protocols="TLSv1.3")), old)
