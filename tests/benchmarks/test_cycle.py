"""Complete cycles of separate service processes with a real ZooKeeper.

The services start as in a real deployment. A measurement ends with the last config write, by the modification time in
ZooKeeper. Every written value is read back.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from kazoo.client import KazooClient

from autothrottle.adapters.grpc.services import PlannerServiceClient
from autothrottle.adapters.state_store.operator_stores import NodeAuditedMap
from autothrottle.adapters.zookeeper import map_codecs
from autothrottle.adapters.zookeeper.codec import format_config
from autothrottle.adapters.zookeeper.paths import KafkaPaths
from autothrottle.adapters.zookeeper.session import connect, disconnect
from autothrottle.adapters.zookeeper_state.nodes import ZooKeeperNodeStore
from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.quotas.keys import DEFAULT, ClientQuotaEntity, QuotaKey
from autothrottle.core.quotas.yielding import YieldRule
from autothrottle.core.records import Cycle
from autothrottle.core.units import MEGABYTE
from autothrottle.planner.loop import SPACING
from autothrottle.v1.planner_pb2 import WatchCyclesRequest
from autothrottle.v1.planner_pb2_grpc import PlannerServiceStub
from autothrottle.wire.common import SAME_NAMES
from autothrottle_lab.emulators.datadog import DatadogEmulator
from autothrottle_lab.servers.processes import Process, scratch_directory
from autothrottle_lab.servers.services import Deployment, ServiceProcesses
from tests.benchmarks.big_cluster import (
    CAPACITY,
    LARGE,
    MAX_RATIO,
    SMALL,
    BigCluster,
    Clients,
    CurrentConfigs,
    RoomyZooKeeper,
    Size,
)
from tests.benchmarks.figures import Figures

RUNS = 3
WINDOW_SECONDS = 5
"""Longer than a cycle, so that a second requested cycle uses the loads of the first."""

SESSION_SECONDS = 6
INTERVAL_SECONDS = 600
"""Long enough that only the benchmark starts cycles, apart from the first one of a term."""

REST_SECONDS = 4.0
REST_OF_LARGE_START_SECONDS = 22.0
"""The planner asks for a cycle 20 s after it has throttled a part of a large start."""
LARGE_START = 150_000
YIELD_RULES, YIELDING, YIELD_LIMIT = 100, 1_000, 20 * MEGABYTE
PATIENCE_SECONDS = 90.0
RPC = timedelta(seconds=10)
ROOMY = [("grpc.max_receive_message_length", 64 * 1024 * 1024)]
LIGHT, HEAVY, HEAVIER = 200 * MEGABYTE, 500 * MEGABYTE, 700 * MEGABYTE
"""Client load of every broker in each direction, bytes/s. It only rises, since raised throttles wait for the quota
window."""

CYCLE_ORIGINAL = {SMALL: "61 s", LARGE: "304 s"}
UNCHANGED_ORIGINAL = {SMALL: "", LARGE: "252 s"}
START_ORIGINAL = {SMALL: "1.8 to 3.2 s with 5 brokers", LARGE: "260 s"}
END_ORIGINAL = "5 to 7 s with 5 brokers"


@dataclass(frozen=True, slots=True)
class ObservedCycle:
    """An observed cycle and the configs after it."""

    asked: datetime
    """Time of the event that started the cycle."""
    cycle: Cycle
    """The cycle after which the expected configs were present."""
    current: CurrentConfigs
    cpu_seconds: Mapping[str, float]
    """Service -> CPU seconds of its processes since `asked`."""

    @property
    def to_last_write(self) -> float:
        return (self.current.last_write - self.asked).total_seconds()

    @property
    def duration(self) -> float:
        return (self.cycle.end_time - self.cycle.start_time).total_seconds()


class RunningServices:
    """The running services of one cluster, and the client load that the benchmark reports to them."""

    def __init__(self, services: ServiceProcesses, cluster: BigCluster, clients: Clients) -> None:
        self.services, self._cluster, self._clients = services, cluster, clients
        planners = tuple(services.addresses[name] for name in services.processes if name.startswith("planner"))
        self._planner = PlannerServiceClient(planners)
        self._channels = [grpc.insecure_channel(address, options=ROOMY) for address in planners]
        self._newest: Cycle | None = None
        self._closed, self._lock = threading.Event(), threading.Lock()
        self._watchers = [threading.Thread(target=self._watch_cycles, args=(c,), daemon=True) for c in self._channels]
        for watcher in self._watchers:
            watcher.start()

    def close(self) -> None:
        self._closed.set()
        self._planner.close()
        for channel in self._channels:
            channel.close()
        for watcher in self._watchers:
            watcher.join()

    def observe(
        self, cause: Callable[[], object], is_there: Callable[[CurrentConfigs], bool], begin: datetime | None = None
    ) -> ObservedCycle:
        """Run `cause` and return the first cycle after which `is_there` holds for the configs.

        `begin`: time of a cause that precedes this call; its cycle may already be over.
        """
        before, cpu = (None, {}) if begin else (self.last_cycle(), self._cpu_seconds())
        asked = begin or datetime.now(UTC)
        cause()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            cycle = self.last_cycle()
            if cycle is not None and cycle != before and cycle.start_time >= asked:
                assert not cycle.error, cycle.error
                current = self._cluster.current()
                if is_there(current):
                    taken = {name: seconds - cpu.get(name, 0.0) for name, seconds in self._cpu_seconds().items()}
                    return ObservedCycle(asked, cycle, current, taken)
                before = cycle
            time.sleep(0.05)
        raise TimeoutError(f"configs still differ after {PATIENCE_SECONDS:g} s: {self.services.log()[-3000:]}")

    def last_cycle(self) -> Cycle | None:
        """Return the newest cycle of any planner."""
        return self._newest

    def _watch_cycles(self, channel: grpc.Channel) -> None:
        """Keep the newest cycle from a stream, so that each cycle is sent and decoded once.

        Polling 20 times a second would transfer 2,000 decisions each time. That load would distort the figures,
        since this process also serves the metrics.
        """
        stub = PlannerServiceStub(channel)
        while not self._closed.wait(0.05):
            with suppress(grpc.RpcError, ValueError):  # ValueError: the channel was closed
                for sent in stub.WatchCycles(WatchCyclesRequest()):
                    cycle = SAME_NAMES.from_message(Cycle, sent.cycle)
                    with self._lock:
                        known = self._newest
                        if known is None or (known.term, known.number) < (cycle.term, cycle.number):
                            self._newest = cycle

    def run_cycle(self) -> None:
        self._planner.run_cycle("bench", RPC)

    def measure(self, clients_bytes: int) -> None:
        """Set the client load in bytes/s plus fully used throttles, and wait until it fills the metrics window."""
        self._wait_for_rest()
        rates = self._cluster.current().rates()
        self._clients.set_rates(
            {
                b: tuple(clients_bytes + rates.get((b, role), 0) for role in (ReplicaRole.LEADER, ReplicaRole.FOLLOWER))  # type: ignore[misc]
                for b in self._cluster.size.broker_ids
            }
        )
        time.sleep(2 * WINDOW_SECONDS + 1)

    def measure_before_reassignment(self, clients_bytes: int) -> None:
        """Like `measure`, but let a cycle without reassignments read the load too."""
        self.measure(clients_bytes)
        self.observe(self.run_cycle, is_clean)

    def _wait_for_rest(self) -> None:
        """Wait until cycles stop. A cycle during a load change would decide on a mixture of old and new loads."""
        size = self._cluster.size
        is_large = size.topics * size.partitions_per_topic >= LARGE_START
        rest = REST_OF_LARGE_START_SECONDS if is_large else REST_SECONDS
        last, since = self.last_cycle(), time.monotonic()
        while time.monotonic() - since < rest:
            time.sleep(0.1)
            if (cycle := self.last_cycle()) != last:
                last, since = cycle, time.monotonic()

    def leader(self) -> Process:
        return self.services.planner(self._planner.state(RPC).leader_address)

    def memory_megabytes(self, name: str) -> tuple[float, float]:
        """Return the current and the peak resident memory of a process, in MB."""
        lines = Path(f"/proc/{self.services.processes[name].pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        now, most = (int(fields[field].split()[0]) * 1024 / MEGABYTE for field in ("VmRSS", "VmHWM"))
        return now, most

    def open_files(self, name: str) -> int:
        """Return the number of open files and sockets of a process."""
        return len(list(Path(f"/proc/{self.services.processes[name].pid}/fd").iterdir()))

    def _cpu_seconds(self) -> dict[str, float]:
        return {name: _cpu_seconds(p.pid) for name, p in self.services.processes.items() if p.running}


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class ClusterLab:
    """A cluster in its own ZooKeeper. Benchmarks start and stop services for it several times."""

    def __init__(self, size: Size, directory: Path) -> None:
        self.size, self._directory, self._stack, self._starts = size, directory, ExitStack(), 0

    def __enter__(self) -> ClusterLab:
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
    def services(self, planners: int = 1, interval_seconds: int = INTERVAL_SECONDS) -> Iterator[RunningServices]:
        """Start all services, and stop them at the end."""
        self._starts += 1
        directory = self._directory / f"services-{self._starts}"
        directory.mkdir()
        options = {
            "interval": str(interval_seconds),
            "metrics-window": str(WINDOW_SECONDS),
            "default-capacity": str(CAPACITY // MEGABYTE),
            "max-rate": f"{MAX_RATIO:.0%}".rstrip("%"),
            "session-timeout": str(SESSION_SECONDS),
        }
        deployment = Deployment(self.server.connect, self.datadog.url, directory, options)
        with ServiceProcesses(deployment, planners) as services:
            running = RunningServices(services, self.cluster, self.clients)
            try:
                yield running
            finally:
                running.close()

    def is_throttled(self, clients_bytes: int) -> Callable[[CurrentConfigs], bool]:
        """Return a predicate: every rate and every list is correct for this client load in bytes/s."""
        expected_lists, rate = self.cluster.expected_lists(), (CAPACITY - clients_bytes) * MAX_RATIO

        def is_correct(current: CurrentConfigs) -> bool:
            rates = current.rates()
            is_near = all(abs(found - rate) < 0.02 * rate for found in rates.values())
            return len(rates) == 2 * self.size.brokers and is_near and current.lists() == expected_lists

        return is_correct


@pytest.fixture(params=[SMALL, LARGE], ids=["200 brokers", "1000 brokers"])
def lab(request: pytest.FixtureRequest) -> Iterator[ClusterLab]:
    """A cluster of one of the sizes, or of the size that `--size` gives instead of the largest one."""
    other = request.config.getoption("--size", default=None)
    size = other if other is not None and request.param is LARGE else request.param
    with scratch_directory() as directory, ClusterLab(size, directory) as lab:
        yield lab


def is_clean(current: CurrentConfigs) -> bool:
    return not current.rates() and not current.lists()


def add_cycles(figures: Figures, size: Size, name: str, seen: list[ObservedCycle], original: str = "") -> None:
    last_writes = [s.to_last_write for s in seen]
    figures.add(f"{name}: cause to last config write", str(size), "s", last_writes, original, median_cpu_seconds(seen))
    figures.add(f"{name}: the cycle itself", str(size), "s", [s.duration for s in seen])


def median_cpu_seconds(seen: list[ObservedCycle]) -> dict[str, float]:
    """Service -> median CPU seconds of one run."""
    names = {"discovery": "discovery", "metrics": "metrics", "planner-1": "planner", "applier": "applier"}
    return {shown: statistics.median(s.cpu_seconds[name] for s in seen) for name, shown in names.items()}


def test_cycles_of_running_services(lab: ClusterLab, figures: Figures, request: pytest.FixtureRequest) -> None:
    size, cluster, runs = lab.size, lab.cluster, request.config.getoption("--runs")
    starts, changed, unchanged, rereads, ends = [], [], [], [], []
    with lab.services() as services:
        for run in range(runs):
            services.measure_before_reassignment(LIGHT)  # also waits until the services settle after their start
            starts.append(services.observe(cluster.start_reassignment, lab.is_throttled(LIGHT)))
            for load in (HEAVY, HEAVIER):
                services.measure(load)
                changed.append(services.observe(services.run_cycle, lab.is_throttled(load)))
            services.measure(HEAVIER)
            rereads.append(services.observe(services.run_cycle, lab.is_throttled(HEAVIER)))
            time.sleep(SPACING.total_seconds())  # otherwise the figure would contain the minimum pause between cycles
            unchanged.append(services.observe(services.run_cycle, lab.is_throttled(HEAVIER)))
            if run == runs - 1:
                add_memory(figures, size, services)
            ends.append(services.observe(cluster.cancel_reassignment, is_clean))
    add_cycles(figures, size, "reassignment start", starts, START_ORIGINAL.get(size, ""))
    last_rates = [(s.current.last_rate - s.asked).total_seconds() for s in starts]
    figures.add("reassignment start: cause to last rate", str(size), "s", last_rates)
    add_cycles(figures, size, "warm, all rates changed", changed, CYCLE_ORIGINAL.get(size, ""))
    for name, seen in (("loads known", unchanged), ("loads read again", rereads)):
        name = f"nothing changed, {name}"
        samples = seconds_of(seen)
        figures.add(
            f"{name}: request to end of cycle",
            str(size),
            "s",
            samples,
            UNCHANGED_ORIGINAL.get(size, ""),
            median_cpu_seconds(seen),
        )
    add_cycles(figures, size, "reassignment end", ends, END_ORIGINAL)


@pytest.mark.parametrize("lab", [LARGE], indirect=True, ids=["1000 brokers"])
def test_cycles_while_partitions_finish(lab: ClusterLab, figures: Figures) -> None:
    """One partition finishes before each cycle, as in the usual hours of a large reassignment."""
    cluster = lab.cluster
    cluster.start_reassignment()
    lab.clients.set_rates(dict.fromkeys(lab.size.broker_ids, (float(LIGHT), float(LIGHT))))
    time.sleep(2 * WINDOW_SECONDS + 1)
    with lab.services() as services:
        services.observe(lambda: None, lab.is_throttled(LIGHT), datetime.fromtimestamp(0, UTC))
        unchanged = unchanged_cycles(services, lab)
        finished = []
        for number in range(4 * RUNS):
            time.sleep(SPACING.total_seconds())
            cluster.finish_partition(number)
            finished.append(services.observe(services.run_cycle, lab.is_throttled(LIGHT)))
    for what, cycles in (("nothing changed", unchanged), ("one partition finished", finished)):
        figures.add(f"{what}: request to end of cycle", str(lab.size), "s", seconds_of(cycles))
        for service in ("planner-1", "discovery"):
            cpu = mean_cpu_seconds(cycles, service)
            figures.add(f"CPU of {service.removesuffix('-1')}, {what}", str(lab.size), "CPU s", [cpu])


@pytest.mark.parametrize("lab", [LARGE], indirect=True, ids=["1000 brokers"])
def test_cost_of_yield_rules_in_cycles_of_running_services(lab: ClusterLab, figures: Figures) -> None:
    """A hundred rules limit ten clients each; their quotas have reached the limits. Cycles alternate between blocks."""
    client, kafka = lab.cluster.client, lab.cluster.kafka
    limited = [ClientQuotaEntity(DEFAULT, f"c{n % YIELD_RULES:02}-{n}") for n in range(YIELDING)]
    for path in dict.fromkeys(path for entity in limited for path in kafka.entity_parents(entity.path)):
        client.ensure_path(path)
    for entity in limited:
        data = format_config({QuotaKey.PRODUCER_BYTE_RATE.value: str(2 * YIELD_LIMIT)})
        client.create(kafka.entity_config(entity.path), data)
    rules = NodeAuditedMap(ZooKeeperNodeStore(client, lab.cluster.own), map_codecs.YIELD_RULES)
    lab.cluster.start_reassignment()
    lab.clients.set_rates(dict.fromkeys(lab.size.broker_ids, (float(LIGHT), float(LIGHT))))
    time.sleep(2 * WINDOW_SECONDS + 1)
    with lab.services() as services, closing(rules):
        services.observe(lambda: None, lab.is_throttled(LIGHT), datetime.fromtimestamp(0, UTC))
        without = unchanged_cycles(services, lab)
        keys, now = frozenset({QuotaKey.PRODUCER_BYTE_RATE}), datetime.now(UTC)
        for n in range(YIELD_RULES):
            rule = YieldRule(f"r{n}", YIELD_LIMIT, None, f"c{n:02}-*", YIELD_LIMIT, None, keys, "anna", now)
            rules.put(rule.name, rule)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(is_above(client, kafka, entity) for entity in limited):
            assert time.monotonic() < deadline, services.services.log()[-3000:]
            time.sleep(1)
        with_rules = unchanged_cycles(services, lab)
    name = "nothing changed, loads known: request to end of cycle"
    for what, cycles in (("without yield rules", without), (f"{YIELD_RULES} rules, {YIELDING} clients", with_rules)):
        cpu = mean_cpu_seconds(cycles, "planner-1", "discovery")
        figures.add(f"{name}, {what}", str(lab.size), "s", seconds_of(cycles))
        figures.add(f"CPU of planner and discovery for it, {what}", str(lab.size), "CPU s", [cpu])


def seconds_of(cycles: Iterable[ObservedCycle]) -> list[float]:
    """Return the time from each request to the end of its cycle."""
    return [(observed.cycle.end_time - observed.asked).total_seconds() for observed in cycles]


def mean_cpu_seconds(cycles: Iterable[ObservedCycle], *services: str) -> float:
    """Return the CPU time that services used in a cycle.

    Each figure of one cycle is a multiple of 10 ms, so the mean of all is more exact than their median.
    """
    return statistics.fmean(sum(observed.cpu_seconds[service] for service in services) for observed in cycles)


def unchanged_cycles(services: RunningServices, lab: ClusterLab) -> list[ObservedCycle]:
    services.measure(LIGHT)
    services.observe(services.run_cycle, lab.is_throttled(LIGHT))
    seen = []
    for _ in range(4 * RUNS):
        time.sleep(SPACING.total_seconds())
        seen.append(services.observe(services.run_cycle, lab.is_throttled(LIGHT)))
    return seen


def is_above(client: KazooClient, kafka: KafkaPaths, entity: ClientQuotaEntity) -> bool:
    data, _ = client.get(kafka.entity_config(entity.path))
    return str(YIELD_LIMIT) not in data.decode()


def add_memory(figures: Figures, size: Size, services: RunningServices) -> None:
    for name in ("discovery", "metrics", "planner-1", "applier"):
        now, most = services.memory_megabytes(name)
        service = name.removesuffix("-1")
        figures.add(f"memory of {service} after the cycles (RSS)", str(size), "MB", [now])
        figures.add(f"memory of {service}, peak (RSS)", str(size), "MB", [most])


def test_first_cycle_after_the_services_start(lab: ClusterLab, figures: Figures) -> None:
    lab.cluster.start_reassignment()
    lab.clients.set_rates(dict.fromkeys(lab.size.broker_ids, (float(LIGHT), float(LIGHT))))
    time.sleep(2 * WINDOW_SECONDS + 1)
    seen = []
    for _ in range(RUNS):
        begin = datetime.now(UTC)
        with lab.services() as services:
            up = datetime.now(UTC)
            first = services.observe(lambda: None, lab.is_throttled(LIGHT), begin)
            seen.append((first, (first.current.last_write - up).total_seconds()))
        lab.cluster.wipe_throttles()
    name, size, original = "cold, everything new", str(lab.size), CYCLE_ORIGINAL.get(lab.size, "")
    cycles = [first for first, _ in seen]
    last_writes = [s.to_last_write for s in cycles]
    figures.add(
        f"{name}: processes started to last config write", size, "s", last_writes, original, median_cpu_seconds(cycles)
    )
    figures.add(f"{name}: all listening to last config write", size, "s", [after for _, after in seen])
    figures.add(f"{name}: the cycle itself", size, "s", [s.duration for s in cycles])


def test_failover(lab: ClusterLab, figures: Figures) -> None:
    lab.cluster.start_reassignment()
    lab.clients.set_rates(dict.fromkeys(lab.size.broker_ids, (float(LIGHT), float(LIGHT))))
    time.sleep(2 * WINDOW_SECONDS + 1)
    with lab.services(planners=2 * RUNS + 1) as services:
        services.observe(lambda: None, lab.is_throttled(LIGHT), datetime.fromtimestamp(0, UTC))
        for number in (signal.SIGTERM, signal.SIGKILL):
            starts_after, ends_after = [], []
            for _ in range(RUNS):
                killed, cycle = end_leader(services, number)
                starts_after.append((cycle.start_time - killed).total_seconds())
                ends_after.append((cycle.end_time - killed).total_seconds())
            cause = f"{number.name} of the leader (session timeout {SESSION_SECONDS} s)"
            name = f"{cause} to the first cycle of the next leader"
            figures.add(f"{name}: start", str(lab.size), "s", starts_after)
            figures.add(f"{name}: end", str(lab.size), "s", ends_after)


def end_leader(services: RunningServices, number: signal.Signals) -> tuple[datetime, Cycle]:
    """Send a signal to the leader; return the time of the signal and the first cycle of the next leader."""
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
    raise TimeoutError(f"no cycle of a new leader within {PATIENCE_SECONDS:g} s after the end of the old one")
