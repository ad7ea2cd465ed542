"""The services in one process, for tests that call them over gRPC, and the log levels of each test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from autothrottle.adapters.memory import MemoryMetrics
from tests.builders import eventually, load, mb
from tests.in_process_services import BROKERS, InProcessServices


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Undo what a test does to log levels: a command's main() sets them, and later tests would see other lines."""
    loggers = [logging.getLogger(name) for name in (None, "autothrottle", "autothrottle_client", "autothrottle_lab")]
    levels, has_threads = [logger.level for logger in loggers], logging.logThreads
    yield
    logging.logThreads = has_threads
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def metrics() -> MemoryMetrics:
    return MemoryMetrics(*(load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))


@pytest.fixture
def services(metrics: MemoryMetrics) -> Iterator[InProcessServices]:
    """Services with two planners that have not joined the election yet."""
    with InProcessServices(metrics, metrics, planners=2) as built:
        yield built


@pytest.fixture(scope="module")
def unchanged_services() -> Iterator[InProcessServices]:
    """Services that tests of a module share, because none changes them: all requests are refused or only read."""
    metrics = MemoryMetrics()
    with InProcessServices(metrics, metrics) as built:
        yield built


@pytest.fixture
def led(services: InProcessServices) -> InProcessServices:
    """Services whose first planner leads and has run its first cycle."""
    services.start_planners()
    eventually(lambda: services.planners[0].state().last_cycle)
    return services
