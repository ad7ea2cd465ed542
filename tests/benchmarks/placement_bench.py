"""Quality and speed of placement plans on generated clusters: `make bench-placement`.

Run it as `python -m tests.benchmarks.placement_bench --cases article,large --seeds 1,2`. Each row is one plan, judged
by its maps: process CPU seconds (the median of `--runs`), copied bytes beside the bound, and how even the map is before
and after. The original's figures are those of seed 1. `--record` writes the rows to results/placement.csv.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from autothrottle.core.placement.brokers import PlacementBroker, select_brokers
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.core.placement.plan import Optimization, PlacementPlan, RebalanceOptions, RebuildOptions, Strategy
from autothrottle.core.placement.rebalance import decommission, rebalance, scale
from autothrottle.core.placement.rebuild import rebuild
from tests.benchmarks.placement_clusters import CASES, FIRST_BROKER, Cluster, generate
from tests.benchmarks.placement_judge import Verdict, judge
from tests.benchmarks.result_files import DIRECTORY, write_rows

RESULTS = DIRECTORY / "placement.csv"

ORIGINAL = {
    ("article", "force, count"): "range 3.41 %, 13,443 GB, leaders 1, replicas 1",
    ("article", "force, storage"): "range 0.17 %, 13,469 GB, leaders 1, replicas 2",
    ("article", "rebalance"): "range 4.70 %, 429 GB",
    ("article", "scale"): "range 7.2 %, 2,808 GB, leaders 21, replicas 42, 4.6 s",
    ("medium", "rebalance"): "range 31.5 %, 17,011 GB, 70 s",
    ("medium", "scale"): "range 92.0 %, 23,339 GB, 38 s",
    ("large", "rebalance"): "range 35.3 %, 11,431 GB, 198 s",
    ("large", "scale"): "range 104 %, 63,433 GB, 288 s",
    ("large", "leadership"): "leaders 264, 63 s",
    ("xl", "no-op"): "1.6 s",
    ("xl", "force, count"): "range 15.0 %, 1,972,500 GB, leaders 0, replicas 2, 36 s",
    ("xl", "force, storage"): "range 0.001 %, 1,972,500 GB, leaders 6, replicas 9, 12 s",
    ("xl", "rebalance"): "range 51.6 %, 164,613 GB, 27 s",
    ("xl", "leadership"): "did not end in 600 s",
    ("hot", "rebalance"): "range 13.3 %, 1,930 GB, leaders 37, replicas 87",
}
"""(case, operation) -> what the original topicmappr reaches with seed 1; its CPU seconds are those of the process."""


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
    kept = [id for id in cluster.brokers if id not in cluster.spares and id != FIRST_BROKER]
    mapped, every = [id for id in cluster.brokers if id not in cluster.spares], [*cluster.brokers]
    storage = Strategy.STORAGE
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
        "decommission": (kept, lambda partitions, brokers: decommission(partitions, brokers, [FIRST_BROKER])),
        "leadership": (mapped, _rebuild(leaders=True)),
    }


@dataclass(frozen=True)
class Measurement:
    """One plan."""

    case: str
    seed: int
    operation: str
    cpu_seconds: float
    """Median of the runs."""
    verdict: Verdict
    warnings: int


def measure(case: str, seed: int, chosen: Sequence[str], runs: int) -> Iterator[Measurement]:
    """Plan each chosen operation (all if empty) on one cluster."""
    cluster = generate(case, seed)
    for operation, (wanted, planner) in operations(cluster).items():
        if not chosen or operation in chosen:
            # A decommission knows the broker that leaves; the other operations get the brokers that remain.
            named = [*wanted, FIRST_BROKER] if operation == "decommission" else wanted
            brokers = select_brokers(cluster.partitions, named, cluster.brokers).brokers
            seconds = []
            for _ in range(runs):
                begin = time.process_time()
                plan = planner(cluster.partitions, brokers)
                seconds.append(time.process_time() - begin)
            verdict = judge(cluster, plan.new_map, wanted)
            yield Measurement(case, seed, operation, round(median(seconds), 2), verdict, len(plan.warnings))


def _row(each: Measurement) -> str:
    verdict, before, after = each.verdict, each.verdict.before, each.verdict.after
    original = ORIGINAL.get((each.case, each.operation), "") if each.seed == 1 else ""
    return (
        f"{each.case:9}{each.seed:3} {each.operation:24}{each.cpu_seconds:7.2f} s {verdict.moved_replicas:7} replicas"
        f"{verdict.copied_gb:10,.0f} GB (bound {verdict.bound_gb:9,.0f})  leaders {before.leader_spread} -> "
        f"{after.leader_spread}  replicas {before.replica_spread} -> {after.replica_spread}  range "
        f"{before.range_spread:.2%} -> {after.range_spread:.4%}  degree {before.degree_min}, "
        f"{before.degree_average:.2f} -> {after.degree_min}, {after.degree_average:.2f}  violations "
        f"{verdict.violations}  lost {verdict.lost_replicas}  warnings {each.warnings}"
        + (f"  [original: {original}]" if original else "")
    )


def main() -> None:
    """Print one row per plan, then the peak memory of the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--operations", default="", help="separated by ';', all if not given")
    parser.add_argument("--runs", type=int, default=1, help="plans of each kind, whose median CPU time counts")
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    rows = []
    chosen = [name.strip() for name in arguments.operations.split(";") if name.strip()]
    for case in arguments.cases.split(","):
        for seed in arguments.seeds.split(","):
            for row in measure(case, int(seed), chosen, arguments.runs):
                print(_row(row), flush=True)
                rows.append(asdict(row))
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    if arguments.record:
        write_rows(RESULTS, rows)


if __name__ == "__main__":
    main()
