"""One move over shaped links: five real brokers, steady clients, and a policy of the product's, or none.

Every broker's link carries 20 MB/s in each direction, the destination's 10. Clients produce at half of that all
along (acks=all, open loop: what is late counts from when it was due), and 1005 gets a replica of every partition of
one topic. The services run beside the brokers and reach them over their links, as clients do; a Datadog tells them
what the brokers' network cards count.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import grpc

from autothrottle.adapters.memory import MemoryDecisions
from autothrottle.core.bound import PortDemand, bound_seconds, budget
from autothrottle.core.configs import FOLLOWER_RATE, THROTTLE_KEYS
from autothrottle.core.limits import Limits
from autothrottle.core.loads import MEGABYTE
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.policy.static import StaticPolicy
from autothrottle.core.simulation import ClientTraffic
from autothrottle.lab.datadog import DatadogEmulator
from autothrottle.lab.kafka import wait_until
from autothrottle.lab.kraft import KraftCluster
from autothrottle.lab.links import ShapedLinks
from autothrottle.lab.processes import Process
from autothrottle.lab.services import Deployment
from autothrottle.lab.traffic import ClientLoad, Latency, fill
from autothrottle.lab.virtual import VirtualRecovery, VirtualScenario
from autothrottle.lab.zookeeper import ZooKeeperServer
from autothrottle.v1 import admin_pb2, admin_pb2_grpc, types_pb2
from tests.benchmarks.links.tally import (
    ALL,
    DESTINATIONS,
    MOVING,
    Port,
    Run,
    Sample,
    Waits,
    at_finishes,
    full_share,
    landing_rates,
    waits,
)

SOURCES = (1001, 1002, 1003, 1004)
DESTINATION = 1005
LINKS = {**dict.fromkeys(SOURCES, 20 * MEGABYTE), DESTINATION: 10 * MEGABYTE}
"""Bytes/s of each direction."""

RING, BESIDE = "steady", "beside"
"""Topics of the clients: one has its replicas on the sources, each of whose partitions leaves two in the other."""

_RING_RATE, _BESIDE_RATE, _MOVING_RATE = 2.1875 * MEGABYTE, 0.625 * MEGABYTE, 0.025 * MEGABYTE
"""What is produced to each partition, bytes/s: together half of every link's receiving direction."""

MOVED_PARTITIONS = 8
MIN_RATE = 1 * MEGABYTE
RECORD_BYTES, _MOVING_RECORD_BYTES = 25_000, 5_000

PROPERTIES: Mapping[str, object] = {
    # One response is 0.1 s of what the destination's clients leave of its link.
    "replica.fetch.max.bytes": 128 * 1024,
    "replica.fetch.response.max.bytes": 512 * 1024,
    # The clients' topics shall not fill the memory in which the logs are.
    "log.segment.bytes": 16 * 1024 * 1024,
    "log.retention.check.interval.ms": 5000,
    "file.delete.delay.ms": 1000,
}
_KEPT = {"retention.bytes": str(32 * 1024 * 1024)}

_SETTLING_SECONDS, _AFTER_SECONDS = 8.0, 5.0
_MOVE_SECONDS = 900.0
_FEED_SECONDS = 0.5
_GRPC = re.compile(r"gRPC API: (\S+)$", re.MULTILINE)


def ring() -> dict[int, list[int]]:
    """Partitions of the sources among themselves, two led by each."""
    return {p: [SOURCES[p % 4], SOURCES[(p + 1) % 4]] for p in range(8)}


def beside() -> dict[int, list[int]]:
    """Partitions that the destination follows (the first four) and leads."""
    return {p: [SOURCES[p], DESTINATION] if p < 4 else [DESTINATION, SOURCES[p - 4]] for p in range(8)}


def before_the_move() -> dict[int, list[int]]:
    """Replicas of the topic that moves."""
    return {p: [SOURCES[p % 4], SOURCES[(p + 1) % 4]] for p in range(MOVED_PARTITIONS)}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is played."""

    policy: str
    """One of the product's, or `none`."""
    ratio: float
    """Of the headroom, in (0, 1]."""
    number: int
    megabytes: int
    """Of each of the partitions that move."""
    interval: int
    """Between two cycles, seconds."""
    window: int
    """Of the metrics, seconds."""
    quiet_seconds: float

    @property
    def topic(self) -> str:
        """The topic that moves."""
        return f"moved-{self.policy}-{self.ratio:g}-{self.number}"


@dataclass(slots=True)
class Stage:
    """What stands for all moves."""

    links: ShapedLinks
    cluster: KraftCluster
    zookeeper: ZooKeeperServer
    directory: Path


