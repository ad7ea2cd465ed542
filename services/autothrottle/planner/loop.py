"""The planner's loop: one turn is a cycle, and a cycle is read, plan, write, tell."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise

from autothrottle.core.changes import (
    changes,
    foreign_throttles,
    removal_of_foreign,
    shown_foreign,
)
from autothrottle.core.configs import ReplicaRole, ResourceType
from autothrottle.core.cycle import CycleRecord, PlannerState
from autothrottle.core.decisions import CycleSeen, LogSettings
from autothrottle.core.errors import AutothrottleError, Conflict, Missing, NotLeader, Unavailable
from autothrottle.core.eta import SHORTEST_SPAN
from autothrottle.core.loads import Loads
from autothrottle.core.overrides import Overrides, whose
from autothrottle.core.pause import Pause, PauseMode, stale_lists, taken_back
from autothrottle.core.plan import Limits, plan, standing_rate
from autothrottle.core.policy.headroom import HeadroomPolicy
from autothrottle.core.policy.interface import Observation, Policy
from autothrottle.core.progress import foreseen, remainder
from autothrottle.core.reassignment import Submitted, Targets, proposal
from autothrottle.core.schedule import NO_SCHEDULE, Schedule
from autothrottle.core.topology import Snapshot, TopicPartition, participants
from autothrottle.planner import narration, traces
from autothrottle.planner.catching_up import LOOKED_AFTER, CatchingUp
from autothrottle.planner.events import EventPoster
from autothrottle.planner.guards import Guards
from autothrottle.planner.journal import Journal
from autothrottle.planner.memory import CycleInHand, Memory
from autothrottle.planner.ramps import Ramps
from autothrottle.planner.submissions import Submissions
from autothrottle.planner.triggers import Trigger, Triggers
from autothrottle.ports.catch_ups import CatchUpStore
from autothrottle.ports.cluster import ConfigWriter, Reassigner, SnapshotEvent, SnapshotSource
from autothrottle.ports.decisions import DecisionSink
from autothrottle.ports.fetch_settings import FetchSettingsSource
from autothrottle.ports.leadership import Election, Leader, Term
from autothrottle.ports.metrics import Event, EventSink, LoadSource
from autothrottle.ports.overrides import OverrideStore
from autothrottle.ports.pauses import PauseStore
from autothrottle.ports.tracing import UNTRACED, Tracer

log = logging.getLogger(__name__)

_CLUSTER_TIMEOUT = timedelta(seconds=20)
"""For reading the cluster and for writing to it: enough for 100,000 partitions read anew."""

_LONGEST_METRICS_WAIT = timedelta(seconds=15)
_METRICS_SHARE = 2 / 5
"""Of the interval, for a reading: with all the rest a cycle takes less than half of it."""

_METRICS_PAUSE = timedelta(seconds=15)
"""After a reading that failed: so long no event cycle reads again, lest a source that hangs holds each of them."""

_NOTHING_LEFT, _MARKED, _EXPIRED = "no reassignment is left", "it was marked for removal", "its time is over"
"""Why an override is purged."""

_PROBLEMS_SHOWN = 5
"""How many an error names."""

_FIRST_PROGRESS = SHORTEST_SPAN + timedelta(seconds=10)
"""So long after the start of a move its ETA is known."""

_IN_SHADOW = "the planner runs in shadow and changes nothing in Kafka; start it without --shadow"

_CYCLES_KEPT = 100
"""For whoever watches them and is slower than they come."""


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """What the operator configured."""

    limits: Limits
    policy: Policy = HeadroomPolicy()  # noqa: RUF009 (frozen)
    """How rates are decided, before it has learned anything."""
    interval: timedelta = timedelta(seconds=180)
    """Between two scheduled cycles, >= 1 s."""
    metrics_window: timedelta = timedelta(seconds=120)
    """How long loads that were read may be used by cycles that an event starts."""
    cleanup_after: int = 60
    """Idle intervals after which foreign throttles are removed, >= 1; only with `cleanup_foreign`."""
    cleanup_foreign: bool = False
    schedule: Schedule = NO_SCHEDULE
    """Hours in which replication gets another share of the headroom."""
    finish_by: datetime | None = None
    """When moves shall be done, UTC: until then they take no more than that needs; None: as soon as possible."""
    shadow: bool = False
    """Whether everything is decided and recorded, and nothing written, posted or submitted."""
    cluster: str = "kafka"
    """The cluster's name in the decision log."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything of the outside that a planner talks to."""

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
    tracer: Tracer = UNTRACED
    decisions: DecisionSink | None = None
    """Where decisions are logged; None: nowhere."""


