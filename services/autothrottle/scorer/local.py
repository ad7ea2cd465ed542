"""Scores logs in this process, without Spark and its JVM, by the same functions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any

import pyarrow as pa

from autothrottle.core.scoring.estimates import SettingEstimate, estimate
from autothrottle.scorer.estimation import Task
from autothrottle.scorer.files import ArrowFiles, Files
from autothrottle.scorer.log import FileReading
from autothrottle.scorer.parts import BYTES_PER_TASK, PartPlan, ScorePlan, from_bytes, score_part, split, to_bytes
from autothrottle.scorer.scores import slowest_part
from autothrottle.scorer.scoring import ScoreWork
from autothrottle.scorer.tables import PORTS, TIMELINE

LARGEST = 500_000_000
"""Size of the decision files up to which a log is scored here by default, bytes: about 12,000,000 decisions.

They need less than 2 GB of memory. Longer logs gain from the disks and the executors of Spark.
"""

_MOST_THREADS = 8

_FEWEST_FOR_PROCESSES = 30_000
"""Number of stretches from which processes estimate settings, about 0.1 ms each."""


@dataclass(frozen=True, slots=True)
class _Scored:
    """One recovery in one part; tables as bytes, since those of all parts are kept."""

    summary: Mapping[str, Any]
    ports: bytes
    timeline: bytes


@dataclass(slots=True)
class LocalParts:
    """`ScoredParts` in memory."""

    readings: Sequence[FileReading]
    parts: dict[int, list[_Scored]] = field(default_factory=dict)
    """Number of a recovery -> its parts."""

    @property
    def summaries(self) -> Mapping[int, Sequence[Mapping[str, Any]]]:
        return {number: [part.summary for part in parts] for number, parts in self.parts.items()}

    def write(self, files: Files, plan: ScorePlan) -> None:
        ports = [from_bytes(part.ports) for parts in self.parts.values() for part in parts]
        files.write("ports", pa.concat_tables([PORTS.empty_table(), *ports]))
        slowest = {number: slowest_part(summaries) for number, summaries in self.summaries.items()}
        timelines = [
            from_bytes(self.parts[number][index].timeline) for number, index in slowest.items() if index is not None
        ]
        files.write("timeline", pa.concat_tables([TIMELINE.empty_table(), *timelines]))


class LocalScorer:
    """A `Scorer` in this process, in threads: Arrow and numpy do not hold the interpreter's lock."""

    def score(self, files: Files, work: ScoreWork, plan: ScorePlan, ratio: float) -> LocalParts:
        assert isinstance(files, ArrowFiles)
        readings, rows_of = list[FileReading](), dict[int, list[bytes]]()
        scored = LocalParts(readings)
        with ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS)) as threads:
            read = partial(_read, files, plan, plan.numbers)
            for of_files, packed in threads.map(read, _groups(work.decisions)):
                readings += of_files
                for part, rows in packed:
                    rows_of.setdefault(part, []).append(rows)
            plans = [part for part in plan.parts() if part.part in rows_of]
            for scored_part in threads.map(lambda plan: _score(plan, rows_of.pop(plan.part), ratio), plans):
                for number, recovery in scored_part:
                    scored.parts.setdefault(number, []).append(recovery)
        return scored

    def estimate(self, tasks: Sequence[Task]) -> Sequence[SettingEstimate]:
        # In processes, as the policies are plain Python. Their start takes about a second.
        cpus = min(os.cpu_count() or 1, _MOST_THREADS)
        if cpus == 1 or sum(len(recovery.stretches) for recovery, _ in tasks) < _FEWEST_FOR_PROCESSES:
            return [estimate(*task) for task in tasks]
        with ProcessPoolExecutor(cpus, get_context("spawn")) as processes:
            chunk = max(1, len(tasks) // (4 * cpus))
            return list(processes.map(estimate, *zip(*tasks, strict=True), chunksize=chunk))


def _groups(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Group files by size."""
    group: list[str] = []
    group_size = 0
    for path, size in sizes.items():
        group.append(path)
        group_size += size
        if group_size >= BYTES_PER_TASK:
            yield group
            group, group_size = [], 0
    if group:
        yield group


def _read(
    files: ArrowFiles, plan: ScorePlan, numbers: Mapping[str, int], paths: Sequence[str]
) -> tuple[list[FileReading], list[tuple[int, bytes]]]:
    """Read files; return what was read, and the rows of each part."""
    read = [files.decisions(path) for path in paths]
    tables = [rows for rows, _ in read if rows is not None]
    packed = split(pa.concat_tables(tables), plan, numbers) if tables else ()
    return [reading for _, reading in read], [(part, to_bytes(rows)) for part, rows in packed]


def _score(part: PartPlan, packed: Sequence[bytes], ratio: float) -> list[tuple[int, _Scored]]:
    rows = pa.concat_tables(map(from_bytes, packed))
    return [
        (each.number, _Scored(each.summary, to_bytes(each.ports), to_bytes(each.timeline)))
        for each in score_part(part, rows, ratio)
    ]
