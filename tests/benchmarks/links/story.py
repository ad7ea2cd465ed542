"""One move over shaped links: five real brokers, steady clients, and a policy of the product's, or none.

Every broker's link carries 20 MB/s in each direction, the destination's 10. Clients produce at half of that all
along (acks=all, open loop: what is late counts from when it was due), and 1005 gets a replica of every partition of
one topic. The services run beside the brokers and reach them over their links, as clients do; a Datadog tells them
what the brokers' network cards count.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from autothrottle.core.bound import budget
from autothrottle.core.configs import FOLLOWER_RATE
from autothrottle.core.loads import MEGABYTE
from autothrottle.lab.kafka import wait_until
from autothrottle.lab.links import Count
from autothrottle.lab.traffic import ClientLoad, Latency, fill
from tests.benchmarks.links.layout import (
    BESIDE,
    BESIDE_RATE,
    CROWD,
    CROWD_RATE,
    DESTINATION,
    MOVED_PARTITIONS,
    MOVING_RATE,
    RING,
    RING_RATE,
    SOURCES,
    Plan,
    beside,
    bound,
    client_rates,
    crowd,
    led_by_turns,
    rates_of_links,
    ring,
    simulated,
)
from tests.benchmarks.links.stage import Stage, product, submit
from tests.benchmarks.links.tally import (
    ALL,
    DESTINATIONS,
    MOVING,
    Port,
    Run,
    Sample,
    Waits,
    at_finishes,
    carried_rates,
    full_share,
    landing_rates,
    slowest_by_second,
    waits,
)

RECORD_BYTES, _MOVING_RECORD_BYTES = 50_000, 5_000
_SETTLING_SECONDS, _AFTER_SECONDS = 8.0, 5.0
_MOVE_SECONDS = 900.0
_WARM_UP, _WARM_UP_SECONDS = "warm-up", 30.0


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
            at, carried = time.monotonic(), dict[Port, Count]()
            for broker_id, counts in self.stage.links.counters().items():
                carried |= {(broker_id, "rx"): counts.rx, (broker_id, "tx"): counts.tx}
            self.samples.append(Sample(at, carried, landed))

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

    def __init__(self, stage: Stage, topic: str, crowd_rate: float = 0.0) -> None:
        # What is produced to the destination's partitions has a producer of its own: it does not hold up the others.
        crowded = [(CROWD, {(CROWD, p): crowd_rate for p in crowd()}, RECORD_BYTES)] if crowd_rate else []
        self._loads = {
            name: ClientLoad(stage.cluster, rates, record_bytes=size, tick_seconds=0.01)
            for name, rates, size in (
                (RING, {(RING, p): RING_RATE for p in ring()}, RECORD_BYTES),
                (BESIDE, {(BESIDE, p): BESIDE_RATE for p in beside()}, RECORD_BYTES),
                (topic, {(topic, p): MOVING_RATE for p in range(MOVED_PARTITIONS)}, _MOVING_RECORD_BYTES),
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


def warm_up(stage: Stage) -> None:
    """Let clients run until the brokers' code is compiled: before that the first quiet time would not be quiet."""
    stage.cluster.create_topic(_WARM_UP, led_by_turns(SOURCES))
    with Clients(stage, _WARM_UP):
        time.sleep(_WARM_UP_SECONDS)
    stage.cluster.delete_topic(_WARM_UP)


def play(stage: Stage, plan: Plan) -> Run:
    """Fill a topic, let clients run for a while, move it, and judge what was seen."""
    cluster, topic = stage.cluster, plan.topic
    cluster.create_topic(topic, plan.before_the_move())
    for among in (lambda _: True, plan.has_twice):
        fill(cluster, topic, plan.megabytes * MEGABYTE, record_bytes=plan.record_bytes, among=among)
    try:
        with ExitStack() as stack:
            clients = stack.enter_context(Clients(stage, topic, CROWD_RATE if plan.second == "full" else 0.0))
            watch = stack.enter_context(Watch(stage, topic))
            admin = None if plan.policy == "none" else stack.enter_context(product(stage, plan))
            time.sleep(_SETTLING_SECONDS + (plan.window if admin else 0))
            quiet_from = time.monotonic()
            time.sleep(plan.quiet_seconds)
            sizes = leader_sizes(stage, plan)
            began = time.monotonic()
            submit(stage, plan, admin)
            there = len(plan.moved_to(DESTINATION))
            wait_until(lambda: len(watch.finishes) == there, _MOVE_SECONDS, f"{topic} is on {DESTINATION}")
            ended = max(watch.finishes.values())
            time.sleep(_AFTER_SECONDS)
            time.sleep(max(still_waiting(clients, ended), 0.0))
            return judged(plan, clients, watch, sizes, (quiet_from, began, ended))
    finally:
        cluster.wait_until_reassigned(_MOVE_SECONDS if plan.second == "full" else 60)
        cluster.delete_topic(topic)


def still_waiting(clients: Clients, ended: float) -> float:
    """How long to wait on, seconds: records that were due before the end may still be under way after a stall."""
    slowest = max((x.seconds for x in clients.waited(ended - 60, ended)[ALL]), default=0.0)
    return min(slowest, 30.0)


def leader_sizes(stage: Stage, plan: Plan) -> dict[int, int]:
    """Partition -> bytes of its log on its leader."""
    leaders = {p: replicas[0] for p, replicas in plan.before_the_move().items()}
    return {p: stage.cluster.log_bytes(leader).get((plan.topic, p), 0) for p, leader in leaders.items()}


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
        second=plan.second,
        makespan=ended - began,
        bound=bound(plan, sizes, loads),
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
        carried=[round(rate) for rate in carried_rates(during, (DESTINATION, "rx"))],
        slowest=slowest_by_second([(x.at - began, x.seconds) for x in moving[DESTINATIONS]], ended - began),
    )
