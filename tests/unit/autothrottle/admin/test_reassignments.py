"""Submitting, cancelling and listing reassignments through the admin service and all other services."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.core.cluster.configs import ClusterSettings, ConfigResource
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.placement.brokers import PlacementBroker
from autothrottle.core.placement.cluster import PlacementCluster, StorageMetrics
from autothrottle.core.placement.partition_map import PartitionReplicas
from autothrottle.runtime.logs import JsonFormat
from autothrottle.v1 import admin_pb2, admin_pb2_grpc, applier_pb2, applier_pb2_grpc, types_pb2
from tests import builders
from tests.builders import eventually, mb
from tests.in_process_services import BROKERS, STATE_TOPIC, InProcessServices

SLACK = 40.0
"""Timeout of a call on a busy machine, in seconds."""

TARGETS = [
    types_pb2.PartitionTarget(topic="t1", partition=0, replicas=[1001, 1003]),
    types_pb2.PartitionTarget(topic="t1", partition=1, replicas=[1003, 1001]),
]
PARTITIONS = [types_pb2.TopicPartition(topic="t1", partition=0), types_pb2.TopicPartition(topic="t1", partition=1)]


@pytest.fixture
def services() -> Iterator[InProcessServices]:
    """Services whose second planner leads, while admin calls the first one first. t1 is on 1001 and 1002."""
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
    with InProcessServices(metrics, metrics, planners=2) as built:
        built.cluster.add_topic("t1", {0: (1001, 1002), 1: (1002, 1001)})
        for name in ("planner-2", "planner-1"):
            built.planners[int(name[-1]) - 1].start(built.address(name))
        eventually(lambda: built.planners[1].state().leading)
        yield built


@pytest.fixture
def stub(services: InProcessServices) -> Any:
    return admin_pb2_grpc.AdminServiceStub(services.channel("admin"))


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


def test_a_reassignment_is_throttled_submitted_listed_and_cleaned_up(services: InProcessServices, stub: Any) -> None:
    assert submit(stub).submitted == 2
    (submission,) = services.cluster.submissions
    written = [str(change.resource) for change in services.cluster.writes]
    assert submission == {("t1", 0): (1001, 1003), ("t1", 1): (1003, 1001)}
    assert written == ["brokers/1001", "brokers/1002", "brokers/1003", "topics/t1"]
    (topic,) = listed(stub)
    assert (topic.topic, list(topic.partitions), topic.partitions_to_copy) == ("t1", [0, 1], 2)
    assert (list(topic.adding_replicas), list(topic.removing_replicas)) == ([1003], [1002])
    assert submit(stub) == admin_pb2.SubmitReassignmentResponse(already_in_progress=2)
    services.cluster.finish("t1")
    eventually(lambda: services.is_clean(), SLACK)
    assert not listed(stub)
    assert submit(stub) == admin_pb2.SubmitReassignmentResponse(already_there=2)


def test_a_cancelled_reassignment_is_cleaned_up(services: InProcessServices, stub: Any) -> None:
    submit(stub)
    absent = types_pb2.TopicPartition(topic="t1", partition=7)
    request = admin_pb2.CancelReassignmentRequest(partitions=[*PARTITIONS, absent])
    answer = stub.CancelReassignment(request, timeout=SLACK)
    assert answer.cancelled == 2
    assert [(one.partition, one.reason) for one in answer.refused] == [
        (7, "t1-7 does not exist; name a partition that does")
    ]
    eventually(lambda: services.is_clean(), SLACK)
    code, message = refusal(lambda: stub.CancelReassignment(request, timeout=SLACK))
    assert code is grpc.StatusCode.NOT_FOUND and "t1-0 is not being reassigned" in message


def test_validate_only_changes_nothing(services: InProcessServices, stub: Any) -> None:
    assert submit(stub, validate_only=True).submitted == 2
    assert services.cluster.submissions == [] and services.cluster.writes == []


def test_a_submission_carries_a_fixed_rate_that_ends_with_it(services: InProcessServices, stub: Any) -> None:
    done = submit(stub, throttle_bytes_per_second=mb(120))
    assert done.submitted == 2
    (warning,) = done.warnings
    assert warning.startswith(
        "the override of 120 MB/s is above the capacity of broker 1001, 100 MB/s and those of 1 ot"
    )
    override = services.overrides.read_overrides().cluster
    assert override is not None and (override.rate, override.autoremove) == (mb(120), True)
    rate = {"follower.replication.throttled.rate": str(mb(100))}  # the capacity of the link
    eventually(lambda: rate.items() <= services.cluster.configs[ConfigResource.broker(1003)].items(), SLACK)
    assert submit(stub, throttle_bytes_per_second=mb(120)).already_in_progress == 2
    services.cluster.finish("t1")
    eventually(lambda: services.is_clean(), SLACK)
    eventually(lambda: services.overrides.read_overrides().cluster is None, SLACK)
    assert submit(stub, throttle_bytes_per_second=mb(120)).already_there == 2
    assert services.overrides.read_overrides().cluster is None, "nothing runs that would end it"


def test_a_fixed_rate_of_a_submission_that_fails_is_removed(services: InProcessServices, stub: Any) -> None:
    services.cluster.refused[ConfigResource.broker(1003)] = "broker 1003 does not answer"
    assert refusal(lambda: submit(stub, throttle_bytes_per_second=mb(50)))[0] is grpc.StatusCode.ABORTED
    assert services.overrides.read_overrides().cluster is None
    assert submit(stub, validate_only=True, throttle_bytes_per_second=mb(50)).submitted == 2
    assert services.overrides.read_overrides().cluster is None
    code, message = refusal(lambda: submit(stub, throttle_bytes_per_second=mb(2_000_000)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT and "is outside of 1..1000000000000" in message


@pytest.mark.parametrize("validate_only", [True, False])
def test_a_fixed_rate_does_not_replace_another_override(
    services: InProcessServices, stub: Any, validate_only: bool
) -> None:
    services.overrides.set_override(None, StoredOverride(mb(30)))
    code, message = refusal(lambda: submit(stub, validate_only=validate_only, throttle_bytes_per_second=mb(50)))
    assert code is grpc.StatusCode.ABORTED and "the cluster override is 30 MB/s: nothing was submitted" in message
    assert services.cluster.submissions == []


def test_nothing_is_submitted_if_a_throttle_is_refused(services: InProcessServices, stub: Any) -> None:
    services.cluster.refused[ConfigResource.broker(1003)] = "broker 1003 does not answer"
    code, message = refusal(lambda: submit(stub))
    assert code is grpc.StatusCode.ABORTED
    assert (
        message == "nothing was submitted, since it could not be throttled: brokers/1003: broker 1003 does not answer"
    )
    assert services.cluster.submissions == []
    services.cluster.refused[ConfigResource.broker(1003)] = ""
    eventually(lambda: services.is_clean(), SLACK)


@pytest.mark.parametrize(
    ("target", "code", "expected"),
    [
        (("t9", 0, [1001]), grpc.StatusCode.NOT_FOUND, "t9-0 does not exist; give a partition's name"),
        (("t1", 9, [1001]), grpc.StatusCode.NOT_FOUND, "t1-9 does not exist; give a partition's name"),
        (("t1", 0, [1009]), grpc.StatusCode.INVALID_ARGUMENT, "broker 1009, a target replica of t1-0, is unknown or"),
        (("t1", 0, []), grpc.StatusCode.INVALID_ARGUMENT, "t1-0 has an empty list of replicas"),
        (("t1", 0, [1003, 1003]), grpc.StatusCode.INVALID_ARGUMENT, "t1-0 names broker 1003 twice"),
    ],
)
def test_an_invalid_request_is_refused_with_the_value_and_the_fix(
    stub: Any, target: tuple[str, int, list[int]], code: grpc.StatusCode, expected: str
) -> None:
    topic, partition, replicas = target
    wanted = types_pb2.PartitionTarget(topic=topic, partition=partition, replicas=replicas)
    found, message = refusal(lambda: submit(stub, wanted))
    assert found is code and expected in message


def test_a_conflicting_reassignment_is_aborted(services: InProcessServices, stub: Any) -> None:
    services.cluster.submit_reassignment("t1", {0: (1004, 1002)})
    code, message = refusal(lambda: submit(stub))
    assert code is grpc.StatusCode.ABORTED
    assert message.startswith("t1-0 is already being reassigned to [1004, 1002]; wait until it is done, or cancel it")


def test_without_a_leader_nothing_is_submitted_or_cancelled() -> None:
    metrics = MemoryMetrics()
    with InProcessServices(metrics, metrics) as services:
        services.cluster.add_topic("t1", {0: (1001, 1002), 1: (1002, 1001)})
        stub: Any = admin_pb2_grpc.AdminServiceStub(services.channel("admin"))
        cancel = admin_pb2.CancelReassignmentRequest(partitions=PARTITIONS)
        for call in (lambda: submit(stub), lambda: stub.CancelReassignment(cancel, timeout=SLACK)):
            assert refusal(call) == (
                grpc.StatusCode.UNAVAILABLE,
                "no planner leads at the moment; try again in a few seconds",
            )


def test_the_applier_refuses_requests_without_a_fence_or_a_partition(services: InProcessServices) -> None:
    stub: Any = applier_pb2_grpc.ApplierServiceStub(services.channel("applier"))

    def refusals_of(fence: int, targets: Any, partitions: Any) -> list[str]:
        submission = applier_pb2.SubmitReassignmentsRequest(fence=fence, partitions=targets)
        cancellation = applier_pb2.CancelReassignmentsRequest(fence=fence, partitions=partitions)
        found = [
            refusal(lambda: stub.SubmitReassignments(submission, timeout=SLACK)),
            refusal(lambda: stub.CancelReassignments(cancellation, timeout=SLACK)),
        ]
        assert {code for code, _ in found} == {grpc.StatusCode.INVALID_ARGUMENT}
        return [message for _, message in found]

    def matches(messages: list[str], text: str) -> None:
        assert [text in message for message in messages] == [True, True], messages

    matches(refusals_of(0, TARGETS, PARTITIONS), "fence 0 is not > 0")
    matches(refusals_of(1, [], []), "name 1 to 10000")
    matches(refusals_of(1, [TARGETS[0], TARGETS[0]], [PARTITIONS[0], PARTITIONS[0]]), "is named twice; name it once")


def audited(stub: Any) -> list[tuple[int, str]]:
    """(Action, result) of every audit record, oldest first."""
    records = stub.ListAuditRecords(admin_pb2.ListAuditRecordsRequest(), timeout=SLACK).records
    return [(record.action, record.result) for record in reversed(records)]


def test_every_write_is_audited_with_its_result(
    services: InProcessServices, stub: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Only overrides and the pause were audited. The record has no line for the author of a moved partition."""
    record, cancel = admin_pb2.AuditRecord, admin_pb2.CancelReassignmentRequest
    unknown = types_pb2.PartitionTarget(topic="absent", partition=0, replicas=[1001])
    with caplog.at_level(logging.INFO, "autothrottle.audit"):
        submit(stub, validate_only=True)
        submit(stub)
        refusal(lambda: submit(stub, unknown))
        stub.CancelReassignment(cancel(partitions=PARTITIONS), timeout=SLACK)
        refusal(lambda: stub.CancelReassignment(cancel(partitions=PARTITIONS[:0]), timeout=SLACK))
        stub.RequestCycle(admin_pb2.RequestCycleRequest(), timeout=SLACK)
        stub.StartCatchUp(admin_pb2.StartCatchUpRequest(broker_id=1001), timeout=SLACK)
        stub.StopCatchUp(admin_pb2.StopCatchUpRequest(broker_id=1001), timeout=SLACK)
    found = audited(stub)
    assert [action for action, _ in found] == [
        *(record.ACTION_SUBMIT, record.ACTION_SUBMIT, record.ACTION_CANCEL, record.ACTION_REQUEST_CYCLE),
        *(record.ACTION_START_CATCH_UP, record.ACTION_STOP_CATCH_UP),
    ]
    assert found[0][1] == "2 partitions of t1 to brokers [1001 1003]: 2 submitted"
    assert found[1][1].startswith("Failed for 1 partition of absent to brokers [1001]: ")
    assert found[2][1] == "2 partitions of t1: 2 cancelled"
    logged = [r for r in caplog.records if r.name == "autothrottle.audit"]
    assert [r.getMessage().partition(" by ipv4:127.0.0.1:")[0] for r in logged] == [
        *(result for _, result in found[:4]),
        *("Broker 1001 catches up under throttle", "Catch-up of broker 1001 under throttle ended"),
    ]
    assert json.loads(JsonFormat().format(logged[4]))["audit"] == {
        "action": "start_catch_up",
        "who": logged[4].getMessage().rpartition(" by ")[2],
        "result": "Broker 1001 catches up under throttle",
        "broker_id": 1001,
    }


