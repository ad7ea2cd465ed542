"""Cycles of 1,000 brokers under extra load: brokers that read every notification, operators that watch and call.

The load comes from separate processes with the lowest priority (`readers`, `operators`). A figure should contain the
work of the services and ZooKeeper for them, but not their own work. On two CPUs some of their work remains in it.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from autothrottle.core.units import MEGABYTE
from autothrottle_client import AdminClient
from autothrottle_lab.servers.processes import Process, scratch_directory
from autothrottle_lab.servers.services import Deployment
from tests.benchmarks.big_cluster import LARGE
from tests.benchmarks.figures import Figures
from tests.benchmarks.test_cycle import (
    CYCLE_ORIGINAL,
    HEAVY,
    LIGHT,
    PATIENCE_SECONDS,
    RUNS,
    START_ORIGINAL,
    ClusterLab,
    ObservedCycle,
    RunningServices,
    is_clean,
    median_cpu_seconds,
)
from tests.paths import ROOT

READERS, WATCHERS, CALLERS = 100, 100, 50
READING_SECONDS = 600.0
"""Long, since processes with the lowest priority may have to wait for the CPU."""

POST_PAUSE_SECONDS = 0.05
POST_ORIGINAL = "> 30 s"
RISES = (350, 500, 600, 670, 720, 760, 790, 815)
"""Client load at each step of a reassignment, MB/s. Each step lowers all rates by more than the change threshold."""

ABSENT_BROKER = 900_000
"""Id of a broker that does not exist. Its override is stored and starts cycles, but changes no rate."""


@pytest.fixture(scope="module")
def lab() -> Iterator[ClusterLab]:
    with scratch_directory() as directory, ClusterLab(LARGE, directory) as lab:
        yield lab


def program(name: str, log: Path, *arguments: object) -> Process:
    """Start a program of this directory."""
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", *map(str, arguments)]
    return Process(name, command, log, directory=ROOT)


# Readers.


class Readers:
    """The process of the reading brokers, and its reports."""

    def __init__(self, lab: ClusterLab, process: Process) -> None:
        self._lab, self.process = lab, process

    def wait(self) -> dict[str, Any]:
        """Wait until every broker has read every notification; return the newest report."""
        newest = self._lab.cluster.newest_notification()

        def are_done() -> bool:
            return bool(report := self.report()) and report["notifications"][0] == newest + 1

        self.process.wait_until(are_done, READING_SECONDS)
        return self.report()

    def report(self) -> dict[str, Any]:
        lines = self.process.log.read_text().splitlines()
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        return found


@contextmanager
def readers(lab: ClusterLab, directory: Path) -> Iterator[Readers]:
    with program("readers", directory / "readers.log", lab.server.connect, READERS) as process:
        yield Readers(lab, process)


def test_cycles_while_100_brokers_read_every_notification(lab: ClusterLab, figures: Figures, tmp_path: Path) -> None:
    starts, changed, lags = [], [], []

    def observe(reading: Readers, services: RunningServices, cause: Callable[[], object], load: int) -> ObservedCycle:
        found = services.observe(cause, lab.is_throttled(load))
        lags.append(reading.wait()["last"] - found.current.last_write.timestamp())
        return found

    with lab.services() as services, readers(lab, tmp_path) as reading:
        for _ in range(RUNS):
            services.measure_before_reassignment(LIGHT)
            starts.append(observe(reading, services, lab.cluster.start_reassignment, LIGHT))
            services.measure(HEAVY)
            changed.append(observe(reading, services, services.run_cycle, HEAVY))
            services.observe(lab.cluster.cancel_reassignment, is_clean)
            total = reading.wait()
            lab.cluster.clear_notifications()
    size = str(LARGE)
    with_readers = f"{READERS} readers"
    for name, found, original in (
        ("2,000 rates and 200 topics' lists, read back", starts, START_ORIGINAL[LARGE]),
        ("warm, all 2,000 rates changed, read back", changed, CYCLE_ORIGINAL[LARGE]),
    ):
        last_writes = [s.to_last_write for s in found]
        figures.add(
            f"{with_readers}, {name}: cause to last config write",
            size,
            "s",
            last_writes,
            original,
            median_cpu_seconds(found),
        )
        figures.add(f"{with_readers}, {name}: the cycle itself", size, "s", [s.duration for s in found])
    figures.add(f"{with_readers}: last config write to the last read of the last reader", size, "s", lags)
    figures.add(f"{with_readers}: CPU of the reader process, whole run", size, "s", [total["cpu_seconds"]])
    figures.add(f"{with_readers}: bytes read by all readers, whole run", size, "MB", [total["megabytes"]])


# An override during a cycle.


class Posts:
    """Context manager that posts overrides one after the other."""

    def __init__(self, gateway: str) -> None:
        self._gateway, self._ending = gateway, threading.Event()
        self._thread = threading.Thread(target=self._run, name="posts")
        self.done: list[tuple[float, float]] = []
        """(time of sending as Unix time, duration), in seconds."""

    def __enter__(self) -> Posts:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def within(self, start: datetime, end: datetime) -> list[float]:
        """Return the durations of POSTs sent between two times, milliseconds."""
        return [seconds * 1_000 for sent, seconds in self.done if start.timestamp() <= sent <= end.timestamp()]

    def _run(self) -> None:
        rate = 0
        while not self._ending.wait(POST_PAUSE_SECONDS):
            rate = rate % 100 + 1
            sent, begun = time.time(), time.monotonic()
            connection = http.client.HTTPConnection(self._gateway, timeout=PATIENCE_SECONDS)
            connection.request("POST", f"/throttle/{ABSENT_BROKER}?rate={rate}")
            response = connection.getresponse()
            assert response.status == 200, response.read()
            connection.close()
            self.done.append((sent, time.monotonic() - begun))


@contextmanager
def gateway(lab: ClusterLab, services: RunningServices, directory: Path) -> Iterator[str]:
    options = {"admin-addr": services.services.addresses["admin"], "api-listen": "127.0.0.1:0"}
    deployment = Deployment(lab.server.connect, lab.datadog.url, directory, options)
    with deployment.process("gateway", "gateway", {}) as process:
        process.wait_until(lambda: "Admin API: " in process.log.read_text(), PATIENCE_SECONDS)
        yield process.log.read_text().rpartition("Admin API: ")[2].split()[0]


def test_posting_an_override_during_cycles(lab: ClusterLab, figures: Figures, tmp_path: Path) -> None:
    idle: list[float] = []
    starting: list[float] = []
    changing: list[float] = []
    with lab.services() as services, gateway(lab, services, tmp_path) as address:
        for _ in range(RUNS):
            services.measure_before_reassignment(LIGHT)
            for cause, load, found in (
                (lab.cluster.start_reassignment, LIGHT, starting),
                (services.run_cycle, HEAVY, changing),
            ):
                if load != LIGHT:
                    services.measure(load)
                with Posts(address) as posts:
                    seen = services.observe(cause, lab.is_throttled(load))
                    found += posts.within(seen.cycle.start_time, seen.cycle.end_time)
                services.observe(lambda: remove_overrides(services), lab.is_throttled(load))
            services.observe(lab.cluster.cancel_reassignment, is_clean)
            with Posts(address) as posts:
                time.sleep(2)
            idle += [seconds * 1_000 for _, seconds in posts.done]
            remove_overrides(services)
    for name, found in (("reassignment start", starting), ("all rates changed", changing)):
        assert found, "no POST was sent during a cycle"
        figures.add(f"POST of an override during a cycle, {name}", str(LARGE), "ms", found, POST_ORIGINAL)
    figures.add("POST of an override without reassignments", str(LARGE), "ms", idle)


def remove_overrides(services: RunningServices) -> None:
    with AdminClient(services.services.addresses["admin"]) as admin:
        overrides, _ = admin.list_overrides()
        for override in overrides:
            admin.remove_override(override.broker_id)


# Operators.


class Operators:
    """The running program with the watching and calling clients."""

    def __init__(self, process: Process) -> None:
        self._process = process
        process.wait_until(lambda: "ready" in process.log.read_text(), PATIENCE_SECONDS)

    def call(self) -> None:
        """Make all clients call concurrently."""
        os.kill(self._process.pid, signal.SIGUSR1)

    def wait(self) -> tuple[float, float]:
        """Wait until all calls have finished; return the median and the longest duration, seconds."""
        self._process.wait_until(lambda: "called" in self._process.log.read_text(), PATIENCE_SECONDS)
        _, failed, median, longest, *errors = self._process.log.read_text().rpartition("called")[2].split(" ", 4)
        assert int(failed) == 0, errors
        return float(median), float(longest)


@contextmanager
def operators(services: RunningServices, directory: Path, number: int) -> Iterator[Operators]:
    addresses, log = services.services.addresses, directory / f"operators-{number}.log"
    with program("operators", log, addresses["planner-1"], addresses["admin"], WATCHERS, CALLERS) as process:
        yield Operators(process)


def test_cycles_with_and_without_100_watchers_and_50_callers(lab: ClusterLab, figures: Figures, tmp_path: Path) -> None:
    without_clients: list[ObservedCycle] = []
    with_clients: list[ObservedCycle] = []
    calls: list[tuple[float, float]] = []

    def run_cycle_at(services: RunningServices, load: int, cause: Callable[[], object]) -> ObservedCycle:
        services.measure(load)
        return services.observe(cause, lab.is_throttled(load))

    def run_with_clients(services: RunningServices, load: int) -> None:
        with operators(services, tmp_path, len(with_clients)) as clients:

            def cause() -> None:
                clients.call()
                services.run_cycle()

            with_clients.append(run_cycle_at(services, load, cause))
            calls.append(clients.wait())
        remove_overrides(services)

    with lab.services() as services:
        for run in range(RUNS):
            services.measure_before_reassignment(LIGHT)
            services.observe(lab.cluster.start_reassignment, lab.is_throttled(LIGHT))
            for number, rise in enumerate(RISES):  # alternate, so that a noisy minute affects both
                if (number + run) % 2:
                    run_with_clients(services, rise * MEGABYTE)
                else:
                    without_clients.append(run_cycle_at(services, rise * MEGABYTE, services.run_cycle))
            services.observe(lab.cluster.cancel_reassignment, is_clean)
    clients, size = f"{WATCHERS} watchers and {CALLERS} concurrent callers", str(LARGE)
    durations = [s.duration for s in without_clients], [s.duration for s in with_clients]
    for name, found, seconds in (("no clients", without_clients, durations[0]), (clients, with_clients, durations[1])):
        figures.add(f"cycle, all rates changed, {name}", size, "s", seconds, cpu_seconds=median_cpu_seconds(found))
    delay = (statistics.median(durations[1]) / statistics.median(durations[0]) - 1) * 100
    figures.add(f"cycle delay caused by {clients}", size, "%", [delay])
    figures.add(f"one of {CALLERS} concurrent calls during a cycle, median", size, "s", [median for median, _ in calls])
    figures.add(
        f"one of {CALLERS} concurrent calls during a cycle, longest", size, "s", [longest for _, longest in calls]
    )
