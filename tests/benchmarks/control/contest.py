"""The contest: every policy in every scenario, as one table, compared with the goals.

`make bench-control` runs it. `ARGS="--seeds 4,5"` chooses other random seeds, and `ARGS=--record` stores the table in
`../results/control*.csv`. `--results FILE` stores each finished scenario at once and does not run it again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shlex
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import HeadroomPolicy, StaticPolicy
from autothrottle.core.policy.interface import Policy
from autothrottle.core.units import MEGABYTE
from tests.benchmarks.control.contestants import OraclePolicy, OriginalPolicy
from tests.benchmarks.control.fleet import (
    FAST,
    KAFKA,
    MIX30,
    SCRAPE,
    STD,
    Entry,
    Fleet,
    Foresight,
    Measurements,
    Result,
    Timing,
)
from tests.benchmarks.control.scenarios import CONSUMER_FANOUT, SHAPES, SURPRISES, Scenario, scenario
from tests.benchmarks.result_files import DIRECTORY, write_rows

RESULTS = DIRECTORY / "control.csv"
TIMINGS = {timing.name: timing for timing in (STD, MIX30, FAST, SCRAPE)}
ALL_TIMINGS = {**TIMINGS, KAFKA.name: KAFKA}
GOALS = {"mix30": (1.02, 0.04), "std": (1.03, 0.06), "fast": (1.02, 0.03), "scrape": (1.02, 0.02)}
"""Timing -> (makespan / bound, deferred %) that `adaptive` has to reach."""
WRONG_FANOUTS = (0.5, 1.0, 2.0)
"""`--consumer-fanout` of the metrics source `kafka`, as multiples of the true one."""
STATIC_SHARES = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7)
"""Candidate static rates as shares of the median link. The best one is chosen in hindsight."""
EQUAL_HARM_RATIOS = (0.4, 0.5, 0.6, 0.7)
HARMLESS = 0.1
"""Percent of client bytes that the best static rate may defer."""
MISSING_MEASUREMENTS = {
    "adaptive, growth of other logs unknown": Measurements(growth=False),
    "adaptive, no log sizes": Measurements(growth=False, progress=False),
    "adaptive, one broker 15 minutes without metrics": Measurements(blind=(600, 1500)),
    "adaptive, metrics 5 minutes late": Measurements(stale=180),
    "adaptive, no metrics in the first 3 minutes": Measurements(metrics_from=180),
    "adaptive, a failover every 15 minutes": Measurements(failover_every=900),
}
NAMES = {"original": "the original's formula", "headroom": "--policy headroom (subtracts aligned replication)"}
_COST = {"diurnal": 6, "large": 5, "tiny": 3, "rackloss": 3, "scaledown": 2.5}
"""Approximate relative run times, so that the longest scenarios start first."""


def entries(chosen: Scenario, timings: Iterable[Timing]) -> list[Entry]:
    """All policies and timings for one scenario and seed."""
    found = [Entry(chosen, "none", MIX30, None)]
    for timing in timings:
        if timing is KAFKA:
            found += fanout_entries(chosen)
            continue
        found += [
            Entry(chosen, "original", timing, lambda _: OriginalPolicy(), on_events=False),
            Entry(chosen, "headroom", timing, lambda _: HeadroomPolicy()),
            Entry(chosen, "adaptive", timing, lambda _: AdaptivePolicy()),
            Entry(chosen, "oracle", timing, oracle(chosen, timing), threshold=0.0),
        ]
    return found


def fanout_entries(chosen: Scenario) -> list[Entry]:
    """The metrics source `kafka` with right and wrong fan-outs, and a source that sees the links."""
    found = [
        Entry(chosen, "oracle", KAFKA, oracle(chosen, KAFKA), threshold=0.0),
        Entry(chosen, "adaptive", KAFKA, lambda _: AdaptivePolicy()),
    ]
    for factor in WRONG_FANOUTS:
        seen = Measurements(fanout=factor * CONSUMER_FANOUT)
        found.append(
            Entry(chosen, f"adaptive, fan-out {factor:g} x", KAFKA, lambda _: AdaptivePolicy(), measurements=seen)
        )
    return found


def oracle(chosen: Scenario, timing: Timing) -> Callable[[Foresight], Policy]:
    in_sync = chosen.growth * chosen.shape.in_sync
    return lambda foresight: OraclePolicy(foresight, timing.interval, chosen.brokers, in_sync)


def search_entries(chosen: Scenario) -> list[Entry]:
    """Runs for the best static rate and for equal harm, and runs of `adaptive` with missing measurements."""
    link = float(np.median(chosen.capacity))
    found = [Entry(chosen, f"static {share:g}", MIX30, static(link * share)) for share in STATIC_SHARES]
    for ratio in EQUAL_HARM_RATIOS:
        found.append(
            Entry(chosen, f"original {ratio:g}", MIX30, lambda _: OriginalPolicy(), ratio=ratio, on_events=False)
        )
    for name, measurements in MISSING_MEASUREMENTS.items():
        found.append(Entry(chosen, name, MIX30, lambda _: AdaptivePolicy(), measurements=measurements))
    return found


def static(megabytes: float) -> Callable[[Foresight], Policy]:
    return lambda _: StaticPolicy(round(megabytes * MEGABYTE))


def contest(name: str, seed: int, timings: Sequence[str], searches: bool) -> list[Result]:
    """Run one scenario with one seed."""
    chosen = scenario(name, seed)
    found = Fleet(entries(chosen, [ALL_TIMINGS[timing] for timing in timings])).run()
    return found + Fleet(search_entries(chosen)).run() if searches else found


def contests(
    rows: Iterable[tuple[str, int]],
    timings: Sequence[str],
    searches: Collection[int],
    processes: int,
    kept: Path | None,
) -> list[Result]:
    """Run all scenarios without a result in the file `kept`: one line of JSON per scenario and seed."""
    begun, results, wanted = time.monotonic(), [], list(rows)
    for line in kept.read_text().splitlines() if kept and kept.exists() else ():
        found = [Result(**one) for one in json.loads(line)]
        if (row := (found[0].scenario, found[0].seed)) in wanted:
            wanted.remove(row)
            results += found
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(contest, *row, timings, row[1] in searches): row for row in wanted}
        for future in as_completed(running):
            found = future.result()
            results += found
            if kept:
                with kept.open("a") as file:
                    file.write(json.dumps([asdict(one) for one in found]) + "\n")
            print(f"{time.monotonic() - begun:6.0f} s  {running[future]}", flush=True)
    return results


class Table:
    """All results, grouped by policy and timing."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._by: dict[tuple[str, str], list[Result]] = defaultdict(list)
        for result in results:
            self._by[result.policy, result.timing].append(result)

    def of(self, policy: str, timing: str) -> list[Result]:
        return sorted(self._by.get((policy, timing), []), key=lambda r: (r.scenario, r.seed))

    def rows(self) -> list[dict[str, Any]]:
        """One row per policy and timing, without the candidates of the searches."""
        found = []
        for policy, timing in self._by:
            if not policy.split()[-1].replace(".", "").isdigit():
                found.append(self._row(policy, timing, self.of(policy, timing)))
        if best := self.best_static():
            found.append(self._row("static, best in hindsight", MIX30.name, best))
        return sorted(found, key=lambda row: (list(ALL_TIMINGS).index(row["timing"]), row["policy"]))

    def _row(self, policy: str, timing: str, results: Sequence[Result]) -> dict[str, Any]:
        runs = {(r.scenario, r.seed) for r in results}
        oracle = [r for r in self.of("oracle", timing) if (r.scenario, r.seed) in runs]
        found = ratios(sorted(results, key=lambda r: (r.scenario, r.seed)), oracle) if oracle else []
        by_oracle = {
            "makespan_by_oracle_median": round(statistics.median(found), 4) if found else None,
            "makespan_by_oracle_worst": round(max(found), 4) if found else None,
        }
        return {"policy": policy, "timing": timing, **summary(results), **by_oracle}

    def best_static(self) -> list[Result]:
        """The fastest static rate per scenario and seed that defers at most `HARMLESS`, where one exists."""
        runs: dict[tuple[str, int], list[Result]] = defaultdict(list)
        for share in STATIC_SHARES:
            for result in self.of(f"static {share:g}", MIX30.name):
                if result.deferred <= HARMLESS and result.finished:
                    runs[result.scenario, result.seed].append(result)
        return [min(found, key=lambda r: r.makespan) for found in runs.values()]

    def at_equal_harm(self, policy: str) -> float | None:
        """Median makespan of `adaptive` / that of a policy whose ratio is lowered until it defers as few bytes.

        It covers the scenarios and seeds in which the policy ran with all ratios. None: no such runs, or `adaptive`
        defers less than the policy at every ratio.
        """
        runs = {(r.scenario, r.seed) for r in self.of(f"{policy} {EQUAL_HARM_RATIOS[0]:g}", MIX30.name)}

        def same(name: str) -> list[Result]:
            return [r for r in self.of(name, MIX30.name) if (r.scenario, r.seed) in runs]

        points = []
        for name in (policy, *(f"{policy} {ratio:g}" for ratio in EQUAL_HARM_RATIOS)):
            if found := same(name):
                points.append((mean(found, "deferred"), statistics.median(r.makespan for r in found)))
        points.sort()
        adaptive = same("adaptive")
        if len(points) < 2 or not points[0][0] <= mean(adaptive, "deferred"):
            return None
        deferred, makespans = zip(*points, strict=True)
        theirs = float(np.interp(mean(adaptive, "deferred"), deferred, makespans))
        return statistics.median(r.makespan for r in adaptive) / theirs


