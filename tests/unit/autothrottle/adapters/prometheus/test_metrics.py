"""The Prometheus adapter against an HTTP server with faults; tests/contract has a real Prometheus."""

from __future__ import annotations

import base64
import io
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from urllib3.response import HTTPResponse

from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.adapters.prometheus import PrometheusMetrics, PrometheusSettings
from autothrottle.adapters.prometheus.client import read_query
from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.traffic.broker_matching import BrokerMatching, parse_broker_label
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.counters import SeriesKind
from autothrottle.core.traffic.exporters import EXPORTERS, parse_series_names
from autothrottle.core.traffic.loads import Capacity
from autothrottle.core.traffic.series_loads import SeriesReading
from autothrottle.wire.metrics import loads_to_message
from autothrottle_lab.emulators.exporter import ExporterEmulator

TIMEOUT = timedelta(seconds=20)
LIMITS = CapacityLimits(default=Capacity(100_000_000, 100_000_000))


@pytest.fixture
def server() -> Iterator[ExporterEmulator]:
    with ExporterEmulator() as emulator:
        yield emulator


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster(brokers=(1, 2))


def metrics(
    server: ExporterEmulator, cluster: MemoryCluster, clock: Callable[[], float] = time.time, **settings: Any
) -> closing[PrometheusMetrics]:
    """Return the adapter; the server's answer for broker 1 is that to every query."""
    label = parse_broker_label("pod=kafka-([0-9]+)", "broker-label")
    chosen = PrometheusSettings(f"http://{server.address}/1", EXPORTERS["jmx"], broker_label=label, **settings)
    return closing(PrometheusMetrics(chosen, LIMITS, BrokerHosts(cluster), clock))


def matrix(**samples: list[tuple[float, str]]) -> Callable[[], str]:
    """Return an answer: a counter of each pod."""
    result = [{"metric": {"pod": pod.replace("_", "-")}, "values": values} for pod, values in samples.items()]
    return lambda: json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def growing(rate: float, now: float) -> list[tuple[float, str]]:
    return [(now - 30 + 15 * n, str(15 * n * rate)) for n in range(3)]


def test_problems_of_one_series_do_not_concern_the_others(server: ExporterEmulator, cluster: MemoryCluster) -> None:
    now = time.time()
    server.answers[1] = matrix(kafka_1=growing(70, now), kafka_2=[(now - 15, "1"), (now, "NaN")])
    with metrics(server, cluster) as source:
        loads = source.fetch_loads(TIMEOUT)
    assert (loads.brokers[1].outbound.rate, loads.brokers[1].inbound.rate) == (70, 70)
    assert [*loads.brokers] == [1]
    assert loads.problems[2].startswith('broker 2 ({pod="kafka-2"} in --prometheus-tx-query) has a sample of nan bytes')


def test_quota_rates_are_read_where_an_exporter_offers_them(server: ExporterEmulator, cluster: MemoryCluster) -> None:
    now = time.time()
    pods = {"kafka-1": ["30", "40.5"], "kafka-2": ["NaN", "NaN"]}
    names = ("kafka_server_LeaderReplication_byte_rate", "kafka_server_followerreplication_byte_rate")
    quotas = [
        {"metric": {"__name__": name, "pod": pod}, "values": [(now - 15, values[0]), (now - 1, values[1])]}
        for name in names
        for pod, values in pods.items()
    ]
    counters = [{"metric": {"pod": pod}, "values": growing(70, now)} for pod in pods]
    text = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": counters + quotas}})
    server.answers[1] = lambda: text
    with metrics(server, cluster, tx_query="x[2m]", rx_query="x[2m]") as source:
        loads = source.fetch_loads(TIMEOUT)
    assert {side: measured.rate for side, measured in loads.quota_rates.items()} == {
        (1, ReplicaRole.LEADER): 40,
        (1, ReplicaRole.FOLLOWER): 40,
    }
    measured = loads.quota_rates[1, ReplicaRole.LEADER]
    assert (measured.end - measured.start).total_seconds() == 11
    assert len([text for text in loads.warnings if text.startswith("broker 2 [leader]: the series of its quota")]) == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (422, "answers 422"),
        (b"<html>", "answers with invalid JSON"),
        (b'{"status":"success","data":{"resultType":"scalar","result":[0,"1"]}}', "answers a scalar"),
        ("hang", "does not answer in time"),
    ],
)
def test_a_failure_of_the_optional_quota_rates_takes_no_load(
    fault: Any, reason: str, server: ExporterEmulator, cluster: MemoryCluster
) -> None:
    """The server refused the query of the quota rates, which is optional, and answered the others.

    Its failure cut all queries of the read, so that no broker had a load and all throttles stayed as they were.
    """
    now = time.time()
    server.answers[1] = matrix(kafka_1=growing(70, now), kafka_2=growing(70, now))
    server.faults["LeaderReplication"] = fault
    with metrics(server, cluster) as source:
        loads = source.fetch_loads(timedelta(seconds=0.4) if fault == "hang" else TIMEOUT)
    assert (sorted(loads.brokers), loads.problems, loads.quota_rates) == ([1, 2], {}, {})
    (warning,) = loads.warnings
    assert f"(quota rates) {reason}" in warning
    assert warning.endswith("the loads count without the throttled replication of the brokers' quotas")


