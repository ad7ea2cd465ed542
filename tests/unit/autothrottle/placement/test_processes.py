"""Calls of the placement service that another process answers."""

from __future__ import annotations

from typing import Any, cast

import grpc
import pytest

from autothrottle.core.errors import Invalid, Missing
from autothrottle.placement.processes import FIX, PlacementProcesses
from autothrottle.placement.servicer import PlacementServicer
from autothrottle.runtime.child_processes import ChildProcesses
from autothrottle.runtime.configuration import Configuration
from autothrottle.v1 import access_pb2, placement_pb2

PROCESSES = ChildProcesses("autothrottle.composition.placement_process", "plans", FIX)


class Call:
    def time_remaining(self) -> float:
        return 60.0

    def is_active(self) -> bool:
        return True


CALL = cast(grpc.ServicerContext, Call())


@pytest.mark.repeat
def test_another_process_gives_the_same_answers_and_errors() -> None:
    """GetCapacity took 1.6 s of this process' time, in which no cycle ran; plans took longer."""
    request = placement_pb2.GetCapacityRequest()
    request.workload.bytes_in_per_second = 1e9
    request.workload.retention.seconds = 86_400
    request.instances.add(
        name="a",
        storage_bytes=1e12,
        network_in_bytes_per_second=1e9,
        network_out_bytes_per_second=1e9,
        disk_bytes_per_second=1e9,
    )
    servicer = PlacementProcesses(Configuration(), PROCESSES)
    nothing: Any = None
    answer = cast(bytes, servicer.GetCapacity(request, CALL))
    expected = PlacementServicer(nothing, nothing).GetCapacity(request, CALL)
    assert placement_pb2.GetCapacityResponse.FromString(answer) == expected
    with pytest.raises(Missing, match="the server has no pools file"):
        servicer.PlanPools(placement_pb2.PlanPoolsRequest(), CALL)
    with pytest.raises(Missing, match="the server has no history"):
        servicer.GetForecast(placement_pb2.GetForecastRequest(), CALL)
    with pytest.raises(Invalid, match="unknown"):
        servicer.PlanPools(placement_pb2.PlanPoolsRequest.FromString(b"\xf8\x07\x01"), CALL)


def test_plans_need_the_role_operator() -> None:
    methods = placement_pb2.DESCRIPTOR.services_by_name["PlacementService"].methods
    roles = {method.name: method.GetOptions().Extensions[access_pb2.role] for method in methods}
    viewers = {name for name, role in roles.items() if role == access_pb2.ROLE_VIEWER}
    assert viewers == {"GetPoolStatus", "GetCapacity", "GetForecast"}
    assert {*roles} - viewers == {"Rebuild", "Rebalance", "Scale", "Decommission", "PlanPools"}
