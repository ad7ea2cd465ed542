"""A throttle that is not in force shows in its effect, and the bursts that Kafka allows show as nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import pytest

from autothrottle.core.cluster.configs import ClusterSettings, FetchSettings, ReplicaRole
from autothrottle.core.cluster.flows import CopiedMark, Flow, FlowProgress, LinkSide, Progress
from autothrottle.core.cycle.input import PlannerSettings
from autothrottle.core.policy.headroom import StaticPolicy
from autothrottle.core.throttles.changes import Change, Edit
from autothrottle.core.throttles.guards import (
    EffectObservation,
    ThrottleEffect,
    in_sync_rates,
    throttled_link_sides,
)
from autothrottle.core.throttles.plan import DesiredReplicas, Plan
from autothrottle.core.traffic.loads import Capacity, Utilization
from autothrottle.core.traffic.replication import ThrottleHistory
from autothrottle_lab.simulate.virtual_time import (
    EventKind,
    VirtualBroker,
    VirtualEvent,
    VirtualReassignment,
    VirtualRecovery,
    VirtualScenario,
)
from autothrottle_lab.simulation.link import ClientTraffic
from tests.builders import NOON, limits, load, loads, mb, reassignment, snapshot

LEADER, FOLLOWER = ReplicaRole.LEADER, ReplicaRole.FOLLOWER
SIDE: LinkSide = (1004, FOLLOWER)
SETTINGS = ClusterSettings({1004: FetchSettings(response_max_bytes=1_000_000)})


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def copied(*rates: float) -> Progress:
    """Progress whose only flow copied at these rates, MB/s, each for 2 s."""
    totals = [0]
    for rate in rates:
        totals.append(totals[-1] + mb(rate) * 2)
    *marks, (end, total) = [(after(2 * index), size) for index, size in enumerate(totals)]
    count = FlowProgress(total, 0, mb(10_000), end, NOON, tuple(CopiedMark(*mark) for mark in marks))
    return Progress({Flow(1001, 1004): count}, at=end)


def findings(
    *rates: float, throttles: Sequence[tuple[float, float]] = ((0, 10),), sides: Sequence[LinkSide] = (SIDE,)
) -> tuple[str, ...]:
    """The findings of the last cycle; a throttle (second, MB/s) is read every 2 s, and there is a cycle every 12 s."""
    history, effect = ThrottleHistory(), ThrottleEffect()
    for index in range(1, len(rates) + 1):
        at = after(2 * index)
        throttle = next((rate for second, rate in reversed(throttles) if second <= 2 * index), 0)
        history = history.observe(at, {SIDE: mb(throttle)} if throttle else {})
        if (len(rates) - index) % 6 == 0:
            effect = effect.observe(EffectObservation(at, sides, history, copied(*rates[:index]), SETTINGS))
    return tuple(effect.ineffective.values())


def test_broker_that_copies_above_its_throttle_for_two_windows_is_named() -> None:
    # KAFKA-20890: after a restart Kafka described a throttle of 10 MB/s, and the broker copied at link speed.
    (finding,) = findings(*[50] * 40)
    assert finding.startswith("broker 1004 [follower]: its throttle is not in force. It replicates 50.0 MB/s")
    assert "a throttle of 10.0 MB/s (brokers/1004, follower.replication.throttled.rate)" in finding
    assert "throttlectl set RATE --broker 1004" in finding


def test_throttle_of_ten_bytes_per_second_that_copies_at_link_speed_is_named() -> None:
    # As in a report about Strimzi: a throttle of 10 bytes/s, and 140 MB/s arrived at the new broker.
    (finding,) = findings(*[140] * 40, throttles=[(0, 0.00001)])
    assert "It replicates 140.0 MB/s, and Kafka reports a throttle of 10 bytes/s" in finding
    assert findings(*[0.08] * 40, throttles=[(0, 0.00001)]) == ()  # one fetch in each window passes


@pytest.mark.parametrize(
    "rates",
    [
        [12] * 60,  # the quota is a mean, and a round of fetches exceeds it
        [50, 0, 0, 0, 0] * 12,  # a burst of the whole window, a pause
        [10] * 38 + [400] + [10],  # one burst is in one window
        [50] * 11 + [10] * 40,  # it was not in force at first
        [10] * 30 + [50] * 6,  # for one window
    ],
)
def test_bursts_that_the_quota_allows_are_no_finding(rates: Sequence[float]) -> None:
    assert findings(*rates) == ()


def test_throttle_counts_once_it_was_in_place_for_a_window() -> None:
    assert findings(*[50] * 18) == ()
    assert findings(*[50] * 24) != ()
    assert findings(*[50] * 60, throttles=[(92, 10)]) == ()
    assert findings(*[50] * 60, throttles=[(0, 10), (92, 0), (96, 10)]) == ()


def test_lowered_throttle_is_compared_with_the_rate_before() -> None:
    assert findings(*[50] * 35, *[10] * 25, throttles=[(0, 50), (70, 10)]) == ()
    assert findings(*[50] * 80, throttles=[(0, 50), (70, 10)]) != ()


def test_large_fetches_and_many_leaders_exceed_a_low_throttle() -> None:
    # Ten leaders may answer with 10 MiB each before the quota acts.
    marks = tuple(CopiedMark(after(2 * i), mb(2) * i) for i in range(40))
    count = FlowProgress(mb(80), 0, mb(1000), after(80), NOON, marks)
    progress = Progress({Flow(2000 + i, 1004): count for i in range(10)}, at=after(80))
    history = ThrottleHistory().observe(NOON, {SIDE: mb(2)})

    def judged(settings: ClusterSettings) -> tuple[str, ...]:
        effect = ThrottleEffect(since={SIDE: NOON})
        observation = EffectObservation(after(80), [SIDE], history, progress, settings)
        return tuple(effect.observe(observation).ineffective.values())

    assert judged(ClusterSettings()) == ()
    assert judged(SETTINGS) != ()


def judged_quota_rates(
    *rates: float, in_sync: float = 0, seconds: float = 5, confirmed: datetime = NOON - timedelta(minutes=5)
) -> tuple[str, ...]:
    """The findings after these quota rates of the leader 1001, MB/s, each a mean of 11 s."""
    side = (1001, LEADER)
    history, effect = ThrottleHistory().observe(confirmed, {side: mb(10)}), ThrottleEffect(since={side: confirmed})
    for index, rate in enumerate(rates):
        end = after(index * seconds)
        measured = Utilization(mb(rate), end - timedelta(seconds=11), end)
        observation = EffectObservation(
            end, [side], history, Progress(), SETTINGS, {side: measured}, {side: float(mb(in_sync))}
        )
        effect = effect.observe(observation)
    return tuple(effect.ineffective.values())


def test_quota_rate_of_the_broker_shows_it_without_log_sizes() -> None:
    (finding,) = judged_quota_rates(50, 50, 50, 50)
    assert "broker 1001 [leader]: its throttle is not in force. It replicates 50.0 MB/s" in finding
    assert judged_quota_rates(50, 50, 50) == ()
    assert judged_quota_rates(50, 50, 12, 50, 50) == ()
    assert judged_quota_rates(50, 50, seconds=30) != ()
    assert judged_quota_rates(50, 50, seconds=30, confirmed=NOON) == ()


def test_fetches_of_in_sync_replicas_in_the_quota_rate_are_not_held_back() -> None:
    assert judged_quota_rates(*[50] * 10, in_sync=40) == ()
    moving = reassignment("t", {0: (1001, (1001, 1002, 1003), (1004,), ()), 1: (1001, (1001, 1002), (1004,), ())})
    growth, sides = {(1001, LEADER): 8.0, SIDE: 8.0}, [(1001, LEADER), (1002, LEADER), SIDE]
    counted = snapshot(moving, progress=Progress(at=NOON))
    assert in_sync_rates(counted, sides, growth, loads()) == {(1001, LEADER): 12.0, (1002, LEADER): 0.0, SIDE: 8.0}
    # Without log sizes, producers send at most all inbound traffic.
    assert in_sync_rates(snapshot(moving), sides[:1], {}, loads(load(1001, 0, 10))) == {(1001, LEADER): 15.0}
    assert in_sync_rates(snapshot(moving), sides[:1], {}, loads()) == {(1001, LEADER): math.inf}


def test_finding_keeps_its_text_and_ends_with_its_cause() -> None:
    history = ThrottleHistory().observe(NOON, {SIDE: mb(10)})
    effect = ThrottleEffect(since={SIDE: NOON})
    texts = []
    for rates in ([50] * 40, [50] * 40 + [60] * 40, [50] * 80 + [10] * 40):
        progress = copied(*rates)
        assert progress.at is not None
        effect = effect.observe(EffectObservation(progress.at, [SIDE], history, progress, SETTINGS))
        texts.append(tuple(effect.ineffective.values()))
    assert texts[0] == texts[1] != ()
    assert texts[2] == ()


def test_only_link_sides_whose_replica_lists_are_complete_are_judged() -> None:
    rows = {0: (1001, (1001,), (1004,), ())}
    rates = {f"{role.value}.replication.throttled.rate": "10000000" for role in ReplicaRole}
    cluster = snapshot(
        reassignment("a", rows),
        reassignment("b", {0: (1002, (1002,), (1003,), ())}),
        throttles={f"brokers/{b}": rates for b in (1001, 1002, 1003, 1004)},
    )
    lists = {topic: DesiredReplicas(moving=frozenset({0})) for topic in ("a", "b")}
    both = {(1001, LEADER), (1002, LEADER), (1003, FOLLOWER), (1004, FOLLOWER)}
    of_a = {(1001, LEADER), (1004, FOLLOWER)}
    resource = next(iter(snapshot(throttles={"topics/b": {}}).throttles))
    change = Change(resource, (Edit("leader.replication.throttled.replicas", None, "0:1002"),), None)
    assert throttled_link_sides(cluster, Plan(replicas=lists), (), ()) == both
    assert throttled_link_sides(cluster, Plan(replicas=lists), (change,), ()) == of_a
    exempt = lists | {"b": DesiredReplicas(moving=frozenset({0}), free=frozenset({0}))}
    assert throttled_link_sides(cluster, Plan(replicas=exempt), (), ()) == of_a
    assert throttled_link_sides(cluster, Plan(replicas={"a": lists["a"]}), (), ()) == of_a


class _Deaf(VirtualRecovery):
    """A recovery in which some brokers forget their throttles and read none, while Kafka describes them."""

    deaf: Mapping[int, float] = {}
    """Broker id -> second from which on it is deaf."""

    def _step(self) -> None:
        for broker_id, since in self.deaf.items():
            if self.cluster.now >= since:
                for side in self.cluster.brokers[broker_id].sides.values():
                    side.rate = None
        super()._step()


def warnings(
    caplog: pytest.LogCaptureFixture, deaf: Mapping[int, float], events: Sequence[VirtualEvent] = ()
) -> dict[str, int]:
    """Broker and role without a throttle in force -> second of the warning, in a recovery under 10 MB/s."""
    link = Capacity(mb(125), mb(125))
    brokers = {b: VirtualBroker(link, ClientTraffic.constant(mb(20), mb(20))) for b in (1001, 1002, 1003, 1004)}
    moves = [
        VirtualReassignment("t", n, mb(30_000), (leader, 1003), (leader, 1003, 1004), mb(2))
        for n, leader in enumerate((1001, 1002))
    ]
    interval = timedelta(seconds=10)
    settings = PlannerSettings(limits(), StaticPolicy(mb(10)), interval, metrics_window=interval)
    scenario = VirtualScenario(brokers, moves, settings, events=events)
    recovery, seconds = _Deaf(scenario), dict[str, int]()
    recovery.deaf = deaf

    def watch(watched: VirtualRecovery) -> None:
        for text in caplog.messages:
            if "not in force" in text:
                seconds.setdefault(text.partition(":")[0], round(watched.cluster.now))

    with pytest.raises(TimeoutError):
        recovery.run(timedelta(seconds=200), watch)
    return seconds


def test_simulated_brokers_that_lost_their_throttles_in_a_restart_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds = warnings(caplog, {1001: 100.0, 1004: 100.0})
    assert seconds.keys() == {"Broker 1001 [leader]", "Broker 1004 [follower]"}
    assert all(120 <= second <= 160 for second in seconds.values())


def test_simulated_brokers_that_apply_their_throttles_are_never_reported(caplog: pytest.LogCaptureFixture) -> None:
    events = [
        VirtualEvent(timedelta(seconds=40), 1001, EventKind.FAILS),
        VirtualEvent(timedelta(seconds=90), 1001, EventKind.RETURNS),
        VirtualEvent(timedelta(seconds=150), 1003, EventKind.LEADS),
    ]
    assert warnings(caplog, {}, events) == {}
