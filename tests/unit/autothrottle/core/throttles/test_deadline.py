"""A deadline limits throttles to twice the needed rate; findings name link sides that cannot meet it."""

from __future__ import annotations

import re
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Flow, FlowProgress, Progress
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.records import Decision, Reason
from autothrottle.core.throttles.guards import Guarded, limited_by_deadline
from autothrottle.core.throttles.plan import Plan
from autothrottle.core.traffic.replication import Ingress
from tests import builders
from tests.builders import NOON, mb, reassignment

FOLLOWER = ReplicaRole.FOLLOWER
GB = 1_000_000_000
LIMITS = builders.limits(min_rate=mb(2))


def cluster(left: int = 36 * GB, current: int | None = None) -> Snapshot:
    return builders.snapshot(
        reassignment("t", {0: (1001, (1001,), (1003,), ())}),
        progress=Progress({Flow(1001, 1003): FlowProgress(0, 0, left, NOON, NOON)}, at=NOON),
        throttles={"brokers/1003": {FOLLOWER.rate_key: str(current)}} if current is not None else None,
    )


def held(
    rate: int,
    seconds: float,
    left: int = 36 * GB,
    produced: int = 0,
    reason: Reason = Reason.HEADROOM,
    current: int | None = None,
) -> Guarded:
    plan = Plan((Decision(1003, FOLLOWER, rate, reason, current, rate, mb(10), mb(100)),))
    into = {(1003, FOLLOWER): Ingress(produced, 3)}
    by = NOON + timedelta(seconds=seconds)
    return limited_by_deadline(plan, cluster(left, current), LIMITS, into, by, NOON)


def rate_of(found: Guarded) -> tuple[int, Reason]:
    return found.plan.decisions[0].rate_bytes_per_second, found.plan.decisions[0].reason


def test_rate_is_twice_the_need_including_the_produce_rate() -> None:
    assert rate_of(held(mb(80), 3_600)) == (mb(20), Reason.FINISH_BY)
    assert rate_of(held(mb(80), 3_600, produced=mb(5))) == (mb(30), Reason.FINISH_BY)


def test_rate_is_never_below_the_minimum_nor_above_the_headroom() -> None:
    assert rate_of(held(mb(80), 36_000_000)) == (mb(2), Reason.FINISH_BY)
    assert rate_of(held(mb(15), 3_600)) == (mb(15), Reason.HEADROOM)


def test_missed_deadline_is_reported_and_uses_the_whole_headroom() -> None:
    found = held(mb(80), 360)
    assert rate_of(found) == (mb(80), Reason.HEADROOM)
    assert found.findings == (
        "the reassignments cannot finish by 2026-11-02T12:06:00Z: broker 1003 [follower] has 36000 MB left, which at "
        "80.00 MB/s take until 2026-11-02T12:07:30Z",
    )
    assert "never finish" in held(mb(80), 360, produced=mb(80)).findings[0]


def test_only_the_three_latest_link_sides_are_named() -> None:
    rows = {n: (1001 + n, (1001 + n,), (1020 + n,), ()) for n in range(5)}
    left = {Flow(1001 + n, 1020 + n): FlowProgress(0, 0, (n + 1) * GB, NOON, NOON) for n in range(5)}
    cluster = builders.snapshot(reassignment("t", rows), progress=Progress(left, at=NOON))
    rates = (Decision(1020 + n, FOLLOWER, mb(10), Reason.HEADROOM, None, mb(10), mb(10), mb(100)) for n in range(5))
    found = limited_by_deadline(Plan(tuple(rates)), cluster, LIMITS, {}, NOON + timedelta(seconds=10), NOON)
    assert re.findall(r"broker (\d+)", found.findings[0]) == ["1024", "1023", "1022"]
    assert found.findings[0].endswith("; and 2 more link sides")


def test_overrides_and_throttles_without_metrics_are_kept_but_checked() -> None:
    for reason in (Reason.BROKER_OVERRIDE, Reason.CLUSTER_OVERRIDE, Reason.MINIMUM, Reason.KEPT):
        assert rate_of(held(mb(80), 3_600, reason=reason)) == (mb(80), reason)
    assert held(mb(1), 3_600, reason=Reason.BROKER_OVERRIDE).findings


def test_previous_rate_stays_if_the_limit_differs_little() -> None:
    assert rate_of(held(mb(80), 3_600, current=mb(21))) == (mb(21), Reason.FINISH_BY)
    assert rate_of(held(mb(20.5), 3_600, current=mb(21)))[0] == mb(20.5), "not above the headroom"


def test_past_deadline_or_unknown_progress_limits_nothing() -> None:
    assert held(mb(80), 0) == held(mb(80), -5)
    assert rate_of(held(mb(80), 0)) == (mb(80), Reason.HEADROOM)
    plan = Plan((Decision(1003, FOLLOWER, mb(80), Reason.HEADROOM, None, mb(80), mb(10), mb(100)),))
    by = NOON + timedelta(hours=1)
    assert rate_of(limited_by_deadline(plan, cluster(), LIMITS, {}, by, NOON)) == (mb(20), Reason.FINISH_BY)
    assert limited_by_deadline(plan, builders.snapshot(), LIMITS, {}, by, NOON) == Guarded(plan)


def test_link_side_with_an_unknown_flow_is_not_limited_but_others_are() -> None:
    both = reassignment("t", {0: (1001, (1001,), (1003,), ()), 1: (1002, (1002,), (1003,), ())})
    known = Progress({Flow(1001, 1003): FlowProgress(0, 0, 36 * GB, NOON, NOON)}, at=NOON)
    sides = ((1001, ReplicaRole.LEADER), (1002, ReplicaRole.LEADER), (1003, FOLLOWER))
    plan = Plan(tuple(Decision(*side, mb(80), Reason.HEADROOM, None, mb(80), mb(10), mb(100)) for side in sides))
    snapshot = builders.snapshot(both, progress=known)
    found = limited_by_deadline(plan, snapshot, LIMITS, {}, NOON + timedelta(hours=1), NOON)
    assert [decision.rate_bytes_per_second for decision in found.plan.decisions] == [mb(20), mb(80), mb(80)]


@given(
    rate=st.integers(0, mb(500)),
    seconds=st.integers(1, 10**6),
    left=st.integers(0, 10**14),
    produced=st.integers(0, mb(100)),
    current=st.none() | st.integers(0, mb(500)),
)
def test_reassignment_that_can_meet_the_deadline_still_can_with_the_limit(
    rate: int, seconds: int, left: int, produced: int, current: int | None
) -> None:
    found = held(rate, seconds, left, produced, current=current)
    now = found.plan.decisions[0].rate_bytes_per_second
    assert now <= rate
    if not found.findings and left:
        assert left <= (now - produced) * seconds + 1