def test_query_of_quota_rates_has_the_names_of_the_operator() -> None:
    exporter = EXPORTERS["msk"]
    assert exporter.quota_rates_query(120, 'job="jmx"') == (
        '{__name__=~"kafka_server_LeaderReplication_byte_rate|kafka_server_leaderreplication_byte_rate|'
        'kafka_server_FollowerReplication_byte_rate|kafka_server_followerreplication_byte_rate",job="jmx"}[120s]'
    )
    names = parse_series_names('rate{type="LeaderReplication"}', "--broker-leader-quota-series")
    own = exporter.with_quota_rates(names, ())
    assert own.quota_role({"__name__": "rate", "type": "LeaderReplication"}) is ReplicaRole.LEADER
    assert own.quota_role({"__name__": "rate", "type": "Fetch"}) is None
    assert own.quota_rates_query(60).startswith('{__name__=~"rate|kafka_server_Foll')


_odd: st.SearchStrategy[object] = (
    st.sampled_from(["NaN", "+Inf", "-1", "9e18", "1e400", "9" * 5000, "x", "", None, True, -1, 1e300, 2**63, [], {}])
    | st.floats()
    | st.integers()
)
_odd_points = st.lists(st.lists(_odd, min_size=1, max_size=3), max_size=4) | st.just("x") | st.none()
_POD = {"pod": "kafka-3"}
_odd_labels = st.dictionaries(st.sampled_from(["device", "job", "x"]), st.sampled_from(["\ud800", "", None, 7, "b1"]))
_odd_entries = st.lists(
    st.builds(
        lambda labels, points: {"metric": {**labels, "pod": "kafka-3"}, "values": points}, _odd_labels, _odd_points
    )
    | st.sampled_from([{"metric": _POD}, {"metric": 7}, 7, None])
    | st.just({"metric": {"id": "3", "address": "b1.example:9092", **_POD}, "values": []}),
    max_size=3,
)


@given(_odd_entries)
def test_odd_series_of_one_broker_never_change_the_loads_of_the_others(entries: list[object]) -> None:
    """8 of 8 odd inputs of one broker took the loads from all brokers, for example a NaN as the time of a sample."""
    now = time.time()
    good = [{"metric": {"pod": f"kafka-{b}"}, "values": growing(70 + b, now)} for b in (1, 2)]
    text = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [*entries, *good]}})
    found = read_query(HTTPResponse(io.BytesIO(text.encode()), status=200, preload_content=False))
    series = found.as_series(lambda labels: None, 120.0, 0.0)
    label = parse_broker_label("pod=kafka-([0-9]+)", "broker-label")
    matching = BrokerMatching(label=label, registered={1: (), 2: (), 3: ()})
    loads = SeriesReading(matching, LIMITS, now, {"prometheus-tx-query": series, "prometheus-rx-query": series}).loads()
    assert [loads.brokers[b].outbound.rate for b in (1, 2)] == [71, 72]
    assert 3 in {**loads.brokers, **loads.problems}
    loads_to_message(loads)


