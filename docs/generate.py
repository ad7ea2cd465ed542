"""Writes the tables of options, of metrics and of retries into their pages, from their declarations (`make docs`).

All other text belongs to the page. With --check it writes nothing and fails if a page is stale.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from autothrottle.core.exported_metrics import METRICS, ExportedMetric
from autothrottle.core.retries import RETRIES, Retry
from autothrottle.runtime.configuration import OPTIONS
from autothrottle.runtime.option_kinds import Option

HERE = Path(__file__).parent
_NAME = re.compile(rf"(?<![\w`-])({'|'.join(name for name in OPTIONS if '-' in name)})(?![\w-])")


def configuration_page(text: str) -> str:
    """Return the page with the text above the tables as it is, and current tables."""
    groups = groupby(OPTIONS.values(), lambda option: option.group)
    tables = [_table(title, [_row(option) for option in options]) for title, options in groups]
    return "\n\n".join([text.partition("\n\n## ")[0], *tables]) + "\n"


def _table(title: str, rows: list[str]) -> str:
    head = ["| flag | default | value | meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {title}", "", *head, *rows])


def _row(option: Option[Any]) -> str:
    default = f"`{option.default}`" if option.default else ""
    meaning = re.sub(r"\bdocs/([a-z-]+)\.md", r"[\1](\1.md)", _NAME.sub(r"`\1`", option.meaning))
    return f"| `--{option.name}` | {default} | {option.range} | {meaning}. |"


def metrics_page(text: str) -> str:
    """Return the page with the text above the table as it is, and a current table."""
    rows = [_metric_row(metric) for metric in METRICS]
    head = ["| name | kind | unit | labels | meaning |", "|---|---|---|---|---|"]
    return "\n".join([text.partition("\n\n## ")[0].rstrip(), "", "## All metrics", "", *head, *rows]) + "\n"


def _metric_row(metric: ExportedMetric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {UNITS[metric.unit]} | {labels} | {metric.help}. |"


UNITS = {"1": "", "s": "seconds", "By": "bytes", "By/s": "bytes per second"}
"""Unit in UCUM -> its name."""


def failure_modes_page(text: str) -> str:
    """Return the page with a current table of retries; all other text belongs to the page."""
    above, title, below = text.partition(_RETRIES)
    end = below.partition("\n\n")[2]
    rows = [f"| {retry.work} | {_waits(retry)} | {retry.reason} |" for retry in RETRIES]
    return "\n".join([above + title + "| what is repeated | wait | why |", "|---|---|---|", *rows, "", end])


_RETRIES = "## Retries\n\n"


def _waits(retry: Retry) -> str:
    growth = "doubled" if retry.growth == 2 else f"each {retry.growth - 1:.0%} longer,"
    longest = "" if retry.last is None else f", {growth} up to {retry.last:g} s"
    return f"{retry.first:g} s{longest}" + (f", and up to {retry.jitter:.0%} more" if retry.jitter else "")


PAGES: Mapping[str, Callable[[str], str]] = {
    "configuration.md": configuration_page,
    "metrics.md": metrics_page,
    "failure-modes.md": failure_modes_page,
}
"""Name of a page -> its current text -> its wanted text."""


def main() -> int:
    """Write or check the pages; return the exit status."""
    status = 0
    for name, wanted_page in PAGES.items():
        current = (HERE / name).read_text("utf-8")
        wanted = wanted_page(current)
        if sys.argv[1:] != ["--check"]:
            (HERE / name).write_text(wanted, "utf-8")
        elif current != wanted:
            print(f"{name} does not match the declarations. Fix: make docs", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
