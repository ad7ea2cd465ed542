"""The calls of a planner's cycle to other services, watched, and the callers that wait for the cycle.

`Observer` reads all input of a cycle, and `Applier` carries out its decision; a source that cannot be read is an error
in the observation, and `step` decides what that means. `SettingsReader` reads broker and topic settings in the
background. `Submissions` has the callers that wait for a reassignment to be submitted. `PlannerDependencies` has the
ports.

A loop that does not turn must not keep its term. So the thread says to the `Watchdog` which part of its work it enters.
A part that computes may be blocked for 5 s. A call to another service has its own time-out, and 2 s more. Time in which
the thread uses the CPU does not count as blocked, since a cycle of a million partitions computes for seconds, and
longer on a busy machine. Its CPU time has a limit that grows with the cluster. Time in which the whole process was
stopped does not count.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeVar

from autothrottle.core.cluster.configs import ClusterSettings, ConfigResource
from autothrottle.core.cluster.snapshot import Assignment, Snapshot, SnapshotRequest, TopicPartition, TopicReassignment
from autothrottle.core.cycle.client_quotas import quotas_needed
from autothrottle.core.cycle.decision import (
    Action,
    ActionResult,
    CycleDecision,
    CycleResults,
    PurgeCatchUp,
    PurgeOverride,
    PurgeQuota,
)
from autothrottle.core.cycle.input import (
    CycleObservation,
    KnownLoads,
    PlannerSettings,
    SettingsReading,
    TermState,
    needed,
    partitions_with_isr,
)
from autothrottle.core.errors import AutothrottleError, Conflict, NotLeader, Unavailable
from autothrottle.core.operators.sources import SourceReadings, adopted
from autothrottle.core.operators.submission import CHECK_FIRST, SubmissionRequest, Targets
from autothrottle.core.quotas.keys import ClientReading, QuotaState
from autothrottle.core.records import Outcome, OutcomeStatus, Submission
from autothrottle.core.retries import METRICS, SETTINGS, Retry
from autothrottle.core.throttles.changes import Change
from autothrottle.core.traffic.loads import Loads
from autothrottle.ports.kafka import ConfigWriter, FetchSettingsSource, QuotaSource, Reassigner, SnapshotSource, Term
from autothrottle.ports.state_store import (
    CatchUpStore,
    Election,
    OverrideStore,
    PauseStore,
    TemporaryQuotaStore,
    YieldRuleStore,
)
from autothrottle.ports.telemetry import UNTRACED, Attribute, DecisionSink, EventSink, LoadSource, Span, Tracer
from autothrottle.wire.common import MAX_SNAPSHOT_PARTITIONS

log = logging.getLogger(__name__)

T = TypeVar("T")

CLUSTER_TIMEOUT = timedelta(seconds=20)
"""Timeout for reading from and writing to the cluster: enough to read 100,000 partitions."""


@dataclass(frozen=True, slots=True)
class PlannerDependencies:
    """The ports that a planner uses."""

    election: Election
    snapshots: SnapshotSource
    loads: LoadSource
    events: EventSink
    writer: ConfigWriter
    reassigner: Reassigner
    overrides: OverrideStore
    pauses: PauseStore
    catch_ups: CatchUpStore
    settings: FetchSettingsSource
    quotas: QuotaSource
    temporary_quotas: TemporaryQuotaStore
    yield_rules: YieldRuleStore
    tracer: Tracer = UNTRACED
    decisions: DecisionSink | None = None
    """The decision log; None: decisions are not logged."""
    broker_pools: Callable[[], Mapping[int, str]] = dict
    """Returns broker id -> the only pool that it is in, for the exported metrics."""
    access_problems: Callable[[], Sequence[str]] = tuple
    """Returns a sentence for each credential whose changed file is faulty, and for each problem of the state store; for
    the findings of a cycle."""
    on_failure: Callable[[], None] = lambda: None
    """Ends the process. The planner's thread calls it after its loop has failed and its term is given up."""


