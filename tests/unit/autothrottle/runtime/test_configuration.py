from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.adapters.credentials import TlsFiles
from autothrottle.adapters.zookeeper.security import OtherClients, SecurityFiles
from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.errors import Invalid
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.exporters import EXPORTERS
from autothrottle.core.traffic.loads import Capacity
from autothrottle.runtime.command_line import COMMANDS
from autothrottle.runtime.configuration import OPTIONS, Configuration, KafkaBackend, StateStore
from autothrottle.runtime.configuration_reader import WAYS_TO_START, InvalidConfiguration, parse
from autothrottle.runtime.sources import Given, Rank
from tests.builders import mb
from tests.examples import examples

URL = "https://dd.example"
GOOD: Mapping[str, Sequence[str]] = {
    "api-key": ["k1", "k2", "k3"],
    "app-key": ["k1", "k2", "k3"],
    "datadog-url": ["http://127.0.0.1:8126", URL, f"{URL}/proxy"],
    "net-tx-query": ["avg:a{x:y} by {host}", "avg:b{*} by {host}", "q3"],
    "net-rx-query": ["avg:a{x:y} by {host}", "avg:b{*} by {host}", "q3"],
    "broker-id-tag": ["id", "kafka_id", "broker.id"],
    "instance-type-tag": ["type", "flavour", "size"],
    "metrics-source": ["datadog", "prometheus", "scrape", "kafka"],
    "broker-exporter": ["node_exporter", "strimzi", "jmx"],
    "broker-tx-series": ["a_total", 'a_total{name="BytesOutPerSec",x="y"},b:c_count', ""],
    "broker-rx-series": ["a_total", ""],
    "broker-leader-quota-series": ["a_byte_rate", 'a_rate{type="LeaderReplication"}', ""],
    "broker-follower-quota-series": ["a_byte_rate,b", ""],
    "broker-series-kind": ["counter", "rate", ""],
    "broker-device-label": ["interface", ""],
    "net-devices": ["eth0|bond[0-9]+", ""],
    "broker-label": ["pod=.*-([0-9]+)", "instance=b-([0-9]+).*"],
    "broker-map": ['{"a":1}', '{"a":2}', '{"a:9100":1,"b":2}'],
    "prometheus-url": ["http://a:9090", "https://b/prometheus"],
    "prometheus-selector": ['job="a"', 'job="b",env="c"'],
    "prometheus-tx-query": ["a[2m]", "sum(b)"],
    "prometheus-rx-query": ["a[2m]", "sum(b)"],
    "prometheus-ca": ["ca.crt", "/etc/ca.crt"],
    "prometheus-headers-file": ["headers", "/run/secrets/headers"],
    "scrape-ca": ["ca.crt", "/etc/ca.crt"],
    "scrape-url": ["http://{host}:9100/metrics", "https://b{broker}.example/metrics"],
    "scrape-interval": ["1", "2.5", "30"],
    "consumer-fanout": ["0", "0.5", "3"],
    "metrics-window": ["1", "60", "600"],
    "metrics-delay": ["0", "30", "120"],
    "dd-event-tags": ["a:b", "a:b,c:d", "team"],
    "kafka-backend": ["zookeeper", "admin"],
    "kafka-native-mode": ["true", "false"],
    "bootstrap-servers": ["a:9092", "a:9092,b:9092", "[::1]:9092"],
    "kafka-bootstrap-controllers": ["a:9093", "a:9093,b:9093", "[::1]:9093"],
    "kafka-client-config": ["client.properties", "/etc/client.properties", "x"],
    "kafka-api-request-timeout": ["1", "30", "60"],
    "discovery-poll": ["0.1", "0.5", "10", "3600"],
    "zk-addr": ["a:2181", "a:2181,b:2181", "10.0.0.1:2181"],
    "zk-prefix": ["/kafka", "a/b", "c"],
    "zk-config-prefix": ["ours", "/tools/throttle", "x"],
    "state-topic": ["autothrottle", "a.b-c_1"],
    "session-timeout": ["1", "2.5", "60"],
    "zk-session-timeout": ["1", "2.5", "60"],
    "policy": ["headroom", "adaptive", "static"],
    "static-rate": ["0.5", "1", "250"],
    "interval": ["1", "1.5", "3600"],
    "min-rate": ["0.5", "1", "250"],
    "max-rate": ["0.5", "50", "100"],
    "max-tx-rate": ["0.5", "50", "100"],
    "max-rx-rate": ["0.5", "50", "100"],
    "change-threshold": ["0", "2.5", "200"],
    "failure-threshold": ["0", "2", "100"],
    "cleanup-after": ["1", "2", "100"],
    "pause-over-capacity": ["true", "false"],
    "schedule": ["9:00-17:00=50", "22:00-6:00=95,9:00-17:00=50", "9:00-17:00=50@Europe/Berlin"],
    "finish-by": ["2030-01-31T06:00:00Z", "2030-01-31T06:00+01:00"],
    "shadow": ["true", "false"],
    "cleanup-foreign": ["true", "false"],
    "skip-auto-delete-throttles": ["true", "false"],
    "cap-map": ['{"d2":120}', '{"d2":{"tx":1,"rx":2}}', '{"minimum":1}'],
    "broker-cap-map": ['{"1":120}', '{"1":{"tx":1,"rx":2}}', '{"2":1}'],
    "capacity-tag": ["cap", "mbps", "x"],
    "default-capacity": ["120", '{"tx":1,"rx":2}', "0.5"],
    "capacity": ["120", "1000MB/s"],
    "api-listen": ["localhost:0", "[::]:80", "0.0.0.0:8080"],
    "metrics-listen": ["", "localhost:0", "0.0.0.0:9404"],
    "grpc-listen": ["localhost:0", "127.0.0.1:65535", "unix:/tmp/s"],
    "listen": ["localhost:0", "127.0.0.1:65535", "unix:/tmp/s"],
    "advertise": ["planner1", "10.0.0.1:8090", "[2001:db8::1]", "[2001:db8::1]:8090"],
    "discovery-addr": ["a:1", "a:1,b:2", "unix:/tmp/s"],
    "metrics-addr": ["a:1", "a:1,b:2", "unix:/tmp/s"],
    "planner-addr": ["a:1", "a:1,b:2", "unix:/tmp/s"],
    "applier-addr": ["a:1", "a:1,b:2", "unix:/tmp/s"],
    "admin-addr": ["a:1", "a:1,b:2", "unix:/tmp/s"],
    "decisions": ["/var/lib/decisions", "decisions", "file:///var/lib/decisions", "/var/lib/a:b@c"],
    "decisions-spool": ["/var/lib/spool", "spool"],
    "decisions-retention": ["0", "1", "365"],
    "decisions-min-free": ["0", "256", "1000000"],
    "cluster-name": ["kafka", "main-2", "eu.west_1"],
    "pools": ["/etc/autothrottle/pools.toml", "pools.toml"],
    "history": ["/var/lib/autothrottle/history", "history"],
    "clusters": ["/etc/autothrottle/clusters.toml", "clusters.toml"],
    "scores": ["/var/lib/autothrottle/scores", "scores"],
    "api-tokens-file": ["/run/tokens", "tokens"],
    "certificate-roles": ['{"anna":"operator"}', '{"*":"service"}', "{}"],
    "api-hosts": ["a.example", "a.example,b.example", "b"],
    "open-endpoints": ["health", "health,reflection"],
    "insecure-listen": ["true", "false"],
    "log-format": ["text", "json"],
    "output": ["text", "json"],
    "log-level": ["debug", "warning", "error"],
}
"""Option -> accepted texts, each with a different meaning."""

TLS = {"tls-cert": "cert.pem", "tls-key": "key.pem", "tls-ca": "ca.pem", "tls-server-name": "autothrottle"}
"""The first three options require one another."""

