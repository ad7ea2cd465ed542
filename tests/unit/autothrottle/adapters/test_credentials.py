"""Credentials that change while a process runs: each kind is read again, and a faulty file changes nothing."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autothrottle.adapters.credentials import (
    CredentialFiles,
    CredentialWatch,
    ServiceCertificates,
    TlsFiles,
    Tokens,
    first_expiry,
    pem_expiries,
)
from autothrottle.adapters.datadog import DatadogSettings, read_key_files
from autothrottle.adapters.datadog.client import DatadogClient
from autothrottle.adapters.kafka_admin.login import KafkaLoginFile
from autothrottle.adapters.prometheus import PrometheusSettings
from autothrottle.adapters.prometheus.client import PrometheusClient
from autothrottle.adapters.zookeeper.security import SecurityFiles, ZooKeeperSecurity
from autothrottle.core.exported_metrics import CERTIFICATE_EXPIRY, CREDENTIALS_OK
from autothrottle.core.traffic.exporters import EXPORTERS
from tests.builders import eventually
from tests.paths import CERTIFICATES

SECRETS = ("first-secret-0123456789", "second-secret-0123456789")
FAULTY = "\x00\x1b"


@dataclass(frozen=True)
class Rotation:
    """A kind of credential whose file can be replaced."""

    file: Path
    contents: Sequence[str]
    """Two valid contents."""
    in_use: Callable[[], object]
    """Returns what the process uses now; it differs between the two contents."""
    credentials: Sequence[CredentialFiles]


def pem(name: str) -> str:
    return (CERTIFICATES / f"{name}.pem").read_text("ascii")


def of_services(directory: Path) -> Rotation:
    files = [directory / "cert.pem", directory / "ca.pem"]
    for file, name in zip(files, ("service", "ca"), strict=True):
        file.write_text(pem(name))
    certificates = ServiceCertificates(TlsFiles(str(files[0]), str(files[0]), str(files[1])))
    used = lambda: certificates.current()[0].certificate  # noqa: E731
    return Rotation(files[0], [pem("service"), pem("renewed")], used, [certificates.credentials])


def of_authorities(directory: Path) -> Rotation:
    rotation = of_services(directory)
    certificates = ServiceCertificates(TlsFiles(str(rotation.file), str(rotation.file), str(directory / "ca.pem")))
    used = lambda: certificates.current()[0].authorities  # noqa: E731
    both = pem("ca") + pem("elsewhere")
    return Rotation(directory / "ca.pem", [pem("ca"), both], used, [certificates.credentials])


def of_callers(directory: Path) -> Rotation:
    file = directory / "tokens"
    contents = [f"anna {secret}\n" for secret in SECRETS]
    file.write_text(contents[0])
    tokens = Tokens(str(file))
    used = lambda: [tokens.caller_of(f"Bearer {secret}") is not None for secret in SECRETS]  # noqa: E731
    return Rotation(file, contents, used, [tokens.credentials])


def of_kafka(directory: Path) -> Rotation:
    file = directory / "client.properties"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    contents = [
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={module} required username="a" password="{secret}";\n'
        for secret in SECRETS
    ]
    file.write_text(contents[0])
    login = KafkaLoginFile(str(file))
    return Rotation(file, contents, lambda: login.options["sasl_plain_password"], login.credentials)


def of_kafka_store(directory: Path) -> Rotation:
    """A store that the properties name: the properties themselves do not change."""
    file, properties = directory / "store.pem", directory / "client.properties"
    file.write_text(pem("ca"))
    properties.write_text(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={file}\n")
    login = KafkaLoginFile(str(properties))
    both = pem("ca") + pem("elsewhere")
    used = lambda: login.options["ssl_context"].cert_store_stats()["x509"]  # noqa: E731
    return Rotation(file, [pem("ca"), both], used, login.credentials)


def of_zookeeper(directory: Path) -> Rotation:
    file = directory / "digest"
    contents = [f"autothrottle:{secret}\n" for secret in SECRETS]
    file.write_text(contents[0])
    security = ZooKeeperSecurity(SecurityFiles(digest=str(file)))
    used = lambda: security.login().users  # type: ignore[union-attr]  # noqa: E731
    return Rotation(file, contents, used, security.credentials)


def of_zookeeper_tls(directory: Path) -> Rotation:
    file, certificate = directory / "ca.pem", directory / "client.pem"
    file.write_text(pem("ca"))
    shutil.copy(CERTIFICATES / "client.pem", certificate)
    security = ZooKeeperSecurity(SecurityFiles(str(file), str(certificate), str(certificate)))
    used = lambda: security.tls_context().cert_store_stats()["x509"]  # type: ignore[union-attr]  # noqa: E731
    return Rotation(file, [pem("ca"), pem("ca") + pem("elsewhere")], used, security.credentials)


def of_datadog(directory: Path) -> Rotation:
    file = directory / "app-key"
    file.write_text(f"{SECRETS[0]}\n")
    keys = read_key_files(("api-secret", ""), ("", str(file)))
    assert keys is not None
    client = DatadogClient("test", 1, DatadogSettings("api-secret", SECRETS[0], key_files=keys))

    def used() -> object:
        client._renew_keys()
        assert all("***" in client.shown(f"no such key: {key}") for key in ("api-secret", SECRETS[0]))
        return client.api.configuration.api_key["appKeyAuth"]

    return Rotation(file, [f"{secret}\n" for secret in SECRETS], used, [CredentialFiles("app-key-file", keys)])


def of_prometheus_authorities(directory: Path) -> Rotation:
    file = directory / "ca.pem"
    file.write_text(pem("ca"))
    client = PrometheusClient(PrometheusSettings("https://p", EXPORTERS["jmx"], ca_file=str(file)), 1)

    def used() -> object:
        client._renew_pools()
        return client._pools.connection_pool_kw["ca_cert_data"]

    return Rotation(file, [pem("ca"), pem("ca") + pem("elsewhere")], used, client.credentials)


KINDS = (
    of_services,
    of_authorities,
    of_callers,
    of_kafka,
    of_kafka_store,
    of_zookeeper,
    of_zookeeper_tls,
    of_datadog,
    of_prometheus_authorities,
)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_a_changed_file_is_used_and_a_faulty_one_leaves_the_previous_content_in_use(
    kind: Callable[[Path], Rotation], tmp_path: Path
) -> None:
    rotation = kind(tmp_path)
    watch = CredentialWatch(lambda: rotation.credentials, threading.Event())
    first = rotation.in_use()
    watch.check()
    assert watch.problems == ()
    rotation.file.write_text(FAULTY)
    assert rotation.in_use() == first
    watch.check()
    problems = watch.problems
    assert len(problems) == 1
    problem = problems[0]
    assert problem.startswith("the changed file of ") and "previous content is in use" in problem
    assert str(rotation.file) in problem and not any(secret in problem for secret in SECRETS)
    assert [(sample.metric, sample.value) for sample in watch.samples() if sample.metric is CREDENTIALS_OK].count(
        (CREDENTIALS_OK, 0)
    ) == 1
    rotation.file.write_text(rotation.contents[1])
    second = rotation.in_use()
    assert second != first
    watch.check()
    assert watch.problems == ()
    rotation.file.unlink()  # as between two steps of a renewal
    assert rotation.in_use() == second
    rotation.file.write_text(rotation.contents[0])
    assert rotation.in_use() == first


def test_https_does_not_trust_a_removed_authority_any_more(tmp_path: Path) -> None:
    """A context of OpenSSL can trust further authorities, but cannot forget one: HTTPS did so until its restart."""
    rotation = of_authorities(tmp_path)
    certificates = ServiceCertificates(
        TlsFiles(str(tmp_path / "cert.pem"), str(tmp_path / "cert.pem"), str(rotation.file))
    )
    first = certificates.http_context()
    assert certificates.http_context() is first
    rotation.file.write_text(rotation.contents[1])
    both = certificates.http_context()
    assert both is not first and both.cert_store_stats()["x509"] == 2
    rotation.file.write_text(FAULTY)
    assert certificates.http_context() is both
    rotation.file.write_text(rotation.contents[0])
    assert certificates.http_context().cert_store_stats()["x509"] == 1


def test_a_swap_of_links_as_kubernetes_does_it_is_a_change(tmp_path: Path) -> None:
    """A mounted Secret is a link to a link to a folder. An update replaces the middle link and touches no file."""
    for name, secret in zip(("..1", "..2"), SECRETS, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokens").write_text(f"anna {secret}\n")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "tokens").symlink_to("..data/tokens")
    tokens = Tokens(str(tmp_path / "tokens"))
    assert tokens.caller_of(f"Bearer {SECRETS[0]}")
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    assert tokens.caller_of(f"Bearer {SECRETS[1]}") and not tokens.caller_of(f"Bearer {SECRETS[0]}")


def test_an_emptied_file_of_kafkas_properties_does_not_end_tls_and_logins(tmp_path: Path) -> None:
    """An empty file of properties is valid and means PLAINTEXT. A tool that writes in place empties the file first."""
    rotation = of_kafka(tmp_path)
    rotation.file.write_text("")
    assert rotation.in_use() == SECRETS[0]
    problem = rotation.credentials[0].files.problem
    assert "security.protocol was SASL_PLAINTEXT at the start, and is PLAINTEXT now. Fix: " in problem


def test_properties_that_name_another_store_are_followed_to_it(tmp_path: Path) -> None:
    properties, stores = tmp_path / "client.properties", [tmp_path / "old.pem", tmp_path / "new.pem"]
    for store in stores:
        store.write_text(pem("ca"))
    text = "security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location="
    properties.write_text(f"{text}{stores[0]}\n")
    login = KafkaLoginFile(str(properties))
    properties.write_text(f"{text}{stores[1]}\n")
    options = login.options
    stores[0].unlink()
    assert login.options is options
    stores[1].write_text(pem("ca") + pem("elsewhere"))
    assert login.options["ssl_context"].cert_store_stats()["x509"] == 2


def test_the_exported_expiry_is_that_of_the_first_certificate_in_use(tmp_path: Path) -> None:
    rotation = of_services(tmp_path)
    watch = CredentialWatch(lambda: rotation.credentials, threading.Event())
    watch.check()
    left = {sample.labels: sample.value for sample in watch.samples() if sample.metric is CERTIFICATE_EXPIRY}
    expiries = pem_expiries(tls_cert=pem("service").encode(), tls_ca=pem("ca").encode())
    assert left.keys() == {("tls-cert",), ("tls-ca",)}
    for option, expiry in expiries.items():
        assert left[(option,)] == pytest.approx(expiry.timestamp() - time.time(), abs=60)
    rotation.file.write_text(FAULTY)
    watch.check()
    assert {sample.labels for sample in watch.samples() if sample.metric is CERTIFICATE_EXPIRY} == left.keys()
    expired = pem_expiries(tls_cert=pem("expired").encode())["tls-cert"]
    assert expired < datetime.now(UTC)


def test_an_expired_authority_beside_a_valid_one_does_not_count() -> None:
    now = datetime.now(UTC)
    over, soon, later = now - timedelta(days=9), now + timedelta(days=9), now + timedelta(days=99)
    assert first_expiry([later, over, soon]) == soon
    assert first_expiry([over - timedelta(days=1), over]) == over


def test_the_thread_of_the_watch_reports_a_fault_and_its_end(tmp_path: Path) -> None:
    rotation, stop = of_callers(tmp_path), threading.Event()
    watch = CredentialWatch(lambda: rotation.credentials, stop)
    rotation.file.write_text(FAULTY)
    watch.start()
    try:
        eventually(lambda: watch.problems != (), 10)
    finally:
        stop.set()