PATIENCE = timedelta(seconds=5)
"""Longest time in which a part is blocked, and the CPU time of a part in a small cluster."""

_CALL_SLACK = timedelta(seconds=2)
"""Time by which a call may exceed its time-out, on a busy machine."""

_PARTITIONS_PER_CPU_SECOND = 50_000
"""A part may use one second more for so many partitions. The whole pure cycle takes 5 s for a million."""

_PROGRESS_SECONDS = 0.05
"""A thread that uses so much CPU time within `PATIENCE` is not blocked: 1 % of a CPU."""

_POLL_SECONDS = 0.2

_LONGEST_STEP_SECONDS = 1.0
"""Longer gaps between two polls are stops of the process or of the machine, which do not count."""

_WATCHDOG_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What the thread does since it has entered this part."""

    name: str
    blocked_seconds: float
    """Limit of the time without CPU time."""
    cpu_seconds: float
    """Limit of the CPU time."""


@dataclass(slots=True)
class _Progress:
    """The progress of a part, as the watchdog sees it."""

    part: _Part | None
    cpu_at_start: float
    cpu: float
    """CPU time at the last progress."""
    at: float
    """Time of the last progress."""


class Watchdog:
    """Calls `on_stall` when the watched thread exceeds a limit, and `on_recovery` when it rests again afterwards.

    Both calls come from the watchdog's thread, one after the other.
    """

    def __init__(self, on_stall: Callable[[str], None], on_recovery: Callable[[], None]) -> None:
        """Watch nothing yet. `on_stall` receives the part, and for how long it was blocked or busy."""
        self._on_stall, self._on_recovery = on_stall, on_recovery
        self._part: _Part | None = None
        self._cpu_clock: int | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="planner-watchdog", daemon=True)
        self.stall = ""
        """Where the thread is stuck; "": it turns."""
        self.abandoned_fence = 0
        """Terms up to this one are given up although their cycle may still run; it must not write."""

    def start(self) -> None:
        """Watch the calling thread until `close`."""
        # Not on macOS; then every part counts as blocked.
        clock_of = getattr(time, "pthread_getcpuclockid", None)
        self._cpu_clock = clock_of(threading.get_ident()) if clock_of else None
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_WATCHDOG_CLOSE_SECONDS)

    def enter(self, part: str, reassignments: Iterable[TopicReassignment] = ()) -> None:
        """Note that the thread begins a part that computes; its limit grows with the partitions in reassignment."""
        patience, partitions = PATIENCE.total_seconds(), sum(len(r.partitions) for r in reassignments)
        self._part = _Part(part, patience, patience + partitions / _PARTITIONS_PER_CPU_SECOND)

    def rest(self) -> None:
        """Note that the thread waits for work."""
        self._part = None

    @contextmanager
    def waiting(self, part: str, timeout: timedelta) -> Iterator[None]:
        """Note that the thread waits for a call with this time-out; its earlier part begins anew afterwards."""
        earlier, limit = self._part, (timeout + _CALL_SLACK).total_seconds()
        self._part = _Part(part, limit, limit)
        try:
            yield
        finally:
            self._part = None if earlier is None else replace(earlier)

    def _run(self) -> None:
        last, clock, progress = time.monotonic(), 0.0, _Progress(None, 0.0, 0.0, 0.0)
        while not self._closed.wait(_POLL_SECONDS):
            now = time.monotonic()
            clock, last = clock + min(now - last, _LONGEST_STEP_SECONDS), now
            part, cpu = self._part, self._cpu_time()
            if part is not progress.part:
                progress = _Progress(part, cpu, cpu, clock)
            elif cpu - progress.cpu >= _PROGRESS_SECONDS:
                progress.cpu, progress.at = cpu, clock
            if self.stall and part is None:
                self.stall = ""
                self._on_recovery()
            elif not self.stall and (stall := _stall(progress, cpu, clock)):
                self.stall = stall
                self._on_stall(stall)

    def _cpu_time(self) -> float:
        try:
            return 0.0 if self._cpu_clock is None else time.clock_gettime(self._cpu_clock)
        except OSError:  # the thread has ended
            return 0.0


def _stall(progress: _Progress, cpu: float, clock: float) -> str:
    """Return the part and the limit that it exceeds; "": none."""
    part = progress.part
    if part is None:
        return ""
    if clock - progress.at > part.blocked_seconds:
        return f"{part.name}, blocked for {part.blocked_seconds:g} s"
    if cpu - progress.cpu_at_start > part.cpu_seconds:
        return f"{part.name}, busy for {part.cpu_seconds:g} s of CPU time"
    return ""


class Submissions:
    """The current submission, and cancellations for the next cycle. Thread-safe.

    A caller proposes a reassignment and waits. Cycles see its `SubmissionRequest`, throttle it and, when its throttles
    are in place, claim it: from then on its caller can no longer withdraw it.

    A submission ends once, with a result or an error. Its future is running from the claim on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets = self._fence = 0
        self._current: tuple[SubmissionRequest, Future[Submission]] | None = None
        """The last proposal and its end; guarded by `_lock`."""
        self._cancelled: frozenset[TopicPartition] = frozenset()

    def propose(self, fence: int, targets: Targets) -> Future[Submission]:
        """Propose a reassignment; the caller then waits for its end.

        Raises:
            Conflict: another submission is in progress.
        """
        with self._lock:
            if self._open() is not None:
                raise Conflict("another submission is in progress: nothing was submitted; try again in a few seconds")
            self._tickets, self._fence = self._tickets + 1, fence
            end = Future[Submission]()
            self._current = SubmissionRequest(self._tickets, targets), end
            return end

    def wait(self, end: Future[Submission], timeout: timedelta) -> Submission:
        """Wait for the result and return it; withdraw the reassignment on timeout.

        Raises:
            AutothrottleError: why it was not submitted.
            Unavailable: timeout; the message says whether it may have been submitted.
        """
        seconds = timeout.total_seconds()
        with suppress(TimeoutError):
            return end.result(seconds)
        with self._lock:
            if end.running():
                raise Unavailable(
                    f"Kafka did not answer within {seconds:.3g} s: the reassignment may have been submitted; "
                    f"{CHECK_FIRST}"
                )
            if not end.done():
                end.set_exception(
                    Unavailable(
                        f"the throttles were not in place within {seconds:.3g} s: nothing was submitted; try again"
                    )
                )
        return end.result()

    def fail(self, error: AutothrottleError) -> None:
        """Fail the current submission, unless Kafka may have received it."""
        with self._lock:
            if (end := self._open()) and not end.running():
                end.set_exception(error)

    def begin_term(self, fence: int) -> None:
        """Forget the cancellations of the previous term, and fail its submission."""
        self.take_cancelled()
        if self._fence != fence:
            self.fail(NotLeader("the term ended: nothing was submitted; call the leader"))

    def cancel(self, rows: Collection[TopicPartition]) -> None:
        """Let the next cycle forget that these partitions were submitted."""
        with self._lock:
            self._cancelled = self._cancelled.union(rows)

    def take_cancelled(self) -> frozenset[TopicPartition]:
        """Return the partitions that were cancelled since the last call."""
        with self._lock:
            cancelled, self._cancelled = self._cancelled, frozenset()
            return cancelled

    @property
    def request(self) -> SubmissionRequest | None:
        """The reassignment that a caller waits for; None: no caller waits."""
        current = self._current
        return current[0] if current is not None and not current[1].done() else None

    def claim(self, ticket: int) -> bool:
        """Return whether this reassignment may be submitted. If so, the caller can no longer withdraw it."""
        with self._lock:
            end = self._open(ticket)
            return end is not None and (end.running() or end.set_running_or_notify_cancel())

    def answer(self, ticket: int, result: Submission | AutothrottleError) -> None:
        """Set the result for the caller. Only the first call counts."""
        with self._lock:
            if end := self._open(ticket):
                if isinstance(result, Submission):
                    end.set_result(result)
                else:
                    end.set_exception(result)

    def _open(self, ticket: int | None = None) -> Future[Submission] | None:
        """Return the end of the current submission if it has not ended, and has this ticket if one is given."""
        if self._current is None or self._current[1].done() or ticket not in (None, self._current[0].ticket):
            return None
        return self._current[1]