TLS_AND_ROLES = {**TLS, "certificate-roles": "{}"}

ZOOKEEPER_TLS = {"zk-tls-ca": "ca.pem", "zk-tls-cert": "cert.pem", "zk-tls-key": "key.pem"}

ZOOKEEPER_LOGIN = {"zk-sasl-file": "zk-sasl", "zk-acl": "read"}
"""An ACL needs a login, of which there is one."""

OPEN = ("api-listen", "grpc-listen", "listen", "metrics-listen")

BAD: Mapping[str, Sequence[str]] = {
    "api-key": ["a\nb"],
    "api-key-file": ["/no/such/file"],
    "certificate-roles": [
        "[]",
        "{",
        '{"a":"root"}',
        '{"a":{"b":"viewer"}}',
        '{"":"viewer"}',
        '{"a":"viewer","a":"service"}',
    ],
    "api-hosts": ["a:80", "a b", "http://a"],
    "open-endpoints": ["health,metrics"],
    "datadog-url": [
        "dd.example",
        "ftp://x",
        "https://u:p@x",
        "https://u:p\\x",
        "https://x?api_key=1",
        "http://[",
        "http://x:99999",
    ],
    "net-tx-query": [" "],
    "broker-id-tag": ["a b", "a:b"],
    "metrics-source": ["Datadog", "graphite", ""],
    "consumer-fanout": ["-1", "101", "many"],
    "broker-exporter": ["strimzi2", ""],
    "broker-tx-series": ["a b", "a{", "a{x=1}", ",a", 'a{x="\\""}', "1a"],
    "broker-rx-series": ["a-b", "a{x}"],
    "broker-leader-quota-series": ["a-b", "a b"],
    "broker-follower-quota-series": ["a{x}"],
    "broker-series-kind": ["gauge", "Rate"],
    "broker-device-label": ["if-name", 'interface="eth0"'],
    "net-devices": ["eth(", "!lo", "eth\n0"],
    "broker-label": ["pod", "pod=kafka", "pod=("],
    "broker-map": ["[]", '{"a":"b"}'],
    "prometheus-url": ["prometheus:9090", "http://u:p@x"],
    "scrape-interval": ["0", "x"],
    "scrape-url": [
        "b1:9100",
        "http://b1:9100/metrics",
        "http://{hots}:9100/",
        "http://u:p@{host}:9100/metrics",
        "https://token@{host}/",
        "http://{host}\\@b1/",
    ],
    "metrics-window": ["0", "1.5", "-1", "x", "1" * 5000],
    "metrics-delay": ["-1", "1.5", "x"],
    "dd-event-tags": ["a,,b"],
    "kafka-backend": ["raft", "ADMIN"],
    "advertise": ["a:0", "a:x", "a b", "2001:db8::1", "0.0.0.0", "[::]:8090", "unix:/tmp/s", "http://a"],
    "kafka-native-mode": ["yes", "TRUe"],
    "bootstrap-servers": ["a", "a:9092,", "a:0", "PLAINTEXT://a:9092"],
    "kafka-bootstrap-controllers": ["a", "9000@a:9093"],
    "kafka-client-config": ["a\nb"],
    "kafka-api-request-timeout": ["0", "soon"],
    "discovery-poll": ["0.09", "3601"],
    "zk-addr": ["a", "a:2181/kafka", "a:x", "a:65536", ":2181", "a b:1", ","],
    "zk-prefix": ["a//b", "./a", "a/..", "//", "/zookeeper"],
    "zk-config-prefix": ["/", "a/../b", "brokers", "config/x"],
    "state-store": ["etcd", "Kafka"],
    "state-topic": ["", "..", "a b", "a/b", "x" * 250],
    "session-timeout": ["0.9", "60.1"],
    "zk-session-timeout": ["0.9", "60.1"],
    "policy": ["Adaptive", "best"],
    "static-rate": ["0", "-1"],
    "interval": ["0", "0.99", "30s", "nan", "inf", "1e10", "\uff11\uff10", "1_0"],
    "min-rate": ["0", "-1", "1e9", "NaN"],
    "max-rate": ["0", "100.1", "-5"],
    "max-tx-rate": ["0", "101"],
    "max-rx-rate": ["0", "90%"],
    "change-threshold": ["-0.1", ""],
    "failure-threshold": ["-1", "0.5"],
    "cleanup-after": ["0", "1.0"],
    "pause-over-capacity": ["often"],
    "schedule": ["9-17=50", "9:00-17:00=0", "9:00-17:00=101", "9:00-9:00=50", "9:00-17:00=50,16:59-18:00=40", "@UTC"],
    "finish-by": ["06:00", "2030-01-31T06:00:00", "2030-02-31T06:00:00Z", "soon"],
    "shadow": ["dark"],
    "cleanup-foreign": ["2"],
    "cap-map": ["{", "[]", "120", '{"d2":0}', '{"d2":"120"}', '{"d2":{"tx":1}}'],
    "broker-cap-map": ['{"x":1}', '{"-1":1}'],
    "capacity-tag": ["a:b"],
    "capacity": ["0", "fast"],
    "default-capacity": ["0", "fast", '{"tx":1}'],
    "api-listen": ["8080", "localhost", "localhost:65536"],
    "metrics-listen": ["8080", "localhost:65536", "unix:/tmp/s"],
    "listen": ["unix:"],
    "planner-addr": ["a:0", "a"],
    "decisions": ["a\x00b", "s3://key:secret@bucket/path", "hdfs://u:p@nn:8020/x"],
    "decisions-spool": ["a\x00b"],
    "decisions-retention": ["-1", "1.5", "100001"],
    "decisions-min-free": ["-1", "1.5", "1000001"],
    "cluster-name": ["a/b", "-a", "x" * 101],
    "log-format": ["xml"],
    "output": ["xml", ""],
    "log-level": ["INFO"],
}
"""Option -> refused texts."""


def variable(name: str) -> str:
    return "AUTOTHROTTLE_" + name.upper().replace("-", "_")


def toml(values: Mapping[str, str]) -> str:
    return "".join(f"{name} = {json.dumps(text)}\n" for name, text in values.items())


def configure(
    flags: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Mapping[str, str] | None = None,
    content: str = "",
) -> Configuration:
    """Parse options by name, each from the source of its argument."""
    argv = [f"--{name}={text}" for name, text in (flags or {}).items()]
    environ = {variable(name): text for name, text in (environment or {}).items()}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "autothrottle.toml")
        path.write_text(toml(file or {}) + content, "utf-8")
        return parse([*argv, "--config", str(path)], environ)


