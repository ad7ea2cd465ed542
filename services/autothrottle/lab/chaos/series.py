"""Runs many seeds, some at the same time, and tells what became of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from autothrottle.lab.chaos.run import Result, run
from autothrottle.lab.chaos.schedule import schedule
from autothrottle.lab.ensemble import ZooKeeperEnsemble
from autothrottle.lab.processes import scratch_directory

_RUNS_OF_AN_ENSEMBLE = 20
"""After so many its logs take longer to read than a new one takes to start."""

_one_at_a_time = threading.Lock()
"""Two ensembles that start at the same moment might choose the same ports."""


def run_all(seeds: Sequence[int], lanes: int, tell: Callable[[Result], None]) -> list[Result]:
    """Run seeds, some at the same time, and return their results by seed.

    Args:
        seeds: which ones.
        lanes: how many run at the same time, each with an ensemble of its own.
        tell: is called with each result, one at a time.
    """
    with ThreadPoolExecutor(lanes, "lane") as pool:
        parts = [pool.submit(_lane, seeds[lane::lanes], tell) for lane in range(lanes)]
        return sorted((result for part in parts for result in part.result()), key=lambda r: r.plan.seed)


def _lane(seeds: Sequence[int], tell: Callable[[Result], None]) -> list[Result]:
    results = []
    for first in range(0, len(seeds), _RUNS_OF_AN_ENSEMBLE):
        with scratch_directory("chaos-") as directory, ExitStack() as stack:
            with _one_at_a_time:
                ensemble = stack.enter_context(ZooKeeperEnsemble(directory / "zookeeper"))
            for seed in seeds[first : first + _RUNS_OF_AN_ENSEMBLE]:
                results.append(_one(ensemble, seed, directory))
                with _one_at_a_time:
                    tell(results[-1])
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
    """Say in one line what became of a seed."""
    verdict, plan = result.verdict, result.plan
    outcome = f"{len(result.violations)} VIOLATIONS" if result.violations else "ok"
    return (
        f"{plan.seed:5} {'apart' if plan.apart else '2 x run':8}{result.seconds:6.1f} s, "
        f"{result.kills} kills and stops, {result.kills_inside} inside, {result.cuts_after_commit} cuts after commit, "
        f"{verdict.writes} writes of {verdict.terms} terms, {verdict.late} refused as late: {outcome}"
    )


def story(result: Result) -> str:
    """Tell all of a run that broke a promise."""
    return "\n".join(
        [str(result.plan), *(f"  {note}" for note in result.notes), *(f"  {v}" for v in result.violations)]
    )


def summary(results: Sequence[Result]) -> str:
    """Add up what became of all."""
    kills, inside = sum(r.kills for r in results), sum(r.kills_inside for r in results)
    broken = [r.plan.seed for r in results if r.violations]
    where = f": seeds {broken}" if broken else ""
    return "\n".join(
        [
            f"{len(results)} runs, {sum(len(r.violations) for r in results)} violations{where}",
            f"{kills} kills and stops of services, {inside} of them inside of an apply ({inside / max(kills, 1):.0%})",
            f"{sum(r.cuts_after_commit for r in results)} connections cut right after a commit",
            f"{sum(r.verdict.writes for r in results)} writes of {sum(r.verdict.terms for r in results)} terms, "
            f"{sum(r.verdict.late for r in results)} transactions of ended terms refused by ZooKeeper",
        ]
    )
