"""Whole cycles over separate processes and a real ZooKeeper, seen from outside.

The services are started as an operator starts them. A figure ends with the last write of a config, by the clock of
ZooKeeper's transactions, and every value is read back.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from autothrottle.adapters.rpc import PlannerClient
from autothrottle.adapters.zookeeper.session import connect, disconnect
from autothrottle.core.configs import ReplicaRole
from autothrottle.core.cycle import CycleRecord
from autothrottle.core.loads import MEGABYTE
from autothrottle.lab.datadog import DatadogEmulator
from autothrottle.lab.processes import Process, scratch_directory
from autothrottle.lab.services import Deployment, ServiceProcesses
from autothrottle.planner.triggers import SPACING
from autothrottle.v1.planner_pb2 import WatchCyclesRequest
from autothrottle.v1.planner_pb2_grpc import PlannerServiceStub
from autothrottle.wire.cycles import cycle_from_message
from tests.benchmarks.big_cluster import (
    CAPACITY,
    LARGE,
    MAX_RATIO,
    SMALL,
    BigCluster,
    Clients,
    RoomyZooKeeper,
    Size,
    Standing,
)
from tests.benchmarks.figures import Figures

RUNS = 3
WINDOW_SECONDS = 5
"""Longer than a cycle, so that the next one that is asked for uses the loads of the last."""

SESSION_SECONDS = 6
INTERVAL_SECONDS = 600
"""So long that only what a bench asks for starts a cycle, but for the first one of a term."""

REST_SECONDS = 4.0
PATIENCE_SECONDS = 90.0
RPC = timedelta(seconds=10)
ROOMY = [("grpc.max_receive_message_length", 64 * 1024 * 1024)]
LIGHT, HEAVY, HEAVIER = 200 * MEGABYTE, 500 * MEGABYTE, 700 * MEGABYTE
"""What the clients of every broker send and receive, bytes/s: only more, since raises wait for the quota window."""

CYCLE_ORIGINAL = {SMALL: "61 s", LARGE: "304 s"}
UNCHANGED_ORIGINAL = {SMALL: "", LARGE: "252 s"}
START_ORIGINAL = {SMALL: "1.8 to 3.2 s with 5 brokers", LARGE: "260 s"}
END_ORIGINAL = "5 to 7 s with 5 brokers"


@dataclass(frozen=True, slots=True)
class Seen:
    """A cycle, and what stood after it."""

    asked: datetime
    """When what started it was done."""
    cycle: CycleRecord
    """The last one that was needed."""
    standing: Standing
    cpu_seconds: Mapping[str, float]
    """Service -> CPU seconds that its processes took from `asked` on."""

    @property
    def to_last_write(self) -> float:
        return (self.standing.last_write - self.asked).total_seconds()

    @property
    def duration(self) -> float:
        return (self.cycle.end - self.cycle.start).total_seconds()


class Installation:
    """The services of one cluster, and the load that they are told of."""

    def __init__(self, services: ServiceProcesses, cluster: BigCluster, clients: Clients) -> None:
        self.services, self._cluster, self._clients = services, cluster, clients
        planners = tuple(services.addresses[name] for name in services.processes if name.startswith("planner"))
        self._planner = PlannerClient(planners)
        self._channels = [grpc.insecure_channel(address, options=ROOMY) for address in planners]
        self._newest: CycleRecord | None = None
        self._closed, self._lock = threading.Event(), threading.Lock()
        self._followers = [threading.Thread(target=self._follow, args=(c,), daemon=True) for c in self._channels]
        for follower in self._followers:
            follower.start()

    def close(self) -> None:
        self._closed.set()
        self._planner.close()
        for channel in self._channels:
            channel.close()
        for follower in self._followers:
            follower.join()

    def observe(
        self, cause: Callable[[], object], is_there: Callable[[Standing], bool], begin: datetime | None = None
    ) -> Seen:
        """Do something, and return the cycle after which everything is as it shall be."""
        # What began before this call may be over by now, its cycle too.
        before, cpu = (None, {}) if begin else (self.last_cycle(), self._cpu_seconds())
        asked = begin or datetime.now(UTC)
        cause()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            cycle = self.last_cycle()
            if cycle is not None and cycle != before and cycle.start >= asked:
                assert not cycle.error, cycle.error
                standing = self._cluster.standing()
                if is_there(standing):
                    taken = {name: seconds - cpu.get(name, 0.0) for name, seconds in self._cpu_seconds().items()}
                    return Seen(asked, cycle, standing, taken)
                before = cycle
            time.sleep(0.05)
        raise TimeoutError(f"not done after {PATIENCE_SECONDS:g} s: {self.services.log()[-3000:]}")

    def last_cycle(self) -> CycleRecord | None:
        """Return the newest of all planners."""
        return self._newest

    def _follow(self, channel: grpc.Channel) -> None:
        """Keep the newest cycle, each decoded once.

        Whoever asks 20 times a second is sent 2,000 decisions each time, and the process that asks serves the metrics
        as well: that would be in the figures.
        """
        stub = PlannerServiceStub(channel)
        while not self._closed.wait(0.05):
            with suppress(grpc.RpcError, ValueError):  # ValueError: the channel was closed
                for sent in stub.WatchCycles(WatchCyclesRequest()):
                    cycle = cycle_from_message(sent.cycle)
                    with self._lock:
                        known = self._newest
                        if known is None or (known.term, known.number) < (cycle.term, cycle.number):
                            self._newest = cycle

    def run_cycle(self) -> None:
        self._planner.run_cycle("bench", RPC)

    def measure(self, clients_bytes: int) -> None:
        """Return when the window of the metrics holds nothing but this load, with throttles used to the full."""
        self._wait_for_rest()
        rates = self._cluster.standing().rates()
        self._clients.set_rates(
            {
                b: tuple(clients_bytes + rates.get((b, role), 0) for role in (ReplicaRole.LEADER, ReplicaRole.FOLLOWER))  # type: ignore[misc]
                for b in self._cluster.size.broker_ids
            }
        )
        time.sleep(2 * WINDOW_SECONDS + 1)

    def measure_before_a_move(self, clients_bytes: int) -> None:
        """Return when this load was measured while nothing moves, as a cycle of each interval does."""
        self.measure(clients_bytes)
        self.observe(self.run_cycle, is_clean)

    def _wait_for_rest(self) -> None:
        """Return once no cycle follows: one that reads the loads while they change would decide on a mixture."""
        last, since = self.last_cycle(), time.monotonic()
        while time.monotonic() - since < REST_SECONDS:
            time.sleep(0.1)
            if (cycle := self.last_cycle()) != last:
                last, since = cycle, time.monotonic()

    def leader(self) -> Process:
        return self.services.planner(self._planner.state(RPC).leader_address)

    def memory_megabytes(self, name: str) -> tuple[float, float]:
        """Return what a process holds now, and the most that it ever held, in MB."""
        lines = Path(f"/proc/{self.services.processes[name].pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        now, most = (int(fields[field].split()[0]) * 1024 / MEGABYTE for field in ("VmRSS", "VmHWM"))
        return now, most

    def open_files(self, name: str) -> int:
        """Return how many files and sockets a process holds open."""
        return len(list(Path(f"/proc/{self.services.processes[name].pid}/fd").iterdir()))

    def _cpu_seconds(self) -> dict[str, float]:
        return {name: _cpu_seconds(p.pid) for name, p in self.services.processes.items() if p.running}


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class House:
    """A cluster in a ZooKeeper of its own, to which services are started again and again."""

    def __init__(self, size: Size, directory: Path) -> None:
        self.size, self._directory, self._stack, self._starts = size, directory, ExitStack(), 0

    def __enter__(self) -> House:
        with ExitStack() as stack:
            self.server = stack.enter_context(RoomyZooKeeper(self._directory / "zookeeper"))
            client = connect(self.server.connect, timedelta(seconds=30), timedelta(seconds=30))
            stack.callback(disconnect, client)
            self.cluster = BigCluster(client, self.size)
            self.cluster.build()
            self.datadog = stack.enter_context(DatadogEmulator())
            self.clients = stack.enter_context(Clients(self.datadog, self.size.broker_ids))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def installation(self, planners: int = 1, interval_seconds: int = INTERVAL_SECONDS) -> Iterator[Installation]:
        """Give running services."""
        self._starts += 1
        directory = self._directory / f"services-{self._starts}"
        directory.mkdir()
        options = {
            "interval": str(interval_seconds),
            "metrics-window": str(WINDOW_SECONDS),
            "default-capacity": str(CAPACITY // MEGABYTE),
            "max-rate": f"{MAX_RATIO:.0%}".rstrip("%"),
            "zk-session-timeout": str(SESSION_SECONDS),
        }
        deployment = Deployment(self.server.connect, self.datadog.url, directory, options)
        with ServiceProcesses(deployment, planners) as services:
            installation = Installation(services, self.cluster, self.clients)
            try:
                yield installation
            finally:
                installation.close()

    def is_throttled(self, clients_bytes: int) -> Callable[[Standing], bool]:
        """Return the question whether every rate and list is what this load asks for."""
        wanted, rate = self.cluster.expected_lists(), (CAPACITY - clients_bytes) * MAX_RATIO

        def question(standing: Standing) -> bool:
            rates = standing.rates()
            is_near = all(abs(found - rate) < 0.02 * rate for found in rates.values())
            return len(rates) == 2 * self.size.brokers and is_near and standing.lists() == wanted

        return question


@pytest.fixture(params=[SMALL, LARGE], ids=["200 brokers", "1000 brokers"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    with scratch_directory() as directory, House(request.param, directory) as house:
        yield house


def is_clean(standing: Standing) -> bool:
    return not standing.rates() and not standing.lists()


def add_cycles(figures: Figures, size: Size, name: str, seen: list[Seen], original: str = "") -> None:
    last_writes = [s.to_last_write for s in seen]
    figures.add(f"{name}: cause to last config write", str(size), "s", last_writes, original, cpu(seen))
    figures.add(f"{name}: the cycle itself", str(size), "s", [s.duration for s in seen])


def cpu(seen: list[Seen]) -> dict[str, float]:
    """The CPU seconds of each service in one run, the median."""
    names = {"discovery": "discovery", "metrics": "metrics", "planner-1": "planner", "applier": "applier"}
    return {shown: statistics.median(s.cpu_seconds[name] for s in seen) for name, shown in names.items()}


def test_cycles_of_services_that_run(house: House, figures: Figures) -> None:
    size, cluster = house.size, house.cluster
    starts, changed, unchanged, rereads, ends = [], [], [], [], []
    with house.installation() as services:
        for run in range(RUNS):
            services.measure_before_a_move(LIGHT)  # also lets the services come to rest after their start
            starts.append(services.observe(cluster.start_move, house.is_throttled(LIGHT)))
            for load in (HEAVY, HEAVIER):
                services.measure(load)
                changed.append(services.observe(services.run_cycle, house.is_throttled(load)))
            services.measure(HEAVIER)
            rereads.append(services.observe(services.run_cycle, house.is_throttled(HEAVIER)))
            time.sleep(SPACING.total_seconds())  # else the wait for its turn would be measured
            unchanged.append(services.observe(services.run_cycle, house.is_throttled(HEAVIER)))
            if run == RUNS - 1:
                add_memory(figures, size, services)
            ends.append(services.observe(cluster.cancel_move, is_clean))
    add_cycles(figures, size, "reassignment start", starts, START_ORIGINAL[size])
    add_cycles(figures, size, "warm, all rates changed", changed, CYCLE_ORIGINAL[size])
    for name, seen in (("loads known", unchanged), ("loads read anew", rereads)):
        name = f"nothing changed, {name}"
        samples = [(s.cycle.end - s.asked).total_seconds() for s in seen]
        figures.add(f"{name}: request to end of cycle", str(size), "s", samples, UNCHANGED_ORIGINAL[size], cpu(seen))
    add_cycles(figures, size, "reassignment end", ends, END_ORIGINAL)


def add_memory(figures: Figures, size: Size, services: Installation) -> None:
    for name in ("discovery", "metrics", "planner-1", "applier"):
        now, most = services.memory_megabytes(name)
        service = name.removesuffix("-1")
        figures.add(f"memory of {service} after the cycles (RSS)", str(size), "MB", [now])
        figures.add(f"memory of {service}, the most (RSS)", str(size), "MB", [most])


def test_first_cycle_of_services_that_start(house: House, figures: Figures) -> None:
    house.cluster.start_move()
    house.clients.set_rates(dict.fromkeys(house.size.broker_ids, (float(LIGHT), float(LIGHT))))
    time.sleep(2 * WINDOW_SECONDS + 1)
    seen = []
    for _ in range(RUNS):
        begin = datetime.now(UTC)
        with house.installation() as services:
            up = datetime.now(UTC)
            first = services.observe(lambda: None, house.is_throttled(LIGHT), begin)
            seen.append((first, (first.standing.last_write - up).total_seconds()))
        house.cluster.wipe_throttles()
    name, size, original = "cold, everything new", str(house.size), CYCLE_ORIGINAL[house.size]
    cycles = [first for first, _ in seen]
    last_writes = [s.to_last_write for s in cycles]
    figures.add(f"{name}: processes started to last config write", size, "s", last_writes, original, cpu(cycles))
    figures.add(f"{name}: all listening to last config write", size, "s", [after for _, after in seen])
    figures.add(f"{name}: the cycle itself", size, "s", [s.duration for s in cycles])


def test_failover(house: House, figures: Figures) -> None:
    house.cluster.start_move()
    house.clients.set_rates(dict.fromkeys(house.size.broker_ids, (float(LIGHT), float(LIGHT))))
    time.sleep(2 * WINDOW_SECONDS + 1)
    with house.installation(planners=2 * RUNS + 1) as services:
        services.observe(lambda: None, house.is_throttled(LIGHT), datetime.fromtimestamp(0, UTC))
        for number in (signal.SIGTERM, signal.SIGKILL):
            begun, ended = [], []
            for _ in range(RUNS):
                killed, cycle = end_the_leader(services, number)
                begun.append((cycle.start - killed).total_seconds())
                ended.append((cycle.end - killed).total_seconds())
            name = f"{number.name} of the leader (session time-out {SESSION_SECONDS} s) to the other's first cycle"
            figures.add(f"{name}: begun", str(house.size), "s", begun)
            figures.add(f"{name}: ended", str(house.size), "s", ended)


def end_the_leader(services: Installation, number: signal.Signals) -> tuple[datetime, CycleRecord]:
    """Return when the leader was sent a signal, and the next leader's first cycle."""
    leader = services.leader()
    before = services.last_cycle()
    assert before is not None
    killed = datetime.now(UTC)
    leader.kill() if number is signal.SIGKILL else leader.terminate()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        cycle = services.last_cycle()
        if cycle is not None and cycle.term > before.term:
            assert not cycle.error, cycle.error
            return killed, cycle
        time.sleep(0.05)
    raise TimeoutError(f"nobody leads {PATIENCE_SECONDS:g} s after the end of the leader")