@contextmanager
def stage(directory: Path) -> Iterator[Stage]:
    """Build the links, and start the brokers behind them and our own ZooKeeper."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeperServer(directory / "zookeeper"))
        links = stack.enter_context(ShapedLinks(LINKS))
        cluster = KraftCluster(
            directory / "kafka", tuple(LINKS), broker_properties=PROPERTIES, heap_megabytes=320, places=links.places
        )
        stack.enter_context(cluster)
        cluster.create_topic(RING, ring(), _KEPT)
        cluster.create_topic(BESIDE, beside(), _KEPT)
        yield Stage(links, cluster, zookeeper, directory)


@dataclass(slots=True)
class Watch:
    """Looks at the links and the move several times a second; a context manager."""

    stage: Stage
    topic: str
    samples: list[Sample] = field(default_factory=list)
    finishes: dict[int, float] = field(default_factory=dict)
    """Partition -> when the destination was first seen in its ISR."""
    throttles: list[tuple[float, int | None]] = field(default_factory=list)
    _ending: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Watch:
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._sample_links, self._follow)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def between(self, begin: float, end: float) -> list[Sample]:
        """The samples of a time."""
        return [sample for sample in self.samples if begin <= sample.at <= end]

    def _sample_links(self) -> None:
        began = time.monotonic()
        while not self._ending.wait(max(0.0, began + len(self.samples) - time.monotonic())):
            logs = self.stage.cluster.log_bytes(DESTINATION)
            landed = sum(amount for (topic, _), amount in logs.items() if topic == self.topic)
            carried: dict[Port, float] = {}
            for broker_id, counters in self.stage.links.counters().items():
                carried |= {(broker_id, "rx"): counters.rx_bytes, (broker_id, "tx"): counters.tx_bytes}
            self.samples.append(Sample(time.monotonic(), carried, landed))

    def _follow(self) -> None:
        while not self._ending.wait(0.2):
            now = time.monotonic()
            for (_, partition), state in self.stage.cluster.partitions([self.topic]).items():
                if DESTINATION in state.isr:
                    self.finishes.setdefault(partition, now)
            standing = self.stage.cluster.stored_configs().get(f"brokers/{DESTINATION}", {}).get(FOLLOWER_RATE)
            rate = None if standing is None else int(standing)
            if not self.throttles or self.throttles[-1][1] != rate:
                self.throttles.append((now, rate))


class Clients:
    """The steady producers, and a few records for the partitions that move; a context manager."""

    def __init__(self, stage: Stage, topic: str) -> None:
        # What is produced to the destination's partitions has a producer of its own: it does not hold up the others.
        self._loads = {
            name: ClientLoad(stage.cluster, rates, record_bytes=size, tick_seconds=0.01)
            for name, rates, size in (
                (RING, {(RING, p): _RING_RATE for p in ring()}, RECORD_BYTES),
                (BESIDE, {(BESIDE, p): _BESIDE_RATE for p in beside()}, RECORD_BYTES),
                (topic, {(topic, p): _MOVING_RATE for p in before_the_move()}, _MOVING_RECORD_BYTES),
            )
        }
        self._topic = topic
        self._stack = ExitStack()

    def __enter__(self) -> Clients:
        for load in self._loads.values():
            self._stack.enter_context(load)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def waited(self, begin: float, end: float) -> dict[str, list[Latency]]:
        """Group of partitions -> their records that were due in a time."""
        found = {name: [x for x in load.latencies if begin <= x.at <= end] for name, load in self._loads.items()}
        near = found[BESIDE]
        return {ALL: found[RING] + near, DESTINATIONS: near, MOVING: found[self._topic]}

    @property
    def lost(self) -> int:
        """Records that were given up."""
        return sum(len(load.failures) for load in self._loads.values())


def summed(waited: Mapping[str, Iterable[Latency]]) -> dict[str, Waits]:
    """Sum the groups up."""
    return {group: waits(latency.seconds for latency in latencies) for group, latencies in waited.items()}


def rates_of_links() -> dict[Port, float]:
    """Port -> its rate, bytes/s."""
    return {(broker_id, direction): float(rate) for broker_id, rate in LINKS.items() for direction in ("rx", "tx")}


def client_rates(samples: Sequence[Sample]) -> dict[Port, float]:
    """Port -> what it carried in a quiet time, bytes/s."""
    first, last = samples[0], samples[-1]
    return {port: (last.carried[port] - first.carried[port]) / (last.at - first.at) for port in first.carried}


def bound(sizes: Mapping[int, int], clients: Mapping[Port, float], ratio: float) -> float:
    """Return how long the move takes at least if it keeps to that share of the headroom, seconds.

    Args:
        sizes: partition -> bytes to be copied.
        clients: port -> what clients have of it, bytes/s.
        ratio: in (0, 1].
    """
    leaders = {p: replicas[0] for p, replicas in before_the_move().items()}
    ports = {(DESTINATION, "rx"): list(sizes)} | {
        (leader, "tx"): [p for p in sizes if leaders[p] == leader] for leader in set(leaders.values())
    }
    rates = rates_of_links()
    return bound_seconds(
        PortDemand(
            sum(sizes[p] for p in partitions),
            [(1.0, budget(rates[port], clients[port], ratio, 0.0))],
            len(partitions) * _MOVING_RATE,
        )
        for port, partitions in ports.items()
    )


def simulated(plan: Plan, sizes: Mapping[int, int], clients: Mapping[Port, float]) -> float:
    """Return how long the same move takes in virtual time, with the same planner and simulated brokers, seconds.

    Args:
        plan: what is played.
        sizes: partition -> bytes to be copied.
        clients: port -> what clients have of it, bytes/s.
    """
    before = _MOVING_RATE * plan.window  # what the simulated brokers produce before the move
    scenario = VirtualScenario(
        traffic={b: ClientTraffic.constant(round(clients[b, "tx"]), round(clients[b, "rx"])) for b in LINKS},
        partition_bytes=[sizes[p] - before for p in sorted(sizes)],
        capacities=LINKS,
        produced=round(_MOVING_RATE),
        policy=_POLICIES[plan.policy](plan),
        limits=Limits(MIN_RATE, plan.ratio, plan.ratio, change_threshold=0.1, failure_threshold=1),
        interval=timedelta(seconds=plan.interval),
        metrics_window=timedelta(seconds=plan.window),
    )
    return VirtualRecovery(scenario, MemoryDecisions()).run()


@contextmanager
def product(stage: Stage, plan: Plan) -> Iterator[str]:
    """Run all services, fed with what the network cards count; gives the address of the admin API."""
    with DatadogEmulator() as datadog, _fed(stage.links, datadog):
        deployment = Deployment(stage.zookeeper.connect, datadog.url, stage.directory, options(stage, plan))
        name = f"autothrottle-{plan.topic}"
        own = {"api-listen": "127.0.0.1:0", "grpc-listen": "127.0.0.1:0", "zk-config-prefix": name}
        with deployment.process("run", name, own) as process:

            def ready() -> bool:
                said = process.log.read_text()
                return "Leading in term" in said and bool(_GRPC.search(said))

            process.wait_until(ready, 120.0)
            yield _GRPC.findall(process.log.read_text())[-1]
            _wait_until_clean(stage, process)


def static_rate(plan: Plan) -> int:
    """What somebody who knows the clients' load would set, bytes/s: half of the link is theirs, and 1 % headers."""
    return round(plan.ratio * LINKS[DESTINATION] * (0.5 - 0.005))


