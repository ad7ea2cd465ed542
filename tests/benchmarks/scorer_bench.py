"""Speed of the scorer for millions of decisions, beside pandas and DuckDB: `make bench-score`.

Run it as `python -m tests.benchmarks.scorer_bench --millions 1,10`. The generated log consists of many small files
(20,000 rows each). One reassignment has half of the rows. Each program runs as a process of its own, from its start to
its end; the figures are medians of `--runs` runs. `--nights` scores a year of small logs, a night at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

from autothrottle.adapters.decision_log.files import DECISIONS, REASSIGNMENTS
from autothrottle.core.scoring.score import REFERENCE_RATIO
from autothrottle.scorer.files import ArrowFiles
from autothrottle.scorer.tables import RECOVERIES
from tests.benchmarks.result_files import DIRECTORY, read_rows, write_rows

RESULTS = DIRECTORY / "scorer.csv"
FILE_ROWS = 20_000
LINK_SIDES = 100
"""Link sides of every reassignment: 50 leaders and 50 followers."""

CAPACITY, CLIENT, INTERVAL = 1.25e9, 5e8, 30
BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
_LARGEST_FOR_PANDAS = 20
"""Millions of rows. The pandas script holds all rows in memory twice."""

PROGRAMS = ("here", "spark-1", "spark-2", "pandas", "duckdb")
"""The scorer in one process, on Spark with one and with two executors of one core, and the competitors."""

_SPARK = "local-cluster[{},1,1024]"


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


@dataclass(frozen=True)
class Usage:
    """What a process and its children used."""

    seconds: float
    cpu_seconds: float
    peak_gb: float
    """Largest sum of their resident memory."""
    shuffle_gb: float
    """What Spark wrote for its shuffles."""


def measured(command: Sequence[str], environment: Mapping[str, str], events: Path | None = None) -> tuple[Usage, str]:
    """Run a command to its end; return what it used, and its output. `events` is the directory of Spark's event logs.

    Raises:
        RuntimeError: the command failed.
    """
    begun, peak, cpu = time.monotonic(), 0.0, dict[int, float]()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, env={**os.environ, **environment}, stdout=output, stderr=errors) as process:
            while process.poll() is None:
                usage = {pid: _usage(pid) for pid in _family(process.pid)}
                cpu |= {pid: seconds for pid, (seconds, _) in usage.items()}
                peak = max(peak, sum(resident for _, resident in usage.values()))
                time.sleep(0.05)
        seconds = time.monotonic() - begun
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {errors.read()[-2000:]}")
        output.seek(0)
        return Usage(seconds, sum(cpu.values()), peak, _shuffle_gb(events) if events else 0.0), output.read()


def _shuffle_gb(events: Path) -> float:
    """Return what the tasks of all event logs wrote for shuffles, and delete the logs."""
    total = 0
    for log in events.iterdir():
        with log.open() as lines:
            metrics = [json.loads(line).get("Task Metrics") or {} for line in lines if "SparkListenerTaskEnd" in line]
        total += sum(m.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0) for m in metrics)
        log.unlink()
    return total / 1e9


def _family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    family = [pid]
    for member in family:
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                family += map(int, children.read_text().split())
            except OSError:
                continue
    return family


def _usage(pid: int) -> tuple[float, float]:
    """Return the CPU seconds and the resident memory of a process in GB; 0: it has ended."""
    try:
        # Count from the end of the process name, which may contain spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    ticks, pages = sum(map(int, fields[11:13])), int(fields[21])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 1e9


def command_of(program: str, log: Path, out: Path) -> list[str]:
    """Return the command line of one of `PROGRAMS`."""
    if program in ("pandas", "duckdb"):
        return [sys.executable, "-m", "tests.benchmarks.scorer_competitors", program, str(log)]
    command = [sys.executable, "-m", "autothrottle", "score", "--decisions", str(log), "--out", str(out), "--anew"]
    command += ["--no-advice"]  # the competitors give none
    return command + (["--master", _SPARK.format(program[-1])] if program != "here" else [])


def _spark_environment(home: Path, events: Path) -> Mapping[str, str]:
    """Return the environment for Spark's workers, which write below Spark's home, and for its event logs."""
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    (configuration := home / "own-conf").mkdir()
    events.mkdir()
    lines = (
        "spark.eventLog.enabled true",
        f"spark.eventLog.dir {events.as_uri()}",
        "spark.eventLog.rolling.enabled false",
        "spark.eventLog.compress false",
    )
    (configuration / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    return {
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }


def efficiencies(program: str, out: Path, printed: str) -> Mapping[str, float]:
    """Return reassignment id -> efficiency, as a program found it."""
    if program in ("pandas", "duckdb"):
        return dict(json.loads(printed))
    rows = ArrowFiles(str(out), str(out)).table("recoveries", RECOVERIES).to_pylist()
    return {row["recovery_id"]: row["efficiency"] for row in rows}


def measure(millions: float, directory: Path, programs: Sequence[str], runs: int) -> dict[str, Any]:
    """Generate a log, score it with each program, and compare the efficiencies."""
    log = directory / "log"
    begun = time.monotonic()
    rows = generate(log, round(millions * 1e6))
    generated = time.monotonic() - begun
    count = sum(1 for _ in (log / "decisions").rglob("*.parquet"))
    size = sum(path.stat().st_size for path in log.rglob("*.parquet")) / 1e6
    print(f"{rows:,} rows in {count:,} files, {size:,.0f} MB: generated in {generated:.0f} s", flush=True)
    result: dict[str, Any] = {"rows": rows, "files": count, "megabytes": round(size), "runs": runs}
    result["load_average"] = round(os.getloadavg()[0], 1)
    reference, events = dict[str, float](), directory / "events"
    environment = _spark_environment(directory / "spark", events)
    for program in programs:
        if program == "pandas" and millions > _LARGEST_FOR_PANDAS:
            continue
        usages, found = [], dict[str, float]()
        for number in range(runs):
            out = directory / f"{program}-{number}"
            usage, printed = measured(command_of(program, log, out), environment, events)
            usages.append(usage)
            found = dict(efficiencies(program, out, printed))
        reference = reference or found
        median = {name: statistics.median(getattr(u, name) for u in usages) for name in Usage.__dataclass_fields__}
        difference = max(abs(found[name] - value) for name, value in reference.items())
        result[program] = {**{name: round(value, 2) for name, value in median.items()}, "difference": difference}
        print(_line(program, rows, median, difference), flush=True)
    return result


def _line(program: str, rows: int, median: Mapping[str, float], difference: float) -> str:
    return (
        f"  {program:<8}{median['seconds']:7.1f} s  {rows / median['seconds']:9,.0f} rows/s  "
        f"{median['cpu_seconds']:7.1f} CPU s  peak {median['peak_gb']:.1f} GB  "
        f"shuffle {median['shuffle_gb']:.3f} GB  efficiencies differ by {difference:.0e}"
    )


# A year of small logs.

_NIGHTS = 365
_FILES_OF_DAY = 8
_SHOWN_NIGHTS = 20


def measure_nights(directory: Path, nights: int = _NIGHTS) -> Mapping[str, float]:
    """Score a log that grows by a day before each run; return the medians of the first and of the last runs, seconds.

    Only these runs are timed as processes of their own; the nights between are scored in one.
    """
    log, out, random = directory / "log", directory / "out", np.random.default_rng(2)
    times: list[float] = []
    for night in range(nights):
        for number in range(_FILES_OF_DAY):
            _write_small(log, LoggedReassignment(night, 20), number, random)
        _write_reassignment(log, _OnDay(night, 20 * _FILES_OF_DAY))
        if night < _SHOWN_NIGHTS or night >= nights - _SHOWN_NIGHTS:
            command = [sys.executable, "-m", "autothrottle", "score", "--decisions", str(log), "--out", str(out)]
            usage, _ = measured(command, {})
            times.append(usage.seconds)
        elif night == nights - _SHOWN_NIGHTS - 1:
            command = [sys.executable, "-m", "autothrottle", "score", "--decisions", str(log), "--out", str(out)]
            measured(command, {})
    first, last = times[:_SHOWN_NIGHTS], times[-_SHOWN_NIGHTS:]
    return {"first": statistics.median(first), "last": statistics.median(last), "longest": max(times)}


class _OnDay(LoggedReassignment):
    """A reassignment with a day of its own."""

    @property
    def start(self) -> datetime:
        return BEGIN + timedelta(days=self.number)


def _write_small(log: Path, reassignment: LoggedReassignment, number: int, random: np.random.Generator) -> None:
    of_day = _OnDay(reassignment.number, reassignment.cycles)
    values = columns(of_day, number * of_day.cycles, (number + 1) * of_day.cycles, random)
    table = pa.table([pa.array(values[f.name]).cast(f.type) for f in DECISIONS], schema=DECISIONS)
    pq.write_table(table, _file_path(log, "decisions", of_day, of_day.start.date(), number), compression="zstd")


def _record(result: Mapping[str, Any]) -> None:
    """Replace the recorded result of this log size; keep the results of other sizes."""
    others = [older for older in read_rows(RESULTS) if older["rows"] != result["rows"]]
    write_rows(RESULTS, sorted([*others, result], key=lambda r: int(r["rows"])))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print; with --record also store the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", default="1,10", help="log sizes in millions of rows, separated by commas")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="which to run, separated by commas")
    parser.add_argument("--runs", type=int, default=3, help="runs of each program")
    parser.add_argument("--record", action="store_true", help=f"store the results in {RESULTS.name}")
    parser.add_argument("--nights", type=int, default=0, metavar="N", help="score a log of N days, a night at a time")
    arguments = parser.parse_args(argv)
    if arguments.nights:
        with tempfile.TemporaryDirectory() as directory:
            times = measure_nights(Path(directory), arguments.nights)
        print("nightly runs: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in times.items()))
        return
    for millions in map(float, arguments.millions.split(",")):
        with tempfile.TemporaryDirectory() as directory:
            result = measure(millions, Path(directory), arguments.programs.split(","), arguments.runs)
        if arguments.record:
            command = f'make bench-score ARGS="--millions {arguments.millions} --runs {arguments.runs} --record"'
            _record({"date": f"{datetime.now(UTC):%Y-%m-%d}", "command": command, **result})


if __name__ == "__main__":
    main()
