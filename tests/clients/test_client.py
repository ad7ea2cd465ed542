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

import autothrottle.core.errors as core_errors
import autothrottle.core.pause as core_pause
import autothrottle_client.errors as client_errors
from autothrottle.adapters.memory import (
    MemoryCatchUps,
    MemoryCluster,
    MemoryMembers,
    MemoryMembership,
    MemoryMetrics,
    MemoryOverrides,
    MemoryPauses,
)
from autothrottle.adapters.rpc import PlannerClient as RpcPlannerClient
from autothrottle.admin.estimator import Estimator
from autothrottle.admin.servicer import AdminServicer
from autothrottle.core.changes import Outcome, OutcomeStatus
from autothrottle.core.configs import ConfigResource, ReplicaRole
from autothrottle.core.errors import Missing as CoreMissing
from autothrottle.core.errors import Unavailable as CoreUnavailable
from autothrottle.core.plan import Reason
from autothrottle.lab.processes import free_ports
from autothrottle.planner.servicer import PlannerServicer
from autothrottle.runtime.server import ServiceServer
from autothrottle.v1 import admin_pb2, admin_pb2_grpc, planner_pb2, planner_pb2_grpc, types_pb2
from autothrottle.wire import errors as wire_errors
from autothrottle.wire.cycles import cycle_to_message
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
    model,
)
from autothrottle_client.replicas import Replicas, parse_addresses
from tests import builders
from tests.builders import eventually, mb
from tests.services.house import House

SHORT = timedelta(seconds=0.5)
"""A time-out that is meant to run out."""

PATIENT = timedelta(seconds=60)
"""A time-out that is not."""


@pytest.fixture
def metrics() -> MemoryMetrics:
    return MemoryMetrics(*(builders.load(b, tx=mb(20), rx=mb(10)) for b in (1001, 1002, 1003, 1004)))


@pytest.fixture
def house(metrics: MemoryMetrics) -> Iterator[House]:
    """Two planners, none of which stands for election yet."""
    with House(metrics, metrics, planners=2) as built:
        yield built


@pytest.fixture
def led(house: House) -> House:
    """The first planner leads and has run its first cycle."""
    house.start_planners()
    eventually(lambda: house.planners[0].state().last_cycle)
    return house


@pytest.fixture
def admin(house: House) -> Iterator[AdminClient]:
    with AdminClient([house.address("admin")], PATIENT) as client:
        yield client


def planners(house: House, *names: str) -> PlannerClient:
    return PlannerClient([house.address(name) for name in names], PATIENT)


def nobody() -> str:
    """An address where nobody answers."""
    return f"127.0.0.1:{free_ports(1)[0]}"


def take(watch: CycleWatch, count: int) -> list[Cycle]:
    """The next cycles; waits for them, but not for ever."""
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(lambda: list(itertools.islice(watch, count)))
        try:
            return taken.result(30)
        except BaseException:
            watch.close()
            raise


# The package.


