"""The first part of a cycle: reads all its input."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from datetime import datetime, timedelta

from autothrottle.core.cluster.configs import ReplicaRole, ResourceType
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cluster.snapshot import Snapshot, link_sides_of_reassignments, participants
from autothrottle.core.control.overrides import Overrides
from autothrottle.core.control.pause import Pause
from autothrottle.core.control.plan import current_rate
from autothrottle.core.errors import AutothrottleError, Conflict, Unavailable
from autothrottle.core.forecast.progress import remainder
from autothrottle.core.traffic.loads import Loads
from autothrottle.planner.catching_up import CatchingUp
from autothrottle.planner.memory import CycleInHand, Memory
from autothrottle.planner.settings import CLUSTER_TIMEOUT, IN_SHADOW, PlannerDependencies, PlannerSettings
from autothrottle.planner.submissions import Submissions
from autothrottle.planner.triggers import Trigger, Triggers

log = logging.getLogger(__name__)

LONGEST_METRICS_WAIT = timedelta(seconds=15)

_METRICS_SHARE = 2 / 5
"""Timeout for reading metrics, as a share of the interval: the whole cycle then takes less than half of it."""

_METRICS_PAUSE = timedelta(seconds=15)
"""Time after a failed read in which event cycles do not read metrics, so that a hanging source does not delay them."""


class Reading:
    """Reads the input of one planner's cycles. Values of the last cycle are in `Memory`."""

    def __init__(
        self,
        dependencies: PlannerDependencies,
        settings: PlannerSettings,
        triggers: Triggers,
        submissions: Submissions,
        catching_up: CatchingUp,
        now: Callable[[], datetime],
        clock: Callable[[], float],
    ) -> None:
        self._dependencies, self._settings, self._triggers, self._now, self._clock = (
            dependencies,
            settings,
            triggers,
            now,
            clock,
        )
        self._submissions, self._catching_up = submissions, catching_up

    def read(self, cycle: CycleInHand, trigger: Trigger, memory: Memory, newest_event: int) -> None:
        """Read the input of a cycle.

        Args:
            cycle: receives the input.
            trigger: why the cycle runs. Only scheduled cycles always read the loads and count failures.
            memory: the state of the term; updated.
            newest_event: minimum version of the snapshot.

        Raises:
            AutothrottleError: the snapshot cannot be read, or the overrides or the pause cannot be read and this term
                has no earlier ones.
        """
        dependencies = self._dependencies
        cycle.pause = self._pause(cycle, memory)
        if obstacle := obstacle_to_submissions(self._settings, cycle.pause):
            self._submissions.fail(obstacle)
        memory.overrides = self._overrides(memory.overrides)
        self._split_expired(cycle, memory.overrides)
        cycle.findings += dict.fromkeys([*cycle.overrides.warnings, *cycle.overrides.unreadable.values()])
        cycle.findings += self._catching_up.read()
        is_paused = cycle.pause is not None  # A paused cycle does not use the loads or count failures.
        loads_are_due = not is_paused and (trigger.scheduled or self._loads_are_due(memory))
        with self._fetching_loads(memory, loads_are_due), dependencies.tracer.span("discovery"):
            min_version = max(memory.version, newest_event)
            cycle.read = self._fetch_snapshot(cycle, min_version)
            if self._catching_up.lacks(cycle.read):
                cycle.read = self._fetch_snapshot(cycle, min_version)
        cycle.is_read = True
        with_submissions = self._submissions.show(cycle.read)
        cycle.snapshot = self._catching_up.show(with_submissions)
        cycle.copied = cycle.snapshot if with_submissions is cycle.read else self._catching_up.beside(cycle.read, ())
        cycle.left = remainder(cycle.copied)
        memory.version = cycle.snapshot.version
        cycle.findings += [f"{problem.path}: {problem.reason}" for problem in cycle.snapshot.problems]
        memory.history = memory.history.observe(
            self._now(), current(cycle.snapshot), link_sides_of_reassignments(cycle.read)
        )
        if is_paused:
            return
        if loads_are_due:
            memory.history = memory.history.measured(memory.loads, link_sides_of_reassignments(cycle.read))
        else:
            self._trace_known_loads(memory)
        cycle.loads = self._loads(cycle, trigger, memory)

    def _fetch_snapshot(self, cycle: CycleInHand, min_version: int) -> Snapshot:
        return self._dependencies.snapshots.fetch_snapshot(
            min_version=min_version,
            replicas_of=sorted(cycle.overrides.active_brokers.union(self._catching_up.brokers)),
            partitions=sorted({*self._submissions.take(), *self._catching_up.partitions}),
            catching_up=sorted(self._catching_up.brokers),
            timeout=CLUSTER_TIMEOUT,
        )

    def _pause(self, cycle: CycleInHand, memory: Memory) -> Pause | None:
        """The pause, or the last known one if it cannot be read. Logs each change once."""
        try:
            pause = self._dependencies.pauses.read_pause()
        except Unavailable as error:
            if not memory.pause_is_known:
                raise
            cycle.findings.append(f"the pause cannot be read; the last known state applies: {error}")
            return memory.pause
        if pause != memory.pause:
            log.warning("%s", "Resumed" if pause is None else f"Paused: {pause}")
        memory.pause, memory.pause_is_known = pause, True
        return pause

    def _overrides(self, last: Overrides | None) -> Overrides:
        """The overrides. An unreadable one keeps its last known value."""
        try:
            read = self._dependencies.overrides.read_overrides()
        except Unavailable as error:
            if last is None:
                raise
            reason = f"the overrides cannot be read; the last known ones apply: {error}"
            read = Overrides(unreadable={None: reason, **{b: reason for b in last.brokers}})
        return read.keeping_unreadable(last or Overrides())

    def _split_expired(self, cycle: CycleInHand, overrides: Overrides) -> None:
        """Separate active from expired overrides, and request a cycle for the next expiry."""
        now = self._now()
        cycle.overrides, cycle.expired = overrides.acting(now), overrides.expired(now)
        if (end := overrides.next_expiry(now)) is not None:
            self._triggers.request("an override expires", end - now)

    def _loads(self, cycle: CycleInHand, trigger: Trigger, memory: Memory) -> Loads:
        """The loads, as last read."""
        missing = participants(cycle.snapshot).keys() - memory.loads.brokers.keys()
        if trigger.scheduled:
            memory.failures = {b: memory.failures.get(b, 0) + 1 for b in missing}
        if memory.loads_error:
            cycle.findings.append(memory.loads_error)
            return memory.loads
        cycle.findings += memory.loads.warnings
        cycle.findings += [
            f"broker {b}: {memory.loads.problems.get(b, 'unknown to the metrics source')}" for b in sorted(missing)
        ]
        return memory.loads

    def _loads_are_due(self, memory: Memory) -> bool:
        """Whether the last loads are too old. Scheduled cycles read them in any case."""
        lifetime = _METRICS_PAUSE if memory.loads_error else self._settings.metrics_window
        return memory.loads_read is None or self._clock() - memory.loads_read >= lifetime.total_seconds()

    @contextmanager
    def _fetching_loads(self, memory: Memory, are_due: bool) -> Iterator[None]:
        """Read the loads, if due, while the body reads the snapshot. Keeps them even if the body fails."""
        if not are_due:
            yield
            return
        with ThreadPoolExecutor(1, "loads") as executor:
            fetched = executor.submit(copy_context().run, self._fetch_loads)
            try:
                yield
            finally:
                memory.loads, memory.loads_error = fetched.result()
                memory.loads_read = self._clock()

    def _fetch_loads(self) -> tuple[Loads, str]:
        """The loads, and the error if they cannot be read."""
        with self._dependencies.tracer.span("metrics") as span:
            try:
                wait = min(self._settings.interval * _METRICS_SHARE, LONGEST_METRICS_WAIT)
                return self._dependencies.loads.fetch_loads(wait), ""
            except AutothrottleError as error:
                span.fail(reason := f"metrics cannot be read: {error}")
                return Loads(), reason

    def _trace_known_loads(self, memory: Memory) -> None:
        with self._dependencies.tracer.span("metrics") as span:
            if memory.loads_error:
                span.fail(memory.loads_error)


def obstacle_to_submissions(settings: PlannerSettings, pause: Pause | None) -> Conflict | None:
    """Return why no reassignment can be submitted now; None: it can."""
    if settings.shadow:
        return Conflict(IN_SHADOW)
    if pause is not None:
        return Conflict(f"nothing was submitted, since autothrottle is paused ({pause}); resume it first")
    return None


def current(snapshot: Snapshot) -> dict[LinkSide, int]:
    """Return the current throttles in bytes/s. (broker id, role) -> rate; absent: not throttled."""
    return {
        (resource.broker_id, role): rate
        for resource in snapshot.throttles
        if resource.type is ResourceType.BROKER
        for role in ReplicaRole
        if (rate := current_rate(snapshot, resource.broker_id, role)) is not None
    }
