"""Credentials that change while a process runs: each kind is read again, and a faulty file changes nothing."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autothrottle.adapters.credentials import (
    MOST_UNREADABLE_SECONDS,
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
from autothrottle.adapters.http.login import HttpLogin
from autothrottle.adapters.kafka_admin.login import KafkaLoginFile
from autothrottle.adapters.prometheus import PrometheusSettings
from autothrottle.adapters.prometheus.client import PrometheusClient
from autothrottle.adapters.zookeeper.security import SecurityFiles, ZooKeeperSecurity
from autothrottle.core.access import Caller, Role
from autothrottle.core.errors import Invalid
from autothrottle.core.exported_metrics import CERTIFICATE_EXPIRY, CREDENTIALS_OK
from autothrottle.core.traffic.exporters import EXPORTERS
from autothrottle_client import files as client_files
from autothrottle_client.files import ReloadedFiles
from autothrottle_client.tls import read_pair
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
    return Rotation(files[0], [pem("service"), pem("renewed")], used, certificates.credentials)


def of_authorities(directory: Path) -> Rotation:
    rotation = of_services(directory)
    certificates = ServiceCertificates(TlsFiles(str(rotation.file), str(rotation.file), str(directory / "ca.pem")))
    used = lambda: certificates.current()[0].authorities  # noqa: E731
    both = pem("ca") + pem("elsewhere")
    return Rotation(directory / "ca.pem", [pem("ca"), both], used, certificates.credentials)


def of_callers(directory: Path) -> Rotation:
    file = directory / "tokens"
    contents = [f"anna {secret}\n" for secret in SECRETS]
    file.write_text(contents[0])
    tokens = Tokens(str(file))
    used = lambda: [tokens.caller_of(f"Bearer {secret}") is not None for secret in SECRETS]  # noqa: E731
    return Rotation(file, contents, used, tokens.credentials)


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


def test_the_thread_of_the_watch_reports_a_fault_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_files, "SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(client_files, "PERIOD_SECONDS", 0.01)
    monkeypatch.setattr("autothrottle.adapters.credentials._WATCH_SECONDS", 0.01)
    rotation, stop = of_callers(tmp_path), threading.Event()
    watch = CredentialWatch(lambda: rotation.credentials, stop)
    rotation.file.write_text(FAULTY)
    watch.start()
    try:
        eventually(lambda: watch.problems != (), 10)
    finally:
        stop.set()


FAULTY_FILES: Mapping[str, Callable[[Path, str], object]] = {
    "a line without a token": lambda file, kept: file.write_text(f"{kept}carl\n"),
    "a short token": lambda file, kept: file.write_text(f"{kept}carl short\n"),
    "an unknown role": lambda file, kept: file.write_text(f"{kept}carl {'c' * 32} root\n"),
    "a repeated token": lambda file, kept: file.write_text(f"{kept}{kept}"),
    "bytes that are no text": lambda file, kept: file.write_bytes(kept.encode() + b"carl \xff\xfe\x00\n"),
    "a line of another encoding": lambda file, kept: file.write_bytes(kept.encode() + "jürgen x\n".encode("utf-16")),
    "no end of the last line": lambda file, kept: file.write_text(f"{kept}carl 012345"),
}
"""Fault -> writes a file with a valid line and this fault."""


@pytest.mark.parametrize("fault", FAULTY_FILES)
def test_a_removed_token_is_refused_whatever_the_other_lines_are(fault: str, tmp_path: Path) -> None:
    """A faulty line kept the whole previous file in use. A leaked token that had been removed still wrote, for ever."""
    file = tmp_path / "tokens"
    file.write_text(f"anna {SECRETS[0]}\nbert {SECRETS[1]} viewer\n")
    tokens = Tokens(str(file))
    watch = CredentialWatch(lambda: tokens.credentials, threading.Event())
    FAULTY_FILES[fault](file, f"bert {SECRETS[1]} viewer\n")
    assert tokens.caller_of(f"Bearer {SECRETS[0]}") is None
    assert tokens.caller_of(f"Bearer {SECRETS[1]}") == Caller("bert", Role.VIEWER)
    watch.check()
    (problem,) = watch.problems
    assert problem.startswith("the changed file of api-tokens-file is faulty, so only its valid part is in use: ")
    assert not any(secret in problem for secret in SECRETS)


@pytest.mark.parametrize("content", ["", "# none\n", "anna\n"])
def test_a_readable_file_without_tokens_refuses_all(content: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"anna {SECRETS[0]}\n")
    tokens = Tokens(str(file))
    file.write_text(content)
    assert tokens.caller_of(f"Bearer {SECRETS[0]}") is None and tokens.of_services() == ""
    assert tokens.credentials[0].problem


def test_a_lower_role_counts_beside_a_faulty_line_and_of_two_roles_the_lower_one(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"anna {SECRETS[0]} service\n")
    tokens = Tokens(str(file))
    file.write_text(f"anna {SECRETS[0]} viewer\nbert\n")
    assert tokens.caller_of(f"Bearer {SECRETS[0]}") == Caller("anna", Role.VIEWER)
    file.write_text(f"anna {SECRETS[0]} service\nanna {SECRETS[0]} viewer\n")
    assert tokens.caller_of(f"Bearer {SECRETS[0]}") == Caller("anna", Role.VIEWER)


def make_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def make_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def make_endless(file: Path) -> None:
    file.unlink()
    os.truncate(os.open(file, os.O_WRONLY | os.O_CREAT), 1 << 30)


def make_broken_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


UNREADABLE: Mapping[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "a directory": make_directory,
    "a pipe": make_pipe,
    "endless": make_endless,
    "a broken link": make_broken_link,
}


@pytest.mark.parametrize("fault", UNREADABLE)
def test_an_unreadable_tokens_file_refuses_all_after_a_minute(fault: str, tmp_path: Path) -> None:
    """An unreadable file left a removed token in use for ever. Within a minute it is nothing but a finding."""
    file, now = tmp_path / "tokens", [1000.0]
    text = f"anna {SECRETS[0]}\n"
    file.write_text(text)
    tokens = Tokens(str(file), lambda: now[0])
    watch = CredentialWatch(lambda: tokens.credentials, threading.Event())
    UNREADABLE[fault](file)
    now[0] += MOST_UNREADABLE_SECONDS
    assert tokens.caller_of(f"Bearer {SECRETS[0]}") and not tokens.problem
    watch.check()
    assert "so the previous content is in use, for 60 s in all: " in watch.problems[0]
    now[0] += 1
    assert tokens.caller_of(f"Bearer {SECRETS[0]}") is None and tokens.current() == {}
    watch.check()
    assert watch.problems == (tokens.problem,)
    assert "could not be read since " in tokens.problem and "nothing in it counts any more" in tokens.problem
    file.rmdir() if file.is_dir() else file.unlink(missing_ok=True)
    file.write_text(text)
    assert tokens.caller_of(f"Bearer {SECRETS[0]}") and not tokens.problem


def followed(files: ReloadedFiles[Any]) -> ReloadedFiles[Any]:
    """Let the files be followed by a thread that has ended, so that the test reads in its place."""
    ended = threading.Event()
    ended.set()
    files.follow(ended)
    return files


def test_changed_content_of_a_followed_file_counts_after_two_equal_readings_a_second_apart(tmp_path: Path) -> None:
    """A writer that works in place is read in the middle. Its half file would refuse the tokens of the other half."""
    file, now = tmp_path / "tokens", [1000.0]
    file.write_text(f"anna {SECRETS[0]}\n")
    tokens = Tokens(str(file), lambda: now[0])
    files = followed(tokens.credentials[0].files)
    file.write_text("")
    for _ in range(2):
        files.check()
        assert tokens.caller_of(f"Bearer {SECRETS[0]}")
        now[0] += 0.5
    file.write_text(f"bert {SECRETS[1]}\n")
    files.check()
    now[0] += 0.9
    files.check()
    assert tokens.caller_of(f"Bearer {SECRETS[0]}")
    now[0] += 0.1
    files.check()
    assert tokens.caller_of(f"Bearer {SECRETS[1]}") and not tokens.caller_of(f"Bearer {SECRETS[0]}")


def test_content_that_a_writer_replaces_while_it_is_loaded_does_not_count(tmp_path: Path) -> None:
    """Settled content was parsed from the disk after its second reading, when it could be half of the next content.

    The tokens of the other half were refused for a second.
    """
    file, now, next_contents = tmp_path / "tokens", [1000.0], [""]
    file.write_text("first")

    def load() -> str:
        file.write_text(next_contents.pop() or file.read_text()) if next_contents else None
        return file.read_text()

    files = followed(ReloadedFiles((str(file),), load, clock=lambda: now[0]))
    file.write_text("second")
    next_contents.append("half")
    contents = []
    for _ in range(2):
        files.check()
        now[0] += 1
        contents.append(files.current()[0])
    file.write_text("third")
    for _ in range(2):
        files.check()
        now[0] += 1
        contents.append(files.current()[0])
    assert contents == ["first", "first", "first", "third"]


def test_a_certificate_and_its_key_may_be_in_one_pipe() -> None:
    """`<(...)` of bash was read once for the content, and was empty for the check that followed."""
    content = (CERTIFICATES / "client.pem").read_bytes()
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    path = f"/dev/fd/{reading}"
    try:
        assert read_pair(path, path) == (content, content)
    finally:
        os.close(reading)


def test_a_file_that_is_too_large_to_follow_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was accepted, and a minute later every token was refused, because no further reading was complete."""
    file = tmp_path / "tokens"
    file.write_text(f"anna {SECRETS[0]}\n")
    monkeypatch.setattr(client_files, "_MOST_BYTES", 10)
    with pytest.raises(Invalid, match=r"tokens' has more than 0 MiB. Fix: name the right file"):
        Tokens(str(file))


