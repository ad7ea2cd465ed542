"""Small decision logs, in files of one cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from autothrottle.adapters.decision_log.files import DECISIONS, REASSIGNMENTS

MB = 1_000_000
INTERVAL = timedelta(seconds=30)
CLUSTERS, DATES = ("east", "west"), ("2026-11-01", "2026-11-03")


def write_log(
    directory: Path, clusters: Sequence[str] = CLUSTERS, dates: Sequence[str] = DATES, cycles: int = 6, brokers: int = 2
) -> None:
    """Write a log with one reassignment for each cluster and date."""
    for cluster in clusters:
        for number, date in enumerate(dates):
            start = datetime.fromisoformat(f"{date}T12:00:00+00:00").astimezone(UTC)
            first = number * cycles + 1
            name = {"cluster": cluster, "term": 1, "reassignment_id": f"{cluster}/1/{first}", "schema_version": 1}
            for index in range(cycles):
                rows = [
                    name | decision(start, first, index, broker_id, role)
                    for broker_id in range(1, brokers + 1)
                    for role in ("leader", "follower")
                ]
                write(directory, "decisions", rows, DECISIONS, date, first + index)
            finish = start + cycles * INTERVAL
            paths = [{"leader": 1, "follower": 2, "bytes_landed": cycles * 30 * 40 * MB, "bytes_grown": 0}]
            records = [
                {"cycle": first, "status": "moving", "finish": None, "bytes_landed": None, "paths": []},
                {"cycle": first + cycles - 1, "status": "done", "finish": finish, "bytes_landed": 1, "paths": paths},
            ]
            for index, record in enumerate(records):
                constant = {"resumed": False, "start": start, "topics": ["t"], "partitions": 1, "bytes_left": 0}
                row = name | constant | record
                write(directory, "reassignments", [row], REASSIGNMENTS, date, first + index)


def decision(start: datetime, first: int, index: int, broker_id: int, role: str) -> dict[str, Any]:
    """Return the columns of a decision that differ from those of its reassignment."""
    now = start + index * INTERVAL
    return {
        **{"cycle": first + index, "cycle_id": "", "trace_id": f"{first + index:032x}", "time": now},
        **{"broker_id": broker_id, "role": role, "instance_type": "d2", "capacity": 100 * MB, "utilization": 50 * MB},
        **{"measured_from": now - INTERVAL, "measured_to": now, "replication": 40 * MB, "mean_throttle": 40 * MB},
        **{"standing": 40 * MB, "headroom": 81 * MB, "rate_decided": 40 * MB, "rate_applied": 40 * MB},
        **{"reason": "headroom", "outcome": "", "bytes_landed": index * 30 * 40 * MB, "bytes_left": 0, "eta": None},
        **{"policy": "headroom", "max_ratio": 0.9, "min_rate": 10 * MB, "change_threshold": 0.1},
        **{"failure_threshold": 1, "interval_seconds": 30.0, "shadow": False},
    }


def write(
    directory: Path, kind: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema, date: str, sequence: int
) -> None:
    cluster = rows[0]["cluster"]
    folder = directory / kind / f"cluster={cluster}" / f"date={date}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{cluster}-0000000001-{1_790_000_000_000 + sequence}.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path, compression="zstd")
