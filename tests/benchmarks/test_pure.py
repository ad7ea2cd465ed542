"""What a cycle thinks and sends, without any service: 1,000 brokers, 200 topics of 500 moving partitions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest

from autothrottle.core.changes import ChangeSet, changes
from autothrottle.core.configs import ConfigResource
from autothrottle.core.flows import FlowProgress, LandedMark, Progress
from autothrottle.core.history import ThrottleHistory
from autothrottle.core.limits import Limits
from autothrottle.core.loads import MEGABYTE, BrokerLoad, Capacity, Loads, Utilization
from autothrottle.core.plan import Plan, plan
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.interface import Observation
from autothrottle.core.topology import Snapshot, flows
from autothrottle.v1.discovery_pb2 import GetSnapshotResponse
from autothrottle.wire.snapshots import snapshot_from_chunks, snapshot_to_chunks
from tests.benchmarks.big_cluster import CAPACITY, LARGE, MAX_RATIO
from tests.benchmarks.figures import Figures

T = TypeVar("T")

LIMITS = Limits(10 * MEGABYTE, MAX_RATIO, MAX_RATIO, change_threshold=0.1, failure_threshold=1)
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RUNS = 5
LINK = Capacity(CAPACITY, CAPACITY)


def moving() -> Snapshot:
    return Snapshot(version=1, brokers=frozenset(LARGE.broker_ids), reassignments=tuple(LARGE.reassignments()))


def loads(megabytes: int) -> Loads:
    used = Utilization(megabytes * MEGABYTE, NOW - timedelta(minutes=2), NOW)
    return Loads({b: BrokerLoad(b, LINK, used, used) for b in LARGE.broker_ids})


def timed(function: Callable[[], T]) -> tuple[float, T]:
    """Return a function's CPU seconds, since others may keep the machine busy, and its result."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def with_changes(snapshot: Snapshot, found: ChangeSet) -> Snapshot:
    """The cluster after everything was written."""
    throttles: dict[ConfigResource, dict[str, str]] = {r: dict(keys) for r, keys in snapshot.throttles.items()}
    ledger = dict(snapshot.ledger)
    for change in found.changes:
        keys = throttles.setdefault(change.resource, {})
        keys.update({edit.key: edit.value for edit in change.edits if edit.value is not None})
        assert change.ledger is not None
        ledger[change.resource] = change.ledger
    return replace(snapshot, throttles=throttles, ledger=ledger)


@pytest.mark.usefixtures("collected_rarely")
def test_plan_and_changes(figures: Figures) -> None:
    # What was measured is older than the first throttle: all of it is clients.
    history = ThrottleHistory().observe(NOW - timedelta(hours=1), {})

    def measure(snapshot: Snapshot, megabytes: int) -> tuple[float, float, Plan, ChangeSet]:
        load = loads(megabytes)
        planning, decided = timed(lambda: plan(snapshot, load, LIMITS, history=history))
        comparing, found = timed(lambda: changes(decided, snapshot, term=1))
        return planning, comparing, decided, found

    fresh = moving()
    _, _, decided, found = measure(fresh, 300)
    assert len(decided.decisions) == 2 * LARGE.brokers
    assert len(found.changes) == LARGE.brokers + LARGE.topics
    standing = with_changes(fresh, found)
    # What follows from a topic's columns is worked out once: what is new has to be new in each run.
    for name, snapshots, megabytes, edited in (
        ("everything new", (moving() for _ in range(RUNS)), 300, LARGE.brokers + LARGE.topics),
        ("all rates change", (standing for _ in range(RUNS)), 600, LARGE.brokers),
        ("nothing changes", (standing for _ in range(RUNS)), 300, 0),
    ):
        runs = [measure(snapshot, megabytes) for snapshot in snapshots]
        assert {len(found.changes) for _, _, _, found in runs} == {edited}
        figures.add(f"plan(), {name}", str(LARGE), "CPU s", [run[0] for run in runs])
        figures.add(f"changes(), {name}", str(LARGE), "CPU s", [run[1] for run in runs])


