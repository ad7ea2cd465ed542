"""The live state for the page: what its streams send, their limits, and clients that are slow or away."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime, timedelta
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import orjson
import pytest
from google.protobuf.message import Message

from autothrottle.adapters.credentials import Tokens
from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.errors import Unavailable
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.gateway import streams
from autothrottle.gateway.live import AdminReading, LiveView, LogEvent, Reading, events_between, now_document
from autothrottle.gateway.server import MOST_CONNECTIONS_OF_HOST, GatewayServer
from autothrottle.gateway.streams import MOST_STREAMS
from autothrottle.runtime.access import Access
from autothrottle.v1 import admin_pb2
from autothrottle.wire.common import Metadata
from autothrottle_client import (
    ClusterState,
    Cycle,
    Decision,
    Outcome,
    OutcomeStatus,
    Override,
    Pause,
    PauseMode,
    Reason,
    ReassigningTopic,
    Reassignments,
    ReplicaRole,
)
from autothrottle_client.overview import overview
from autothrottle_client.throttlectl import main
from tests.builders import NOON, eventually, mb
from tests.unit.autothrottle.gateway.front import SLACK, Front

STATE = ClusterState(3, "h1:8090", None, (), NOON, cluster_name="prod")
CYCLE = Cycle(3, 1, NOON, NOON, "interval", "no reassignments; throttles are up to date")
WRITTEN = (Outcome(ConfigResource.broker(1006), OutcomeStatus.APPLIED),)
LEADER_CHANGE_SECONDS = 2.0


class Events:
    """An open event stream."""

    def __init__(self, stack: ExitStack, address: str, host: str = "127.0.0.1", **headers: str) -> None:
        connection = HTTPConnection(address, timeout=SLACK, source_address=(host, 0))
        self._connection = stack.enter_context(closing(connection))
        connection.request("GET", "/page/events", headers=headers)
        self.response: HTTPResponse = connection.getresponse()

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    def next(self) -> tuple[str, Any]:
        """Return (kind, data) of the next event."""
        kind = ""
        while line := self.response.readline().decode():
            name, _, value = line.rstrip("\r\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                return kind, json.loads(value)
        raise EOFError

    def until(self, holds: Callable[[str, Any], bool]) -> Any:
        """Return the data of the next event for which this holds."""
        while True:
            kind, data = self.next()
            if holds(kind, data):
                return data

    def of(self, wanted_kind: str) -> Any:
        return self.until(lambda kind, data: kind == wanted_kind)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def led(front: Front) -> Front:
    """The shared gateway; a planner leads."""
    if not front.services.planners[0].state().leading:
        front.services.start_planners()
        eventually(lambda: front.services.planners[0].state().last_cycle)
    return front


def chunks(live: LiveView, count: int, between: Callable[[int], None]) -> list[bytes]:
    """Return this many chunks of one stream; before each one after the first two, call a function."""

    async def collect() -> list[bytes]:
        stream, collected = live.stream(), []
        for number in range(count):
            if number > 1:
                between(number)
            collected.append(await asyncio.wait_for(anext(stream), SLACK))
        await stream.aclose()
        return collected

    return asyncio.run(collect())


# What a stream sends.


def test_a_stream_begins_with_the_newest_version_of_every_event(led: Front, stack: ExitStack) -> None:
    events = Events(stack, led.server.address)
    assert events.response.headers["content-type"].startswith("text/event-stream")
    assert events.response.headers["cache-control"] == "no-store"
    current = events.until(lambda kind, data: kind == "now" and data["leader"] is not None)
    assert (current["cluster"], current["problem"], current["pause"]) == ("kafka", "", None)
    assert current["leader"]["address"] == led.services.address("planner-1")
    assert (events.of("sides"), events.of("flows")) == ({"sides": []}, {"flows": []})


def test_an_override_appears_and_is_an_event(led: Front, stack: ExitStack) -> None:
    events = Events(stack, led.server.address)
    events.of("now")
    led.overrides.set_override(1001, StoredOverride(mb(20)))
    current = events.until(lambda kind, data: kind == "now" and data["overrides"])
    (override,) = current["overrides"]
    assert (override["broker"], override["rate"], override["expires"]) == (1001, mb(20), None)
    assert override["etag"]
    events.until(lambda kind, data: kind == "events" and "broker 1001 set to 20MB/s" in data["events"][0]["text"])


def test_a_new_leader_is_seen_within_two_seconds(stack: ExitStack) -> None:
    with Front(planners=2) as front:
        front.services.start_planners()
        events = Events(stack, front.server.address)
        old = events.until(lambda kind, data: kind == "now" and data["leader"] is not None)["leader"]
        threading.Thread(target=front.services.planners[0].stop).start()
        eventually(lambda: front.services.planners[1].state().leading)
        change = time.monotonic()
        new = events.until(lambda kind, data: kind == "now" and data["leader"] and data["leader"] != old)
        assert time.monotonic() - change < LEADER_CHANGE_SECONDS
        assert new["leader"]["address"] == front.services.address("planner-2")


def test_the_last_cycle_is_fetched_once() -> None:
    """It has hundreds of kilobytes on a large cluster. Fetching it every second took 5 % of a core at 300 brokers."""
    cycles: list[bool] = []
    state = admin_pb2.GetClusterStateResponse(leader_address="h1:8090")
    state.last_cycle.number = 1
    state.last_cycle_end.FromDatetime(NOON)
    state.last_cycle.end_time.FromDatetime(NOON)

    class Admin:
        def call(self, method: str, request: Message, timeout: timedelta, metadata: Metadata) -> Message:
            if isinstance(request, admin_pb2.ListReassignmentsRequest):
                return admin_pb2.ListReassignmentsResponse()
            assert isinstance(request, admin_pb2.GetClusterStateRequest)
            cycles.append(not request.without_cycle)
            answer = admin_pb2.GetClusterStateResponse()
            answer.CopyFrom(state)
            if request.without_cycle:
                answer.ClearField("last_cycle")
            return answer

    def number() -> int | None:
        last = read()[0].last_cycle
        return last.number if last else None

    read = AdminReading(Admin())
    assert [number() for _ in range(3)] == [1, 1, 1]
    assert cycles == [False, True, False, False]
    state.last_cycle.number = 2
    for time_of_end in (state.last_cycle_end, state.last_cycle.end_time):
        time_of_end.FromDatetime(NOON + timedelta(seconds=1))
    assert [number(), number()] == [2, 2] and sum(cycles) == 2
    state.ClearField("last_cycle_end")  # a planner of an earlier version
    assert number() == 2 and sum(cycles) == 3
    state.ClearField("last_cycle")
    assert number() is None


def test_events_begin_with_the_audit_so_that_they_survive_a_restart_of_the_gateway() -> None:
    """The events of the page were lost with the gateway."""
    before = LogEvent(NOON, "Set by anna: cluster, 7MB/s instead of no override")
    answers: Iterator[Exception | list[LogEvent]] = iter([Unavailable("admin is gone"), [before]])
    calls = []

    def past() -> Sequence[LogEvent]:
        answer = next(answers)
        calls.append(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    terms = iter(range(3, 7))
    read = lambda: (replace(STATE, term=next(terms)), Reassignments())  # noqa: E731
    live = LiveView(read, clock=lambda: NOON, past=past)
    for _ in range(4):
        live._poll()
    assert len(calls) == 2, "read once, as soon as admin answers"
    texts = [event["text"] for event in dict(live._documents())["events"]["events"]]
    assert texts == [*(f"h1:8090 leads in term {term}" for term in (6, 5, 4)), before.text]


def test_the_audit_is_read_from_admin_the_oldest_first() -> None:
    class Admin:
        def call(self, method: str, request: Message, timeout: timedelta, metadata: Metadata) -> Message:
            assert method == "ListAuditRecords"
            answer = admin_pb2.ListAuditRecordsResponse()
            for number, action in ((2, admin_pb2.AuditRecord.ACTION_SUBMIT), (1, 99)):
                record = answer.records.add(number=number, who="anna at 1.2.3.4:5", action=action, result=f"r{number}")
                record.time.FromDatetime(NOON + timedelta(seconds=number))
            return answer

    assert [event.text for event in AdminReading(Admin()).past()] == ["Unknown by anna: r1", "Submit by anna: r2"]


def test_an_outage_of_admin_keeps_the_last_state_with_the_problem() -> None:
    readings: list[Reading | Exception] = [(STATE, Reassignments()), Unavailable("admin is gone"), KeyError("bug")]

    def read() -> Reading:
        reading = readings.pop(0)
        if isinstance(reading, Exception):
            raise reading
        return reading

    live = LiveView(read, clock=lambda: NOON)
    live._poll()
    _, _, outage, bug = chunks(live, 4, lambda number: live._poll())
    assert b'"problem":"admin is gone"' in outage and b'"address":"h1:8090"' in outage and b"event: sides" not in outage
    assert b'"problem":"unexpected KeyError; report it' in bug


def test_a_reading_that_fails_during_the_start_is_no_problem() -> None:
    """Every start had the event that the state cannot be read: the admin service of the process started later."""
    seconds = 100.0
    readings: list[Reading | Exception] = [Unavailable("starts"), Unavailable("starts"), (STATE, Reassignments())]

    def read() -> Reading:
        reading = readings.pop(0)
        if isinstance(reading, Exception):
            raise reading
        return reading

    live = LiveView(read, clock=lambda: NOON, monotonic=lambda: seconds)
    live._poll()
    seconds = 109.9
    live._poll()
    live._poll()
    (chunk,) = chunks(live, 2, lambda number: None)[1:]
    assert b'"problem":""' in chunk and b'{"events":[]}' in chunk


def test_a_reading_that_fails_after_the_start_is_a_problem_until_the_first_state() -> None:
    seconds = 100.0
    readings: list[Reading | Exception] = [Unavailable("admin is gone"), (STATE, Reassignments())]

    def read() -> Reading:
        reading = readings.pop(0)
        if isinstance(reading, Exception):
            raise reading
        return reading

    live = LiveView(read, clock=lambda: NOON, monotonic=lambda: seconds)
    seconds = 110.0
    live._poll()
    live._poll()
    assert [event.text for event in live._events] == ["Cannot read the state: admin is gone", "State read"]


def test_a_stream_says_how_old_the_state_is() -> None:
    """A page showed an old state as a new one: without a change, its stream was silent, as after the gateway's end."""
    seconds = 0.0
    live = LiveView(lambda: (STATE, Reassignments()), clock=lambda: NOON, monotonic=lambda: seconds)

    def ages(count: int) -> list[float | None]:
        return [
            orjson.loads(line[6:])["age"]
            for chunk in chunks(live, 1 + count, lambda number: None)[1:]
            for line in chunk.split(b"\r\n")
            if line.startswith(b'data: {"time"')
        ]

    assert ages(1) == [None]
    live._poll()
    seconds = 7.5
    start = time.monotonic()
    assert ages(2) == [7.5, 7.5]
    assert time.monotonic() - start < SLACK


