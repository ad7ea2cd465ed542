"""CPU time of plan(), changes() and snapshot encoding: 1,000 brokers, 200 topics of 500 partitions in reassignment."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.flows import CopiedMark, FlowProgress, Progress
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.policy.adaptive import AdaptivePolicy
from autothrottle.core.policy.interface import Limits, PolicyObservation
from autothrottle.core.throttles.changes import ChangeSet, changes
from autothrottle.core.throttles.plan import Plan, plan
from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Loads, Utilization
from autothrottle.core.traffic.replication import ThrottleHistory
from autothrottle.core.units import MEGABYTE
from autothrottle.v1.discovery_pb2 import GetSnapshotResponse
from autothrottle.wire.discovery import snapshot_to_chunks
from tests.benchmarks.big_cluster import CAPACITY, LARGE, MAX_RATIO
from tests.benchmarks.figures import Figures
from tests.builders import snapshot_from_chunks

T = TypeVar("T")

LIMITS = Limits(10 * MEGABYTE, MAX_RATIO, MAX_RATIO, change_threshold=0.1, failure_threshold=1)
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RUNS = 5
LINK = Capacity(CAPACITY, CAPACITY)


def reassigning_snapshot() -> Snapshot:
    return Snapshot(version=1, brokers=frozenset(LARGE.broker_ids), reassignments=tuple(LARGE.reassignments()))


def loads(megabytes: int) -> Loads:
    used = Utilization(megabytes * MEGABYTE, NOW - timedelta(minutes=2), NOW)
    return Loads({b: BrokerLoad(b, LINK, used, used) for b in LARGE.broker_ids})


def timed(function: Callable[[], T]) -> tuple[float, T]:
    """Return the CPU seconds of a function and its result. CPU time does not depend on other load on the machine."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def with_changes(snapshot: Snapshot, found: ChangeSet) -> Snapshot:
    """Return the snapshot after all changes were written."""
    throttles: dict[ConfigResource, dict[str, str]] = {r: dict(keys) for r, keys in snapshot.throttles.items()}
    ledger = dict(snapshot.ledger)
    for change in found.changes:
        keys = throttles.setdefault(change.resource, {})
        keys.update({edit.key: edit.value for edit in change.edits if edit.value is not None})
        assert change.ledger is not None
        ledger[change.resource] = change.ledger
    return replace(snapshot, throttles=throttles, ledger=ledger)


@pytest.mark.usefixtures("collected_rarely")
def test_cost_of_plan_and_changes(figures: Figures) -> None:
    # The measurements are older than the first throttle, so all traffic is client traffic.
    history = ThrottleHistory().observe(NOW - timedelta(hours=1), {})

    def measure(snapshot: Snapshot, megabytes: int) -> tuple[float, float, Plan, ChangeSet]:
        load = loads(megabytes)
        planning, decided = timed(lambda: plan(snapshot, load, LIMITS, history=history))
        comparing, found = timed(lambda: changes(decided, snapshot, NOW, term=1))
        return planning, comparing, decided, found

    fresh = reassigning_snapshot()
    _, _, decided, found = measure(fresh, 300)
    assert len(decided.decisions) == 2 * LARGE.brokers
    assert len(found.changes) == LARGE.brokers + LARGE.topics
    current = with_changes(fresh, found)
    # Snapshots cache values derived from a topic's columns, so each run of "everything new" needs a new snapshot.
    for name, snapshots, megabytes, edited in (
        ("everything new", (reassigning_snapshot() for _ in range(RUNS)), 300, LARGE.brokers + LARGE.topics),
        ("all rates change", (current for _ in range(RUNS)), 600, LARGE.brokers),
        ("nothing changes", (current for _ in range(RUNS)), 300, 0),
    ):
        runs = [measure(snapshot, megabytes) for snapshot in snapshots]
        assert {len(found.changes) for _, _, _, found in runs} == {edited}
        figures.add(f"plan(), {name}", str(LARGE), "CPU s", [run[0] for run in runs])
        figures.add(f"changes(), {name}", str(LARGE), "CPU s", [run[1] for run in runs])


@pytest.mark.usefixtures("collected_rarely")
@pytest.mark.parametrize("is_throttled", [False, True], ids=["no throttle", "all throttled"])
def test_cost_and_size_of_an_encoded_snapshot(figures: Figures, is_throttled: bool) -> None:
    snapshot = reassigning_snapshot()
    if is_throttled:
        history = ThrottleHistory().observe(NOW - timedelta(hours=1), {})
        snapshot = with_changes(
            snapshot, changes(plan(snapshot, loads(300), LIMITS, history=history), snapshot, NOW, term=1)
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
def test_cost_of_plan_with_the_adaptive_policy(figures: Figures) -> None:
    """95,000 flows with new log sizes in every cycle. Each cycle calls `observe` before `plan`."""
    history = ThrottleHistory().observe(NOW - timedelta(hours=1), {})
    base, policy = reassigning_snapshot(), AdaptivePolicy()
    pairs, since = list(base.flows), NOW - timedelta(hours=1)
    observing, planning = [], []
    for number in range(RUNS + 1):
        now = NOW + timedelta(seconds=30 * number)
        counts = {pair: FlowProgress(number * 10**8, number * 10**6, 10**11, now, since) for pair in pairs}
        snapshot = replace(base, progress=Progress(counts, at=now))
        observation = PolicyObservation(now, snapshot, loads(300))
        seconds, policy = timed(lambda policy=policy, observation=observation: policy.observe(observation))  # type: ignore[misc]
        observing.append(seconds)
        seconds, decided = timed(
            lambda snapshot=snapshot, policy=policy: plan(  # type: ignore[misc]
                snapshot, loads(300), LIMITS, history=history, policy=policy
            )
        )
        planning.append(seconds)
        assert len(decided.decisions) == 2 * LARGE.brokers
    # The first run fills the caches of the partitions.
    figures.add("plan(), adaptive", str(LARGE), "CPU s", planning[1:])
    figures.add("adaptive policy, observing", str(LARGE), "CPU s", observing[1:])


@pytest.mark.usefixtures("collected_rarely")
@pytest.mark.parametrize("earlier", [0, 3, 16])
def test_cost_of_plan_with_log_sizes(figures: Figures, earlier: int) -> None:
    """95,000 flows with new log sizes in every cycle; each flow has `earlier` counts from the last minutes."""
    history, base = ThrottleHistory().observe(NOW - timedelta(hours=1), {}), reassigning_snapshot()
    pairs, since = list(base.flows), NOW - timedelta(hours=1)
    ages = [timedelta(seconds=30 * number) for number in range(earlier, 0, -1)]

    def count(run: int) -> FlowProgress:
        marks = tuple(CopiedMark(NOW - age, number * 10**8) for number, age in enumerate(ages))
        return FlowProgress(earlier * 10**8 + run, run, 10**11, NOW, since, marks)

    planning = []
    for run in range(RUNS):
        snapshot = replace(base, progress=Progress({pair: count(run) for pair in pairs}, at=NOW))
        seconds, decided = timed(lambda snapshot=snapshot: plan(snapshot, loads(300), LIMITS, history=history))  # type: ignore[misc]
        planning.append(seconds)
        assert len(decided.decisions) == 2 * LARGE.brokers
    # The first run fills the caches of the partitions.
    figures.add(f"plan(), log sizes with {earlier} earlier counts of each flow", str(LARGE), "CPU s", planning[1:])
