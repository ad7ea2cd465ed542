"""The answers and errors of each service over a real gRPC connection."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from autothrottle.adapters.grpc import DiscoveryClient
from autothrottle.adapters.memory import MemoryMembership, MemoryMetrics
from autothrottle.core.cluster.configs import FOLLOWER_RATE, LEADER_RATE, ConfigResource
from autothrottle.core.cluster.snapshot import Problem, SnapshotRequest
from autothrottle.core.members import Member
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    applier_pb2,
    applier_pb2_grpc,
    discovery_pb2,
    discovery_pb2_grpc,
    metrics_pb2,
    metrics_pb2_grpc,
    planner_pb2,
    planner_pb2_grpc,
    types_pb2,
)
from autothrottle.wire.common import SAME_NAMES
from autothrottle.wire.discovery import NO_SNAPSHOT, NamedSnapshot, named_snapshot_from_chunks
from tests import builders
from tests.builders import eventually, mb, snapshot_from_chunks
from tests.in_process_services import InProcessServices

SLACK = 60.0
"""Timeout of a call on a busy machine, in seconds."""

SERVING = health_pb2.HealthCheckResponse.SERVING
INVALID, MISSING = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
CONFLICT = grpc.StatusCode.ABORTED
UNAVAILABLE, NOT_LEADER = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION

SERVICES = {
    "discovery": "autothrottle.v1.DiscoveryService",
    "metrics": "autothrottle.v1.MetricsService",
    "applier": "autothrottle.v1.ApplierService",
    "planner-1": "autothrottle.v1.PlannerService",
    "admin": "autothrottle.v1.AdminService",
}


def failure(call: Callable[[], object]) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def code_of(call: Callable[[], object]) -> grpc.StatusCode:
    code: grpc.StatusCode = failure(call).code()
    return code


def details_of(call: Callable[[], object], code: grpc.StatusCode) -> str:
    failed = failure(call)
    assert failed.code() is code
    return str(failed.details())


# Every service.


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_reports_its_health_and_lists_itself(unchanged_services: InProcessServices, name: str) -> None:
    channel = unchanged_services.channel(name)
    request = health_pb2.HealthCheckRequest(service=SERVICES[name])
    health: Any = health_pb2_grpc.HealthStub(channel)
    assert health.Check(request, timeout=SLACK).status == SERVING
    listing = reflection_pb2.ServerReflectionRequest(list_services="")
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    (answer,) = stub.ServerReflectionInfo(iter([listing]), timeout=SLACK)
    assert SERVICES[name] in {service.name for service in answer.list_services_response.service}


@pytest.mark.parametrize("name", SERVICES)
def test_reflection_describes_every_method(unchanged_services: InProcessServices, name: str) -> None:
    """grpcurl needs this: the file of the service and, through it, every message."""
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICES[name])
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(unchanged_services.channel(name))
    (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=SLACK)
    assert any(b"autothrottle.v1" in file for file in answer.file_descriptor_response.file_descriptor_proto)


@pytest.mark.parametrize("name", ["planner-1", "discovery"])
def test_stop_ends_open_streams_quickly(led: InProcessServices, name: str) -> None:
    channel = led.channel(name)
    stream: Any
    if name == "discovery":
        stream = discovery_pb2_grpc.DiscoveryServiceStub(channel).WatchSnapshots(discovery_pb2.WatchSnapshotsRequest())
    else:
        stream = planner_pb2_grpc.PlannerServiceStub(channel).WatchCycles(planner_pb2.WatchCyclesRequest())
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(failure, lambda: next(stream))
        started = time.monotonic()
        led.servers[name].stop(timedelta(minutes=2))
        assert time.monotonic() - started < 60, "well within the grace period of 2 minutes"
        assert following.result(SLACK).code() in (grpc.StatusCode.CANCELLED, UNAVAILABLE)


# Admin.


def admin(services: InProcessServices) -> Any:
    return admin_pb2_grpc.AdminServiceStub(services.channel("admin"))


def override(rate: int, broker_id: int | None = None, autoremove: bool = False) -> admin_pb2.SetOverrideRequest:
    wanted = admin_pb2.Override(broker_id=broker_id, rate_bytes_per_second=rate, autoremove=autoremove)
    return admin_pb2.SetOverrideRequest(override=wanted)


def without_etag(override: admin_pb2.Override) -> admin_pb2.Override:
    """Return a copy without the etag, which every answer must have."""
    assert override.etag
    found = admin_pb2.Override()
    found.CopyFrom(override)
    found.ClearField("etag")
    return found


def test_an_override_is_set_returned_listed_and_removed(services: InProcessServices) -> None:
    stub = admin(services)
    answer = stub.SetOverride(override(mb(50), 1002), timeout=SLACK)
    assert without_etag(answer.override) == admin_pb2.Override(broker_id=1002, rate_bytes_per_second=mb(50))
    assert list(answer.warnings) == []
    stub.SetOverride(override(mb(200), autoremove=True), timeout=SLACK)
    cluster = admin_pb2.Override(rate_bytes_per_second=mb(200), autoremove=True)
    listed = stub.ListOverrides(admin_pb2.ListOverridesRequest(), timeout=SLACK)
    assert [without_etag(listed.overrides[0]), listed.overrides[1]] == [cluster, answer.override]
    assert stub.GetOverride(admin_pb2.GetOverrideRequest(), timeout=SLACK).override == listed.overrides[0]
    one = admin_pb2.GetOverrideRequest(broker_id=1002)
    assert stub.GetOverride(one, timeout=SLACK).override == answer.override
    stub.RemoveOverride(admin_pb2.RemoveOverrideRequest(broker_id=1002), timeout=SLACK)
    assert code_of(lambda: stub.GetOverride(one, timeout=SLACK)) is MISSING
    assert services.overrides.read_overrides().brokers == {}


@pytest.mark.parametrize(("broker_id", "whose"), [(None, "the cluster"), (1002, "broker 1002")])
def test_a_missing_override_is_not_found(services: InProcessServices, broker_id: int | None, whose: str) -> None:
    stub = admin(services)
    get, remove = (
        kind(broker_id=broker_id) for kind in (admin_pb2.GetOverrideRequest, admin_pb2.RemoveOverrideRequest)
    )
    expected = f"no throttle override is set for {whose}; ListOverrides shows the existing ones"
    assert details_of(lambda: stub.GetOverride(get, timeout=SLACK), MISSING) == expected
    assert details_of(lambda: stub.RemoveOverride(remove, timeout=SLACK), MISSING) == expected


def test_an_override_marked_for_removal_is_not_found(services: InProcessServices) -> None:
    services.overrides.mark_for_removal(1002)
    stub = admin(services)
    assert code_of(lambda: stub.GetOverride(admin_pb2.GetOverrideRequest(broker_id=1002), timeout=SLACK)) is MISSING
    assert not stub.ListOverrides(admin_pb2.ListOverridesRequest(), timeout=SLACK).overrides


def test_an_etag_matches_only_its_own_version(services: InProcessServices) -> None:
    stub = admin(services)
    wanted = override(mb(50), 1002)
    wanted.override.etag = stub.SetOverride(wanted, timeout=SLACK).override.etag
    current = stub.SetOverride(wanted, timeout=SLACK).override
    message = details_of(lambda: stub.SetOverride(wanted, timeout=SLACK), CONFLICT)
    assert f"its etag is now {current.etag}; read it again" in message
    stale = admin_pb2.RemoveOverrideRequest(broker_id=1002, etag=wanted.override.etag)
    assert f"its etag is now {current.etag}; read it again" in details_of(
        lambda: stub.RemoveOverride(stale, timeout=SLACK), CONFLICT
    )
    fresh = admin_pb2.RemoveOverrideRequest(broker_id=1002, etag=current.etag)
    stub.RemoveOverride(fresh, timeout=SLACK)
    assert code_of(lambda: stub.RemoveOverride(fresh, timeout=SLACK)) is MISSING
    wanted.override.etag = current.etag
    assert "it does not exist" in details_of(lambda: stub.SetOverride(wanted, timeout=SLACK), CONFLICT)


def test_the_expire_time_of_an_override_must_be_in_the_future(services: InProcessServices) -> None:
    stub = admin(services)
    wanted = override(mb(50), 1002)
    wanted.override.expire_time.FromDatetime(datetime.now(UTC) + timedelta(hours=1))
    assert stub.SetOverride(wanted, timeout=SLACK).override.expire_time == wanted.override.expire_time
    assert services.overrides.read_overrides().brokers[1002].expire_time is not None
    wanted.override.expire_time.FromDatetime(datetime.now(UTC) - timedelta(seconds=1))
    assert "give a later time" in details_of(lambda: stub.SetOverride(wanted, timeout=SLACK), INVALID)


def test_changes_of_overrides_are_audited_with_their_author(services: InProcessServices) -> None:
    stub = admin(services)
    current = stub.SetOverride(override(mb(50), 1002), timeout=SLACK).override
    request = admin_pb2.RemoveOverrideRequest(broker_id=1002)
    stub.RemoveOverride(request, timeout=SLACK, metadata=[("forwarded-for", "10.0.0.9:5000")])
    removed, begun = stub.ListAuditRecords(admin_pb2.ListAuditRecordsRequest(), timeout=SLACK).records
    assert (begun.action, removed.action) == (admin_pb2.AuditRecord.ACTION_SET, admin_pb2.AuditRecord.ACTION_REMOVE)
    assert (begun.HasField("before"), begun.after) == (False, current)
    assert (removed.before, removed.HasField("after")) == (current, False)
    assert begun.who.startswith("ipv4:127.0.0.1:")
    assert removed.who == f"10.0.0.9:5000 through {begun.who}"
    newest = stub.ListAuditRecords(admin_pb2.ListAuditRecordsRequest(limit=1), timeout=SLACK).records
    assert list(newest) == [removed]


@pytest.mark.parametrize("limit", [-1, 1001])
def test_an_audit_limit_out_of_range_is_refused(services: InProcessServices, limit: int) -> None:
    request = admin_pb2.ListAuditRecordsRequest(limit=limit)
    message = details_of(lambda: admin(services).ListAuditRecords(request, timeout=SLACK), INVALID)
    assert f"limit {limit} is outside of 1..1000" in message


@pytest.mark.parametrize("rate", [0, -1, -(2**63), 10**12 + 1, 80 * 10**12, 2**63 - 1])
def test_a_rate_out_of_range_is_refused_with_the_range_and_the_fix(services: InProcessServices, rate: int) -> None:
    message = details_of(lambda: admin(services).SetOverride(override(rate, 1002), timeout=SLACK), INVALID)
    assert f"override rate {rate} bytes/s is outside of 1..1000000000000; give a positive rate" in message
    assert services.overrides.read_overrides().brokers == {}


@pytest.mark.parametrize("broker_id", [-1, -(2**31)])
def test_a_broker_id_out_of_range_is_refused_with_the_range_and_the_fix(
    services: InProcessServices, broker_id: int
) -> None:
    stub = admin(services)
    message = f"broker id {broker_id} is outside of 0..2147483647; give a broker's id"
    for call in (
        lambda: stub.SetOverride(override(mb(1), broker_id), timeout=SLACK),
        lambda: stub.GetOverride(admin_pb2.GetOverrideRequest(broker_id=broker_id), timeout=SLACK),
        lambda: stub.RemoveOverride(admin_pb2.RemoveOverrideRequest(broker_id=broker_id), timeout=SLACK),
    ):
        assert message in details_of(call, INVALID)


def test_an_override_of_an_unregistered_broker_is_accepted_with_a_warning(
    services: InProcessServices,
) -> None:
    answer = admin(services).SetOverride(override(mb(50), 1009), timeout=SLACK)
    assert list(answer.warnings) == ["broker 1009 is not registered: the override applies when it catches up"]
    assert services.overrides.read_overrides().brokers[1009].rate == mb(50)


def test_autoremove_on_a_broker_override_is_accepted_with_a_warning(services: InProcessServices) -> None:
    answer = admin(services).SetOverride(override(mb(50), 1002, autoremove=True), timeout=SLACK)
    assert answer.override.autoremove
    assert list(answer.warnings) == ["autoremove has no effect on a broker override"]


@pytest.mark.parametrize(("broker_id", "others"), [(1001, ""), (None, " and those of 3 other brokers")])
def test_an_override_above_the_capacity_is_accepted_with_a_warning(
    services: InProcessServices, caplog: pytest.LogCaptureFixture, broker_id: int | None, others: str
) -> None:
    """A rate above the link, given in a wrong unit, limits nothing. It was set without a word."""
    assert list(admin(services).SetOverride(override(mb(100), broker_id), timeout=SLACK).warnings) == []
    answer = admin(services).SetOverride(override(mb(101), broker_id), timeout=SLACK)
    warning = (
        f"the override of 101 MB/s is above the capacity of broker 1001, 100 MB/s{others}: the capacity limits it "
        "there; check its unit, or allow more with --beyond-capacity"
    )
    assert list(answer.warnings) == [warning]
    owner = "the cluster" if broker_id is None else "broker 1001"
    assert f"Override of {owner} set to 101000000 bytes/s: {warning}" in caplog.messages


def test_an_armed_override_says_when_it_acts_in_every_answer(led: InProcessServices) -> None:
    """A rate for the next move stayed armed without a word, and a move of another tool ran at ten times the link.

    The answer of the command, the lists and the state now say what it waits for.
    """
    stub = admin(led)
    armed = "armed: nothing moves now; acts when a move or a catch-up begins"
    message = override(mb(50), autoremove=True)
    assert stub.SetOverride(message, timeout=SLACK).override.effect == f"{armed}, and ends with the last one"
    assert stub.SetOverride(override(mb(50)), timeout=SLACK).override.effect == armed
    listed = stub.ListOverrides(admin_pb2.ListOverridesRequest(), timeout=SLACK).overrides
    state = stub.GetClusterState(admin_pb2.GetClusterStateRequest(), timeout=SLACK).overrides
    assert [override.effect for override in (*listed, *state)] == [armed, armed]
    unknown = stub.SetOverride(override(mb(50), 1009), timeout=SLACK).override
    assert unknown.effect == "acts in the next cycle, if broker 1009 is registered"
    stub.Pause(admin_pb2.PauseRequest(mode=types_pb2.Pause.MODE_KEEP), timeout=SLACK)
    paused = stub.GetOverride(admin_pb2.GetOverrideRequest(), timeout=SLACK).override
    assert paused.effect == "waits: autothrottle is paused; acts after throttlectl resume"


def test_an_override_is_stored_while_the_cluster_cannot_be_read(services: InProcessServices) -> None:
    services.cluster.unavailable(True)
    assert list(admin(services).SetOverride(override(mb(50), 1009), timeout=SLACK).warnings) == []
    assert services.overrides.read_overrides().brokers[1009].rate == mb(50)


def test_unreadable_overrides_are_listed_as_warnings(services: InProcessServices) -> None:
    services.overrides.unreadable = {1002: "/override_rate/1002 is not JSON; fix it"}
    listed = admin(services).ListOverrides(admin_pb2.ListOverridesRequest(), timeout=SLACK)
    assert list(listed.warnings) == [
        "the override of broker 1002 cannot be read: /override_rate/1002 is not JSON; fix it"
    ]
    services.overrides.unavailable(True)
    stub = admin(services)
    assert code_of(lambda: stub.ListOverrides(admin_pb2.ListOverridesRequest(), timeout=SLACK)) is UNAVAILABLE
    assert code_of(lambda: stub.SetOverride(override(mb(50)), timeout=SLACK)) is UNAVAILABLE


def test_the_state_names_the_leader_its_last_cycle_and_the_overrides(led: InProcessServices) -> None:
    led.overrides.set_override(1002, StoredOverride(mb(50)))
    state = admin(led).GetClusterState(admin_pb2.GetClusterStateRequest(), timeout=SLACK)
    assert (state.term, state.leader_address) == (1, led.address("planner-1"))
    assert (state.last_cycle.term, state.last_cycle.error) == (1, "")
    assert [o.broker_id for o in state.overrides] == [1002]


def test_the_state_has_the_start_of_the_term_and_the_failures(
    services: InProcessServices, metrics: MemoryMetrics
) -> None:
    services.cluster.add_topic("t1", {0: (1001, 1002)})
    services.cluster.submit_reassignment("t1", {0: (1001, 1003)})
    metrics.lose(1003, "no data")
    before = datetime.now(UTC)
    services.start_planners()
    eventually(lambda: services.planners[0].state().last_cycle)
    state = admin(services).GetClusterState(admin_pb2.GetClusterStateRequest(without_cycle=True), timeout=SLACK)
    assert before <= state.leader_since.ToDatetime(tzinfo=UTC) <= datetime.now(UTC)
    assert dict(state.failures) == {1003: 1}


def test_the_state_lists_the_members_and_is_unavailable_while_they_cannot_be_read(led: InProcessServices) -> None:
    ones = [Member(s, (s,), "1.2.3", f"{s}:1", "host1", 7, builders.NOON) for s in ("planner", "admin")]
    for one in ones:
        MemoryMembership(led.members).join(one)
    state = admin(led).GetClusterState(admin_pb2.GetClusterStateRequest(), timeout=SLACK)
    assert list(state.members) == [SAME_NAMES.to_message(admin_pb2.Member, one) for one in reversed(ones)]
    led.members.unavailable(True)
    stub = admin(led)
    assert code_of(lambda: stub.GetClusterState(admin_pb2.GetClusterStateRequest(), timeout=SLACK)) is UNAVAILABLE


def test_a_pause_is_kept_shown_and_ended(led: InProcessServices) -> None:
    stub, mode = admin(led), types_pb2.Pause.MODE_KEEP
    before = datetime.now(UTC)
    pause = stub.Pause(admin_pb2.PauseRequest(mode=mode, reason="a release"), timeout=SLACK).pause
    assert (pause.mode, pause.reason) == (mode, "a release")
    assert pause.author.startswith("ipv4:127.0.0.1:")
    assert before <= pause.time.ToDatetime(tzinfo=UTC) <= datetime.now(UTC)
    eventually(lambda: (last := led.planners[0].state().last_cycle) and last.pause)
    state = stub.GetClusterState(admin_pb2.GetClusterStateRequest(), timeout=SLACK)
    assert (state.pause, state.last_cycle.pause) == (pause, pause)
    assert stub.Resume(admin_pb2.ResumeRequest(), timeout=SLACK).was_paused
    assert not stub.Resume(admin_pb2.ResumeRequest(), timeout=SLACK).was_paused
    state = stub.GetClusterState(admin_pb2.GetClusterStateRequest(without_cycle=True), timeout=SLACK)
    assert not state.HasField("pause")


def test_pause_and_resume_are_unavailable_without_the_store(led: InProcessServices) -> None:
    led.pauses.unavailable(True)
    stub, mode = admin(led), types_pb2.Pause.MODE_KEEP
    assert code_of(lambda: stub.Pause(admin_pb2.PauseRequest(mode=mode), timeout=SLACK)) is UNAVAILABLE
    assert code_of(lambda: stub.Resume(admin_pb2.ResumeRequest(), timeout=SLACK)) is UNAVAILABLE
    assert code_of(lambda: stub.GetClusterState(admin_pb2.GetClusterStateRequest(), timeout=SLACK)) is UNAVAILABLE


def test_a_state_without_the_cycle_names_the_leader(led: InProcessServices) -> None:
    state = admin(led).GetClusterState(admin_pb2.GetClusterStateRequest(without_cycle=True), timeout=SLACK)
    assert (state.term, state.leader_address) == (1, led.address("planner-1"))
    assert not state.HasField("last_cycle")
    request = planner_pb2.GetStateRequest(without_cycle=True)
    answer = planner(led, 1).GetState(request, timeout=SLACK)
    assert (answer.leading, answer.leader_address) == (True, led.address("planner-1"))
    assert not answer.HasField("last_cycle")


def test_without_a_leader_state_and_cycles_are_unavailable(services: InProcessServices) -> None:
    stub = admin(services)
    for call in (
        lambda: stub.GetClusterState(admin_pb2.GetClusterStateRequest(), timeout=SLACK),
        lambda: stub.RequestCycle(admin_pb2.RequestCycleRequest(), timeout=SLACK),
    ):
        assert details_of(call, UNAVAILABLE) == "no planner leads at the moment; try again in a few seconds"


def test_a_requested_cycle_runs_at_the_current_leader(led: InProcessServices) -> None:
    led.electorate.depose()
    eventually(lambda: led.planners[1].state().last_cycle)
    admin(led).RequestCycle(admin_pb2.RequestCycleRequest(), timeout=SLACK)
    eventually(lambda: (last := led.planners[1].state().last_cycle) and "requested by" in last.reason)


# Planner.


def planner(services: InProcessServices, number: int) -> Any:
    return planner_pb2_grpc.PlannerServiceStub(services.channel(f"planner-{number}"))


def test_a_planner_that_does_not_lead_refuses_a_cycle_and_names_the_leader(led: InProcessServices) -> None:
    failed = failure(lambda: planner(led, 2).RunCycle(planner_pb2.RunCycleRequest(reason="test"), timeout=SLACK))
    assert (failed.code(), failed.details()) == (NOT_LEADER, "this planner is not the leader; call the leader")
    assert ("leader-address", led.address("planner-1")) in [(m.key, m.value) for m in failed.trailing_metadata()]
    assert led.planners[1].state().last_cycle is None


def test_the_leader_runs_a_cycle_with_the_given_reason(led: InProcessServices) -> None:
    planner(led, 1).RunCycle(planner_pb2.RunCycleRequest(reason="test"), timeout=SLACK)
    eventually(lambda: (last := led.planners[0].state().last_cycle) and "test" in last.reason)


def test_both_planners_name_the_leader(led: InProcessServices) -> None:
    states = [planner(led, number).GetState(planner_pb2.GetStateRequest(), timeout=SLACK) for number in (1, 2)]
    assert [(s.leading, s.term, s.leader_address, s.HasField("last_cycle")) for s in states] == [
        (True, 1, led.address("planner-1"), True),
        (False, 1, led.address("planner-1"), False),
    ]


def test_a_watch_streams_the_last_cycle_and_then_each_one_that_ends(led: InProcessServices) -> None:
    stream = planner(led, 1).WatchCycles(planner_pb2.WatchCyclesRequest(), timeout=3 * SLACK)
    first = next(stream).cycle
    assert (first.term, first.number, first.sentence) == (1, 1, "no reassignments; throttles are up to date")
    led.cluster.add_topic("t1", {0: (1001, 1002)})
    led.cluster.submit_reassignment("t1", {0: (1001, 1003)})
    second = next(stream).cycle
    assert (second.number, second.reason) == (2, "a reassignment of [t1] started")
    assert list(second.topics) == ["t1"]
    rates = {(d.broker_id, d.role): d.rate_bytes_per_second for d in second.decisions}
    assert rates == {(1001, types_pb2.REPLICA_ROLE_LEADER): mb(72), (1003, types_pb2.REPLICA_ROLE_FOLLOWER): mb(81)}
    assert {o.status for o in second.outcomes} == {types_pb2.Outcome.STATUS_APPLIED}
    stream.cancel()


def test_cancelled_watches_free_their_streams(led: InProcessServices) -> None:
    """These servers allow 32 open streams."""
    stub = planner(led, 1)

    def is_answered() -> bool:
        stream = stub.WatchCycles(planner_pb2.WatchCyclesRequest())
        try:
            return bool(next(stream).cycle.number)
        except grpc.RpcError:
            return False
        finally:
            stream.cancel()

    for _ in range(40):
        eventually(is_answered)


# Discovery.


def discovery(services: InProcessServices) -> Any:
    return discovery_pb2_grpc.DiscoveryServiceStub(services.channel("discovery"))


def test_a_snapshot_has_reassignments_throttles_and_the_requested_replicas(services: InProcessServices) -> None:
    services.cluster.add_topic("t1", {0: (1001, 1002)})
    services.cluster.submit_reassignment("t1", {0: (1001, 1003)})
    services.cluster.set_config_as_user(ConfigResource.broker(1001), LEADER_RATE, "5")
    services.cluster.unreadable_configs[ConfigResource.broker(1002)] = Problem("/config/brokers/1002", "is not JSON")
    services.cluster.problems.append(Problem("/brokers/topics/t2", "is not JSON"))
    request = discovery_pb2.GetSnapshotRequest(replicas_of=[1002])
    answered = snapshot_from_chunks(discovery(services).GetSnapshot(request, timeout=SLACK))
    expected = services.cluster.fetch_snapshot(
        SnapshotRequest(replicas_of=[1002]), timeout=builders.NOON - builders.NOON
    )
    assert answered == expected
    assert answered.replicas == {1002: {"t1": (0,)}}


def test_replicas_of_broker_0_can_be_requested(services: InProcessServices) -> None:
    """Kafka's broker ids start at 0."""
    services.cluster.add_topic("t9", {0: (1002, 0), 1: (1002, 1003)})
    request = discovery_pb2.GetSnapshotRequest(replicas_of=[0])
    assert snapshot_from_chunks(discovery(services).GetSnapshot(request, timeout=SLACK)).replicas == {0: {"t9": (0,)}}


