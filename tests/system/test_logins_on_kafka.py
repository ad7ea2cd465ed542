"""Reassignments under each login of Kafka 4: a token endpoint, SCRAM over TLS and mutual TLS, with keytool's stores.

The brokers verify tokens by the keys of the endpoint. The state is in a topic of the same cluster, so that every
service logs in.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from autothrottle_client import AdminClient, Cycle
from autothrottle_lab.observation.traffic import fill
from autothrottle_lab.servers.jars import require_java
from autothrottle_lab.servers.processes import Process, run_command, scratch_directory
from tests.builders import eventually
from tests.paths import CERTIFICATES
from tests.system.recovery_watch import FOLLOWER_RATE, CycleRecorder, RecoveryWatch, Sample, state_options
from tests.system.secured_cluster import CLIENT_SECRET, SCRAM, SecuredCluster, secured_cluster, token_login

pytestmark = [pytest.mark.repeat, pytest.mark.timeout(900)]

MB = 1_000_000
BROKERS = (1001, 1002, 1003)
DESTINATION, PARTITIONS, RATE = 1003, 2, 2 * MB
INTERVAL = 2.0
STORE_PASSWORD = "st0re-password"
SECRETS = (CLIENT_SECRET, STORE_PASSWORD, "t0psecret", "wr0ng")
SECONDS = 60.0


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredCluster]:
    with scratch_directory() as directory, secured_cluster(directory, BROKERS) as cluster:
        yield cluster


@pytest.fixture
def configs(secured: SecuredCluster) -> Iterator[Mapping[str, str]]:
    """The options of the state, and a topic of two partitions to move."""
    secured.cluster.create_topic("moving", {p: [1001 + p] for p in range(PARTITIONS)})
    try:
        with state_options(secured.cluster) as options:
            yield options
    finally:
        secured.cluster.delete_topic("moving")


def keytool(*words: str | Path) -> None:
    command = [str(require_java().with_name("keytool")), *map(str, words), "-storepass", STORE_PASSWORD, "-noprompt"]
    status, output = run_command(command, 60)
    assert status == 0, output


def trust(directory: Path, authority: str = "ca.pem") -> Mapping[str, str]:
    """Make a truststore, as an operator would."""
    file, certificate = directory / "truststore.p12", directory / "ca.pem"
    pem = (CERTIFICATES / authority).read_text()
    certificate.write_text(pem[pem.index("-----BEGIN CERTIFICATE") :])
    keytool("-importcert", "-alias", "ca", "-file", certificate, "-keystore", file, "-storetype", "PKCS12")
    return {"ssl.truststore.location": str(file), "ssl.truststore.password": STORE_PASSWORD}


def identity(directory: Path, name: str = "client.pem") -> Mapping[str, str]:
    """Make a keystore with a client's key: openssl packs it, and keytool imports it."""
    packed, file = directory / "packed.p12", directory / "keystore.p12"
    command = ["openssl", "pkcs12", "-export", "-in", str(CERTIFICATES / name), "-out", str(packed)]
    status, output = run_command([*command, "-passout", f"pass:{STORE_PASSWORD}"], 60)
    assert status == 0, output
    keytool(
        *("-importkeystore", "-srckeystore", packed, "-srcstorepass", STORE_PASSWORD, "-srcstoretype", "PKCS12"),
        *("-destkeystore", file, "-deststoretype", "PKCS12"),
    )
    return {"ssl.keystore.location": str(file), "ssl.keystore.password": STORE_PASSWORD, "ssl.keystore.type": "PKCS12"}


def scram(password: str = "t0psecret") -> Mapping[str, str]:
    jaas = f'{SCRAM} required username="bob" password="{password}";'
    return {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas}


