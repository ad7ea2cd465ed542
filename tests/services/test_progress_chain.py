"""The bytes that are left, from the brokers' logs through every service to the operator."""

from __future__ import annotations

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle_client import AdminClient
from tests import builders
from tests.builders import eventually, mb
from tests.services.house import House

GB = 1_000_000_000


def test_what_is_left_reaches_the_operator_by_the_last_cycle_and_live() -> None:
    metrics = MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in (1001, 1002, 1003, 1004)))
    with House(metrics, metrics) as house, AdminClient([house.address("admin")]) as admin:
        house.cluster.tell_progress()
        house.cluster.add_topic("t", {0: (1001, 1002)})
        house.cluster.grow(1001, "t", 0, 5 * GB)
        house.cluster.grow(1003, "t", 0, 1 * GB)
        house.start_planners()
        house.cluster.start_reassignment("t", {0: (1001, 1003)})

        def left() -> int | None:
            cycle = admin.state().last_cycle
            return cycle.bytes_left if cycle else None

        eventually(lambda: left() == 4 * GB, 60)
        house.cluster.grow(1003, "t", 0, 1 * GB)
        listed = admin.list_reassignments().topics[0]
        assert (listed.bytes_landed, listed.bytes_left) == (2 * GB, 3 * GB)