def test_body_of_an_endless_response_is_unavailable(server: ExporterEmulator, cluster: MemoryCluster) -> None:
    """A body without an end took 2 to 3 GB of memory in the metrics service."""
    server.answers[1] = b'{"status": "success", "data": "' + bytes(33 * 1024 * 1024)
    with metrics(server, cluster) as source, pytest.raises(Unavailable, match="answers with more than 33554432 bytes"):
        source.fetch_loads(TIMEOUT)


def test_a_broker_cannot_claim_the_host_of_another_one(server: ExporterEmulator, cluster: MemoryCluster) -> None:
    """`kafka_broker_info` of broker 2 named the address of broker 1, whose series then belonged to broker 2."""
    cluster.hosts = {1: ("b1.example",), 2: ("b2.example",)}
    labels = {"instance": "b1.example:9404", "id": "2", "address": "b1.example:9092"}
    series = {"metric": labels, "values": growing(70, time.time())}
    server.answers[1] = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}}).encode()
    with metrics(server, cluster) as source:
        assert [*source.fetch_loads(TIMEOUT).brokers] == [1]


def test_kafka_broker_info_finds_the_broker_of_a_host(server: ExporterEmulator, cluster: MemoryCluster) -> None:
    labels = {"instance": "b2.example:9404", "id": "2", "address": "b2.example:9092"}
    series = {"metric": labels, "values": growing(70, time.time())}
    server.answers[1] = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}}).encode()
    with metrics(server, cluster) as source:
        assert [*source.fetch_loads(TIMEOUT).brokers] == [2]


@pytest.mark.parametrize("off", [-60.0, 60.0])
def test_clock_of_the_server_off_by_a_minute_is_corrected_and_named(
    off: float, server: ExporterEmulator, cluster: MemoryCluster
) -> None:
    """A query for our time returned samples a minute old, or none, and their interval was a minute off."""
    now = time.time()
    server.answers[1] = matrix(kafka_1=growing(70, now), kafka_2=growing(80, now))
    with metrics(server, cluster, lambda: time.time() - off) as source:
        loads = source.fetch_loads(TIMEOUT)
    assert {broker_id: load.inbound.rate for broker_id, load in loads.brokers.items()} == {1: 70, 2: 80}
    ours = datetime.fromtimestamp(now - off, UTC)
    assert abs(loads.brokers[1].inbound.end - ours) < timedelta(seconds=5)
    (warning,) = loads.warnings
    assert "Fix: synchronise both clocks" in warning
    assert f"differs by {off:+.0f} s" in warning or f"differs by {off - 1:+.0f} s" in warning


def test_unreadable_registrations_are_a_warning_and_the_last_hosts_stay(
    server: ExporterEmulator, cluster: MemoryCluster
) -> None:
    now = time.time()
    server.answers[1] = matrix(kafka_1=growing(70, now))
    with metrics(server, cluster) as source:
        assert [*source.fetch_loads(TIMEOUT).problems] == [2]
        cluster.unavailable(True)
        loads = source.fetch_loads(TIMEOUT)
    assert ([*loads.brokers], [*loads.problems]) == ([1], [2])
    assert "the 2 brokers read before are used" in loads.warnings[0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (401, "answers 401; check prometheus-token-file or prometheus-user-file"),
        (503, "answers 503"),
        (b"<html>", "answers with invalid JSON"),
        (b"{}", "answers in an unexpected format"),
        (b'{"status":"error","error":"query timed out"}', "answers: query timed out"),
        (b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":3}]}}', "in an unexpected format"),
        (b'{"status":"success","data":{"resultType":"scalar","result":[0,"1"]}}', "answers a scalar"),
        ("hang", "does not answer in time"),
    ],
)
def test_server_that_fails_is_unavailable_with_its_query(
    answer: Any, reason: str, server: ExporterEmulator, cluster: MemoryCluster
) -> None:
    server.answers[1] = answer
    with metrics(server, cluster) as source, pytest.raises(Unavailable) as caught:
        source.fetch_loads(timedelta(seconds=0.3) if answer == "hang" else TIMEOUT)
    assert f"Prometheus at http://{server.address}/1 (" in str(caught.value)
    assert reason in str(caught.value)


