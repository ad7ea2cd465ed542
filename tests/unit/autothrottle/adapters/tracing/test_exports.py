"""The files of an exporter's credentials change, while a real collector with TLS receives its spans."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from opentelemetry.sdk.trace.export import SpanExportResult

from autothrottle.adapters.credentials import CredentialFiles, CredentialWatch
from autothrottle.adapters.tracing.exports import RenewedExporter
from autothrottle.core.exported_metrics import CERTIFICATE_EXPIRY, CREDENTIALS_OK
from autothrottle.ports.telemetry import UNTRACED
from autothrottle.runtime.tracing import Tracing, configure_tracing, export_metrics
from tests.builders import eventually
from tests.paths import CERTIFICATES
from tests.trace_collector import Collector

PREFIX = "OTEL_EXPORTER_OTLP_"
FAULTY = "half a certif"


def pem(name: str) -> bytes:
    return (CERTIFICATES / f"{name}.pem").read_bytes()


class Rotation:
    """A collector with TLS, and the files of its client."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._stack = stack
        self.authorities, self.client = directory / "ca.pem", directory / "client.pem"
        shutil.copy(CERTIFICATES / "ca.pem", self.authorities)
        shutil.copy(CERTIFICATES / "client.pem", self.client)
        self.collector = self.started("server")

    def started(self, name: str, port: int = 0) -> Collector:
        """Return a running collector with a certificate. Its clients need a certificate, too."""
        authorities = pem("ca") + pem("renewed")
        credentials = grpc.ssl_server_credentials([(pem(name), pem(name))], authorities, require_client_auth=True)
        return self._stack.enter_context(Collector(credentials, port))

    def trace(self, tracing: Tracing, *names: str) -> None:
        """Make spans, and wait until the collector has them."""
        for name in names:
            with tracing.tracer.span(name):
                pass
        eventually(lambda: {*names} <= {span.name for span in self.collector.spans})

    def replace(self, file: Path, content: bytes | str) -> None:
        part = file.with_suffix(".part")
        part.write_bytes(content if isinstance(content, bytes) else content.encode())
        part.replace(file)


@pytest.fixture
def rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rotation]:
    for variable in [v for v in os.environ if v.startswith("OTEL_")]:
        monkeypatch.delenv(variable)
    with ExitStack() as stack:
        made = Rotation(tmp_path, stack)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
        monkeypatch.setenv(f"{PREFIX}ENDPOINT", made.collector.endpoint)
        monkeypatch.setenv(f"{PREFIX}CERTIFICATE", str(made.authorities))
        monkeypatch.setenv(f"{PREFIX}CLIENT_CERTIFICATE", str(made.client))
        monkeypatch.setenv(f"{PREFIX}CLIENT_KEY", str(made.client))
        yield made


@pytest.fixture
def tracing(rotation: Rotation) -> Iterator[Tracing]:
    made = configure_tracing("autothrottle-test")
    yield made
    made.close()


def watch_of(credentials: Sequence[CredentialFiles]) -> CredentialWatch:
    watch = CredentialWatch(lambda: credentials, threading.Event())
    watch.check()
    return watch


def test_a_changed_client_certificate_is_used_for_the_next_export(rotation: Rotation, tracing: Tracing) -> None:
    rotation.trace(tracing, "first", "second")
    assert {*rotation.collector.clients} == {"autothrottle"}
    rotation.replace(rotation.client, pem("renewed"))
    rotation.trace(tracing, "third")
    assert rotation.collector.clients[-1] == "renewed"
    assert len(rotation.collector.spans) == 3


