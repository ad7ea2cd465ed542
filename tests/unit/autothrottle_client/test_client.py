"""The client package against the real services over gRPC."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import grpc
import pytest

from autothrottle.adapters.grpc import PlannerServiceClient
from autothrottle.adapters.memory import (
    MemoryAuditedMap,
    MemoryCluster,
    MemoryMembers,
    MemoryMembership,
    MemoryMetrics,
    MemoryOverrides,
    MemoryPauses,
)
from autothrottle.adapters.zookeeper.map_codecs import CATCH_UPS, REQUEST_QUOTAS
from autothrottle.admin.estimator import Estimator
from autothrottle.admin.servicer import AdminServicer
from autothrottle.core.cluster.configs import ConfigResource, ReplicaRole
from autothrottle.core.records import Outcome, OutcomeStatus, Pause, Reason
from autothrottle.planner.servicer import PlannerServicer
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1 import admin_pb2, admin_pb2_grpc, planner_pb2, planner_pb2_grpc, types_pb2
from autothrottle.wire.common import SAME_NAMES
from autothrottle_client import (
    AdminClient,
    AuditAction,
    Conflict,
    Cycle,
    CycleWatch,
    Invalid,
    Missing,
    NotLeader,
    Override,
    PauseMode,
    PlannerClient,
    Unavailable,
)
from autothrottle_client.model import from_message
from autothrottle_client.replicas import parse_addresses
from autothrottle_lab.servers.processes import free_address
from tests import builders
from tests.builders import eventually, mb
from tests.in_process_services import InProcessServices

SHORT = timedelta(seconds=0.5)
"""A timeout that is meant to expire."""

PATIENT = timedelta(seconds=60)
"""A timeout that is not meant to expire."""


@pytest.fixture
def admin(services: InProcessServices) -> Iterator[AdminClient]:
    with AdminClient([services.address("admin")], PATIENT) as client:
        yield client


def planners(services: InProcessServices, *names: str) -> PlannerClient:
    return PlannerClient([services.address(name) for name in names], PATIENT)


def take(watch: CycleWatch, count: int) -> list[Cycle]:
    """Return the next cycles; wait for them at most 30 s."""
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(lambda: list(itertools.islice(watch, count)))
        try:
            return taken.result(30)
        except BaseException:
            watch.close()
            raise


# The package.


LOADED = (
    "core",
    "core.cluster",
    "core.cluster.configs",
    "core.codec",
    "core.errors",
    "core.members",
    "core.open_enum",
    "core.quotas",
    "core.quotas.keys",
    "core.quotas.yielding",
    "core.records",
    "core.request_quotas",
    "core.retries",
    "core.texts",
    "core.units",
    "messages",
)
"""What the client loads of the product: modules that define values and errors, so that its import stays fast."""


def test_the_package_imports_no_service_code_and_no_service_dependency() -> None:
    code = (
        "import sys, autothrottle_client, autothrottle_client.throttlectl\n"
        "roots = {name.partition('.')[0] for name in sys.modules}\n"
        "print(roots & {'kazoo', 'kafka', 'pyspark', 'datadog_api_client', 'opentelemetry', 'starlette'})\n"
        "print(*(n for n in sys.modules if n.startswith('autothrottle.') and not n.startswith('autothrottle.v1')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    roots, modules = done.stdout.splitlines()
    assert roots == "set()"
    assert set(modules.split()) <= {f"autothrottle.{name}" for name in LOADED}


def test_a_cycle_message_keeps_every_field_role_and_reason() -> None:
    decisions = [
        builders.decision(1000 + n, role, reason=reason, current=mb(n) or None)
        for n, (role, reason) in enumerate(itertools.product(ReplicaRole, Reason))
    ]
    outcomes = [Outcome(ConfigResource("brokers/1001"), status, "why") for status in OutcomeStatus]
    record = builders.cycle_record(
        3, 7, topics=["a", "b"], decisions=decisions, outcomes=outcomes, findings=["x"], error="e"
    )
    cycle = from_message(Cycle, SAME_NAMES.to_message(types_pb2.Cycle, record))
    assert (cycle.term, cycle.number, cycle.start_time, cycle.end_time) == (3, 7, record.start_time, record.end_time)
    assert (cycle.reason, cycle.sentence, cycle.error) == (record.reason, record.sentence, record.error)
    assert (cycle.topics, cycle.findings) == (record.topics, record.findings)
    assert [(d.role.value, d.reason.value) for d in cycle.decisions] == [
        (d.role.value, d.reason.value) for d in decisions
    ]
    assert [(d.broker_id, d.rate_bytes_per_second, d.current_rate_bytes_per_second) for d in cycle.decisions] == [
        (d.broker_id, d.rate_bytes_per_second, d.current_rate_bytes_per_second) for d in decisions
    ]
    assert [o.status.value for o in cycle.outcomes] == [o.status.value for o in outcomes]


def test_enum_values_of_a_later_version_become_unknown() -> None:
    message = types_pb2.Cycle(
        decisions=[types_pb2.Decision(broker_id=1, role=9, reason=99)],  # type: ignore[arg-type]
        outcomes=[types_pb2.Outcome(resource="topics/a", status=9)],  # type: ignore[arg-type]
    )
    cycle = from_message(Cycle, message)
    assert (cycle.decisions[0].role, cycle.decisions[0].reason) == (ReplicaRole.UNKNOWN, Reason.UNKNOWN)
    assert cycle.outcomes[0].status is OutcomeStatus.UNKNOWN


# Overrides.


def test_an_override_is_set_read_listed_and_removed(admin: AdminClient) -> None:
    own, everyone = Override(mb(50), 1002), Override(mb(90), None, autoremove=True)
    assert admin.set_override(mb(50), broker_id=1002) == (own, ())
    assert admin.set_override(mb(90), autoremove=True) == (everyone, ())
    assert (admin.get_override(1002), admin.get_override()) == (own, everyone)
    assert admin.list_overrides() == ((everyone, own), ())
    admin.remove_override(1002)
    assert admin.list_overrides() == ((everyone,), ())
    with pytest.raises(Missing, match="broker 1002"):
        admin.get_override(1002)
    with pytest.raises(Missing, match="broker 1002"):
        admin.remove_override(1002)


def test_the_largest_rate_is_transferred_exactly(admin: AdminClient) -> None:
    assert admin.set_override(10**12)[0] == admin.get_override() == Override(10**12)


def test_set_override_returns_warnings(admin: AdminClient) -> None:
    override, warnings = admin.set_override(mb(5), broker_id=4711)
    assert override == Override(mb(5), 4711)
    assert len(warnings) == 1 and "4711 is not registered" in warnings[0]


def test_an_etag_restricts_a_change_to_one_version(admin: AdminClient) -> None:
    etag = admin.set_override(mb(5))[0].etag
    later = admin.set_override(mb(6), etag=etag)[0]
    assert later.etag == admin.get_override().etag != etag
    for change in (lambda: admin.set_override(mb(7), etag=etag), lambda: admin.remove_override(etag=etag)):
        with pytest.raises(Conflict, match=f"its etag is now {later.etag}; read it again"):
            change()
    admin.remove_override(etag=later.etag)
    with pytest.raises(Missing):
        admin.get_override()


def test_an_expire_time_is_stored_in_utc_and_cleared_by_the_next_set(admin: AdminClient) -> None:
    end = datetime.now(UTC).replace(microsecond=5) + timedelta(hours=1)
    assert admin.set_override(mb(5), expire_time=end.astimezone(timezone(timedelta(hours=2))))[0].expire_time == end
    assert admin.get_override().expire_time == end
    assert admin.set_override(mb(5))[0].expire_time is None


def test_audit_records_are_listed_newest_first(admin: AdminClient) -> None:
    override = admin.set_override(mb(5), broker_id=1002)[0]
    admin.remove_override(1002)
    removed, begun = admin.list_audit_records()
    assert (begun.action, begun.broker_id, begun.before, begun.after) == (AuditAction.SET, 1002, None, override)
    assert (removed.action, removed.broker_id, removed.before, removed.after) == (
        AuditAction.REMOVE,
        1002,
        override,
        None,
    )
    assert begun.who.startswith("ipv4:127.0.0.1:")
    assert begun.number < removed.number and begun.time <= removed.time
    assert admin.list_audit_records(1) == (removed,)


BAD: dict[str, tuple[Callable[[AdminClient], object], str]] = {
    "rate 0": (lambda a: a.set_override(0), r"0 is outside 1\.\.1000000000000"),
    "negative rate": (lambda a: a.set_override(-1), "-1 is outside"),
    "rate too large": (lambda a: a.set_override(10**12 + 1), "1000000000001 is outside"),
    "rate a float": (lambda a: a.set_override(1.5), "1.5 is not an int"),  # type: ignore[arg-type]
    "rate a string": (lambda a: a.set_override("200"), "'200' is not an int"),  # type: ignore[arg-type]
    "rate a bool": (lambda a: a.set_override(True), "True is not an int"),
    "end without a time zone": (lambda a: a.set_override(1, expire_time=datetime(2999, 1, 1)), "no time zone; give"),
    "end in the past": (lambda a: a.set_override(1, expire_time=builders.NOON - timedelta(days=9999)), "a later time"),
    "malformed etag": (lambda a: a.set_override(1, etag="x"), "give the etag of a response"),
    "no audit records": (lambda a: a.list_audit_records(0), r"limit 0 is outside 1\.\.1000"),
    "too many audit records": (lambda a: a.list_audit_records(1001), "limit 1001 is outside"),
    "broker -1": (lambda a: a.set_override(1, broker_id=-1), r"broker_id -1 is outside 0\.\.2147483647"),
    "broker too large": (lambda a: a.get_override(2**31), "2147483648 is outside"),
    "broker negative": (lambda a: a.remove_override(-1), "-1 is outside"),
    "broker a string": (lambda a: a.get_override("1001"), "'1001' is not an int"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_input_is_refused_with_its_range_and_changes_nothing(
    unchanged_services: InProcessServices, name: str
) -> None:
    call, pattern = BAD[name]
    with AdminClient([unchanged_services.address("admin")], PATIENT) as admin:
        with pytest.raises(Invalid, match=pattern):
            call(admin)
        assert admin.list_overrides() == ((), ())


@pytest.mark.parametrize(
    "addresses",
    [
        [],
        "",
        ["127.0.0.1"],
        ["127.0.0.1:0"],
        ["127.0.0.1:65536"],
        ["127.0.0.1:8090,"],
        ["http://127.0.0.1:80"],
        ["::1:80"],
        ["unix:"],
        ["unix:/run/\udcff"],
        ["a b:1"],
        "127.0.0.1:1,,127.0.0.1:2",
        ["x:1", ""],
    ],
)
def test_an_invalid_address_is_refused_on_construction(addresses: list[str] | str) -> None:
    with pytest.raises(Invalid, match="give for example "):
        AdminClient(addresses)


def test_valid_addresses_are_deduplicated() -> None:
    assert parse_addresses("zk-1.example:1, [::1]:65535,unix:/run/a.sock,zk-1.example:1") == (
        "zk-1.example:1",
        "[::1]:65535",
        "unix:/run/a.sock",
    )


@pytest.mark.parametrize("seconds", [0, -1, 100_000])
def test_an_invalid_timeout_is_refused_on_construction(seconds: float) -> None:
    with pytest.raises(Invalid, match="is outside"):
        AdminClient(["127.0.0.1:1"], timedelta(seconds=seconds))


# Pauses.


def test_a_pause_is_set_shown_in_the_state_and_resumed(led: InProcessServices, admin: AdminClient) -> None:
    pause = admin.pause(PauseMode.CLEAR, "a release")
    assert (pause.mode, pause.reason) == (PauseMode.CLEAR, "a release")
    assert pause.author and pause.time is not None
    assert admin.state().pause == pause
    eventually(lambda: (last := admin.state().last_cycle) and last.pause == pause)
    assert (admin.resume(), admin.resume()) == (True, False)
    assert admin.state().pause is None


def test_the_default_pause_mode_keeps_throttles(admin: AdminClient) -> None:
    assert admin.pause().mode is PauseMode.KEEP


@pytest.mark.parametrize(
    "call",
    [
        lambda a: a.pause(PauseMode.UNKNOWN),
        lambda a: a.pause("melt"),
        lambda a: a.pause(reason="a\nb"),
        lambda a: a.pause(reason="n\udce4chtlich"),
        lambda a: a.pause(reason="a" * 1_001),
    ],
)
def test_an_invalid_pause_is_refused(
    services: InProcessServices, admin: AdminClient, call: Callable[[AdminClient], object]
) -> None:
    """A byte from a terminal that is not UTF-8 caused a traceback. The client refuses it as invalid."""
    with pytest.raises(Invalid, match="give "):
        call(admin)
    assert services.pauses.read_pause() is None


@pytest.mark.parametrize("mode", PauseMode)
def test_a_cycle_message_keeps_pause_and_shadow(mode: PauseMode) -> None:
    pause = Pause(mode, "operator", builders.NOON, "why")
    record = replace(builders.cycle_record(), pause=pause, shadow=True)
    cycle = from_message(Cycle, SAME_NAMES.to_message(types_pb2.Cycle, record))
    assert cycle.shadow and cycle.pause is not None
    assert (cycle.pause.mode.value, cycle.pause.author) == (mode.value, "operator")
    assert (cycle.pause.time, cycle.pause.reason) == (builders.NOON, "why")
    unknown = from_message(Cycle, types_pb2.Cycle(pause=types_pb2.Pause(mode=9)))  # type: ignore[arg-type]
    assert unknown.pause is not None and unknown.pause.mode is PauseMode.UNKNOWN and not unknown.shadow


# Addresses, deadlines, retries.


def test_an_address_without_a_listener_is_skipped(services: InProcessServices) -> None:
    dead = free_address()
    with AdminClient([dead, services.address("admin")], PATIENT) as client:
        client.set_override(mb(50))
        client.remove_override()
    with AdminClient([dead, services.address("admin")], PATIENT) as client, pytest.raises(Missing):
        client.remove_override()


def test_unavailable_names_every_address_within_the_deadline() -> None:
    first, second = free_address(), free_address()
    with AdminClient(f"{first},{second}", SHORT) as client:
        for call in (client.state, client.remove_override):
            started = time.monotonic()
            with pytest.raises(Unavailable, match=f"(?s){first}.*{second}.*Fix: "):
                call()
            assert time.monotonic() - started < 30


def test_an_idempotent_call_waits_for_a_service_that_starts_late() -> None:
    """Idempotent calls are retried until their deadline."""
    address, late = free_address(), SlowAdmin()
    server = ServiceServer("admin", [late.servicer], listen=address)
    with AdminClient([address], PATIENT) as client, ThreadPoolExecutor(1) as pool:
        listing = pool.submit(client.list_overrides)
        with server:
            assert listing.result(20) == ((), ())


class SlowAdmin(AdminServicer):
    """An admin service that counts calls, delays answers, and fails the first calls as unavailable."""

    def __init__(
        self, seconds: float = 0.0, lists_lost: int = 0, removals_lost: int = 0, settings_lost: int = 0
    ) -> None:
        self.overrides = MemoryOverrides()
        cluster = MemoryCluster()
        membership = MemoryMembership(MemoryMembers())
        super().__init__(
            self.overrides,
            PlannerServiceClient([free_address()]),
            cluster,
            cluster,
            membership,
            MemoryPauses(),
            Estimator(cluster, cluster, cluster, MemoryMetrics(), self.overrides, builders.limits()),
            MemoryAuditedMap(CATCH_UPS),
            MemoryAuditedMap(REQUEST_QUOTAS),
            builders.plan_check(cluster),
        )
        self.lists = self.removals = self.settings = self.cancellations = 0
        self.cancellation_seconds = 0.0
        self._settings_lost = settings_lost
        self._ended = threading.Event()
        self._seconds, self._lists_lost, self._removals_lost = seconds, lists_lost, removals_lost
        self.servicer = (
            admin_pb2_grpc.add_AdminServiceServicer_to_server,
            self,
            "autothrottle.v1.AdminService",
        )

    def end(self) -> None:
        """Release delayed answers."""
        self._ended.set()

    def ListOverrides(
        self, request: admin_pb2.ListOverridesRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListOverridesResponse:
        self.lists += 1
        self._ended.wait(self._seconds)
        if self.lists <= self._lists_lost:
            raise Unavailable("ZooKeeper does not answer")
        return super().ListOverrides(request, context)

    def SetOverride(
        self, request: admin_pb2.SetOverrideRequest, context: grpc.ServicerContext
    ) -> admin_pb2.SetOverrideResponse:
        self.settings += 1
        answer = super().SetOverride(request, context)
        if self.settings <= self._settings_lost:
            raise Unavailable("the connection broke after the change")
        return answer

    def CancelReassignment(
        self, request: admin_pb2.CancelReassignmentRequest, context: grpc.ServicerContext
    ) -> admin_pb2.CancelReassignmentResponse:
        self.cancellations += 1
        self.cancellation_seconds = context.time_remaining() or 0.0
        if self.cancellations == 1:
            raise Unavailable("the connection broke after the change")
        raise Missing("nothing was cancelled: none of them is being reassigned")

    def RemoveOverride(
        self, request: admin_pb2.RemoveOverrideRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RemoveOverrideResponse:
        self.removals += 1
        answer = super().RemoveOverride(request, context)
        if self.removals <= self._removals_lost:
            raise Unavailable("the connection broke after the change")
        return answer


def test_a_service_listens_on_a_unix_socket(tmp_path: Path) -> None:
    server = ServiceServer("admin", [SlowAdmin().servicer], listen=f"unix:{tmp_path}/a")
    with server, AdminClient([server.address], PATIENT) as client:
        assert client.list_overrides() == ((), ())


def test_an_idempotent_call_is_retried() -> None:
    service = SlowAdmin(lists_lost=2)
    with ServiceServer("admin", [service.servicer]) as server, AdminClient([server.address], PATIENT) as client:
        assert client.list_overrides() == ((), ())
    assert service.lists == 3


def test_a_removal_is_sent_once_to_a_replica_that_answers() -> None:
    """A second removal would fail because nothing is left to remove."""
    service = SlowAdmin(lists_lost=2, removals_lost=1)
    with ServiceServer("admin", [service.servicer]) as server, AdminClient([server.address], PATIENT) as client:
        client.set_override(mb(50))
        with pytest.raises(Unavailable, match="The request may have taken effect"):
            client.remove_override()
        assert (service.lists, service.removals) == (3, 1)
        with pytest.raises(Missing):
            client.get_override()


def test_a_cancellation_is_sent_once_with_the_time_that_kafka_needs() -> None:
    """The client repeated a cancellation with a lost or late answer (5 s for 100,000 partitions).

    The second call then failed because no partition was being reassigned any more.
    """
    service = SlowAdmin()
    unknown = pytest.raises(Unavailable, match="The request may have taken effect")
    with ServiceServer("admin", [service.servicer]) as server, AdminClient([server.address], SHORT) as client, unknown:
        client.cancel_reassignment([("t", 0)])
    assert service.cancellations == 1
    assert service.cancellation_seconds > 30


def test_a_conditional_change_is_sent_once_and_an_unconditional_one_is_retried() -> None:
    """A second conditional change would conflict with the version that the first one wrote."""
    service = SlowAdmin(settings_lost=1)
    with ServiceServer("admin", [service.servicer]) as server, AdminClient([server.address], PATIENT) as client:
        etag = client.set_override(mb(50))[0].etag
        assert service.settings == 2
        service.settings = 0
        with pytest.raises(Unavailable, match="The request may have taken effect"):
            client.set_override(mb(60), etag=etag)
        assert service.settings == 1
        assert client.get_override() == Override(mb(60))


def test_a_hanging_replica_uses_only_its_share_of_the_deadline(services: InProcessServices) -> None:
    service = SlowAdmin(seconds=60)
    with ServiceServer("admin", [service.servicer]) as server:
        with AdminClient([server.address, services.address("admin")], timedelta(seconds=5)) as client:
            assert client.list_overrides() == ((), ())
            assert client.list_overrides() == ((), ())
            assert service.lists == 1, "the next call starts with the replica that answered"
        with AdminClient([server.address], SHORT) as client:
            with pytest.raises(Unavailable, match=r"did not answer within 0\.\d+ s"):
                client.list_overrides()
            with pytest.raises(Unavailable, match="did not answer"):
                client.remove_override()
        assert service.removals == 0
        service.end()


def test_closing_a_client_ends_its_call_in_progress() -> None:
    with ThreadPoolExecutor(1) as pool:
        client = AdminClient([free_address()], PATIENT)
        waiting = pool.submit(client.state)
        time.sleep(0.3)
        started = time.monotonic()
        client.close()
        with pytest.raises(Unavailable):
            waiting.result(30)
        assert time.monotonic() - started < 30


# The leader.


def test_the_state_contains_leader_last_cycle_and_overrides(led: InProcessServices, admin: AdminClient) -> None:
    admin.set_override(mb(50), broker_id=1001)
    state = admin.state()
    assert (state.term, state.leader_address) == (1, led.address("planner-1"))
    assert state.last_cycle is not None and state.last_cycle.start_time.utcoffset() == timedelta(0)
    assert state.overrides == (Override(mb(50), 1001),)


def test_a_request_to_a_follower_is_forwarded_to_the_leader(led: InProcessServices) -> None:
    with planners(led, "planner-2") as client:
        client.run_cycle("a test asks")
    eventually(lambda: "a test asks" in led.planners[0].state().last_cycle.reason)  # type: ignore[union-attr]
    assert led.planners[1].state().last_cycle is None


def test_a_followers_state_call_returns_the_leaders_state(led: InProcessServices) -> None:
    with planners(led, "planner-2") as client:
        state = client.state()
    assert (state.leading, state.leader_address, state.term) == (True, led.address("planner-1"), 1)
    assert state.last_cycle is not None and state.failures == {}


def test_without_a_leader_the_error_names_the_missing_leader(services: InProcessServices, admin: AdminClient) -> None:
    with PlannerClient([services.address("planner-1")], SHORT) as client:
        assert not client.state().leading
        with pytest.raises(NotLeader) as caught:
            client.run_cycle()
        assert caught.value.leader_address == ""
        with pytest.raises(Unavailable, match="no planner leads"):
            client.watch_cycles()
    with (
        AdminClient([services.address("admin")], timedelta(seconds=1)) as impatient,
        pytest.raises(Unavailable, match="no planner leads"),
    ):
        impatient.request_cycle()


def test_a_requested_cycle_is_watched_through_either_service(led: InProcessServices, admin: AdminClient) -> None:
    with (
        planners(led, "planner-2") as client,
        client.watch_cycles() as through_planner,
        admin.watch_cycles() as through_admin,
    ):
        first = take(through_planner, 1)
        assert take(through_admin, 1) == first
        assert (first[0].term, first[0].number) == (1, 1)
        admin.request_cycle()
        assert [c.number for c in take(through_planner, 1)] == [c.number for c in take(through_admin, 1)] == [2]


@pytest.mark.parametrize("service", ["admin", "planner"])
def test_a_watch_continues_at_the_next_leader_after_the_process_ends(led: InProcessServices, service: str) -> None:
    lost: list[Exception] = []
    client = (
        AdminClient([led.address("admin")], PATIENT) if service == "admin" else planners(led, "planner-1", "planner-2")
    )
    with client, client.watch_cycles(on_loss=lost.append) as watch:
        assert take(watch, 1)[0].term == 1
        led.servers["planner-1"].stop()
        led.electorate.depose()
        assert take(watch, 1)[0].term == 2
    assert len(lost) == 1


def test_a_watch_leaves_a_live_planner_that_lost_its_term(led: InProcessServices) -> None:
    """The stream of such a planner stays open without messages."""
    client = planners(led, "planner-1", "planner-2")
    with client, client.watch_cycles(silence=timedelta(seconds=0.5)) as watch:
        assert take(watch, 1)[0].term == 1
        led.electorate.depose()
        assert take(watch, 1)[0].term == 2


def test_a_watch_fails_after_an_outage_without_a_leader(led: InProcessServices) -> None:
    with planners(led, "planner-1") as client, client.watch_cycles(outage=SHORT) as watch:
        take(watch, 1)
        led.servers["planner-1"].stop()
        with pytest.raises(Unavailable, match=r"for 0\.5 s"):
            take(watch, 1)


class BrokenPlanner(PlannerServicer):
    """A planner whose streams end early: each stream sends its cycle numbers, or fails if it has none."""

    def __init__(self, *streams: tuple[int, ...]) -> None:
        self._streams = iter(streams)
        self.asked: list[bool] = []
        """`without_cycle` of each state request."""

    def WatchCycles(
        self, request: planner_pb2.WatchCyclesRequest, context: grpc.ServicerContext
    ) -> Iterator[planner_pb2.WatchCyclesResponse]:
        numbers = next(self._streams)
        for number in numbers:
            yield planner_pb2.WatchCyclesResponse(cycle=types_pb2.Cycle(term=1, number=number))
        if not numbers:
            raise Unavailable("not now")

    def GetState(
        self, request: planner_pb2.GetStateRequest, context: grpc.ServicerContext
    ) -> planner_pb2.GetStateResponse:
        self.asked.append(request.without_cycle)
        return planner_pb2.GetStateResponse(leading=True, term=1)


def test_a_watch_returns_each_cycle_once_and_reports_each_loss_once() -> None:
    """Every stream starts with the last cycle."""
    planner = BrokenPlanner((1, 2), (), (), (2, 3), (3, 4))
    add = planner_pb2_grpc.add_PlannerServiceServicer_to_server
    losses: list[Exception] = []
    with (
        ServiceServer("planner", [(add, planner, "autothrottle.v1.PlannerService")]) as server,
        PlannerClient([server.address], PATIENT) as client,
        client.watch_cycles(on_loss=losses.append) as watch,
    ):
        assert [cycle.number for cycle in take(watch, 4)] == [1, 2, 3, 4]
    assert len(losses) == 2
    assert planner.asked and all(planner.asked), "locating the leader needs no cycle"


def test_silence_of_a_leader_is_not_an_outage(led: InProcessServices) -> None:
    """The outage starts when the leader ends, regardless of its silence before."""
    client = planners(led, "planner-1")
    with client, client.watch_cycles(outage=timedelta(seconds=2), silence=timedelta(seconds=0.2)) as watch:
        take(watch, 1)
        time.sleep(2.5)
        led.servers["planner-1"].stop()
        stopped = time.monotonic()
        with pytest.raises(Unavailable, match="for 2 s"):
            take(watch, 1)
        assert time.monotonic() - stopped > 0.7


def test_closing_the_client_ends_a_waiting_watch_and_its_thread(led: InProcessServices) -> None:
    with ThreadPoolExecutor(1) as pool:
        client = planners(led, "planner-1")
        watch = client.watch_cycles()
        taking = pool.submit(lambda: list(watch))
        eventually(lambda: any(t.name == "cycle-watch" for t in threading.enumerate()))
        started = time.monotonic()
        client.close()
        assert len(taking.result(60)) <= 1
        assert time.monotonic() - started < 60
    assert watch.closed
    assert not any(t.name == "cycle-watch" for t in threading.enumerate())