_UNTHROTTLED = 1000 * MEGABYTE
_POLICIES: Mapping[str, Callable[[Plan], Policy]] = {
    "none": lambda _: StaticPolicy(_UNTHROTTLED),
    "static": lambda plan: StaticPolicy(static_rate(plan)),
    "headroom": lambda _: HeadroomPolicy(),
    "adaptive": lambda _: AdaptivePolicy(),
}


def options(stage: Stage, plan: Plan) -> dict[str, str]:
    """The options of the services."""
    return {
        "policy": plan.policy,
        "static-rate": f"{static_rate(plan) / MEGABYTE:g}",
        "max-rate": f"{100 * plan.ratio:g}",
        "min-rate": f"{MIN_RATE / MEGABYTE:g}",
        "interval": str(plan.interval),
        "metrics-window": str(plan.window),
        "broker-cap-map": json.dumps({str(b): rate / MEGABYTE for b, rate in LINKS.items()}),
        "kafka-backend": "admin",
        "bootstrap-servers": stage.cluster.bootstrap_servers,
        "kafka-bootstrap-controllers": stage.cluster.bootstrap_controllers,
    }


@contextmanager
def _fed(links: ShapedLinks, datadog: DatadogEmulator) -> Iterator[None]:
    for broker_id in LINKS:
        datadog.add_host(f"host-{broker_id}", broker_id, "lab")
    ending = threading.Event()

    def feed() -> None:
        while not ending.wait(_FEED_SECONDS):
            for broker_id, counters in links.counters().items():
                datadog.record(broker_id, time.time(), counters.tx_bytes, counters.rx_bytes)

    thread = threading.Thread(target=feed, name="network cards", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def _wait_until_clean(stage: Stage, process: Process) -> None:
    def clean() -> bool:
        assert process.running, process.log_end()
        return not any(config.keys() & THROTTLE_KEYS for config in stage.cluster.stored_configs().values())

    wait_until(clean, 120.0, "no throttle stands any more")


def submit(stage: Stage, topic: str, admin: str | None) -> None:
    """Ask for the move: of the product, or of Kafka itself."""
    moved = {p: [replicas[0], DESTINATION] for p, replicas in before_the_move().items()}
    if admin is None:
        stage.cluster.reassign_through_bootstrap({(topic, p): replicas for p, replicas in moved.items()})
        return
    targets = [types_pb2.PartitionTarget(topic=topic, partition=p, replicas=r) for p, r in moved.items()]
    with grpc.insecure_channel(admin) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        stub.SubmitReassignment(admin_pb2.SubmitReassignmentRequest(partitions=targets), timeout=60)


def play(stage: Stage, plan: Plan) -> Run:
    """Fill a topic, let clients run for a while, move it, and judge what was seen."""
    cluster, topic = stage.cluster, plan.topic
    cluster.create_topic(topic, before_the_move())
    fill(cluster, topic, plan.megabytes * MEGABYTE, record_bytes=RECORD_BYTES)
    try:
        with ExitStack() as stack:
            clients = stack.enter_context(Clients(stage, topic))
            watch = stack.enter_context(Watch(stage, topic))
            admin = None if plan.policy == "none" else stack.enter_context(product(stage, plan))
            time.sleep(_SETTLING_SECONDS + (plan.window if admin else 0))
            quiet_from = time.monotonic()
            time.sleep(plan.quiet_seconds)
            sizes = leader_sizes(stage, topic)
            began = time.monotonic()
            submit(stage, topic, admin)
            wait_until(lambda: len(watch.finishes) == MOVED_PARTITIONS, _MOVE_SECONDS, f"{topic} is moved")
            ended = max(watch.finishes.values())
            time.sleep(_AFTER_SECONDS)
            time.sleep(max(latest(clients, ended), 0.0))
            return judged(plan, clients, watch, sizes, (quiet_from, began, ended))
    finally:
        cluster.wait_until_reassigned(60)
        cluster.delete_topic(topic)


def latest(clients: Clients, ended: float) -> float:
    """How long to wait on, seconds: records that were due before the end may still be under way after a stall."""
    slowest = max((x.seconds for x in clients.waited(ended - 60, ended)[ALL]), default=0.0)
    return min(slowest, 30.0)


def leader_sizes(stage: Stage, topic: str) -> dict[int, int]:
    """Partition -> bytes of its log on its leader."""
    return {p: stage.cluster.log_bytes(replicas[0]).get((topic, p), 0) for p, replicas in before_the_move().items()}


def judged(
    plan: Plan, clients: Clients, watch: Watch, sizes: Mapping[int, int], times: tuple[float, float, float]
) -> Run:
    """Judge a move.

    Args:
        plan: what was played.
        clients: that ran meanwhile.
        watch: what it saw.
        sizes: partition -> bytes to be copied.
        times: begin of the quiet time, of the move, and end of the move.
    """
    quiet_from, began, ended = times
    quiet, moving = clients.waited(quiet_from, began - 0.5), clients.waited(began, ended + _AFTER_SECONDS)
    loads = client_rates(watch.between(quiet_from, began))
    during = watch.between(began, ended)
    landed = landing_rates(during)
    rates = rates_of_links()
    headroom = budget(rates[DESTINATION, "rx"], loads[DESTINATION, "rx"], plan.ratio, 0.0)
    waited = [(x.at, x.seconds) for group in (ALL, MOVING) for x in moving[group]]
    return Run(
        policy=plan.policy,
        ratio=plan.ratio,
        number=plan.number,
        makespan=ended - began,
        bound=bound(sizes, loads, plan.ratio),
        simulated=simulated(plan, sizes, loads),
        quiet=summed(quiet),
        moving=summed(moving),
        at_finishes=at_finishes(waited, list(watch.finishes.values())),
        saturated=full_share(during, {(DESTINATION, "rx"): rates[DESTINATION, "rx"]}),
        saturated_any=full_share(during, rates),
        worst_second=max(landed, default=0.0) / headroom,
        lost=clients.lost,
        load=os.getloadavg()[0],
        throttles=[(round(at - began, 1), rate) for at, rate in watch.throttles],
        received=[round(rate) for rate in landed],
    )