def split(chosen: Mapping[str, str], texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the texts of the flags, the variables and the file's keys."""

    def part(source: str) -> dict[str, str]:
        return {name: texts[name] for name, chosen_source in chosen.items() if chosen_source == source}

    return part("flag"), part("variable"), part("key")


def problems(*argv: str, **environ: str) -> tuple[str, ...]:
    with pytest.raises(InvalidConfiguration) as caught:
        parse(argv, environ)
    return caught.value.problems


def test_defaults_match_the_original() -> None:
    c = parse([], {})
    assert (c.api_key, c.app_key, c.dd_event_tags) == ("", "", ())
    assert c.net_tx_query == "avg:system.net.bytes_sent{service:kafka} by {host}"
    assert c.net_rx_query == "avg:system.net.bytes_rcvd{service:kafka} by {host}"
    assert (c.broker_id_tag, c.instance_type_tag) == ("broker_id", "instance-type")
    assert c.metrics_window == timedelta(seconds=120)
    assert (c.kafka_backend, c.bootstrap_servers) == (KafkaBackend.ZOOKEEPER, ())
    assert c.kafka_api_request_timeout == timedelta(seconds=15)
    assert (c.zk_addr, c.zk_prefix) == (("localhost:2181",), "")
    assert (c.zk_config_prefix, c.session_timeout) == ("/autothrottle", timedelta(seconds=6))
    assert (c.interval, c.api_listen) == (timedelta(seconds=180), "localhost:8080")
    assert (c.limits.min_rate, c.limits.max_tx_ratio, c.limits.max_rx_ratio) == (10_000_000, 0.9, 0.9)
    assert (c.limits.change_threshold, c.limits.failure_threshold, c.limits.keep_throttles) == (0.1, 1, False)
    assert (c.cleanup_after, c.cleanup_foreign, c.capacities) == (60, False, CapacityLimits())
    assert (c.version, c.help, c.warnings) == (False, False, ())


def test_every_listener_is_loopback_by_default() -> None:
    addresses = parse([], {})
    assert (addresses.grpc_listen, addresses.listen) == ("127.0.0.1:8090", "127.0.0.1:0")
    assert addresses.api_listen == "localhost:8080"


def test_the_tables_of_this_module_contain_every_option() -> None:
    special = {
        "config",
        "version",
        "api-key-file",
        "app-key-file",
        "prometheus-token-file",
        "prometheus-user-file",
        "scrape-token-file",
        "scrape-user-file",
        "state-store",
        *TLS,
        *ZOOKEEPER_TLS,
        *ZOOKEEPER_LOGIN,
        "zk-digest-file",
    }
    assert set(GOOD) | special == set(OPTIONS)
    assert set(BAD) <= set(OPTIONS)


@pytest.mark.parametrize("name", GOOD)
def test_every_accepted_text_changes_the_configuration(name: str) -> None:
    seen = [parse([f"--{name}={text}"], {}) for text in GOOD[name]]
    assert all(one != other for i, one in enumerate(seen) for other in seen[:i])


@st.composite
def layers(draw: st.DrawFn) -> tuple[str, list[str | None]]:
    """Draw an option and its texts as flag, variable and file key; None: not given there."""
    name = draw(st.sampled_from(sorted(GOOD)))
    flag, variable, key = (draw(st.none() | st.sampled_from(GOOD[name])) for _ in range(3))
    return name, [flag, variable or None, key]  # an empty variable counts as not set


@settings(max_examples=examples(25, 400), deadline=None)
@given(layers())
def test_precedence_is_flag_environment_file_default(case: tuple[str, list[Any]]) -> None:
    name, texts = case
    flag, environment, file = ({} if text is None else {name: text} for text in texts)
    winner = next((text for text in texts if text is not None), OPTIONS[name].default)
    assert configure(flag, environment, file) == parse([f"--{name}={winner}"], {})


@settings(max_examples=examples(25, 200), deadline=None)
@given(st.data())
def test_options_from_different_sources_are_independent(data: st.DataObject) -> None:
    depend_on_others = {"max-rate", "kafka-native-mode", "default-capacity", "zk-session-timeout"}
    free = sorted(name for name in set(GOOD) - depend_on_others if not OPTIONS[name].secret)
    chosen = data.draw(st.dictionaries(st.sampled_from(free), st.sampled_from(["flag", "variable", "key"]), min_size=1))
    texts = {name: data.draw(st.sampled_from(GOOD[name])) for name in chosen}
    assert configure(*split(chosen, texts)) == configure(texts)


@settings(max_examples=examples(25, 200), deadline=None)
@given(st.data())
def test_all_problems_are_reported_with_option_source_range_and_fix(data: st.DataObject) -> None:
    chosen = data.draw(
        st.dictionaries(st.sampled_from(sorted(BAD)), st.sampled_from(["flag", "variable", "key"]), min_size=1)
    )
    # An empty variable counts as not set, so it cannot be a problem.
    texts = {name: data.draw(st.sampled_from([t for t in BAD[name] if t])) for name in chosen}
    with pytest.raises(InvalidConfiguration) as caught:
        configure(*split(chosen, texts))
    assert len(caught.value.problems) == len(chosen)
    for name, source in chosen.items():
        where = {
            "flag": f"flag --{name}",
            "variable": f"environment variable {variable(name)}",
            "key": f"key {name} of ",
        }[source]
        (problem,) = [p for p in caught.value.problems if p.startswith((f"{name}:", f"{name} ", f"{name}["))]
        assert where in problem
        assert "must be" in problem
        assert "Fix: " in problem
        assert problem in str(caught.value)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BAD.items() for text in texts])
def test_a_text_out_of_range_is_refused(name: str, text: str) -> None:
    (problem,) = problems(f"--{name}={text}")
    assert problem.startswith(name)


def test_decisions_in_an_object_store_need_a_local_spool() -> None:
    (problem,) = problems("--decisions=s3://bucket/decisions")
    assert problem.startswith("decisions: 's3://bucket/decisions' (flag --decisions) is an object store")
    assert "Fix: --decisions-spool=" in problem
    there = parse(["--decisions=s3://bucket/decisions", "--decisions-spool=/var/lib/spool"], {})
    assert (there.decisions, there.decisions_spool) == ("s3://bucket/decisions", "/var/lib/spool")


def test_tls_needs_certificate_key_and_authorities() -> None:
    assert configure(TLS).tls == TlsFiles(*TLS.values())
    zookeeper = configure({**ZOOKEEPER_TLS, **ZOOKEEPER_LOGIN})
    assert zookeeper.zookeeper_files == SecurityFiles("ca.pem", "cert.pem", "key.pem", sasl="zk-sasl")
    assert zookeeper.zk_acl is OtherClients.READ
    assert parse([], {}).tls is None
    (problem,) = problems("--tls-cert=cert.pem", "--tls-ca=ca.pem")
    assert problem.startswith("tls-cert and tls-ca without tls-key; TLS is mutual and needs all three. Fix: ")


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"listen": "unix:/run/s", "grpc-listen": "[::1]:8090", "api-listen": "localhost:80"}, []),
        ({"listen": "0.0.0.0:4001", "grpc-listen": "[::]:8090", "api-listen": "host.example:80"}, [*OPEN[:3]]),
        ({"metrics-listen": "[::]:9404"}, ["metrics-listen"]),
        ({"metrics-listen": ""}, []),
        ({"listen": "0.0.0.0:4001", "grpc-listen": "[::]:8090", **TLS_AND_ROLES}, []),
        ({"listen": "0.0.0.0:4001", "api-listen": "0.0.0.0:80", "api-tokens-file": "tokens"}, ["listen"]),
    ],
)
def test_a_listener_open_to_other_hosts_without_credentials_is_refused_unless_insecure_listen_is_set(
    given: Mapping[str, str], refused: list[str]
) -> None:
    """It was only a warning, so any host could throttle the cluster. Listeners of other services are not checked."""
    argv, used = [f"--{name}={text}" for name, text in given.items()], {*OPTIONS} - {"metrics-source"}
    try:
        found: Sequence[str] = parse(argv, {}, used=used).warnings
    except InvalidConfiguration as error:
        found = error.problems
        assert all(given[name] in one and "--insecure-listen" in one for name, one in zip(refused, found, strict=True))
        assert all("Fix: give tls-cert, tls-key, tls-ca and certificate-roles" in one for one in found)
        insecure = parse([*argv, "--insecure-listen"], {}, used=used)
        assert {*refused} <= {warning.partition(":")[0] for warning in insecure.warnings}
        assert parse(argv, {}, used=used - {*OPEN}).warnings == ()
    assert [one.partition(":")[0] for one in found] == refused


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--zk-tls-ca=ca", "--zk-tls-cert=c"], "zk-tls-cert without zk-tls-key; a certificate needs its private key"),
        (["--zk-tls-ca=ca", "--zk-tls-key=k"], "zk-tls-key without zk-tls-cert; a certificate needs its private key"),
        (["--zk-tls-cert=c", "--zk-tls-key=k"], "zk-tls-cert and zk-tls-key without zk-tls-ca, which turns on TLS"),
        (["--zk-digest-file=d", "--zk-sasl-file=s"], "zk-digest-file and zk-sasl-file are both given"),
        (
            ["--zk-acl=read"],
            "zk-acl: 'read' (flag --zk-acl) closes our znodes to clients without our login, and no login is given",
        ),
        (
            ["--zk-acl=closed"],
            "zk-acl: 'closed' (flag --zk-acl) is not one of them; it must be one of open, read",
        ),
    ],
)
def test_security_of_zookeeper_is_complete_or_refused(argv: Sequence[str], problem: str) -> None:
    (sentence,) = problems(*argv)
    assert sentence.startswith(problem)
    assert ". Fix: " in sentence