@pytest.mark.usefixtures("collected_rarely")
@pytest.mark.parametrize("is_throttled", [False, True], ids=["no throttle", "all throttled"])
def test_a_snapshot_on_the_wire(figures: Figures, is_throttled: bool) -> None:
    snapshot = moving()
    if is_throttled:
        history = ThrottleHistory().observe(NOW - timedelta(hours=1), {})
        snapshot = with_changes(
            snapshot, changes(plan(snapshot, loads(300), LIMITS, history=history), snapshot, term=1)
        )

    def encoded() -> list[bytes]:
        return [chunk.SerializeToString() for chunk in snapshot_to_chunks(snapshot)]

    def decoded(chunks: list[bytes]) -> Snapshot:
        return snapshot_from_chunks(map(GetSnapshotResponse.FromString, chunks))

    encoding = [timed(encoded) for _ in range(RUNS)]
    chunks = encoding[0][1]
    decoding = [timed(lambda: decoded(chunks)) for _ in range(RUNS)]
    assert decoding[0][1] == snapshot
    size = f"{LARGE}, {'all throttled' if is_throttled else 'no throttle'}"
    figures.add("snapshot encoded", size, "CPU s", [run[0] for run in encoding])
    figures.add("snapshot decoded", size, "CPU s", [run[0] for run in decoding])
    figures.add("snapshot on the wire", size, "MB", [sum(map(len, chunks)) / MEGABYTE])
    figures.add("largest chunk of a snapshot", size, "MB", [max(map(len, chunks)) / MEGABYTE])


@pytest.mark.usefixtures("collected_rarely")
def test_plan_of_the_adaptive_policy(figures: Figures) -> None:
    """95,000 flows whose log sizes are read anew before every cycle; observing is what a cycle does before its plan."""
    history = ThrottleHistory().observe(NOW - timedelta(hours=1), {})
    moves, policy = moving(), AdaptivePolicy()
    pairs, since = list(flows(moves)), NOW - timedelta(hours=1)
    observing, planning = [], []
    for number in range(RUNS + 1):
        now = NOW + timedelta(seconds=30 * number)
        counts = {pair: FlowProgress(number * 10**8, number * 10**6, 10**11, now, since) for pair in pairs}
        snapshot = replace(moves, progress=Progress(counts, at=now))
        seen = Observation(now, snapshot, loads(300))
        seconds, policy = timed(lambda policy=policy, seen=seen: policy.observe(seen))  # type: ignore[misc]
        observing.append(seconds)
        seconds, decided = timed(
            lambda snapshot=snapshot, policy=policy: plan(  # type: ignore[misc]
                snapshot, loads(300), LIMITS, history=history, policy=policy
            )
        )
        planning.append(seconds)
        assert len(decided.decisions) == 2 * LARGE.brokers
    # The first one works out what follows from the partitions, which stays.
    figures.add("plan(), adaptive", str(LARGE), "CPU s", planning[1:])
    figures.add("adaptive policy, observing", str(LARGE), "CPU s", observing[1:])


@pytest.mark.usefixtures("collected_rarely")
@pytest.mark.parametrize("earlier", [0, 3, 16])
def test_plan_with_log_sizes(figures: Figures, earlier: int) -> None:
    """95,000 flows whose log sizes are read anew before every cycle, each with some counts of the last minutes."""
    history, moves = ThrottleHistory().observe(NOW - timedelta(hours=1), {}), moving()
    pairs, since = list(flows(moves)), NOW - timedelta(hours=1)
    ages = [timedelta(seconds=30 * number) for number in range(earlier, 0, -1)]

    def count(run: int) -> FlowProgress:
        marks = tuple(LandedMark(NOW - age, number * 10**8) for number, age in enumerate(ages))
        return FlowProgress(earlier * 10**8 + run, run, 10**11, NOW, since, marks)

    planning = []
    for run in range(RUNS):
        snapshot = replace(moves, progress=Progress({pair: count(run) for pair in pairs}, at=NOW))
        seconds, decided = timed(lambda snapshot=snapshot: plan(snapshot, loads(300), LIMITS, history=history))  # type: ignore[misc]
        planning.append(seconds)
        assert len(decided.decisions) == 2 * LARGE.brokers
    # The first one works out what follows from the partitions, which stays.
    figures.add(f"plan(), log sizes with {earlier} earlier counts of each flow", str(LARGE), "CPU s", planning[1:])
