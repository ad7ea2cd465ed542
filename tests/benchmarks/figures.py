"""Measurements of the benchmarks beside those of the original program, as a table and as JSON."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.benchmarks.result_files import read_rows, write_rows

COLUMNS = ("figure", "size", "original", "ours", "least", "most", "runs", "unit", "load", "CPU seconds")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity with its samples."""

    name: str
    size: str
    """Size of the cluster in words, for example `1000 brokers, 100000 partitions`."""
    unit: str
    samples: tuple[float, ...]
    """At least one sample, in the order of measurement."""
    original: str
    """The figure of the original program with its unit; empty: not measured."""
    load: float
    """Load average of the machine over the last minute of the measurement."""
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    """Service -> median CPU seconds of one run. Other load on the machine affects CPU time least."""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def row(self) -> tuple[str, ...]:
        """The cells of its row, in the order of `COLUMNS`."""
        numbers = (self.median, min(self.samples), max(self.samples))
        shown = [_shown(number) for number in numbers]
        about = str(len(self.samples)), self.unit, f"{self.load:.1f}", self.cpu()
        return self.name, self.size, self.original or "-", *shown, *about

    def cpu(self) -> str:
        return ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.cpu_seconds.items())

    def to_row(self) -> dict[str, Any]:
        return {
            "figure": self.name,
            "size": self.size,
            "original": self.original or None,
            "median": round(self.median, 3),
            "samples": [round(sample, 3) for sample in self.samples],
            "unit": self.unit,
            "load_average": round(self.load, 1),
            "cpu_seconds": {name: round(seconds, 2) for name, seconds in self.cpu_seconds.items()},
        }


class Figures:
    def __init__(self) -> None:
        self._figures: list[Figure] = []

    def add(
        self,
        name: str,
        size: str,
        unit: str,
        samples: Sequence[float],
        original: str = "",
        cpu_seconds: Mapping[str, float] | None = None,
    ) -> None:
        """Add a figure and print it immediately, since a full run takes minutes."""
        figure = Figure(name, size, unit, tuple(samples), original, os.getloadavg()[0], cpu_seconds or {})
        self._figures.append(figure)
        _, _, shown, ours, least, most, runs, _, load, cpu = figure.row()
        measured = f"{ours} {unit} ({least} to {most}, {runs} runs, load {load})"
        print(f"\n  {size}: {name}: {measured}; original: {shown}{'; CPU s: ' * bool(cpu)}{cpu}")

    def __bool__(self) -> bool:
        return bool(self._figures)

    def table(self) -> list[str]:
        rows = [COLUMNS, *(figure.row() for figure in self._figures)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

    def record(self, path: Path, command: str) -> None:
        """Replace the same figures in a file; keep the others."""
        ours = [figure.to_row() for figure in self._figures]
        measured = {(figure["figure"], figure["size"]) for figure in ours}
        kept = [f for f in read_rows(path) if (f["figure"], f["size"]) not in measured]
        run: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": command}
        run["machine"] = _machine()
        write_rows(path, sorted(kept + [{**f, **run} for f in ours], key=_order))


def _order(figure: Mapping[str, Any]) -> tuple[str, str]:
    return figure["figure"], figure["size"]


def _machine() -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _shown(number: float) -> str:
    return f"{number:.3f}" if number < 10 else f"{number:.1f}"