@pytest.mark.parametrize("broker_ids", [[-1], [1001] * 10_001])
def test_invalid_broker_lists_are_refused(services: InProcessServices, broker_ids: list[int]) -> None:
    request = discovery_pb2.GetSnapshotRequest(replicas_of=broker_ids)
    message = details_of(lambda: list(discovery(services).GetSnapshot(request, timeout=SLACK)), INVALID)
    assert "name at most 10000" in message or "outside of 0..2147483647" in message


def test_a_snapshot_is_sent_as_a_difference_to_a_known_one(services: InProcessServices) -> None:
    submit_reassignment(services, "t1")
    first = received(services)
    submit_reassignment(services, "t2")
    second = received(services, first)
    assert second.snapshot.topics == ("t1", "t2")
    assert second.snapshot.reassignments[0] is first.snapshot.reassignments[0]
    assert second.snapshot == received(services).snapshot


def test_the_recorded_request_of_an_earlier_planner_gets_a_difference(services: InProcessServices) -> None:
    """The planner may be older than discovery during an upgrade. It names its last snapshot in field 4."""
    first = received(services)
    services.cluster.set_config_as_user(ConfigResource.broker(1001), LEADER_RATE, "5")
    request = discovery_pb2.GetSnapshotRequest.FromString(b'\x08\x01"\x20' + first.name.encode() + b"@\x01")
    assert (request.min_version, request.accept_partial) == (1, True)
    chunks = list(discovery(services).GetSnapshot(request, timeout=SLACK))
    assert chunks[0].base_name == first.name
    assert named_snapshot_from_chunks(chunks, first).snapshot == received(services).snapshot


