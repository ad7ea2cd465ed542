"""Truststores and keystores: what a handshake proves about the context that they make."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    KeySerializationEncryption,
    NoEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.x509 import Certificate, load_pem_x509_certificate, load_pem_x509_certificates

from autothrottle.adapters.kafka_admin.key_stores import tls_context
from autothrottle.core.errors import Invalid
from tests.paths import CERTIFICATES

TLS = CERTIFICATES
PASSWORD = "s3cret"


def tls(**properties: str | Path) -> dict[str, str]:
    """TLS properties by name, with `_` for dots."""
    given = {name.replace("_", "."): str(value) for name, value in properties.items()}
    return {"ssl.truststore.location": str(TLS / "ca.pem"), **given}


def refused(properties: dict[str, str]) -> str:
    with pytest.raises(Invalid) as caught:
        tls_context(properties)
    message = str(caught.value)
    assert "Fix: " in message and PASSWORD not in message
    assert caught.value.__cause__ is None
    return message


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
    client_side = client.wrap_bio(to_client, to_server, server_hostname=host)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client_side, server_side]
    for _ in range(20):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            client_side.write(b"x")
            assert server_side.read(1) == b"x"
            return server_side
    raise AssertionError("the handshake did not end")


def certificate(name: str) -> Certificate:
    return load_pem_x509_certificate((TLS / name).read_bytes())


def encrypted(password: str = PASSWORD) -> KeySerializationEncryption:
    return BestAvailableEncryption(password.encode()) if password else NoEncryption()


def truststore(directory: Path, password: str = PASSWORD, name: str = "ca.pem") -> Path:
    """Write a truststore as `keytool -importcert` does."""
    file = directory / "truststore.p12"
    entry = PKCS12Certificate(certificate(name), b"ca")
    file.write_bytes(serialize_java_truststore([entry], encrypted(password)))
    return file


def keystore(directory: Path, password: str = PASSWORD) -> Path:
    """Write a keystore with a key and its certificate."""
    file, pem = directory / "keystore.p12", (TLS / "client.pem").read_bytes()
    key, chain = load_pem_private_key(pem, None), load_pem_x509_certificates(pem)
    file.write_bytes(
        pkcs12.serialize_key_and_certificates(b"client", key, chain[0], chain[1:], encrypted(password))  # type: ignore[arg-type]
    )
    return file


# Truststores


def test_only_the_truststore_decides_which_brokers_are_trusted() -> None:
    shake_hands(tls_context(tls()), server())
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tls_context({}), server())


@pytest.mark.parametrize("kind", ["PKCS12", "pkcs12", "JKS", None])
def test_truststore_in_pkcs12_is_trusted(tmp_path: Path, kind: str | None) -> None:
    """Java reads PKCS 12 as its default type JKS, too, so that many files of properties have no type or a wrong one."""
    properties = tls(ssl_truststore_location=truststore(tmp_path), ssl_truststore_password=PASSWORD)
    shake_hands(tls_context(properties | ({"ssl.truststore.type": kind} if kind else {})), server())


def test_truststore_without_a_password_is_trusted(tmp_path: Path) -> None:
    shake_hands(tls_context(tls(ssl_truststore_location=truststore(tmp_path, ""))), server())


def test_each_certificate_of_a_truststore_is_trusted_as_in_java(tmp_path: Path) -> None:
    """OpenSSL trusts only authorities that signed themselves: a truststore with the broker's certificate was no use."""
    stored = truststore(tmp_path, name="server.pem")
    shake_hands(tls_context(tls(ssl_truststore_location=stored, ssl_truststore_password=PASSWORD)), server())
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(
            tls_context(tls(ssl_truststore_location=stored, ssl_truststore_password=PASSWORD)), server("renewed.pem")
        )


def test_broker_host_name_is_checked_unless_disabled() -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tls_context(tls()), server("elsewhere.pem"))
    shake_hands(tls_context(tls(ssl_endpoint_identification_algorithm="")), server("elsewhere.pem"))


def test_untrusted_broker_is_refused_even_without_host_name_check() -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tls_context({"ssl.endpoint.identification.algorithm": ""}), server())


# Keystores


def test_client_presents_the_certificate_of_its_keystore(tmp_path: Path) -> None:
    stored = tls(ssl_keystore_location=keystore(tmp_path), ssl_keystore_password=PASSWORD)
    for properties in (
        tls(ssl_keystore_location=TLS / "client.pem"),
        tls(ssl_keystore_location=TLS / "client-encrypted.pem", ssl_key_password="open-sesame"),
        stored,
        {**stored, "ssl.key.password": PASSWORD, "ssl.keystore.type": "PKCS12"},
    ):
        shown = shake_hands(tls_context(properties), server(client_needed=True)).getpeercert()
        assert shown and (("commonName", "autothrottle"),) in shown["subject"]


@pytest.mark.parametrize("separator", ["\n", " ", ""])
def test_stores_in_the_properties_may_be_on_one_line(separator: str) -> None:
    def one_line(pem: str) -> str:
        return separator.join(pem.split("\n")) if separator != "" else re.sub(r"(?<![-])\n(?![-])", "", pem)

    pem = (TLS / "client.pem").read_text()
    start = pem.index("-----BEGIN CERT")
    properties = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": one_line(pem[:start]),
        "ssl.keystore.certificate.chain": one_line(pem[start:]),
        "ssl.truststore.certificates": one_line((TLS / "ca.pem").read_text()),
    }
    assert shake_hands(tls_context(properties), server(client_needed=True)).getpeercert()


def test_client_without_a_keystore_presents_no_certificate() -> None:
    with pytest.raises(ssl.SSLError):
        shake_hands(tls_context(tls()), server(client_needed=True))