def test_before_the_first_reading_every_field_is_there() -> None:
    empty = now_document(None, "admin is gone")
    full = now_document(overview(STATE, Reassignments(), NOON), "")
    assert empty.keys() == full.keys()


def test_explanations_fail_until_the_first_reading() -> None:
    live = LiveView(lambda: (STATE, Reassignments()))
    with pytest.raises(Unavailable, match="is not read yet"):
        live.explanation(1001)


# Events.


def texts(previous: ClusterState | None, current: ClusterState) -> list[str]:
    return [event.text for event in events_between(previous, current, NOON)]


def test_changes_between_two_readings_are_events() -> None:
    cycle = replace(CYCLE, number=2, topics=("orders",), sentence="1 topics in reassignment", findings=("f",))
    paused = Pause(PauseMode.KEEP, "anna", NOON, "why")
    current = replace(STATE, term=4, leader_address="h2:8090", last_cycle=cycle, overrides=(Override(mb(5)),))
    assert texts(replace(STATE, last_cycle=CYCLE), replace(current, pause=paused)) == [
        "Cycle 2 (interval): 1 topics in reassignment",
        "f",
        "h2:8090 leads in term 4",
        "Paused: keep, since 2026-11-02T12:00:00Z, by anna: why",
        "Override of cluster set to 5MB/s",
    ]
    assert texts(replace(current, pause=paused), replace(current, overrides=())) == [
        "Resumed",
        "Override of cluster removed",
    ]
    assert texts(current, current) == []


