"""What comes to the gRPC door and should not: the right status, a sentence with the fix, and nothing is changed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.v1 import admin_pb2, admin_pb2_grpc, planner_pb2, planner_pb2_grpc, types_pb2
from autothrottle.wire.requests import MAX_REASON
from tests import builders
from tests.builders import eventually, mb
from tests.services.house import BROKERS, House

SECONDS = 60
Code = grpc.StatusCode
ADMIN = "/autothrottle.v1.AdminService/"
STRANGE = b"\xc0\x3e\x01"
"""A field of number 1000: 1."""


@pytest.fixture(scope="module")
def shared() -> Iterator[House]:
    metrics = MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in BROKERS))
    with House(metrics, metrics) as house:
        house.start_planners()
        eventually(lambda: house.planners[0].state().last_cycle)
        yield house


@pytest.fixture
def house(shared: House) -> House:
    shared.overrides.set_override(None, mb(7), True)
    shared.overrides.set_override(1001, mb(8), False)
    return shared


def standing(house: House) -> dict[int | None, tuple[int, bool]]:
    found = house.overrides.read_overrides()
    cluster = [] if found.cluster is None else [(None, found.cluster)]
    return {b: (o.rate, o.autoremove) for b, o in (*cluster, *found.brokers.items())}


STANDING = {None: (mb(7), True), 1001: (mb(8), False)}


def refusal(house: House, method: str, request: bytes, service: str = "admin") -> tuple[grpc.StatusCode, str]:
    """The (code, message) that the bytes of a request are answered with."""
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(house.address(service), options=options) as channel:
        call: Any = channel.unary_unary(method)
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=SECONDS)
        failed: Any = caught.value
        return failed.code(), failed.details()


def setting(**fields: Any) -> bytes:
    return admin_pb2.SetOverrideRequest(override=admin_pb2.Override(**fields)).SerializeToString()


LARGEST = 2**63 - 1
BAD: dict[str, tuple[str, bytes, str]] = {
    "no rate": ("SetOverride", b"", "override rate 0 bytes/s is outside of 1..9223372036854775807"),
    "rate zero": ("SetOverride", setting(broker_id=1001), "override rate 0 bytes/s is outside of"),
    "rate negative": ("SetOverride", setting(rate_bytes_per_second=-1), "override rate -1 bytes/s is outside of"),
    "broker zero": ("SetOverride", setting(rate_bytes_per_second=1, broker_id=0), "broker id 0 is outside of"),
    "broker negative": ("SetOverride", setting(rate_bytes_per_second=1, broker_id=-5), "broker id -5 is outside of"),
    "unknown field": ("SetOverride", setting(rate_bytes_per_second=1) + STRANGE, "unknown fields (numbers 1000)"),
    "unknown field inside": (
        "SetOverride",
        b"\x0a\x05\x10\x01" + STRANGE,
        "autothrottle.v1.Override has unknown fields (numbers 1000); leave them out",
    ),
    "10 MB": (
        "SetOverride",
        setting(rate_bytes_per_second=1) + b"\xc2\x3e\x80\xad\xe2\x04" + bytes(10_000_000),
        "1000",
    ),
    "no message": ("SetOverride", b"\xff" * 20, "20 bytes that cannot be read. Fix: generate the client"),
    "cut off": ("SetOverride", setting(rate_bytes_per_second=LARGEST)[:-1], "cannot be read. Fix: "),
    "text": ("SetOverride", b'{"override":{}}', "Fix: "),
    "removal of broker zero": ("RemoveOverride", b"\x08\x00", "broker id 0 is outside of 1..2147483647; give the id"),
    "removal with an unknown field": ("RemoveOverride", b"\x08\xe9\x07" + STRANGE, "unknown fields"),
    "removal that says what it is not": (
        "RemoveOverride",
        setting(rate_bytes_per_second=1),
        "unknown fields (numbers 1)",
    ),
    "shown of broker zero": ("GetOverride", b"\x08\x00", "broker id 0 is outside of"),
    "shown with an unknown field": ("GetOverride", STRANGE, "unknown fields"),
    "etag that is none": (
        "SetOverride",
        setting(rate_bytes_per_second=1, etag='"5"'),
        "is none: give the etag of an answer as it is",
    ),
    "removal with an etag that is none": ("RemoveOverride", b"\x12\x01x", "give the etag of an answer as it is"),
    "audit of too many": ("ListAuditRecords", b"\x08\xe9\x07", "limit 1001 is outside of 1..1000"),
    "audit with an unknown field": ("ListAuditRecords", STRANGE, "unknown fields"),
    "pause without a mode": ("Pause", b"", "pause mode 0 is neither MODE_KEEP"),
    "pause with an unknown mode": ("Pause", b"\x08\x07", "pause mode 7 is neither MODE_KEEP"),
    "pause with a reason of two lines": ("Pause", b"\x08\x01\x12\x03a\nb", "give at most 1000 printable ones"),
    "pause with an unknown field": ("Pause", b"\x08\x01" + STRANGE, "unknown fields"),
    "resume with an unknown field": ("Resume", STRANGE, "unknown fields"),
    "list with an unknown field": ("ListOverrides", STRANGE, "unknown fields"),
    "state with an unknown field": ("GetClusterState", STRANGE, "unknown fields"),
    "estimate within more time than there is": (
        "EstimateReassignment",
        admin_pb2.EstimateReassignmentRequest(
            partitions=[types_pb2.PartitionTarget(topic="t1", replicas=[1001])], within=Duration(seconds=2**62)
        ).SerializeToString(),
        "within is no time",
    ),
    "cycle with an unknown field": ("RequestCycle", STRANGE, "unknown fields"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_request_that_is_wrong_is_refused_names_it_and_changes_nothing(house: House, name: str) -> None:
    method, request, said = BAD[name]
    code, message = refusal(house, ADMIN + method, request)
    assert (code, said in message) == (Code.INVALID_ARGUMENT, True), message
    assert standing(house) == STANDING
    assert house.pauses.read_pause() is None


@pytest.mark.parametrize(
    "method", [ADMIN + "SetOverrides", "/autothrottle.v1.AdminServices/SetOverride", "/x", "/autothrottle.v1.Admin/"]
)
def test_a_method_that_there_is_not_is_unimplemented_and_says_how_to_find_one(house: House, method: str) -> None:
    code, message = refusal(house, method, setting(rate_bytes_per_second=1))
    assert (code, f"{method} is unknown here. Fix: " in message) == (Code.UNIMPLEMENTED, True), message
    assert standing(house) == STANDING


def test_a_message_beyond_the_limit_is_exhausting_and_changes_nothing(house: House) -> None:
    request = setting(rate_bytes_per_second=1) + b"\xc2\x3e\x80\x80\x80\x28" + bytes(80 * 1024 * 1024)
    code, message = refusal(house, ADMIN + "SetOverride", request)
    assert (code, "larger" in message) == (Code.RESOURCE_EXHAUSTED, True), message
    assert standing(house) == STANDING


@pytest.mark.parametrize("reason", ["x" * (MAX_REASON + 1), "x" * 10_000_000, "a\nERROR all is lost", "\x1b[2J"])
def test_a_reason_that_would_spoil_the_log_is_refused(house: House, reason: str) -> None:
    request = planner_pb2.RunCycleRequest(reason=reason).SerializeToString()
    code, message = refusal(house, "/autothrottle.v1.PlannerService/RunCycle", request, "planner-1")
    assert (code, "give at most 1000 printable ones" in message) == (Code.INVALID_ARGUMENT, True), message
    assert len(message) < 300


def test_a_reason_of_the_largest_length_is_taken(house: House) -> None:
    stub: Any = planner_pb2_grpc.PlannerServiceStub(house.channel("planner-1"))
    stub.RunCycle(planner_pb2.RunCycleRequest(reason="\u00e4" * MAX_REASON), timeout=SECONDS)


def test_a_call_in_the_wrong_form_is_an_error_and_changes_nothing(house: House) -> None:
    """A method of one request and one answer, called as a stream of requests."""
    with grpc.insecure_channel(house.address("admin")) as channel:
        call: Any = channel.stream_unary(ADMIN + "SetOverride")
        with pytest.raises(grpc.RpcError) as caught:
            call(iter([]), timeout=SECONDS)
    failed: Any = caught.value
    assert failed.code() is not Code.OK
    assert standing(house) == STANDING


def test_clients_that_say_nothing_hold_up_nobody(house: House) -> None:
    host, port = house.address("admin").rsplit(":", 1)
    silent = [socket.create_connection((host, int(port)), timeout=SECONDS) for _ in range(100)]
    for connection in silent[:50]:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    stub: Any = admin_pb2_grpc.AdminServiceStub(house.channel("admin"))
    assert stub.GetOverride(admin_pb2.GetOverrideRequest(broker_id=1001), timeout=SECONDS)
    for connection in silent:
        connection.close()


def test_http_of_the_first_version_is_no_call(house: House) -> None:
    host, port = house.address("admin").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        connection.sendall(b"POST /throttle?rate=5 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        while connection.recv(4096):
            pass
    assert standing(house) == STANDING