def test_an_unknown_base_name_gives_a_full_snapshot(services: InProcessServices) -> None:
    submit_reassignment(services, "t1")
    request = discovery_pb2.GetSnapshotRequest(known_name="of another replica")
    chunks = list(discovery(services).GetSnapshot(request, timeout=SLACK))
    assert chunks[0].base_name == ""
    assert snapshot_from_chunks(chunks).topics == ("t1",)


def test_a_base_name_is_valid_once_and_only_for_recent_snapshots(services: InProcessServices) -> None:
    def base_name(known_name: str) -> str:
        request = discovery_pb2.GetSnapshotRequest(known_name=known_name)
        (chunk, *_) = discovery(services).GetSnapshot(request, timeout=SLACK)
        return str(chunk.base_name)

    first = received(services).name
    assert [base_name(first), base_name(first)] == [first, ""]
    old = received(services).name
    for _ in range(10):
        received(services)
    assert base_name(old) == ""


def test_a_client_reuses_unchanged_parts_and_reads_a_full_snapshot_from_another_replica(
    services: InProcessServices,
) -> None:
    with InProcessServices(MemoryMetrics(), MemoryMetrics()) as other:
        client = DiscoveryClient([services.address("discovery"), other.address("discovery")])
        with closing(client):
            submit_reassignment(services, "t1")
            submit_reassignment(other, "t3")
            first = client.fetch_snapshot(timeout=timedelta(seconds=SLACK))
            submit_reassignment(services, "t2")
            second = client.fetch_snapshot(timeout=timedelta(seconds=SLACK))
            assert second.topics == ("t1", "t2")
            assert second.reassignments[0] is first.reassignments[0]
            services.servers["discovery"].stop()
            assert client.fetch_snapshot(timeout=timedelta(seconds=SLACK)).topics == ("t3",)


