"""Reading exporters directly: a target that fails concerns its broker alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta

import pytest

from autothrottle.adapters.kafka_common.broker_hosts import BrokerHosts
from autothrottle.adapters.memory import MemoryCluster
from autothrottle.adapters.scrape import ScrapedMetrics, ScrapeSettings
from autothrottle.core.traffic.capacity import CapacityLimits
from autothrottle.core.traffic.exporters import EXPORTERS
from autothrottle.core.traffic.loads import Capacity, Loads
from autothrottle_lab.emulators.exporter import Answer, ExporterEmulator, node_text, steady
from tests.builders import eventually

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
    cluster = MemoryCluster(brokers=(1, 2))
    cluster.hosts = {broker_id: (host,) for broker_id, host in (hosts or {1: "127.0.0.1", 2: "127.0.0.1"}).items()}
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
    assert loads.problems[2].startswith(
        f"broker 2 (http://{exporters.address}/2/metrics) has no sample of node_network_"
    )
    assert reason in loads.problems[2]


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
    assert f"2/metrics, tx) has a sample of {value} bytes; it must be >= 0" in loads.problems[2]


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