def test_a_byte_order_mark_is_no_part_of_a_secret(tmp_path: Path) -> None:
    """Editors of Windows write one. The configuration accepted the key, and its reader in use refused it."""
    file = tmp_path / "secret"
    file.write_text("\ufeffadmin:password\r\n", "utf-8")
    login = ZooKeeperSecurity(SecurityFiles(sasl=str(file))).login()
    keys = read_key_files(("", "app"), (str(file), ""))
    assert login and login.users == (("admin", "password"),)
    assert keys and keys.current()[0] == ("admin:password", "app")
    assert HttpLogin("scrape", token_file=str(file)).headers("scrape-token-file") == {
        "authorization": "Bearer admin:password"
    }


def test_content_that_never_settles_counts_as_unreadable(tmp_path: Path) -> None:
    file, now = tmp_path / "tokens", [1000.0]
    file.write_text(f"anna {SECRETS[0]}\n")
    tokens = Tokens(str(file), lambda: now[0])
    files = followed(tokens.credentials[0].files)
    for number in range(5):
        file.write_text(f"anna {SECRETS[0]}\n# {number}\n")
        files.check()
        now[0] += MOST_UNREADABLE_SECONDS / 4
    assert tokens.caller_of(f"Bearer {SECRETS[0]}") is None


def test_a_mount_that_hangs_delays_no_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request read the tokens file itself, and HTTP and the probes hung with its mount. Now only a thread reads."""
    file, now, hangs, goes_on = tmp_path / "tokens", [1000.0], threading.Event(), threading.Event()
    file.write_text(f"anna {SECRETS[0]}\n")
    tokens, stop = Tokens(str(file), lambda: now[0]), threading.Event()
    digest = client_files._digest

    def hanging(path: str) -> str:
        hangs.set()
        assert goes_on.wait(60)
        return digest(path)

    monkeypatch.setattr(client_files, "_digest", hanging)
    watch = CredentialWatch(lambda: tokens.credentials, stop)
    watch.start()
    try:
        assert hangs.wait(60)
        with ThreadPoolExecutor(1) as caller:
            assert caller.submit(tokens.caller_of, f"Bearer {SECRETS[0]}").result(60)
        now[0] += 30
        watch.check()
        assert "so the last content is in use, for 60 s in all: the disk or the mount" in watch.problems[0]
        now[0] += 31
        assert tokens.caller_of(f"Bearer {SECRETS[0]}") is None
        goes_on.set()
        eventually(lambda: tokens.caller_of(f"Bearer {SECRETS[0]}") is not None, 60)
    finally:
        goes_on.set()
        stop.set()


def test_of_a_readable_file_of_authorities_only_its_certificates_count(tmp_path: Path) -> None:
    """A faulty block kept the whole previous file in use, so that a removed authority could still sign callers."""
    rotation = of_authorities(tmp_path)
    files = TlsFiles(str(tmp_path / "cert.pem"), str(tmp_path / "cert.pem"), str(rotation.file))
    rotation.file.write_text(rotation.contents[1])
    certificates = ServiceCertificates(files)
    assert certificates.http_context().cert_store_stats()["x509"] == 2
    other = pem("elsewhere")[pem("elsewhere").index("-----BEGIN CERTIFICATE") :]
    broken = other.replace("MII", "!!!", 1)
    for text in (f"# für alle\n{pem('ca')}{broken}", pem("ca") + other[:200]):
        rotation.file.write_text(text)
        assert certificates.http_context().cert_store_stats()["x509"] == 1
        assert certificates.current()[0].authorities.count(b"BEGIN") == 1
        problems = [credential.problem for credential in certificates.credentials]
        assert "only its valid part is in use" in problems[1] and "1 of 2 certificates are faulty" in problems[1]
        rotation.file.write_text(rotation.contents[1])
        assert certificates.http_context().cert_store_stats()["x509"] == 2


def test_a_removed_authority_is_not_trusted_while_the_own_key_is_faulty(tmp_path: Path) -> None:
    rotation = of_authorities(tmp_path)
    rotation.file.write_text(rotation.contents[1])
    files = TlsFiles(str(tmp_path / "cert.pem"), str(tmp_path / "cert.pem"), str(rotation.file))
    certificates = ServiceCertificates(files)
    (tmp_path / "cert.pem").write_text(FAULTY)
    rotation.file.write_text(rotation.contents[0])
    assert certificates.http_context().cert_store_stats()["x509"] == 1
    assert certificates.current()[0].certificate == pem("service").encode()
