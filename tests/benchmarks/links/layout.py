"""The move that is played on shaped links: who has what, what clients produce, and how long it takes at best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from autothrottle.core.bound import PortDemand, bound_seconds, budget
from autothrottle.core.client_traffic import ClientTraffic
from autothrottle.core.limits import Limits
from autothrottle.core.loads import MEGABYTE, Capacity
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.policy.static import StaticPolicy
from autothrottle.lab.virtual import VirtualBroker, VirtualMove, VirtualRecovery, VirtualScenario
from tests.benchmarks.links.tally import Port, Sample

SOURCES = (1001, 1002, 1003, 1004)
DESTINATION = 1005

LINKS = {**dict.fromkeys(SOURCES, 20 * MEGABYTE), DESTINATION: 10 * MEGABYTE}
"""Bytes/s of each direction."""

SECOND = 1004
"""Where a quarter of the partitions go in a move with a second destination, whose link has half of its rate free, or is
nearly full: the flows to the other destination are not to be slowed by it."""

RING, BESIDE, CROWD = "steady", "beside", "crowd"
"""Topics of the clients: one is on the sources alone; every partition of the next has a replica on the destination; the
last one fills the second destination."""

CROWD_RATE = 0.45 * LINKS[SECOND]
"""What is produced to it, bytes/s: all clients together have 95 % of that link then."""

RING_RATE, BESIDE_RATE, MOVING_RATE = 2.1875 * MEGABYTE, 0.625 * MEGABYTE, 0.0125 * MEGABYTE
"""What is produced to each partition, bytes/s: steady ones together take half of every link's receiving direction."""

MOVED_PARTITIONS = 16
"""So many that fetches, of 128 kB a partition, do not wait for one another where an answer takes its time."""

MIN_RATE = 1 * MEGABYTE


def led_by_turns(brokers: Sequence[int], partitions: int = MOVED_PARTITIONS) -> dict[int, list[int]]:
    """Replicas of so many partitions: each broker's are followed by the next one."""
    return {p: [brokers[(p + n) % len(brokers)] for n in (0, 1)] for p in range(partitions)}


def ring() -> dict[int, list[int]]:
    """Partitions of the sources among themselves, two led by each."""
    return led_by_turns(SOURCES, 8)


def beside() -> dict[int, list[int]]:
    """Partitions that the destination follows (the first four) and leads."""
    return {p: [SOURCES[p], DESTINATION] if p < 4 else [DESTINATION, SOURCES[p - 4]] for p in range(8)}


def crowd() -> dict[int, list[int]]:
    """The partition that only the second destination has."""
    return {0: [SECOND]}


SECOND_KINDS = ("none", "open", "full")
"""There is no second destination; it is as the sources are; clients nearly fill its link."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is played."""

    policy: str
    """One of the product's, or `none`."""
    ratio: float
    """Of the headroom, in (0, 1]."""
    number: int
    """1 is the first of its kind."""
    megabytes: int
    """Of each of the partitions that move; with `uneven` half of them have twice as much."""
    interval: int
    """Between two cycles, seconds."""
    window: int
    """Of the metrics, seconds."""
    quiet_seconds: float
    """How long clients are watched before the move."""
    record_bytes: int = 2000
    """Of what moves; four are a batch. A fetch is cut where its size ends, in the middle of a batch: of batches nearly
    as large as it much is sent, counted and thrown away."""
    uneven: bool = False
    """Whether half of the partitions are at their end long before the others."""
    second: str = "none"
    """How the second destination is: one of `SECOND_KINDS`."""

    @property
    def topic(self) -> str:
        """The topic that moves."""
        return f"moved-{self.policy}-{self.ratio:g}-{self.second}-{self.number}"

    def before_the_move(self) -> dict[int, list[int]]:
        """Replicas of the topic that moves; a second destination has none, and is no leader that is full itself."""
        among = SOURCES if self.second == "none" else [b for b in SOURCES if b != SECOND]
        return led_by_turns(among)

    def after_the_move(self) -> dict[int, list[int]]:
        """Replicas of the topic that moves, where they shall be: each leader keeps its own."""
        return {p: [replicas[0], self._destination(p)] for p, replicas in self.before_the_move().items()}

    def moved_to(self, destination: int) -> list[int]:
        """The partitions that one destination gets."""
        return [p for p, replicas in self.after_the_move().items() if replicas[-1] == destination]

    def _destination(self, partition: int) -> int:
        goes_there = self.second != "none" and partition >= MOVED_PARTITIONS // 2 and partition % 2 == 0
        return SECOND if goes_there else DESTINATION

    def has_twice(self, partition: int) -> bool:
        """Whether a partition has twice the usual bytes: of each leader's every other one."""
        return self.uneven and partition // len(SOURCES) % 2 == 1


