"""The services in one process, for tests that call them over gRPC."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autothrottle.adapters.memory import MemoryMetrics
from tests.builders import eventually, load, mb
from tests.in_process_services import BROKERS, InProcessServices


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
