"""Runs many seeds in parallel, and formats their results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from autothrottle_lab.servers.processes import scratch_directory
from autothrottle_lab.servers.zookeeper import ZooKeeperEnsemble
from tests.chaos.run import Result, run
from tests.chaos.schedule import schedule

_RUNS_OF_AN_ENSEMBLE = 20
"""After more runs, reading the transaction logs takes longer than starting a new ensemble."""

_lock = threading.Lock()
"""Serializes starts, because two ensembles that start at once may choose the same ports; and calls of `report`."""


def run_all(seeds: Sequence[int], lanes: int, report: Callable[[Result], None]) -> list[Result]:
    """Run seeds in parallel, and return their results sorted by seed.

    Args:
        seeds: the seeds.
        lanes: number of parallel runs, each with its own ensemble.
        report: called with each result, one at a time.
    """
    with ThreadPoolExecutor(lanes, "lane") as pool:
        parts = [pool.submit(_lane, seeds[lane::lanes], report) for lane in range(lanes)]
        return sorted((result for part in parts for result in part.result()), key=lambda r: r.plan.seed)


def _lane(seeds: Sequence[int], report: Callable[[Result], None]) -> list[Result]:
    results = []
    for first in range(0, len(seeds), _RUNS_OF_AN_ENSEMBLE):
        with scratch_directory("chaos-") as directory, ExitStack() as stack:
            with _lock:
                ensemble = stack.enter_context(ZooKeeperEnsemble(directory / "zookeeper"))
            for seed in seeds[first : first + _RUNS_OF_AN_ENSEMBLE]:
                results.append(_one(ensemble, seed, directory))
                with _lock:
                    report(results[-1])
    return results


def _one(ensemble: ZooKeeperEnsemble, seed: int, directory: Path) -> Result:
    here, plan = directory / str(seed), schedule(seed)
    here.mkdir()
    try:
        return run(ensemble, plan, here)
    except Exception as error:
        error.add_note(str(plan))
        raise


def line(result: Result) -> str:
    """Return the result of a seed in one line."""
    verdict, plan = result.verdict, result.plan
    outcome = f"{len(result.violations)} VIOLATIONS" if result.violations else "ok"
    return (
        f"{plan.seed:5} {'separate' if plan.separate_services else '2 x run':8}{result.seconds:6.1f} s, "
        f"{result.kills} kills and stops, {result.kills_inside} during a transaction, "
        f"{result.cuts_after_commit} cuts after commit, "
        f"{verdict.writes} writes of {verdict.terms} terms, {verdict.late} refused as late: {outcome}"
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
        ]
    )
