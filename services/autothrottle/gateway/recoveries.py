"""The last recoveries with their scores, from the results of `autothrottle score` in a local directory.

A process of its own reads the files: Arrow ends its process on some damage, and that may be the planner's. Whatever is
missing or damaged ends in a sentence beside the other recoveries. The type to know is `Recoveries`.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autothrottle.core.scoring.score import CAUSE_NAMES
from autothrottle.core.texts import excerpt, first_line

MOST_RECOVERIES = 50
"""Number of recoveries on the page, the newest first."""

_READ_SECONDS = 60.0
"""Age from which results are read again; a scorer runs every night."""

_TIMEOUT_SECONDS = 20.0
_WAIT_SECONDS = 2.0
"""How long a request waits for results that another request reads."""

_MOST_MEMORY = 1 << 30
"""Address space of the reading process, bytes; Arrow and pandas take 0.4 GB of it."""

_LARGEST_FILE = 16 << 20
"""A date with 50 recoveries of 1,000 brokers has 2 MB."""

_MOST_DATES = 1000

Json = dict[str, Any]


class Recoveries:
    """The last recoveries of a cluster. Thread-safe."""

    def __init__(self, directory: str, cluster: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Store the place.

        Args:
            directory: the scorer's `--out`; "": the gateway has no scores.
            cluster: name of the cluster in the decision log.
            clock: monotonic seconds.
        """
        self._directory, self._cluster, self._clock = directory, cluster, clock
        self._lock = threading.Lock()
        self._last = _nothing("the scores are being read; ask again in a few seconds")
        self._time = -math.inf
        """Time of the last reading."""

    def read(self) -> Json:
        """Return the recoveries, and what is missing, as GET /page/recoveries answers."""
        if not self._directory:
            return _nothing("this gateway has no scores. Fix: set scores to the directory of `autothrottle score`")
        if self._lock.acquire(timeout=_WAIT_SECONDS):
            try:
                if self._clock() - self._time >= _READ_SECONDS:
                    self._last = self._in_process()
                    self._time = self._clock()
            finally:
                self._lock.release()
        return self._last

    def _in_process(self) -> Json:
        command = [sys.executable, "-m", "autothrottle.gateway.recoveries", self._directory, self._cluster]
        # numpy, which pandas needs, otherwise reserves memory for each core.
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        try:
            ended = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_SECONDS, env=environment
            )
        except subprocess.TimeoutExpired:
            return _nothing(f"the scores were not read within {_TIMEOUT_SECONDS:g} s. Fix: move old dates elsewhere")
        except OSError as error:
            return _nothing(f"the scores cannot be read: {error.strerror}")
        if ended.returncode:
            return _nothing(f"the scores cannot be read: the reading process ended with status {ended.returncode}")
        try:
            document: Json = json.loads(ended.stdout)
        except ValueError:
            return _nothing("the scores cannot be read: the reading process did not answer in JSON")
        return document


def _nothing(problem: str) -> Json:
    return {"recoveries": [], "problem": problem}


# What the reading process does.


def read_recoveries(directory: Path, cluster: str) -> Json:
    """Return the newest recoveries of a cluster, and what is missing."""
    scores, problems = _Scores(directory, cluster), list[str]()
    dates = scores.dates()
    if not dates:
        return _nothing(scores.absence())
    rows: list[tuple[str, Json]] = []
    for date in dates[:_MOST_DATES]:
        if len(rows) >= MOST_RECOVERIES:
            break
        rows += [(date, row) for row in scores.rows("recoveries", date, _COLUMNS, problems)]
    timed = [(date, row) for date, row in rows if isinstance(row["recovery_id"], str) and _has_times(row)]
    if len(timed) < len(rows):
        problems.append(f"{len(rows) - len(timed)} recoveries without an id or a time are left out")
    by_id = {row["recovery_id"]: (date, row) for date, row in timed}
    newest = sorted(by_id.values(), key=lambda pair: pair[1]["finish"], reverse=True)[:MOST_RECOVERIES]
    ids = {row["recovery_id"] for _, row in newest}
    brokers, deferrals = defaultdict[str, set[int]](set), defaultdict[str, _Deferral](_Deferral)
    for date in sorted({date for date, _ in newest}):
        for row in scores.rows("ports", date, ("recovery_id", "broker_id"), problems, ids):
            if isinstance(row["broker_id"], int):
                brokers[row["recovery_id"]].add(row["broker_id"])
        for row in scores.rows("timeline", date, _STRETCH, problems, ids):
            deferrals[row["recovery_id"]].add(row)
    shown = [_described(row, brokers[row["recovery_id"]], deferrals[row["recovery_id"]].share) for _, row in newest]
    return {"recoveries": shown, "problem": excerpt(problems, 3, ". ")}


_STRETCH = ("recovery_id", "seconds", "capacity", "client", "achieved")

_REGRETS = {f"regret_{cause}": name for cause, name in CAUSE_NAMES.items()}
"""Column with lost seconds -> name of the cause."""

