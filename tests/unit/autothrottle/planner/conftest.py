"""Fixtures of the planner's tests."""

import logging
from collections.abc import Iterator

import pytest

from tests.unit.autothrottle.planner.bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A planner on in-memory twins, with the default settings."""
    with Bench() as made:
        yield made


@pytest.fixture
def info_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Capture the planner's log lines of level INFO, too."""
    caplog.set_level(logging.INFO, logger="autothrottle.planner")
