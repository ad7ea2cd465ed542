"""The planner under each policy."""

from __future__ import annotations

import logging

import pytest

from autothrottle.core.plan import Reason
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.interface import Basis
from autothrottle.core.policy.static import StaticPolicy
from autothrottle.runtime.configuration_reader import parse
from tests.builders import mb
from tests.planner.bench import Bench


def test_a_static_rate_stands_on_every_participant_and_goes_with_the_move(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Bench(policy=StaticPolicy(mb(33))) as bench:
        bench.begin_move()
        bench.cycle()
        assert bench.rates() == {(1001, "leader"): 33.0, (1003, "follower"): 33.0}
        assert "Replication throttle rate for broker 1001 [leader] (static): 33.00MB/s" in caplog.messages
        bench.cluster.finish("t1")
        bench.cycle("the reassignment of [t1] ended")
        assert bench.is_clean()


def test_a_static_rate_below_the_minimum_is_told_as_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """It was told, and logged, as one of a broker whose clients need the link."""
    caplog.set_level(logging.INFO)
    with Bench(policy=StaticPolicy(mb(5))) as bench:
        bench.begin_move()
        record = bench.cycle()
        assert set(bench.rates().values()) == {5.0}
        assert {decision.reason for decision in record.decisions} == {Reason.HEADROOM}
        assert "Replication throttle rate for broker 1001 [leader] (static): 5.00MB/s" in caplog.messages


def test_adaptive_without_log_sizes_decides_by_the_formula_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Bench(policy=AdaptivePolicy()) as bench:
        bench.cycle()
        bench.begin_move()
        began = bench.cycle("a reassignment of [t1] started")
        assert bench.rates() == {(1001, "leader"): 72.0, (1003, "follower"): 81.0}
        assert {decision.basis for decision in began.decisions} == {Basis.GUESSED}
        said = "(based on a 90% max free capacity utilization): 72.00MB/s; clients: "
        said += "of the metric's interval, replication taken for the throttle"
        assert any(said in message for message in caplog.messages)


def test_adaptive_keeps_the_fail_safe_and_what_operators_override() -> None:
    with Bench(policy=AdaptivePolicy()) as bench:
        bench.begin_move()
        bench.cycle()
        bench.metrics.lose(1003, "no data")
        kept, least = bench.cycle(), bench.cycle()
        reasons = [
            {decision.reason for decision in cycle.decisions if decision.broker_id == 1003} for cycle in (kept, least)
        ]
        assert reasons == [{Reason.KEPT}, {Reason.MINIMUM}]


@pytest.mark.parametrize("name", ["headroom", "adaptive", "static"])
def test_every_policy_can_be_chosen_by_its_name(name: str) -> None:
    chosen = parse([f"--policy={name}", "--static-rate=33"], {}).new_policy()
    assert type(chosen).__name__.lower() == f"{name}policy"
    if isinstance(chosen, StaticPolicy):
        assert chosen.rate == mb(33)