def received(services: InProcessServices, known: NamedSnapshot = NO_SNAPSHOT) -> NamedSnapshot:
    request = discovery_pb2.GetSnapshotRequest(known_name=known.name)
    return named_snapshot_from_chunks(discovery(services).GetSnapshot(request, timeout=SLACK), known)


def submit_reassignment(services: InProcessServices, topic: str) -> None:
    services.cluster.add_topic(topic, {0: (1001, 1002)})
    services.cluster.submit_reassignment(topic, {0: (1001, 1003)})


def test_an_unreadable_cluster_is_an_error_and_never_an_empty_snapshot(services: InProcessServices) -> None:
    stub = discovery(services)
    late = discovery_pb2.GetSnapshotRequest(min_version=10_000)
    assert code_of(lambda: list(stub.GetSnapshot(late, timeout=SLACK))) is UNAVAILABLE
    services.cluster.incomplete = "/admin/reassign_partitions is not JSON; fix it"
    request = discovery_pb2.GetSnapshotRequest()
    message = details_of(lambda: list(stub.GetSnapshot(request, timeout=SLACK)), grpc.StatusCode.DATA_LOSS)
    assert message == "/admin/reassign_partitions is not JSON; fix it"
    services.cluster.unavailable(True)
    assert code_of(lambda: list(stub.GetSnapshot(request, timeout=SLACK))) is UNAVAILABLE