def test_a_rotated_authority_of_the_collector_costs_only_the_exports_until_the_file_changes(
    rotation: Rotation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The collector restarts with a certificate of another authority. Exports failed until this process restarted."""
    monkeypatch.setenv(f"{PREFIX}TIMEOUT", "1")
    tracing = configure_tracing("autothrottle-test")
    try:
        rotation.trace(tracing, "with the first authority")
        rotation.collector.__exit__(None, None, None)
        rotation.collector = rotation.started("renewed", rotation.collector.port)
        with tracing.tracer.span("with a stranger"):
            pass
        eventually(lambda: "Traces cannot be exported" in caplog.text)
        rotation.replace(rotation.authorities, pem("renewed"))
        rotation.trace(tracing, "with the second authority")
        assert [span.name for span in rotation.collector.spans] == ["with the second authority"]
    finally:
        tracing.close()


class StubExporter:
    """An exporter that calls a function during an export, and then returns its result."""

    def __init__(self, export: Callable[[], bool]) -> None:
        self._export, self.closed = export, False

    def export(self, data: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS if self._export() else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.closed = True


def test_an_export_that_fails_while_the_files_change_is_repeated_with_the_new_ones(
    rotation: Rotation,
) -> None:
    """The library retries for ten seconds with the authorities that it began with, and then drops up to 512 spans."""

    def fails() -> bool:
        rotation.replace(rotation.authorities, pem("renewed"))
        return False

    stubs = [StubExporter(fails), StubExporter(lambda: True)]
    following = iter(stubs)
    exporter = RenewedExporter("TRACES", lambda credentials: next(following))
    assert exporter.exports("spans")
    assert [stub.closed for stub in stubs] == [True, False]
    exporter.shutdown()
    rotation.replace(rotation.authorities, pem("ca"))
    exporter.exports("spans")
    assert [stub.closed for stub in stubs] == [True, True]


def test_a_faulty_file_is_a_finding_and_the_previous_content_stays_in_use(
    rotation: Rotation, tracing: Tracing, caplog: pytest.LogCaptureFixture
) -> None:
    watch = watch_of(tracing.credentials)
    expiries = [sample.labels for sample in watch.samples() if sample.metric is CERTIFICATE_EXPIRY]
    assert sorted(expiries) == [(f"{PREFIX}CERTIFICATE",), (f"{PREFIX}CLIENT_CERTIFICATE",)]
    for file in (rotation.authorities, rotation.client):
        content = file.read_bytes()
        rotation.replace(file, FAULTY)
        rotation.trace(tracing, f"while {file.name} is faulty")
        watch.check()
        (problem,) = watch.problems
        assert problem.startswith(f"the changed file of {PREFIX}CERTIFICATE is faulty, so the previous content")
        assert str(file) in problem
        assert [sample.value for sample in watch.samples() if sample.metric is CREDENTIALS_OK] == [0]
        rotation.replace(file, content)
        watch.check()
        assert watch.problems == ()
    assert len([record for record in caplog.records if "previous contents stay in use" in record.getMessage()]) == 2


def test_the_halves_of_a_pair_may_change_one_after_the_other(
    rotation: Rotation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate and its key are two files, which a tool replaces one after the other."""
    certificate, key = rotation.client, tmp_path / "client.key"
    shutil.copy(certificate, key)
    monkeypatch.setenv(f"{PREFIX}CLIENT_KEY", str(key))
    tracing = configure_tracing("autothrottle-test")
    try:
        rotation.trace(tracing, "first")
        rotation.replace(certificate, pem("renewed"))
        rotation.trace(tracing, "with the first half")
        assert {*rotation.collector.clients} == {"autothrottle"}
        rotation.replace(key, pem("renewed"))
        rotation.trace(tracing, "with both halves")
        assert rotation.collector.clients[-1] == "renewed"
    finally:
        tracing.close()


def test_traces_and_metrics_share_the_files_of_both_signals(
    rotation: Rotation, tracing: Tracing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    metrics = export_metrics("autothrottle-test", lambda: [], "main")
    metrics.close()
    assert [c.files for c in metrics.credentials] == [c.files for c in tracing.credentials]
    monkeypatch.setenv(f"{PREFIX}METRICS_CERTIFICATE", str(CERTIFICATES / "renewed.pem"))
    metrics = export_metrics("autothrottle-test", lambda: [], "main")
    metrics.close()
    assert [c.option for c in metrics.credentials] == [f"{PREFIX}METRICS_CERTIFICATE"]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"CERTIFICATE": "nowhere.pem"}, f"{PREFIX}CERTIFICATE 'nowhere.pem' holds no PEM certificates"),
        (
            {"TRACES_CLIENT_KEY": str(CERTIFICATES / "ca.pem")},
            f"{PREFIX}TRACES_CLIENT_KEY {str(CERTIFICATES / 'ca.pem')!r} are not a PEM certificate and its private key",
        ),
        ({"CLIENT_KEY": ""}, f"{PREFIX}CLIENT_CERTIFICATE is set alone. Fix: name the client's certificate and its"),
    ],
)
def test_a_faulty_file_at_the_start_turns_tracing_off(
    variables: dict[str, str],
    words: str,
    rotation: Rotation,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(f"{PREFIX}{name}", text)
    tracing = configure_tracing("autothrottle-test")
    assert tracing.tracer is UNTRACED and not tracing.credentials
    (record,) = caplog.records
    assert record.getMessage().startswith("Tracing is off: ") and words in record.getMessage()
    assert record.getMessage().count("Fix: ") == 1


@pytest.mark.parametrize(
    "variables",
    [
        {"ENDPOINT": "http://127.0.0.1:4317"},
        {"ENDPOINT": "127.0.0.1:4317", "TRACES_INSECURE": "true"},
        {"CERTIFICATE": "", "CLIENT_CERTIFICATE": "", "CLIENT_KEY": ""},
    ],
)
def test_an_exporter_without_tls_or_without_files_watches_none(
    variables: dict[str, str], rotation: Rotation, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotation.client.write_text(FAULTY)
    for name, text in variables.items():
        monkeypatch.setenv(f"{PREFIX}{name}", text)
    tracing = configure_tracing("autothrottle-test")
    tracing.close()
    assert tracing.tracer is not UNTRACED and not tracing.credentials
