"""Builders of core's values with plain defaults."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from autothrottle.adapters.memory.kafka import MemoryCluster
from autothrottle.adapters.memory.placement import MemoryPlacementCluster, MemoryStorageMetrics
from autothrottle.admin.plan_check import PlanCheck
from autothrottle.core.cluster.configs import ConfigResource, LedgerEntry, LedgerKey, ReplicaRole
from autothrottle.core.cluster.flows import Flow, FlowProgress, Progress
from autothrottle.core.cluster.snapshot import Snapshot, TopicReassignment
from autothrottle.core.placement.cluster import PlacementCluster
from autothrottle.core.policy.interface import Limits
from autothrottle.core.records import Cycle, Decision, Outcome, Reason
from autothrottle.core.throttles.changes import Change, Edit
from autothrottle.core.traffic.loads import BrokerLoad, Capacity, Loads, Utilization
from autothrottle.core.units import MEGABYTE
from autothrottle.v1.discovery_pb2 import GetSnapshotResponse
from autothrottle.wire.discovery import named_snapshot_from_chunks

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
"""The time of the tests."""

Row = tuple[int, Sequence[int], Sequence[int], Sequence[int]]
"""(leader, isr, adding replicas, removing replicas) of one partition."""


def mb(rate: float) -> int:
    """Return a rate in MB/s as bytes/s."""
    return round(rate * MEGABYTE)


def reassignment(topic: str, rows: Mapping[int, Row]) -> TopicReassignment:
    """Return the reassignment of a topic from partition -> (leader, isr, adding, removing)."""
    ordered = dict(sorted(rows.items()))
    return TopicReassignment(
        topic=topic,
        partitions=tuple(ordered),
        leaders=tuple(row[0] for row in ordered.values()),
        isr=tuple(tuple(row[1]) for row in ordered.values()),
        adding_replicas=tuple(tuple(row[2]) for row in ordered.values()),
        removing_replicas=tuple(tuple(row[3]) for row in ordered.values()),
    )


def snapshot(
    *reassignments: TopicReassignment,
    version: int = 1,
    brokers: Iterable[int] = (1001, 1002, 1003, 1004),
    throttles: Mapping[str, Mapping[str, str]] | None = None,
    ledger: Mapping[str, LedgerEntry] | None = None,
    replicas: Mapping[int, Mapping[str, tuple[int, ...]]] | None = None,
    default_throttles: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Snapshot:
    """Return a snapshot; the keys of configs and ledger are entity paths (`brokers/1001`)."""
    return Snapshot(
        version=version,
        brokers=frozenset(brokers),
        reassignments=tuple(sorted(reassignments, key=lambda r: r.topic)),
        throttles={ConfigResource(path): dict(values) for path, values in (throttles or {}).items()},
        ledger={ConfigResource(path): entry for path, entry in (ledger or {}).items()},
        replicas=replicas or {},
        default_throttles=default_throttles or {},
        progress=progress,
    )


def snapshot_from_chunks(chunks: Iterable[GetSnapshotResponse]) -> Snapshot:
    """Return the snapshot that a stream of chunks contains."""
    return named_snapshot_from_chunks(chunks).snapshot


def ledger_entry(
    term: int = 1, cycle: int = 0, before: str | None = None, owned: Iterable[str] = (), **written: str
) -> LedgerEntry:
    """Return a ledger entry whose keys all have the same earlier value; underscores in key names become dots."""
    keys = {name.replace("_", "."): LedgerKey(before, value, frozenset(owned)) for name, value in written.items()}
    return LedgerEntry(keys, term, cycle)


def load(
    broker_id: int,
    outbound: int = 0,
    inbound: int = 0,
    capacity: int = mb(100),
    end: datetime = NOON,
    interval: timedelta = timedelta(seconds=30),
) -> BrokerLoad:
    """Return the load of a broker; rates and capacity in bytes/s."""
    start = end - interval
    return BrokerLoad(
        broker_id, Capacity(capacity, capacity), Utilization(outbound, start, end), Utilization(inbound, start, end)
    )


def loads(*found: BrokerLoad, problems: Mapping[int, str] | None = None) -> Loads:
    return Loads({load.broker_id: load for load in found}, problems or {})


def limits(
    min_rate: int = mb(10),
    max_tx_ratio: float = 0.9,
    max_rx_ratio: float = 0.9,
    change_threshold: float = 0.1,
    failure_threshold: int = 1,
    keep_throttles: bool = False,
    pause_over_capacity: bool = False,
) -> Limits:
    return Limits(
        min_rate,
        max_tx_ratio,
        max_rx_ratio,
        change_threshold,
        failure_threshold,
        keep_throttles,
        pause_over_capacity,
    )


RECORDED = LedgerEntry({}, 1)
"""Stands for an entry that records all values of a change."""


def change(path: str, *edits: tuple[str, str | None, str | None], ledger: LedgerEntry | None = RECORDED) -> Change:
    """Return a change from edits as (key, expected, value)."""
    if ledger is RECORDED:
        keys = {key: LedgerKey(None, value) for key, _, value in edits if value is not None}
        ledger = LedgerEntry(keys, 1) if keys else None
    return Change(ConfigResource(path), tuple(Edit(*edit) for edit in edits), ledger)


def decision(
    broker_id: int = 1001,
    role: ReplicaRole = ReplicaRole.LEADER,
    rate: int = mb(50),
    reason: Reason = Reason.HEADROOM,
    current: int | None = None,
) -> Decision:
    """Return a decision without its inputs."""
    return Decision(broker_id, role, rate, reason, current)


def cycle_record(
    term: int = 1,
    number: int = 1,
    start: datetime = NOON,
    reason: str = "interval",
    sentence: str = "nothing moves",
    topics: Sequence[str] = (),
    decisions: Sequence[Decision] = (),
    outcomes: Sequence[Outcome] = (),
    findings: Sequence[str] = (),
    error: str = "",
    bytes_left: int | None = None,
    eta: datetime | None = None,
) -> Cycle:
    """Return a cycle that took one second."""
    return Cycle(
        term=term,
        number=number,
        start_time=start,
        end_time=start + timedelta(seconds=1),
        reason=reason,
        sentence=sentence,
        topics=tuple(topics),
        decisions=tuple(decisions),
        outcomes=tuple(outcomes),
        findings=tuple(findings),
        error=error,
        bytes_left=bytes_left,
        eta=eta,
    )


def plan_check(cluster: MemoryCluster) -> PlanCheck:
    """Return the check of plans against a cluster without racks, cordons and samples of storage."""
    return PlanCheck(cluster, cluster, MemoryPlacementCluster(PlacementCluster({}, ())), MemoryStorageMetrics())


def eventually(holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until a condition holds; fail if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"the condition did not hold within {seconds:g} s"
        time.sleep(0.01)


AT_ONCE = 1.0
"""Longest time for what the product does at once, in seconds on an idle machine."""

SERVER_SECONDS = 1.5
"""How much later an answer of a server process may come on a busy machine."""


class Stopwatch:
    """Measures seconds without those for which a thread of this process waited for a CPU, as on a busy machine.

    A wait of the product for a timer, a lock or an answer counts.
    """

    def __init__(self) -> None:
        self._start, self._waits = time.monotonic(), _cpu_waits()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        waited = sum(max(0.0, wait - self._waits.get(thread, 0.0)) for thread, wait in _cpu_waits().items())
        return time.monotonic() - self._start - waited


def _cpu_waits() -> dict[str, float]:
    """Thread of this process -> seconds for which it was ready to run and had no CPU; empty unless on Linux."""
    waits = {}
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            waits[file.parent.name] = int(file.read_text().split()[1]) / 1e9
    return waits


def at_once(holds: Callable[[], object], seconds: float = AT_ONCE) -> None:
    """Wait until a condition holds; fail if the product needs longer than that for it."""
    stopwatch = Stopwatch()
    while not holds():
        assert stopwatch.seconds < seconds, f"the condition did not hold within {seconds:g} s"
        time.sleep(0.01)


def progress_samples(produced: Mapping[Flow, Sequence[int]], since: int = 0) -> list[Progress]:
    """Progress every 10 s, from the bytes produced to each flow; counted since so many seconds before noon."""
    count = len(next(iter(produced.values())))
    return [
        Progress(
            {
                flow: FlowProgress(0, some[n], 5, NOON + timedelta(seconds=10 * n), NOON - timedelta(seconds=since))
                for flow, some in produced.items()
            },
            at=NOON + timedelta(seconds=10 * n),
        )
        for n in range(count)
    ]