def mean(results: Sequence[Result], field: str) -> float:
    return statistics.fmean(getattr(r, field) for r in results)


def summary(results: Sequence[Result]) -> dict[str, Any]:
    makespans, deferred = [r.makespan for r in results], [r.deferred for r in results]
    errors = [r.eta_error for r in results if r.eta_error is not None]
    scenarios: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        scenarios[result.scenario].append(result)
    return {
        "runs": len(results),
        "unfinished": sum(not r.finished for r in results),
        "makespan_median": round(statistics.median(makespans), 4),
        "makespan_worst": round(max(makespans), 4),
        "makespan_worst_scenario": round(max(mean(found, "makespan") for found in scenarios.values()), 4),
        "deferred_median": round(statistics.median(deferred), 4),
        "deferred_mean": round(statistics.fmean(deferred), 4),
        "deferred_worst": round(max(deferred), 4),
        "deferred_worst_scenario": round(max(mean(found, "deferred") for found in scenarios.values()), 4),
        "worst_port_deferred_p90": round(float(np.quantile([r.worst_deferred for r in results], 0.9)), 4),
        "saturated_mean": round(mean(results, "saturated"), 3),
        "over_mean": round(mean(results, "over"), 3),
        "decisions_per_gb_median": round(statistics.median(r.writes_per_gb for r in results), 4),
        "writes_per_broker_hour": round(mean(results, "writes_per_broker_hour"), 2),
        "writes_in_15_minutes_per_broker_worst": round(max(r.busiest_writes_per_broker for r in results), 2),
        "eta_error_median": round(statistics.median(errors), 2) if errors else None,
        "eta_error_worst": round(max(errors), 2) if errors else None,
    }