LONGEST_METRICS_WAIT = timedelta(seconds=15)

_METRICS_SHARE = 2 / 5
"""Timeout for reading metrics, as a share of the interval: the whole cycle then takes less than half of it."""

SETTINGS_TIMEOUT = timedelta(seconds=5)

CLIENTS_TIMEOUT = timedelta(seconds=5)
"""Timeout for reading the known clients, beside the cluster and the loads: an old reading is good enough."""

_STORE_TIMEOUT = timedelta(seconds=10)
"""Timeout of one read from the state store: two requests to ZooKeeper."""

_READER_CLOSE_SECONDS = 6.0


class _ClusterReading(NamedTuple):
    snapshot: Snapshot | AutothrottleError
    isr_partitions: frozenset[TopicPartition]
    """Partitions on brokers whose out-of-sync replicas are throttled."""
    ended_partitions: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Observer:
    """Reads the input of one planner's cycles."""

    dependencies: PlannerDependencies
    settings: PlannerSettings
    submissions: Submissions
    reader: SettingsReader
    probe: LoadsProbe
    watchdog: Watchdog
    now: Callable[[], datetime]
    clock: Callable[[], float]

    def observe(self, term: TermState, scheduled: bool, newest_event: int) -> CycleObservation:
        """Read everything that a cycle needs; quotas and clients at the same time as the cluster.

        Args:
            term: the state of the term.
            scheduled: whether it is the regular cycle of an interval.
            newest_event: minimum version of the snapshot.
        """
        readings = SourceReadings(
            self._read_store(self.dependencies.pauses.read_pause),
            self._read_store(self.dependencies.overrides.read_overrides),
            self._read_store(self.dependencies.catch_ups.read),
            self._read_store(self.dependencies.temporary_quotas.read),
            self._read_store(self.dependencies.yield_rules.read),
        )
        request, cancelled = self.submissions.request, self.submissions.take_cancelled()
        snapshot: Snapshot | AutothrottleError
        isr_partitions, loads, clients, quotas = term.isr_partitions, None, None, None
        ended_partitions = frozenset[TopicPartition]()
        sources = adopted(term.sources, readings)
        if sources.error is not None:
            snapshot = sources.error
        else:
            snapshot_request = needed(term, sources.latest, request, self.now())
            entities = quotas_needed(term.quotas, term.ledger, sources.latest, self.clock())
            is_due = term.quotas.yields.is_reading_due(sources.latest.rules, self.clock())
            with ThreadPoolExecutor(2, "quotas") as executor:
                fetching = None if entities is None else self._begin(executor, partial(self._fetch_quotas, entities))
                are_clients_due = is_due and sources.latest.pause is None
                reading = self._begin(executor, self._fetch_clients) if are_clients_due else None
                reading_cluster, loads = self._read(term, snapshot_request, scheduled, newest_event)
                snapshot, isr_partitions, ended_partitions = reading_cluster
                with self.watchdog.waiting("reading quotas", CLUSTER_TIMEOUT):
                    quotas = None if fetching is None else fetching.result()
                    clients = None if reading is None else reading.result()
        return CycleObservation(
            at=self.now(),
            clock=self.clock(),
            scheduled=scheduled,
            sources=sources,
            snapshot=snapshot,
            isr_partitions=isr_partitions,
            loads=loads,
            settings=self.reader.reading,
            quotas=quotas,
            clients=clients,
            request=request if request is self.submissions.request else None,
            cancelled=cancelled,
            ended_partitions=ended_partitions,
        )

    def _read(
        self, term: TermState, snapshot_request: SnapshotRequest, scheduled: bool, newest_event: int
    ) -> tuple[_ClusterReading, KnownLoads | None]:
        """Read the cluster and, if they are due, the loads at the same time."""
        has_returned = self.probe.take_return()
        are_due = scheduled or has_returned or term.loads.are_due(self.clock(), self.settings.metrics_window)
        cluster: _ClusterReading
        with ThreadPoolExecutor(1, "loads") as executor:
            fetching = self._begin(executor, self._fetch_loads) if are_due else None
            try:
                with self.dependencies.tracer.span("discovery"):
                    cluster = self._fetch_snapshot(term, snapshot_request, newest_event)
            except AutothrottleError as error:
                cluster = _ClusterReading(error, term.isr_partitions)
            if fetching is not None:
                with self.watchdog.waiting("reading loads", LONGEST_METRICS_WAIT):
                    return cluster, fetching.result()
        with self.dependencies.tracer.span("metrics") as span:
            if term.loads.error:
                span.fail(term.loads.error)
        return cluster, None

    def _fetch_snapshot(self, term: TermState, snapshot_request: SnapshotRequest, newest_event: int) -> _ClusterReading:
        """Return the cluster with the assignments that the first reading shows to be needed.

        Those are the partitions on brokers whose out-of-sync replicas are throttled: brokers that catch up, and
        brokers with an override that take part in a reassignment. And those whose reassignment has ended since the
        last cycle. A change of them needs a second reading.
        """
        request = replace(snapshot_request, min_version=max(term.version, newest_event))
        snapshot = _fetch_in_parts(self._fetch_from_discovery, request)
        isr_partitions = partitions_with_isr(request, snapshot)
        ended, requested = term.moves.ended(snapshot), frozenset(request.partitions)
        if not (isr_partitions <= requested and ended <= requested):
            requested = requested | isr_partitions | ended
            request = replace(request, partitions=tuple(sorted(requested)))
            snapshot = _fetch_in_parts(self._fetch_from_discovery, request)
            ended = term.moves.ended(snapshot) & requested
        return _ClusterReading(snapshot, isr_partitions, ended)

    def _fetch_from_discovery(self, request: SnapshotRequest) -> Snapshot:
        with self.watchdog.waiting("reading the cluster", CLUSTER_TIMEOUT):
            return self.dependencies.snapshots.fetch_snapshot(request, timeout=CLUSTER_TIMEOUT)

    def _read_store(self, call: Callable[[], T]) -> T | AutothrottleError:
        with self.watchdog.waiting("reading the state store", _STORE_TIMEOUT):
            return _attempt(call)

    @staticmethod
    def _begin(executor: ThreadPoolExecutor, fetch: Callable[[], T]) -> Future[T]:
        return executor.submit(copy_context().run, fetch)

    def _fetch_quotas(self, resources: Collection[ConfigResource]) -> QuotaState | AutothrottleError:
        return _attempt_optional(
            "the client quotas", partial(self.dependencies.quotas.fetch_quota_state, resources, CLUSTER_TIMEOUT)
        )

    def _fetch_clients(self) -> ClientReading | AutothrottleError:
        return _attempt_optional("the clients", partial(self.dependencies.quotas.fetch_clients, CLIENTS_TIMEOUT))

    def _fetch_loads(self) -> KnownLoads:
        with self.dependencies.tracer.span("metrics") as span:
            wait = min(self.settings.interval * _METRICS_SHARE, LONGEST_METRICS_WAIT)
            loads = _attempt_optional("the loads", partial(self.dependencies.loads.fetch_loads, wait))
            if isinstance(loads, AutothrottleError):
                span.fail(reason := f"metrics cannot be read: {loads}")
                return KnownLoads(Loads(), self.clock(), reason)
            return KnownLoads(loads, self.clock())