def test_the_package_loads_nothing_that_a_service_needs() -> None:
    code = (
        "import sys, autothrottle_client, autothrottle_client.throttlectl\n"
        "roots = {name.partition('.')[0] for name in sys.modules}\n"
        "print(roots & {'kazoo', 'kafka', 'pyspark', 'datadog_api_client', 'opentelemetry', 'starlette'})\n"
        "print(sorted(n for n in sys.modules if n.startswith('autothrottle.') and not n.startswith('autothrottle.v1')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n[]\n"


def test_the_errors_are_those_of_core_under_the_same_codes() -> None:
    theirs = {code: error.__name__ for error, code in wire_errors.CODES.items()}
    assert {code: error.__name__ for code, error in client_errors.CODES.items()} == theirs
    tree = {e.__name__ for e in core_errors.AutothrottleError.__subclasses__()}
    assert {e.__name__ for e in client_errors.AutothrottleError.__subclasses__()} == tree
    assert client_errors.LEADER_ADDRESS == wire_errors.LEADER_ADDRESS


def test_a_cycle_keeps_every_field_and_word() -> None:
    decisions = [
        builders.decision(1000 + n, role, reason=reason, standing=mb(n) or None)
        for n, (role, reason) in enumerate(itertools.product(ReplicaRole, Reason))
    ]
    outcomes = [Outcome(ConfigResource("brokers/1001"), status, "why") for status in OutcomeStatus]
    record = builders.cycle_record(
        3, 7, topics=["a", "b"], decisions=decisions, outcomes=outcomes, findings=["x"], error="e"
    )
    cycle = model.cycle_from_message(cycle_to_message(record))
    assert (cycle.term, cycle.number, cycle.start_time, cycle.end_time) == (3, 7, record.start, record.end)
    assert (cycle.reason, cycle.sentence, cycle.error) == (record.reason, record.sentence, record.error)
    assert (cycle.topics, cycle.findings) == (record.topics, record.findings)
    assert [(d.role.value, d.reason.value) for d in cycle.decisions] == [
        (d.role.value, d.reason.value) for d in decisions
    ]
    assert [(d.broker_id, d.rate_bytes_per_second, d.standing_bytes_per_second) for d in cycle.decisions] == [
        (d.broker_id, d.rate, d.standing) for d in decisions
    ]
    assert [o.status.value for o in cycle.outcomes] == [o.status.value for o in outcomes]


def test_a_word_of_a_later_version_is_unknown_and_no_error() -> None:
    message = types_pb2.Cycle(
        decisions=[types_pb2.Decision(broker_id=1, role=9, reason=99)],  # type: ignore[arg-type]
        outcomes=[types_pb2.Outcome(resource="topics/a", status=9)],  # type: ignore[arg-type]
    )
    cycle = model.cycle_from_message(message)
    assert (cycle.decisions[0].role, cycle.decisions[0].reason) == (model.ReplicaRole.UNKNOWN, model.Reason.UNKNOWN)
    assert cycle.outcomes[0].status is model.OutcomeStatus.UNKNOWN


# Overrides.


def test_an_override_is_set_shown_listed_and_removed(admin: AdminClient) -> None:
    own, everyone = Override(mb(50), 1002), Override(mb(200), None, autoremove=True)
    assert admin.set_override(mb(50), broker_id=1002) == (own, ())
    assert admin.set_override(mb(200), autoremove=True) == (everyone, ())
    assert (admin.get_override(1002), admin.get_override()) == (own, everyone)
    assert admin.list_overrides() == ((everyone, own), ())
    admin.remove_override(1002)
    assert admin.list_overrides() == ((everyone,), ())
    with pytest.raises(Missing, match="broker 1002"):
        admin.get_override(1002)
    with pytest.raises(Missing, match="broker 1002"):
        admin.remove_override(1002)


def test_the_largest_rate_passes_whole(admin: AdminClient) -> None:
    assert admin.set_override(2**63 - 1)[0] == admin.get_override() == Override(2**63 - 1)


def test_a_warning_comes_with_the_override(admin: AdminClient) -> None:
    override, warnings = admin.set_override(mb(5), broker_id=4711)
    assert override == Override(mb(5), 4711)
    assert len(warnings) == 1 and "4711 is not registered" in warnings[0]


def test_an_etag_lets_only_its_version_be_changed(admin: AdminClient) -> None:
    etag = admin.set_override(mb(5))[0].etag
    later = admin.set_override(mb(6), etag=etag)[0]
    assert later.etag == admin.get_override().etag != etag
    for change in (lambda: admin.set_override(mb(7), etag=etag), lambda: admin.remove_override(etag=etag)):
        with pytest.raises(Conflict, match=f"etag {later.etag} stands; read it again"):
            change()
    admin.remove_override(etag=later.etag)
    with pytest.raises(Missing):
        admin.get_override()


def test_an_override_ends_at_a_time_to_come(admin: AdminClient) -> None:
    end = datetime.now(UTC).replace(microsecond=5) + timedelta(hours=1)
    assert admin.set_override(mb(5), expire_time=end.astimezone(timezone(timedelta(hours=2))))[0].expire_time == end
    assert admin.get_override().expire_time == end
    assert admin.set_override(mb(5))[0].expire_time is None


def test_who_changed_what_is_listed_the_newest_first(admin: AdminClient) -> None:
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
    "rate 0": (lambda a: a.set_override(0), r"0 is outside of 1\.\.9223372036854775807"),
    "negative rate": (lambda a: a.set_override(-1), "-1 is outside"),
    "rate too large": (lambda a: a.set_override(2**63), "9223372036854775808 is outside"),
    "rate no int": (lambda a: a.set_override(1.5), "1.5 is no int"),  # type: ignore[arg-type]
    "rate a text": (lambda a: a.set_override("200"), "'200' is no int"),  # type: ignore[arg-type]
    "rate a bool": (lambda a: a.set_override(True), "True is no int"),
    "end without a zone": (lambda a: a.set_override(1, expire_time=datetime(2999, 1, 1)), "has no zone; give"),
    "end in the past": (lambda a: a.set_override(1, expire_time=builders.NOON - timedelta(days=9999)), "a later time"),
    "etag that is none": (lambda a: a.set_override(1, etag="x"), "give the etag of an answer"),
    "no audit records": (lambda a: a.list_audit_records(0), r"limit 0 is outside of 1\.\.1000"),
    "too many audit records": (lambda a: a.list_audit_records(1001), "limit 1001 is outside"),
    "broker 0": (lambda a: a.set_override(1, broker_id=0), r"broker_id 0 is outside of 1\.\.2147483647"),
    "broker too large": (lambda a: a.get_override(2**31), "2147483648 is outside"),
    "broker negative": (lambda a: a.remove_override(-1), "-1 is outside"),
    "broker a text": (lambda a: a.get_override("1001"), "'1001' is no int"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_the_range_and_changes_nothing(admin: AdminClient, name: str) -> None:
    call, pattern = BAD[name]
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
def test_a_bad_address_is_refused_at_once(addresses: list[str] | str) -> None:
    with pytest.raises(Invalid, match="give for example "):
        AdminClient(addresses)


def test_good_addresses_are_taken_once_each() -> None:
    assert parse_addresses("zk-1.example:1, [::1]:65535,unix:/run/a.sock,zk-1.example:1") == (
        "zk-1.example:1",
        "[::1]:65535",
        "unix:/run/a.sock",
    )


@pytest.mark.parametrize("seconds", [0, -1, 100_000])
def test_a_bad_timeout_is_refused_at_once(seconds: float) -> None:
    with pytest.raises(Invalid, match="is outside of"):
        AdminClient(["127.0.0.1:1"], timedelta(seconds=seconds))


# Pauses.


def test_it_is_paused_shown_and_resumed(led: House, admin: AdminClient) -> None:
    pause = admin.pause(PauseMode.CLEAR, "a release")
    assert (pause.mode, pause.reason) == (PauseMode.CLEAR, "a release")
    assert pause.author and pause.time is not None
    assert admin.state().pause == pause
    eventually(lambda: (last := admin.state().last_cycle) and last.pause == pause)
    assert (admin.resume(), admin.resume()) == (True, False)
    assert admin.state().pause is None


def test_without_a_mode_a_pause_keeps_what_stands(admin: AdminClient) -> None:
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
def test_a_pause_that_is_none_is_refused(
    house: House, admin: AdminClient, call: Callable[[AdminClient], object]
) -> None:
    """A byte that a terminal sends and that is no UTF-8 was a traceback."""
    with pytest.raises(Invalid, match="give "):
        call(admin)
    assert house.pauses.read_pause() is None


@pytest.mark.parametrize("mode", core_pause.PauseMode)
def test_a_cycle_keeps_its_pause_and_its_shadow(mode: core_pause.PauseMode) -> None:
    pause = core_pause.Pause(mode, "somebody", builders.NOON, "why")
    record = replace(builders.cycle_record(), pause=pause, shadow=True)
    cycle = model.cycle_from_message(cycle_to_message(record))
    assert cycle.shadow and cycle.pause is not None
    assert (cycle.pause.mode.value, cycle.pause.author) == (mode.value, "somebody")
    assert (cycle.pause.time, cycle.pause.reason) == (builders.NOON, "why")
    unknown = model.cycle_from_message(types_pb2.Cycle(pause=types_pb2.Pause(mode=9)))  # type: ignore[arg-type]
    assert unknown.pause is not None and unknown.pause.mode is PauseMode.UNKNOWN and not unknown.shadow


# Addresses, deadlines, retries.


def test_an_address_without_service_is_passed_over(house: House) -> None:
    dead = nobody()
    with AdminClient([dead, house.address("admin")], PATIENT) as client:
        client.set_override(mb(50))
        client.remove_override()
    with AdminClient([dead, house.address("admin")], PATIENT) as client, pytest.raises(Missing):
        client.remove_override()


def test_without_any_service_every_address_is_named_within_the_deadline() -> None:
    first, second = nobody(), nobody()
    with AdminClient(f"{first},{second}", SHORT) as client:
        for call in (client.state, client.remove_override):
            started = time.monotonic()
            with pytest.raises(Unavailable, match=f"(?s){first}.*{second}.*Fix: "):
                call()
            assert time.monotonic() - started < 30


def test_a_service_that_comes_late_is_waited_for() -> None:
    """What is idempotent is tried again until the deadline."""
    address, late = nobody(), SlowAdmin()
    server = ServiceServer("admin", [late.servicer], listen=address)
    with AdminClient([address], PATIENT) as client, ThreadPoolExecutor(1) as pool:
        listing = pool.submit(client.list_overrides)
        with server:
            assert listing.result(20) == ((), ())


class SlowAdmin(AdminServicer):
    """An admin service that counts calls, answers some late, or says of the first ones that it is unavailable."""

    def __init__(
        self, seconds: float = 0.0, lists_lost: int = 0, removals_lost: int = 0, settings_lost: int = 0
    ) -> None:
        self.overrides = MemoryOverrides()
        cluster = MemoryCluster()
        membership = MemoryMembership(MemoryMembers())
        super().__init__(
            self.overrides,
            RpcPlannerClient([nobody()]),
            cluster,
            cluster,
            membership,
            MemoryPauses(),
            Estimator(cluster, cluster, MemoryMetrics(), self.overrides, builders.limits()),
            MemoryCatchUps(),
        )
        self.lists = self.removals = self.settings = self.cancellations = 0
        self.patience = 0.0
        self._settings_lost = settings_lost
        self._ended = threading.Event()
        self._seconds, self._lists_lost, self._removals_lost = seconds, lists_lost, removals_lost
        self.servicer = (
            admin_pb2_grpc.add_AdminServiceServicer_to_server,
            self,
            "autothrottle.v1.AdminService",
        )

    def end(self) -> None:
        """Let what waits go on."""
        self._ended.set()

    def ListOverrides(
        self, request: admin_pb2.ListOverridesRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListOverridesResponse:
        self.lists += 1
        self._ended.wait(self._seconds)
        if self.lists <= self._lists_lost:
            raise CoreUnavailable("ZooKeeper does not answer")
        return super().ListOverrides(request, context)

    def SetOverride(
        self, request: admin_pb2.SetOverrideRequest, context: grpc.ServicerContext
    ) -> admin_pb2.SetOverrideResponse:
        self.settings += 1
        answer = super().SetOverride(request, context)
        if self.settings <= self._settings_lost:
            raise CoreUnavailable("the connection broke behind it")
        return answer

    def CancelReassignment(
        self, request: admin_pb2.CancelReassignmentRequest, context: grpc.ServicerContext
    ) -> admin_pb2.CancelReassignmentResponse:
        self.cancellations += 1
        self.patience = context.time_remaining() or 0.0
        if self.cancellations == 1:
            raise CoreUnavailable("the connection broke behind it")
        raise CoreMissing("nothing was cancelled: none of them is being reassigned")

    def RemoveOverride(
        self, request: admin_pb2.RemoveOverrideRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RemoveOverrideResponse:
        self.removals += 1
        answer = super().RemoveOverride(request, context)
        if self.removals <= self._removals_lost:
            raise CoreUnavailable("the connection broke behind it")
        return answer


def test_a_service_answers_on_a_socket_in_the_file_system_too(tmp_path: Path) -> None:
    server = ServiceServer("admin", [SlowAdmin().servicer], listen=f"unix:{tmp_path}/a")
    with server, AdminClient([server.address], PATIENT) as client:
        assert client.list_overrides() == ((), ())


def test_what_is_idempotent_is_tried_again() -> None:
    service = SlowAdmin(lists_lost=2)
    with ServiceServer("admin", [service.servicer]) as server, AdminClient([server.address], PATIENT) as client:
        assert client.list_overrides() == ((), ())
    assert service.lists == 3


def test_a_removal_waits_for_a_replica_and_is_then_sent_once() -> None:
    """Sent again, it would be told that there is nothing to remove."""
    service = SlowAdmin(lists_lost=2, removals_lost=1)
    with ServiceServer("admin", [service.servicer]) as server, AdminClient([server.address], PATIENT) as client:
        client.set_override(mb(50))
        with pytest.raises(Unavailable, match="It may have been done nevertheless"):
            client.remove_override()
        assert (service.lists, service.removals) == (3, 1)
        with pytest.raises(Missing):
            client.get_override()


def test_a_cancellation_is_sent_once_and_has_the_time_that_kafka_may_need() -> None:
    """Sent again, when its answer was lost or late (5 s for 100,000 partitions), it was told that nothing moves."""
    service = SlowAdmin()
    unknown = pytest.raises(Unavailable, match="It may have been done nevertheless")
    with ServiceServer("admin", [service.servicer]) as server, AdminClient([server.address], SHORT) as client, unknown:
        client.cancel_reassignment([("t", 0)])
    assert service.cancellations == 1
    assert service.patience > 30


def test_a_change_of_one_version_is_sent_once_and_any_other_again() -> None:
    """Sent again, it would be told that another version stands: its own."""
    service = SlowAdmin(settings_lost=1)
    with ServiceServer("admin", [service.servicer]) as server, AdminClient([server.address], PATIENT) as client:
        etag = client.set_override(mb(50))[0].etag
        assert service.settings == 2
        service.settings = 0
        with pytest.raises(Unavailable, match="It may have been done nevertheless"):
            client.set_override(mb(60), etag=etag)
        assert service.settings == 1
        assert client.get_override() == Override(mb(60))


def test_a_replica_that_hangs_costs_its_share_of_the_time_only(house: House) -> None:
    service = SlowAdmin(seconds=60)
    with ServiceServer("admin", [service.servicer]) as server:
        with AdminClient([server.address, house.address("admin")], timedelta(seconds=12)) as client:
            assert client.list_overrides() == ((), ())
            assert client.list_overrides() == ((), ())
            assert service.lists == 1, "the next call begins with the one that answered"
        with AdminClient([server.address], SHORT) as client:
            with pytest.raises(Unavailable, match=r"did not answer within 0\.\d+ s"):
                client.list_overrides()
            with pytest.raises(Unavailable, match="did not answer"):
                client.remove_override()
        assert service.removals == 0
        service.end()


def test_a_closed_client_says_so() -> None:
    client = AdminClient([nobody()])
    client.close()
    client.close()
    with pytest.raises(Unavailable, match="closed"):
        client.state()


def test_a_client_that_is_closed_meanwhile_ends_its_call() -> None:
    with ThreadPoolExecutor(1) as pool:
        client = AdminClient([nobody()], PATIENT)
        waiting = pool.submit(client.state)
        time.sleep(0.3)
        started = time.monotonic()
        client.close()
        with pytest.raises(Unavailable):
            waiting.result(30)
        assert time.monotonic() - started < 30


def test_an_aborted_call_is_a_conflict() -> None:
    def aborted(peer: object, seconds: float) -> None:
        raise Conflict("it changed")

    replicas = Replicas("admin", [nobody()])
    with pytest.raises(Conflict):
        replicas.call(aborted)
    replicas.close()


# The leader.


def test_the_state_has_the_leader_its_cycle_and_the_overrides(led: House, admin: AdminClient) -> None:
    admin.set_override(mb(50), broker_id=1001)
    state = admin.state()
    assert (state.term, state.leader_address) == (1, led.address("planner-1"))
    assert state.last_cycle is not None and state.last_cycle.start_time.utcoffset() == timedelta(0)
    assert state.overrides == (Override(mb(50), 1001),)


def test_a_request_to_a_follower_goes_to_the_leader(led: House) -> None:
    with planners(led, "planner-2") as client:
        client.run_cycle("a test asks")
    eventually(lambda: "a test asks" in led.planners[0].state().last_cycle.reason)  # type: ignore[union-attr]
    assert led.planners[1].state().last_cycle is None


def test_a_follower_answers_with_the_leaders_state(led: House) -> None:
    with planners(led, "planner-2") as client:
        state = client.state()
    assert (state.leading, state.leader_address, state.term) == (True, led.address("planner-1"), 1)
    assert state.last_cycle is not None and state.failures == {}


def test_without_a_leader_the_error_says_so(house: House, admin: AdminClient) -> None:
    with PlannerClient([house.address("planner-1")], SHORT) as client:
        assert not client.state().leading
        with pytest.raises(NotLeader) as caught:
            client.run_cycle()
        assert caught.value.leader_address == ""
        with pytest.raises(Unavailable, match="no planner leads"):
            client.watch_cycles()
    with (
        AdminClient([house.address("admin")], SHORT) as impatient,
        pytest.raises(Unavailable, match="no planner leads"),
    ):
        impatient.request_cycle()


def test_a_dead_leader_of_which_a_follower_still_speaks_is_unavailable(house: House) -> None:
    dead = nobody()
    house.electorate.begin_term(dead)
    with PlannerClient([house.address("planner-1")], SHORT) as client:
        assert client.state().leader_address == dead
        with pytest.raises(Unavailable, match=dead):
            client.run_cycle()


def test_a_cycle_that_was_asked_for_is_watched_through_either_service(led: House, admin: AdminClient) -> None:
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
def test_a_watch_goes_on_at_the_next_leader_when_the_process_is_gone(led: House, service: str) -> None:
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


def test_a_watch_leaves_a_planner_that_lost_its_term_but_lives_on(led: House) -> None:
    """Its stream stays open and is silent for ever."""
    client = planners(led, "planner-1", "planner-2")
    with client, client.watch_cycles(silence=timedelta(seconds=0.5)) as watch:
        assert take(watch, 1)[0].term == 1
        led.electorate.depose()
        assert take(watch, 1)[0].term == 2


def test_a_watch_ends_when_there_was_no_leader_for_too_long(led: House) -> None:
    with planners(led, "planner-1") as client, client.watch_cycles(outage=SHORT) as watch:
        take(watch, 1)
        led.servers["planner-1"].stop()
        with pytest.raises(Unavailable, match=r"for 0\.5 s"):
            take(watch, 1)


class BrokenPlanner(PlannerServicer):
    """A planner whose streams end early: each sends the numbers of its cycles, or fails without any."""

    def __init__(self, *streams: tuple[int, ...]) -> None:
        self._streams = iter(streams)
        self.asked: list[bool] = []
        """Whether the state was asked for without its cycle, each time."""

    def WatchCycles(
        self, request: planner_pb2.WatchCyclesRequest, context: grpc.ServicerContext
    ) -> Iterator[planner_pb2.WatchCyclesResponse]:
        numbers = next(self._streams)
        for number in numbers:
            yield planner_pb2.WatchCyclesResponse(cycle=types_pb2.Cycle(term=1, number=number))
        if not numbers:
            raise CoreUnavailable("not now")

    def GetState(
        self, request: planner_pb2.GetStateRequest, context: grpc.ServicerContext
    ) -> planner_pb2.GetStateResponse:
        self.asked.append(request.without_cycle)
        return planner_pb2.GetStateResponse(leading=True, term=1)


def test_each_cycle_comes_once_and_each_loss_is_told_once() -> None:
    """Every stream begins with the last cycle."""
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
    assert planner.asked and all(planner.asked), "to find the leader no cycle is needed"


def test_a_silent_leader_is_no_outage(led: House) -> None:
    """The time without a leader begins when it goes, however long it had nothing to say."""
    client = planners(led, "planner-1")
    with client, client.watch_cycles(outage=timedelta(seconds=2), silence=timedelta(seconds=0.2)) as watch:
        take(watch, 1)
        time.sleep(2.5)
        led.servers["planner-1"].stop()
        stopped = time.monotonic()
        with pytest.raises(Unavailable, match="for 2 s"):
            take(watch, 1)
        assert time.monotonic() - stopped > 0.7


def test_closing_the_client_ends_a_watch_that_waits_and_its_thread(led: House) -> None:
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
