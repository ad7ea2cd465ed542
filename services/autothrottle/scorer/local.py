"""Scores small logs in this process, without Spark and its JVM, by the same functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from autothrottle.scorer.files import ArrowFiles, Files
from autothrottle.scorer.log import FileReading
from autothrottle.scorer.parts import Plan, RecoveryPart, score_part, split
from autothrottle.scorer.scores import slowest_part
from autothrottle.scorer.scoring import Work
from autothrottle.scorer.tables import PORTS, TIMELINE

LARGEST = 64_000_000
"""Size of the decision files up to which a log is scored here, bytes; about 1,600,000 decisions."""


@dataclass(slots=True)
class LocalParts:
    """`ScoredParts` in memory."""

    readings: Sequence[FileReading]
    parts: dict[int, list[RecoveryPart]] = field(default_factory=dict)
    """Number of a recovery -> its parts."""

    @property
    def summaries(self) -> Mapping[int, Sequence[Mapping[str, Any]]]:
        return {number: [part.summary for part in parts] for number, parts in self.parts.items()}

    def write(self, files: Files, plan: Plan) -> None:
        parts = [part for of_recovery in self.parts.values() for part in of_recovery]
        files.write("ports", pa.concat_tables([PORTS.empty_table(), *(part.ports for part in parts)]))
        slowest = {number: slowest_part(summaries) for number, summaries in self.summaries.items()}
        timelines = [self.parts[number][index].timeline for number, index in slowest.items() if index is not None]
        files.write("timeline", pa.concat_tables([TIMELINE.empty_table(), *timelines]))


class LocalScorer:
    """A `Scorer` in this process. It holds all rows in memory."""

    def score(self, files: Files, work: Work, plan: Plan, ratio: float) -> LocalParts:
        assert isinstance(files, ArrowFiles)
        numbers, readings = plan.numbers, []
        rows_of: dict[int, list[pa.Table]] = {}
        for path in work.decisions:
            rows, reading = files.decisions(path)
            readings.append(reading)
            for part, own in split(rows, plan, numbers) if rows is not None else ():
                rows_of.setdefault(part, []).append(own)
        scored = LocalParts(readings)
        for part_plan in plan.parts():
            if tables := rows_of.pop(part_plan.part, None):
                for recovery in score_part(part_plan, pa.concat_tables(tables), ratio):
                    scored.parts.setdefault(recovery.number, []).append(recovery)
        return scored