def test_secret_files_that_every_user_may_read_cause_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "zk"
    path.write_text("autothrottle:secret")
    path.chmod(0o644)
    argv = ["--zk-tls-ca=ca", f"--zk-sasl-file={path}"]
    assert parse(argv, {}).warnings == (
        f"zk-sasl-file {str(path)!r} has the mode 0644, so that every user may read it. Fix: chmod o-rwx {path}",
    )
    path.chmod(0o640)
    assert parse(argv, {}).warnings == ()


def test_a_digest_without_tls_to_another_host_causes_a_warning() -> None:
    (warning,) = parse(["--zk-digest-file=zk", "--zk-addr=zk1:2181"], {}).warnings
    assert warning == "zk-digest-file is given without zk-tls-ca: the password is readable on the network"
    assert parse(["--zk-digest-file=zk", "--zk-addr=localhost:2181"], {}).warnings == ()


def test_tokens_without_tls_on_a_port_open_to_other_hosts_cause_a_warning() -> None:
    argv = ["--api-listen=0.0.0.0:80", "--api-tokens-file=tokens"]
    (warning,) = parse(argv, {}, used={"api-listen"}).warnings
    assert warning == "api-tokens-file is given without tls-cert: the tokens are readable on the network"


def test_tls_of_a_service_needs_certificate_roles_and_they_need_tls() -> None:
    """With TLS alone, every certificate of the authorities could write configs. The error names both ways on."""
    argv, used = [f"--{name}={text}" for name, text in TLS.items()], {"certificate-roles"}
    with pytest.raises(InvalidConfiguration, match="certificate-roles is not given with tls-cert") as caught:
        parse(argv, {}, used=used)
    assert """'{"*":"service"}' lets every certificate""" in str(caught.value)
    assert parse(argv, {}).tls is not None, "a client such as simulate needs no roles"
    assert parse([*argv, "--certificate-roles={}"], {}, used=used).certificate_roles == {}
    with pytest.raises(InvalidConfiguration, match="certificate-roles is given without tls-cert"):
        parse(["--certificate-roles={}"], {}, used=used)


def test_an_invalid_configuration_is_an_invalid_error_of_core() -> None:
    assert issubclass(InvalidConfiguration, Invalid)


@pytest.mark.parametrize(
    "argv",
    [["-interval", "30"], ["--interval", "30"], ["-interval=30"], ["--interval=30"]],
)
def test_a_flag_has_one_or_two_dashes_and_a_blank_or_an_equals_sign(argv: list[str]) -> None:
    assert parse(argv, {}).interval == timedelta(seconds=30)


@pytest.mark.parametrize(
    ("flag", "wanted"),
    [("-cleanup-foreign", True), ("--cleanup-foreign=false", False), ("--cleanup-foreign=T", True)],
)
def test_a_boolean_flag_needs_no_value(flag: str, wanted: bool) -> None:
    c = parse([flag, "--interval", "30"], {})
    assert (c.cleanup_foreign, c.interval) == (wanted, timedelta(seconds=30))


def test_the_word_after_a_flag_is_its_value_even_with_a_leading_dash() -> None:
    (problem,) = problems("--min-rate", "-5")
    assert "'-5' (flag --min-rate) is out of range" in problem


def test_an_unknown_flag_is_refused_with_the_nearest_name() -> None:
    (problem,) = problems("--intervall", "30")
    assert problem == "flag --intervall is unknown. Fix: did you mean --interval?"


@pytest.mark.parametrize(
    ("argv", "content", "problem"),
    [
        (["--bootstrap-servers=a:1", "--capcity", "1000MB/s"], "", "flag --capcity"),
        (["--capcity=1000MB/s"], "", "flag --capcity"),
        (["--bootstrap-server=a:1", "--capacity=100"], "", "flag --bootstrap-server"),
        (["--bootstrap-servers=a", "--capacity=100"], "", "bootstrap-servers"),
        (["--bootstrap-servers=a:1", "--capacity=x"], "", "capacity"),
        (["--prometheus-url=a"], "", "prometheus-url"),
        ([], 'bootstrap-servers = "a:1"\ncapcity = 100', "key capcity"),
        (["--tls-cert=a", "--tls-key=b", "--tls-cs=c", "--api-key=k", "--app-key=k"], "", "flag --tls-cs"),
        (["--tls-cert=a", "--tls-key=b", "--tls-ca=c", "--api-key=k", "--app-key=k", "--certificate-roles=x"], "", "c"),
        (["--api-key=k", "--app-key=k", "--zk-acl=read", "--zk-digest-fil=a"], "", "flag --zk-digest-fil"),
        (["--decisions=s3://a/b", "--api-key=k", "--app-key=k", "--decisions-spol=a"], "", "flag --decisions-spol"),
        (["--api-listen=0.0.0.0:1", "--api-key=k", "--app-key=k", "--api-tokens=a"], "", "flag --api-tokens"),
    ],
)
def test_a_mistyped_option_is_the_only_problem(argv: Sequence[str], content: str, problem: str, tmp_path: Path) -> None:
    """`--capcity` was followed by two errors about Datadog's keys. Both came from the option that could not be read."""
    (tmp_path / "file").write_text(content)
    with pytest.raises(InvalidConfiguration) as caught:
        parse([*argv, f"--config={tmp_path / 'file'}"], {}, used=COMMANDS["run"].options)
    (only,) = caught.value.problems
    assert only.startswith(problem)


def test_a_mistyped_variable_is_named_before_the_option_that_is_absent() -> None:
    environ = {"AUTOTHROTTLE_CAPCITY": "1000", "AUTOTHROTTLE_PORT": "tcp://10.0.0.1:80"}
    with pytest.raises(InvalidConfiguration) as caught:
        parse(["--bootstrap-servers=a:1"], environ, used=COMMANDS["run"].options)
    variable, capacity = caught.value.problems
    assert variable.endswith("AUTOTHROTTLE_CAPCITY is unknown and ignored; did you mean AUTOTHROTTLE_CAPACITY?")
    assert capacity.startswith("metrics-source kafka (default) does not know the capacity of links")


@pytest.mark.parametrize("argv", [[], ["--interval=30"], ["--zk-addr=a:1", "--zk-prefix=/kafka"]])
@pytest.mark.parametrize("command", ["run", "check", "metrics"])
def test_without_a_metrics_source_the_problem_names_the_ways_to_start(command: str, argv: Sequence[str]) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        parse(argv, {}, used=COMMANDS[command].options)
    assert caught.value.problems == (WAYS_TO_START,)


def test_each_named_way_to_start_is_accepted() -> None:
    keys = {"AUTOTHROTTLE_API_KEY": "k1", "AUTOTHROTTLE_APP_KEY": "k2"}
    ways = [shlex.split(line) for line in WAYS_TO_START.splitlines() if line.strip().startswith("--")]
    environs: list[dict[str, str]] = [{}, keys, {}]
    settled = [parse(way, env, used=COMMANDS["run"].options) for way, env in zip(ways, environs, strict=True)]
    assert [(c.kafka_backend, c.state_store, c.metrics_source) for c in settled] == [
        (KafkaBackend.ADMIN, StateStore.KAFKA, "kafka"),
        (KafkaBackend.ZOOKEEPER, StateStore.ZOOKEEPER, "datadog"),
        (KafkaBackend.ADMIN, StateStore.ZOOKEEPER, "kafka"),
    ]


