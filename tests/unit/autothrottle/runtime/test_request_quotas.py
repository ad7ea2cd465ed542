"""Request quotas over real gRPC: who is delayed, and what the others notice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from autothrottle.adapters.credentials import Tokens
from autothrottle.adapters.memory import MemoryAuditedMap, MemoryMetrics
from autothrottle.adapters.zookeeper.map_codecs import REQUEST_QUOTAS
from autothrottle.core.access import Caller, Role
from autothrottle.core.exported_metrics import REQUEST_RATE, REQUEST_THROTTLE_TIME
from autothrottle.core.request_quotas import RequestQuotaEntity
from autothrottle.runtime import call_limits
from autothrottle.runtime.access import Access, has_request_quota
from autothrottle.runtime.call_limits import THROTTLE_TIME, LimitReached, RequestQuotas
from autothrottle.v1 import admin_pb2, admin_pb2_grpc
from autothrottle_client import AdminClient, Unavailable
from tests.builders import eventually
from tests.in_process_services import InProcessServices

SLACK = timedelta(seconds=60)
TOKENS = {name: name * 4 for name in ("anna", "bernd", "services")}
ANYONE = RequestQuotaEntity("", None)


@pytest.fixture
def access(tmp_path: Path) -> Access:
    file = tmp_path / "tokens"
    roles = {"anna": "operator", "bernd": "operator", "services": "service"}
    file.write_text("".join(f"{name} {token} {roles[name]}\n" for name, token in TOKENS.items()))
    return Access(tokens=Tokens(str(file)))


@pytest.fixture
def served(metrics: MemoryMetrics, access: Access) -> Iterator[InProcessServices]:
    with InProcessServices(metrics, metrics, access=access) as built:
        yield built


@pytest.fixture
def client(served: InProcessServices) -> Iterator[Callable[..., AdminClient]]:
    """Create clients of the admin service by the name of their token."""
    with ExitStack() as stack:
        yield lambda name, client_id="": stack.enter_context(
            AdminClient(served.address("admin"), SLACK, token=TOKENS[name], client_id=client_id)
        )


@dataclass
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


class Counted:
    """Quotas on a clock that stands still."""

    def __init__(self, **rates: int) -> None:
        self.clock, self.store = Clock(), MemoryAuditedMap(REQUEST_QUOTAS)
        self.quotas = RequestQuotas(self.clock)
        self.quotas.follow(self.store)
        for user, rate in rates.items():
            self.store.put(RequestQuotaEntity(user), rate)

    def delay(self, caller: Caller, client_id: str = "") -> float | None:
        """Count a request; None: no quota applies."""
        with self.quotas.reserved(caller, client_id) as throttle:
            return None if throttle is None else throttle.seconds


def test_without_quotas_no_response_says_anything_about_them(
    served: InProcessServices, client: Callable[..., AdminClient]
) -> None:
    anna = client("anna")
    for _ in range(50):
        anna.list_overrides()
    assert (anna.throttle_times.average, anna.throttle_times.maximum) == (timedelta(0), timedelta(0))
    assert not [*served.enforced_request_quotas.samples()]


def test_a_caller_above_its_quota_is_delayed_and_learns_for_how_long(
    served: InProcessServices, client: Callable[..., AdminClient]
) -> None:
    anna, bernd = client("anna"), client("bernd")
    anna.set_request_quota(20, "anna")
    begin = time.monotonic()
    for _ in range(40):
        anna.list_overrides()
    assert time.monotonic() - begin >= 40 / 20 - 1.1
    assert timedelta(milliseconds=40) <= anna.throttle_times.maximum <= timedelta(seconds=1)
    assert timedelta(0) < anna.throttle_times.average <= anna.throttle_times.maximum
    bernd.list_overrides()
    assert bernd.throttle_times.maximum == timedelta(0)
    found = {(s.metric, s.labels): s.value for s in served.enforced_request_quotas.samples()}
    assert found.keys() == {(REQUEST_RATE, ("anna", "")), (REQUEST_THROTTLE_TIME, ("anna", ""))}
    assert found[REQUEST_THROTTLE_TIME, ("anna", "")] > 0.01


def test_an_error_is_delayed_like_any_other_response(
    served: InProcessServices, client: Callable[..., AdminClient]
) -> None:
    """Otherwise a program that repeats a wrong request would not be limited."""
    anna = client("anna")
    anna.set_request_quota(1, "anna")
    anna.list_overrides()
    stub = admin_pb2_grpc.AdminServiceStub(served.channel("admin"))
    begin = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        request, token = admin_pb2.GetOverrideRequest(broker_id=1), f"Bearer {TOKENS['anna']}"
        stub.GetOverride(request, timeout=60, metadata=(("authorization", token),))
    assert time.monotonic() - begin > 0.5
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert 500 <= int(dict(error.trailing_metadata())[THROTTLE_TIME]) <= 1000


def test_requests_that_would_wait_for_more_than_a_second_are_refused(
    served: InProcessServices, client: Callable[..., AdminClient]
) -> None:
    """With many requests in progress at once, delays of one second each would let a caller exceed its quota."""
    client("bernd").set_request_quota(3, "anna")
    stub = admin_pb2_grpc.AdminServiceStub(served.channel("admin"))
    calls = [
        stub.ListOverrides.future(
            admin_pb2.ListOverridesRequest(), timeout=60, metadata=(("authorization", f"Bearer {TOKENS['anna']}"),)
        )
        for _ in range(30)
    ]
    codes = [call.code() for call in calls]
    assert 3 <= codes.count(grpc.StatusCode.OK) <= 10
    refused = next(call for call in calls if call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert "user anna has a request quota of 3 requests/s and so many requests in progress" in refused.details()
    assert "Fix: send fewer requests at a time" in refused.details()
    assert dict(refused.trailing_metadata())[THROTTLE_TIME] == "1000"


def test_services_and_health_are_exempt(served: InProcessServices, client: Callable[..., AdminClient]) -> None:
    services = client("services")
    services.set_request_quota(1, "")
    stub: Any = health_pb2_grpc.HealthStub(served.channel("admin"))
    metadata = (("authorization", f"Bearer {TOKENS['anna']}"), ("client-id", "health"))
    for _ in range(20):
        services.list_overrides()
        stub.Check(health_pb2.HealthCheckRequest(), timeout=60, metadata=metadata)
    assert services.throttle_times.maximum == timedelta(0)
    assert not [*served.enforced_request_quotas.samples()]


def test_a_header_does_not_make_a_caller_a_service() -> None:
    counted = Counted(anna=1)
    anna = Caller("anna", Role.OPERATOR)
    assert counted.delay(anna) == 0
    assert counted.delay(anna, "services") == 1
    assert counted.delay(Caller("services", Role.SERVICE)) is None
    assert counted.delay(Caller(role=Role.SERVICE)) is None  # over a unix socket


def test_callers_without_credentials_share_the_quota_of_anonymous() -> None:
    """A process without credentials gives every caller the role service, but nothing proves it."""
    counted = Counted(anonymous=1)
    unproven = Access().caller((), "")
    assert unproven.role is Role.SERVICE
    assert (counted.delay(unproven), counted.delay(unproven)) == (0, 1)


def test_quotas_do_not_apply_to_methods_that_only_services_may_call() -> None:
    """Otherwise anonymous callers could use up the quota of a planner that has no credentials."""
    limited = ["AdminService/ListOverrides", "PlacementService/Rebuild", "PlannerService/WatchCycles"]
    exempt = ["ApplierService/Apply", "DiscoveryService/GetSnapshot", "MetricsService/GetLoads"]
    assert all(has_request_quota(f"/autothrottle.v1.{method}") for method in limited)
    assert not any(has_request_quota(f"/autothrottle.v1.{method}") for method in exempt)
    assert not has_request_quota("/grpc.health.v1.Health/Check")


def test_a_change_applies_at_once_and_a_removal_ends_the_delay() -> None:
    counted, anna = Counted(anna=1), Caller("anna", Role.VIEWER)
    assert [counted.delay(anna) for _ in range(2)] == [0, 1]
    counted.store.put(RequestQuotaEntity("anna"), 100)
    counted.clock.now += 1
    assert counted.delay(anna) == 0
    counted.store.remove(RequestQuotaEntity("anna"))
    assert counted.delay(anna) is None


def test_the_number_of_sensors_is_bounded_and_they_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller chooses its client id, so it could use a new one in each request."""
    monkeypatch.setattr(call_limits, "MOST_SENSORS", 20)
    monkeypatch.setattr(call_limits, "MOST_LABELLED", 5)
    counted, anna, bernd = Counted(bernd=1), Caller("anna", Role.VIEWER), Caller("bernd", Role.VIEWER)
    counted.store.put(RequestQuotaEntity(None, ""), 1)
    for number in range(100):
        counted.delay(anna, f"id-{number}")
        with suppress(LimitReached):
            assert (counted.delay(bernd) == 0) == (number == 0), "a new id reset the sensor of another caller"
        counted.clock.now += 0.001
    assert len(counted.quotas._sensors) == 20
    assert len([*counted.quotas.samples()]) == 2 * 5
    counted.clock.now += 12
    assert not [*counted.quotas.samples()]
    assert not counted.quotas._sensors


