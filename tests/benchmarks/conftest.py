"""Benchmarks print their measurements beside those of the original program. No measured time fails a benchmark.

`make bench` runs them and takes minutes; `make test` skips them. `make bench ARGS=--record` stores the figures in
`results/scale.csv`.
"""

from __future__ import annotations

import gc
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from autothrottle.runtime.tuning import collect_rarely
from tests.benchmarks.big_cluster import Size
from tests.benchmarks.figures import Figures

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scale.csv"
_FIGURES = Figures()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help=f"store the figures of the benchmarks in {RESULTS.name}")
    parser.addoption(
        "--size",
        type=Size.parse,
        metavar="BROKERS,TOPICS,PARTITIONS",
        help="size of the large cluster of the cycle benchmarks; PARTITIONS are those of each topic",
    )
    parser.addoption("--runs", type=int, default=3, help="repetitions of the cycle benchmarks")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect benchmarks only if the command line names their path, since they take minutes."""
    named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(path == HERE or HERE in path.parents for path in named) else True


@pytest.fixture
def figures() -> Iterator[Figures]:
    """The figures of this run, to which each benchmark adds its measurements."""
    yield _FIGURES


@pytest.fixture
def collected_rarely() -> Iterator[None]:
    """Tune the cyclic garbage collector as the services do."""
    before = gc.get_threshold()
    collect_rarely()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not _FIGURES:
        return
    terminalreporter.section("measurements beside the figures of the original program")
    for line in _FIGURES.table():
        terminalreporter.write_line(line)
    if config.getoption("--record", default=False):
        command = shlex.join(["python", "-m", "pytest", *config.invocation_params.args])
        _FIGURES.record(RESULTS, command)
        terminalreporter.write_line(f"stored in {RESULTS.relative_to(HERE.parent.parent)}")
