"""Writes the tables of options into docs/configuration.md, from their declarations (`make docs`).

The text above the first table belongs to the page. With --check it writes nothing and fails if the page is stale.
"""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from autothrottle.runtime.configuration import OPTIONS
from autothrottle.runtime.option_kinds import Option

PAGE = Path(__file__).with_name("configuration.md")
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


def main() -> int:
    """Write or check the page; return the exit status."""
    current = PAGE.read_text("utf-8")
    wanted = configuration_page(current)
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(wanted, "utf-8")
    elif current != wanted:
        print(f"{PAGE.name} does not match the declared options. Fix: make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