def rates_of_links() -> dict[Port, float]:
    """Port -> its rate, bytes/s."""
    return {(broker_id, direction): float(rate) for broker_id, rate in LINKS.items() for direction in ("rx", "tx")}


def client_rates(samples: Sequence[Sample]) -> dict[Port, float]:
    """Port -> what it carried in a quiet time, bytes/s."""
    first, last = samples[0], samples[-1]
    return {port: last.carried[port].rate_since(first.carried[port]) for port in first.carried}


def bound(plan: Plan, sizes: Mapping[int, int], clients: Mapping[Port, float]) -> float:
    """Return how long the copying to the destination takes at least at the plan's share of the headroom, seconds.

    Args:
        plan: what is played.
        sizes: partition -> bytes to be copied.
        clients: port -> what clients have of it, bytes/s.
    """
    there, leaders = plan.moved_to(DESTINATION), {p: ids[0] for p, ids in plan.before_the_move().items()}
    ports = {(DESTINATION, "rx"): there} | {
        (leader, "tx"): [p for p in there if leaders[p] == leader] for leader in SOURCES
    }
    rates = rates_of_links()
    return bound_seconds(
        PortDemand(
            sum(sizes[p] for p in partitions),
            [(1.0, budget(rates[port], clients[port], plan.ratio, 0.0))],
            len(partitions) * MOVING_RATE,
        )
        for port, partitions in ports.items()
    )


def static_rate(plan: Plan) -> int:
    """What somebody who knows the clients' load would set, bytes/s: half of the link is theirs, and 1 % headers."""
    return round(plan.ratio * LINKS[DESTINATION] * (0.5 - 0.005))


_COPIED = 1
"""Stands for the replica that the destination takes over, whose traffic clients' rates have in them already."""

_UNTHROTTLED = 1000 * MEGABYTE

_POLICIES: Mapping[str, Callable[[Plan], Policy]] = {
    "none": lambda _: StaticPolicy(_UNTHROTTLED),
    "static": lambda plan: StaticPolicy(static_rate(plan)),
    "headroom": lambda _: HeadroomPolicy(),
    "adaptive": lambda _: AdaptivePolicy(),
}


def simulated(plan: Plan, sizes: Mapping[int, int], clients: Mapping[Port, float]) -> float:
    """Return how long the same move takes in virtual time, with the same planner and simulated brokers, seconds.

    Beside a second destination what counts is the copying to the first one, to a second.

    Args:
        plan: what is played.
        sizes: partition -> bytes to be copied.
        clients: port -> what clients have of it, bytes/s.
    """
    before = MOVING_RATE * plan.window  # what the simulated brokers produce before the move
    move = [
        VirtualMove(plan.topic, p, sizes[p] - before, (replicas[0], _COPIED), tuple(replicas), round(MOVING_RATE))
        for p, replicas in plan.after_the_move().items()
    ]
    scenario = VirtualScenario(
        {
            b: VirtualBroker(
                Capacity(rate, rate), ClientTraffic.constant(round(clients[b, "tx"]), round(clients[b, "rx"]))
            )
            for b, rate in LINKS.items()
        },
        move,
        policy=_POLICIES[plan.policy](plan),
        limits=Limits(MIN_RATE, plan.ratio, plan.ratio, change_threshold=0.1, failure_threshold=1),
        interval=timedelta(seconds=plan.interval),
        metrics_window=timedelta(seconds=plan.window),
    )
    there, seconds = {(plan.topic, p) for p in plan.moved_to(DESTINATION)}, 0

    def watch(recovery: VirtualRecovery) -> None:
        nonlocal seconds
        seconds += not there.isdisjoint(recovery.brokers.moving())

    whole = VirtualRecovery(scenario).run(watch=watch)
    return whole if plan.second == "none" else float(seconds)