def claims(table: Table, timings: Sequence[str]) -> list[dict[str, Any]]:
    """Compare the table with the goals."""
    found: list[dict[str, Any]] = []

    def claim(name: str, value: float | None, most: float | None) -> None:
        if value is not None:
            met = None if most is None else value <= most
            found.append({"claim": name, "reached": round(value, 4), "wanted": most, "met": met})

    for timing in (name for name in timings if name in GOALS):
        ours = table.of("adaptive", timing)
        total, wanted = summary(ours), GOALS[timing]
        claim(f"{timing}: makespan / bound, median of all runs", total["makespan_median"], wanted[0])
        claim(f"{timing}: makespan / bound, worst scenario", total["makespan_worst_scenario"], 1.15)
        claim(f"{timing}: makespan / bound, worst run", total["makespan_worst"], 1.35)
        known = [r.makespan for r in ours if r.scenario not in SURPRISES]
        claim(f"{timing}: makespan / bound, worst run with predictable load", max(known, default=None), 1.15)
        claim(
            f"{timing}: makespan / oracle, worst run", max(ratios(ours, table.of("oracle", timing)), default=None), 1.10
        )
        claim(f"{timing}: deferred %, mean of all runs", total["deferred_mean"], wanted[1])
        claim(f"{timing}: deferred %, worst scenario", total["deferred_worst_scenario"], 0.15)
        for other, formula in NAMES.items():
            theirs = table.of(other, timing)
            worse = sum(a.deferred > b.deferred for a, b in zip(ours, theirs, strict=True))
            claim(f"{timing}: runs that defer more than {formula}", float(worse), 0)
            # The goals refer to the original's formula. The aligned `headroom` policy is for comparison only.
            deferred, saturated = (0.1, 0.125) if other == "original" else (None, None)
            claim(f"{timing}: total deferred / {formula}", share(ours, theirs, "deferred"), deferred)
            claim(f"{timing}: saturated seconds / {formula}", share(ours, theirs, "saturated"), saturated)
        claim(f"{timing}: decisions that change a rate, per GB, median", total["decisions_per_gb_median"], 0.05)
    if MIX30.name in timings:
        if equal := table.at_equal_harm("original"):
            claim(f"mix30: makespan / {NAMES['original']} at equal harm", equal, 0.6)
        if best := table.best_static():
            fixed = statistics.median(r.makespan for r in best)
            runs = {(r.scenario, r.seed) for r in best}
            same = [r.makespan for r in table.of("adaptive", MIX30.name) if (r.scenario, r.seed) in runs]
            claim("mix30: makespan / best static rate, medians", statistics.median(same) / fixed, 0.9)
    return found


