"""Quality and speed of placement plans on generated clusters: `make bench-placement`.

Run it as `python -m tests.benchmarks.placement_bench --cases article,large --seeds 1,2`. Each row is one plan: process
CPU seconds, moved replicas, copied bytes beside the bound, and how even the map is before and after. `--record` writes
them to results/placement.json.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autothrottle.core.placement.brokers import ALL_MAPPED, ALL_REGISTERED, PlacementBroker, select_brokers
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.core.placement.plan import Optimization, PlacementPlan, RebalanceOptions, RebuildOptions, Strategy
from autothrottle.core.placement.rebalance import decommission, rebalance, scale
from autothrottle.core.placement.rebuild import rebuild

RESULTS = Path(__file__).parent / "results" / "placement.json"
GB = 1 << 30


@dataclass(frozen=True)
class Case:
    """How to generate a cluster."""

    racks: int
    brokers: int
    """In each rack."""
    topics: int
    partitions: int
    """Of each topic."""
    replication_factors: tuple[int, ...] = (3,)
    """Topics take turns."""
    size_gb: float = 4.0
    """Median size of a partition."""
    size_sigma: float = 1.0
    broker_sigma: float = 0.25
    """How unevenly brokers are used."""
    hot: int = 0
    """Partitions of 1,000 GB."""


CASES = {
    "article": Case(3, 10, 1, 768, size_gb=6, size_sigma=0.35, broker_sigma=0.05),
    "medium": Case(5, 10, 50, 100, broker_sigma=0.3),
    "large": Case(5, 20, 100, 200, size_gb=3),
    "xl": Case(5, 100, 1000, 200, size_gb=2, broker_sigma=0.2),
    "hot": Case(5, 2, 1, 200, size_gb=10, size_sigma=0.5, broker_sigma=0.1, hot=1),
    "mixed": Case(4, 3, 8, 38, (1, 2, 3, 4), size_sigma=0.7),
    "fewracks": Case(2, 4, 3, 40, size_gb=5, size_sigma=0.6),
}


@dataclass(frozen=True)
class Cluster:
    """A map, its brokers and as many spare brokers as a fifth of them."""

    partitions: tuple[PartitionReplicas, ...]
    brokers: dict[int, PlacementBroker]
    spares: tuple[int, ...]


def generate(case: Case, seed: int) -> Cluster:
    """Return the cluster of this case and seed."""
    source = random.Random(seed)
    ids = range(1, case.racks * case.brokers + 1)
    weight = {id: math.exp(source.gauss(0, case.broker_sigma)) for id in ids}
    partitions = [
        PartitionReplicas("hot", number, _replicas(source, case, weight, 3), 1000 * GB) for number in range(case.hot)
    ]
    for topic in range(case.topics):
        factor = case.replication_factors[topic % len(case.replication_factors)]
        for number in range(case.partitions):
            size = int(case.size_gb * GB * math.exp(source.gauss(0, case.size_sigma)))
            partitions.append(PartitionReplicas(f"t{topic:04}", number, _replicas(source, case, weight, factor), size))
    used = dict.fromkeys(ids, 0)
    for entry in partitions:
        for id in entry.replicas:
            used[id] += entry.size or 0
    total = int(max(used.values()) / 0.7)
    spares = tuple(range(len(ids) + 1, len(ids) + 1 + max(case.brokers // 5, 1) * case.racks))
    free = {id: total - used.get(id, 0) for id in (*ids, *spares)}
    brokers = {id: PlacementBroker(id, f"r{(id - 1) % case.racks}", free[id]) for id in (*ids, *spares)}
    return Cluster(tuple(partitions), brokers, spares)


def _replicas(source: random.Random, case: Case, weight: dict[int, float], factor: int) -> tuple[int, ...]:
    """Draw brokers by weight, each rack once until all racks are used."""
    chosen: list[int] = []
    for _ in range(factor):
        uses = [sum((id - 1) % case.racks == rack for id in chosen) for rack in range(case.racks)]
        open_ids = [id for id in weight if uses[(id - 1) % case.racks] == min(uses) and id not in chosen]
        chosen += source.choices(open_ids, [weight[id] for id in open_ids])
    return tuple(chosen)


Planner = Callable[[Sequence[PartitionReplicas], Sequence[PlacementBroker]], PlacementPlan]


def _rebuild(
    strategy: Strategy = Strategy.COUNT,
    optimization: Optimization = Optimization.DISTRIBUTION,
    *,
    force: bool = False,
    leaders: bool = False,
) -> Planner:
    options = RebuildOptions(strategy, optimization, force=force, optimize_leadership=leaders)
    return lambda partitions, brokers: rebuild(partitions, brokers, options)


def operations(cluster: Cluster) -> dict[str, tuple[list[int], Planner]]:
    """Return operation -> wanted brokers and the planner."""
    kept = [id for id in cluster.brokers if id not in cluster.spares and id != 1]
    mapped, every, storage = [ALL_MAPPED], [ALL_REGISTERED], Strategy.STORAGE
    options = RebalanceOptions(partition_size_threshold=512 << 20)
    return {
        "no-op": (mapped, _rebuild()),
        "lost broker, count": (kept, _rebuild()),
        "lost broker, storage": (kept, _rebuild(storage)),
        "force, count": (mapped, _rebuild(force=True)),
        "force, storage": (mapped, _rebuild(storage, force=True)),
        "force, storage, minimal": (mapped, _rebuild(storage, Optimization.MINIMAL, force=True)),
        "force, count, minimal": (mapped, _rebuild(optimization=Optimization.MINIMAL, force=True)),
        "rebalance": (mapped, lambda partitions, brokers: rebalance(partitions, brokers, options)),
        "scale": (every, lambda partitions, brokers: scale(partitions, brokers, options)),
        "decommission": (mapped, lambda partitions, brokers: decommission(partitions, brokers, [1])),
        "leadership": (mapped, _rebuild(leaders=True)),
    }


@dataclass(frozen=True)
class Measurement:
    """One plan."""

    case: str
    seed: int
    operation: str
    cpu_seconds: float
    moved_replicas: int
    copied_gb: float
    bound_gb: float
    leader_spread: tuple[int, int]
    """Before, after."""
    replica_spread: tuple[int, int]
    range_spread: tuple[float, float]
    degree: tuple[int, float]
    """Smallest and average, after."""
    warnings: int


def measure(case: str, seed: int, chosen: Sequence[str]) -> Iterator[Measurement]:
    """Plan each chosen operation (all if empty) on one cluster."""
    cluster = generate(CASES[case], seed)
    for operation, (wanted, planner) in operations(cluster).items():
        if not chosen or operation in chosen:
            begin = time.process_time()
            plan = planner(cluster.partitions, select_brokers(cluster.partitions, wanted, cluster.brokers).brokers)
            yield _measurement(case, seed, operation, time.process_time() - begin, plan)


def _measurement(case: str, seed: int, operation: str, seconds: float, plan: PlacementPlan) -> Measurement:
    before, after = plan.statistics_before, plan.statistics_after
    spreads = [statistics.storage.range_spread or math.inf for statistics in (before, after) if statistics.storage]
    moved = sum(
        len(set(new.replicas).difference(old.replicas)) for old, new in zip(plan.before, plan.after, strict=True)
    )
    return Measurement(
        case,
        seed,
        operation,
        round(seconds, 2),
        moved,
        round(plan.copied_bytes / GB, 1),
        round(plan.bound_bytes / GB, 1),
        (before.leader_spread, after.leader_spread),
        (before.replica_spread, after.replica_spread),
        (spreads[0], spreads[1]),
        (after.degree.min, after.degree.average),
        len(plan.warnings),
    )


def _row(each: Measurement) -> str:
    return (
        f"{each.case:9}{each.seed:3} {each.operation:24}{each.cpu_seconds:7.2f} s {each.moved_replicas:7} replicas"
        f"{each.copied_gb:10,.0f} GB (bound {each.bound_gb:9,.0f})  leaders {each.leader_spread[0]} -> "
        f"{each.leader_spread[1]}  replicas {each.replica_spread[0]} -> {each.replica_spread[1]}  range "
        f"{each.range_spread[0]:.2%} -> {each.range_spread[1]:.4%}  degree {each.degree[0]}, {each.degree[1]:.2f}"
        f"  warnings {each.warnings}"
    )


def main() -> None:
    """Print one row per plan, then the peak memory of the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--operations", default="", help="separated by ';', all if not given")
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    rows = []
    chosen = [name.strip() for name in arguments.operations.split(";") if name.strip()]
    for case in arguments.cases.split(","):
        for seed in arguments.seeds.split(","):
            for row in measure(case, int(seed), chosen):
                print(_row(row), flush=True)
                rows.append(asdict(row))
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    if arguments.record:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
