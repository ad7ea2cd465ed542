"""What benches measured: figures beside those of the original program, as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

COLUMNS = ("figure", "size", "original", "ours", "least", "most", "runs", "unit", "load", "CPU seconds")


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured, some times."""

    name: str
    size: str
    """Of the cluster, in words."""
    unit: str
    samples: tuple[float, ...]
    """In the order in which they were taken, at least one."""
    original: str
    """What the original program reaches, with its unit; empty: nobody has measured it."""
    load: float
    """Mean number of runnable processes of the machine over the minute that ended with the measurement."""
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    """Service -> CPU seconds of one run, the median: what others make the machine do changes these least."""

    @property
    def median(self) -> float:
        """What is quoted."""
        return statistics.median(self.samples)

    def row(self) -> tuple[str, ...]:
        """The cells of its line in the table."""
        numbers = (self.median, min(self.samples), max(self.samples))
        shown = [_shown(number) for number in numbers]
        about = str(len(self.samples)), self.unit, f"{self.load:.1f}", self.cpu()
        return self.name, self.size, self.original or "-", *shown, *about

    def cpu(self) -> str:
        """The CPU seconds in words."""
        return ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.cpu_seconds.items())

    def to_json(self) -> dict[str, Any]:
        """The figure as it is kept."""
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
    """All figures of one run."""

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
        """Take a figure over, and print its line at once: a whole run takes minutes."""
        figure = Figure(name, size, unit, tuple(samples), original, os.getloadavg()[0], cpu_seconds or {})
        self._figures.append(figure)
        _, _, shown, ours, least, most, runs, _, load, cpu = figure.row()
        measured = f"{ours} {unit} ({least} to {most}, {runs} runs, load {load})"
        print(f"\n  {size}: {name}: {measured}; original: {shown}{'; CPU s: ' * bool(cpu)}{cpu}")

    def __bool__(self) -> bool:
        return bool(self._figures)

    def table(self) -> list[str]:
        """The lines of the table."""
        rows = [COLUMNS, *(figure.row() for figure in self._figures)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

    def record(self, path: Path, command: str) -> None:
        """Keep the figures in a file; those of other benches that it holds stay."""
        ours = [figure.to_json() for figure in self._figures]
        measured = {(figure["figure"], figure["size"]) for figure in ours}
        kept = [f for f in _recorded(path) if (f["figure"], f["size"]) not in measured]
        run = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": command}
        content = {"machine": _machine(), "figures": sorted(kept + [{**f, **run} for f in ours], key=_order)}
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n")


def _recorded(path: Path) -> Iterable[dict[str, Any]]:
    return json.loads(path.read_text())["figures"] if path.exists() else ()


def _order(figure: dict[str, Any]) -> tuple[str, str]:
    return figure["figure"], figure["size"]


def _machine() -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _shown(number: float) -> str:
    return f"{number:.3f}" if number < 10 else f"{number:.1f}"
