"""One reassignment over shaped links: five real brokers, steady clients, and a policy of the product or none.

Every broker's link has 20 MB/s in each direction, the follower's has 10. Clients produce at half of that rate all the
time with acks=all in an open loop: a late record counts from the time when it was due. Broker 1005 gets a replica of
every partition of one topic. The services run on the same machine and reach the brokers over their links, as clients
do. A metrics source reports the counters of the brokers' network cards to them: a Datadog emulator, or a node_exporter
in the namespace of each broker. The source `kafka` needs only the brokers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from autothrottle.core.cluster.configs import FOLLOWER_RATE
from autothrottle.core.scoring.score import available_rate
from autothrottle.core.units import MEGABYTE
from autothrottle_lab.observation.traffic import Latency, ProducerLoad, fill
from autothrottle_lab.servers.kafka import wait_until
from tests.benchmarks.links.consumers import Consumers
from tests.benchmarks.links.layout import (
    BESIDE,
    BESIDE_RATE,
    CROWD,
    CROWD_RATE,
    FOLLOWER,
    LEADERS,
    PARTITIONS,
    REASSIGNED_RATE,
    RING,
    RING_RATE,
    SURGE_SECONDS,
    RunPlan,
    beside,
    bound,
    client_rates,
    crowd,
    link_rates,
    ring,
    round_robin,
    simulated,
)
from tests.benchmarks.links.shaped_links import Count
from tests.benchmarks.links.stage import Testbed, start_product, submit
from tests.benchmarks.links.tally import (
    ALL,
    ON_FOLLOWER,
    REASSIGNED,
    LinkDirection,
    Run,
    Sample,
    Waits,
    at_finishes,
    carried_rates,
    copy_rates,
    deferred_share,
    full_share,
    slowest_by_second,
    waits,
)

RECORD_BYTES, _REASSIGNED_RECORD_BYTES = 50_000, 5_000
_SETTLING_SECONDS, _AFTER_SECONDS = 8.0, 5.0
_REASSIGNMENT_SECONDS = 900.0
_WARM_UP, _WARM_UP_SECONDS = "warm-up", 30.0


@dataclass(slots=True)
class RunMonitor:
    """Context manager that samples the links once per second and the reassignment five times per second."""

    testbed: Testbed
    topic: str
    samples: list[Sample] = field(default_factory=list)
    finishes: dict[int, float] = field(default_factory=dict)
    """Partition -> `time.monotonic()` at which the follower was first seen in its ISR."""
    throttles: list[tuple[float, int | None]] = field(default_factory=list)
    _ending: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> RunMonitor:
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._sample_links, self._follow)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def between(self, begin: float, end: float) -> list[Sample]:
        """The samples between two times."""
        return [sample for sample in self.samples if begin <= sample.at <= end]

    def _sample_links(self) -> None:
        started = time.monotonic()
        while not self._ending.wait(max(0.0, started + len(self.samples) - time.monotonic())):
            logs = self.testbed.cluster.log_bytes(FOLLOWER)
            copied = sum(amount for (topic, _), amount in logs.items() if topic == self.topic)
            at, carried = time.monotonic(), dict[LinkDirection, Count]()
            for broker_id, counts in self.testbed.links.counters().items():
                carried |= {(broker_id, "rx"): counts.rx, (broker_id, "tx"): counts.tx}
            self.samples.append(Sample(at, carried, copied))

    def _follow(self) -> None:
        while not self._ending.wait(0.2):
            now = time.monotonic()
            for (_, partition), state in self.testbed.cluster.partitions([self.topic]).items():
                if FOLLOWER in state.isr:
                    self.finishes.setdefault(partition, now)
            current = self.testbed.cluster.stored_configs().get(f"brokers/{FOLLOWER}", {}).get(FOLLOWER_RATE)
            rate = None if current is None else int(current)
            if not self.throttles or self.throttles[-1][1] != rate:
                self.throttles.append((now, rate))


class Clients:
    """Context manager with the steady producers, and with slow producers for the reassigned partitions."""

    def __init__(self, testbed: Testbed, topic: str, crowd_rate: float = 0.0) -> None:
        # Partitions on the follower have their own producer, so that it cannot delay the others.
        crowded = [(CROWD, {(CROWD, p): crowd_rate for p in crowd()}, RECORD_BYTES)] if crowd_rate else []
        self._loads = {
            name: ProducerLoad(testbed.cluster, rates, record_bytes=size, interval_seconds=0.01)
            for name, rates, size in (
                (RING, {(RING, p): RING_RATE for p in ring()}, RECORD_BYTES),
                (BESIDE, {(BESIDE, p): BESIDE_RATE for p in beside()}, RECORD_BYTES),
                (topic, {(topic, p): REASSIGNED_RATE for p in range(PARTITIONS)}, _REASSIGNED_RECORD_BYTES),
                *crowded,
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
        """Group of partitions -> latencies of its records due between two times."""
        found = {name: [x for x in load.latencies if begin <= x.at <= end] for name, load in self._loads.items()}
        near = found[BESIDE]
        return {ALL: found[RING] + near, ON_FOLLOWER: near, REASSIGNED: found[self._topic]}

    def surge(self, factor: float) -> None:
        """Multiply the produce rates of the steady clients."""
        for name, total in ((RING, len(ring()) * RING_RATE), (BESIDE, len(beside()) * BESIDE_RATE)):
            self._loads[name].set_total(factor * total)

    @property
    def lost(self) -> int:
        """Number of failed records."""
        return sum(len(load.failures) for load in self._loads.values())


def summarise(waited: Mapping[str, Iterable[Latency]]) -> dict[str, Waits]:
    """Group of partitions -> summary of its waits."""
    return {group: waits(latency.seconds for latency in latencies) for group, latencies in waited.items()}


def warm_up(testbed: Testbed) -> None:
    """Run clients until the JVMs have compiled their code. Otherwise the first quiet time would show high latencies."""
    testbed.cluster.create_topic(_WARM_UP, round_robin(LEADERS))
    with Clients(testbed, _WARM_UP):
        time.sleep(_WARM_UP_SECONDS)
    testbed.cluster.delete_topic(_WARM_UP)


def run_plan(testbed: Testbed, plan: RunPlan) -> Run:
    """Fill a topic, start clients, reassign the topic, and evaluate the run."""
    cluster, topic = testbed.cluster, plan.topic
    cluster.create_topic(topic, plan.replicas_before())
    for among in (lambda _: True, plan.has_double_size):
        fill(cluster, topic, plan.megabytes * MEGABYTE, record_bytes=plan.record_bytes, among=among)
    try:
        with ExitStack() as stack:
            clients = stack.enter_context(Clients(testbed, topic, CROWD_RATE if plan.second == "full" else 0.0))
            consumers = stack.enter_context(Consumers(cluster.bootstrap_servers, plan.consumers))
            monitor = stack.enter_context(RunMonitor(testbed, topic))
            admin = None if plan.policy == "none" else stack.enter_context(start_product(testbed, plan))
            time.sleep(_SETTLING_SECONDS + (plan.window if admin else 0))
            quiet_from = time.monotonic()
            time.sleep(plan.quiet_seconds)
            sizes = leader_sizes(testbed, plan)
            started = time.monotonic()
            submit(testbed, plan, admin)
            if plan.surge != 1:
                time.sleep(max(started + SURGE_SECONDS - time.monotonic(), 0.0))
                clients.surge(plan.surge)
            expected = len(plan.partitions_added_to(FOLLOWER))
            wait_until(lambda: len(monitor.finishes) == expected, _REASSIGNMENT_SECONDS, f"{topic} is on {FOLLOWER}")
            ended = max(monitor.finishes.values())
            time.sleep(_AFTER_SECONDS)
            time.sleep(max(remaining_wait(clients, ended), 0.0))
            run = evaluate(plan, clients, monitor, sizes, (quiet_from, started, ended))
            if not plan.consumers:
                return run
            reads = [x.seconds for x in consumers.end() if started <= x.at <= ended + _AFTER_SECONDS]
            return replace(run, deferred_reads=deferred_share(reads), longest_read=max(reads))
    finally:
        cluster.wait_until_reassigned(_REASSIGNMENT_SECONDS if plan.second == "full" else 60)
        cluster.delete_topic(topic)


def remaining_wait(clients: Clients, ended: float) -> float:
    """Seconds to wait for records that were due before the end. After a stall some may be unacknowledged."""
    slowest = max((x.seconds for x in clients.waited(ended - 60, ended)[ALL]), default=0.0)
    return min(slowest, 30.0)


def leader_sizes(testbed: Testbed, plan: RunPlan) -> dict[int, int]:
    """Partition -> size of its log on the leader, bytes."""
    leaders = {p: replicas[0] for p, replicas in plan.replicas_before().items()}
    return {p: testbed.cluster.log_bytes(leader).get((plan.topic, p), 0) for p, leader in leaders.items()}


def evaluate(
    plan: RunPlan, clients: Clients, monitor: RunMonitor, sizes: Mapping[int, int], times: tuple[float, float, float]
) -> Run:
    """Evaluate a run.

    Args:
        plan: the parameters of the run.
        clients: the clients during the run.
        watch: the samples of the run.
        sizes: partition -> bytes to copy.
        times: start of the quiet time, start and end of the reassignment.
    """
    quiet_from, started, ended = times
    quiet, moving = clients.waited(quiet_from, started - 0.5), clients.waited(started, ended + _AFTER_SECONDS)
    loads = client_rates(monitor.between(quiet_from, started))
    during = monitor.between(started, ended)
    copied = copy_rates(during)
    rates = link_rates()
    headroom = available_rate(rates[FOLLOWER, "rx"], loads[FOLLOWER, "rx"], plan.ratio, 0.0)
    waited = [(x.at, x.seconds) for group in (ALL, REASSIGNED) for x in moving[group]]
    return Run(
        policy=plan.policy,
        ratio=plan.ratio,
        number=plan.number,
        second=plan.second,
        source=plan.source,
        fanout_factor=plan.fanout_factor,
        deferred=deferred_share(x.seconds for x in moving[ALL]),
        makespan=ended - started,
        bound=bound(plan, sizes, loads),
        simulated=simulated(plan, sizes, loads),
        quiet=summarise(quiet),
        moving=summarise(moving),
        at_finishes=at_finishes(waited, list(monitor.finishes.values())),
        saturated=full_share(during, {(FOLLOWER, "rx"): rates[FOLLOWER, "rx"]}),
        saturated_any=full_share(during, rates),
        worst_second=max(copied, default=0.0) / headroom,
        lost=clients.lost,
        load=os.getloadavg()[0],
        throttles=[(round(at - started, 1), rate) for at, rate in monitor.throttles],
        received=[round(rate) for rate in copied],
        carried=[round(rate) for rate in carried_rates(during, (FOLLOWER, "rx"))],
        slowest=slowest_by_second([(x.at - started, x.seconds) for x in moving[ON_FOLLOWER]], ended - started),
    )