def _fetch_in_parts(fetch: Callable[[SnapshotRequest], Snapshot], request: SnapshotRequest) -> Snapshot:
    """Return the last snapshot of as many as are needed, since one contains a limited number of assignments."""
    assignments: dict[TopicPartition, Assignment] = {}
    partitions = tuple(request.partitions)
    for start in range(0, max(1, len(partitions)), MAX_SNAPSHOT_PARTITIONS):
        snapshot = fetch(replace(request, partitions=partitions[start : start + MAX_SNAPSHOT_PARTITIONS]))
        assignments.update(snapshot.assignments)
    return snapshot if snapshot.assignments == assignments else replace(snapshot, assignments=assignments)


def _attempt(call: Callable[[], T]) -> T | AutothrottleError:
    try:
        return call()
    except AutothrottleError as error:
        return error


def _attempt_optional(what: str, call: Callable[[], T]) -> T | AutothrottleError:
    """Like `_attempt` for what a cycle can do without. An unexpected error of its source must not end the cycle."""
    try:
        return _attempt(call)
    except Exception as error:
        log.exception("Reading %s failed unexpectedly; the cycle continues without them. Fix: report this", what)
        return Unavailable(f"unexpected {type(error).__name__}; the log has the traceback")


class _BackgroundReader:
    """A thread that starts when there is something to read for the first time. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """Stop the thread; waits up to 6 s for a reading in progress. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_READER_CLOSE_SECONDS)

    def _start(self) -> None:
        """Start the thread once, unless this is closed. The caller holds the lock."""
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        raise NotImplementedError


