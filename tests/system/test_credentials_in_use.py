"""`autothrottle run` during a reassignment: its credentials are replaced, and none of them is shown anywhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pyarrow.parquet
import pytest
from kazoo.client import KazooClient

from autothrottle.runtime.configuration_reader import parse
from autothrottle_lab.emulators.datadog import APP_KEY
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.builders import eventually
from tests.paths import CERTIFICATES
from tests.system.simulated_recovery import SimulatedRecovery
from tests.trace_collector import Collector

SECRETS = {
    "api-key-file": "canary-datadog-1",
    "the next api-key-file": "canary-datadog-2",
    "app-key-file": APP_KEY,
    "api-tokens-file": "canary-token-0123456789-1",
    "the next api-tokens-file": "canary-token-0123456789-2",
    "zk-digest-file": "canary-digest-1",
    "the next zk-digest-file": "canary-digest-2",
    "sasl.jaas.config": "canary-kafka-1",
    "the next sasl.jaas.config": "canary-kafka-2",
    "prometheus-token-file": "canary-prometheus",
    "OTEL_EXPORTER_OTLP_HEADERS": "canary-collector",
    "AWS_SECRET_ACCESS_KEY": "canary-object-store",
    "a URI": "canary-uri",
}
"""Credential -> its value in this test."""

COLLECTOR_CA = "OTEL_EXPORTER_OTLP_CERTIFICATE"

PLACES = (
    "the log at debug",
    "the log of a refused start: decisions",
    "the log of a refused start: prometheus-url",
    "the log of a refused start: datadog-url",
    "the log of a refused start: kafka-client-config",
    "the log of a refused start: OTLP",
    "the help with variables",
    "the configuration's repr",
    "the list of processes",
    "the decision log",
    "the znodes",
    "the exported state",
    "the check",
    "the spans",
    "the requests to Datadog",
    "the events in Datadog",
    "GET /metrics",
    "GET /readyz",
    "GET /healthz",
    "GET /",
    "GET /openapi.json",
    "GET /throttle",
    "GET /v1/state",
    "GET /v1/overrides",
    "GET /v1/auditRecords",
    "GET /v1/reassignments",
    "GET /v1/nowhere",
    "a refused token over HTTP",
    "throttlectl state",
    "throttlectl state --output=json",
    "throttlectl audit",
    "throttlectl reassignments",
    "a refused token of throttlectl",
    "the error of score: catalog and decisions",
    "the error of replay",
    "the error of compact",
)


class CredentialRun:
    """A recovery during which every file of credentials is replaced, with all that it has shown."""

    def __init__(self, directory: Path, recovery: SimulatedRecovery) -> None:
        self._directory, self._recovery = directory, recovery
        self.files = directory / "credentials"
        self.files.mkdir()
        self.shown: dict[str, str] = {}
        """Place -> its text."""
        for name in ("tls-cert", "tls-ca"):
            shutil.copy(CERTIFICATES / ("server.pem" if name == "tls-cert" else "ca.pem"), self.files / name)
        self.write(1)
        (self.files / "prometheus-token-file").write_text(SECRETS["prometheus-token-file"])
        (self.files / "app-key-file").write_text(APP_KEY)
        shutil.copy(CERTIFICATES / "ca.pem", self.files / COLLECTOR_CA)
        self.environment = {
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{SECRETS['OTEL_EXPORTER_OTLP_HEADERS']}",
            "AWS_SECRET_ACCESS_KEY": SECRETS["AWS_SECRET_ACCESS_KEY"],
        }

    def write(self, number: int) -> None:
        """Write the first or the second content of the files with secrets."""
        prefix = "the next " if number == 2 else ""
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        password = SECRETS[f"{prefix}sasl.jaas.config"]
        self._replace("api-key-file", SECRETS[f"{prefix}api-key-file"])
        self._replace("api-tokens-file", f"anna {SECRETS[f'{prefix}api-tokens-file']} service\n")
        self._replace("zk-digest-file", f"autothrottle:{SECRETS[f'{prefix}zk-digest-file']}\n")
        self._replace(
            "kafka-client-config",
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={module} required username="a" password="{password}";\n',
        )

    def _replace(self, name: str, text: str) -> None:
        part = self.files / f"{name}.part"
        part.write_text(text)
        part.replace(self.files / name)

    @property
    def options(self) -> Mapping[str, str]:
        named = ("api-key-file", "app-key-file", "api-tokens-file", "zk-digest-file", "kafka-client-config")
        tls = {"tls-cert": "tls-cert", "tls-key": "tls-cert", "tls-ca": "tls-ca"}
        return {
            **{name: str(self.files / name) for name in (*named, "prometheus-token-file")},
            **{option: str(self.files / name) for option, name in tls.items()},
            "certificate-roles": '{"autothrottle":"service"}',
            "decisions": str(self._directory / "decisions"),
            "api-listen": "127.0.0.1:0",
        }

    def play(self, collector: Collector) -> None:
        """Run, replace each file, break one, and collect all texts."""
        recovery = self._recovery
        recovery.datadog.api_key = SECRETS["api-key-file"]
        recovery.start_reassignment()
        deployment = recovery.deployment(**{name.replace("-", "_"): text for name, text in self.options.items()})
        process = deployment.process("run", "run", {})
        process._environment.pop("AUTOTHROTTLE_API_KEY")
        process._environment.pop("AUTOTHROTTLE_APP_KEY")
        process._environment |= self.environment | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            COLLECTOR_CA: str(self.files / COLLECTOR_CA),
        }
        with process:
            log = process.log
            process.wait_until(lambda: "Admin API: " in log.read_text(), 60)
            (http,) = re.findall(r" Admin API: (\S+)$", log.read_text(), re.MULTILINE)
            (grpc,) = re.findall(r" gRPC API: (\S+)$", log.read_text(), re.MULTILINE)
            self._http, self._grpc = http, grpc
            eventually(lambda: int(self.state().get("lastCycle", {}).get("number", 0)) >= 1, 60)
            self.first_cycle = self.state()["lastCycle"]
            self._rotate()
            self.last_cycle = self.state()["lastCycle"]
            self._collect(Path(f"/proc/{process.pid}/cmdline"))
            process.terminate()
            assert process.wait(30) == 0
        self.log = log.read_text()
        self._collect_ended(collector)

    def _rotate(self) -> None:
        self.write(2)
        self._recovery.datadog.api_key = SECRETS["the next api-key-file"]
        shutil.copy(CERTIFICATES / "renewed.pem", self.files / "renewed")
        self._replace("tls-ca", (CERTIFICATES / "ca.pem").read_text() + (CERTIFICATES / "renewed.pem").read_text())
        self._replace("tls-cert", (CERTIFICATES / "renewed.pem").read_text())
        eventually(lambda: not self._get("/v1/state").startswith("401 "), 60)  # the new token is accepted
        eventually(lambda: self._served() in (CERTIFICATES / "renewed.pem").read_text(), 60)
        self.served = self._served()
        self._cycles(2)
        self._replace("tls-cert", "half a certif")
        self._replace("zk-digest-file", "no colon")
        self._replace(COLLECTOR_CA, "half a certif")
        eventually(lambda: len(self._faults()) == 3, 60)
        self.faults, self.metrics = self._faults(), self._get("/metrics")
        self.served_while_faulty = self._served()
        self.write(2)
        self._replace("tls-cert", (CERTIFICATES / "renewed.pem").read_text())
        self._replace(COLLECTOR_CA, (CERTIFICATES / "ca.pem").read_text())
        eventually(lambda: not self._faults(), 60)

    def _served(self) -> str:
        """Return the certificate of the HTTPS server."""
        return ssl.get_server_certificate(("127.0.0.1", int(self._http.rpartition(":")[2])))

    def _cycles(self, count: int) -> None:
        """Wait for more cycles."""
        number = int(self.state()["lastCycle"]["number"])
        eventually(lambda: int(self.state()["lastCycle"]["number"]) >= number + count, 60)

    def _faults(self) -> list[str]:
        findings = self.state()["lastCycle"].get("findings", [])
        return [finding for finding in findings if finding.startswith("the changed file of ")]

    def state(self) -> dict[str, Any]:
        """Return the state, as the HTTP API has it."""
        state: dict[str, Any] = json.loads(self._get("/v1/state"))
        return state

    def _get(self, target: str, token: str = "") -> str:
        tokens = (self.files / "api-tokens-file").read_text().split()
        headers = {"authorization": f"Bearer {token or tokens[1]}"}
        request = urllib.request.Request(f"https://{self._http}{target}", headers=headers)
        context = ssl.create_default_context(cafile=str(self.files / "tls-ca"))
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as response:
                return f"{response.headers}{response.read().decode()}".partition("\n\n")[2]
        except urllib.error.HTTPError as error:
            with error:
                return f"{error.code} {error.headers}{error.read().decode()}"

    def _command(self, *words: str, **environment: str) -> str:
        command = [sys.executable, "-m", *words]
        variables = {**os.environ, **self.environment, **environment}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables)
        return f"{done.stdout}{done.stderr}"

    def _collect(self, processes: Path) -> None:
        """Read what a running process shows."""
        self.shown["the list of processes"] = processes.read_bytes().replace(b"\0", b" ").decode()
        for place in [place for place in PLACES if place.startswith("GET ")]:
            self.shown[place] = self._get(place.removeprefix("GET "))
        wrong = SECRETS["api-tokens-file"]
        self.shown["a refused token over HTTP"] = self._get("/v1/state", wrong)
        refused_token = self.files / "refused"
        refused_token.write_text(wrong)
        pem = str(CERTIFICATES / "client.pem")
        tls = [f"--tls-cert={pem}", f"--tls-key={pem}", f"--tls-ca={self.files / 'tls-ca'}"]
        throttlectl = ("autothrottle_client.throttlectl", f"--addr={self._grpc}", *tls)
        options = [f"--{name}={text}" for name, text in self.options.items() if "listen" not in name]
        zookeeper = f"--zk-addr={self._recovery.zookeeper.connect}"
        export = self._directory / "export.json"
        uri = f"s3://key:{SECRETS['a URI']}@bucket/log?session_token={SECRETS['a URI']}"
        faulty = self.files / "faulty.properties"
        faulty.write_text(f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config={SECRETS['a URI']}\n")
        user = f"https://user:{SECRETS['a URI']}@host"
        run, plain = ("autothrottle", "run"), ("--metrics-source=none", "--policy=static")
        commands: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
            "throttlectl state": ((*throttlectl, "state"), {}),
            "throttlectl state --output=json": ((*throttlectl, "state", "--output=json"), {}),
            "throttlectl audit": ((*throttlectl, "audit"), {}),
            "throttlectl reassignments": ((*throttlectl, "reassignments"), {}),
            "a refused token of throttlectl": ((*throttlectl, f"--token-file={refused_token}", "state"), {}),
            "the check": (("autothrottle", "check", zookeeper, "--log-level=debug", *options), {}),
            "the exported state": (
                ("autothrottle", "state", "export", str(export), zookeeper, "--log-level=debug", *options[3:4]),
                {},
            ),
            "the help with variables": ((*run, "--help"), {"AUTOTHROTTLE_API_KEY": SECRETS["api-key-file"]}),
            "the log of a refused start: decisions": ((*run, *plain, f"--decisions={uri}"), {}),
            "the log of a refused start: prometheus-url": ((*run, f"--prometheus-url={user}"), {}),
            "the log of a refused start: datadog-url": ((*run, f"--datadog-url={user}"), {}),
            "the log of a refused start: kafka-client-config": (
                (*run, *plain, "--bootstrap-servers=127.0.0.1:1", f"--kafka-client-config={faulty}"),
                {},
            ),
            "the log of a refused start: OTLP": (
                (*run, "--zk-addr=127.0.0.1:1", "--decisions=nowhere://x", *plain),
                {"OTEL_EXPORTER_OTLP_ENDPOINT": user},
            ),
            "the error of score: catalog and decisions": (
                (
                    *("autothrottle", "score", f"--decisions={uri}", f"--out={self._directory / 'out'}"),
                    *("--format=iceberg", f"--catalog=postgresql://user:{SECRETS['a URI']}@127.0.0.1:1/x"),
                ),
                {},
            ),
            "the error of replay": (("autothrottle", "replay", f"--decisions={uri}"), {}),
            "the error of compact": (("autothrottle", "compact", f"--decisions={uri}"), {}),
        }
        with ThreadPoolExecutor(3) as pool:
            futures = {
                place: pool.submit(self._command, *words, **variables) for place, (words, variables) in commands.items()
            }
        self.shown |= {place: future.result() for place, future in futures.items()}
        self.shown["the exported state"] += export.read_text()
        given = [f"--{name}={text}" for name, text in self.options.items()]
        self.shown["the configuration's repr"] = repr(parse(given, {}))

    def _collect_ended(self, collector: Collector) -> None:
        """Read what a process leaves behind."""
        datadog = self._recovery.datadog
        self.shown["the log at debug"] = self.log
        self.shown["the spans"] = repr([span for trace in collector.traces() for span in trace])
        self.shown["the requests to Datadog"] = repr(list(datadog.requests))
        self.shown["the events in Datadog"] = repr(datadog.events)
        self.shown["the znodes"] = "".join(_tree(self._recovery.client, "/"))
        folders = (self._directory / "decisions").rglob("*.parquet")
        self.shown["the decision log"] = repr([pyarrow.parquet.read_table(p).to_pydict() for p in folders])


def _tree(client: KazooClient, path: str) -> Iterator[str]:
    """Yield the paths and values of ZooKeeper's nodes."""
    yield f"{path} {client.get(path)[0]!r}\n"
    for name in client.get_children(path):
        yield from _tree(client, f"{path.rstrip('/')}/{name}")