def test_an_action_stays_in_effect_if_its_audit_record_cannot_be_stored(
    services: InProcessServices, stub: Any, caplog: pytest.LogCaptureFixture
) -> None:
    submit(stub)
    caplog.clear()
    services.overrides.unavailable(True)
    cancel = admin_pb2.CancelReassignmentRequest(partitions=PARTITIONS)
    assert stub.CancelReassignment(cancel, timeout=SLACK).cancelled == 2
    (warning,) = [line for line in caplog.messages if "audit record" in line]
    assert warning.startswith("The audit record of this action was not stored, the action stays in effect: ")
    services.overrides.unavailable(False)


# Plans that take something away.


def target_of(partition: int, *replicas: int) -> types_pb2.PartitionTarget:
    return types_pb2.PartitionTarget(topic="t1", partition=partition, replicas=replicas)


def estimated(stub: Any, *targets: types_pb2.PartitionTarget, **options: Any) -> Any:
    return stub.EstimateReassignment(
        admin_pb2.EstimateReassignmentRequest(partitions=targets, **options), timeout=SLACK
    )


CUT = "t1-0, t1-1 would have 1 replica instead of 2, below min.insync.replicas=2, so that producers with acks=all fail"


@pytest.mark.parametrize("call", [submit, estimated])
def test_a_plan_that_takes_something_away_is_refused_with_all_reasons(
    services: InProcessServices, stub: Any, call: Any
) -> None:
    """A plan from 3 replicas to 1 was submitted without a word, and every producer with acks=all failed afterwards."""
    racks = {1001: "a", 1002: "b", 1003: "a", 1004: "c"}
    brokers = {b: PlacementBroker(b, rack, cordoned=b == 1004) for b, rack in racks.items()}
    services.placement.cluster = PlacementCluster(brokers, ())
    services.storage.metrics = StorageMetrics({("t1", 2): 10**9}, {1003: 10**6}, datetime.now(UTC))
    services.cluster.settings = ClusterSettings(min_in_sync_replicas={"t1": 2})
    services.cluster.add_topic("t1", {**dict.fromkeys((0, 1, 2, 3, 4), (1001, 1002))})
    targets = [target_of(0, 1001), target_of(1, 1002), target_of(2, 1001, 1003), target_of(3, 1004, 1002)]
    code, message = refusal(lambda: call(stub, *targets, target_of(4, 1002, 1001)))
    assert code is grpc.StatusCode.ABORTED
    assert message.split("\n") == [
        "4 partitions are refused:",
        f"{CUT}; to submit it nevertheless: --allow-fewer-replicas",
        "t1-2 would be in 1 rack instead of 2; to submit it nevertheless: --allow-fewer-racks",
        "broker 1004, a target replica of t1-3, is cordoned; to submit it nevertheless: --allow-cordoned",
        "the plan copies 1.00 GB to broker 1003, which has room for 0.00 GB: t1-2 does not fit; to submit it "
        "nevertheless: --allow-full",
        "to leave refused partitions out and submit the 1 other partition: --skip-refused",
    ]
    assert services.cluster.submissions == [] and services.is_clean()
    allowed = {"allow_fewer_replicas": True, "allow_fewer_racks": True, "allow_cordoned": True, "allow_full": True}
    assert not call(stub, *targets, **allowed).left_out