class LoadsProbe(_BackgroundReader):
    """Asks a metrics source that failed, in its own thread, until it has a load again. Thread-safe.

    Without it, the return of the source would show at the next scheduled cycle only. Event cycles do not ask a source
    that may hang.
    """

    def __init__(self, source: LoadSource, on_return: Callable[[], None], retry: Retry = METRICS) -> None:
        """`on_return` is called when the source has a load again, from another thread, and must not block."""
        super().__init__("metrics-probe")
        self._source, self._on_return, self._retry = source, on_return, retry
        self._empty_answers = 0
        """Consecutive answers without the load of a broker."""
        self._is_needed = self._has_returned = False

    def follow(self, is_needed: bool) -> None:
        """Ask the source from now on, or no longer. Does not block."""
        with self._changed:
            self._is_needed = is_needed and not self._closed
            if not is_needed:
                self._empty_answers = 0
            self._changed.notify_all()
            if self._is_needed:
                self._start()

    def take_return(self) -> bool:
        """Return whether the source has returned since the last call."""
        with self._changed:
            has_returned, self._has_returned = self._has_returned, False
            return has_returned

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_needed or self._closed)
                wait = self._retry.wait(max(self._empty_answers, 1))
                if self._closed or self._changed.wait_for(lambda: self._closed, wait):
                    return
                if not self._is_needed:
                    continue
            if self._has_load():
                with self._changed:
                    self._has_returned, self._is_needed = True, False
                self._on_return()

    def _has_load(self) -> bool:
        try:
            has_load = bool(self._source.fetch_loads(SETTINGS_TIMEOUT).brokers)
        except Exception:  # the cycles report it
            has_load, self._empty_answers = False, 0
        else:
            self._empty_answers = 0 if has_load else self._empty_answers + 1
        return has_load