def test_idle_cycles_and_repeated_errors_are_no_events() -> None:
    failed = replace(CYCLE, number=2, error="no snapshot")
    assert texts(replace(STATE, last_cycle=CYCLE), replace(STATE, last_cycle=replace(CYCLE, number=2))) == []
    assert texts(replace(STATE, last_cycle=CYCLE), replace(STATE, last_cycle=failed)) == ["Cycle 2 failed: no snapshot"]
    assert texts(replace(STATE, last_cycle=failed), replace(STATE, last_cycle=replace(failed, number=3))) == []
    written = replace(CYCLE, number=3, outcomes=WRITTEN)
    assert texts(replace(STATE, last_cycle=CYCLE), replace(STATE, last_cycle=written)) == [
        "Cycle 3 (interval): no reassignments; throttles are up to date"
    ]


# Streams whose clients are slow or away.


def test_a_page_that_sleeps_skips_to_the_newest_version() -> None:
    """An hour of versions passes while the page does not read. It gets one of each event."""
    terms = iter(range(1, 10_000))
    live = LiveView(lambda: (replace(STATE, term=next(terms)), Reassignments()), clock=lambda: NOON)
    live._poll()

    def hour(number: int) -> None:
        for _ in range(3600):
            live._poll()

    *_, newest = chunks(live, 3, hour)
    assert newest.count(b"event: now") == 1 and b'"term":3601' in newest
    (line,) = (line for line in newest.split(b"\r\n") if line.startswith(b'data: {"events"'))
    assert len(orjson.loads(line[6:])["events"]) == 100


