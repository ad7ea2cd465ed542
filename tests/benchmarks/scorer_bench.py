"""Speed of the scorer for millions of decision rows, compared with a plain pandas script: `make bench-score`.

Run it as `python -m tests.benchmarks.scorer_bench --millions 1,10`. The generated log consists of many small files
(20,000 rows each). One reassignment has half of the rows. The scorer and the pandas script each run in their own
process, so that the peak memory of each is known.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from autothrottle.adapters.decision_log.files import DECISIONS, REASSIGNMENTS
from autothrottle.core.scoring.score import REFERENCE_RATIO
from tests.benchmarks.result_files import DIRECTORY, read_rows, write_rows

RESULTS = DIRECTORY / "scorer.csv"
FILE_ROWS = 20_000
LINK_SIDES = 100
"""Link sides of every reassignment: 50 leaders and 50 followers."""

CAPACITY, CLIENT, INTERVAL = 1.25e9, 5e8, 30
BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
_LARGEST_FOR_PANDAS = 20
"""Millions of rows. The pandas script holds all rows in memory twice."""


@dataclass(frozen=True)
class LoggedReassignment:
    """One reassignment of the generated log."""

    number: int
    cycles: int

    @property
    def cluster(self) -> str:
        return f"cluster-{self.number % 3}"

    @property
    def start(self) -> datetime:
        """The start date differs for the first 60 reassignments, then repeats."""
        return BEGIN + timedelta(days=self.number % 60, seconds=self.number)

    @property
    def reassignment_id(self) -> str:
        return f"{self.cluster}/{self.number + 1}/1"


def reassignments(rows: int) -> list[LoggedReassignment]:
    """One reassignment with half of the rows, and others of 200 cycles each."""
    half = rows // 2 // LINK_SIDES
    return [LoggedReassignment(0, half), *(LoggedReassignment(n + 1, 200) for n in range(max(half // 200, 1)))]


def columns(reassignment: LoggedReassignment, first: int, last: int, random: np.random.Generator) -> Mapping[str, Any]:
    """The decision columns of cycles `first` to `last` - 1."""
    cycles = np.repeat(np.arange(first, last), LINK_SIDES)
    side = np.tile(np.arange(LINK_SIDES), last - first)
    count = len(cycles)
    start = np.datetime64(reassignment.start.replace(tzinfo=None), "us")
    at = start + (cycles * INTERVAL * 1_000_000).astype("timedelta64[us]")
    client = CLIENT * (1 + 0.3 * np.sin(cycles / 50 + reassignment.number)) * (1 + side / (4 * LINK_SIDES))
    headroom = (REFERENCE_RATIO * (CAPACITY - client)).astype(np.int64)
    rate = (headroom * random.uniform(0.7, 1.0, count)).astype(np.int64)
    copied = (cycles * INTERVAL * 0.8 * REFERENCE_RATIO * (CAPACITY - CLIENT)).astype(np.int64)
    constant = {
        "schema_version": 1,
        "cluster": reassignment.cluster,
        "term": reassignment.number + 1,
        "reassignment_id": reassignment.reassignment_id,
        "instance_type": "d2.4xlarge",
        "capacity": int(CAPACITY),
        "policy": "headroom",
        "max_ratio": REFERENCE_RATIO,
        "min_rate": 10_000_000,
        "change_threshold": 0.1,
        "failure_threshold": 1,
        "interval_seconds": float(INTERVAL),
        "shadow": False,
        "outcome": "applied",
        "trace_id": "0" * 32,
    }
    reasons = np.array(["headroom", "unchanged", "minimum", "broker-override"])
    drawn = random.choice(4, count, p=[0.6, 0.3, 0.05, 0.05])
    unmeasured = drawn >= 2
    replication = (0.8 * rate).astype(np.int64)
    varying = {
        "cycle": cycles + 1,
        "cycle_id": np.char.add(f"{reassignment.cluster}/{reassignment.number + 1}/", (cycles + 1).astype(str)),
        "time": at,
        "broker_id": 1000 + side // 2,
        "role": np.where(side % 2 == 0, "leader", "follower"),
        "utilization": pa.array(client.astype(np.int64) + replication, mask=drawn == 2),
        "measured_from": at - np.timedelta64(120, "s"),
        "measured_to": at,
        "replication": replication,
        "mean_throttle": rate,
        "standing": np.roll(rate, LINK_SIDES),
        "headroom": pa.array(headroom, mask=unmeasured),
        "rate_decided": rate,
        "rate_applied": rate,
        "reason": reasons[drawn],
        "bytes_landed": copied,
        "bytes_left": np.zeros(count, np.int64),
        "eta": at + np.timedelta64(3600, "s"),
    }
    return {name: pa.array(np.full(count, value)) for name, value in constant.items()} | varying


def generate(directory: Path, rows: int) -> int:
    """Write a decision log and return its number of decision rows."""
    random, written = np.random.default_rng(1), 0
    for reassignment in reassignments(rows):
        for number, (first, last) in enumerate(_cycle_ranges(reassignment.cycles)):
            day = (reassignment.start + timedelta(seconds=first * INTERVAL)).date()
            found = columns(reassignment, first, last, random)
            table = pa.table([pa.array(found[f.name]).cast(f.type) for f in DECISIONS], schema=DECISIONS)
            pq.write_table(table, _file_path(directory, "decisions", reassignment, day, number), compression="zstd")
            written += len(table)
        _write_reassignment(directory, reassignment)
    return written


def _cycle_ranges(cycles: int) -> Iterator[tuple[int, int]]:
    step = FILE_ROWS // LINK_SIDES
    for first in range(0, cycles, step):
        yield first, min(first + step, cycles)


def _file_path(directory: Path, kind: str, reassignment: LoggedReassignment, day: date, number: int) -> Path:
    folder = directory / kind / f"cluster={reassignment.cluster}" / f"date={day}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{reassignment.cluster}-{reassignment.number + 1:010d}-{number}.parquet"


def _write_reassignment(directory: Path, reassignment: LoggedReassignment) -> None:
    finish = reassignment.start + timedelta(seconds=reassignment.cycles * INTERVAL)
    carried = int(reassignment.cycles * INTERVAL * 0.8 * REFERENCE_RATIO * (CAPACITY - CLIENT))
    paths = [
        {"leader": 1000 + n, "follower": 1000 + (n + 1) % (LINK_SIDES // 2), "bytes_landed": carried, "bytes_grown": 0}
        for n in range(LINK_SIDES // 2)
    ]
    constant = {
        "schema_version": 1,
        "cluster": reassignment.cluster,
        "term": reassignment.number + 1,
        "reassignment_id": reassignment.reassignment_id,
    }
    constant |= {"resumed": False, "start": reassignment.start, "topics": ["t"], "partitions": 100, "bytes_left": 0}
    rows = [
        {**constant, "cycle": 1, "status": "moving", "finish": None, "bytes_landed": None, "paths": []},
        {
            **constant,
            "cycle": reassignment.cycles + 1,
            "status": "done",
            "finish": finish,
            "bytes_landed": carried,
            "paths": paths,
        },
    ]
    table = pa.Table.from_pylist(rows, schema=REASSIGNMENTS)
    pq.write_table(table, _file_path(directory, "reassignments", reassignment, reassignment.start.date(), 0))


def by_spark(log: Path, out: Path) -> Mapping[str, Any]:
    """Score a log like `autothrottle score --master local[2]`, from the start of Spark to the data of the report."""
    from autothrottle.scorer.gathering import gather
    from autothrottle.scorer.scoring import ScoreSettings, score
    from autothrottle.scorer.session import open_session

    begun = time.monotonic()
    spark = open_session("local[2]")
    started = time.monotonic()
    run = score(spark, ScoreSettings(log.as_uri(), out.as_uri()), lambda line: print(line, file=sys.stderr))
    found = {row["recovery_id"]: row["efficiency"] for row in run.tables["recoveries"].collect()}
    scored = time.monotonic()
    gather(run.tables)
    ended = time.monotonic()
    jvm = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}")  # type: ignore[union-attr]
    peak = int((jvm / "status").read_text().split("VmHWM:")[1].split()[0]) / 1e6
    # Fields 14 and 15 (utime, stime). Count from the end of the process name, which may contain spaces.
    ticks = (jvm / "stat").read_text().rpartition(")")[2].split()[11:13]
    cpu = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") + time.process_time()
    spark.stop()
    return {
        "seconds": ended - begun,
        "start_seconds": started - begun,
        "score_seconds": scored - started,
        "report_seconds": ended - scored,
        "cpu_seconds": cpu,
        "peak_gb": peak,
        "efficiency": found,
    }


def by_pandas(log: Path) -> Mapping[str, Any]:
    """Score a log with a straightforward pandas script: all rows at once, sorted and shifted per link side."""
    import pandas as pd

    begun = time.monotonic()
    used = ["cluster", "term", "cycle", "time", "reassignment_id", "broker_id", "role", "capacity", "utilization"]
    used += ["replication", "mean_throttle", "headroom", "rate_decided", "rate_applied", "reason", "min_rate"]
    used += ["bytes_landed", "standing", "eta"]
    rows = pd.concat(
        [pq.ParquetFile(path).read(used).to_pandas() for path in sorted((log / "decisions").rglob("*.parquet"))]
    )
    reassignment_rows = pd.concat(
        [pq.ParquetFile(path).read().to_pandas() for path in sorted((log / "reassignments").rglob("*.parquet"))]
    )
    done = reassignment_rows[reassignment_rows.status == "done"].set_index("reassignment_id")
    side_columns = ["reassignment_id", "broker_id", "role"]
    rows = rows.drop_duplicates([*side_columns, "term", "cycle"]).sort_values([*side_columns, "term", "cycle"])
    rows = rows.join(done[["start", "finish"]], on="reassignment_id")
    by_side = rows.groupby(side_columns, sort=False)
    until = by_side["time"].shift(-1).fillna(rows.finish)
    rows["seconds"] = (until - rows.time).dt.total_seconds()
    rows["forecast"] = (rows.utilization - rows.replication.fillna(rows.mean_throttle)).clip(lower=0)
    rows["client"] = by_side["forecast"].shift(-1).fillna(rows.forecast)
    rows["client"] = by_side["client"].ffill()
    rows["budget"] = (REFERENCE_RATIO * (rows.capacity - rows.client).clip(lower=0)).clip(lower=rows.min_rate)
    rows["achieved"] = ((by_side["bytes_landed"].shift(-1) - rows.bytes_landed) / rows.seconds).fillna(
        rows.rate_applied
    )
    rows["unused"] = (rows.available_rate - rows.achieved) * rows.seconds
    rows["carried"] = rows.available_rate * rows.seconds
    rows["after"] = by_side["carried"].cumsum()
    rows["at"] = by_side["seconds"].cumsum() - rows.seconds
    amounts = {
        (name, path["leader" if role == "leader" else "follower"], role): path["bytes_landed"]
        for name, paths in done.paths.items()
        for path in paths
        for role in ("leader", "follower")
    }
    keys = pd.MultiIndex.from_frame(rows[side_columns])
    rows["amount"] = pd.Series(amounts).reindex(keys).to_numpy()
    before = rows.after - rows.carried
    here = rows[(before < rows.amount) & (rows.after >= rows.amount)]
    times = here["at"] + (here.amount - (here.after - here.carried)) / here.available_rate
    bound = times.groupby([here[c] for c in side_columns]).min()
    last = rows.groupby(side_columns, sort=False).tail(1).set_index(side_columns)
    beyond = last["at"] + last.seconds + (last.amount - last.after) / last.available_rate
    bound = bound.reindex(beyond.index).fillna(beyond)
    seconds = (done.finish - done.start).dt.total_seconds()
    found = bound.groupby("reassignment_id").max() / seconds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    seconds = time.monotonic() - begun
    return {"seconds": seconds, "cpu_seconds": time.process_time(), "peak_gb": peak, "efficiency": found.to_dict()}


def measure(millions: float, directory: Path) -> Mapping[str, Any]:
    """Generate a log, score it with Spark and with pandas, and compare the efficiencies."""
    log = directory / "log"
    begun = time.monotonic()
    rows = generate(log, round(millions * 1e6))
    generated = time.monotonic() - begun
    count = sum(1 for _ in (log / "decisions").rglob("*.parquet"))
    size = sum(path.stat().st_size for path in log.rglob("*.parquet")) / 1e6
    print(f"{rows:,} rows in {count:,} files, {size:,.0f} MB: generated in {generated:.0f} s", flush=True)
    result: dict[str, Any] = {"rows": rows, "files": count, "megabytes": round(size), "generate_seconds": generated}
    result["load_average"] = round(os.getloadavg()[0], 1)
    spark = _run_in_process("spark", log, directory / "out")
    result["spark"] = {k: v for k, v in spark.items() if k != "efficiency"}
    print(_line("spark", rows, spark), flush=True)
    if millions <= _LARGEST_FOR_PANDAS:
        pandas = _run_in_process("pandas", log, directory / "out")
        result["pandas"] = {k: v for k, v in pandas.items() if k != "efficiency"}
        print(_line("pandas", rows, pandas), flush=True)
        result["largest_difference"] = max(
            abs(spark["efficiency"][name] - value) for name, value in pandas["efficiency"].items()
        )
        print(f"  largest difference between the efficiencies: {result['largest_difference']:.1e}", flush=True)
    return result


def _line(name: str, rows: int, found: Mapping[str, Any]) -> str:
    return (
        f"  {name:<7}{found['seconds']:7.1f} s  {rows / found['seconds']:9,.0f} rows/s  "
        f"{found['cpu_seconds']:7.1f} CPU s  peak {found['peak_gb']:.1f} GB"
    )


def _record(result: Mapping[str, Any]) -> None:
    """Replace the recorded result of this log size; keep the results of other sizes."""
    others = [older for older in read_rows(RESULTS) if older["rows"] != result["rows"]]
    write_rows(RESULTS, sorted([*others, result], key=lambda r: int(r["rows"])))


def _run_in_process(which: str, log: Path, out: Path) -> Mapping[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.scorer_bench", "--only", which, "--log", str(log)]
    ran = subprocess.run([*command, "--out", str(out)], stdout=subprocess.PIPE, text=True, check=True)
    found: Mapping[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure and print; with --record also store the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", default="1,10", help="log sizes in millions of rows, separated by commas")
    parser.add_argument("--record", action="store_true", help=f"store the results in {RESULTS.name}")
    parser.add_argument("--only", choices=("spark", "pandas"), help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        both = {"spark": lambda: by_spark(arguments.log, arguments.out), "pandas": lambda: by_pandas(arguments.log)}
        print(json.dumps(both[arguments.only]()))
        return
    for millions in map(float, arguments.millions.split(",")):
        with tempfile.TemporaryDirectory() as directory:
            result = measure(millions, Path(directory))
        if arguments.record:
            command = f'make bench-score ARGS="--millions {arguments.millions} --record"'
            _record({"date": f"{datetime.now(UTC):%Y-%m-%d}", "command": command, **result})


if __name__ == "__main__":
    main()