class SettingsReader(_BackgroundReader):
    """Reads settings in its own thread when the wanted brokers or topics change. Thread-safe."""

    def __init__(self, source: FetchSettingsSource, on_read: Callable[[], None]) -> None:
        """`on_read` is called after every read, from another thread, and must not block."""
        super().__init__("settings")
        self._source, self._on_read = source, on_read
        self._targets: tuple[frozenset[int], frozenset[str]] = (frozenset(), frozenset())
        self._requested = self._targets
        self._due = False
        self._at = -SETTINGS.first
        self._failure = ""
        self._settings = ClusterSettings()

    @property
    def reading(self) -> SettingsReading:
        """The settings as last read, and which of them were read, successfully or not."""
        with self._changed:
            return SettingsReading(self._settings, None if self._due else self._requested)

    def want(self, broker_ids: Collection[int], topics: Collection[str]) -> None:
        """Set the brokers and topics whose settings to read. Does not block."""
        with self._changed:
            self._targets = frozenset(broker_ids), frozenset(topics)
            is_new = not (self._targets[0] <= self._requested[0] and self._targets[1] <= self._requested[1])
            is_old = time.monotonic() - self._at >= SETTINGS.first
            if any(self._targets) and (is_new or is_old) and not self._due:
                self._due = True
                self._changed.notify_all()
                self._start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._closed)
                if self._closed:
                    return
                targets = self._targets
            settings = self._fetch(*targets)
            with self._changed:
                self._requested, self._at, self._due = targets, time.monotonic(), False
                self._settings = _merged(settings, self._settings, *targets)
            try:
                self._on_read()
            except Exception:  # a bug must not end the thread: no settings would be read any more
                log.exception("Handling settings failed unexpectedly")

    def _fetch(self, broker_ids: Collection[int], topics: Collection[str]) -> ClusterSettings:
        try:
            settings = self._source.fetch_settings(broker_ids, topics, SETTINGS_TIMEOUT)
        except AutothrottleError as error:
            if not self._failure:
                log.info(
                    "Broker and topic settings cannot be read; using the last known or default fetch sizes, quota "
                    "windows and min.insync.replicas: %s",
                    error,
                )
            self._failure = str(error)
            return ClusterSettings()
        except Exception:  # a bug must not end the thread: `known` would stay False for ever
            log.exception("Reading settings failed unexpectedly")
            return ClusterSettings()
        self._failure = ""
        return settings