def test_a_watch_confirms_that_it_is_active_and_then_sends_events(services: InProcessServices) -> None:
    stream = discovery(services).WatchSnapshots(discovery_pb2.WatchSnapshotsRequest(), timeout=3 * SLACK)
    assert next(stream) == discovery_pb2.WatchSnapshotsResponse()
    services.cluster.add_topic("t1", {0: (1001, 1002)})
    services.cluster.submit_reassignment("t1", {0: (1001, 1003)})
    started = next(stream)
    assert (started.reason, started.version) == ("a reassignment of [t1] started", services.cluster.version)
    services.cluster.join_isr("t1", 0, 1003)
    assert next(stream).reason == "broker 1003 joined the ISR of t1-0"
    stream.cancel()


# Metrics.


def metrics_service(services: InProcessServices) -> Any:
    return metrics_pb2_grpc.MetricsServiceStub(services.channel("metrics"))


def test_loads_include_the_problems_of_single_brokers(services: InProcessServices, metrics: MemoryMetrics) -> None:
    metrics.lose(1004, "host h4 reports nothing")
    answer = metrics_service(services).GetLoads(metrics_pb2.GetLoadsRequest(), timeout=SLACK)
    assert {b.broker_id: b.outbound.rate_bytes_per_second for b in answer.brokers} == dict.fromkeys(
        (1001, 1002, 1003), mb(20)
    )
    assert dict(answer.problems) == {1004: "host h4 reports nothing"}


