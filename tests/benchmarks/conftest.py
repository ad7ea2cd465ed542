"""Benches print what they measured beside the original's figures; no time makes one fail.

`make bench` runs them, `make test` does not: they take minutes. `make bench ARGS=--record` keeps the figures in
`results/scale.json`.
"""

from __future__ import annotations

import gc
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from autothrottle.runtime.collector import collect_rarely
from tests.benchmarks.figures import Figures

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scale.json"
_FIGURES = Figures()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help=f"keep the figures of the benches in {RESULTS.name}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whoever does not name the benches does not want to wait for them."""
    named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(path == HERE or HERE in path.parents for path in named) else True


@pytest.fixture
def figures() -> Iterator[Figures]:
    """Where a bench leaves what it measured."""
    yield _FIGURES


@pytest.fixture
def collected_rarely() -> Iterator[None]:
    """Let Python look for circles of objects as rarely as in a service."""
    before = gc.get_threshold()
    collect_rarely()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not _FIGURES:
        return
    terminalreporter.section("what was measured, and the original's figure")
    for line in _FIGURES.table():
        terminalreporter.write_line(line)
    if config.getoption("--record", default=False):
        command = shlex.join(["python", "-m", "pytest", *config.invocation_params.args])
        _FIGURES.record(RESULTS, command)
        terminalreporter.write_line(f"kept in {RESULTS.relative_to(HERE.parent.parent)}")