def _merged(
    settings: ClusterSettings, earlier: ClusterSettings, broker_ids: Collection[int], topics: Collection[str]
) -> ClusterSettings:
    """The new settings, completed by earlier ones for brokers and topics that did not answer this time.

    Otherwise one late answer would throttle a partition again that is below its min.insync.replicas.
    """
    brokers = {**earlier.brokers, **settings.brokers}
    least = {**earlier.min_in_sync_replicas, **settings.min_in_sync_replicas}
    return ClusterSettings(
        {broker_id: brokers[broker_id] for broker_id in brokers if broker_id in broker_ids},
        {topic: least[topic] for topic in least if topic in topics},
    )


MAX_CHANGE_SPANS = 50
"""With more changes each one is an event instead of a span: a trace of a thousand spans is unreadable."""


@contextmanager
def applying(tracer: Tracer, changes: Sequence[Change], outcomes: Sequence[Outcome]) -> Iterator[None]:
    """Trace the body as span `apply`, with each change and its outcome.

    Args:
        tracer: creates the spans.
        changes: the changes to write; the body may extend it.
        outcomes: their outcomes; the body extends it. A change without an outcome is `unknown`.
    """
    with tracer.span("apply") as span:
        try:
            yield
        finally:
            if span.recording:
                _describe_changes(span, changes, outcomes)


def _describe_changes(span: Span, changes: Sequence[Change], outcomes: Sequence[Outcome]) -> None:
    edited = {change.resource: [edit.key for edit in change.edits if edit.writes] for change in changes}
    known = {outcome.resource: outcome for outcome in outcomes}
    resources = list(edited | known)
    span.describe({"changes": len(resources)})
    add = span.child if len(resources) <= MAX_CHANGE_SPANS else span.event
    for resource in resources:
        add("change", _change(resource, edited.get(resource, []), known.get(resource)))


def _change(resource: ConfigResource, keys: Sequence[str], outcome: Outcome | None) -> Mapping[str, Attribute]:
    described: dict[str, Attribute] = {
        "resource": str(resource),
        "keys": keys,
        "outcome": outcome.status.value if outcome else "unknown",
    }
    return described | {"reason": outcome.reason} if outcome and outcome.reason else described