def test_an_unreachable_metrics_source_is_unavailable(services: InProcessServices, metrics: MemoryMetrics) -> None:
    metrics.unavailable(True)
    stub = metrics_service(services)
    assert code_of(lambda: stub.GetLoads(metrics_pb2.GetLoadsRequest(), timeout=SLACK)) is UNAVAILABLE
    event = metrics_pb2.PostEventRequest(title="t", text="x")
    assert code_of(lambda: stub.PostEvent(event, timeout=SLACK)) is UNAVAILABLE


@pytest.mark.parametrize("length", [0, 201])
def test_a_title_out_of_range_is_refused_with_the_range(
    services: InProcessServices, metrics: MemoryMetrics, length: int
) -> None:
    event = metrics_pb2.PostEventRequest(title="t" * length, text="x")
    message = details_of(lambda: metrics_service(services).PostEvent(event, timeout=SLACK), INVALID)
    assert message == f"an event's title has {length} characters; give 1 to 200"
    assert metrics.events == []


def test_an_event_is_posted_with_its_tags(services: InProcessServices, metrics: MemoryMetrics) -> None:
    event = metrics_pb2.PostEventRequest(title="t" * 200, text="x", tags=["team:data"])
    metrics_service(services).PostEvent(event, timeout=SLACK)
    (posted,) = metrics.events
    assert (posted.title, posted.text, tuple(posted.tags)) == ("t" * 200, "x", ("team:data",))


