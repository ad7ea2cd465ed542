"""What others make of a cycle of 1,000 brokers: brokers that read every notification, operators that watch and call.

All of them are extra processes of the lowest priority (`readers`, `operators`): a figure holds what the services and
ZooKeeper do for them, and as little as possible of what they do themselves. With two CPUs some of that remains.
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

from autothrottle.core.loads import MEGABYTE
from autothrottle.lab.processes import Process, scratch_directory
from autothrottle.lab.services import Deployment
from autothrottle_client import AdminClient
from tests.benchmarks.big_cluster import LARGE
from tests.benchmarks.figures import Figures
from tests.benchmarks.test_cycle import (
    CYCLE_ORIGINAL,
    HEAVY,
    LIGHT,
    PATIENCE_SECONDS,
    RUNS,
    START_ORIGINAL,
    House,
    Installation,
    Seen,
    cpu,
    is_clean,
)

READERS, WATCHERS, CALLERS = 100, 100, 50
READING_SECONDS = 600.0
"""What has the lowest priority may have to wait for the machine."""

POST_PAUSE_SECONDS = 0.05
POST_ORIGINAL = "> 30 s"
RISES = (350, 500, 600, 670, 720, 760, 790, 815)
"""What clients send and receive at each step of a move, MB/s: each lowers all rates by more than the threshold."""

NOBODY = 900_000
"""A broker that is not there: an override of it is stored, and starts cycles, but changes no rate."""

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with scratch_directory() as directory, House(LARGE, directory) as house:
        yield house


def program(name: str, log: Path, *arguments: object) -> Process:
    """One of the programs beside this file."""
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", *map(str, arguments)]
    return Process(name, command, log, directory=ROOT)


# Readers.


class Readers:
    """The brokers that read, and what they have said."""

    def __init__(self, house: House, process: Process) -> None:
        self._house, self.process = house, process

    def wait(self) -> dict[str, Any]:
        """Return what was read, once everybody has read every notification that there is."""
        newest = self._house.cluster.newest_notification()

        def are_done() -> bool:
            return bool(said := self.said()) and said["notifications"][0] == newest + 1

        self.process.wait_until(are_done, READING_SECONDS)
        return self.said()

    def said(self) -> dict[str, Any]:
        lines = self.process.log.read_text().splitlines()
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        return found


@contextmanager
def readers(house: House, directory: Path) -> Iterator[Readers]:
    with program("readers", directory / "readers.log", house.server.connect, READERS) as process:
        yield Readers(house, process)


def test_whole_cycles_while_100_brokers_read_every_notification(house: House, figures: Figures, tmp_path: Path) -> None:
    starts, changed, lags = [], [], []

    def seen(reading: Readers, services: Installation, cause: Callable[[], object], load: int) -> Seen:
        found = services.observe(cause, house.is_throttled(load))
        lags.append(reading.wait()["last"] - found.standing.last_write.timestamp())
        return found

    with house.installation() as services, readers(house, tmp_path) as reading:
        for _ in range(RUNS):
            services.measure_before_a_move(LIGHT)
            starts.append(seen(reading, services, house.cluster.start_move, LIGHT))
            services.measure(HEAVY)
            changed.append(seen(reading, services, services.run_cycle, HEAVY))
            services.observe(house.cluster.cancel_move, is_clean)
            total = reading.wait()
            house.cluster.clear_notifications()
    size = str(LARGE)
    with_readers = f"{READERS} readers"
    for name, found, original in (
        ("2,000 rates and 200 topics' lists, read back", starts, START_ORIGINAL[LARGE]),
        ("warm, all 2,000 rates changed, read back", changed, CYCLE_ORIGINAL[LARGE]),
    ):
        last_writes = [s.to_last_write for s in found]
        figures.add(f"{with_readers}, {name}: cause to last config write", size, "s", last_writes, original, cpu(found))
        figures.add(f"{with_readers}, {name}: the cycle itself", size, "s", [s.duration for s in found])
    figures.add(f"{with_readers}: last config write to the last reader's last read", size, "s", lags)
    figures.add(f"{with_readers}: CPU of the process of all readers, whole run", size, "s", [total["cpu_seconds"]])
    figures.add(f"{with_readers}: read by all of them, whole run", size, "MB", [total["megabytes"]])


# An override during a cycle.


class Posts:
    """POSTs of an override, one after the other, from `start` to `stop`; a context manager."""

    def __init__(self, gateway: str) -> None:
        self._gateway, self._ending = gateway, threading.Event()
        self._thread = threading.Thread(target=self._run, name="posts")
        self.done: list[tuple[float, float]] = []
        """(when it was sent, how long its answer took), seconds."""

    def __enter__(self) -> Posts:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def within(self, start: datetime, end: datetime) -> list[float]:
        """Return how long those took that were sent in a stretch of time, milliseconds."""
        return [took * 1_000 for sent, took in self.done if start.timestamp() <= sent <= end.timestamp()]

    def _run(self) -> None:
        rate = 0
        while not self._ending.wait(POST_PAUSE_SECONDS):
            rate = rate % 100 + 1
            sent, begun = time.time(), time.monotonic()
            connection = http.client.HTTPConnection(self._gateway, timeout=PATIENCE_SECONDS)
            connection.request("POST", f"/throttle/{NOBODY}?rate={rate}")
            response = connection.getresponse()
            assert response.status == 200, response.read()
            connection.close()
            self.done.append((sent, time.monotonic() - begun))


@contextmanager
def gateway(house: House, services: Installation, directory: Path) -> Iterator[str]:
    options = {"admin-addr": services.services.addresses["admin"], "api-listen": "127.0.0.1:0"}
    deployment = Deployment(house.server.connect, house.datadog.url, directory, options)
    with deployment.process("gateway", "gateway", {}) as process:
        process.wait_until(lambda: "Admin API: " in process.log.read_text(), PATIENCE_SECONDS)
        yield process.log.read_text().rpartition("Admin API: ")[2].split()[0]


def test_an_override_is_posted_during_cycles(house: House, figures: Figures, tmp_path: Path) -> None:
    idle: list[float] = []
    starting: list[float] = []
    changing: list[float] = []
    with house.installation() as services, gateway(house, services, tmp_path) as address:
        for _ in range(RUNS):
            services.measure_before_a_move(LIGHT)
            for cause, load, found in (
                (house.cluster.start_move, LIGHT, starting),
                (services.run_cycle, HEAVY, changing),
            ):
                if load != LIGHT:
                    services.measure(load)
                with Posts(address) as posts:
                    seen = services.observe(cause, house.is_throttled(load))
                    found += posts.within(seen.cycle.start, seen.cycle.end)
                services.observe(lambda: remove_overrides(services), house.is_throttled(load))
            services.observe(house.cluster.cancel_move, is_clean)
            with Posts(address) as posts:
                time.sleep(2)
            idle += [took * 1_000 for _, took in posts.done]
            remove_overrides(services)
    for name, found in (("the first of a move", starting), ("all rates changed", changing)):
        assert found, "no POST was sent in the middle of a cycle"
        figures.add(f"POST of an override during a cycle, {name}", str(LARGE), "ms", found, POST_ORIGINAL)
    figures.add("POST of an override while nothing moves", str(LARGE), "ms", idle)


def remove_overrides(services: Installation) -> None:
    with AdminClient(services.services.addresses["admin"]) as admin:
        overrides, _ = admin.list_overrides()
        for override in overrides:
            admin.remove_override(override.broker_id)


# Operators.


class Operators:
    """The program with the clients, when it runs."""

    def __init__(self, process: Process) -> None:
        self._process = process
        process.wait_until(lambda: "ready" in process.log.read_text(), PATIENCE_SECONDS)

    def call(self) -> None:
        """Let all call at once."""
        os.kill(self._process.pid, signal.SIGUSR1)

    def wait(self) -> tuple[float, float]:
        """Return (median, longest) of the seconds of the calls, once all have their answer."""
        self._process.wait_until(lambda: "called" in self._process.log.read_text(), PATIENCE_SECONDS)
        _, failed, median, longest, *why = self._process.log.read_text().rpartition("called")[2].split(" ", 4)
        assert int(failed) == 0, why
        return float(median), float(longest)


@contextmanager
def operators(services: Installation, directory: Path, number: int) -> Iterator[Operators]:
    addresses, log = services.services.addresses, directory / f"operators-{number}.log"
    with program("operators", log, addresses["planner-1"], addresses["admin"], WATCHERS, CALLERS) as process:
        yield Operators(process)


def test_cycles_with_and_without_100_that_watch_and_50_that_call(
    house: House, figures: Figures, tmp_path: Path
) -> None:
    alone: list[Seen] = []
    among: list[Seen] = []
    calls: list[tuple[float, float]] = []

    def changed(services: Installation, load: int, cause: Callable[[], object]) -> Seen:
        services.measure(load)
        return services.observe(cause, house.is_throttled(load))

    def among_clients(services: Installation, load: int) -> None:
        with operators(services, tmp_path, len(among)) as clients:

            def cause() -> None:
                clients.call()
                services.run_cycle()

            among.append(changed(services, load, cause))
            calls.append(clients.wait())
        remove_overrides(services)

    with house.installation() as services:
        for run in range(RUNS):
            services.measure_before_a_move(LIGHT)
            services.observe(house.cluster.start_move, house.is_throttled(LIGHT))
            for number, rise in enumerate(RISES):  # by turns, so that a noisy minute hits both
                if (number + run) % 2:
                    among_clients(services, rise * MEGABYTE)
                else:
                    alone.append(changed(services, rise * MEGABYTE, services.run_cycle))
            services.observe(house.cluster.cancel_move, is_clean)
    clients, size = f"{WATCHERS} that watch, {CALLERS} that call at once", str(LARGE)
    durations = [s.duration for s in alone], [s.duration for s in among]
    for name, found, took in (("no client", alone, durations[0]), (clients, among, durations[1])):
        figures.add(f"cycle, all rates changed, {name}", size, "s", took, cpu_seconds=cpu(found))
    delay = (statistics.median(durations[1]) / statistics.median(durations[0]) - 1) * 100
    figures.add(f"cycle delayed by {clients}", size, "%", [delay])
    figures.add(f"a call among {CALLERS} at once during a cycle, median", size, "s", [median for median, _ in calls])
    figures.add(f"a call among {CALLERS} at once during a cycle, longest", size, "s", [longest for _, longest in calls])
