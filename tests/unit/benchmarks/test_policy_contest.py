"""The policy contest: its links share like the cluster model, its runs finish, and its table is complete."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle_lab.simulation.link import fair_shares as plain_fair_shares
from tests.benchmarks.control.contest import Table, claims, lines
from tests.benchmarks.control.contestants import OraclePolicy, OriginalPolicy
from tests.benchmarks.control.fleet import MIX30, Entry, Fleet, seen_in_logs
from tests.benchmarks.control.links import Flows, fair_shares
from tests.benchmarks.control.scenarios import BEFORE, CONSUMER_FANOUT, scenario
from tests.examples import examples


@settings(max_examples=examples(20, 60), deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(5, 9)), min_size=1, max_size=15),
    wants=st.lists(st.floats(1, 1000), min_size=15, max_size=15),
    limits=st.lists(st.floats(0, 1000), min_size=10, max_size=10),
)
def test_fair_shares_equal_those_of_the_cluster_model(
    pairs: list[tuple[int, int]], wants: list[float], limits: list[float]
) -> None:
    want = wants[: len(pairs)]
    flows = Flows(np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs]), np.array(want))
    constraints = [(limit, [f for f, pair in enumerate(pairs) if side in pair]) for side, limit in enumerate(limits)]
    found = fair_shares(flows, np.array(limits))
    assert found.tolist() == pytest.approx(plain_fair_shares(want, constraints), rel=1e-6, abs=1e-6)


@pytest.mark.repeat  # `make bench-control` measures the same
def test_adaptive_is_as_fast_as_the_oracle_and_defers_less_than_the_original_on_a_quiet_cluster() -> None:
    calm = scenario("calm", seed=1)
    in_sync = calm.growth * calm.shape.in_sync
    results = Fleet(
        [
            Entry(calm, "none", MIX30, None),
            Entry(calm, "original", MIX30, lambda _: OriginalPolicy(), on_events=False),
            Entry(calm, "headroom", MIX30, lambda _: OriginalPolicy(), on_events=False),
            Entry(calm, "adaptive", MIX30, lambda _: AdaptivePolicy()),
            Entry(calm, "oracle", MIX30, lambda future: OraclePolicy(future, 30, calm.brokers, in_sync), threshold=0.0),
        ]
    ).run()
    none, original, _, adaptive, oracle = results
    assert all(result.finished for result in results)
    # Without a throttle the run is faster than 90 % of the headroom permits. Policies at 90 % reach the bound.
    assert 0.85 < none.makespan < 0.95
    assert adaptive.makespan == pytest.approx(oracle.makespan, abs=0.02)
    assert adaptive.makespan >= 0.995
    assert adaptive.deferred <= original.deferred <= none.deferred
    assert adaptive.saturated < 1.0 < none.saturated
    table = Table(results)
    assert {row["policy"] for row in table.rows()} == {"none", "original", "headroom", "adaptive", "oracle"}
    assert len(lines(table.rows())) == 6
    assert all(
        claim["reached"] <= claim["wanted"] for claim in claims(table, ["mix30"]) if "median of all" in claim["claim"]
    )


@pytest.mark.repeat  # a scenario takes long to compute, and only the benchmark uses these loads
def test_loads_from_logs_contain_replication_and_the_assumed_reads_of_consumers() -> None:
    calm = scenario("calm", seed=1)
    window = slice(BEFORE, BEFORE + 120)
    produced = calm.produced[window].mean(axis=0)
    moved = np.r_[np.full(calm.brokers, 7.0), np.full(calm.brokers, 9.0)]
    links = calm.alone[window].mean(axis=0) + moved
    found = seen_in_logs(calm, CONSUMER_FANOUT, links, 0, 120)
    assert found == pytest.approx(links, rel=0.1)
    assert found[calm.brokers :].tolist() == links[calm.brokers :].tolist()
    half = seen_in_logs(calm, CONSUMER_FANOUT / 2, links, 0, 120)
    assert (found - half)[: calm.brokers] == pytest.approx(CONSUMER_FANOUT / 2 * produced, rel=1e-3)