def test_large_events_are_sent_less_often() -> None:
    """A recovery of 1,000 brokers has 0.4 MB of link sides, which change every second."""
    rates, seconds = iter(range(10_000)), iter(float(second) for second in range(10_000))

    def read() -> Reading:
        rate = next(rates)
        decisions = tuple(Decision(b, ReplicaRole.LEADER, rate, Reason.HEADROOM) for b in range(3000))
        return replace(STATE, last_cycle=replace(CYCLE, decisions=decisions)), Reassignments()

    live = LiveView(read, clock=lambda: NOON, monotonic=lambda: next(seconds))
    for _ in range(13):
        live._poll()
    sides = live._messages["sides"]
    assert 400_000 < len(sides.data) < 460_000
    assert sides.version == 1 + 12 // 4


def test_a_value_that_cannot_be_encoded_keeps_the_other_events(caplog: pytest.LogCaptureFixture) -> None:
    """The thread would end, and every page would show its last state for ever, without a problem."""
    strange = replace(STATE, last_cycle=replace(CYCLE, sentence="\ud800"), pause=None)
    states = iter([STATE, strange, strange, replace(STATE, term=4)])
    live = LiveView(lambda: (next(states), Reassignments()), clock=lambda: NOON)
    live._poll()
    first = live._messages["now"]
    for _ in range(2):
        live._poll()
        assert live._messages["now"] is first
    assert caplog.text.count("Cannot encode now for the page") == 1
    live._poll()
    assert b'"term":4' in live._messages["now"].data


def large_reader() -> Iterator[Reading]:
    """States with a sentence of 50 kB, all different."""
    for number in range(1, 10_000):
        yield (
            replace(STATE, term=number, last_cycle=replace(CYCLE, number=number, sentence="x" * 50_000)),
            Reassignments(),
        )