def test_a_private_key_is_never_in_a_file_of_a_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    load = ssl.SSLContext.load_cert_chain

    def recorded(context: ssl.SSLContext, path: str, **more: str) -> None:
        paths.append(os.readlink(path))
        load(context, path, **more)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", recorded)
    tls_context(tls(ssl_keystore_location=keystore(tmp_path), ssl_keystore_password=PASSWORD))
    assert paths == ["/memfd:key (deleted)"]


def test_without_files_in_memory_a_private_key_is_in_a_file_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    load = ssl.SSLContext.load_cert_chain

    def recorded(context: ssl.SSLContext, path: str, **more: str) -> None:
        modes.append(os.stat(path).st_mode & 0o777)
        load(context, path, **more)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", recorded)
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tls_context(tls(ssl_keystore_location=TLS / "client.pem"))
    assert modes == [0o600] and list(tmp_path.iterdir()) == []


# Versions


def test_only_enabled_tls_versions_are_used() -> None:
    old = server()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake_hands(tls_context(tls()), old).version() == "TLSv1.2"
    assert shake_hands(tls_context(tls(ssl_protocol="TLSv1.2")), server()).version() == "TLSv1.2"
    assert shake_hands(tls_context(tls(ssl_protocol="TLS")), server()).version() == "TLSv1.3"
    with pytest.raises(ssl.SSLError):
        shake_hands(tls_context(tls(ssl_enabled_protocols="TLSv1.3")), old)


# Refusals


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (tls(ssl_truststore_type="BCFKS"), "ssl.truststore.type 'BCFKS' is not supported; it must be PEM or PKCS12"),
        (
            tls(ssl_truststore_type="PKCS12"),
            "is a PEM file, but ssl.truststore.type is PKCS12. Fix: ssl.truststore.type=PEM",
        ),
        (tls(ssl_truststore_password=PASSWORD), "is PEM, where only ssl.key.password counts"),
        (tls(ssl_enabled_protocols="TLSv1.1,TLSv1.2"), "ssl.enabled.protocols 'TLSv1.1,TLSv1.2'"),
        (tls(ssl_protocol="TLSv1.1"), "ssl.protocol 'TLSv1.1' is not supported"),
        (tls(ssl_protocol="TLSv1.2", ssl_enabled_protocols="TLSv1.3"), "allows none of ssl.enabled.protocols TLSv1.3"),
        (tls(ssl_endpoint_identification_algorithm="LDAPS"), "algorithm 'LDAPS' is not supported"),
        (tls(ssl_truststore_location="/no/such/file"), "'/no/such/file' cannot be read: No such file"),
        (tls(ssl_truststore_location=__file__), "is neither a PEM nor a PKCS 12 file"),
        (tls(ssl_truststore_location=__file__, ssl_truststore_type="PEM"), "is not a PEM file, but"),
        (tls(ssl_keystore_location=TLS / "ca.pem"), "has no private key with its certificate"),
        (tls(ssl_keystore_location=TLS / "client-encrypted.pem"), "or ssl.key.password does not decrypt it"),
        (
            tls(ssl_keystore_location=TLS / "client-encrypted.pem", ssl_key_password=PASSWORD),
            "or ssl.key.password does not decrypt it",
        ),
        (tls(ssl_keystore_key="-----BEGIN s3cret"), "only one of ssl.keystore.key and"),
        (
            tls(ssl_keystore_key="-----BEGIN s3cret", ssl_keystore_certificate_chain="x"),
            "ssl.keystore.key has no private key",
        ),
        (tls(ssl_truststore_certificates="x"), "ssl.truststore.location and ssl.truststore.certificates are both"),
        ({"ssl.truststore.certificates": "x"}, "contains no valid certificate"),
    ],
)
def test_wrong_value_is_refused_with_the_range_and_the_fix(properties: dict[str, str], expected: str) -> None:
    assert expected in refused(properties)


@pytest.mark.parametrize("magic", [b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"])
@pytest.mark.parametrize("store", ["truststore", "keystore"])
def test_store_in_jks_is_refused_with_the_command_that_converts_it(tmp_path: Path, store: str, magic: bytes) -> None:
    file = tmp_path / "store.jks"
    file.write_bytes(magic + bytes(100))
    message = refused({f"ssl.{store}.location": str(file), f"ssl.{store}.password": PASSWORD})
    converted = tmp_path / "store.p12"
    assert (
        f"Fix: `keytool -importkeystore -srckeystore {file} -destkeystore {converted} -deststoretype PKCS12`, "
        f"then ssl.{store}.location={converted} and ssl.{store}.type=PKCS12" in message
    )


def test_pkcs12_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path) -> None:
    trust, key = truststore(tmp_path), keystore(tmp_path)
    damaged = tmp_path / "damaged.p12"
    damaged.write_bytes(trust.read_bytes()[:-20])
    assert "ssl.truststore.password does not open it" in refused(
        tls(ssl_truststore_location=trust, ssl_truststore_password="wrong")
    )
    assert "ssl.truststore.password is not given" in refused(tls(ssl_truststore_location=trust))
    assert "it is damaged" in refused(tls(ssl_truststore_location=damaged, ssl_truststore_password=PASSWORD))
    assert "is not a PEM file, but ssl.truststore.type is PEM" in refused(
        tls(ssl_truststore_location=trust, ssl_truststore_type="PEM")
    )
    assert "has no private key with its certificate. Fix: name a keystore" in refused(
        tls(ssl_keystore_location=trust, ssl_keystore_password=PASSWORD)
    )
    assert "ssl.key.password is not ssl.keystore.password" in refused(
        tls(ssl_keystore_location=key, ssl_keystore_password=PASSWORD, ssl_key_password="other")
    )
