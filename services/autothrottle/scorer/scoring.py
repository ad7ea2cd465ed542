"""One run of the scorer: from the decision log to tables of scores. Reads only data added since the last run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, timedelta
from typing import Any, Protocol

import pyarrow as pa

from autothrottle.core.errors import Invalid, Missing
from autothrottle.core.scoring.estimates import SettingEstimate
from autothrottle.core.scoring.score import REFERENCE_RATIO
from autothrottle.scorer import scores
from autothrottle.scorer.estimation import Task
from autothrottle.scorer.files import Files
from autothrottle.scorer.log import (
    KINDS,
    QUALITY,
    FileCounts,
    FileReading,
    Folder,
    Recovery,
    file_counts,
    folder_of,
    quality,
    recoveries,
)
from autothrottle.scorer.parts import ScorePlan, plan_parts
from autothrottle.scorer.tables import PORTS, RECOVERIES, TIMELINE

TABLES: Mapping[str, pa.Schema] = {"recoveries": RECOVERIES, "ports": PORTS, "timeline": TIMELINE, "quality": QUALITY}
"""Tables that a run writes, as Parquet partitioned by cluster and date."""

_SHOWN_PROBLEMS = 5
"""Number of unreadable files that a run names."""


@dataclass(frozen=True, slots=True)
class ScoreWork:
    """What a run has to read and to score."""

    dates: tuple[str, ...] = ()
    """Dates whose decisions are read: new dates, and all dates of the recoveries that they belong to."""
    new: tuple[str, ...] = ()
    """Dates whose files have changed since the last run."""
    files: Mapping[Folder, FileCounts] = field(default_factory=dict)
    """The new folders."""
    decisions: Mapping[str, int] = field(default_factory=dict)
    """Path -> size in bytes of the decision files to read."""
    recoveries: tuple[Recovery, ...] = ()
    """The recoveries to score."""
    outdated: frozenset[Folder] = frozenset()
    """Folders of scored recoveries that no longer exist."""
    readings: Sequence[FileReading] = ()
    """What was read of the files of reassignments."""

    @property
    def size(self) -> int:
        """Size of the decision files to read, bytes."""
        return sum(self.decisions.values())


class ScoredParts(Protocol):
    """The scores of all parts of a run."""

    @property
    def readings(self) -> Sequence[FileReading]:
        """One for each decision file."""
        ...

    @property
    def summaries(self) -> Mapping[int, Sequence[Mapping[str, Any]]]:
        """Number of a recovery -> summaries of its parts."""
        ...

    def write(self, files: Files, plan: ScorePlan) -> None:
        """Write the tables `ports` and `timeline`; of each recovery the timeline of its slowest link side."""
        ...


class Scorer(Protocol):
    """Scores the decision files of a run, and estimates other settings."""

    def score(self, files: Files, work: ScoreWork, plan: ScorePlan, ratio: float) -> ScoredParts:
        """Read the decision files and score their parts."""
        ...

    def estimate(self, tasks: Sequence[Task]) -> Sequence[SettingEstimate]:
        """Return the estimate of each task."""
        ...


def find_work(files: Files, ratio: float = REFERENCE_RATIO, anew: bool = False) -> ScoreWork:
    """Return what has changed since the last run; no dates: nothing.

    Args:
        files: the log and the results of the last run.
        ratio: share of the capacity left by clients that the bound gives to replication, in (0, 1].
        anew: whether to score the whole log again.

    Raises:
        Missing: there is no decision log.
        Invalid: the ratio is out of range.
    """
    if not 0 < ratio <= 1:
        raise Invalid(f"reference ratio is {ratio}; it must be > 0 and <= 1; give 0.9, for example")
    paths = {kind: files.paths(kind) for kind in KINDS}
    folders = file_counts(paths)
    if not folders:
        raise Missing(
            f"there is no decision log in {files.log}; start a planner with --decisions, or name another place"
        )
    new = _new_dates(folders, QUALITY.empty_table() if anew else files.table("quality", QUALITY), ratio)
    if not new:
        return ScoreWork()
    records, readings = files.reassignments()
    log = recoveries(records)
    outdated = _outdated(files.table("recoveries", RECOVERIES), log, folders)
    dates, touched = _affected(log, {*new, *(day for _, day in outdated)})
    decisions = {
        path: size
        for path, size in sorted(paths["decisions"].items())
        if (folder := folder_of(path)) is not None and folder[1] in dates
    }
    fresh = {folder: counts for folder, counts in folders.items() if folder[1] in new}
    return ScoreWork(tuple(sorted(dates)), tuple(new), fresh, decisions, tuple(touched), frozenset(outdated), readings)


def score(
    files: Files, scorer: Scorer, work: ScoreWork, ratio: float, notify: Callable[[str], None] = lambda line: None
) -> pa.Table:
    """Score the work, and write the tables of scores. Return the new rows of `quality`, to be written last.

    The next run treats the dates in `quality` as done.

    Args:
        files: the log and the results.
        scorer: does the work.
        work: result of `find_work`.
        ratio: the same as there.
        notify: receives a message at each step.
    """
    notify(f"{len(work.new)} dates are new: {work.new[0]} to {work.new[-1]}")
    notify(f"reading {len(work.decisions)} files of {len(work.dates)} dates")
    plan = plan_parts(work.recoveries)
    parts = scorer.score(files, work, plan, ratio)
    problems = sorted(reading.problem for reading in (*work.readings, *parts.readings) if reading.problem)
    for problem in problems[:_SHOWN_PROBLEMS]:
        notify(problem)
    if len(problems) > _SHOWN_PROBLEMS:
        notify(f"{len(problems)} files cannot be read; the table quality has their number for each date")
    notify("writing the scores")
    parts.write(files, plan)
    scored = scores.recovery_scores(plan, parts.summaries)
    files.write("recoveries", scored)
    for folder in work.outdated - scores.folders_of(scored):
        for table in ("ports", "recoveries", "timeline"):
            files.remove(table, folder)
    return quality(work.files, parts.readings, ratio, work.readings)


def _new_dates(files: Mapping[Folder, FileCounts], scored: pa.Table, ratio: float) -> list[str]:
    """Return the dates whose files have changed since the last run, or that were scored with another ratio.

    The end of a reassignment may be logged later than its decisions.
    """
    counted = {
        (row["cluster"], row["date"], row["files"], row["reassignment_files"])
        for row in scored.to_pylist()
        if row["ratio"] == ratio
    }
    current = ((*folder, counts.decisions, counts.reassignments) for folder, counts in files.items())
    return sorted({row[1] for row in current if row not in counted})


def _outdated(scored: pa.Table, log: Sequence[Recovery], files: Collection[Folder]) -> set[Folder]:
    """Return where scored recoveries no longer exist, because late records made them part of an earlier recovery.

    Args:
        scored: recoveries of all previous runs.
        log: the recoveries of the log.
        files: clusters and dates that still have a log.
    """
    recovery_ids = {recovery.recovery_id for recovery in log}
    rows = scored.select(["recovery_id", "cluster", "date"]).to_pylist()
    folders = {(row["cluster"], row["date"]) for row in rows if row["recovery_id"] not in recovery_ids}
    return {folder for folder in folders if folder in files}


def _affected(log: Sequence[Recovery], new: Collection[str]) -> tuple[set[str], list[Recovery]]:
    """Return the dates to read and the recoveries to score: those on new dates, and all that began on the same dates.

    A folder is rewritten as a whole, so it needs every recovery of its date.
    """
    spans = [(r, r.start.astimezone(UTC).date(), (r.finish or r.start).astimezone(UTC).date()) for r in log]
    fresh = {date.fromisoformat(day) for day in new}
    begun = {start for _, start, finish in spans if any(start <= day <= finish for day in fresh)}
    touched = [span for span in spans if span[1] in begun]
    days = (start + timedelta(days=n) for _, start, finish in touched for n in range((finish - start).days + 1))
    return {*new, *(day.isoformat() for day in days)}, [recovery for recovery, _, _ in touched]