def test_a_client_that_does_not_read_is_dropped_and_the_others_stay_current(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SEND_SECONDS", 0.5)
    monkeypatch.setattr("autothrottle.gateway.live._OPEN_SECONDS", 0.01)
    monkeypatch.setattr("autothrottle.gateway.live._REST", 0)
    monkeypatch.setattr("autothrottle.gateway.live._BYTES_PER_SECOND", 10**9)
    states = large_reader()
    live = LiveView(lambda: next(states))
    with GatewayServer(None, "127.0.0.1:0", live=live) as server:
        host, _, port = server.address.rpartition(":")
        silent = stack.enter_context(socket.socket())
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect((host, int(port)))
        silent.sendall(b"GET /page/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        other = Events(stack, server.address)
        eventually(lambda: live._streams == 2)
        begin = time.monotonic()
        while live._streams == 2:
            before_read = live._state
            assert before_read is not None
            term = other.of("now")["leader"]["term"]
            assert term >= before_read.term - 50
            assert time.monotonic() - begin < SLACK
        again = Events(stack, server.address)
        assert live._state is not None
        newest = live._state.term
        assert again.of("now")["leader"]["term"] >= newest


# Limits and roles.


def test_streams_have_a_limit_of_their_own_half_of_it_for_one_host(led: Front, stack: ExitStack) -> None:
    """More streams than connections of a host: all browsers of a company may come from one address of a proxy."""
    assert MOST_STREAMS // 2 > MOST_CONNECTIONS_OF_HOST
    opened = [Events(stack, led.server.address) for _ in range(MOST_STREAMS // 2)]
    refused = Events(stack, led.server.address)
    assert refused.response.status == 429
    message = json.loads(refused.response.read())["message"]
    assert "128 open event streams of 127.0.0.1, which is the limit" in message
    assert {events.response.status for events in opened} == {200}
    assert Events(stack, led.server.address, "127.0.0.2").of("now")
    assert led.ask("GET", "/v1/overrides").status == 200
    assert opened[0].of("now")
    opened[-1].close()
    eventually(lambda: Events(stack, led.server.address).response.status == 200)


def test_streams_outlive_the_time_limit_of_requests(
    led: Front, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autothrottle.gateway.server._MOST_REQUEST_SECONDS", 0.2)
    events = Events(stack, led.server.address)
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        assert events.of("now")


def test_the_connection_of_a_stream_serves_no_further_request(led: Front) -> None:
    reply = led.ask("HEAD", "/page/events")
    assert (reply.status, reply.text) == (200, "")
    assert led.ask("POST", "/page/events").status == 405


def test_a_stream_needs_a_viewer_and_ends_with_its_token(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autothrottle.gateway.live._CHECK_SECONDS", 0.0)
    tokens = tmp_path / "tokens"
    tokens.write_text("anna token-of-anna-1234 viewer\nben token-of-ben-123456\n")
    with Front(access=Access(tokens=Tokens(str(tokens)))) as front:
        assert Events(stack, front.server.address).response.status == 401
        assert front.ask("GET", "/page/explain/1001").status == 401
        assert front.ask("GET", "/page/history/1001").status == 401
        events = Events(stack, front.server.address, authorization="Bearer token-of-anna-1234")
        assert events.of("now")
        tokens.write_text("ben token-of-ben-123456\n")
        with pytest.raises(EOFError):
            events.until(lambda kind, data: False)


def test_a_stop_of_the_server_ends_its_streams_at_once(stack: ExitStack) -> None:
    with Front() as front:
        events = Events(stack, front.server.address)
        events.of("now")
        begin = time.monotonic()
        front.server.stop()
        assert time.monotonic() - begin < 3
    with pytest.raises(EOFError):
        events.until(lambda kind, data: False)


def test_a_gateway_without_a_live_state_has_no_streams() -> None:
    with GatewayServer(None, "127.0.0.1:0") as server, closing(HTTPConnection(server.address, timeout=SLACK)) as client:
        client.request("GET", "/page/events")
        assert client.getresponse().status == 404


@pytest.mark.parametrize("broker", ["x", "-1", "2147483648", "1e3", "1001%00", "%E0"])
def test_a_wrong_broker_is_refused_with_the_fix(led: Front, broker: str) -> None:
    for route in ("explain", "history"):
        reply = led.ask("GET", f"/page/{route}/{broker}")
        assert reply.status == 400 and "is not a broker id" in reply.json["message"]


# The page, `top` and `explain` say the same.


def snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def as_terminal(value: Any) -> Any:
    """Return the data of the page with the names of `throttlectl top -o json`, and times to the second."""
    if isinstance(value, dict):
        return {snake(name): as_terminal(item) for name, item in value.items()}
    if isinstance(value, list):
        return [as_terminal(item) for item in value]
    if isinstance(value, str) and value[4:5] == "-" and value.endswith("Z"):
        return datetime.fromisoformat(value).replace(microsecond=0)
    return value


def test_top_and_explain_say_what_the_page_says(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Front() as front:
        services, cluster = front.services, front.services.cluster
        cluster.add_topic("orders", {0: [1001, 1002], 1: [1002, 1003]})
        for broker_id in (1001, 1002, 1003, 1004):
            cluster.log_bytes[broker_id] = {("orders", partition): 4_000_000_000 for partition in (0, 1)}
        cluster.log_bytes[1004] = {("orders", 0): 1_000_000_000, ("orders", 1): 0}
        moment = datetime.now(tz=NOON.tzinfo)
        cluster.tell_progress(lambda: moment)
        cluster.submit_reassignment("orders", {0: [1001, 1004], 1: [1002, 1004]})
        front.overrides.set_override(1002, StoredOverride(mb(30)))
        services.start_planners()
        monkeypatch.setenv("AUTOTHROTTLE_ADMIN_ADDR", services.address("admin"))
        pairs: list[tuple[Any, Any]] = []

        def has_cycle_of_page() -> bool:
            assert main(["top", "-o", "json"]) == 0
            terminal = json.loads(capsys.readouterr().out)
            events = Events(stack, front.server.address)
            page = {**events.of("now"), **events.of("sides"), **events.of("flows")}
            pairs.append((as_terminal(terminal), as_terminal(page)))
            return bool(terminal["cycle"]) and pairs[-1][0]["cycle"] == pairs[-1][1]["cycle"]

        eventually(has_cycle_of_page)
        terminal, page = pairs[-1]
        assert len(terminal["sides"]) > 3 and len(terminal["flows"]) == 2 and terminal["limited_by"]
        assert page.pop("problem") == ""
        assert {**page, "at": terminal["at"]} == terminal

        assert main(["explain", "1004", "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == front.ask("GET", "/page/explain/1004").json
        assert main(["top", "--once"]) == 0
        text = capsys.readouterr().out
        assert all(side["reason"] in text for side in terminal["sides"])


# Hostile values.

HOSTILE = (
    "<script>alert(1)</script>",
    "\n\nevent: now\ndata: {}\n\n",
    "\r\rdata: x",
    "\x1b[2J\x1b]0;title\x07",
    "[bold red]markup[/]",
    "[/]",
    "\u2028\u2029\u202e\ufeff",
    '"}]}</',
    "\x00",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_values_of_others_stay_texts_in_events(text: str) -> None:
    cycle = replace(CYCLE, sentence=text, findings=(text,), reason=text, topics=(text,))
    hostile = replace(
        STATE, last_cycle=cycle, pause=Pause(PauseMode.KEEP, text, NOON, text), cluster_name=text, warnings=(text,)
    )
    listing = Reassignments((ReassigningTopic(text, (0,), (1,), (2,), 1),))
    live = LiveView(lambda: (hostile, listing), clock=lambda: NOON)
    live._poll()
    _, data = chunks(live, 2, lambda number: None)
    lines = [line for line in data.split(b"\r\n") if line]
    assert [line[:6] for line in lines] == [b"event:", b"data: "] * (len(lines) // 2)
    assert b"\n" not in b"".join(lines) and b"\r" not in b"".join(lines)
    current = json.loads(lines[1][6:])
    assert (current["cluster"], current["topics"][0]["topic"], current["pause"]["reason"]) == (text, text, text)


def test_the_history_of_a_recovery_is_served(led: Front) -> None:
    document = led.ask("GET", "/page/history/1001").json
    assert document.keys() == {"from", "seconds", "leader", "follower"}
    assert document["leader"].keys() == {"capacity", "clients", "replication", "throttle"}