_COLUMNS = ("recovery_id", "start", "finish", "bytes", "seconds", "bound_seconds", *_REGRETS)


class _Scores:
    """The tables of results of one cluster."""

    def __init__(self, directory: Path, cluster: str) -> None:
        self._directory, self._cluster = directory, cluster

    def dates(self) -> list[str]:
        """Return the dates with recoveries, the newest first."""
        folder = self._directory / "recoveries" / f"cluster={self._cluster}"
        return sorted((path.name.partition("=")[2] for path in folder.glob("date=*")), reverse=True)

    def absence(self) -> str:
        """Return why there are no recoveries."""
        if not self._directory.is_dir():
            return "the directory in scores does not exist on this host. Fix: let `autothrottle score` write to it"
        others = sorted(path.name.partition("=")[2] for path in (self._directory / "recoveries").glob("cluster=*"))
        if others:
            return (
                f"the scores are those of {excerpt(others, 5)}, and cluster-name is {self._cluster}. Fix: give "
                "cluster-name the name in the decision log"
            )
        return "the directory in scores has no recoveries yet. Fix: run `autothrottle score` with it as --out"

    def rows(
        self,
        table: str,
        date: str,
        columns: Collection[str],
        problems: list[str],
        ids: Collection[str] | None = None,
    ) -> Iterator[Json]:
        """Yield the rows of a table on a date, absent columns as null; an unreadable file is a problem."""
        folder = self._directory / table / f"cluster={self._cluster}" / f"date={date}"
        for path in sorted(folder.glob("*.parquet")):
            if path.name.startswith((".", "_")):
                continue
            try:
                yield from _rows(path, columns, ids)
            except Exception as error:  # whatever Arrow raises, it concerns this file
                reason = first_line(error).replace(str(path), "it")[:200]
                problems.append(f"{path.relative_to(self._directory)} cannot be read: {reason}")


def _rows(path: Path, columns: Collection[str], ids: Collection[str] | None) -> Iterator[Json]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from autothrottle.adapters.decision_log.files import read_metadata

    if path.stat().st_size > _LARGEST_FILE:
        raise ValueError(f"it has more than {_LARGEST_FILE >> 20} MiB")
    with pa.OSFile(str(path)) as content:
        file = pq.ParquetFile(content, metadata=read_metadata(content))
        present = [name for name in columns if name in file.schema_arrow.names]
        if "recovery_id" not in present:
            raise ValueError("it has no column recovery_id")
        rows = file.read(present, use_threads=False)
    if ids is not None:
        rows = rows.filter(pc.is_in(rows["recovery_id"], pa.array(sorted(ids), pa.string())))
    absent = dict.fromkeys(columns)
    for row in rows.to_pylist():
        yield absent | row


class _Deferral:
    """Client bytes that did not fit beside replication, over the slowest link side of a recovery."""

    def __init__(self) -> None:
        self._deferred = self._clients = 0.0

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the time from one decision to the next; without a measurement it does not count."""
        values = [_number(row[name]) for name in ("seconds", "capacity", "client", "achieved")]
        if None in values:
            return
        seconds, capacity, client, achieved = (max(value or 0.0, 0.0) for value in values)
        self._clients += seconds * client
        self._deferred += seconds * min(max(client + achieved - capacity, 0.0), client)

    @property
    def share(self) -> float | None:
        """Share of all client bytes, in [0, 1]; None: nothing was measured."""
        return self._deferred / self._clients if self._clients else None


def _has_times(row: Mapping[str, Any]) -> bool:
    return all(isinstance(row[name], datetime) and row[name].tzinfo is not None for name in ("start", "finish"))


def _described(row: Mapping[str, Any], brokers: Collection[int], deferral: float | None) -> Json:
    seconds, bound, copied = (_number(row[name]) for name in ("seconds", "bound_seconds", "bytes"))
    return {
        "start": _time(row["start"]),
        "end": _time(row["finish"]),
        "brokers": sorted(brokers),
        "bytesCopied": None if copied is None else round(copied),
        "timesBest": seconds / bound if seconds is not None and bound else None,
        "deferral": deferral,
        "lostTo": _lost_to(row),
    }


def _lost_to(row: Mapping[str, Any]) -> str:
    """Return the cause of the most lost time, with its seconds; "": no time was lost."""
    lost = {name: _number(row[column]) or 0.0 for column, name in _REGRETS.items()}
    name = max(lost, key=lambda name: lost[name])
    return f"{name}: {lost[name]:,.0f} s" if lost[name] >= 0.5 else ""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def main(directory: str, cluster: str) -> None:
    """Print the recoveries of a directory as JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    try:
        import pyarrow
    except ImportError:
        document = _nothing("the scores cannot be read without pyarrow. Fix: install the extra `decisions` here")
    else:
        pyarrow.set_cpu_count(1)
        document = read_recoveries(Path(directory), cluster)
    json.dump(document, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