def ratios(ours: Sequence[Result], theirs: Sequence[Result]) -> list[float]:
    """Return the makespan of each run / that of the other policy in the same scenario and seed."""
    return [a.makespan / b.makespan for a, b in zip(ours, theirs, strict=True)]


def share(ours: Sequence[Result], theirs: Sequence[Result], field: str) -> float | None:
    total = sum(getattr(r, field) for r in theirs)
    return sum(getattr(r, field) for r in ours) / total if total else None


_SHOWN = {
    "makespan_median": "makespan",
    "makespan_worst": "worst",
    "makespan_by_oracle_median": "/ oracle",
    "makespan_by_oracle_worst": "worst",
    "deferred_median": "deferred %",
    "deferred_mean": "mean",
    "deferred_worst": "worst",
    "worst_port_deferred_p90": "link side p90",
    "saturated_mean": "saturated %",
    "over_mean": "over %",
    "decisions_per_gb_median": "changes/GB",
    "writes_per_broker_hour": "writes/broker h",
    "writes_in_15_minutes_per_broker_worst": "most in 15 min",
    "eta_error_median": "ETA error %",
    "eta_error_worst": "worst",
}


def lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table as lines of text."""
    cells = [["timing", "policy", "runs", *_SHOWN.values()]]
    for row in rows:
        cells.append([row["timing"], row["policy"], str(row["runs"]), *(_number(row[key]) for key in _SHOWN)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def by_scenario(table: Table, timings: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Scenario -> policy and timing -> means over the seeds of makespan, deferred and saturated."""
    found: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for timing in timings:
        for policy in ("original", "headroom", "adaptive", "oracle"):
            groups: dict[str, list[Result]] = defaultdict(list)
            for result in table.of(policy, timing):
                groups[result.scenario].append(result)
            for name, results in groups.items():
                found[name][f"{policy} {timing}"] = {
                    field: round(mean(results, field), 4) for field in ("makespan", "deferred", "saturated")
                }
    return dict(found)


def record(table: Table, seeds: Sequence[int], timings: Sequence[str], command: str) -> dict[str, list[dict[str, Any]]]:
    """Return the name of each results file and its rows."""
    run = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": command, "seeds": list(seeds)}
    return {
        RESULTS.name: [{**row, **run} for row in table.rows()],
        "control_claims.csv": claims(table, timings),
        "control_scenarios.csv": [
            {"scenario": scenario, "policy": policy, **figures}
            for scenario, policies in by_scenario(table, timings).items()
            for policy, figures in policies.items()
        ],
        "control_adaptive_runs.csv": [asdict(result) for timing in timings for result in table.of("adaptive", timing)],
    }


def main(arguments: Sequence[str]) -> int:
    """Run the contest and print it."""
    parser = argparse.ArgumentParser(prog="make bench-control", description=__doc__)
    parser.add_argument("--seeds", default="1,2,3", help="random seeds, separated by commas")
    parser.add_argument("--scenarios", default=",".join(SHAPES), help="names of scenarios, separated by commas")
    parser.add_argument("--timings", default=",".join(TIMINGS), help="some of %(default)s, or kafka")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 8), help="number of processes")
    parser.add_argument(
        "--searches",
        nargs="?",
        const="all",
        default="",
        help="also run static rates, equal harm and missing measurements: all, or a list of seeds",
    )
    parser.add_argument(
        "--results", type=Path, help="file of finished runs with the same timings and searches, extended by this run"
    )
    parser.add_argument("--record", action="store_true", help=f"store the table in {DIRECTORY.name}")
    given = parser.parse_args(arguments)
    seeds, timings = [int(seed) for seed in given.seeds.split(",")], given.timings.split(",")
    names = sorted(given.scenarios.split(","), key=lambda name: -_COST.get(name, 1))
    rows = [(name, seed) for seed in seeds for name in names]
    searches = seeds if given.searches == "all" else [int(seed) for seed in filter(None, given.searches.split(","))]
    results = contests(rows, timings, searches, given.processes, given.results)
    table = Table(results)
    table_rows, wanted = table.rows(), claims(table, timings)
    print("\n".join(["", *lines(table_rows), ""]))
    for claim in wanted:
        met = "met" if claim["met"] else "NOT MET"
        goal = "for comparison" if claim["wanted"] is None else f"wanted: at most {claim['wanted']:g}: {met}"
        print(f"{claim['claim']}: {claim['reached']:g} ({goal})")
    if given.record:
        options = [f"--seeds {given.seeds}", *([f"--searches {given.searches}"] if given.searches else []), "--record"]
        command = shlex.join(["make", "bench-control", f"ARGS={' '.join(options)}"])
        for name, result_rows in record(table, seeds, timings, command).items():
            write_rows(DIRECTORY / name, result_rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
