"""`autothrottle run` on a real ZooKeeper: overrides over HTTP in the original's format, authentication, and audit."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from autothrottle.core.cluster.configs import FOLLOWER_RATE, LEADER_RATE
from autothrottle_lab.servers.processes import Process
from autothrottle_lab.servers.zookeeper import ZooKeeperServer
from tests.paths import CERTIFICATES

START_SECONDS = 30.0
FLAGS = (
    "--api-listen=127.0.0.1:0",
    "--grpc-listen=127.0.0.1:0",
    "--datadog-url=http://127.0.0.1:1",
    "--zk-prefix=/kafka",
)
KEYS = {"AUTOTHROTTLE_API_KEY": "k1", "AUTOTHROTTLE_APP_KEY": "k2"}

PEMS = CERTIFICATES
TOKEN = "t" * 32


def call(address: str, verb: str, target: str) -> str:
    request = urllib.request.Request(f"http://{address}{target}", method=verb)
    with urllib.request.urlopen(request, timeout=START_SECONDS) as response:
        text: str = response.read().decode()
    return text


def rates(client: KazooClient) -> dict[str, str]:
    """Return the dynamic configs of broker 1001."""
    path = "/kafka/config/brokers/1001"
    found: dict[str, str] = json.loads(client.get(path)[0])["config"] if client.exists(path) else {}
    return found


@pytest.mark.parametrize("option", ["grpc-listen", "api-listen"])
def test_run_ends_if_another_program_holds_its_port_and_names_the_option(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path, option: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        listen = {"api-listen": "127.0.0.1:0", "grpc-listen": "127.0.0.1:0", option: address}
        flags = [f"--{name}={value}" for name, value in listen.items()]
        start = [f"--zk-addr={fresh_zookeeper.connect}", "--zk-prefix=/kafka", "--metrics-source=none"]
        command = [sys.executable, "-m", "autothrottle", "run", *start, "--policy=static", *flags]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    assert ended.returncode == 1
    (error,) = (line for line in ended.stderr.splitlines() if " ERROR " in line)
    assert f" cannot listen on {address}: " in error
    assert f"Fix: stop the program that holds it, or choose another with --{option} (" in error


def test_override_set_over_http_is_stored_in_the_original_format_and_starts_a_cycle(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    log = tmp_path / "run.log"
    command = [sys.executable, "-m", "autothrottle", "run", f"--zk-addr={fresh_zookeeper.connect}", *FLAGS]
    client = KazooClient(fresh_zookeeper.connect)
    client.start()
    for path in ("/kafka/brokers/ids", "/kafka/brokers/topics", "/kafka/config/brokers", "/kafka/config/changes"):
        client.ensure_path(path)
    client.create("/kafka/brokers/ids/1001", b"{}")
    try:
        with Process("run", command, log, KEYS) as run:
            run.wait_until(lambda: "Admin API: " in log.read_text(), START_SECONDS)
            (address,) = re.findall(r" Admin API: (\S+)$", log.read_text(), re.MULTILINE)
            first = next(line for line in log.read_text().splitlines() if " WARNING " not in line)
            assert first.endswith(f" Page: http://{address}/")
            assert re.search(r" gRPC API: 127\.0\.0\.1:\d+$", log.read_text(), re.MULTILINE)
            set_to = "broker 1001: throttle successfully set to 50MB/s, autoremove==false\n"
            assert call(address, "POST", "/throttle/1001?rate=50") == set_to
            stored = json.loads(client.get("/autothrottle/override_rate/1001")[0])
            assert (stored["rate"], stored["autoremove"]) == (50, False)
            # The interval is 180 s, so only a cycle that the POST starts can write the rates now.
            run.wait_until(lambda: rates(client) == {LEADER_RATE: "50000000", FOLLOWER_RATE: "50000000"}, START_SECONDS)
            assert json.loads(call(address, "GET", "/v1/state"))["overrides"][0]["rateBytesPerSecond"] == "50000000"
            assert call(address, "POST", "/throttle/remove/all") == "broker 1001: throttle removed\n"
            run.wait_until(lambda: rates(client) == {}, START_SECONDS)
            assert client.exists("/autothrottle/override_rate/1001") is None
            run.terminate()
            assert run.wait(START_SECONDS) == 0
            assert "Traceback" not in log.read_text()
    finally:
        client.stop()
        client.close()


def over_tls(address: str, target: str, headers: Mapping[str, str]) -> str:
    request = urllib.request.Request(f"https://{address}{target}", method="POST", headers=dict(headers))
    context = ssl.create_default_context(cafile=str(PEMS / "ca.pem"))
    with urllib.request.urlopen(request, timeout=START_SECONDS, context=context) as response:
        text: str = response.read().decode()
    return text


def throttlectl(address: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "autothrottle_client.throttlectl", "--addr", address, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * START_SECONDS, check=False)


def test_certificates_and_tokens_are_required_and_the_audit_log_names_the_caller(
    fresh_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    log, tokens = tmp_path / "run.log", tmp_path / "tokens"
    tokens.write_text(f"anna {TOKEN}\n")
    served = (f"--tls-cert={PEMS}/server.pem", f"--tls-key={PEMS}/server.pem", f"--tls-ca={PEMS}/ca.pem")
    ours = (f"--tls-cert={PEMS}/client.pem", f"--tls-key={PEMS}/client.pem", f"--tls-ca={PEMS}/ca.pem")
    access = ('--certificate-roles={"autothrottle":"operator"}', f"--api-tokens-file={tokens}")
    flags = (*FLAGS, *served, *access, f"--zk-addr={fresh_zookeeper.connect}")
    with Process("run", [sys.executable, "-m", "autothrottle", "run", *flags], log, KEYS) as run:
        run.wait_until(lambda: "Admin API: " in log.read_text(), START_SECONDS)
        (http,) = re.findall(r" Admin API: (\S+)$", log.read_text(), re.MULTILINE)
        assert re.search(rf" Page: https://{http}/$", log.read_text(), re.MULTILINE)
        (grpc,) = re.findall(r" gRPC API: (\S+)$", log.read_text(), re.MULTILINE)
        assert "successfully set" in over_tls(http, "/throttle/1001?rate=50", {"authorization": f"Bearer {TOKEN}"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            over_tls(http, "/throttle/1001?rate=60", {})
        assert refused.value.code == 401
        refused.value.close()
        assert throttlectl(grpc, "--timeout=1", "set", "70", "--broker", "1002").returncode == 4
        done = throttlectl(grpc, "--timeout=30", "set", "80", "--broker", "1002", *ours)
        assert done.returncode == 0, done.stderr
        audit = json.loads(throttlectl(grpc, "--timeout=30", "audit", "--output=json", *ours).stdout)["records"]
        by_gateway, by_certificate = (record["who"] for record in sorted(audit, key=lambda r: r["number"]))
        assert re.fullmatch(r"anna at 127\.0\.0\.1:\d+ through unix:.*", by_gateway)
        assert re.fullmatch(r"autothrottle at ipv4:127\.0\.0\.1:\d+", by_certificate)
        run.terminate()
        assert run.wait(START_SECONDS) == 0
