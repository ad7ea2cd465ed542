"""Fixtures of the planner's tests."""

import logging
from collections.abc import Iterator

import pytest

from tests.planner.bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A planner among in-memory twins, with the settings that most tests want."""
    with Bench() as made:
        yield made


@pytest.fixture
def info_lines(caplog: pytest.LogCaptureFixture) -> None:
    """What the planner says in its usual course is caught, too."""
    caplog.set_level(logging.INFO, logger="autothrottle.planner")