@pytest.mark.parametrize("words", [["--interval=5", "-interval", "6"], ["--cleanup-foreign", "--cleanup-foreign=true"]])
def test_a_repeated_flag_is_refused(words: list[str]) -> None:
    """Otherwise the last one would win silently."""
    name = words[0].strip("-").partition("=")[0]
    with pytest.raises(InvalidConfiguration) as caught:
        parse(words, {})
    assert caught.value.problems == (f"{name}: flag --{name} is given twice. Fix: give it once",)


def test_an_unknown_file_key_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidConfiguration, match=r"key zk_addr of .* is unknown. Fix: did you mean zk-addr\?"):
        configure(content='zk_addr = "a:1"')


def test_an_unknown_variable_causes_a_warning_without_its_value() -> None:
    c = parse([], {"AUTOTHROTTLE_APIKEY": "s3cret", "AUTOTHROTTLE_PORT": "tcp://10.0.0.1:80", "OTHER": "x"})
    assert c.warnings == (
        "environment variable AUTOTHROTTLE_APIKEY is unknown and ignored; did you mean AUTOTHROTTLE_API_KEY?",
        "environment variable AUTOTHROTTLE_PORT is unknown and ignored",
    )


def test_an_empty_variable_counts_as_not_set() -> None:
    assert configure(environment={"interval": ""}, file={"interval": "30"}).interval == timedelta(seconds=30)


def test_a_flag_without_a_value_is_refused() -> None:
    assert problems("--interval") == ("interval: flag --interval has no value. Fix: --interval=180",)


@pytest.mark.parametrize("word", ["stray", "--", "-", "---interval", "--=5"])
def test_a_word_that_does_not_belong_to_a_flag_is_refused(word: str) -> None:
    (problem,) = problems(word)
    assert problem.startswith(f"the word '{word}' does not belong to a flag")


def test_the_file_may_use_toml_types() -> None:
    c = configure(
        content="""
        interval = 30
        min-rate = 2.5
        cleanup-foreign = true
        zk-addr = ["a:1", "b:2"]
        cap-map = { d2 = 120, d3 = { tx = 1, rx = 2.5 } }
        [broker-cap-map]
        1001 = 7
        """
    )
    assert (c.interval, c.limits.min_rate, c.cleanup_foreign) == (timedelta(seconds=30), 2_500_000, True)
    assert c.zk_addr == ("a:1", "b:2")
    assert c.capacities == CapacityLimits(
        by_broker={1001: Capacity(7_000_000, 7_000_000)},
        by_instance_type={"d2": Capacity(120_000_000, 120_000_000), "d3": Capacity(1_000_000, 2_500_000)},
    )


@pytest.mark.parametrize("time", ["2030-01-31T06:00:00Z", "2030-01-31T07:00:00+01:00", "2030-01-31 06:00:00Z"])
def test_a_time_in_the_file_may_be_unquoted(time: str) -> None:
    """The parser refused TOML's own time type as a time without a time zone. Python prints that type without a T."""
    assert configure(content=f"finish-by = {time}").finish_by == datetime(2030, 1, 31, 6, tzinfo=UTC)


def test_a_value_of_the_wrong_toml_type_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=r"interval: 'true' \(key interval of .*\) is not a number"):
        configure(content="interval = true")


def test_an_unreadable_file_is_reported_beside_other_problems(tmp_path: Path) -> None:
    first, second = problems("--interval=0", AUTOTHROTTLE_CONFIG=str(tmp_path / "none.toml"))
    assert "none.toml' (environment variable AUTOTHROTTLE_CONFIG) cannot be read: No such file" in first
    assert second.startswith("interval: '0'")


def test_an_unreadable_file_hides_problems_that_its_keys_may_solve(tmp_path: Path) -> None:
    """`run --config none.toml` also reported both Datadog keys as missing, although the file may contain them."""
    argv = ["--config", str(tmp_path / "none.toml"), "--tls-cert=c.pem", "--decisions=s3://b/d", "--interval=0"]
    with pytest.raises(InvalidConfiguration) as caught:
        parse(argv, {}, used=("metrics-source",))
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["config", "interval"]


def test_a_preset_is_beaten_by_every_source_and_beats_the_default() -> None:
    preset = {"interval": Given("30", "key of planner in x.toml", Rank.PRESET)}
    assert parse([], {}, preset=preset).interval == timedelta(seconds=30)
    assert parse([], {"AUTOTHROTTLE_INTERVAL": "40"}, preset=preset).interval == timedelta(seconds=40)


