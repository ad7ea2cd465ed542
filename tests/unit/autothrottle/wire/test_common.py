"""Times, errors, metadata, pauses and reassignments survive the wire; malformed values are refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.core import errors
from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Flow, FlowProgress, Progress, TopicProgress
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.errors import (
    AutothrottleError,
    Incomplete,
    Invalid,
    Missing,
    NotLeader,
    Unauthenticated,
    Unavailable,
    UnknownToken,
    Unready,
)
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.core.operators.submission import MAX_PARTITIONS, Targets
from autothrottle.core.records import Basis, Decision, Pause, PauseMode, Reason
from autothrottle.messages import (
    CODES,
    LEADER_ADDRESS,
    partitions_to_messages,
    refusals_from_messages,
    refusals_to_messages,
    targets_to_messages,
)
from autothrottle.v1 import admin_pb2, discovery_pb2, types_pb2
from autothrottle.v1.admin_pb2 import ListReassignmentsResponse
from autothrottle.wire.common import (
    MAX_MESSAGE_BYTES,
    MAX_SNAPSHOT_PARTITIONS,
    SAME_NAMES,
    caller,
    code_of,
    expire_time_from_message,
    forwarded_metadata,
    partitions_from_messages,
    partitions_from_topics,
    partitions_to_topics,
    pause_mode_from_number,
    reassignments_to_list,
    targets_from_messages,
    to_status,
)
from tests import builders
from tests.builders import NOON
from tests.unit.autothrottle.wire import strategies
from tests.unit.autothrottle.wire.strategies import int32, text, topic_names

# Times.


@given(strategies.times)
def test_times_round_trip_to_the_microsecond_in_utc(time: datetime) -> None:
    received = expire_time_from_message(SAME_NAMES.to_message(admin_pb2.Override, override(time)))
    assert received == time
    assert received.tzinfo is UTC


def test_times_of_other_zones_keep_their_instant() -> None:
    time = datetime(2026, 11, 2, 13, 30, tzinfo=timezone(timedelta(hours=1)))
    message = SAME_NAMES.to_message(admin_pb2.Override, override(time))
    assert expire_time_from_message(message) == datetime(2026, 11, 2, 12, 30, tzinfo=UTC)


def override(expire_time: datetime) -> StoredOverride:
    return StoredOverride(1, expire_time=expire_time)


# Errors.


def error_tree(root: type[AutothrottleError] = AutothrottleError) -> list[type[AutothrottleError]]:
    children = [kind for kind in root.__subclasses__() if kind.__module__ == errors.__name__]
    return [root, *(kind for child in children for kind in error_tree(child))]


def test_code_table_contains_the_errors_of_the_tree_and_special_cases_have_the_code_of_their_parent() -> None:
    special = {Unready: Unavailable, UnknownToken: Unauthenticated}
    assert set(CODES) == set(error_tree()) - special.keys()
    assert len(CODES) == 9
    for kind, parent in special.items():
        assert code_of(kind("x")) is CODES[parent]


def test_every_error_has_a_distinct_code() -> None:
    assert len(set(CODES.values())) == len(CODES)


@pytest.mark.parametrize("address", ["10.0.0.7:4003", ""])
def test_not_leader_sends_the_leader_address(address: str) -> None:
    assert to_status(NotLeader("another planner leads", address))[2] == (
        ((LEADER_ADDRESS, address),) if address else ()
    )


def test_subclass_gets_the_code_of_its_nearest_ancestor() -> None:
    class Narrower(Invalid):
        pass

    assert to_status(Narrower("x"))[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("character", ["x", "%", "ü", "\U0001f600", "\udc80"])
def test_long_error_messages_are_cut_to_fit_into_a_header(character: str) -> None:
    _, message, _ = to_status(Incomplete(character * 20_000))
    encoded = sum(1 if c == "x" else 3 * len(c.encode(errors="replace")) for c in message.removesuffix(" ... (cut)"))
    assert MAX_MESSAGE_BYTES - 12 <= encoded <= MAX_MESSAGE_BYTES


def test_message_of_the_maximum_length_is_not_cut() -> None:
    assert to_status(Missing("y" * MAX_MESSAGE_BYTES))[1] == "y" * MAX_MESSAGE_BYTES


# Metadata of calls.

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def test_http_client_and_trace_context_are_forwarded() -> None:
    found = forwarded_metadata("10.0.0.9:5000", {"traceparent": PARENT, "tracestate": "a=1", "cookie": "secret"})
    assert found == (("forwarded-for", "10.0.0.9:5000"), ("traceparent", PARENT), ("tracestate", "a=1"))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"traceparent": ""},
        {"traceparent": PARENT.upper()},
        {"traceparent": PARENT + "x"},
        {"traceparent": f"{PARENT}\n"},
        {"tracestate": "a=1"},
    ],
)
def test_invalid_trace_context_is_not_forwarded(headers: dict[str, str]) -> None:
    assert forwarded_metadata("10.0.0.9:5000", headers) == (("forwarded-for", "10.0.0.9:5000"),)


@pytest.mark.parametrize("state", ["", "a=\u00e4", "a=1\r\nb: 2", "x" * 513])
def test_invalid_trace_state_is_dropped_from_the_trace_context(state: str) -> None:
    assert forwarded_metadata("", {"traceparent": PARENT, "tracestate": state}) == (("traceparent", PARENT),)


def test_caller_without_a_gateway_is_the_peer() -> None:
    assert caller("ipv4:10.0.0.1:1", []) == "ipv4:10.0.0.1:1"
    assert caller("ipv4:10.0.0.1:1", [("user-agent", "x"), ("forwarded-for-bin", b"x")]) == "ipv4:10.0.0.1:1"


@pytest.mark.parametrize("claimed", ["", "x\nERROR forged line", "x" * 513, "\x1b[2J"])
def test_forwarded_client_that_would_corrupt_the_log_is_ignored(claimed: str) -> None:
    assert caller("ipv4:10.0.0.1:1", [("forwarded-for", claimed)]) == "ipv4:10.0.0.1:1"


def test_non_ascii_names_are_escaped() -> None:
    assert forwarded_metadata("jürgen at 10.0.0.9:5000", {}) == (("forwarded-for", r"j\xfcrgen at 10.0.0.9:5000"),)
    assert caller("ipv4:10.0.0.1:1", [], "jürgen") == r"j\xfcrgen at ipv4:10.0.0.1:1"


# Pauses.


@pytest.mark.parametrize("mode", PauseMode)
def test_every_pause_mode_maps_to_the_proto_name(mode: PauseMode) -> None:
    assert types_pb2.Pause.Mode.Name(SAME_NAMES.to_message(types_pb2.Pause, Pause(mode)).mode) == f"MODE_{mode.name}"


@pytest.mark.parametrize("number", [0, 3])
def test_unknown_pause_mode_is_refused(number: int) -> None:
    with pytest.raises(Invalid, match=rf"pause mode {number} is neither MODE_KEEP .* nor MODE_CLEAR"):
        pause_mode_from_number(number)


# Partitions and reassignments.

partition_ids = st.tuples(topic_names, int32)
replicas = st.lists(int32, min_size=1, max_size=4, unique=True).map(tuple)


@given(st.dictionaries(partition_ids, replicas, min_size=1, max_size=9))
def test_targets_round_trip_in_order(sent: Targets) -> None:
    received = targets_from_messages(list(targets_to_messages(sent)))
    assert received == sent and list(received) == list(sent)


@given(st.lists(partition_ids, unique=True, min_size=1, max_size=9))
def test_partitions_round_trip(sent: list[TopicPartition]) -> None:
    assert partitions_from_messages(list(partitions_to_messages(sent))) == tuple(sent)
    assert set(partitions_from_topics(list(partitions_to_topics(sent)))) == set(sent)
    assert partitions_from_topics([]) == ()


@given(st.dictionaries(partition_ids, text, max_size=4))
def test_refusals_round_trip(refused: dict[TopicPartition, str]) -> None:
    assert refusals_from_messages(refusals_to_messages(refused)) == refused


def test_targets_that_no_cluster_accepts_are_refused() -> None:
    with pytest.raises(Invalid, match="t-0 has an empty list of replicas"):
        targets_from_messages([types_pb2.PartitionTarget(topic="t")])
    with pytest.raises(Invalid, match="partition t-0 is named twice"):
        partitions_from_messages([types_pb2.TopicPartition(topic="t")] * 2)
    with pytest.raises(Invalid, match="partition t-4 is named twice"):
        partitions_from_topics([discovery_pb2.TopicPartitions(topic="t", partitions=[4, 4])])


def test_too_many_partitions_are_refused_before_they_are_parsed() -> None:
    many = discovery_pb2.TopicPartitions(topic="t", partitions=[0] * (MAX_SNAPSHOT_PARTITIONS + 1))
    with pytest.raises(Invalid, match="100001 partitions are named; name at most 100000"):
        partitions_from_topics([many])
    with pytest.raises(Invalid, match="10001 partitions are named; name at most 10000"):
        partitions_from_messages([types_pb2.TopicPartition()] * (MAX_PARTITIONS + 1))


def test_reassignment_list_has_brokers_and_copy_count_of_each_topic() -> None:
    snapshot = builders.snapshot(
        builders.reassignment("a", {4: (1001, (1001,), (), (1002,))}),
        builders.reassignment(
            "b",
            {
                0: (1001, (1001, 1002), (1004, 1003), (1001,)),
                1: (1001, (1001, 1002, 1003), (1003,), (1002,)),
            },
        ),
    )
    a, b = reassignments_to_list(snapshot).topics
    assert (a.topic, list(a.partitions), list(a.adding_replicas), list(a.removing_replicas)) == ("a", [4], [], [1002])
    assert (b.topic, list(b.partitions), list(b.adding_replicas)) == ("b", [0, 1], [1003, 1004])
    assert list(b.removing_replicas) == [1001, 1002]
    assert (a.partitions_to_copy, b.partitions_to_copy) == (0, 1)


def test_reassignment_list_has_progress_of_each_topic() -> None:
    rows: dict[int, builders.Row] = {0: (1001, (1001,), (1004,), ())}
    flows = {Flow(1001, 1004): FlowProgress(30, 5, 70, NOON, NOON - timedelta(minutes=3))}
    progress = Progress(flows, {"t": TopicProgress(30, 70)}, at=NOON, eta=NOON + timedelta(minutes=7))
    known, other = builders.reassignment("t", rows), builders.reassignment("u", rows)
    listed = reassignments_to_list(builders.snapshot(known, other, progress=progress))
    first, second = ListReassignmentsResponse.FromString(listed.SerializeToString()).topics
    assert (first.topic, first.bytes_copied, first.bytes_left) == ("t", 30, 70)
    assert not second.HasField("bytes_left") and not second.HasField("bytes_copied")
    assert listed.eta.ToDatetime(tzinfo=NOON.tzinfo) == NOON + timedelta(minutes=7)
    unknown = reassignments_to_list(builders.snapshot(known))
    assert not unknown.topics[0].HasField("bytes_left") and not unknown.HasField("eta")


def test_current_throttle_of_zero_differs_from_none() -> None:
    sent = SAME_NAMES.to_message(types_pb2.Decision, builders.decision(current=0))
    assert SAME_NAMES.from_message(Decision, sent).current_rate_bytes_per_second == 0


@pytest.mark.parametrize("role", ReplicaRole)
@pytest.mark.parametrize("reason", Reason)
def test_every_role_and_reason_maps_to_the_proto_name(role: ReplicaRole, reason: Reason) -> None:
    message = SAME_NAMES.to_message(types_pb2.Decision, builders.decision(role=role, reason=reason))
    assert types_pb2.ReplicaRole.Name(message.role) == f"REPLICA_ROLE_{role.name}"
    assert types_pb2.Decision.Reason.Name(message.reason) == f"REASON_{reason.name}"


@pytest.mark.parametrize("basis", Basis)
def test_every_basis_maps_to_the_proto_name(basis: Basis) -> None:
    message = SAME_NAMES.to_message(types_pb2.Decision, replace(builders.decision(), basis=basis))
    assert types_pb2.Decision.Basis.Name(message.basis) == f"BASIS_{basis.name}"


def test_decision_with_an_unknown_basis_is_refused() -> None:
    message = SAME_NAMES.to_message(types_pb2.Decision, builders.decision())
    message.basis = 99  # type: ignore[assignment]
    with pytest.raises(Invalid, match=r"Decision\.basis 99 is unknown"):
        SAME_NAMES.from_message(Decision, message)


def test_decision_without_a_role_is_refused() -> None:
    message = SAME_NAMES.to_message(types_pb2.Decision, builders.decision())
    message.ClearField("role")
    with pytest.raises(Invalid, match=r"Decision\.role 0 is unknown"):
        SAME_NAMES.from_message(Decision, message)
