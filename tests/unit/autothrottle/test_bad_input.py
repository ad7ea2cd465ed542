"""Invalid gRPC requests get the right status and a message with the fix, and change nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from autothrottle.adapters.memory import MemoryMetrics
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.messages import MAX_REASON
from autothrottle.v1 import admin_pb2, admin_pb2_grpc, planner_pb2, planner_pb2_grpc, types_pb2
from tests import builders
from tests.builders import eventually, mb
from tests.in_process_services import BROKERS, InProcessServices

SECONDS = 60
Code = grpc.StatusCode
ADMIN = "/autothrottle.v1.AdminService/"
UNKNOWN_FIELD = b"\xc0\x3e\x01"
"""Encoded field number 1000 with value 1."""


@pytest.fixture(scope="module")
def shared() -> Iterator[InProcessServices]:
    metrics = MemoryMetrics(*(builders.load(b, outbound=mb(20), inbound=mb(10)) for b in BROKERS))
    with InProcessServices(metrics, metrics) as services:
        services.start_planners()
        eventually(lambda: services.planners[0].state().last_cycle)
        yield services


@pytest.fixture
def services(shared: InProcessServices) -> InProcessServices:
    shared.overrides.set_override(None, StoredOverride(mb(7), autoremove=True))
    shared.overrides.set_override(1001, StoredOverride(mb(8)))
    return shared


def current(services: InProcessServices) -> dict[int | None, tuple[int, bool]]:
    found = services.overrides.read_overrides()
    cluster = [] if found.cluster is None else [(None, found.cluster)]
    return {b: (o.rate, o.autoremove) for b, o in (*cluster, *found.brokers.items())}


CURRENT = {None: (mb(7), True), 1001: (mb(8), False)}


def refusal(
    services: InProcessServices, method: str, request: bytes, service: str = "admin"
) -> tuple[grpc.StatusCode, str]:
    """Send the bytes of a request; return the (code, message) of the error."""
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(services.address(service), options=options) as channel:
        call: Any = channel.unary_unary(method)
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=SECONDS)
        failed: Any = caught.value
        return failed.code(), failed.details()


def setting(**fields: Any) -> bytes:
    return admin_pb2.SetOverrideRequest(override=admin_pb2.Override(**fields)).SerializeToString()


def request_quota(**fields: Any) -> bytes:
    return admin_pb2.SetRequestQuotaRequest(quota=admin_pb2.RequestQuota(**fields)).SerializeToString()


LARGEST = 2**63 - 1
BAD: dict[str, tuple[str, bytes, str]] = {
    "no rate": ("SetOverride", b"", "override rate 0 bytes/s is outside of 1..1000000000000"),
    "rate zero": ("SetOverride", setting(broker_id=1001), "override rate 0 bytes/s is outside of"),
    "rate negative": ("SetOverride", setting(rate_bytes_per_second=-1), "override rate -1 bytes/s is outside of"),
    "broker negative": ("SetOverride", setting(rate_bytes_per_second=1, broker_id=-5), "broker id -5 is outside of"),
    "unknown field": ("SetOverride", setting(rate_bytes_per_second=1) + UNKNOWN_FIELD, "unknown fields (numbers 1000)"),
    "unknown field inside": (
        "SetOverride",
        b"\x0a\x05\x10\x01" + UNKNOWN_FIELD,
        "autothrottle.v1.Override has unknown fields (numbers 1000); omit them",
    ),
    "not a message": ("SetOverride", b"\xff" * 20, "20 bytes that cannot be decoded. Fix: generate the client"),
    "truncated": ("SetOverride", setting(rate_bytes_per_second=LARGEST)[:-1], "cannot be decoded. Fix: "),
    "text": ("SetOverride", b'{"override":{}}', "Fix: "),
    "catch-up without a broker": ("StartCatchUp", b"", "broker_id is absent; give a broker's id"),
    "end of a catch-up without a broker": ("StopCatchUp", b"", "broker_id is absent; give a broker's id"),
    "removal with an unknown field": ("RemoveOverride", b"\x08\xe9\x07" + UNKNOWN_FIELD, "unknown fields"),
    "removal with the fields of another request": (
        "RemoveOverride",
        setting(rate_bytes_per_second=1),
        "unknown fields (numbers 1)",
    ),
    "get with an unknown field": ("GetOverride", UNKNOWN_FIELD, "unknown fields"),
    "malformed etag": (
        "SetOverride",
        setting(rate_bytes_per_second=1, etag='"5"'),
        "is invalid: give the etag of a response, or none",
    ),
    "removal with a malformed etag": ("RemoveOverride", b"\x12\x01x", "give the etag of a response"),
    "request quota without a user and a client id": (
        "SetRequestQuota",
        request_quota(request_rate=1),
        "a request quota needs a user, a client id or both",
    ),
    "request quota without a rate": ("SetRequestQuota", request_quota(user="a"), "request rate 0 is outside of 1.."),
    "request quota of an invalid client id": (
        "SetRequestQuota",
        request_quota(client_id="ö", request_rate=1),
        "client id 'ö' is not valid; give 1 to 128 printable ASCII characters",
    ),
    "request quota with an unknown field": ("SetRequestQuota", UNKNOWN_FIELD, "unknown fields"),
    "removal of no request quota": ("RemoveRequestQuota", b"", "a request quota needs a user, a client id or both"),
    "audit limit too large": ("ListAuditRecords", b"\x08\xe9\x07", "limit 1001 is outside of 1..1000"),
    "audit with an unknown field": ("ListAuditRecords", UNKNOWN_FIELD, "unknown fields"),
    "pause without a mode": ("Pause", b"", "pause mode 0 is neither MODE_KEEP"),
    "pause with an unknown mode": ("Pause", b"\x08\x07", "pause mode 7 is neither MODE_KEEP"),
    "pause with a reason of two lines": ("Pause", b"\x08\x01\x12\x03a\nb", "give at most 1000 printable ones"),
    "pause with an unknown field": ("Pause", b"\x08\x01" + UNKNOWN_FIELD, "unknown fields"),
    "resume with an unknown field": ("Resume", UNKNOWN_FIELD, "unknown fields"),
    "list with an unknown field": ("ListOverrides", UNKNOWN_FIELD, "unknown fields"),
    "state with an unknown field": ("GetClusterState", UNKNOWN_FIELD, "unknown fields"),
    "estimate within too long a time": (
        "EstimateReassignment",
        admin_pb2.EstimateReassignmentRequest(
            partitions=[types_pb2.PartitionTarget(topic="t1", replicas=[1001])], within=Duration(seconds=2**62)
        ).SerializeToString(),
        "within is not a valid duration",
    ),
    "cycle with an unknown field": ("RequestCycle", UNKNOWN_FIELD, "unknown fields"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_invalid_request_is_refused_with_its_value_and_changes_nothing(
    services: InProcessServices, name: str
) -> None:
    method, request, expected = BAD[name]
    code, message = refusal(services, ADMIN + method, request)
    assert (code, expected in message) == (Code.INVALID_ARGUMENT, True), message
    assert current(services) == CURRENT
    assert services.pauses.read_pause() is None


@pytest.mark.parametrize(
    "method", [ADMIN + "SetOverrides", "/autothrottle.v1.AdminServices/SetOverride", "/x", "/autothrottle.v1.Admin/"]
)
def test_an_unknown_method_is_unimplemented_and_the_error_has_a_fix(services: InProcessServices, method: str) -> None:
    code, message = refusal(services, method, setting(rate_bytes_per_second=1))
    assert (code, f"{method} is unknown here. Fix: " in message) == (Code.UNIMPLEMENTED, True), message
    assert current(services) == CURRENT


@pytest.mark.parametrize(
    ("size", "words"), [(5_000_000, "more than the limit of 65536"), (80 * 1024 * 1024, "larger than max")]
)
def test_a_message_above_the_size_limit_is_refused_and_changes_nothing(
    services: InProcessServices, size: int, words: str
) -> None:
    request = setting(rate_bytes_per_second=1) + b"\xc2\x3e\x80\x80\x80\x28" + bytes(size)
    code, message = refusal(services, ADMIN + "SetOverride", request)
    assert (code, words in message) == (Code.RESOURCE_EXHAUSTED, True), message
    assert current(services) == CURRENT


@pytest.mark.parametrize("reason", ["x" * (MAX_REASON + 1), "x" * 60_000, "a\nERROR forged line", "\x1b[2J"])
def test_a_reason_unfit_for_the_log_is_refused(services: InProcessServices, reason: str) -> None:
    request = planner_pb2.RunCycleRequest(reason=reason).SerializeToString()
    code, message = refusal(services, "/autothrottle.v1.PlannerService/RunCycle", request, "planner-1")
    assert (code, "give at most 1000 printable ones" in message) == (Code.INVALID_ARGUMENT, True), message
    assert len(message) < 300


def test_a_reason_of_the_maximum_length_is_accepted(services: InProcessServices) -> None:
    stub: Any = planner_pb2_grpc.PlannerServiceStub(services.channel("planner-1"))
    stub.RunCycle(planner_pb2.RunCycleRequest(reason="\u00e4" * MAX_REASON), timeout=SECONDS)


def test_a_unary_method_called_as_a_stream_fails_and_changes_nothing(services: InProcessServices) -> None:
    """SetOverride takes one request; the test sends a stream of requests."""
    with grpc.insecure_channel(services.address("admin")) as channel:
        call: Any = channel.stream_unary(ADMIN + "SetOverride")
        with pytest.raises(grpc.RpcError) as caught:
            call(iter([]), timeout=SECONDS)
    failed: Any = caught.value
    assert failed.code() is not Code.OK
    assert current(services) == CURRENT


def test_silent_connections_do_not_delay_other_clients(services: InProcessServices) -> None:
    host, port = services.address("admin").rsplit(":", 1)
    silent = [socket.create_connection((host, int(port)), timeout=SECONDS) for _ in range(100)]
    for connection in silent[:50]:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    stub: Any = admin_pb2_grpc.AdminServiceStub(services.channel("admin"))
    assert stub.GetOverride(admin_pb2.GetOverrideRequest(broker_id=1001), timeout=SECONDS)
    for connection in silent:
        connection.close()


def test_an_http_1_request_changes_nothing(services: InProcessServices) -> None:
    host, port = services.address("admin").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        connection.sendall(b"POST /throttle?rate=5 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
        while connection.recv(4096):
            pass
    assert current(services) == CURRENT