@pytest.mark.parametrize("content", [b"interval = ", b"\xff", b"a = 1\na = 2", b"a = " + b"[" * 5_000])
def test_a_malformed_toml_file_is_a_problem(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.toml").write_bytes(content)
    (problem,) = problems("--config", str(tmp_path / "bad.toml"))
    assert "cannot be read" in problem


def test_a_file_cannot_name_another_file() -> None:
    with pytest.raises(InvalidConfiguration, match="a file cannot name another file"):
        configure(content='config = "x.toml"')


def test_max_rate_sets_both_directions_unless_a_specific_option_is_given() -> None:
    limits = configure({"max-rate": "50", "max-tx-rate": "70"}).limits
    assert (limits.max_tx_ratio, limits.max_rx_ratio) == (0.7, 0.5)


def test_max_rate_beats_a_specific_option_only_from_a_lower_source() -> None:
    limits = configure({"max-tx-rate": "70"}, {"max-rate": "50"}, {"max-rx-rate": "30"}).limits
    assert (limits.max_tx_ratio, limits.max_rx_ratio) == (0.7, 0.5)


def test_capacity_means_default_capacity() -> None:
    assert parse(["--capacity=1000MB/s"], {}).capacities.default == Capacity(mb(1000), mb(1000))
    (problem,) = problems("--capacity=1000", AUTOTHROTTLE_DEFAULT_CAPACITY="500")
    assert "capacity (flag --capacity) and default-capacity (environment variable" in problem


KAFKA_SOURCE = ("--metrics-source=kafka", "--kafka-backend=admin", "--capacity=1000MB/s")


def test_the_kafka_source_needs_no_keys() -> None:
    parsed = parse(KAFKA_SOURCE, {}, used=COMMANDS["run"].options)
    assert (parsed.bootstrap_servers, parsed.consumer_fanout) == (("localhost:9092",), 1.0)
    over_zookeeper = ("--metrics-source=kafka", "--bootstrap-servers=kafka1:9092", '--broker-cap-map={"1":100}')
    assert parse(over_zookeeper, {}, used=COMMANDS["metrics"].options).api_key == ""


@pytest.mark.parametrize("command", ["run", "metrics"])
def test_the_kafka_source_without_brokers_or_capacity_is_refused_with_the_fixes(command: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        parse(["--metrics-source=kafka"], {}, used=COMMANDS[command].options)
    assert [problem.partition("Fix: ")[2] for problem in caught.value.problems] == [
        "--bootstrap-servers=kafka1:9092, for example",
        "--capacity=1000MB/s, or broker-cap-map",
    ]


@pytest.mark.parametrize("command", ["run", "planner", "admin"])
@pytest.mark.parametrize("policy", ["adaptive", "headroom"])
def test_no_metrics_source_needs_the_static_policy(command: str, policy: str) -> None:
    used = COMMANDS[command].options
    with pytest.raises(InvalidConfiguration) as caught:
        parse(["--metrics-source=none", f"--policy={policy}"], {}, used=used)
    (problem,) = caught.value.problems
    assert problem == (
        f"policy: '{policy}' (flag --policy) needs loads, but metrics-source is none (flag --metrics-source); with it "
        "the policy must be static. Fix: --policy=static --static-rate=50, or another metrics-source"
    )
    assert parse(["--metrics-source=none", "--policy=static"], {}, used=used).new_policy().fixed_rate == mb(50)


def test_the_shortest_start_needs_brokers_and_a_capacity_alone() -> None:
    words = ["--bootstrap-servers", "kafka1:9092", "--capacity", "1000MB/s"]
    c = parse(words, {}, used=COMMANDS["run"].options)
    assert (c.kafka_backend, c.bootstrap_servers) == (KafkaBackend.ADMIN, ("kafka1:9092",))
    assert (c.metrics_source, c.capacities.default) == ("kafka", Capacity(mb(1000), mb(1000)))
    assert (c.state_store, c.state_topic, c.state_store_given) == (StateStore.KAFKA, "__autothrottle_state", False)
    assert c.warnings == ()


EARLIER_START = [
    {},
    {"zk-addr": "zk1:2181"},
    {"zk-addr": "localhost:2181"},
    {"zk-prefix": "/kafka"},
    {"kafka-backend": "zookeeper"},
    {"kafka-backend": "admin"},
    {"kafka-native-mode": "true"},
    {"kafka-native-mode": "false"},
    {"zk-addr": "zk1:2181", "kafka-backend": "admin"},
]


@pytest.mark.parametrize(
    ("flags", "seconds"),
    [
        (["--bootstrap-servers=a:1"], 30),
        (["--state-store=kafka", "--bootstrap-servers=a:1", "--kafka-backend=admin"], 30),
        (["--bootstrap-servers=a:1", "--interval=180"], 180),
        (["--bootstrap-servers=a:1", "--state-store=zookeeper"], 180),
        (["--bootstrap-servers=a:1", "--zk-addr=b:2"], 180),
        (["--kafka-native-mode", "--bootstrap-servers=a:1"], 180),
        ([], 180),
    ],
)
def test_the_default_interval_is_30_seconds_with_the_state_in_kafka(flags: list[str], seconds: int) -> None:
    """The command of the README ran a cycle every 180 s, while three pages recommended 30 s."""
    assert parse(flags, KEYS).interval == timedelta(seconds=seconds)


@pytest.mark.parametrize("options", EARLIER_START)
@pytest.mark.parametrize("source", ["flag", "variable", "key"])
@pytest.mark.parametrize("servers", [{}, {"bootstrap-servers": "a:1"}])
def test_a_default_moves_no_state_of_an_earlier_start(
    options: Mapping[str, str], source: str, servers: Mapping[str, str]
) -> None:
    """Only brokers without an option of ZooKeeper or of the backend are a start of Kafka alone."""
    flags, variables, keys = split(dict.fromkeys(options, source), options)
    c = configure(flags, variables, {**keys, **servers})
    is_alone = bool(servers) and not options
    is_admin = "admin" in options.values() or options.get("kafka-native-mode") == "true" or is_alone
    assert c.state_store is (StateStore.KAFKA if is_alone else StateStore.ZOOKEEPER)
    assert c.kafka_backend is (KafkaBackend.ADMIN if is_admin else KafkaBackend.ZOOKEEPER)
    assert not c.state_store_given


@pytest.mark.parametrize(
    ("flags", "store", "backend"),
    [
        (["--state-store=zookeeper"], StateStore.ZOOKEEPER, KafkaBackend.ZOOKEEPER),
        (["--state-store=zookeeper", "--bootstrap-servers=a:1"], StateStore.ZOOKEEPER, KafkaBackend.ADMIN),
        (["--state-store=kafka", "--bootstrap-servers=a:1"], StateStore.KAFKA, KafkaBackend.ADMIN),
        (
            ["--state-store=kafka", "--bootstrap-servers=a:1", "--kafka-backend=admin", "--zk-addr=b:2"],
            StateStore.KAFKA,
            KafkaBackend.ADMIN,
        ),
        (
            ["--state-store=kafka", "--bootstrap-servers=a:1", "--kafka-native-mode"],
            StateStore.KAFKA,
            KafkaBackend.ADMIN,
        ),
    ],
)
def test_a_named_state_store_wins(flags: list[str], store: StateStore, backend: KafkaBackend) -> None:
    c = parse(flags, {})
    assert (c.state_store, c.kafka_backend, c.state_store_given) == (store, backend, True)


def test_state_in_kafka_without_brokers_is_refused_with_the_fix() -> None:
    for argv in (["--state-store=kafka"], ["--state-store=kafka", "--kafka-backend=admin"]):
        (problem,) = problems(*argv)
        assert problem == (
            "state-store (flag --state-store) is kafka, whose topic is reached through bootstrap-servers, which is not "
            "given. Fix: --bootstrap-servers=kafka1:9092, for example"
        )
    (problem,) = problems("--state-store=kafka", "--bootstrap-servers=a")
    assert problem.startswith("bootstrap-servers: 'a'")


@pytest.mark.parametrize(
    ("flag", "source"),
    [
        ("--kafka-backend=zookeeper", "flag --kafka-backend"),
        ("--zk-addr=b:2", "default with zk-addr"),
        ("--zk-prefix=/kafka", "default with zk-prefix"),
    ],
)
def test_state_in_kafka_is_refused_with_the_backend_that_zookeeper_fences(flag: str, source: str) -> None:
    (problem,) = problems("--state-store=kafka", "--bootstrap-servers=a:1", flag)
    assert problem == (
        f"state-store (flag --state-store) is kafka, and kafka-backend is zookeeper ({source}), which fences its "
        "writes with a node in ZooKeeper. Fix: --kafka-backend=admin, or --state-store=zookeeper"
    )


def test_another_root_node_keeps_nothing_apart_in_a_topic() -> None:
    """A shadow instance with a root node of its own would have joined the election of the instance that acts."""
    argv = ["--bootstrap-servers=a:1", "--zk-config-prefix=shadow"]
    (problem,) = problems(*argv)
    assert problem == (
        "state-store (default) is kafka, where zk-config-prefix: '/shadow' (flag --zk-config-prefix) keeps "
        "nothing apart. Fix: --state-store=zookeeper, where it does; or --state-topic=a topic for each installation, "
        "without it"
    )
    parse(["--bootstrap-servers=a:1", "--zk-config-prefix=autothrottle"], {})


@pytest.mark.parametrize("name", ["session-timeout", "zk-session-timeout"])
@pytest.mark.parametrize("source", ["flag", "variable", "key"])
def test_the_session_timeout_has_its_earlier_name_too(name: str, source: str) -> None:
    c = configure(*split({name: source}, {name: "9"}))
    assert c.session_timeout == timedelta(seconds=9)


def test_two_session_timeouts_are_refused_unless_they_are_equal() -> None:
    (problem,) = problems("--session-timeout=9", AUTOTHROTTLE_ZK_SESSION_TIMEOUT="8")
    assert problem == (
        "session-timeout: '9' (flag --session-timeout) and zk-session-timeout: '8' (environment variable "
        "AUTOTHROTTLE_ZK_SESSION_TIMEOUT) have the same meaning and different values. Fix: give session-timeout only"
    )
    assert parse(["--session-timeout=9", "--zk-session-timeout=9.0"], {}).session_timeout == timedelta(seconds=9)
    preset = {"session-timeout": Given("3", "preset", Rank.PRESET)}
    assert parse(["--zk-session-timeout=9"], {}, preset=preset).session_timeout == timedelta(seconds=9)


def test_native_mode_means_the_admin_backend() -> None:
    assert parse(["-kafka-native-mode"], {}).kafka_backend is KafkaBackend.ADMIN


@pytest.mark.parametrize(("native", "backend"), [("true", "zookeeper"), ("false", "admin")])
def test_native_mode_that_contradicts_the_backend_is_refused_with_both_sources(native: str, backend: str) -> None:
    (problem,) = problems(f"--kafka-backend={backend}", AUTOTHROTTLE_KAFKA_NATIVE_MODE=native)
    assert "AUTOTHROTTLE_KAFKA_NATIVE_MODE" in problem
    assert "flag --kafka-backend" in problem


def test_the_admin_backend_defaults_to_a_local_broker() -> None:
    assert parse(["--kafka-backend=admin"], {}).bootstrap_servers == ("localhost:9092",)
    assert parse(["--kafka-backend=admin", "--bootstrap-servers=a:1"], {}).bootstrap_servers == ("a:1",)


def test_the_zookeeper_backend_uses_the_admin_api_only_with_given_brokers() -> None:
    assert parse([], {}).bootstrap_servers == ()
    c = parse(["--bootstrap-servers=a:1,b:2", "--zk-addr=c:3"], {})
    assert (c.kafka_backend, c.bootstrap_servers) == (KafkaBackend.ZOOKEEPER, ("a:1", "b:2"))


@pytest.mark.parametrize(
    ("argv", "warning"),
    [
        (["--kafka-bootstrap-controllers=a:1"], "kafka-bootstrap-controllers is given, but only the admin backend"),
        (["--kafka-client-config=f"], "kafka-client-config is given, but without bootstrap-servers"),
    ],
)
def test_an_unused_option_of_the_admin_api_causes_a_warning(argv: list[str], warning: str) -> None:
    (found,) = parse(argv, {}).warnings
    assert found.startswith(warning)
    assert parse([*argv, "--kafka-native-mode"], {}).warnings == ()


def test_a_refused_backend_is_one_problem_without_a_contradiction() -> None:
    (problem,) = problems("--kafka-backend=raft", "--kafka-native-mode")
    assert problem.startswith("kafka-backend: 'raft'")


def test_keys_are_never_printed() -> None:
    c = parse(["--api-key=s3cret-a", "--app-key=s3cret-b"], {})
    assert (c.api_key, c.app_key) == ("s3cret-a", "s3cret-b")
    assert "s3cret" not in repr(c)
    assert "s3cret" not in str(problems("--api-key=s3cret\n", "--datadog-url=https://u:s3cret@h?key=s3cret"))


@pytest.mark.parametrize("option", ["scrape-url", "prometheus-url", "datadog-url", "decisions"])
def test_a_user_in_a_url_is_refused_with_the_fix_and_without_showing_it(option: str) -> None:
    """--scrape-url with a user and a password was accepted, and both were in logs and in the state."""
    url = "http://s3cret-user:s3cret@{host}:9100/s3cret/metrics?token=s3cret"
    (problem,) = problems(f"--{option}={url}")
    assert problem.startswith(f"{option}: 'http://{{host}}:9100...' (flag --{option}) contains a ")
    assert "Fix: give " in problem
    assert "s3cret" not in problem


def test_a_key_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k1\n")
    assert parse(["--api-key-file", str(tmp_path / "key"), "--app-key=k2"], {}).api_key == "k1"


def test_a_key_or_its_file_wins_by_the_precedence_of_its_source(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-file")
    path = str(tmp_path / "key")
    assert configure({"api-key-file": path}, {"api-key": "k"}).api_key == "from-file"
    assert configure({"api-key": "k"}, {"api-key-file": path}).api_key == "k"
    with pytest.raises(InvalidConfiguration, match="are both given"):
        configure({"api-key": "k", "api-key-file": path})


@pytest.mark.parametrize(("content", "reason"), [(b" \n", "is empty"), (b"a\nb", "more than"), (b"\xff", "not a text")])
def test_a_key_file_without_a_key_is_a_problem(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "key").write_bytes(content)
    (problem,) = problems(f"--api-key-file={tmp_path}/key")
    assert reason in problem


def test_a_missing_second_key_causes_a_warning() -> None:
    assert "app-key is not given" in parse(["--api-key=k"], {}).warnings[0]


@pytest.mark.parametrize(("url", "warned"), [("http://dd.example", True), ("http://127.0.0.1:1", False), (URL, False)])
def test_keys_over_plain_http_to_another_host_cause_a_warning(url: str, warned: bool) -> None:
    assert bool(parse([f"--datadog-url={url}"], {}).warnings) == warned


@pytest.mark.parametrize("text", ["kafka/prod", "/kafka/prod", "kafka/prod/", "/kafka/prod/"])
def test_a_znode_may_have_leading_and_trailing_slashes(text: str) -> None:
    c = parse([f"--zk-prefix={text}", f"--zk-config-prefix=x/{text.strip('/')}"], {})
    assert (c.zk_prefix, c.zk_config_prefix) == ("/kafka/prod", "/x/kafka/prod")


@pytest.mark.parametrize(
    ("prefix", "ours", "refused"),
    [
        ("", "brokers", True),
        ("/kafka", "/kafka/config/x", True),
        ("/kafka", "/kafka", True),
        ("/a/kafka", "/a", True),
        ("/kafka", "/brokers", False),
        ("/kafka", "/kafka/autothrottle", False),
        ("/autothrottle2", "/autothrottle", False),
    ],
)
def test_our_state_never_overlaps_kafkas_tree(prefix: str, ours: str, refused: bool) -> None:
    argv = [f"--zk-prefix={prefix}", f"--zk-config-prefix={ours}"]
    if refused:
        assert len(problems(*argv)) == 1
    else:
        assert parse(argv, {}).zk_config_prefix == ours


def test_a_chroot_in_zk_addr_is_refused_with_a_hint_to_zk_prefix() -> None:
    (problem,) = problems("--zk-addr=a:2181,b:2181/kafka")
    assert "belongs in zk-prefix" in problem


def test_a_listener_without_a_host_uses_every_interface_as_in_go() -> None:
    assert parse(["--api-listen=:8080"], {}).api_listen == "[::]:8080"


def test_a_tiny_share_of_the_headroom_stays_above_zero() -> None:
    assert parse(["--max-rate=1e-99"], {}).limits.max_tx_ratio > 0


@pytest.mark.parametrize("text", ["50", "50MB", "50MB/s", "50 MB/s", "5e1MB"])
def test_a_rate_may_have_its_unit(text: str) -> None:
    c = parse([f"--min-rate={text}", f"--static-rate={text}", f"--default-capacity={text}"], {})
    assert (c.limits.min_rate, c.static_rate, c.capacities.default) == (
        50_000_000,
        50_000_000,
        Capacity(50_000_000, 50_000_000),
    )


@pytest.mark.parametrize("text", ["50MiB", "50GB", "50 mb", "MB", "50/s", "50MBMB", "-50MB"])
def test_a_rate_with_another_unit_is_refused(text: str) -> None:
    (problem,) = problems(f"--min-rate={text}")
    assert f"min-rate: {text!r} (flag --min-rate) is " in problem and "a number of MB/s" in problem


def test_an_option_that_is_not_a_rate_takes_no_unit() -> None:
    assert len(problems("--interval=50MB", "--max-rate=50MB")) == 2


def test_rates_are_exact_bytes_per_second() -> None:
    assert parse(["--min-rate=0.000007"], {}).limits.min_rate == 7
    assert parse(["--min-rate=1.1"], {}).limits.min_rate == 1_100_000


def test_required_options_of_the_metrics_source_must_be_given() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        parse(["--interval=0"], {"AUTOTHROTTLE_API_KEY": "k"}, used=("metrics-source",))
    assert [p.split()[0] for p in caught.value.problems] == ["interval:", "app-key"]
    assert "metrics-source datadog needs it" in caught.value.problems[1]
    assert parse([], {}).app_key == ""


@pytest.mark.parametrize("flag", ["-version", "--version", "--version=true"])
def test_version_is_printed_despite_other_problems(flag: str) -> None:
    c = parse(["--interval=0", "--nonsense", flag], {"AUTOTHROTTLE_MIN_RATE": "x"})
    assert (c.version, c.help) == (True, False)


@pytest.mark.parametrize("flag", ["-h", "-help", "--help"])
def test_help_is_printed_despite_other_problems(flag: str) -> None:
    assert parse(["--nonsense", flag], {}).help


def test_a_required_key_may_be_given_as_its_file(tmp_path: Path) -> None:
    # `run --api-key-file F --app-key-file F` failed with "api-key is not given".
    (tmp_path / "api").write_text("secret-api\n")
    (tmp_path / "app").write_text("secret-app\n")
    flags = [f"--api-key-file={tmp_path / 'api'}", f"--app-key-file={tmp_path / 'app'}"]
    assert parse(flags, {}, used=("metrics-source",)).api_key == "secret-api"


KEYS = {"api-key": "k1", "app-key": "k2"}
SERVERS = {"bootstrap-servers": "a:1", "capacity": "100"}
PROMETHEUS, SCRAPE = {"prometheus-url": "http://a:1"}, {"scrape-url": "http://{host}:1"}


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ({}, "datadog"),
        (KEYS, "datadog"),
        (KEYS | SERVERS, "datadog"),
        (PROMETHEUS, "prometheus"),
        (PROMETHEUS | SERVERS, "prometheus"),
        (SCRAPE, "scrape"),
        (SCRAPE | SERVERS, "scrape"),
        (SERVERS, "kafka"),
        (SERVERS | {"zk-addr": "b:2"}, "kafka"),
        ({"kafka-backend": "admin"}, "datadog"),
        (KEYS | PROMETHEUS | SERVERS | {"metrics-source": "scrape"}, "scrape"),
        (KEYS | SERVERS | {"metrics-source": "none"}, "none"),
    ],
)
def test_the_metrics_source_is_the_one_whose_options_are_given(options: Mapping[str, str], source: str) -> None:
    for place in ("flag", "variable", "key"):
        assert configure(*split(dict.fromkeys(options, place), options)).metrics_source == source


def test_the_keys_may_be_files_for_the_choice_of_the_metrics_source(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    files = [f"--api-key-file={tmp_path / 'key'}", f"--app-key-file={tmp_path / 'key'}", "--bootstrap-servers=a:1"]
    assert parse(files, {}, used=COMMANDS["run"].options).metrics_source == "datadog"


def test_options_of_several_metrics_sources_are_refused_without_a_choice() -> None:
    argv = ["--prometheus-url=http://a:1", "--scrape-url=http://{host}:1"]
    environ = {"AUTOTHROTTLE_API_KEY": "k1", "AUTOTHROTTLE_APP_KEY": "k2"}
    used = COMMANDS["run"].options
    with pytest.raises(InvalidConfiguration) as caught:
        parse(argv, environ, used=used)
    assert caught.value.problems == (
        "api-key (environment variable AUTOTHROTTLE_API_KEY) and prometheus-url (flag --prometheus-url) and scrape-url "
        "(flag --scrape-url) belong to different metrics sources. Fix: choose one with --metrics-source=datadog, or "
        "--metrics-source=prometheus, or --metrics-source=scrape",
    )
    assert parse([*argv, "--metrics-source=prometheus"], environ, used=used).metrics_source == "prometheus"
    assert parse(argv, environ, used=COMMANDS["planner"].options).metrics_source == "datadog"
    with pytest.raises(InvalidConfiguration) as caught:
        parse([*argv, "--metrics-source=graphite"], environ, used=used)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["metrics-source"]


def test_brokers_without_a_capacity_are_refused_with_the_option_and_an_example() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        parse(["--bootstrap-servers=a:1"], {}, used=COMMANDS["run"].options)
    assert caught.value.problems == (
        "metrics-source kafka (default) does not know the capacity of links, but capacity is not given. "
        "Fix: --capacity=1000MB/s, or broker-cap-map",
    )


def test_scraping_has_a_shorter_default_window_and_needs_an_exporter_of_one_broker() -> None:
    scraping = ["--metrics-source=scrape"]
    assert parse(scraping, {}).metrics_window == timedelta(seconds=12)
    assert parse(["--scrape-url=http://{host}:1"], {}).metrics_window == timedelta(seconds=12)
    assert parse([*scraping, "--metrics-window=30"], {}).metrics_window == timedelta(seconds=30)
    (problem,) = problems(*scraping, "--broker-exporter=cadvisor")
    assert problem.startswith("broker-exporter: 'cadvisor' (flag --broker-exporter) reports all pods of a host")


def test_network_devices_and_series_are_those_of_the_exporter() -> None:
    series = ["--broker-tx-series=a_total", '--broker-rx-series=b_total{way="in"},c_total']
    exporter = parse(["--metrics-source=scrape", "--net-devices=data.*", *series], {}).exporter
    assert (exporter.net_devices, exporter.where["device"]) == ("data.*", "data.*")
    assert [*map(str, exporter.rx)] == ['b_total{way="in"}', "c_total"]
    quotas = parse(["--broker-leader-quota-series=leader_rate"], {}).exporter.quota_rates
    assert [*map(str, quotas[ReplicaRole.LEADER])] == ["leader_rate"]
    assert quotas[ReplicaRole.FOLLOWER] == EXPORTERS["node_exporter"].quota_rates[ReplicaRole.FOLLOWER]


def test_network_devices_without_an_exporter_of_devices_cause_a_warning() -> None:
    (warning,) = parse(["--broker-exporter=jmx", "--net-devices=eth0"], {}).warnings
    assert warning == "net-devices is given, but broker-exporter jmx does not report network devices"


def test_series_whose_name_does_not_say_what_they_are_are_refused() -> None:
    """A gauge with a rate was read as a counter, so that the load was the rise of the rate: nearly 0."""
    series = "--broker-tx-series=kafka_bytes_out,a_total"
    (problem,) = problems(series)
    assert problem.startswith("broker-tx-series: kafka_bytes_out is a counter or a rate, and its name does not say")
    assert "Fix: --broker-series-kind=counter" in problem
    for kind, mean_seconds in (("counter", None), ("rate", 60.0)):
        exporter = parse([series, f"--broker-series-kind={kind}"], {}).exporter
        assert {name.mean_seconds for name in exporter.tx} == {mean_seconds}
    assert "mean since the start of the broker" in problems("--broker-rx-series=x_meanrate,y_total")[0]
    (problem,) = problems("--broker-leader-quota-series=kafka_server_LeaderReplication_byte_total")
    assert problem.startswith("broker-leader-quota-series: kafka_server_LeaderReplication_byte_total is a counter")


@pytest.mark.parametrize(
    ("source", "readable", "safe"),
    [
        ("prometheus", "http://prometheus:9090", "http://localhost:9090"),
        ("scrape", "http://{host}:9100/metrics", "https://{host}:9100/metrics"),
    ],
)
def test_source_has_one_kind_of_credentials_and_keeps_them_secret(source: str, readable: str, safe: str) -> None:
    files = [f"--{source}-token-file=t", f"--{source}-user-file=u"]
    (problem,) = problems(*files)
    assert problem.startswith(f"{source}-token-file and {source}-user-file are both given")
    (warning,) = parse([files[0], f"--{source}-url={readable}"], {}).warnings
    assert "the credentials are readable on the network" in warning
    assert parse([files[0], f"--{source}-url={safe}"], {}).warnings == ()


def test_short_form_of_a_flag_means_the_same() -> None:
    assert parse(["-o", "json"], {}).output == parse(["-o=json"], {}).output == "json"
    with pytest.raises(InvalidConfiguration, match="output: flag --output is given twice"):
        parse(["-o", "json", "--output=text"], {})
