"""The first part of a cycle: everything that it decides on, as of one moment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from datetime import datetime, timedelta

from autothrottle.core.configs import ReplicaRole, ResourceType
from autothrottle.core.errors import AutothrottleError, Conflict, Unavailable
from autothrottle.core.loads import Loads, Port
from autothrottle.core.overrides import Overrides
from autothrottle.core.pause import Pause
from autothrottle.core.plan import standing_rate
from autothrottle.core.progress import remainder
from autothrottle.core.topology import Snapshot, moving_ports, participants
from autothrottle.planner.catching_up import CatchingUp
from autothrottle.planner.memory import CycleInHand, Memory
from autothrottle.planner.settings import CLUSTER_TIMEOUT, IN_SHADOW, PlannerSettings, Ports
from autothrottle.planner.submissions import Submissions
from autothrottle.planner.triggers import Trigger, Triggers

log = logging.getLogger(__name__)

LONGEST_METRICS_WAIT = timedelta(seconds=15)

_METRICS_SHARE = 2 / 5
"""Of the interval, for a reading: with all the rest a cycle takes less than half of it."""

_METRICS_PAUSE = timedelta(seconds=15)
"""After a reading that failed: so long no event cycle reads again, lest a source that hangs holds each of them."""


class Reading:
    """Reads for one planner; what it has to know of the last cycle is in the term's memory."""

    def __init__(
        self,
        ports: Ports,
        settings: PlannerSettings,
        triggers: Triggers,
        submissions: Submissions,
        catching_up: CatchingUp,
        now: Callable[[], datetime],
        clock: Callable[[], float],
    ) -> None:
        self._ports, self._settings, self._triggers, self._now, self._clock = ports, settings, triggers, now, clock
        self._submissions, self._catching_up = submissions, catching_up

    def read(self, cycle: CycleInHand, trigger: Trigger, memory: Memory, newest_event: int) -> None:
        """Read all that a cycle decides on.

        Args:
            cycle: takes it.
            trigger: why the cycle runs; only scheduled ones always read the loads, and count failures.
            memory: what the term remembers, and from now on this too.
            newest_event: the oldest version of the cluster that will do.

        Raises:
            AutothrottleError: the cluster, the overrides or the pause cannot be read, and were not before.
        """
        ports = self._ports
        cycle.pause = self._pause(cycle, memory)
        if obstacle := obstacle_to_submissions(self._settings, cycle.pause):
            self._submissions.fail(obstacle)
        memory.overrides = self._overrides(memory.overrides)
        self._await_expiry(cycle, memory.overrides)
        cycle.findings += dict.fromkeys([*cycle.overrides.warnings, *cycle.overrides.unreadable.values()])
        cycle.findings += self._catching_up.read()
        is_paused = cycle.pause is not None  # Nothing is decided on the loads then, and no failure counts.
        loads_are_due = not is_paused and (trigger.scheduled or self._loads_are_due(memory))
        with self._fetching_loads(memory, loads_are_due), ports.tracer.span("discovery"):
            min_version = max(memory.version, newest_event)
            # What began since may be presumed as well: its start was told as an event.
            may_presume = not memory.is_presumed or newest_event > memory.version
            cycle.read = self._fetch_snapshot(cycle, min_version, may_presume)
            if self._catching_up.lacks(cycle.read):
                cycle.read = self._fetch_snapshot(cycle, min_version)
        cycle.is_read = True
        memory.is_presumed = bool(cycle.read.presumed)
        if memory.is_presumed:
            self._triggers.request("leaders and in-sync replicas are read", urgent=True)
        shown = self._submissions.show(cycle.read)
        cycle.snapshot = self._catching_up.show(shown)
        cycle.copied = cycle.snapshot if shown is cycle.read else self._catching_up.beside(cycle.read, ())
        cycle.left = remainder(cycle.copied)
        memory.version = cycle.snapshot.version
        cycle.findings += [f"{problem.path}: {problem.reason}" for problem in cycle.snapshot.problems]
        memory.history = memory.history.observe(self._now(), standing(cycle.snapshot), moving_ports(cycle.read))
        if is_paused:
            return
        if loads_are_due:
            memory.history = memory.history.measured(memory.loads, moving_ports(cycle.read))
        else:
            self._trace_known_loads(memory)
        cycle.loads = self._loads(cycle, trigger, memory)

    def _fetch_snapshot(self, cycle: CycleInHand, min_version: int, may_presume: bool = False) -> Snapshot:
        return self._ports.snapshots.fetch_snapshot(
            min_version=min_version,
            replicas_of=sorted(cycle.overrides.active_brokers.union(self._catching_up.brokers)),
            partitions=sorted({*self._submissions.take(), *self._catching_up.partitions}),
            catching_up=sorted(self._catching_up.brokers),
            timeout=CLUSTER_TIMEOUT,
            may_presume=may_presume,
        )

    def _pause(self, cycle: CycleInHand, memory: Memory) -> Pause | None:
        """The pause; the one last read when it cannot be read. Whatever changed is logged once."""
        try:
            pause = self._ports.pauses.read_pause()
        except Unavailable as error:
            if not memory.pause_is_known:
                raise
            cycle.findings.append(f"the pause cannot be read, what was last read of it holds: {error}")
            return memory.pause
        if pause != memory.pause:
            log.warning("%s", "Resumed" if pause is None else f"Paused: {pause}")
        memory.pause, memory.pause_is_known = pause, True
        return pause

    def _overrides(self, last: Overrides | None) -> Overrides:
        """The overrides, those that cannot be read as they were last read."""
        try:
            read = self._ports.overrides.read_overrides()
        except Unavailable as error:
            if last is None:
                raise
            reason = f"no override can be read, the last ones stay: {error}"
            read = Overrides(unreadable={None: reason, **{b: reason for b in last.brokers}})
        return read.keeping_unreadable(last or Overrides())

    def _await_expiry(self, cycle: CycleInHand, overrides: Overrides) -> None:
        """Leave out the overrides whose time has come, and let a cycle run when the next one's comes."""
        now = self._now()
        cycle.overrides, cycle.expired = overrides.acting(now), overrides.expired(now)
        if (end := overrides.next_expiry(now)) is not None:
            self._triggers.request("an override ends", end - now)

    def _loads(self, cycle: CycleInHand, trigger: Trigger, memory: Memory) -> Loads:
        """The loads to decide on, as they were last read."""
        missing = participants(cycle.snapshot).keys() - memory.loads.brokers.keys()
        if trigger.scheduled:
            memory.failures = {b: memory.failures.get(b, 0) + 1 for b in missing}
        if memory.loads_error:
            cycle.findings.append(memory.loads_error)
            return memory.loads
        cycle.findings += memory.loads.warnings
        cycle.findings += [
            f"broker {b}: {memory.loads.problems.get(b, 'the metrics source does not know it')}"
            for b in sorted(missing)
        ]
        return memory.loads

    def _loads_are_due(self, memory: Memory) -> bool:
        """Whether those last read are too old; scheduled cycles read them anew in any case."""
        lifetime = _METRICS_PAUSE if memory.loads_error else self._settings.metrics_window
        return memory.loads_read is None or self._clock() - memory.loads_read >= lifetime.total_seconds()

    @contextmanager
    def _fetching_loads(self, memory: Memory, are_due: bool) -> Iterator[None]:
        """Read the loads, when they are due, while the snapshot is read; remember them though that may fail."""
        if not are_due:
            yield
            return
        with ThreadPoolExecutor(1, "loads") as other_thread:
            fetched = other_thread.submit(copy_context().run, self._fetch_loads)
            try:
                yield
            finally:
                memory.loads, memory.loads_error = fetched.result()
                memory.loads_read = self._clock()

    def _fetch_loads(self) -> tuple[Loads, str]:
        """The loads, and why there are none."""
        with self._ports.tracer.span("metrics") as span:
            try:
                wait = min(self._settings.interval * _METRICS_SHARE, LONGEST_METRICS_WAIT)
                return self._ports.loads.fetch_loads(wait), ""
            except AutothrottleError as error:
                span.fail(reason := f"metrics cannot be read: {error}")
                return Loads(), reason

    def _trace_known_loads(self, memory: Memory) -> None:
        with self._ports.tracer.span("metrics") as span:
            if memory.loads_error:
                span.fail(memory.loads_error)


def obstacle_to_submissions(settings: PlannerSettings, pause: Pause | None) -> Conflict | None:
    """Return why no reassignment can be throttled and submitted now; None: it can."""
    if settings.shadow:
        return Conflict(IN_SHADOW)
    if pause is not None:
        return Conflict(f"nothing was submitted, since autothrottle is paused ({pause}); resume it first")
    return None


def standing(snapshot: Snapshot) -> dict[Port, int]:
    """Return the rates that stand in the cluster, by broker and role."""
    return {
        (resource.broker_id, role): rate
        for resource in snapshot.throttles
        if resource.type is ResourceType.BROKER
        for role in ReplicaRole
        if (rate := standing_rate(snapshot, resource.broker_id, role)) is not None
    }