class Planner:
    """One candidate's loop, in a thread of its own from `start` to `stop`; it acts only while it leads."""

    def __init__(
        self,
        ports: Ports,
        settings: PlannerSettings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._ports, self._settings, self._now, self._clock, self._chance = ports, settings, now, clock, chance
        self._triggers = Triggers(settings.interval, clock)
        self._memory = Memory()
        self._submissions = Submissions(clock)
        self._catching_up = CatchingUp(ports.catch_ups)
        free = partial(self._triggers.request, "partitions are below min.insync.replicas", urgent=True)
        self._guards = Guards(ports.settings, settings.schedule, settings.finish_by, free)
        alike = LogSettings(settings.cluster, settings.limits, settings.interval, settings.policy.name)
        self._journal = Journal(ports.decisions, alike)
        self._fence = 0
        self._newest_event = 0
        self._leader: Leader | None = None
        self._cycles: deque[CycleRecord] = deque(maxlen=_CYCLES_KEPT)
        self._ended = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="planner", daemon=True)
        self._poster = EventPoster(ports.events, min(settings.interval / 2, _LONGEST_METRICS_WAIT))
        self._ramps = Ramps(ports.writer, self._triggers, self._note_standing, clock)
        self._watches = [
            ports.snapshots.watch_snapshots(self._happened),
            ports.overrides.watch_overrides(lambda: self._triggers.request("an override changed")),
            ports.pauses.watch_pause(lambda: self._triggers.request("it was paused or resumed")),
            ports.catch_ups.watch_catch_ups(lambda: self._triggers.request("a catch-up began or ended", urgent=True)),
        ]

    def start(self, address: str) -> None:
        """Stand for election as `address`, and run a cycle whenever one is due."""
        self._thread.start()
        self._ports.election.join(address, self._triggers.restart)

    def stop(self) -> None:
        """Finish the cycle in hand and give up the leadership, so that another can lead at once."""
        for watch in self._watches:
            watch.close()
        self._triggers.stop()
        self._submissions.fail(Unavailable("the planner stops: nothing was submitted; try again in some seconds"))
        if self._thread.is_alive():  # not when what was to come before `start` has failed
            self._thread.join()
        self._ports.election.leave()
        self._poster.stop()
        self._guards.close()
        with self._ended:
            self._ended.notify_all()

    def request_cycle(self, reason: str) -> None:
        """Ask for a cycle and return.

        Raises:
            NotLeader: with the leader's address.
        """
        self._demand_term()
        self._triggers.request(reason or "asked for", origin=self._ports.tracer.origin())

    def submit_reassignment(self, wanted: Targets, timeout: timedelta, validate_only: bool = False) -> Submitted:
        """Throttle a reassignment and, once its throttles stand, submit it; return when Kafka has taken it.

        Idempotent: what is on its way to the same replicas, or there, is not submitted again.

        Args:
            wanted: where partitions shall be.
            timeout: > 0; what does not stand by then is taken back, and nothing is submitted.
            validate_only: whether to look only, and to change nothing.

        Raises:
            NotLeader: with the leader's address.
            Missing, Invalid: when it is wrong; Conflict: when something is in the way, a pause for example. Nothing
                was submitted.
            Unavailable: when it was not done in time; the message says whether it may have been submitted.
        """
        term, deadline = self._demand_term(), self._clock() + timeout.total_seconds()
        snapshot = self._ports.snapshots.fetch_snapshot(
            min_version=self._newest_event, partitions=wanted.keys(), timeout=timeout
        )
        found = proposal(snapshot, wanted)
        if validate_only or not found.start:
            return Submitted(len(found.start), len(found.moving), len(found.there))
        if obstacle := self._obstacle(self._ports.pauses.read_pause()):
            raise obstacle
        submission = self._submissions.propose(term.fence, wanted)
        self._triggers.request("a reassignment is to be submitted", urgent=True)
        try:
            return submission.wait(timedelta(seconds=max(deadline - self._clock(), 0.001)))
        except Unavailable:
            self._triggers.request("a reassignment was given up")
            raise

    def cancel_reassignment(self, rows: Collection[TopicPartition], timeout: timedelta) -> Mapping[TopicPartition, str]:
        """Cancel the reassignment of partitions; return those that Kafka did not cancel, and why.

        Raises:
            NotLeader: with the leader's address.
            Missing: when none of them is being reassigned.
            Invalid: when the backend cannot do it.
            Conflict: when this planner runs in shadow.
            Unavailable: when it is unknown whether it was done.
        """
        term = self._demand_term()
        if self._settings.shadow:
            raise Conflict(_IN_SHADOW)
        refused = self._ports.reassigner.alter_reassignments(term.fence, dict.fromkeys(rows), timeout)
        if len(refused) == len(rows):
            raise Missing(f"nothing was cancelled: {'; '.join(list(refused.values())[:_PROBLEMS_SHOWN])}")
        self._submissions.forget(rows)
        self._journal.note_cancelled()
        self._triggers.request("a reassignment was cancelled", urgent=True)
        log.info("Reassignment of %d partitions cancelled", len(rows) - len(refused))
        return refused

    def _obstacle(self, pause: Pause | None) -> Conflict | None:
        """Why no reassignment can be throttled and submitted now; None: it can."""
        if self._settings.shadow:
            return Conflict(_IN_SHADOW)
        if pause is not None:
            return Conflict(f"nothing was submitted, since autothrottle is paused ({pause}); resume it first")
        return None

    def _demand_term(self) -> Term:
        if (term := self._ports.election.term) is None:
            raise NotLeader("this planner does not lead; ask the leader", self.state().leader_address)
        return term

    def state(self) -> PlannerState:
        """Return who leads and what the last cycle of this planner did."""
        term = self._ports.election.term
        leader = self._leader_of(term)
        return PlannerState(
            leading=term is not None,
            term=leader.fence if leader else 0,
            leader_address=leader.address if leader else "",
            last_cycle=self._last_cycle,
            failures=dict(self._memory.failures),
            leader_since=leader.since if leader else None,
        )

    def _leader_of(self, term: Term | None) -> Leader | None:
        """Who leads; whoever leads asks once a term, since each of many callers wants to know."""
        known = self._leader
        if term is not None and known is not None and known.fence == term.fence:
            return known
        try:
            self._leader = found = self._ports.election.leader()
        except Unavailable:
            return None
        return found

    def next_cycle(
        self, after: CycleRecord | None, timeout: timedelta, given_up: Callable[[], bool] = lambda: False
    ) -> CycleRecord | None:
        """Return the cycle that followed `after` as soon as there is one; None: none came in time.

        It is the newest one when `after` is None or forgotten. Whoever gives up earlier wakes it by `wake_watches`.
        """
        with self._ended:
            self._ended.wait_for(lambda: self._last_cycle is not after or given_up(), timeout.total_seconds())
            if self._last_cycle is after:
                return None
            kept = list(self._cycles)
            followers = [following for cycle, following in pairwise(kept) if cycle is after]
            return followers[0] if followers else kept[-1]

    def wake_watches(self) -> None:
        """Let all that wait for a cycle see whether they are still wanted."""
        with self._ended:
            self._ended.notify_all()

    @property
    def _last_cycle(self) -> CycleRecord | None:
        return self._cycles[-1] if self._cycles else None

    def _happened(self, event: SnapshotEvent) -> None:
        # The replica of discovery that is asked next may lag behind the one that saw it.
        self._newest_event = max(self._newest_event, event.version)
        self._triggers.request(event.reason, urgent=event.urgent)

    def _run(self) -> None:
        while (trigger := self._triggers.wait()) is not None:
            term = self._ports.election.term
            if trigger.step:
                self.run_step(term)
            elif term is not None:
                self._publish(self.run_cycle(term, trigger))
            else:
                self._submissions.begin_term(0)

    def _publish(self, record: CycleRecord) -> None:
        with self._ended:
            self._cycles.append(record)
            self._ended.notify_all()

    def run_step(self, term: Term | None) -> None:
        """Raise the rates that are on their way up by the step that is due; nothing while another term has begun."""
        if term is not None and term.fence == self._fence:
            self._ramps.step(term.fence, self._memory.cycles)

    def run_cycle(self, term: Term, trigger: Trigger) -> CycleRecord:
        """Run one cycle: all that is read is one moment's, and what is written is what the plan lacks."""
        with self._ports.tracer.span("cycle", trigger.origins) as span:
            record = self._run_traced(term, trigger, span.trace_id)
            traces.describe_cycle(span, record, trigger.scheduled)
        return record

    def _run_traced(self, term: Term, trigger: Trigger, trace_id: str) -> CycleRecord:
        if term.fence != self._fence:
            log.info("Leading in term %d%s", term.fence, ", in shadow: nothing is written" * self._settings.shadow)
            self._fence, self._memory, self._newest_event = term.fence, Memory(), 0
            self._ramps.forget()
            self._submissions.begin_term(term.fence)
            self._guards.begin_term()
        memory, start = self._memory, self._now()
        memory.cycles += 1
        cycle = CycleInHand(term, memory.cycles)
        try:
            self._read(cycle, trigger)
            with self._ports.tracer.span("plan"):
                self._decide(cycle)
            with traces.applying(self._ports.tracer, cycle.changes, cycle.outcomes):
                self._write(cycle, trigger)
            self._advance(cycle)
            self._tell(cycle, trigger)
            self._purge_overrides(cycle)
            self._look_after_catch_ups(cycle)
            memory.troubles = memory.troubles + 1 if cycle.refused else 0
        except NotLeader as error:
            log.warning("The cycle ends: %s", error)
            cycle.error = str(error)
            self._submissions.fail(error)
        except AutothrottleError as error:
            log.error("The cycle failed, nothing was removed: %s", error)
            cycle.error = str(error)
            memory.troubles += 1
            self._submissions.fail(Unavailable(f"nothing was submitted: {error}"))
        except Exception as error:  # a bug must not end the loop: nobody else leads while we hold the term
            log.exception("The cycle failed unexpectedly")
            cycle.error = f"unexpected {type(error).__name__}; the log has the traceback"
            memory.troubles += 1
            self._submissions.fail(AutothrottleError(f"nothing was submitted: {cycle.error}"))
        if memory.troubles:
            wait = back_off(memory.troubles, self._settings.interval, self._chance())
            self._triggers.request("trying again", wait)
        record = cycle.record(start, self._now(), trigger.reason, self._settings.shadow)
        log.debug("cycle %d (%s): %s", record.number, record.reason, record.sentence or record.error)
        if cycle.is_read:
            history = memory.history
            self._journal.write(
                CycleSeen(record, cycle.read, cycle.loads, history, cycle.applied.rates, trace_id=trace_id)
            )
        return record

    # Read.

    def _read(self, cycle: CycleInHand, trigger: Trigger) -> None:
        memory, ports = self._memory, self._ports
        cycle.pause = self._pause(cycle)
        if obstacle := self._obstacle(cycle.pause):
            self._submissions.fail(obstacle)
        memory.overrides = self._overrides()
        self._await_expiry(cycle, memory.overrides)
        cycle.findings += dict.fromkeys([*cycle.overrides.warnings, *cycle.overrides.unreadable.values()])
        cycle.findings += self._catching_up.read()
        with ports.tracer.span("discovery"):
            cycle.read = self._fetch_snapshot(cycle)
            if self._catching_up.lacks(cycle.read):
                cycle.read = self._fetch_snapshot(cycle)
        cycle.is_read = True
        cycle.snapshot = self._catching_up.show(self._submissions.show(cycle.read))
        cycle.left = remainder(cycle.read)
        memory.version = cycle.snapshot.version
        cycle.findings += [f"{problem.path}: {problem.reason}" for problem in cycle.snapshot.problems]
        memory.history = memory.history.observe(self._now(), _standing(cycle.snapshot), _moving(cycle.read))
        if cycle.pause is not None:
            return  # Nothing is decided on them, and no failure counts.
        with ports.tracer.span("metrics") as span:
            cycle.loads = self._loads(cycle, trigger)
            if memory.loads_error:
                span.fail(memory.loads_error)

    def _fetch_snapshot(self, cycle: CycleInHand) -> Snapshot:
        return self._ports.snapshots.fetch_snapshot(
            min_version=max(self._memory.version, self._newest_event),
            replicas_of=sorted(cycle.overrides.active_brokers.union(self._catching_up.brokers)),
            partitions=sorted({*self._submissions.take(), *self._catching_up.partitions}),
            timeout=_CLUSTER_TIMEOUT,
        )

    def _pause(self, cycle: CycleInHand) -> Pause | None:
        """The pause; the one last read when it cannot be read. Whatever changed is logged once."""
        memory = self._memory
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

    def _overrides(self) -> Overrides:
        """The overrides, those that cannot be read as they were last read."""
        last = self._memory.overrides
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

    def _loads(self, cycle: CycleInHand, trigger: Trigger) -> Loads:
        """The loads to decide on; read anew by scheduled cycles, and when those last read are too old."""
        memory = self._memory
        if trigger.scheduled or self._loads_are_due():
            self._fetch_loads()
            memory.history = memory.history.measured(memory.loads, _moving(cycle.read))
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

    def _loads_are_due(self) -> bool:
        memory = self._memory
        lifetime = _METRICS_PAUSE if memory.loads_error else self._settings.metrics_window
        return memory.loads_read is None or self._clock() - memory.loads_read >= lifetime.total_seconds()

    @property
    def _metrics_wait(self) -> timedelta:
        return min(self._settings.interval * _METRICS_SHARE, _LONGEST_METRICS_WAIT)

    def _fetch_loads(self) -> None:
        memory = self._memory
        try:
            memory.loads = self._ports.loads.fetch_loads(self._metrics_wait)
            memory.loads_error = ""
        except AutothrottleError as error:
            memory.loads, memory.loads_error = Loads(), f"metrics cannot be read: {error}"
        memory.loads_read = self._clock()

    # Decide.

    def _decide(self, cycle: CycleInHand) -> None:
        if cycle.pause is not None:
            self._stand_still(cycle, cycle.pause)
            return
        memory, limits = self._memory, self._limits()
        seen = Observation(self._now(), cycle.snapshot, cycle.loads)
        memory.policy = (memory.policy or self._settings.policy).observe(seen)
        cycle.plan = plan(
            cycle.snapshot,
            cycle.loads,
            limits,
            cycle.overrides,
            memory.failures,
            memory.history,
            memory.after_reassignment,
            memory.policy,
        )
        if self._submissions.withdrawn or memory.withdrawn:
            # The lists of what was throttled in vain are no reassignment that an override has waited for.
            cycle.plan, memory.withdrawn = replace(cycle.plan, finished_override=False), False
        guarded = self._guards.keep(cycle.plan, cycle.read, cycle.snapshot, limits, self._now())
        cycle.plan = guarded.plan
        cycle.findings += guarded.findings
        cycle.left = foreseen(cycle.left, cycle.read, {(d.broker_id, d.role): d.rate for d in cycle.plan.decisions})
        pace = None if self._settings.shadow else self._ramps.pace
        found = changes(cycle.plan, cycle.snapshot, cycle.term.fence, cycle.number, pace)
        cycle.changes, cycle.outcomes = list(found.changes), list(found.refused)
        cycle.findings += found.findings

    def _limits(self) -> Limits:
        """What the operator allows now; a cycle runs when that changes by the schedule."""
        now = self._now()
        if (change := self._guards.next_change(now)) is not None:
            self._triggers.request("the schedule allows another share", change)
        return self._guards.limits(self._settings.limits, now)

    def _stand_still(self, cycle: CycleInHand, pause: Pause) -> None:
        """Decide on nothing: what stands stays, or what is ours goes."""
        self._memory.withdrawn |= self._submissions.withdrawn
        if pause.mode is PauseMode.KEEP:
            if stale := stale_lists(cycle.snapshot, cycle.overrides, self._settings.limits.keep_throttles):
                cycle.findings.append(narration.stale_line(stale))
            return
        found = taken_back(cycle.snapshot, cycle.term.fence, cycle.number)
        cycle.changes, cycle.outcomes = list(found.changes), list(found.refused)
        cycle.findings += found.findings

    # Write.

    def _write(self, cycle: CycleInHand, trigger: Trigger) -> None:
        if self._cleanup_is_due(cycle, trigger):
            ours = {change.resource for change in cycle.changes}
            foreign = removal_of_foreign(cycle.snapshot, cycle.term.fence, cycle.number)
            # One change for each resource: what is left out here is still there at the next cycle.
            cycle.changes += [change for change in foreign if change.resource not in ours]
        if self._settings.shadow:
            cycle.would = tuple(cycle.changes)
            cycle.changes.clear()
        if cycle.changes:
            fence, wanted = cycle.term.fence, cycle.changes
            cycle.outcomes += self._ports.writer.apply(fence, wanted, _CLUSTER_TIMEOUT)
        cycle.applied = narration.Applied.of(cycle.changes, cycle.outcomes, cycle.snapshot.ledger)
        standing = _standing(cycle.snapshot) | {port: rate or 0 for port, rate in cycle.applied.rates.items()}
        self._memory.history = self._memory.history.observe(self._now(), standing, _moving(cycle.read))
        if not self._settings.shadow:
            self._ramps.took(cycle.plan, cycle.snapshot, cycle.changes, cycle.outcomes)

    def _note_standing(self, snapshot: Snapshot) -> None:
        """Remember what stands after a step."""
        self._memory.history = self._memory.history.observe(self._now(), _standing(snapshot), _moving(snapshot))

    def _advance(self, cycle: CycleInHand) -> None:
        """Submit the reassignment whose throttles stand."""
        fence, reassigner = cycle.term.fence, self._ports.reassigner
        with self._ports.tracer.span("submit") if self._submissions.pending else nullcontext():
            after = self._submissions.advance(
                cycle.read, cycle.refused, lambda start: reassigner.alter_reassignments(fence, start, _CLUSTER_TIMEOUT)
            )
        if after is not None:
            self._triggers.request("a submitted reassignment is looked after", after, urgent=True)

    def _cleanup_is_due(self, cycle: CycleInHand, trigger: Trigger) -> bool:
        """Whether foreign throttles are to go; they are reported first, once."""
        memory, settings = self._memory, self._settings
        if cycle.pause is not None:
            return False
        idle = not cycle.snapshot.reassignments and not cycle.plan.hold
        foreign = foreign_throttles(cycle.snapshot) if idle else {}
        if not foreign:
            memory.foreign_cycles = 0
            return False
        # The cycle that first saw them has no interval behind it yet.
        memory.foreign_cycles += trigger.scheduled
        is_due = settings.cleanup_foreign and memory.foreign_cycles > settings.cleanup_after
        if settings.shadow or not is_due:
            cycle.foreign = shown_foreign(foreign)
            cycle.findings.append(narration.foreign_line(foreign, settings.cleanup_foreign))
        return is_due

    def _purge_overrides(self, cycle: CycleInHand) -> None:
        """Remove the overrides that have done their work, each in the version that was read."""
        overrides, fence = cycle.overrides, cycle.term.fence
        if cycle.pause is not None or self._settings.shadow:
            self._note_reassignment(cycle, purge_is_left=True)
            return
        finished = cycle.plan.finished_override and overrides.cluster is not None
        if finished and overrides.cluster is not None and not cycle.refused:
            if self._ports.overrides.purge_override(fence, None, overrides.cluster.version, _NOTHING_LEFT):
                log.info("Throttle override removed: %s", _NOTHING_LEFT)
            finished = False
        self._note_reassignment(cycle, finished)
        for broker_id, override in overrides.brokers.items():
            if override.rate == 0 and broker_id not in overrides.unreadable:
                self._ports.overrides.purge_override(fence, broker_id, override.version, _MARKED)
        for broker_or_all, override in cycle.expired.items():
            if broker_or_all in overrides.unreadable:
                continue
            if self._ports.overrides.purge_override(fence, broker_or_all, override.version, _EXPIRED):
                log.info("Throttle override of %s removed: %s", whose(broker_or_all), _EXPIRED)

    def _look_after_catch_ups(self, cycle: CycleInHand) -> None:
        """Forget the brokers that are in sync, and come back while there are others."""
        if cycle.pause is None and not (self._settings.shadow or cycle.refused or cycle.snapshot.problems):
            self._catching_up.end(cycle.term.fence)
        if self._catching_up.active:
            self._triggers.request("a broker catches up", LOOKED_AFTER)

    def _note_reassignment(self, cycle: CycleInHand, purge_is_left: bool) -> None:
        """Remember whether an autoremove override has had its reassignment; what is unknown changes nothing."""
        if cycle.read.reassignments:
            self._memory.after_reassignment = True
        elif not (purge_is_left or cycle.snapshot.problems or None in cycle.overrides.unreadable):
            self._memory.after_reassignment = False

    # Tell.

    def _tell(self, cycle: CycleInHand, trigger: Trigger) -> None:
        memory, snapshot = self._memory, cycle.snapshot
        topics = frozenset(cycle.read.topics)
        done = sorted(memory.topics - topics)
        if done:
            log.info("%s", narration.done_line(done))
        lines = tuple(narration.topic_lines(snapshot))
        if lines != memory.announced or trigger.scheduled:
            for line in (*lines, *narration.progress_lines(cycle.left)):
                log.info("%s", line)
        if topics and not memory.topics:
            self._announce_progress(cycle.read.progress is not None)
        limits = self._guards.limits(self._settings.limits, self._now())
        for line in narration.rate_lines(cycle.plan, cycle.applied, limits):
            log.info("%s", line)
        for line in narration.removal_lines(cycle.plan, cycle.applied):
            log.info("%s", line)
        if self._settings.shadow:
            self._tell_what_would_be(cycle)
        defaults = snapshot.default_throttles
        cycle.findings += narration.default_lines(memory.defaults, defaults)
        cycle.findings += narration.default_in_force_lines(defaults, cycle.changes, cycle.outcomes)
        said, seen = self._guards.look(cycle.plan, snapshot, trigger.scheduled)
        cycle.findings += said
        self._tell_findings(cycle)
        if not self._settings.shadow:
            self._post_events(cycle, done, seen)
        memory.topics, memory.announced, memory.defaults = topics, lines, defaults
        memory.foreign = cycle.foreign

    def _post_events(self, cycle: CycleInHand, done: Sequence[str], seen: Sequence[Event]) -> None:
        """Post what the cycle changed, and what others left: that when it appears or becomes another."""
        found = [*narration.events(cycle.plan, cycle.snapshot, cycle.applied, done), *seen]
        if cycle.foreign and cycle.foreign != self._memory.foreign:
            found.append(narration.foreign_event(cycle.foreign, self._settings.cleanup_foreign))
        for event in found:
            self._poster.post(event)

    def _announce_progress(self, is_read: bool) -> None:
        """At the start of a move: let a cycle tell its ETA once there is one, or say that there will be none."""
        if is_read:
            self._triggers.request("how far the move has come", _FIRST_PROGRESS)
        else:
            log.info("%s", narration.UNKNOWN_PROGRESS)

    def _tell_what_would_be(self, cycle: CycleInHand) -> None:
        """Log what is not written, when it becomes another thing: it is worked out anew by each cycle."""
        lines = tuple(narration.would_lines(cycle.plan, cycle.would, self._settings.limits))
        for line in lines if lines != self._memory.would else ():
            log.info("%s", line)
        self._memory.would = lines

    def _tell_findings(self, cycle: CycleInHand) -> None:
        """Log what was found, each thing when it appears and not again while it stays."""
        refused = [f"{o.resource}: not written: {o.reason}" for o in cycle.refused]
        findings = [*cycle.findings, *refused]
        for finding in findings:
            if finding not in self._memory.findings:
                log.warning("%s", finding)
        self._memory.findings = frozenset(findings)


def _standing(snapshot: Snapshot) -> dict[tuple[int, ReplicaRole], int]:
    """The rates that stand in the cluster, by broker and role."""
    return {
        (resource.broker_id, role): rate
        for resource in snapshot.throttles
        if resource.type is ResourceType.BROKER
        for role in ReplicaRole
        if (rate := standing_rate(snapshot, resource.broker_id, role)) is not None
    }


def _moving(snapshot: Snapshot) -> frozenset[tuple[int, ReplicaRole]]:
    """The ports that take part in a move."""
    return frozenset((broker_id, role) for broker_id, roles in participants(snapshot).items() for role in roles)


def back_off(troubles: int, interval: timedelta, chance: float) -> timedelta:
    """Return how long to wait after so many cycles in a row that did not succeed.

    1 s, 2 s, 4 s and so on up to the interval, and by chance up to half as much again: what many wait for does not
    come back under the calls of all of them at once.

    Args:
        troubles: how many, >= 1.
        interval: the longest wait, but for 1 s.
        chance: in [0, 1).
    """
    wanted = timedelta(seconds=2 ** min(troubles - 1, 10) * (1 + chance / 2))
    return max(timedelta(seconds=1), min(interval, wanted))
