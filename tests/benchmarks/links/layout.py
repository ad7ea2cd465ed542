"""The reassignment over shaped links: replicas, produce rates, and the shortest duration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from autothrottle.core.cycle.input import PlannerSettings
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy, StaticPolicy
from autothrottle.core.policy.interface import Limits, Policy
from autothrottle.core.scoring.score import LinkSideDemand, available_rate, bound_seconds
from autothrottle.core.traffic.loads import Capacity
from autothrottle.core.units import MEGABYTE
from autothrottle_lab.simulate.virtual_time import VirtualBroker, VirtualReassignment, VirtualRecovery, VirtualScenario
from autothrottle_lab.simulation.link import ClientTraffic
from tests.benchmarks.links.tally import LinkDirection, Sample

LEADERS = (1001, 1002, 1003, 1004)
FOLLOWER = 1005

LINK_RATE = round(float(os.environ.get("LINK_MB", "20")) * MEGABYTE)
"""Link rate of a leader in each direction, bytes/s. All other rates are proportional to it."""

LINKS = {**dict.fromkeys(LEADERS, LINK_RATE), FOLLOWER: LINK_RATE // 2}
"""Broker id -> link rate in each direction, bytes/s."""

SECOND_FOLLOWER = 1004
"""The second follower, for a quarter of the partitions. Half of its inbound link is free, or the link is nearly full.
Flows to the other follower must not slow down because of it."""

RING, BESIDE, CROWD = "steady", "beside", "crowd"
"""Topics of the clients. The first is only on the leaders. Every partition of the second has a replica on the follower.
The third fills the link of the second follower."""

CROWD_RATE = 0.45 * LINKS[SECOND_FOLLOWER]
"""Produce rate of the third topic, bytes/s. All clients together then use 95 % of that link."""

RING_RATE, BESIDE_RATE, REASSIGNED_RATE = 0.109375 * LINK_RATE, 0.03125 * LINK_RATE, 0.000625 * LINK_RATE
"""Produce rate of each partition, bytes/s. The steady topics together use half of every inbound link."""

READ_BROKER = 1001
"""With consumers, it leads all reassigned partitions, and its outbound link is the bottleneck."""

CONSUMERS = {(RING, 0): 3, (RING, 4): 2, (BESIDE, 0): 2}
"""Partition of `READ_BROKER` -> number of its consumers."""

FANOUT = (3 * RING_RATE + 2 * RING_RATE + 2 * BESIDE_RATE) / (2 * RING_RATE + BESIDE_RATE)
"""How often these consumers read each byte that is produced to that broker."""

PARTITIONS = 16
"""Enough that fetches of 128 kB per partition do not wait for one another when a response is slow."""

MIN_RATE = LINK_RATE // 20

SURGE_SECONDS = 10.0


def round_robin(brokers: Sequence[int], partitions: int = PARTITIONS) -> dict[int, list[int]]:
    """Partition -> [leader, follower], round robin; the follower is the next broker."""
    return {p: [brokers[(p + n) % len(brokers)] for n in (0, 1)] for p in range(partitions)}


def ring() -> dict[int, list[int]]:
    """Partition -> replicas of the topic that is only on the leaders. Each leads two partitions."""
    return round_robin(LEADERS, 8)


def beside() -> dict[int, list[int]]:
    """Partition -> replicas of the second topic. Broker 1005 follows the first four partitions and leads the rest."""
    return {p: [LEADERS[p], FOLLOWER] if p < 4 else [FOLLOWER, LEADERS[p - 4]] for p in range(8)}


def crowd() -> dict[int, list[int]]:
    """Partition -> replicas of the topic that only the second follower has."""
    return {0: [SECOND_FOLLOWER]}


SECOND_KINDS = ("none", "open", "full")
"""States of the second follower: none; with the same load as the leaders; with a link that clients nearly fill."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The parameters of one run."""

    policy: str
    """A policy of the product, or `none`."""
    ratio: float
    """Share of the headroom for replication, in (0, 1]."""
    number: int
    """Number of the run among those of the same kind, from 1."""
    megabytes: int
    """MB of each reassigned partition; with `uneven` half of them have twice the size."""
    interval: int
    """Seconds between two cycles."""
    window: int
    """Window of the metrics, seconds."""
    quiet_seconds: float
    """Seconds with clients but without a reassignment, before it starts."""
    record_bytes: int = 2000
    """Record size of the reassigned topic; a batch has four records. A fetch ends at its size limit, even in the middle
    of a batch. With batches nearly as large as a fetch, many bytes are sent and counted but then discarded."""
    uneven: bool = False
    """Whether half of the partitions have twice the size, so that the others finish much earlier."""
    second: str = "none"
    """State of the second follower: one of `SECOND_KINDS`."""
    source: str = "datadog"
    """Metrics source of the product."""
    surge: float = 1.0
    """Factor by which the clients' produce rates rise `SURGE_SECONDS` after the submission; 1: they stay."""
    fanout_factor: float | None = None
    """`--consumer-fanout` of the source `kafka` / `FANOUT`; None: there are no consumers."""

    @property
    def topic(self) -> str:
        return f"moved-{self.policy}-{self.source}-{self.fanout_factor}-{self.ratio:g}-{self.second}-{self.number}"

    @property
    def consumers(self) -> Mapping[tuple[str, int], int]:
        """Partition -> number of its consumers."""
        return {} if self.fanout_factor is None else CONSUMERS

    @property
    def consumer_fanout(self) -> float:
        """The fan-out that the source `kafka` assumes."""
        return (self.fanout_factor or 0.0) * FANOUT

    def replicas_before(self) -> dict[int, list[int]]:
        """Partition -> replicas of the reassigned topic before the reassignment. A second follower has no replica."""
        among = LEADERS if self.second == "none" else [b for b in LEADERS if b != SECOND_FOLLOWER]
        if self.consumers:
            others = [b for b in among if b != READ_BROKER]
            return {p: [READ_BROKER, others[p % len(others)]] for p in range(PARTITIONS)}
        return round_robin(among)

    def replicas_after(self) -> dict[int, list[int]]:
        """Partition -> replicas of the reassigned topic afterwards. Leaders stay."""
        return {p: [replicas[0], self._adding_replica(p)] for p, replicas in self.replicas_before().items()}

    def partitions_added_to(self, broker_id: int) -> list[int]:
        """The partitions of which a follower gets a replica."""
        return [p for p, replicas in self.replicas_after().items() if replicas[-1] == broker_id]

    def _adding_replica(self, partition: int) -> int:
        to_second = self.second != "none" and partition >= PARTITIONS // 2 and partition % 2 == 0
        return SECOND_FOLLOWER if to_second else FOLLOWER

    def has_double_size(self, partition: int) -> bool:
        """Whether a partition has twice the size: with `uneven`, every other partition of each leader."""
        return self.uneven and partition // len(LEADERS) % 2 == 1