@dataclass(frozen=True, slots=True)
class Applier:
    """Carries out the decisions of one planner."""

    dependencies: PlannerDependencies
    submissions: Submissions
    watchdog: Watchdog
    now: Callable[[], datetime]
    clock: Callable[[], float]

    def apply(self, term: Term, decision: CycleDecision, timeout: timedelta = CLUSTER_TIMEOUT) -> CycleResults:
        """Write the changes, then carry out the actions in their order.

        An error of the writes ends it: what follows is not tried. An action whose resources were refused is left out.
        """
        outcomes = list(decision.refused)
        tracer = UNTRACED if decision.between_cycles else self.dependencies.tracer
        try:
            with applying(tracer, decision.changes, outcomes):
                if decision.changes:
                    outcomes += self._write(term, decision.changes, timeout)
        except AutothrottleError as error:
            return CycleResults(self.now(), self.clock(), tuple(outcomes), error=error, are_written=False)
        at, clock = self.now(), self.clock()
        refused = {outcome.resource for outcome in outcomes if outcome.status is OutcomeStatus.REFUSED}
        results, failure = self._act(term, decision.actions, refused)
        return CycleResults(at, clock, tuple(outcomes), results, failure)

    def _write(self, term: Term, changes: Sequence[Change], timeout: timedelta) -> Sequence[Outcome]:
        """Write changes.

        Raises:
            NotLeader: the term is over, or given up.
        """
        with self.watchdog.waiting("writing", timeout):
            return self.dependencies.writer.apply(self._renewed(term), changes, timeout)

    def _renewed(self, term: Term) -> Term:
        """The term with its current lease, which may have been extended since the cycle began."""
        if term.fence <= self.watchdog.abandoned_fence:
            raise NotLeader(f"term {term.fence} was given up because the loop was stuck; nothing more is written")
        current = self.dependencies.election.term
        return current if current == term else term

    def _act(
        self, term: Term, actions: Collection[Action], refused: Collection[ConfigResource]
    ) -> tuple[tuple[ActionResult, ...], AutothrottleError | None]:
        """Return the results and the first error. It does not end the other actions, unless the term is over.

        If a store does not answer, no further action of its kind is tried: each would wait for it.
        """
        results: list[ActionResult] = []
        failure: AutothrottleError | None = None
        unavailable: set[type] = set()
        for action in actions:
            if type(action) in unavailable or not action.needs.isdisjoint(refused):
                continue
            result = self._tried(term, action)
            results.append(result)
            if isinstance(result.error, NotLeader):
                return tuple(results), result.error
            if isinstance(result.error, Unavailable):
                unavailable.add(type(action))
            if not isinstance(action, SubmissionRequest):  # the caller of a submission gets its error
                failure = failure or result.error
        return tuple(results), failure

    def _tried(self, term: Term, action: Action) -> ActionResult:
        try:
            with self.watchdog.waiting("an action", CLUSTER_TIMEOUT):
                return self._carry_out(self._renewed(term), action)
        except AutothrottleError as error:
            return ActionResult(action, done=False, error=error)

    def _carry_out(self, term: Term, action: Action) -> ActionResult:
        match action:
            case SubmissionRequest():
                return self._submit(term, action)
            case PurgeOverride():
                purge = self.dependencies.overrides.purge_override
                return ActionResult(action, purge(term.fence, action.broker_id, action.version, action.reason))
            case PurgeCatchUp():
                catch_ups, catch_up = self.dependencies.catch_ups, action.catch_up
                return ActionResult(action, catch_ups.purge(term.fence, catch_up.broker_id, catch_up))
            case PurgeQuota():
                quotas, quota = self.dependencies.temporary_quotas, action.quota
                return ActionResult(action, quotas.purge(term.fence, quota.entity, quota, action.reason))

    def _submit(self, term: Term, action: SubmissionRequest) -> ActionResult:
        if not self.submissions.claim(action.ticket):
            return ActionResult(action, done=False)
        with self.dependencies.tracer.span("submit") if action.targets else nullcontext():
            try:
                submit = self.dependencies.reassigner.submit_reassignments
                refused = submit(term, action.targets, CLUSTER_TIMEOUT) if action.targets else {}
            except AutothrottleError as error:
                return ActionResult(action, error=error)
        return ActionResult(action, refused=refused)
