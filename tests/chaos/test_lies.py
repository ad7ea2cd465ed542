"""Some seeds of a proxy that lies, over brokers in memory; `tests/system/test_lying_proxy.py` has living servers."""

from __future__ import annotations

import pytest

from tests.chaos.lied_calls import APIS, lie_of, play
from tests.chaos.lies import KAFKA_CODES, LieKind

SEEDS = (0, 8, 9, 24, 32, 83)
"""Each kind but a delay: throttled metadata, descriptions without results or with a part of them, and others."""
ALL_SEEDS = 470


def test_all_seeds_have_each_kind_of_lie_about_each_api_and_each_error_code() -> None:
    lies = [lie_of(seed) for seed in range(ALL_SEEDS)]
    pairs = {(lie.kind, api) for lie in lies for api in lie.apis}
    assert pairs == {(kind, api) for kind in LieKind for api in APIS}
    assert {code for lie in lies if lie.kind is LieKind.ERROR for code in lie.codes} == {*KAFKA_CODES}


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(SEEDS, id=f"{len(SEEDS)} seeds"),
        *(
            pytest.param(range(start, start + 47), id=f"from {start} on", marks=pytest.mark.repeat)
            for start in range(0, ALL_SEEDS, 47)
        ),
    ],
)
def test_lies_of_a_proxy_cost_nothing_but_time(seeds: range | tuple[int, ...]) -> None:
    results = [play(seed) for seed in seeds]
    broken = [f"seed {r.seed}, {r.lie}: {r.violations[:5]}" for r in results if r.violations]
    assert broken == []
    # Lies that nobody hears prove nothing.
    assert sum(result.lies for result in results) >= len(results)