# Applier.


def applier(services: InProcessServices) -> Any:
    return applier_pb2_grpc.ApplierServiceStub(services.channel("applier"))


def write(fence: int, resource: str = "brokers/1001", key: str = FOLLOWER_RATE) -> applier_pb2.ApplyRequest:
    edits = [applier_pb2.Edit(key=key, value="5")]
    ledger = types_pb2.LedgerEntry(keys={key: types_pb2.LedgerKey(written="5")}, term=fence)
    change = applier_pb2.Change(resource=resource, edits=edits, ledger=ledger)
    return applier_pb2.ApplyRequest(fence=fence, changes=[change])


def test_changes_of_the_newest_term_are_applied_with_one_outcome_each(services: InProcessServices) -> None:
    fence = services.electorate.begin_term()
    services.cluster.refused[ConfigResource.broker(1002)] = "not now; try again"
    request = write(fence)
    request.changes.extend(write(fence, "brokers/1002").changes)
    outcomes = applier(services).Apply(request, timeout=SLACK).outcomes
    assert [(o.resource, o.status, o.reason) for o in outcomes] == [
        ("brokers/1001", types_pb2.Outcome.STATUS_APPLIED, ""),
        ("brokers/1002", types_pb2.Outcome.STATUS_REFUSED, "not now; try again"),
    ]
    assert services.cluster.configs[ConfigResource.broker(1001)] == {FOLLOWER_RATE: "5"}