def test_an_invalid_client_id_counts_as_none() -> None:
    counted, anna = Counted(), Caller("anna", Role.VIEWER)
    counted.store.put(RequestQuotaEntity(None, ""), 1)
    assert [counted.delay(anna, client_id) for client_id in ("x" * 129, "ö")] == [0, 1]


def test_an_entity_delays_at_most_half_of_the_responses_that_may_be_delayed() -> None:
    counted, anna = Counted(anna=1000), Caller("anna", Role.VIEWER)
    with ExitStack() as held:
        for _ in range(1000):
            held.enter_context(counted.quotas.reserved(anna, ""))
        for _ in range(32):
            held.enter_context(counted.quotas.reserved(anna, ""))
        with pytest.raises(LimitReached, match="32 delayed responses of user anna, which is the limit"):
            held.enter_context(counted.quotas.reserved(anna, ""))


def test_delayed_calls_take_no_thread_and_no_slot_of_other_callers(
    served: InProcessServices, client: Callable[..., AdminClient]
) -> None:
    """A sleeping call holds a thread of the server. 64 sleeping ones would have stopped it."""
    client("services").set_request_quota(60, "anna")
    anna, bernd = client("anna"), client("bernd")
    ended, done = threading.Event(), []

    def flood() -> None:
        while not ended.is_set():
            try:
                anna.list_overrides()
                done.append(time.monotonic())
            except Unavailable:  # refused
                time.sleep(0.05)

    with ThreadPoolExecutor(40) as pool:
        try:
            for _ in range(40):
                pool.submit(flood)
            eventually(lambda: len(done) > 70)
            for _ in range(20):
                bernd.list_overrides()
        finally:
            ended.set()
    assert bernd.throttle_times.maximum == timedelta(0)


def test_a_planner_runs_cycles_while_callers_without_credentials_flood_the_api(services: InProcessServices) -> None:
    services.request_quotas.put(RequestQuotaEntity(""), 1)
    services.start_planners()
    eventually(lambda: services.planners[0].state().last_cycle)
    ended = threading.Event()

    def flood() -> None:
        stub = admin_pb2_grpc.AdminServiceStub(services.channel("admin"))
        while not ended.is_set():
            stub.ListOverrides.future(admin_pb2.ListOverridesRequest(), timeout=60).code()

    def cycles() -> int:
        last = services.planners[0].state().last_cycle
        return last.number if last else 0

    with ThreadPoolExecutor(8) as pool:
        try:
            for _ in range(8):
                pool.submit(flood)
            for _ in range(2):
                before = cycles()
                services.planners[0].request_cycle("a test")
                eventually(lambda before=before: cycles() > before)  # type: ignore[misc]
        finally:
            ended.set()
