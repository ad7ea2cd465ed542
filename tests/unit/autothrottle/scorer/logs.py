"""Small decision logs, in files of one cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
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
    for path, content in _files(tuple(clusters), tuple(dates), cycles, brokers).items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)


@cache
def _files(clusters: Sequence[str], dates: Sequence[str], cycles: int, brokers: int) -> Mapping[Path, bytes]:
    """Return path -> content: encoding a log takes ten times as long as writing it again."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        for cluster in clusters:
            for number, date in enumerate(dates):
                first = number * cycles + 1
                decisions, reassignments = example_rows(cluster, date, first, cycles, brokers)
                for index in range(cycles):
                    of_cycle = [row for row in decisions if row["cycle"] == first + index]
                    write(directory, "decisions", of_cycle, DECISIONS, date, first + index)
                for index, record in enumerate(reassignments):
                    write(directory, "reassignments", [record], REASSIGNMENTS, date, first + index)
        return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*.parquet")}


def example_rows(
    cluster: str = CLUSTERS[0], date: str = DATES[0], first: int = 1, cycles: int = 6, brokers: int = 2
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the decisions and the two records of one reassignment, whose first cycle has this number."""
    start = datetime.fromisoformat(f"{date}T12:00:00+00:00").astimezone(UTC)
    name = {"cluster": cluster, "term": 1, "reassignment_id": f"{cluster}/1/{first}", "schema_version": 1}
    decisions = [
        name | decision(start, first, index, broker_id, role)
        for index in range(cycles)
        for broker_id in range(1, brokers + 1)
        for role in ("leader", "follower")
    ]
    paths = [{"leader": 1, "follower": 2, "bytes_landed": cycles * 30 * 40 * MB, "bytes_grown": 0}]
    constant = {"resumed": False, "start": start, "topics": ["t"], "partitions": 1, "bytes_left": 0}
    end = {"cycle": first + cycles - 1, "status": "done", "finish": start + cycles * INTERVAL}
    records = [
        name | constant | {"cycle": first, "status": "moving", "finish": None, "bytes_landed": None, "paths": []},
        name | constant | end | {"bytes_landed": 1, "paths": paths},
    ]
    return decisions, records


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