def link_rates() -> dict[LinkDirection, float]:
    """Link direction -> its rate, bytes/s."""
    return {(broker_id, direction): float(rate) for broker_id, rate in LINKS.items() for direction in ("rx", "tx")}


def client_rates(samples: Sequence[Sample]) -> dict[LinkDirection, float]:
    """Link direction -> mean traffic in the quiet time, bytes/s."""
    first, last = samples[0], samples[-1]
    return {direction: last.carried[direction].rate_since(first.carried[direction]) for direction in first.carried}


def bound(plan: RunPlan, sizes: Mapping[int, int], clients: Mapping[LinkDirection, float]) -> float:
    """Return the shortest time for copying to the follower at the planned share of the headroom, seconds.

    Args:
        plan: the parameters of the run.
        sizes: partition -> bytes to copy.
        clients: link direction -> client traffic, bytes/s.
    """
    added, leaders = (
        plan.partitions_added_to(FOLLOWER),
        {p: ids[0] for p, ids in plan.replicas_before().items()},
    )
    directions = {(FOLLOWER, "rx"): added} | {
        (leader, "tx"): [p for p in added if leaders[p] == leader] for leader in LEADERS
    }
    rates = link_rates()
    return bound_seconds(
        LinkSideDemand(
            sum(sizes[p] for p in partitions),
            [(1.0, available_rate(rates[direction], clients[direction], plan.ratio, 0.0))],
            len(partitions) * REASSIGNED_RATE,
        )
        for direction, partitions in directions.items()
    )


def static_rate(plan: RunPlan) -> int:
    """The rate that an operator who knows the client load would set, bytes/s: clients use half, and headers 1 %."""
    return round(plan.ratio * LINKS[FOLLOWER] * (0.5 - 0.005))


_REPLACED_REPLICA = 1
"""Broker id of the replica that the follower replaces. The client rates already include its traffic."""

_UNTHROTTLED = 1000 * MEGABYTE

_POLICIES: Mapping[str, Callable[[RunPlan], Policy]] = {
    "none": lambda _: StaticPolicy(_UNTHROTTLED),
    "static": lambda plan: StaticPolicy(static_rate(plan)),
    "headroom": lambda _: HeadroomPolicy(),
    "adaptive": lambda _: AdaptivePolicy(),
}


def simulated(plan: RunPlan, sizes: Mapping[int, int], clients: Mapping[LinkDirection, float]) -> float:
    """Return the duration of the same reassignment in virtual time with the same planner, seconds.

    With a second follower only copying to the first one counts, with a resolution of one second.

    Args:
        plan: the parameters of the run.
        sizes: partition -> bytes to copy.
        clients: link direction -> client traffic, bytes/s.
    """
    before = REASSIGNED_RATE * plan.window  # bytes that the simulated brokers append before the reassignment
    reassignments = [
        VirtualReassignment(
            plan.topic, p, sizes[p] - before, (replicas[0], _REPLACED_REPLICA), tuple(replicas), round(REASSIGNED_RATE)
        )
        for p, replicas in plan.replicas_after().items()
    ]
    scenario = VirtualScenario(
        {
            b: VirtualBroker(
                Capacity(rate, rate), ClientTraffic.constant(round(clients[b, "tx"]), round(clients[b, "rx"]))
            )
            for b, rate in LINKS.items()
        },
        reassignments,
        PlannerSettings(
            Limits(MIN_RATE, plan.ratio, plan.ratio, change_threshold=0.1, failure_threshold=1),
            policy=_POLICIES[plan.policy](plan),
            interval=timedelta(seconds=plan.interval),
            metrics_window=timedelta(seconds=plan.window),
        ),
    )
    added, seconds = {(plan.topic, p) for p in plan.partitions_added_to(FOLLOWER)}, 0

    def watch(recovery: VirtualRecovery) -> None:
        nonlocal seconds
        seconds += not added.isdisjoint(recovery.cluster.moving())

    whole = VirtualRecovery(scenario).run(watch=watch)
    return whole if plan.second == "none" else float(seconds)
