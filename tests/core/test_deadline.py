"""A deadline: no throttle is higher than twice what it needs, and what cannot be done by it is said with numbers."""

from __future__ import annotations

import re
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.deadline import held_to_deadline
from autothrottle.core.flows import Flow, FlowProgress, Progress
from autothrottle.core.guards import Guarded, Ingress
from autothrottle.core.plan import Decision, Plan, Reason
from autothrottle.core.topology import Snapshot
from tests import builders
from tests.builders import NOON, mb, reassignment

FOLLOWER = ReplicaRole.FOLLOWER
GB = 1_000_000_000
LIMITS = builders.limits(min_rate=mb(2))


def cluster(left: int = 36 * GB, standing: int | None = None) -> Snapshot:
    return builders.snapshot(
        reassignment("t", {0: (1001, (1001,), (1003,), ())}),
        progress=Progress({Flow(1001, 1003): FlowProgress(0, 0, left, NOON, NOON)}, at=NOON),
        throttles={"brokers/1003": {FOLLOWER.rate_key: str(standing)}} if standing is not None else None,
    )


def held(
    rate: int,
    seconds: float,
    left: int = 36 * GB,
    produced: int = 0,
    reason: Reason = Reason.HEADROOM,
    standing: int | None = None,
) -> Guarded:
    plan = Plan((Decision(1003, FOLLOWER, rate, reason, standing, rate, mb(10), mb(100)),))
    into = {(1003, FOLLOWER): Ingress(produced, 3)}
    by = NOON + timedelta(seconds=seconds)
    return held_to_deadline(plan, cluster(left, standing), LIMITS, into, by, NOON)


def rate_of(found: Guarded) -> tuple[int, Reason]:
    return found.plan.decisions[0].rate, found.plan.decisions[0].reason


def test_it_gets_twice_what_it_needs_and_what_is_produced_counts() -> None:
    assert rate_of(held(mb(80), 3_600)) == (mb(20), Reason.FINISH_BY)
    assert rate_of(held(mb(80), 3_600, produced=mb(5))) == (mb(30), Reason.FINISH_BY)


def test_it_is_not_held_below_the_minimum_nor_raised_above_the_headroom() -> None:
    assert rate_of(held(mb(80), 36_000_000)) == (mb(2), Reason.FINISH_BY)
    assert rate_of(held(mb(15), 3_600)) == (mb(15), Reason.HEADROOM)


def test_what_cannot_be_done_is_said_and_takes_the_headroom() -> None:
    found = held(mb(80), 360)
    assert rate_of(found) == (mb(80), Reason.HEADROOM)
    assert found.findings == (
        "the moves cannot be done by 2026-11-02T12:06:00Z: broker 1003 [follower] has 36000 MB left, which at "
        "80.00 MB/s take until 2026-11-02T12:07:30Z",
    )
    assert "never end" in held(mb(80), 360, produced=mb(80)).findings[0]


def test_of_many_that_are_late_the_latest_three_are_named() -> None:
    rows = {n: (1001 + n, (1001 + n,), (1020 + n,), ()) for n in range(5)}
    left = {Flow(1001 + n, 1020 + n): FlowProgress(0, 0, (n + 1) * GB, NOON, NOON) for n in range(5)}
    cluster = builders.snapshot(reassignment("t", rows), progress=Progress(left, at=NOON))
    rates = (Decision(1020 + n, FOLLOWER, mb(10), Reason.HEADROOM, None, mb(10), mb(10), mb(100)) for n in range(5))
    found = held_to_deadline(Plan(tuple(rates)), cluster, LIMITS, {}, NOON + timedelta(seconds=10), NOON)
    assert re.findall(r"broker (\d+)", found.findings[0]) == ["1024", "1023", "1022"]
    assert found.findings[0].endswith("; and 2 directions of links more")


def test_an_override_and_a_throttle_without_metrics_are_left_alone_but_judged() -> None:
    for reason in (Reason.BROKER_OVERRIDE, Reason.CLUSTER_OVERRIDE, Reason.MINIMUM, Reason.KEPT):
        assert rate_of(held(mb(80), 3_600, reason=reason)) == (mb(80), reason)
    assert held(mb(1), 3_600, reason=Reason.BROKER_OVERRIDE).findings


def test_what_stands_stays_while_it_differs_by_little() -> None:
    assert rate_of(held(mb(80), 3_600, standing=mb(21))) == (mb(21), Reason.FINISH_BY)
    assert rate_of(held(mb(20.5), 3_600, standing=mb(21)))[0] == mb(20.5), "but not above the headroom"


def test_a_deadline_that_is_over_holds_nothing_back_nor_does_one_of_what_is_unknown() -> None:
    assert held(mb(80), 0) == held(mb(80), -5)
    assert rate_of(held(mb(80), 0)) == (mb(80), Reason.HEADROOM)
    plan = Plan((Decision(1003, FOLLOWER, mb(80), Reason.HEADROOM, None, mb(80), mb(10), mb(100)),))
    by = NOON + timedelta(hours=1)
    assert rate_of(held_to_deadline(plan, cluster(), LIMITS, {}, by, NOON)) == (mb(20), Reason.FINISH_BY)
    assert held_to_deadline(plan, builders.snapshot(), LIMITS, {}, by, NOON) == Guarded(plan)


def test_a_port_of_which_a_flow_is_unknown_is_not_held_and_the_others_are() -> None:
    both = reassignment("t", {0: (1001, (1001,), (1003,), ()), 1: (1002, (1002,), (1003,), ())})
    known = Progress({Flow(1001, 1003): FlowProgress(0, 0, 36 * GB, NOON, NOON)}, at=NOON)
    ports = ((1001, ReplicaRole.LEADER), (1002, ReplicaRole.LEADER), (1003, FOLLOWER))
    plan = Plan(tuple(Decision(*port, mb(80), Reason.HEADROOM, None, mb(80), mb(10), mb(100)) for port in ports))
    snapshot = builders.snapshot(both, progress=known)
    found = held_to_deadline(plan, snapshot, LIMITS, {}, NOON + timedelta(hours=1), NOON)
    assert [decision.rate for decision in found.plan.decisions] == [mb(20), mb(80), mb(80)]


@given(
    rate=st.integers(0, mb(500)),
    seconds=st.integers(1, 10**6),
    left=st.integers(0, 10**14),
    produced=st.integers(0, mb(100)),
    standing=st.none() | st.integers(0, mb(500)),
)
def test_a_move_that_can_be_done_in_time_still_can(
    rate: int, seconds: int, left: int, produced: int, standing: int | None
) -> None:
    found = held(rate, seconds, left, produced, standing=standing)
    now = found.plan.decisions[0].rate
    assert now <= rate
    if not found.findings and left:
        assert left <= (now - produced) * seconds + 1
