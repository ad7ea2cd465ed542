"""What passes the throttles of a move is followed, and after a gap the rate lets no burst through."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autothrottle.core.configs import FOLLOWER_RATE, ConfigResource
from autothrottle.core.fetching import ClusterSettings, FetchSettings
from autothrottle.core.flows import Flow, FlowProgress, Progress
from autothrottle.core.ledger import LedgerKey
from autothrottle.planner import meters
from autothrottle.planner.meters import passed
from tests import builders
from tests.builders import NOON, eventually, mb
from tests.planner.bench import FOLLOWER, LEADER, Bench

COPY = ("t1", 0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(follows=True) as made:
        yield made


def second(bench: Bench, landed: float) -> float:
    """Let so many MB land in a second, read twice meanwhile, and take the step that is due; what stands then, MB/s."""
    for _ in range(2):
        bench.seconds += 0.5
        bench.cluster.log_bytes[1003][COPY] = bench.cluster.log_bytes[1003].get(COPY, 0) + mb(landed / 2)
        bench.planner._meters.read()
    bench.planner.run_step(bench.term)
    return bench.rate(1003, FOLLOWER) or 0.0


def even(bench: Bench) -> None:
    """A move that has used all of the 81 MB/s for half a minute."""
    bench.begin_move()
    bench.cluster.log_bytes[1003] = {}
    bench.cycle()
    assert {second(bench, 81) for _ in range(30)} == {81.0}


def test_after_a_gap_less_stands_until_the_gap_has_left_the_window(bench: Bench) -> None:
    even(bench)
    gap = [second(bench, 0), second(bench, 0)]
    assert gap == [pytest.approx(81 * (1 - 0.95 / 11.5), rel=0.02), pytest.approx(81 * (1 - 1.95 / 11.5), rel=0.02)]
    key = bench.cluster.ledger[ConfigResource.broker(1003)].keys[FOLLOWER_RATE]
    assert key.target == str(mb(81)), "whoever leads next brings it back"
    after = [second(bench, 81) for _ in range(14)]
    assert max(after[:8]) < 75
    assert after[-1] == 81.0
    assert bench.cluster.ledger[ConfigResource.broker(1003)].keys[FOLLOWER_RATE] == LedgerKey(None, str(mb(81)))


def test_a_cycle_leaves_a_rate_that_is_held_back_as_it_is(bench: Bench) -> None:
    even(bench)
    second(bench, 0)
    held = second(bench, 0)
    bench.cycle("something happened", after=0.1)
    assert bench.rate(1003, FOLLOWER) == held


def test_the_target_stands_again_whatever_replication_does(bench: Bench) -> None:
    even(bench)
    slow = [second(bench, 55) for _ in range(120)]
    assert min(slow) > 55 * 1.04, "it never holds back what passes"
    assert 81.0 in slow[:45]
    # On a real 3.9.2 a move took a fifth longer: every other 20 s its rate was held back, for the quota's own gaps.
    assert sum(rate < 81.0 for rate in slow) <= 20 + 8, "once in two minutes, and the way up again"


def test_an_override_stands_as_it_is(bench: Bench) -> None:
    even(bench)
    bench.overrides.set_override(None, mb(81), autoremove=False)
    bench.cycle("an override changed", after=0.1)
    assert {second(bench, 0) for _ in range(3)} == {81.0}


def test_where_one_answer_is_more_than_the_gap_nothing_is_held_back(bench: Bench) -> None:
    bench.cluster.settings = ClusterSettings({1003: FetchSettings(response_max_bytes=mb(300))})
    even(bench)
    eventually(lambda: bench.planner._guards.settings == bench.cluster.settings)
    assert {second(bench, 0) for _ in range(3)} == {81.0}


def test_a_source_that_fails_holds_nothing_back(bench: Bench) -> None:
    even(bench)
    second(bench, 0)
    assert second(bench, 0) < 70
    del bench.cluster.log_bytes[1003]
    for _ in range(40):
        bench.seconds += 1
        bench.planner._meters.read()
        bench.planner.run_step(bench.term)
    assert bench.rate(1003, FOLLOWER) == 81.0


def test_the_thread_reads_while_something_moves() -> None:
    with Bench(follows=True, real_time=True) as bench:
        bench.planner.start("127.0.0.1:4003")
        bench.cluster.log_bytes[1003] = {}
        bench.begin_move()
        eventually(lambda: bench.planner._meters._meters.keys() == {(1003, FOLLOWER), (1001, LEADER)})


def test_only_the_destinations_with_most_left_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MOST_BROKERS", 2)
    left = {Flow(1001, 1003): 5, Flow(1001, 1004): 7, Flow(1002, 1005): 9}
    rows = {p: (flow.leader, (flow.leader,), (flow.follower,), ()) for p, flow in enumerate(left)}
    progress = Progress(
        {flow: FlowProgress(0, 0, bytes_left, NOON, NOON) for flow, bytes_left in left.items()}, at=NOON
    )
    snapshot = builders.snapshot(builders.reassignment("t1", rows), progress=progress)
    assert passed(snapshot) == {
        (1004, "t1", 1): ((1004, FOLLOWER),),
        (1005, "t1", 2): ((1005, FOLLOWER), (1002, LEADER)),
    }, "1001 sends to somebody who is not asked, too"
    monkeypatch.setattr(meters, "MOST_PARTITIONS", 2)
    assert passed(snapshot) == {}
