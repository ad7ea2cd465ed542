"""Small builders of core's values: what a test does not name has a plain value."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from autothrottle.core.changes import Change, Edit, Outcome
from autothrottle.core.configs import ConfigResource, ReplicaRole
from autothrottle.core.cycle import CycleRecord
from autothrottle.core.flows import Progress
from autothrottle.core.ledger import LedgerEntry, LedgerKey
from autothrottle.core.limits import Limits
from autothrottle.core.loads import MEGABYTE, BrokerLoad, Capacity, Loads, Utilization
from autothrottle.core.plan import Decision, Reason
from autothrottle.core.topology import Snapshot, TopicReassignment

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
"""When tests happen."""

Row = tuple[int, Sequence[int], Sequence[int], Sequence[int]]
"""(leader, isr, adding replicas, removing replicas) of one partition."""


def mb(rate: float) -> int:
    """A rate in MB/s as bytes/s."""
    return round(rate * MEGABYTE)


def reassignment(topic: str, rows: Mapping[int, Row]) -> TopicReassignment:
    """The reassignment of a topic from partition -> (leader, isr, adding, removing)."""
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
    """A snapshot; configs and ledger by entity path (`brokers/1001`)."""
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


def ledger_entry(
    term: int = 1, cycle: int = 0, before: str | None = None, owned: Iterable[str] = (), **written: str
) -> LedgerEntry:
    """A ledger entry of keys that all stood alike before; dots of a key are underscores here."""
    keys = {name.replace("_", "."): LedgerKey(before, value, frozenset(owned)) for name, value in written.items()}
    return LedgerEntry(keys, term, cycle)


def load(
    broker_id: int,
    tx: int = 0,
    rx: int = 0,
    capacity: int = mb(100),
    end: datetime = NOON,
    interval: timedelta = timedelta(seconds=30),
) -> BrokerLoad:
    """The load of a broker; rates and capacity in bytes/s."""
    start = end - interval
    return BrokerLoad(broker_id, Capacity(capacity, capacity), Utilization(tx, start, end), Utilization(rx, start, end))


def loads(*found: BrokerLoad, problems: Mapping[int, str] | None = None) -> Loads:
    """One reading of the metrics source."""
    return Loads({one.broker_id: one for one in found}, problems or {})


def limits(
    min_rate: int = mb(10),
    max_tx_ratio: float = 0.9,
    max_rx_ratio: float = 0.9,
    change_threshold: float = 0.1,
    failure_threshold: int = 1,
    keep_throttles: bool = False,
    pause_over_capacity: bool = False,
) -> Limits:
    """What the operator allows."""
    return Limits(
        min_rate,
        max_tx_ratio,
        max_rx_ratio,
        change_threshold,
        failure_threshold,
        keep_throttles,
        pause_over_capacity,
    )


def change(path: str, *edits: tuple[str, str | None, str | None], ledger: LedgerEntry | None = None) -> Change:
    """A change from (key, expected, value)."""
    return Change(ConfigResource(path), tuple(Edit(*edit) for edit in edits), ledger)


def decision(
    broker_id: int = 1001,
    role: ReplicaRole = ReplicaRole.LEADER,
    rate: int = mb(50),
    reason: Reason = Reason.HEADROOM,
    standing: int | None = None,
) -> Decision:
    """A decision without what it was decided on."""
    return Decision(broker_id, role, rate, reason, standing)


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
) -> CycleRecord:
    """A cycle that took a second."""
    return CycleRecord(
        term=term,
        number=number,
        start=start,
        end=start + timedelta(seconds=1),
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


def eventually(holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something is true, and fail when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"it did not come true within {seconds:g} s"
        time.sleep(0.01)