def test_server_that_is_down_is_unavailable(cluster: MemoryCluster) -> None:
    with ExporterEmulator() as server:
        pass
    with (
        metrics(server, cluster) as source,
        pytest.raises(Unavailable, match=r"does not answer \(NewConnectionError\)"),
    ):
        source.fetch_loads(TIMEOUT)


def test_changed_credentials_are_used_and_faulty_ones_are_not(
    server: ExporterEmulator, cluster: MemoryCluster, tmp_path: Path
) -> None:
    """A token of a Kubernetes service account is replaced every hour."""
    now, path = time.time(), tmp_path / "secret"
    server.answers[1] = matrix(kafka_1=growing(70, now))
    for option, text, header in (
        ("token_file", "abc", "Bearer abc"),
        ("user_file", "a:b", f"Basic {base64.b64encode(b'a:b').decode()}"),
    ):
        path.write_text(f"{text}\n")
        with metrics(server, cluster, time.time, **{option: str(path)}) as source:
            source.fetch_loads(TIMEOUT)
            assert server.headers["authorization"] == header
            path.write_text("")
            source.fetch_loads(TIMEOUT)
            assert server.headers["authorization"] == header
            (problem,) = (credential.files.problem for credential in source.credentials)
            assert re.search(r"prometheus-.*-file: .* put only the secret there", problem)
            path.write_text("c:d\n")
            source.fetch_loads(TIMEOUT)
            assert server.headers["authorization"] != header
            assert [credential.files.problem for credential in source.credentials] == [""]
        path.write_text("")
        with (
            metrics(server, cluster, time.time, **{option: str(path)}) as source,
            pytest.raises(Unavailable, match=r"prometheus-.*-file: .* put only the secret there"),
        ):
            source.fetch_loads(TIMEOUT)


def test_headers_of_a_file_are_sent_with_those_of_the_credentials(
    server: ExporterEmulator, cluster: MemoryCluster, tmp_path: Path
) -> None:
    """Mimir answers only with the tenant in X-Scope-OrgID."""
    server.answers[1] = matrix(kafka_1=growing(70, time.time()))
    headers, token = tmp_path / "headers", tmp_path / "token"
    headers.write_text("X-Scope-OrgID: tenant-1|tenant-2\n\nx-proxy-secret:a:b\n")
    token.write_text("abc")
    with metrics(server, cluster, headers_file=str(headers), token_file=str(token)) as source:
        source.fetch_loads(TIMEOUT)
    sent = [server.headers[name] for name in ("x-scope-orgid", "x-proxy-secret", "authorization")]
    assert sent == ["tenant-1|tenant-2", "a:b", "Bearer abc"]


def test_a_faulty_file_of_headers_does_not_keep_an_expired_token_in_use(
    server: ExporterEmulator, cluster: MemoryCluster, tmp_path: Path
) -> None:
    """Both files were read as one, so that a typing error in one kept the previous content of the other.

    A token of a service account expires after an hour, and then all loads were missing.
    """
    server.answers[1] = matrix(kafka_1=growing(70, time.time()))
    headers, token = tmp_path / "headers", tmp_path / "token"
    headers.write_text("X-Scope-OrgID: tenant-1\n")
    token.write_text("first")
    with metrics(server, cluster, headers_file=str(headers), token_file=str(token)) as source:
        source.fetch_loads(TIMEOUT)
        headers.write_text("X-Scope-OrgID")
        token.write_text("second")
        source.fetch_loads(TIMEOUT)
        problems = {credential.option: credential.files.problem for credential in source.credentials}
    assert (server.headers["x-scope-orgid"], server.headers["authorization"]) == ("tenant-1", "Bearer second")
    assert problems["prometheus-token-file"] == "" and "is not a header" in problems["prometheus-headers-file"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no header; write Name: value"),
        ("X-Scope-OrgID secret", "line 1 of .* is not a header"),
        ("a: b\nX Y: secret", "line 2 of .* is not a header"),
        ("X-Scope-OrgID: sécret", "line 1 of .* is not a header"),
        ("Authorization: Bearer secret", "sets Authorization, which has an option or a line of its own"),
        ("a: secret\nA: secret", "line 2 of .* sets A"),
    ],
)
def test_faulty_headers_are_refused_without_showing_them(
    text: str, reason: str, server: ExporterEmulator, cluster: MemoryCluster, tmp_path: Path
) -> None:
    (tmp_path / "headers").write_text(text)
    with (
        metrics(server, cluster, headers_file=str(tmp_path / "headers")) as source,
        pytest.raises(Unavailable, match=f"prometheus-headers-file: .*{reason}") as caught,
    ):
        source.fetch_loads(TIMEOUT)
    assert "secret" not in str(caught.value)


