"""The live state for the page: one thread reads it from admin, and every open event stream gets the newest version.

A stream that is slow skips versions. While no stream is open, the thread reads less often, for the history. The type to
know is `LiveView`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

import orjson
from google.protobuf.message import Message

from autothrottle.core.errors import AutothrottleError, Unavailable
from autothrottle.core.records import Cycle, OutcomeStatus
from autothrottle.gateway.clusters import FollowedClusters
from autothrottle.gateway.history import LinkHistory
from autothrottle.v1 import admin_pb2
from autothrottle.wire.common import Metadata
from autothrottle_client.explanation import explanation
from autothrottle_client.model import AuditRecord, ClusterState, from_message
from autothrottle_client.overview import Overview, overview
from autothrottle_client.reassignments import Reassignments
from autothrottle_client.tables import audit_sentence, override_scope, override_words

READ_TIMEOUT = timedelta(seconds=1.5)
"""Timeout of each of the two calls of a reading."""

_OPEN_SECONDS = 1.0
"""Time between two readings while a stream is open."""

_IDLE_SECONDS = 10.0
"""Time between two readings while no stream is open: the step of the history."""

_MOST_REST_SECONDS = 4.0
"""Longest rest between two readings, and between two versions of an event, while a stream is open: a page takes a state
of 10 s for old."""

_ALIVE_SECONDS = 2.0
"""Longest time between two events `alive` of a stream."""

_START_SECONDS = 10.0
"""Time after the start in which no failed reading is a problem: the other services of the process start, too."""

_REST = 4
"""The thread rests at least this many times as long as its last reading took: a large cluster takes long to read."""

_BYTES_PER_SECOND = 100_000
"""An event of this size is sent at most once a second, a larger one less often."""

_MOST_EVENTS = 100

_RETRY = b"retry: 2000\r\n\r\n"
"""Time in milliseconds after which a browser connects again."""

_CHECK_SECONDS = 5.0
"""Time between two checks whether the caller of a stream is still allowed."""

log = logging.getLogger(__name__)

Reading = tuple[ClusterState, Reassignments]

_ENCODING = orjson.OPT_UTC_Z | orjson.OPT_OMIT_MICROSECONDS


class AdminReading:
    """Reads the state and the reassignments from admin. Not thread-safe.

    The last cycle of a large cluster has hundreds of kilobytes, so it is fetched only when there is a new one.
    """

    def __init__(self, admin: AdminReader) -> None:
        self._admin = admin
        self._cycle: Cycle | None = None

    def __call__(self) -> Reading:
        """Return the current state and reassignments.

        Raises:
            AutothrottleError: admin answered with an error, or did not answer.
        """
        request = admin_pb2.ListReassignmentsRequest(with_paths=True)
        state = self._state()
        return state, from_message(Reassignments, self._admin.call("ListReassignments", request, READ_TIMEOUT, ()))

    def past(self) -> Sequence[LogEvent]:
        """Return the newest actions of operators, the oldest first.

        Raises:
            AutothrottleError: admin answered with an error, or did not answer.
        """
        request = admin_pb2.ListAuditRecordsRequest(limit=_MOST_EVENTS)
        answer = self._admin.call("ListAuditRecords", request, READ_TIMEOUT, ())
        assert isinstance(answer, admin_pb2.ListAuditRecordsResponse)
        records = [from_message(AuditRecord, record) for record in answer.records]
        return [LogEvent(record.time, audit_sentence(record)) for record in reversed(records)]

    def _state(self) -> ClusterState:
        message = self._fetch_state(without_cycle=True)
        end = message.last_cycle_end.ToDatetime(tzinfo=UTC) if message.HasField("last_cycle_end") else None
        if end is None or self._cycle is None or self._cycle.end_time != end:
            message = self._fetch_state(without_cycle=False)
            self._cycle = from_message(Cycle, message.last_cycle) if message.HasField("last_cycle") else None
        return from_message(ClusterState, message, last_cycle=self._cycle)

    def _fetch_state(self, without_cycle: bool) -> admin_pb2.GetClusterStateResponse:
        request = admin_pb2.GetClusterStateRequest(without_cycle=without_cycle)
        message = self._admin.call("GetClusterState", request, READ_TIMEOUT, ())
        assert isinstance(message, admin_pb2.GetClusterStateResponse)
        return message


class AdminReader(Protocol):
    """The calls of the admin service that read."""

    def call(self, method: str, request: Message, timeout: timedelta, metadata: Metadata) -> Message:
        """Call a method by name and return its response.

        Raises:
            AutothrottleError: the service answered with an error, or did not answer.
        """
        ...


class LogEvent(NamedTuple):
    """Something that happened."""

    time: datetime
    text: str


@dataclass(frozen=True, slots=True)
class _Message:
    """The newest version of one kind of server-sent event."""

    version: int
    data: bytes
    """As it is sent."""
    sent_at: float
    """Monotonic time of this version, in seconds."""


class LiveView:
    """Reads the state in a thread from `start` to `close`, and gives it to streams, explanations and the history."""

    def __init__(
        self,
        read: Callable[[], Reading],
        clusters: FollowedClusters | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
        past: Callable[[], Sequence[LogEvent]] = tuple,
    ) -> None:
        """Start nothing yet.

        Args:
            read: reads the state of the cluster and its reassignments with their paths from admin.
            clusters: other clusters; None: there are none.
            clock: returns the time in UTC.
            monotonic: returns monotonic seconds.
            past: reads what happened before the start, the oldest first.
        """
        self._past: Callable[[], Sequence[LogEvent]] | None = past
        """None: it was read."""
        self._read, self._clusters, self._clock, self._monotonic = read, clusters, clock, monotonic
        self._history = LinkHistory()
        self._events: deque[LogEvent] = deque(maxlen=_MOST_EVENTS)
        self._state: ClusterState | None = None
        self._overview: Overview | None = None
        self._problem = ""
        self._start = monotonic()
        self._read_at: float | None = None
        """Monotonic time of the last reading that succeeded, in seconds; None: none yet."""
        self._messages: Mapping[str, _Message] = {}
        """Kind -> its newest version. Each publication replaces the mapping."""
        self._unencodable: set[str] = set()
        """Kinds whose newest document cannot be encoded."""
        self._thread = threading.Thread(target=self._run, name="gateway-live", daemon=True)
        self._end, self._opened = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._streams = 0
        """Open streams; guarded by `_lock`."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        """Set when there may be newer messages, and then replaced; used only in the loop."""

    def start(self) -> None:
        """Start to read."""
        self._thread.start()
        if self._clusters is not None:
            self._clusters.start(self._opened)

    def close(self) -> None:
        """End all streams and the thread. Idempotent."""
        self._end.set()
        if self._clusters is not None:
            self._clusters.close()
        self._opened.set()
        self._notify()
        if self._thread.is_alive():
            self._thread.join(2 * READ_TIMEOUT.total_seconds())

    async def stream(self, is_allowed: Callable[[], bool] = lambda: True) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events until `close`: the newest version of each kind, as soon as there is one.

        The event `alive` follows them, and comes every some seconds without them: it says how old the state is.

        Args:
            is_allowed: checked every some seconds; the stream ends when it is false.
        """
        loop = self._loop = asyncio.get_running_loop()
        versions: dict[str, int] = {}
        next_check = loop.time() + _CHECK_SECONDS
        self._count(1)
        try:
            yield _RETRY
            while not self._end.is_set():
                changed = self._changed
                yield b"".join([*self._newer(versions), self._alive()])
                with suppress(TimeoutError):
                    async with asyncio.timeout(_ALIVE_SECONDS):
                        await changed.wait()
                if loop.time() > next_check:
                    if not is_allowed():
                        return
                    next_check = loop.time() + _CHECK_SECONDS
        finally:
            self._count(-1)

    def explanation(self, broker_id: int) -> Mapping[str, Any]:
        """Return the lines that say why the throttles of a broker have their rates.

        Raises:
            Unavailable: no state has been read yet.
        """
        if self._state is None:
            raise Unavailable(f"the state of the cluster is not read yet{self._problem and f': {self._problem}'}")
        return {"lines": explanation(self._state, broker_id)}

    def history(self, broker_id: int) -> Mapping[str, Any]:
        """Return the rates of the last hour of both sides of a broker's link."""
        return self._history.document(broker_id, self._clock())

    def _newer(self, versions: dict[str, int]) -> list[bytes]:
        """Return the messages that a stream has not sent, and note their versions."""
        parts = []
        for kind, message in self._messages.items():
            if versions.get(kind) != message.version:
                versions[kind] = message.version
                parts.append(message.data)
        return parts

    def _alive(self) -> bytes:
        """Return the event `alive`: the gateway's time, and the age of the state in seconds; null: it is not read."""
        age = None if self._read_at is None else round(self._monotonic() - self._read_at, 3)
        return _event("alive", orjson.dumps({"time": self._clock(), "age": age}, option=orjson.OPT_UTC_Z))

    def _count(self, difference: int) -> None:
        with self._lock:
            self._streams += difference
            if self._streams or self._end.is_set():
                self._opened.set()
            else:
                self._opened.clear()

    def _notify(self) -> None:
        """Wake all streams."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the server has stopped
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _run(self) -> None:
        while not self._end.is_set():
            begin = self._monotonic()
            self._poll()
            took = self._monotonic() - begin
            if self._opened.is_set():
                # After an error, a new leader shall be seen soon.
                rest = 0.0 if self._problem or self._state is None else min(_REST * took, _MOST_REST_SECONDS)
                self._end.wait(max(_OPEN_SECONDS - took, rest))
            else:
                self._opened.wait(_IDLE_SECONDS)

    def _poll(self) -> None:
        """Read the state once, and publish what has changed."""
        now, begin = self._clock(), self._monotonic()
        try:
            state, reassignments = self._read()
            current = overview(state, reassignments, now)
        except AutothrottleError as error:
            if self._state is not None or begin - self._start >= _START_SECONDS:
                self._note_problem(now, str(error))
        except Exception as error:  # the thread must survive
            if not self._problem:
                log.exception("Cannot prepare the state for the page")
            self._note_problem(now, f"unexpected {type(error).__name__}; report it with the traceback in the log")
        else:
            self._note_problem(now, "")
            self._read_past()
            self._events.extend(events_between(self._state, state, now))
            self._state, self._overview, self._read_at = state, current, begin
            self._history.add(now, current.sides)
        self._publish(begin)

    def _read_past(self) -> None:
        """Put the actions that the audit has before the events of this process, once."""
        if self._past is None:
            return
        try:
            events = self._past()
        except AutothrottleError:
            return  # the next reading tries again
        self._past = None
        self._events = deque([*events, *self._events], maxlen=_MOST_EVENTS)

    def _note_problem(self, now: datetime, problem: str) -> None:
        if bool(problem) != bool(self._problem):
            end = "State read again" if self._state else "State read"
            self._events.append(LogEvent(now, f"Cannot read the state: {problem}" if problem else end))
        self._problem = problem

    def _publish(self, at: float) -> None:
        """Build the messages that have changed, and wake the streams; `at`: monotonic time of the reading."""
        messages = dict(self._messages)
        for kind, document in self._documents():
            last = messages.get(kind)
            pause = min(_MOST_REST_SECONDS, len(last.data) / _BYTES_PER_SECOND) if last else 0.0
            if last is not None and at - last.sent_at < pause - _OPEN_SECONDS / 2:
                continue
            try:
                encoded = orjson.dumps(document, option=_ENCODING)
            except TypeError as error:  # a number beyond 64 bits or a text that is not UTF-8: the thread must survive
                if kind not in self._unencodable:
                    log.warning("Cannot encode %s for the page: %s. The page keeps its last version", kind, error)
                self._unencodable.add(kind)
                continue
            self._unencodable.discard(kind)
            data = _event(kind, encoded)
            if last is None or data != last.data:
                messages[kind] = _Message(last.version + 1 if last else 1, data, at)
        self._messages = messages
        self._notify()

    def _documents(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        yield "now", now_document(self._overview, self._problem)
        if self._overview is not None:
            yield "sides", {"sides": self._overview.sides}
            yield "flows", flows_document(self._overview)
        yield "events", {"events": [event._asdict() for event in reversed(self._events)]}
        if self._clusters is not None:
            yield "clusters", {"clusters": self._clusters.rows()}


def _event(kind: str, data: bytes) -> bytes:
    return b"event: %b\r\ndata: %b\r\n\r\n" % (kind.encode(), data)


def now_document(current: Overview | None, problem: str) -> Mapping[str, Any]:
    """Return the data of the event `now`.

    Args:
        current: the last state that was read; None: none yet.
        problem: why the last reading failed; empty: it did not.
    """
    if current is None:
        return {**dict.fromkeys(_NOW_FIELDS), **_EMPTY_NOW, "problem": problem}
    return {
        **{name: getattr(current, field) for name, field in _NOW_FIELDS.items()},
        "topics": [
            {
                "topic": topic.topic,
                "partitions": topic.partitions,
                "bytesCopied": topic.bytes_copied,
                "bytesLeft": topic.bytes_left,
                "eta": topic.eta,
                "destinations": topic.destinations,
            }
            for topic in current.topics
        ],
        "problem": problem,
    }


_NOW_FIELDS = {
    "cluster": "cluster",
    "at": "at",
    "leader": "leader",
    "cycle": "cycle",
    "bytesLeft": "bytes_left",
    "eta": "eta",
    "etaLow": "eta_low",
    "etaHigh": "eta_high",
    "etaIsStatic": "eta_is_static",
    "downBrokers": "down_brokers",
    "limitedBy": "limited_by",
    "pause": "pause",
    "overrides": "overrides",
    "warnings": "warnings",
    "catchUps": "catch_ups",
}
"""Name in the event `now` -> field of `Overview`."""

_EMPTY_NOW: Mapping[str, Any] = {
    "cluster": "",
    "etaIsStatic": False,
    "limitedBy": "",
    **dict.fromkeys(("downBrokers", "overrides", "warnings", "catchUps", "topics"), ()),
}
"""Fields of the event `now` before the first reading, unless they are null."""


def flows_document(current: Overview) -> Mapping[str, Any]:
    """Return the data of the event `flows`."""
    return {
        "flows": [
            {
                "leader": flow.leader,
                "follower": flow.follower,
                "partitions": flow.partitions,
                "bytesLeft": flow.bytes_left,
                "rate": flow.rate,
            }
            for flow in current.flows
        ]
    }


def events_between(previous: ClusterState | None, current: ClusterState, now: datetime) -> Sequence[LogEvent]:
    """Return what happened between two readings, in order of time. Without a previous one, only the last cycle."""
    events = list(_cycle_events(previous, current))
    if previous is None:
        return events
    if (current.term, current.leader_address) != (previous.term, previous.leader_address):
        events.append(LogEvent(now, f"{current.leader_address or 'No planner'} leads in term {current.term}"))
    if current.pause != previous.pause:
        events.append(LogEvent(now, f"Paused: {current.pause}" if current.pause else "Resumed"))
    overrides = {override.broker_id: override for override in current.overrides}
    previous_overrides = {override.broker_id: override for override in previous.overrides}
    for broker_id, override in overrides.items():
        if previous_overrides.get(broker_id) != override:
            events.append(LogEvent(now, f"Override of {override_scope(broker_id)} set to {override_words(override)}"))
    for broker_id in previous_overrides.keys() - overrides.keys():
        events.append(LogEvent(now, f"Override of {override_scope(broker_id)} removed"))
    return events


def _cycle_events(previous: ClusterState | None, current: ClusterState) -> Iterable[LogEvent]:
    """Yield the last cycle if it is new and failed, wrote something, or started or ended reassignments."""
    last, cycle = previous.last_cycle if previous else None, current.last_cycle
    if cycle is None or (last is not None and (last.term, last.number) == (cycle.term, cycle.number)):
        return
    if cycle.error:
        if last is None or last.error != cycle.error:
            yield LogEvent(cycle.end_time, f"Cycle {cycle.number} failed: {cycle.error}")
        return
    if last is None or cycle.topics != last.topics or any(o.status is OutcomeStatus.APPLIED for o in cycle.outcomes):
        yield LogEvent(cycle.end_time, f"Cycle {cycle.number} ({cycle.reason}): {cycle.sentence}")
    if last is not None:
        yield from (LogEvent(cycle.end_time, finding) for finding in cycle.findings if finding not in last.findings)
