"""Runs many seeds in parallel, and formats their results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TypeVar

from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperEnsemble
from tests.chaos.resources import ResourceCount
from tests.chaos.run import Result, run
from tests.chaos.schedule import schedule

_RUNS_OF_A_STAGE = 20
"""After more runs, reading the logs of the servers takes longer than starting new ones."""

_lock = threading.Lock()
"""Serializes starts, because two ensembles that start at once may choose the same ports; and calls of `report`."""

S = TypeVar("S")
R = TypeVar("R")


def run_all(seeds: Sequence[int], lanes: int, report: Callable[[Result], None]) -> list[Result]:
    """Run seeds in parallel, and return their results sorted by seed.

    Args:
        seeds: the seeds.
        lanes: number of parallel runs, each with its own ensemble.
        report: called with each result, one at a time.
    """
    results = run_lanes(
        seeds,
        lanes,
        report,
        lambda directory: ZooKeeperEnsemble(directory / "zookeeper"),
        lambda ensemble, seed, directory: run(ensemble, schedule(seed), directory),
    )
    return sorted(results, key=lambda result: result.plan.seed)


def run_lanes(
    seeds: Sequence[int],
    lanes: int,
    report: Callable[[R], None],
    servers: Callable[[Path], AbstractContextManager[S]],
    run_one: Callable[[S, int, Path], R],
) -> list[R]:
    """Run seeds in parallel, and return their results.

    Args:
        seeds: the seeds.
        lanes: number of parallel runs.
        report: called with each result, one at a time.
        servers: directory -> the servers of one lane, which serve some runs one after the other.
        run_one: runs one seed in an empty directory.
    """

    def lane(seeds: Sequence[int]) -> list[R]:
        results = []
        for first in range(0, len(seeds), _RUNS_OF_A_STAGE):
            with scratch_directory("chaos-") as directory, ExitStack() as stack:
                with _lock:
                    started = stack.enter_context(servers(directory))
                for seed in seeds[first : first + _RUNS_OF_A_STAGE]:
                    results.append(run_seed(started, seed, directory / str(seed)))
                    with _lock:
                        report(results[-1])
        return results

    def run_seed(started: S, seed: int, directory: Path) -> R:
        directory.mkdir()
        try:
            return run_one(started, seed, directory)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise

    with ThreadPoolExecutor(lanes, "lane") as pool:
        parts = [pool.submit(lane, seeds[number::lanes]) for number in range(lanes)]
        return [result for part in parts for result in part.result()]


def line(result: Result) -> str:
    """Return the result of a seed in one line."""
    verdict, plan = result.verdict, result.plan
    outcome = f"{len(result.violations)} VIOLATIONS" if result.violations else "ok"
    return (
        f"{plan.seed:5} {'separate' if plan.separate_services else '2 x run':8}{result.seconds:6.1f} s, "
        f"{result.kills} kills and stops, {result.kills_inside} during a transaction, "
        f"{result.cuts_after_commit} cuts after commit, "
        f"{verdict.writes} writes of {verdict.terms} terms, {verdict.late} refused as late, "
        f"at most {result.most} of a process: {outcome}"
    )


def details(result: Result) -> str:
    """Return the schedule, events and violations of a run."""
    return "\n".join(
        [str(result.plan), *(f"  {note}" for note in result.notes), *(f"  {v}" for v in result.violations)]
    )


def summary(results: Sequence[Result]) -> str:
    """Return the totals of all runs."""
    kills, inside = sum(r.kills for r in results), sum(r.kills_inside for r in results)
    broken = [r.plan.seed for r in results if r.violations]
    where = f": seeds {broken}" if broken else ""
    share = f"{inside / max(kills, 1):.0%}"
    return "\n".join(
        [
            f"{len(results)} runs, {sum(len(r.violations) for r in results)} violations{where}",
            f"{kills} kills and stops of services, {inside} of them during a transaction ({share})",
            f"{sum(r.cuts_after_commit for r in results)} connections cut between a commit and its response",
            f"{sum(r.verdict.writes for r in results)} writes of {sum(r.verdict.terms for r in results)} terms, "
            f"{sum(r.verdict.late for r in results)} transactions of ended terms refused by ZooKeeper",
            f"at most {reduce(or_, (r.most for r in results), ResourceCount())} of a process",
        ]
    )