@pytest.fixture(scope="module")
def run(own_zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CredentialRun]:
    directory = tmp_path_factory.mktemp("credentials")
    pem = (CERTIFICATES / "server.pem").read_bytes()
    with (
        Collector(grpc.ssl_server_credentials([(pem, pem)])) as collector,
        SimulatedRecovery(own_zookeeper, directory, {"t": [30_000, 30_000]}) as recovery,
    ):
        run = CredentialRun(directory, recovery)
        run.play(collector)
        yield run


def test_rotations_of_all_files_cost_no_term_and_no_cycle(run: CredentialRun) -> None:
    first, last = run.first_cycle, run.last_cycle
    assert first["term"] == last["term"] and int(last["number"]) > int(first["number"])
    assert not re.search(r"The cycle failed|stepped down|Lost|The process ends|Traceback", run.log)
    assert run.served == run.served_while_faulty
    assert run.served in (CERTIFICATES / "renewed.pem").read_text()


def test_faulty_files_are_findings_and_metrics_until_they_are_corrected(run: CredentialRun) -> None:
    assert sorted(re.findall(r"the changed file of (\S+) is faulty", "".join(run.faults))) == [
        COLLECTOR_CA,
        "tls-cert",
        "zk-digest-file",
    ]
    values = dict(re.findall(r'^autothrottle_credentials_ok\{.*?option="(.*?)"\} (\S+)$', run.metrics, re.MULTILINE))
    assert values == {
        COLLECTOR_CA: "0.0",
        "api-key-file": "1.0",
        "api-tokens-file": "1.0",
        "tls-ca": "1.0",
        "tls-cert": "0.0",
        "zk-digest-file": "0.0",
    }
    expiries = re.findall(r'^autothrottle_certificate_expiry_seconds\{.*?option="(.*?)"\}', run.metrics, re.MULTILINE)
    assert sorted(expiries) == [COLLECTOR_CA, "tls-ca", "tls-cert"]


@pytest.mark.parametrize("place", PLACES)
def test_no_secret_is_shown(run: CredentialRun, place: str) -> None:
    text = run.shown[place]
    assert text, "nothing was collected"
    assert [name for name, secret in SECRETS.items() if secret in text] == []