def test_refused_partitions_are_left_out_by_name_on_request(services: InProcessServices, stub: Any) -> None:
    targets = [target_of(0, 1001), target_of(1, 1003, 1001)]
    done = submit(stub, *targets, skip_refused=True)
    assert done.submitted == 1
    (left_out,) = done.left_out
    assert (
        left_out.reason == "t1-0 would have 1 replica instead of 2; to submit it nevertheless: --allow-fewer-replicas"
    )
    assert list(left_out.partitions) == [types_pb2.TopicPartition(topic="t1", partition=0)]
    assert left_out.allowed_by == "allow_fewer_replicas"
    assert list(services.cluster.submissions[0]) == [("t1", 1)]
    code, message = refusal(lambda: submit(stub, targets[0], skip_refused=True))
    assert code is grpc.StatusCode.ABORTED and "--skip-refused" not in message
    checked = submit(stub, targets[0], skip_refused=True, validate_only=True)
    assert checked.submitted == 0 and list(checked.left_out) == [left_out], "a dry run lists all reasons"


def test_own_state_is_cut_only_on_request_and_is_not_refused_in_mid_move(
    services: InProcessServices, stub: Any
) -> None:
    """The planner exchanges one replica at a time, so that the running move has other targets than the plan."""
    services.cluster.add_topic(STATE_TOPIC, {0: (1001, 1002)})

    def submitted(*replicas: int) -> Any:
        return submit(stub, types_pb2.PartitionTarget(topic=STATE_TOPIC, partition=0, replicas=replicas))

    assert refusal(lambda: submitted(1001))[0] is grpc.StatusCode.ABORTED
    assert submitted(1003, 1004).postponed == 1
    again = submitted(1003, 1004)
    assert (again.already_in_progress, again.postponed) == (1, 1)


