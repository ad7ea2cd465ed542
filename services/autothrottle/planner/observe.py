"""The first part of a cycle: reads all its input, the broker and topic settings in the background.

A source that cannot be read is an error in the observation; `step` decides what that means.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.fetch_settings import ClusterSettings
from autothrottle.core.cluster.snapshot import Assignment, Snapshot, SnapshotRequest, TopicPartition
from autothrottle.core.cycle.input import (
    CycleObservation,
    KnownLoads,
    PlannerSettings,
    SettingsReading,
    TermState,
    needed,
    partitions_with_isr,
)
from autothrottle.core.errors import AutothrottleError, Unavailable
from autothrottle.core.operators.sources import SourceReadings, adopted
from autothrottle.core.quotas.entities import ClientReading, QuotaState
from autothrottle.core.quotas.step import quotas_needed
from autothrottle.core.retries import SETTINGS
from autothrottle.core.traffic.loads import Loads
from autothrottle.planner.calls import CLUSTER_TIMEOUT, PlannerDependencies, Submissions, Watchdog
from autothrottle.ports.kafka import FetchSettingsSource
from autothrottle.wire.common import MAX_SNAPSHOT_PARTITIONS

log = logging.getLogger(__name__)

LONGEST_METRICS_WAIT = timedelta(seconds=15)

_METRICS_SHARE = 2 / 5
"""Timeout for reading metrics, as a share of the interval: the whole cycle then takes less than half of it."""

SETTINGS_TIMEOUT = timedelta(seconds=5)

CLIENTS_TIMEOUT = timedelta(seconds=5)
"""Timeout for reading the known clients, beside the cluster and the loads: an old reading is good enough."""

_STORE_TIMEOUT = timedelta(seconds=10)
"""Timeout of one read from the state store: two requests to ZooKeeper."""

_CLOSE_SECONDS = 6.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Observer:
    """Reads the input of one planner's cycles."""

    dependencies: PlannerDependencies
    settings: PlannerSettings
    submissions: Submissions
    reader: SettingsReader
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
        sources = adopted(term.sources, readings)
        if sources.error is not None:
            snapshot = sources.error
        else:
            pause = sources.latest.pause
            snapshot_request = needed(term, sources.latest, request, self.now())
            entities = quotas_needed(term.quotas, term.ledger, sources.latest, self.clock())
            are_clients_due = pause is None and term.quotas.yields.is_reading_due(sources.latest.rules, self.clock())
            with ThreadPoolExecutor(2, "quotas") as executor:
                fetching = None if entities is None else self._begin(executor, partial(self._fetch_quotas, entities))
                reading = self._begin(executor, self._fetch_clients) if are_clients_due else None
                snapshot, isr_partitions, loads = self._read(
                    term, snapshot_request, pause is not None, scheduled, newest_event
                )
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
        )

    def _read(
        self, term: TermState, snapshot_request: SnapshotRequest, is_paused: bool, scheduled: bool, newest_event: int
    ) -> tuple[Snapshot | AutothrottleError, frozenset[TopicPartition], KnownLoads | None]:
        """Read the cluster and, if they are due, the loads at the same time. A paused cycle does not use the loads."""
        are_due = scheduled or term.loads.are_due(self.clock(), self.settings.metrics_window)
        snapshot: Snapshot | AutothrottleError
        with ThreadPoolExecutor(1, "loads") as executor:
            fetching = None
            if are_due and not is_paused:
                fetching = self._begin(executor, self._fetch_loads)
            try:
                with self.dependencies.tracer.span("discovery"):
                    snapshot, isr_partitions = self._fetch_snapshot(term, snapshot_request, newest_event)
            except AutothrottleError as error:
                snapshot, isr_partitions = error, term.isr_partitions
            if fetching is not None:
                with self.watchdog.waiting("reading loads", LONGEST_METRICS_WAIT):
                    return snapshot, isr_partitions, fetching.result()
        if not is_paused:
            with self.dependencies.tracer.span("metrics") as span:
                if term.loads.error:
                    span.fail(term.loads.error)
        return snapshot, isr_partitions, None

    def _fetch_snapshot(
        self, term: TermState, snapshot_request: SnapshotRequest, newest_event: int
    ) -> tuple[Snapshot, frozenset[TopicPartition]]:
        """Return the snapshot, and the partitions of brokers whose out-of-sync replicas are throttled.

        These are brokers that catch up, and brokers with an override that take part in a reassignment. Their
        partitions are known only after the first reading, so a change of them needs a second one.
        """
        request = replace(snapshot_request, min_version=max(term.version, newest_event))
        snapshot = _fetch_in_parts(self._fetch_from_discovery, request)
        isr_partitions = partitions_with_isr(request, snapshot)
        if not isr_partitions <= term.isr_partitions:
            partitions = tuple(sorted({*request.partitions, *isr_partitions}))
            snapshot = _fetch_in_parts(self._fetch_from_discovery, replace(request, partitions=partitions))
        return snapshot, isr_partitions

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


class SettingsReader:
    """Reads settings in its own thread when the wanted brokers or topics change. Thread-safe."""

    def __init__(self, source: FetchSettingsSource, on_read: Callable[[], None]) -> None:
        """`on_read` is called after every read, from another thread, and must not block."""
        self._source, self._on_read = source, on_read
        self._changed = threading.Condition()
        self._targets: tuple[frozenset[int], frozenset[str]] = (frozenset(), frozenset())
        self._requested = self._targets
        self._due = self._closed = False
        self._at = -SETTINGS.first
        self._failure = ""
        self._settings = ClusterSettings()
        self._thread: threading.Thread | None = None

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
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._run, name="settings", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """Stop the thread; waits up to 6 s for a read in progress. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

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