def test_certificates_that_cannot_be_read_are_refused_at_the_start(
    cluster: MemoryCluster, server: ExporterEmulator
) -> None:
    settings = PrometheusSettings(f"https://{server.address}/1", EXPORTERS["jmx"], ca_file="/no/such/file")
    with pytest.raises(Invalid, match="'/no/such/file' holds no PEM certificates"):
        PrometheusMetrics(settings, LIMITS, BrokerHosts(cluster))


def test_names_of_pods_that_the_filter_of_a_preset_hides_are_in_the_finding(
    server: ExporterEmulator, cluster: MemoryCluster
) -> None:
    """The preset cadvisor guesses the names of pods. With others the problem said only: check the query."""
    empty = {"status": "success", "data": {"resultType": "matrix", "result": []}}
    pods = [{"metric": {"pod": f"prod-mixed-{n}"}, "value": [0, "1"]} for n in (2, 0, 1)]
    names = {"status": "success", "data": {"resultType": "vector", "result": pods}}
    server.answers[1] = lambda: json.dumps(empty)
    server.faults["topk"] = json.dumps(names).encode()
    settings = PrometheusSettings(f"http://{server.address}/1", EXPORTERS["cadvisor"])
    with closing(PrometheusMetrics(settings, LIMITS, BrokerHosts(cluster))) as source:
        problem = source.fetch_loads(TIMEOUT).problems[1]
        server.faults["topk"] = 503
        without = source.fetch_loads(TIMEOUT).problems[1]
    assert "the busiest values of pod are prod-mixed-0, prod-mixed-1, prod-mixed-2. Fix: " in problem
    assert "--broker-label, such as pod=.*-([0-9]+)" in problem
    assert without.endswith("check the query")


@pytest.mark.parametrize(
    ("kind", "name", "attribute", "sent"),
    [
        (None, "kafka_bytes_oneminuterate", "", 1100),
        (None, "kafka_bytes_total", "", 10),
        (None, "kafka_bytes", "", 10),
        (None, "kafka_bytes", "OneMinuteRate", 1100),
        (None, "kafka_bytes_per_sec", "Count", 10),
        (SeriesKind.RATE, "kafka_bytes", "", 1100),
        (SeriesKind.COUNTER, "kafka_bytes_rate", "", 10),
    ],
)
def test_range_vector_of_a_gauge_is_read_as_its_name_or_the_option_says(
    kind: SeriesKind | None, name: str, attribute: str, sent: int, server: ExporterEmulator, cluster: MemoryCluster
) -> None:
    """The samples of a rate were subtracted as those of a counter."""
    now = time.time()
    values = [(now - 30 + 15 * n, str(800 + 150 * n)) for n in range(3)]
    result = [{"metric": {"__name__": name, "attribute": attribute, "pod": "kafka-1"}, "values": values}]
    text = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})
    server.answers[1] = lambda: text
    with metrics(server, cluster, tx_query="x[2m]", rx_query="x[2m]", series_kind=kind) as source:
        assert source.fetch_loads(TIMEOUT).brokers[1].outbound.rate == sent


def test_instant_vector_of_a_counter_is_refused(server: ExporterEmulator, cluster: MemoryCluster) -> None:
    """The total of a counter was read as bytes per second."""
    result = [{"metric": {"__name__": "bytes_total", "pod": "kafka-1"}, "value": [time.time(), "5e8"]}]
    text = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})
    server.answers[1] = lambda: text
    with metrics(server, cluster, tx_query="bytes_total", rx_query="bytes_total") as source:
        loads = source.fetch_loads(TIMEOUT)
    assert loads.brokers == {}
    assert "has the value of a counter (bytes_total). Fix: query a range vector, bytes_total[2m]" in loads.problems[1]
