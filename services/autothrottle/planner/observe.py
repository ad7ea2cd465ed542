"""The first part of a cycle: reads all its input.

A source that cannot be read is an error in the observation; `step` decides what that means.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from autothrottle.core.cluster.snapshot import Snapshot, TopicPartition
from autothrottle.core.control.catch_up import partitions_on
from autothrottle.core.control.cycle_observation import (
    CycleObservation,
    SnapshotRequest,
    SourceReadings,
    adopted,
    needed,
)
from autothrottle.core.control.settings import PlannerSettings
from autothrottle.core.control.state import KnownLoads, TermState
from autothrottle.core.control.step import obstacle_to_submissions
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.traffic.loads import Loads
from autothrottle.planner.dependencies import CLUSTER_TIMEOUT, PlannerDependencies
from autothrottle.planner.settings_reader import SettingsReader
from autothrottle.planner.submissions import Submissions

LONGEST_METRICS_WAIT = timedelta(seconds=15)

_METRICS_SHARE = 2 / 5
"""Timeout for reading metrics, as a share of the interval: the whole cycle then takes less than half of it."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Observer:
    """Reads the input of one planner's cycles."""

    dependencies: PlannerDependencies
    settings: PlannerSettings
    submissions: Submissions
    reader: SettingsReader
    now: Callable[[], datetime]
    clock: Callable[[], float]

    def observe(self, term: TermState, scheduled: bool, newest_event: int) -> CycleObservation:
        """Read everything that a cycle needs.

        Args:
            term: the state of the term.
            scheduled: whether it is the regular cycle of an interval.
            newest_event: minimum version of the snapshot.
        """
        read = SourceReadings(
            _attempt(self.dependencies.pauses.read_pause),
            _attempt(self.dependencies.overrides.read_overrides),
            _attempt(self.dependencies.catch_ups.read_catch_ups),
        )
        wanted, cancelled = self.submissions.wanted, self.submissions.take_cancelled()
        snapshot: Snapshot | AutothrottleError
        held, loads = term.held, None
        sources = adopted(term.sources, read)
        if sources.error is not None:
            snapshot = sources.error
        else:
            pause = sources.known.pause
            is_blocked = obstacle_to_submissions(self.settings.shadow, pause) is not None
            asked = needed(term, sources.known, None if is_blocked else wanted, self.now())
            snapshot, held, loads = self._read(term, asked, pause is not None, scheduled, newest_event)
        return CycleObservation(
            at=self.now(),
            clock=self.clock(),
            scheduled=scheduled,
            sources=read,
            snapshot=snapshot,
            held=held,
            loads=loads,
            settings=self.reader.reading,
            wanted=wanted if wanted is self.submissions.wanted else None,
            cancelled=cancelled,
        )

    def _read(
        self, term: TermState, asked: SnapshotRequest, is_paused: bool, scheduled: bool, newest_event: int
    ) -> tuple[Snapshot | AutothrottleError, frozenset[TopicPartition], KnownLoads | None]:
        """Read the cluster and, if they are due, the loads at the same time. A paused cycle does not use the loads."""
        are_due = scheduled or term.loads.are_due(self.clock(), self.settings.metrics_window)
        snapshot: Snapshot | AutothrottleError
        with ThreadPoolExecutor(1, "loads") as executor:
            fetching = None
            if are_due and not is_paused:
                fetching = executor.submit(copy_context().run, self._fetch_loads)
            try:
                with self.dependencies.tracer.span("discovery"):
                    snapshot, held = self._fetch_snapshot(term, asked, newest_event)
            except AutothrottleError as error:
                snapshot, held = error, term.held
            if fetching is not None:
                return snapshot, held, fetching.result()
        if not is_paused:
            with self.dependencies.tracer.span("metrics") as span:
                if term.loads.error:
                    span.fail(term.loads.error)
        return snapshot, held, None

    def _fetch_snapshot(
        self, term: TermState, asked: SnapshotRequest, newest_event: int
    ) -> tuple[Snapshot, frozenset[TopicPartition]]:
        """Return the snapshot, and the partitions of brokers whose out-of-sync replicas are throttled.

        These are brokers that catch up, and brokers with an override that take part in a reassignment. Their
        partitions are known only after the first reading, so a change of them needs a second one.
        """
        fetch = partial(
            self.dependencies.snapshots.fetch_snapshot,
            min_version=max(term.version, newest_event),
            replicas_of=asked.replicas_of,
            catching_up=asked.catching_up,
            timeout=CLUSTER_TIMEOUT,
        )
        snapshot = fetch(partitions=asked.partitions)
        held = partitions_on(snapshot, asked.with_known_isr(snapshot))
        if not held <= term.held:
            snapshot = fetch(partitions=tuple(sorted({*asked.partitions, *held})))
        return snapshot, held

    def _fetch_loads(self) -> KnownLoads:
        with self.dependencies.tracer.span("metrics") as span:
            try:
                wait = min(self.settings.interval * _METRICS_SHARE, LONGEST_METRICS_WAIT)
                return KnownLoads(self.dependencies.loads.fetch_loads(wait), self.clock())
            except AutothrottleError as error:
                span.fail(reason := f"metrics cannot be read: {error}")
                return KnownLoads(Loads(), self.clock(), reason)


def _attempt(read: Callable[[], T]) -> T | AutothrottleError:
    try:
        return read()
    except AutothrottleError as error:
        return error