def by_token(secured: SecuredCluster, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
    return secured.tokens, token_login(secured.endpoint)


def by_scram(secured: SecuredCluster, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
    return secured.sasl_over_tls, {**scram(), **trust(directory), "ssl.truststore.type": "PKCS12"}


def by_certificate(secured: SecuredCluster, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
    return secured.tls, {"security.protocol": "SSL", **trust(directory), **identity(directory)}


def program(
    directory: Path, options: Mapping[str, str], servers: Sequence[str], properties: Mapping[str, str]
) -> Process:
    """Return `autothrottle run` with these client properties, not yet started."""
    file = directory / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    flags = {
        **options,
        "bootstrap-servers": ",".join(servers),
        "kafka-client-config": str(file),
        "policy": "static",
        "static-rate": str(RATE // MB),
        "interval": str(int(INTERVAL)),
        "session-timeout": "3",
        "metrics-source": "none",
        "log-level": "debug",
        "api-listen": "127.0.0.1:0",
        "grpc-listen": "127.0.0.1:0",
    }
    command = [sys.executable, "-m", "autothrottle", "run", *(f"--{name}={value}" for name, value in flags.items())]
    return Process("run", command, directory / "run.log")


def logged(process: Process, pattern: str) -> str:
    """Return the first group of the first line that matches; "": none does."""
    match = re.search(pattern, process.log.read_text(), re.MULTILINE)
    return match[1] if match else ""


@contextmanager
def leading(process: Process) -> Iterator[str]:
    """Run the program; yield its gRPC address when it leads. Its end must be clean, and its log without a secret."""
    with process:
        process.wait_until(
            lambda: bool(logged(process, r"(Leading in term)") and logged(process, r"gRPC API: (\S+)$")), SECONDS
        )
        yield logged(process, r"gRPC API: (\S+)$")
        process.terminate()
        assert process.wait(20) == 0
    assert [secret for secret in SECRETS if secret in process.log.read_text()] == []


class Cycles(CycleRecorder):
    """Records when the cycles of the leader end."""

    def __init__(self, address: str) -> None:
        super().__init__(AdminClient([address]))
        self.ends: list[tuple[float, int, int]] = []
        """(`time.monotonic()`, term, number) of each cycle."""

    def record(self, cycle: Cycle, at: float) -> None:
        self.ends.append((at, cycle.term, cycle.number))

    def longest_gap(self) -> float:
        """Return the longest time between the ends of two cycles, in seconds."""
        return max(later[0] - earlier[0] for earlier, later in zip(self.ends, self.ends[1:], strict=False))


def is_throttled(sample: Sample) -> bool:
    return bool(sample.moving) and sample.lists == sample.expected and (DESTINATION, FOLLOWER_RATE) in sample.rates


def is_clean(sample: Sample) -> bool:
    return not sample.moving and not sample.rates and not any(sample.lists)


def submit(address: str) -> None:
    with AdminClient([address]) as admin:
        admin.submit_reassignment({("moving", p): (DESTINATION,) for p in range(PARTITIONS)})


Login = Callable[[SecuredCluster, Path], tuple[Sequence[str], Mapping[str, str]]]


@pytest.mark.parametrize("login", [by_token, by_scram, by_certificate])
def test_reassignment_is_throttled_under_each_login(
    login: Login, secured: SecuredCluster, configs: Mapping[str, str], tmp_path: Path
) -> None:
    cluster = secured.cluster
    fill(cluster, "moving", 10 * MB)
    configs_at_start = cluster.stored_configs()
    process = program(tmp_path, configs, *login(secured, tmp_path))
    with RecoveryWatch(cluster, "moving") as watch, leading(process) as address:
        submit(address)
        watch.wait_until(is_throttled, SECONDS, "the reassignment is throttled")
        watch.wait_until(lambda s: not s.moving, SECONDS, "the reassignment ends")
        watch.wait_until(is_clean, SECONDS, "the throttles are removed")
    assert watch.unthrottled_seconds() == 0
    assert cluster.stored_configs() == configs_at_start
    lines = [line for line in process.log.read_text().splitlines() if " ERROR " in line or " WARNING " in line]
    lines = [
        line for line in lines if "to one round of fetches" not in line
    ]  # the brokers' fetches are for faster links
    plain = [line for line in lines if "SASL_PLAINTEXT sends the token without encryption" in line]
    assert len(plain) == (login is by_token) and lines == plain


def test_rotations_of_stores_and_passwords_cost_no_term_and_no_cycle(
    secured: SecuredCluster, configs: Mapping[str, str], tmp_path: Path
) -> None:
    """The keystore gets a certificate that the brokers do not trust, then both files are broken, then both are new."""
    cluster = secured.cluster
    fill(cluster, "moving", 48 * MB)
    configs_at_start = cluster.stored_configs()
    servers, properties = by_certificate(secured, tmp_path)
    process = program(tmp_path, configs, servers, properties)
    (tmp_path / "next").mkdir()
    untrusted = Path(identity(tmp_path / "next", "viewer.pem")["ssl.keystore.location"]).read_bytes()
    renewed = Path(identity(tmp_path / "next")["ssl.keystore.location"])
    keystore, file = Path(properties["ssl.keystore.location"]), tmp_path / "client.properties"
    text = file.read_text()

    def findings() -> Sequence[str]:
        with AdminClient([address]) as admin:
            cycle = admin.state().last_cycle
        return [finding for finding in (cycle.findings if cycle else ()) if "the changed file of" in finding]

    with RecoveryWatch(cluster, "moving") as watch, leading(process) as address, Cycles(address) as cycles:
        submit(address)
        watch.wait_until(is_throttled, SECONDS, "the reassignment is throttled")
        keystore.write_bytes(untrusted)
        eventually(lambda: len(findings()) == 1, 30)
        renewed.replace(keystore)
        eventually(lambda: findings() == [], 30)
        for broken in (keystore, file):
            content = broken.read_bytes()
            broken.write_bytes(content[: len(content) // 2])
            eventually(lambda: len(findings()) == 1, 30)
            broken.write_bytes(content)
            eventually(lambda: findings() == [], 30)
        file.write_text(f"{text}client.id=renamed\n")
        eventually(lambda: process.log.read_text().count("Reloaded: ") >= 2, 30)
        assert watch.samples[-1].moving
        watch.wait_until(lambda s: not s.moving, 120, "the reassignment ends")
        watch.wait_until(is_clean, SECONDS, "the throttles are removed")
    assert watch.unthrottled_seconds() == 0
    assert cluster.stored_configs() == configs_at_start
    assert len({term for _, term, _ in cycles.ends}) == 1
    assert cycles.longest_gap() < 2 * INTERVAL


def test_token_that_expires_during_a_reassignment_is_renewed_without_a_missed_cycle(
    secured: SecuredCluster, configs: Mapping[str, str], tmp_path: Path
) -> None:
    """The token expires twice. The first renewal fails once, because the endpoint is overloaded for a moment."""
    cluster, endpoint = secured.cluster, secured.endpoint
    fill(cluster, "moving", 48 * MB)
    configs_at_start = cluster.stored_configs()
    endpoint.lifetime = 20.0
    endpoint.requests.clear()
    process = program(tmp_path, configs, *by_token(secured, tmp_path))
    with RecoveryWatch(cluster, "moving") as watch, leading(process) as address, Cycles(address) as cycles:
        submit(address)
        watch.wait_until(is_throttled, SECONDS, "the reassignment is throttled")
        requests = len(endpoint.requests)
        endpoint.fault = 503
        eventually(lambda: len(endpoint.requests) > requests, 30)
        endpoint.fault = ""
        end = watch.wait_until(lambda s: not s.moving, 120, "the reassignment ends")
        watch.wait_until(is_clean, SECONDS, "the throttles are removed")
    endpoint.lifetime = 300.0
    log = process.log.read_text()
    assert end.at - endpoint.requests[0].at > 40, "the reassignment ended before the token expired twice"
    assert len(endpoint.requests) >= 4
    assert log.count(f"{endpoint.token_url} refuses the request: 503") == 1
    assert f"A new token of token endpoint {endpoint.token_url} is in use" in log
    assert len({term for _, term, _ in cycles.ends}) == 1
    numbers = [number for _, _, number in cycles.ends]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert cycles.longest_gap() < 2 * INTERVAL
    assert " ERROR " not in log and watch.unthrottled_seconds() == 0
    assert cluster.stored_configs() == configs_at_start


def test_withdrawn_secret_is_named_and_leaves_the_throttles_until_it_is_valid_again(
    secured: SecuredCluster, configs: Mapping[str, str], tmp_path: Path
) -> None:
    cluster, endpoint = secured.cluster, secured.endpoint
    fill(cluster, "moving", 70 * MB)
    configs_at_start = cluster.stored_configs()
    endpoint.lifetime = 12.0
    process = program(tmp_path, configs, *by_token(secured, tmp_path))
    with RecoveryWatch(cluster, "moving") as watch, leading(process) as address:
        submit(address)
        watch.wait_until(is_throttled, SECONDS, "the reassignment is throttled")
        throttled = cluster.stored_configs()
        withdrawn = time.monotonic()
        endpoint.clients["throttle"] = "another"
        eventually(lambda: "401 invalid_client" in process.log.read_text(), 15)
        time.sleep(endpoint.lifetime)
        assert cluster.stored_configs() == throttled and process.running
        endpoint.clients["throttle"] = CLIENT_SECRET
        eventually(lambda: logged(process, r"(?s)invalid_client.+(Leading in term)"), 30)
        watch.wait_until(lambda s: not s.moving, 120, "the reassignment ends")
        watch.wait_until(is_clean, SECONDS, "the throttles are removed")
    endpoint.lifetime = 300.0
    print(f"\nnamed and valid again within {time.monotonic() - withdrawn:.0f} s")
    assert watch.unthrottled_seconds() == 0
    assert cluster.stored_configs() == configs_at_start


def wrong_secret(secured: SecuredCluster, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
    return secured.tokens, token_login(secured.endpoint, "wr0ng")


def wrong_password(secured: SecuredCluster, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
    return secured.sasl_over_tls, {**scram("wr0ng"), **trust(directory)}


def wrong_authority(secured: SecuredCluster, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
    return secured.sasl_over_tls, {**scram(), **trust(directory, "expired.pem")}


@pytest.mark.parametrize(
    ("login", "lifetime", "named"),
    [
        (wrong_secret, 300.0, r"[Tt]oken endpoint http://\S+/token refuses the request: 401 invalid_client"),
        (by_token, -60.0, r"refuses our credentials: .+ subject throttle, valid until "),
        (wrong_password, 300.0, r"refuses our credentials: .+[Aa]uthentication failed"),
        (wrong_authority, 300.0, r"is not trusted: .+CERTIFICATE_VERIFY_FAILED.+ Fix: ssl.truststore.location"),
    ],
)
def test_refused_login_is_named_at_the_start_and_changes_nothing(
    login: Login, lifetime: float, named: str, secured: SecuredCluster, configs: Mapping[str, str], tmp_path: Path
) -> None:
    cluster, endpoint = secured.cluster, secured.endpoint
    endpoint.lifetime, endpoint.stated_lifetime = lifetime, 300.0
    configs_at_start, offset = cluster.stored_configs(), cluster.metadata.last_offset()
    process = program(tmp_path, configs, *login(secured, tmp_path))
    began = time.monotonic()
    try:
        with process:
            eventually(lambda: logged(process, f"({named})"), 15)
            print(f"\nnamed within {time.monotonic() - began:.1f} s")
            time.sleep(2)
    finally:
        endpoint.lifetime, endpoint.stated_lifetime = 300.0, None
    assert "Leading in term" not in process.log.read_text()
    assert [secret for secret in SECRETS if secret in process.log.read_text()] == []
    assert cluster.stored_configs() == configs_at_start
    assert [r for r in cluster.metadata.records(offset) if "Heartbeat" not in type(r.change).__name__] == []
