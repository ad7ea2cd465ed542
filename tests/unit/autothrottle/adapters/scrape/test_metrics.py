"""Reading exporters directly: a target that fails concerns its broker alone."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.adapters.scrape import ScrapedMetrics, ScrapeSettings
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.exporters import EXPORTERS
from autothrottle.core.traffic.loads import Capacity, Loads
from autothrottle.wire.metrics import loads_from_message, loads_to_message
from autothrottle_lab.emulators.exporter import Answer, ExporterEmulator, node_text, steady
from tests.builders import eventually
from tests.paths import CERTIFICATES

TIMEOUT = timedelta(seconds=20)
LIMITS = CapacityLimits(default=Capacity(100_000_000, 100_000_000))
FAST = timedelta(seconds=0.5)
"""Also the time that a request has, so that a busy machine needs some."""


@pytest.fixture
def exporters() -> Iterator[ExporterEmulator]:
    with ExporterEmulator() as emulator:
        emulator.answers = {1: steady(5e6, 4e6), 2: steady(5e6, 4e6)}
        yield emulator


def scraping(
    exporters: ExporterEmulator,
    url: str = "",
    hosts: Mapping[int, str] | None = None,
    broker_map: Mapping[str, int] | None = None,
    interval: timedelta = FAST,
) -> closing[ScrapedMetrics]:
    hosts = hosts or {1: "127.0.0.1", 2: "127.0.0.1"}
    cluster = MemoryCluster(brokers=tuple(hosts))
    cluster.hosts = {broker_id: (host,) for broker_id, host in hosts.items()}
    settings = ScrapeSettings(
        url or exporters.url, EXPORTERS["node_exporter"], interval, 2 * interval, broker_map or {}
    )
    return closing(ScrapedMetrics(settings, LIMITS, BrokerHosts(cluster)))


def first_of_one(source: ScrapedMetrics) -> Loads:
    """Return the first loads that contain broker 1, and a problem of broker 2 that a sample has caused."""
    found: list[Loads] = []

    def is_complete() -> bool:
        found.append(source.fetch_loads(TIMEOUT))
        return [*found[-1].brokers] == [1] and "a rate needs two" not in found[-1].problems[2]

    eventually(is_complete)
    return found[-1]


def test_first_read_waits_for_two_samples(exporters: ExporterEmulator) -> None:
    """A cycle waits for its loads for a few seconds, less than two intervals of 30 s."""
    with scraping(exporters, interval=timedelta(seconds=30)) as source:
        assert [*source.fetch_loads(TIMEOUT).brokers] == [1, 2]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("hang", "the target does not answer in time"),
        (500, "the target answers 500"),
        (b"<html>x</html>", "the target answers with a malformed text"),
        (b"\xff", "the target answers with a malformed text"),
    ],
)
def test_target_that_fails_is_named_and_the_others_continue(
    answer: Answer, reason: str, exporters: ExporterEmulator
) -> None:
    exporters.answers[2] = answer
    with scraping(exporters) as source:
        loads = first_of_one(source)
    assert [*loads.problems] == [2]
    assert loads.problems[2].startswith(f"broker 2 (http://{exporters.address}) has no sample of node_network_")
    assert reason in loads.problems[2]


def secured(exporters: ExporterEmulator, url: str = "", **files: Any) -> closing[ScrapedMetrics]:
    """Scrape one broker with credentials."""
    cluster = MemoryCluster(brokers=(1,))
    cluster.hosts = {1: ("127.0.0.1",)}
    settings = ScrapeSettings(url or exporters.url, EXPORTERS["node_exporter"], FAST, 2 * FAST, **files)
    return closing(ScrapedMetrics(settings, LIMITS, BrokerHosts(cluster)))


@pytest.mark.parametrize(
    ("option", "text", "header"), [("token_file", "abc", "Bearer abc"), ("user_file", "a:b", "Basic YTpi")]
)
def test_exporters_are_read_with_credentials_of_a_file(
    option: str, text: str, header: str, exporters: ExporterEmulator, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{text}\n")
    with secured(exporters, **{option: str(path)}) as source:
        assert [*source.fetch_loads(TIMEOUT).brokers] == [1]
        assert exporters.headers["authorization"] == header
        path.write_text("c:d\n")
        eventually(lambda: exporters.headers["authorization"] not in ("", header))
        assert [credential.files.problem for credential in source.credentials] == [""]


def test_refused_and_unreadable_credentials_are_named(exporters: ExporterEmulator, tmp_path: Path) -> None:
    exporters.answers[1] = 401
    (tmp_path / "token").write_text("abc")
    with secured(exporters, token_file=str(tmp_path / "token")) as source:
        problem = source.fetch_loads(TIMEOUT).problems[1]
    assert "the target answers 401; check scrape-token-file or scrape-user-file" in problem
    with secured(exporters, token_file=str(tmp_path / "absent")) as source:
        loads = source.fetch_loads(TIMEOUT)
    assert loads.brokers == {}
    assert loads.warnings[0].startswith("scrape-token-file: ")


def test_exporters_certificate_is_checked_with_the_authorities_of_the_option(exporters: ExporterEmulator) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "server.pem")
    exporters.socket = context.wrap_socket(exporters.socket, server_side=True)
    url = exporters.url.replace("http:", "https:")
    with secured(exporters, url, ca_file=str(CERTIFICATES / "ca.pem")) as source:
        assert [*source.fetch_loads(TIMEOUT).brokers] == [1]
        assert [credential.option for credential in source.credentials] == ["scrape-ca"]
    with secured(exporters, url) as source:
        assert "the target cannot be trusted" in source.fetch_loads(TIMEOUT).problems[1]


def test_target_without_the_metrics_of_the_exporter_is_named(exporters: ExporterEmulator) -> None:
    exporters.answers[2] = b"up 1\n"
    with scraping(exporters) as source:
        problem = first_of_one(source).problems[2]
    assert problem.endswith(
        "has no sample of node_network_transmit_bytes_total; check --scrape-url and --broker-exporter"
    )


@pytest.mark.parametrize("value", ["nan", "-1.0"])
def test_sample_that_is_not_a_number_of_bytes_is_named(value: str, exporters: ExporterEmulator) -> None:
    exporters.answers[2] = lambda: node_text(1.0, 1.0).replace(" 1.0", f" {value}")
    with scraping(exporters) as source:
        loads = first_of_one(source)
    assert (
        f"broker 2 (http://{exporters.address}, tx) has a sample of {value} bytes; it must be >= 0" in loads.problems[2]
    )


def stamped_text(tx: object, rx: object, stamp: object, labels: str = 'device="eth0"') -> str:
    """Return the text of one device whose samples have their own time, in milliseconds."""
    values = {"transmit": tx, "receive": rx}
    return "".join(f"node_network_{way}_bytes_total{{{labels}}} {value} {stamp}\n" for way, value in values.items())


_odd_numbers = st.sampled_from(["NaN", "+Inf", "-Inf", "-1", "9e18", "1e400", "9" * 5000, "0x7", "", "1_0"])
_odd_stamps = st.sampled_from(["NaN", "+Inf", "-1", "253402300800000", "9" * 400, "0", "x", ""])
_odd_labels = st.sampled_from(['device="eth0"', 'device="\\ud800"', 'device="', "", "a" * 9999, 'device="eth0",' * 3])
_odd_texts = st.builds(stamped_text, _odd_numbers, _odd_numbers, _odd_stamps, _odd_labels).map(str.encode)
_odd_answers = _odd_texts | st.binary(max_size=40) | st.sampled_from([404, b"", b"# TYPE\n", b"{" * 9999])


@settings(max_examples=1, phases=[Phase.generate])
@given(st.lists(_odd_answers, min_size=40, max_size=40))
def test_odd_texts_of_some_brokers_never_change_the_loads_of_the_others(answers: list[Answer]) -> None:
    """A NaN as a timestamp, or several devices of 9e18 bytes, at one broker took the loads from all brokers.

    An error that the parser raised for one text ended the thread that reads all exporters.
    """
    rates = {1: 5_000_000, 2: 7_000_000}
    start = time.time()

    def good(rate: int) -> str:
        stamp = round(time.time() * 1000)
        total = (stamp - round(start * 1000)) * rate // 1000
        return stamped_text(total, total, stamp)

    with ExporterEmulator() as exporters:
        exporters.answers = {b: partial(good, rate) for b, rate in rates.items()}
        exporters.answers.update(enumerate(answers, 3))
        with scraping(exporters, hosts=dict.fromkeys(exporters.answers, "127.0.0.1"), interval=FAST / 2) as source:
            eventually(lambda: source.fetch_loads(TIMEOUT).brokers.keys() >= {*rates})
            loads = source.fetch_loads(TIMEOUT)
    assert {b: loads.brokers[b].outbound.rate for b in rates} == pytest.approx(rates, rel=1e-5)  # stamps are floats
    assert len(loads.brokers) + len(loads.problems) == 42
    assert loads_from_message(loads_to_message(loads)).brokers == loads.brokers


def test_unexpected_error_in_one_round_does_not_end_the_rounds(
    exporters: ExporterEmulator, caplog: pytest.LogCaptureFixture
) -> None:
    """An error outside the requests ended the thread, and the loads of all brokers became stale for good."""
    with scraping(exporters, interval=FAST / 4) as source:
        eventually(lambda: source.fetch_loads(TIMEOUT).brokers)
        exporters_hosts, source._hosts = source._hosts, None  # type: ignore[assignment]
        eventually(lambda: source.fetch_loads(TIMEOUT).warnings)
        assert "the last round of reading the exporters failed unexpectedly" in source.fetch_loads(TIMEOUT).warnings[0]
        source._hosts = exporters_hosts
        eventually(lambda: not source.fetch_loads(TIMEOUT).warnings)
    assert "Reading the exporters failed unexpectedly; the next round tries again" in caplog.text


def test_odd_host_of_a_broker_is_its_own_problem(exporters: ExporterEmulator) -> None:
    """A registered host with other parts of a URL must not change where the request goes."""
    port = exporters.address.rpartition(":")[2]
    hosts = {1: "127.0.0.1", 2: "x@127.0.0.1", 3: "\ud800", 4: "127.0.0.1/1/metrics?", 5: ""}
    with scraping(exporters, f"http://{{host}}:{port}/{{broker}}/metrics", hosts) as source:
        eventually(lambda: source.fetch_loads(TIMEOUT).brokers)
        loads = source.fetch_loads(TIMEOUT)
    assert ([*loads.brokers], [*loads.problems]) == ([1], [2, 3, 4, 5])


def test_token_in_the_url_is_not_shown(exporters: ExporterEmulator) -> None:
    """The URL was in each problem, and so in logs and in the state. The query of a URL may hold a token."""
    exporters.answers[2] = 500
    with scraping(exporters, f"{exporters.url}?token=secret") as source:
        loads = first_of_one(source)
    assert "secret" not in str(loads)


@pytest.mark.parametrize(("off", "reason"), [(-60, "is stamped 6. s ago"), (60, "stamped (59|60) s in the future")])
def test_clock_of_a_target_off_by_a_minute_is_named(off: float, reason: str, exporters: ExporterEmulator) -> None:
    def stamped() -> str:
        stamp = int((time.time() + off) * 1000)
        lines = node_text(time.time() * 1e6, time.time() * 1e6).splitlines()
        return "\n".join(line if line.startswith("#") else f"{line} {stamp}" for line in lines) + "\n"

    exporters.answers[2] = stamped
    with scraping(exporters) as source:
        loads = first_of_one(source)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(loads.problems[2])


def test_counter_that_starts_again_gives_a_rate_after_two_samples(exporters: ExporterEmulator) -> None:
    """A broker's host that boots again starts its counters at 0; the rate must not be negative or huge."""
    with scraping(exporters) as source:
        eventually(lambda: 2 in source.fetch_loads(TIMEOUT).brokers)
        exporters.answers[2] = lambda: node_text(7.0, 7.0)
        eventually(lambda: "a counter that was reset" in source.fetch_loads(TIMEOUT).problems.get(2, ""))
        eventually(lambda: 2 in source.fetch_loads(TIMEOUT).brokers)
        assert source.fetch_loads(TIMEOUT).brokers[2].outbound.rate == 0


def test_hosts_behind_a_load_balancer_are_named_and_not_requested(exporters: ExporterEmulator) -> None:
    url = f"http://{{host}}:{exporters.address.rpartition(':')[2]}/1/metrics"
    with scraping(exporters, url) as source:
        loads = source.fetch_loads(TIMEOUT)
    assert loads.brokers == {}
    assert "is the target of the brokers 1, 2. Fix: use {broker} in --scrape-url" in loads.problems[1]


def test_map_replaces_the_registered_host(exporters: ExporterEmulator) -> None:
    hosts = {1: "hidden.invalid", 2: "hidden.invalid"}
    url = f"http://{{host}}:{exporters.address.rpartition(':')[2]}/{{broker}}/metrics"
    with scraping(exporters, url, hosts, {"127.0.0.1:9100": 1}) as source:
        eventually(lambda: 1 in source.fetch_loads(TIMEOUT).brokers)


def test_close_ends_all_threads_while_a_target_hangs(exporters: ExporterEmulator) -> None:
    exporters.answers[2] = "hang"
    with scraping(exporters) as source:
        source.fetch_loads(TIMEOUT)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("scrape")]