def test_what_cannot_be_read_is_not_checked_and_named(services: InProcessServices, stub: Any) -> None:
    services.placement.unavailable(True)
    services.storage.unavailable(True)
    done = submit(stub, validate_only=True)
    assert done.submitted == 2
    assert list(done.warnings) == [
        "not checked, because it cannot be read: racks and cordons of brokers (the cluster does not answer; try again)",
        "not checked, because it cannot be read: free storage of brokers (the store of metrics does not answer; try "
        "again)",
    ]


def test_an_old_sample_of_storage_refuses_nothing(services: InProcessServices, stub: Any) -> None:
    sizes = {("t1", 0): 10**9, ("t1", 1): 10**9}
    services.storage.metrics = StorageMetrics(sizes, {1003: 0}, datetime.now(UTC) - timedelta(hours=2))
    assert submit(stub, validate_only=True).submitted == 2
    services.storage.metrics = StorageMetrics(sizes, {1003: 0}, datetime.now(UTC))
    assert "do not fit" in refusal(lambda: submit(stub, validate_only=True))[1]


def test_size_of_another_topic_with_the_same_name_in_datadog_refuses_nothing(
    services: InProcessServices, stub: Any
) -> None:
    """Datadog has one name for a_b and a__b. A plan for one of them was judged by the size of the other one."""
    services.cluster.add_topic("a__b", {0: (1001, 1002)})
    both = tuple(PartitionReplicas(topic, 0, (1001, 1002)) for topic in ("a_b", "a__b"))
    services.storage.metrics = StorageMetrics(
        {("a_b", 0): 10**12}, {1003: 10**6}, datetime.now(UTC), has_exact_names=False
    )
    target = types_pb2.PartitionTarget(topic="a__b", partition=0, replicas=[1003, 1002])
    services.placement.cluster = PlacementCluster({}, both[1:])
    assert "does not fit" in refusal(lambda: submit(stub, target, validate_only=True))[1]
    services.placement.cluster = PlacementCluster({}, both)
    (warning,) = submit(stub, target, validate_only=True).warnings
    assert warning.startswith(
        "not checked, because its size is unknown: a__b (Datadog has one name, a_b, for the topics"
    )
    services.placement.unavailable(True)
    assert any("names in Datadog" in warning for warning in submit(stub, target, validate_only=True).warnings)
