"""The short set of the chaos runs; `make chaos` plays the whole one."""

from autothrottle.lab.chaos.run import Result
from autothrottle.lab.chaos.series import line, run_all, story, summary

SEEDS = range(1, 21)


def tell(result: Result) -> None:
    print(line(result))


def test_twenty_seeds_of_kills_stops_cuts_and_edits_break_no_promise() -> None:
    print()
    results = run_all(SEEDS, lanes=2, tell=tell)
    print(summary(results))
    assert [result.plan.seed for result in results] == list(SEEDS)
    broken = [story(result) for result in results if result.violations]
    print(*broken, sep="\n")  # an assertion shows the begin of each
    assert broken == []
    assert all(result.verdict.writes for result in results)
    # Faults that missed what they were for would prove nothing.
    assert sum(result.kills_inside for result in results) >= 0.3 * sum(result.kills for result in results) > 0
    assert sum(result.cuts_after_commit for result in results) > 0
