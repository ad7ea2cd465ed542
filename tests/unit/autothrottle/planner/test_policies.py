"""The planner under each policy."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.headroom import StaticPolicy
from autothrottle.core.records import Basis, Reason
from autothrottle.ports.telemetry import NoLoads
from autothrottle.runtime.configuration_reader import parse
from tests.builders import mb
from tests.unit.autothrottle.planner.bench import Bench


def test_a_static_rate_applies_to_every_participant_of_a_reassignment(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with Bench(policy=StaticPolicy(mb(33))) as bench:
        bench.begin_reassignment()
        bench.cycle()
        assert bench.rates() == {(1001, "leader"): 33.0, (1003, "follower"): 33.0}
        assert "Replication throttle rate for broker 1001 [leader] (static): 33.00MB/s" in caplog.messages
        bench.cluster.finish("t1")
        bench.cycle("the reassignment of [t1] ended")
        assert bench.is_clean()


def test_a_static_rate_below_the_minimum_is_logged_as_static(caplog: pytest.LogCaptureFixture) -> None:
    """It was logged as the rate of a broker whose clients need the link. The rate is only the configured one."""
    caplog.set_level(logging.INFO)
    with Bench(policy=StaticPolicy(mb(5))) as bench:
        bench.begin_reassignment()
        record = bench.cycle()
        assert set(bench.rates().values()) == {5.0}
        assert {decision.reason for decision in record.decisions} == {Reason.HEADROOM}
        assert "Replication throttle rate for broker 1001 [leader] (static): 5.00MB/s" in caplog.messages


def test_a_static_rate_needs_no_loads(caplog: pytest.LogCaptureFixture) -> None:
    """Without loads, brokers got the minimum rate under the static policy, and every cycle reported them as failed."""
    caplog.set_level(logging.INFO)
    with Bench(policy=StaticPolicy(mb(33))) as bench:
        bench.metrics.loads = NoLoads().fetch_loads(timedelta(seconds=1))
        bench.begin_reassignment()
        first, second = bench.cycle(), bench.cycle()
        assert bench.rates() == {(1001, "leader"): 33.0, (1003, "follower"): 33.0}
        assert (first.findings, second.findings) == ((), ())
        assert [{decision.reason for decision in cycle.decisions} for cycle in (first, second)] == [
            {Reason.HEADROOM},
            {Reason.UNCHANGED},
        ]
        assert "Replication throttle rate for broker 1001 [leader] (static): 33.00MB/s" in caplog.messages


def test_adaptive_without_log_sizes_uses_the_formula_and_logs_its_basis(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Bench(policy=AdaptivePolicy()) as bench:
        bench.cycle()
        bench.begin_reassignment()
        began = bench.cycle("a reassignment of [t1] started")
        assert bench.rates() == {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
        assert {decision.basis for decision in began.decisions} == {Basis.GUESSED}
        expected = "mean of the metric's interval, replication assumed at the throttle"
        assert f"Client load of broker 1001 [leader]: 20.00MB/s, {expected}" in caplog.messages


def test_adaptive_keeps_the_fail_safe_without_metrics() -> None:
    with Bench(policy=AdaptivePolicy()) as bench:
        bench.begin_reassignment()
        bench.cycle()
        bench.metrics.lose(1003, "no data")
        kept, least = bench.cycle(), bench.cycle()
        reasons = [
            {decision.reason for decision in cycle.decisions if decision.broker_id == 1003} for cycle in (kept, least)
        ]
        assert reasons == [{Reason.KEPT}, {Reason.MINIMUM}]


@pytest.mark.parametrize("name", ["headroom", "adaptive", "static"])
def test_every_policy_can_be_selected_by_name(name: str) -> None:
    chosen = parse([f"--policy={name}", "--static-rate=33"], {}).new_policy()
    assert type(chosen).__name__.lower() == f"{name}policy"
    if isinstance(chosen, StaticPolicy):
        assert chosen.rate == mb(33)
