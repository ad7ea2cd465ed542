"""Submitting, cancelling and listing reassignments through the admin service, with every service between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.core.configs import ConfigResource
from autothrottle.v1 import admin_pb2, admin_pb2_grpc, applier_pb2, applier_pb2_grpc, types_pb2
from tests import builders
from tests.builders import eventually, mb
from tests.services.house import BROKERS, House

SLACK = 40.0
"""Seconds that anything may take on a busy machine."""

TARGETS = [
    types_pb2.PartitionTarget(topic="t1", partition=0, replicas=[1001, 1003]),
    types_pb2.PartitionTarget(topic="t1", partition=1, replicas=[1003, 1001]),
]
MOVE = [types_pb2.TopicPartition(topic="t1", partition=0), types_pb2.TopicPartition(topic="t1", partition=1)]


@pytest.fixture
def house() -> Iterator[House]:
    """Two planners, of which the second leads; admin asks the first one first. t1 is on 1001 and 1002."""
    metrics = MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in BROKERS))
    with House(metrics, metrics, planners=2) as built:
        built.cluster.add_topic("t1", {0: (1001, 1002), 1: (1002, 1001)})
        for name in ("planner-2", "planner-1"):
            built.planners[int(name[-1]) - 1].start(built.address(name))
        eventually(lambda: built.planners[1].state().leading)
        yield built


@pytest.fixture
def stub(house: House) -> Any:
    return admin_pb2_grpc.AdminServiceStub(house.channel("admin"))


def submit(stub: Any, *targets: types_pb2.PartitionTarget, **options: Any) -> Any:
    return stub.SubmitReassignment(
        admin_pb2.SubmitReassignmentRequest(partitions=targets or TARGETS, **options), timeout=SLACK
    )


def listed(stub: Any) -> Any:
    return stub.ListReassignments(admin_pb2.ListReassignmentsRequest(), timeout=SLACK).topics


def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code(), error.details()


def test_a_reassignment_is_throttled_submitted_listed_and_leaves_nothing(house: House, stub: Any) -> None:
    assert submit(stub).submitted == 2
    (submission,) = house.cluster.submissions
    written = [str(change.resource) for change in house.cluster.writes]
    assert submission == {("t1", 0): (1001, 1003), ("t1", 1): (1003, 1001)}
    assert written == ["brokers/1001", "brokers/1002", "brokers/1003", "topics/t1"]
    (topic,) = listed(stub)
    assert (topic.topic, list(topic.partitions), topic.partitions_to_copy) == ("t1", [0, 1], 2)
    assert (list(topic.adding_replicas), list(topic.removing_replicas)) == ([1003], [1002])
    assert submit(stub) == admin_pb2.SubmitReassignmentResponse(already_moving=2)
    house.cluster.finish("t1")
    eventually(lambda: house.is_clean(), SLACK)
    assert not listed(stub)
    assert submit(stub) == admin_pb2.SubmitReassignmentResponse(already_there=2)


def test_a_reassignment_is_cancelled_and_leaves_nothing(house: House, stub: Any) -> None:
    submit(stub)
    absent = types_pb2.TopicPartition(topic="t1", partition=7)
    request = admin_pb2.CancelReassignmentRequest(partitions=[*MOVE, absent])
    answer = stub.CancelReassignment(request, timeout=SLACK)
    assert answer.cancelled == 2
    assert [(one.partition, one.reason) for one in answer.refused] == [
        (7, "t1-7 does not exist; name a partition that does")
    ]
    eventually(lambda: house.is_clean(), SLACK)
    code, said = refusal(lambda: stub.CancelReassignment(request, timeout=SLACK))
    assert code is grpc.StatusCode.NOT_FOUND and "t1-0 is not being reassigned" in said


def test_a_look_changes_nothing(house: House, stub: Any) -> None:
    assert submit(stub, validate_only=True).submitted == 2
    assert house.cluster.submissions == [] and house.cluster.writes == []


def test_what_cannot_be_throttled_is_not_submitted(house: House, stub: Any) -> None:
    house.cluster.refuse(ConfigResource.broker(1003), "broker 1003 does not answer")
    code, said = refusal(lambda: submit(stub))
    assert code is grpc.StatusCode.ABORTED
    assert said == "nothing was submitted, since it could not be throttled: brokers/1003: broker 1003 does not answer"
    assert house.cluster.submissions == []
    house.cluster.refuse(ConfigResource.broker(1003), "")
    eventually(lambda: house.is_clean(), SLACK)


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        (("t9", 0, [1001]), grpc.StatusCode.NOT_FOUND, "t9-0 does not exist; give a partition's name"),
        (("t1", 9, [1001]), grpc.StatusCode.NOT_FOUND, "t1-9 does not exist; give a partition's name"),
        (("t1", 0, [1009]), grpc.StatusCode.INVALID_ARGUMENT, "broker 1009, to which t1-0 is to move, is unknown or"),
        (("t1", 0, []), grpc.StatusCode.INVALID_ARGUMENT, "t1-0 has an empty list of replicas"),
        (("t1", 0, [1003, 1003]), grpc.StatusCode.INVALID_ARGUMENT, "t1-0 names broker 1003 twice"),
    ],
)
def test_what_is_wrong_is_refused_with_the_value_and_the_fix(
    stub: Any, target: tuple[str, int, list[int]], code: grpc.StatusCode, said: str
) -> None:
    topic, partition, replicas = target
    wanted = types_pb2.PartitionTarget(topic=topic, partition=partition, replicas=replicas)
    found, message = refusal(lambda: submit(stub, wanted))
    assert found is code and said in message


def test_a_partition_that_moves_elsewhere_is_aborted(house: House, stub: Any) -> None:
    house.cluster.start_reassignment("t1", {0: (1004, 1002)})
    code, said = refusal(lambda: submit(stub))
    assert code is grpc.StatusCode.ABORTED
    assert said.startswith("t1-0 is being reassigned to [1004, 1002] already; wait until it is done, or cancel it")


def test_without_a_leader_nothing_is_submitted_or_cancelled() -> None:
    metrics = MemoryMetrics()
    with House(metrics, metrics) as house:
        stub: Any = admin_pb2_grpc.AdminServiceStub(house.channel("admin"))
        cancel = admin_pb2.CancelReassignmentRequest(partitions=MOVE)
        for call in (lambda: submit(stub), lambda: stub.CancelReassignment(cancel, timeout=SLACK)):
            assert refusal(call) == (
                grpc.StatusCode.UNAVAILABLE,
                "no planner leads at the moment; try again in some seconds",
            )


def test_the_applier_refuses_what_no_term_has_decided_or_contradicts_itself(house: House) -> None:
    stub: Any = applier_pb2_grpc.ApplierServiceStub(house.channel("applier"))

    def said(**fields: Any) -> str:
        request = applier_pb2.AlterReassignmentsRequest(**fields)
        code, message = refusal(lambda: stub.AlterReassignments(request, timeout=SLACK))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        return message

    assert "fence 0 is not > 0" in said(start=TARGETS)
    assert "names no partition" in said(fence=1)
    assert "is to be started and cancelled; name it once" in said(fence=1, start=TARGETS, cancel=MOVE[:1])
