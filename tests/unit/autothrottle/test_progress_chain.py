"""Bytes left, from the brokers' logs through all services to the operator."""

from __future__ import annotations

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle_client import AdminClient
from tests import builders
from tests.builders import eventually, mb
from tests.in_process_services import InProcessServices

GB = 1_000_000_000


def test_bytes_left_reach_the_operator_in_the_last_cycle_and_in_the_list_of_reassignments() -> None:
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in (1001, 1002, 1003, 1004)))
    with InProcessServices(metrics, metrics) as services, AdminClient([services.address("admin")]) as admin:
        services.cluster.tell_progress()
        services.cluster.add_topic("t", {0: (1001, 1002)})
        services.cluster.grow(1001, "t", 0, 5 * GB)
        services.cluster.grow(1003, "t", 0, 1 * GB)
        services.start_planners()
        services.cluster.submit_reassignment("t", {0: (1001, 1003)})

        def left() -> int | None:
            cycle = admin.state().last_cycle
            return cycle.bytes_left if cycle else None

        eventually(lambda: left() == 4 * GB, 60)
        services.cluster.grow(1003, "t", 0, 1 * GB)
        listed = admin.list_reassignments().topics[0]
        assert (listed.bytes_copied, listed.bytes_left) == (2 * GB, 3 * GB)
