from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from autothrottle.adapters.kafka_state.log import StateLog
from tests.unit.autothrottle.adapters.kafka_state.processes import Processes


@pytest.fixture
def processes() -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(stack)


@pytest.fixture
def log(processes: Processes) -> StateLog:
    return processes.log()
