"""The planner's loop: one turn is a cycle, and a cycle is read, plan, write, tell."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise

from autothrottle.core.changes import changes, removal_of_foreign
from autothrottle.core.cycle import CycleRecord, PlannerState
from autothrottle.core.decisions import CycleSeen, LogSettings
from autothrottle.core.errors import AutothrottleError, Conflict, Missing, NotLeader, Unavailable
from autothrottle.core.history import ThrottleHistory
from autothrottle.core.limits import Limits
from autothrottle.core.overrides import whose
from autothrottle.core.ownership import foreign_throttles, shown_foreign
from autothrottle.core.pause import Pause, PauseMode, stale_lists, taken_back
from autothrottle.core.plan import had_a_move, plan
from autothrottle.core.policy.interface import Observation
from autothrottle.core.progress import foreseen
from autothrottle.core.reassignment import Submitted, Targets, proposal
from autothrottle.core.topology import Snapshot, TopicPartition, moving_ports
from autothrottle.planner import narration, traces
from autothrottle.planner.catching_up import LOOKED_AFTER, CatchingUp
from autothrottle.planner.guards import Guards
from autothrottle.planner.journal import Journal
from autothrottle.planner.memory import CycleInHand, Memory
from autothrottle.planner.ramps import Ramps
from autothrottle.planner.reading import Reading, obstacle_to_submissions, standing
from autothrottle.planner.settings import CLUSTER_TIMEOUT, IN_SHADOW, PlannerSettings, Ports
from autothrottle.planner.submissions import Submissions
from autothrottle.planner.telling import Telling
from autothrottle.planner.triggers import Trigger, Triggers
from autothrottle.ports.cluster import SnapshotEvent
from autothrottle.ports.leadership import Leader, Term

log = logging.getLogger(__name__)

_NOTHING_LEFT, _MARKED, _EXPIRED = "no reassignment is left", "it was marked for removal", "its time is over"
"""Why an override is purged."""

_PROBLEMS_SHOWN = 5
"""How many an error names."""

_CLOCK_SET = timedelta(seconds=2)
"""Between two cycles the clock may gain or lose so much: beyond it, somebody has set it."""

_CYCLES_KEPT = 100
"""For whoever watches them and is slower than they come."""


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
        self._reading = Reading(ports, settings, self._triggers, self._submissions, self._catching_up, now, clock)
        self._telling = Telling(ports.events, settings, self._triggers, self._guards, now)
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
        self._telling.stop()
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
        if obstacle := obstacle_to_submissions(self._settings, self._ports.pauses.read_pause()):
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
            raise Conflict(IN_SHADOW)
        refused = self._ports.reassigner.alter_reassignments(term.fence, dict.fromkeys(rows), timeout)
        if len(refused) == len(rows):
            more = f"; and {len(refused) - _PROBLEMS_SHOWN} more" if len(refused) > _PROBLEMS_SHOWN else ""
            raise Missing(f"nothing was cancelled: {'; '.join(list(refused.values())[:_PROBLEMS_SHOWN])}{more}")
        self._submissions.forget(rows)
        self._journal.note_cancelled()
        self._triggers.request("a reassignment was cancelled", urgent=True)
        log.info("Reassignment of %d partitions cancelled", len(rows) - len(refused))
        return refused

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
        """Raise the rates that are on their way up by the step that is due.

        Nothing while another term has begun, or it is paused: the cycle that read the pause may have failed later.
        """
        if term is not None and term.fence == self._fence and self._memory.pause is None:
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
            self._catching_up.begin_term()
        memory, start = self._memory, self._now()
        self._note_clock(memory, start)
        memory.cycles += 1
        cycle = CycleInHand(term, memory.cycles)
        try:
            self._reading.read(cycle, trigger, memory, self._newest_event)
            with self._ports.tracer.span("plan"):
                self._decide(cycle)
            with traces.applying(self._ports.tracer, cycle.changes, cycle.outcomes):
                self._write(cycle, trigger)
            self._advance(cycle)
            self._telling.tell(cycle, trigger, memory)
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
            rates = cycle.applied.rates
            self._journal.write(
                CycleSeen(record, cycle.read, cycle.copied, cycle.loads, memory.history, rates, trace_id=trace_id)
            )
        return record

    def _note_clock(self, memory: Memory, now: datetime) -> None:
        """Forget what was measured when, once the clock was set: none of it is as long ago as it seems."""
        origin, memory.clock_origin = memory.clock_origin, now - timedelta(seconds=self._clock())
        if origin is None or abs(memory.clock_origin - origin) <= _CLOCK_SET:
            return
        log.warning("The clock was set by %s: what was measured before is forgotten", memory.clock_origin - origin)
        memory.history, memory.policy = ThrottleHistory(), None
        self._guards.begin_term()

    # Decide.

    def _decide(self, cycle: CycleInHand) -> None:
        memory = self._memory
        # The lists of what was throttled in vain, or of what catches up, are no reassignment that an override has
        # waited for, however many cycles it takes until they are gone.
        withdrawn = (memory.withdrawn or self._submissions.withdrawn) and had_a_move(cycle.snapshot)
        memory.withdrawn = (withdrawn or self._catching_up.shows) and not cycle.read.reassignments
        if cycle.pause is not None:
            self._stand_still(cycle, cycle.pause)
            return
        limits = self._limits()
        progress = cycle.snapshot.progress
        seen = Observation(self._now(), cycle.snapshot, cycle.loads, progress.growth if progress else {})
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
        if memory.withdrawn and not memory.after_reassignment:
            cycle.plan = replace(cycle.plan, finished_override=False)
        if not self._catching_up.is_known:
            cycle.plan = replace(cycle.plan, hold=True, finished_override=False)
        proposed = self._submissions.proposed
        begun = self._catching_up.beside(cycle.read, proposed) if proposed else cycle.copied
        guarded = self._guards.keep(cycle.plan, begun, cycle.snapshot, limits, self._now())
        cycle.plan = guarded.plan
        cycle.findings += guarded.findings
        cycle.left = foreseen(cycle.left, cycle.copied, {(d.broker_id, d.role): d.rate for d in cycle.plan.decisions})
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
            cycle.outcomes += self._ports.writer.apply(fence, wanted, CLUSTER_TIMEOUT)
        cycle.applied = narration.Applied.of(cycle.changes, cycle.outcomes, cycle.snapshot.ledger)
        stands = standing(cycle.snapshot) | {port: rate or 0 for port, rate in cycle.applied.rates.items()}
        self._memory.history = self._memory.history.observe(self._now(), stands, moving_ports(cycle.read))
        if not self._settings.shadow:
            self._ramps.took(cycle.plan, cycle.snapshot, cycle.changes, cycle.outcomes)

    def _note_standing(self, snapshot: Snapshot) -> None:
        """Remember what stands after a step."""
        self._memory.history = self._memory.history.observe(self._now(), standing(snapshot), moving_ports(snapshot))

    def _advance(self, cycle: CycleInHand) -> None:
        """Submit the reassignment whose throttles stand."""
        fence, reassigner = cycle.term.fence, self._ports.reassigner
        with self._ports.tracer.span("submit") if self._submissions.pending else nullcontext():
            after = self._submissions.advance(
                cycle.read, cycle.refused, lambda start: reassigner.alter_reassignments(fence, start, CLUSTER_TIMEOUT)
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
        if cycle.pause is None and not (self._settings.shadow or cycle.snapshot.problems):
            self._catching_up.end(cycle.term.fence, {outcome.resource for outcome in cycle.refused})
        if self._catching_up.active:
            self._triggers.request("a broker catches up", LOOKED_AFTER)

    def _note_reassignment(self, cycle: CycleInHand, purge_is_left: bool) -> None:
        """Remember whether an autoremove override has had its reassignment; what is unknown changes nothing."""
        if cycle.read.reassignments:
            self._memory.after_reassignment = True
        elif not (
            purge_is_left
            or cycle.snapshot.reassignments
            or cycle.snapshot.problems
            or None in cycle.overrides.unreadable
        ):
            self._memory.after_reassignment = False


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
