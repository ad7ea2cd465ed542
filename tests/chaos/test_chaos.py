"""Some seeds of the chaos tests; `make chaos` runs 200."""

import pytest

from tests.chaos.run import Result
from tests.chaos.series import details, line, run_all, summary

SEEDS = (28, 41, 50, 109)
"""With them every kind of edit happens, and kills, stops, and cuts, before and after a commit.

They lack delays and faults of the metrics service, which `MORE_SEEDS` have.
"""

MORE_SEEDS = tuple(range(1, 21))


def report(result: Result) -> None:
    print(line(result))


@pytest.mark.parametrize(
    "seeds",
    [pytest.param(SEEDS, id="4 seeds"), pytest.param(MORE_SEEDS, id="20 more seeds", marks=pytest.mark.repeat)],
)
def test_faults_and_edits_cause_no_violation(seeds: tuple[int, ...]) -> None:
    print()
    results = run_all(seeds, lanes=2, report=report)
    print(summary(results))
    assert [result.plan.seed for result in results] == list(seeds)
    broken = [details(result) for result in results if result.violations]
    print(*broken, sep="\n")  # the assertion message truncates each of them
    assert broken == []
    assert all(result.verdict.writes for result in results)
    # Faults that miss their targets would prove nothing.
    assert sum(result.kills_inside for result in results) >= 0.3 * sum(result.kills for result in results) > 0
    assert sum(result.cuts_after_commit for result in results) > 0