def test_an_outdated_term_writes_nothing_and_gets_the_leaders_address(services: InProcessServices) -> None:
    old = services.electorate.begin_term()
    services.electorate.begin_term("10.0.0.7:4003")
    failed = failure(lambda: applier(services).Apply(write(old), timeout=SLACK))
    assert failed.code() is NOT_LEADER
    assert "term 1 is over" in failed.details()
    assert ("leader-address", "10.0.0.7:4003") in [(m.key, m.value) for m in failed.trailing_metadata()]
    assert services.cluster.writes == []


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (write(1, key="log.retention.ms"), "config key 'log.retention.ms' is not a throttle key"),
        (
            write(1, resource="delegation/x"),
            "resource 'delegation/x' is neither `brokers/<id>` nor `topics/<name>`",
        ),
        (
            write(1, resource="users/admin"),
            "users/admin has the keys follower.replication.throttled.rate; give each",
        ),
    ],
)
def test_a_write_of_an_unmanaged_config_is_refused(
    services: InProcessServices, request_: applier_pb2.ApplyRequest, message: str
) -> None:
    services.electorate.begin_term()
    (outcome,) = applier(services).Apply(request_, timeout=SLACK).outcomes
    assert outcome.status == types_pb2.Outcome.STATUS_REFUSED and message in outcome.reason
    assert services.cluster.writes == []


@pytest.mark.parametrize("fence", [0, -1])
def test_a_write_without_a_fence_is_refused(services: InProcessServices, fence: int) -> None:
    message = details_of(lambda: applier(services).Apply(write(fence), timeout=SLACK), INVALID)
    assert f"fence {fence} is not > 0; pass the fence of the deciding term" in message


def test_a_request_quota_is_set_listed_audited_and_removed(services: InProcessServices) -> None:
    stub = admin(services)
    quotas = [
        admin_pb2.RequestQuota(user="anna", client_id="", request_rate=100),
        admin_pb2.RequestQuota(user="", request_rate=1_000_000),
    ]
    for quota in quotas:
        assert stub.SetRequestQuota(admin_pb2.SetRequestQuotaRequest(quota=quota), timeout=SLACK).quota == quota
    listed = stub.ListRequestQuotas(admin_pb2.ListRequestQuotasRequest(), timeout=SLACK)
    assert list(listed.quotas) == quotas[::-1]
    removal = admin_pb2.RemoveRequestQuotaRequest(user="anna", client_id="")
    stub.RemoveRequestQuota(removal, timeout=SLACK)
    expected = "no request quota is set for user anna, default client id; ListRequestQuotas shows the existing ones"
    assert details_of(lambda: stub.RemoveRequestQuota(removal, timeout=SLACK), MISSING) == expected
    records = stub.ListAuditRecords(admin_pb2.ListAuditRecordsRequest(), timeout=SLACK).records
    kind = admin_pb2.AuditRecord
    assert [(record.action, record.result) for record in records] == [
        (kind.ACTION_REMOVE_REQUEST_QUOTA, "user anna, default client id"),
        (kind.ACTION_SET_REQUEST_QUOTA, "default user: 1000000 requests/s"),
        (kind.ACTION_SET_REQUEST_QUOTA, "user anna, default client id: 100 requests/s"),
    ]


def test_request_quotas_are_unavailable_without_the_store(services: InProcessServices) -> None:
    services.request_quotas.unavailable(True)
    stub, quota = admin(services), admin_pb2.RequestQuota(user="anna", request_rate=1)
    for call in (
        lambda: stub.ListRequestQuotas(admin_pb2.ListRequestQuotasRequest(), timeout=SLACK),
        lambda: stub.SetRequestQuota(admin_pb2.SetRequestQuotaRequest(quota=quota), timeout=SLACK),
        lambda: stub.RemoveRequestQuota(admin_pb2.RemoveRequestQuotaRequest(user="anna"), timeout=SLACK),
    ):
        assert code_of(call) is UNAVAILABLE
