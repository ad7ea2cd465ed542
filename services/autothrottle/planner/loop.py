"""The planner's loop. Each cycle reads, plans, writes and reports."""

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

from autothrottle.core.cluster.snapshot import Snapshot, TopicPartition, link_sides_of_reassignments
from autothrottle.core.control.changes import changes, removal_of_foreign
from autothrottle.core.control.cycle import CycleRecord, PlannerState
from autothrottle.core.control.overrides import override_owner
from autothrottle.core.control.ownership import foreign_throttles, shown_foreign
from autothrottle.core.control.pause import Pause, PauseMode, release_of_ours, stale_lists
from autothrottle.core.control.plan import had_reassignment, plan
from autothrottle.core.control.submission import Submitted, Targets, proposal
from autothrottle.core.errors import AutothrottleError, Conflict, Missing, NotLeader, Unavailable
from autothrottle.core.forecast.progress import with_static_eta
from autothrottle.core.policy.interface import PolicyObservation
from autothrottle.core.policy.limits import Limits
from autothrottle.core.scoring.decision_records import CycleSeen, LogSettings
from autothrottle.core.traffic.throttle_history import ThrottleHistory
from autothrottle.planner import narration, traces
from autothrottle.planner.catching_up import CATCH_UP_POLL, CatchingUp
from autothrottle.planner.guards import Guards
from autothrottle.planner.journal import Journal
from autothrottle.planner.memory import CycleInHand, Memory
from autothrottle.planner.ramps import Ramps
from autothrottle.planner.reading import Reading, current, obstacle_to_submissions
from autothrottle.planner.settings import CLUSTER_TIMEOUT, IN_SHADOW, PlannerDependencies, PlannerSettings
from autothrottle.planner.submissions import Submissions
from autothrottle.planner.telling import Telling
from autothrottle.planner.triggers import Trigger, Triggers
from autothrottle.ports.kafka import SnapshotEvent
from autothrottle.ports.state_store import Leader, Term

log = logging.getLogger(__name__)

_NOTHING_LEFT, _MARKED, _EXPIRED = "no reassignment is left", "it was marked for removal", "it has expired"
"""Reasons to purge an override."""

_PROBLEMS_SHOWN = 5
"""Maximum number of problems in an error."""

_MAX_CLOCK_DRIFT = timedelta(seconds=2)
"""Largest normal drift of the wall clock between two cycles. A larger one means that the clock was changed."""

_CYCLES_KEPT = 100
"""Cycles to keep for watchers that are slower than the cycles."""


class Planner:
    """The loop of one candidate, in its own thread from `start` to `stop`. It runs cycles only while it leads."""

    def __init__(
        self,
        dependencies: PlannerDependencies,
        settings: PlannerSettings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._dependencies, self._settings, self._now, self._clock, self._chance = (
            dependencies,
            settings,
            now,
            clock,
            chance,
        )
        self._triggers = Triggers(settings.interval, clock)
        self._memory = Memory()
        self._submissions = Submissions(clock)
        self._catching_up = CatchingUp(dependencies.catch_ups)
        on_below_min_isr = partial(self._triggers.request, "partitions are below min.insync.replicas", urgent=True)
        self._guards = Guards(dependencies.settings, settings.schedule, settings.finish_by, on_below_min_isr)
        log_settings = LogSettings(settings.cluster, settings.limits, settings.interval, settings.policy.name)
        self._journal = Journal(dependencies.decisions, log_settings)
        self._fence = 0
        self._newest_event = 0
        self._leader: Leader | None = None
        self._cycles: deque[CycleRecord] = deque(maxlen=_CYCLES_KEPT)
        self._ended = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="planner", daemon=True)
        self._reading = Reading(
            dependencies, settings, self._triggers, self._submissions, self._catching_up, now, clock
        )
        self._telling = Telling(dependencies.events, settings, self._triggers, self._guards, now)
        self._ramps = Ramps(dependencies.writer, self._triggers, self._note_current, clock)
        self._watches = [
            dependencies.snapshots.watch_snapshots(self._on_snapshot_event),
            dependencies.overrides.watch_overrides(lambda: self._triggers.request("an override changed")),
            dependencies.pauses.watch_pause(lambda: self._triggers.request("paused or resumed")),
            dependencies.catch_ups.watch_catch_ups(
                lambda: self._triggers.request("a catch-up began or ended", urgent=True)
            ),
        ]

    def start(self, address: str) -> None:
        """Join the election as `address`, and run a cycle whenever one is due."""
        self._thread.start()
        self._dependencies.election.join(address, self._triggers.restart)

    def stop(self) -> None:
        """Finish the current cycle and give up the leadership, so that another planner can lead at once."""
        for watch in self._watches:
            watch.close()
        self._triggers.stop()
        self._submissions.fail(
            Unavailable("the planner is stopping: nothing was submitted; try again in a few seconds")
        )
        if self._thread.is_alive():  # it is not if a step before `start` failed
            self._thread.join()
        self._dependencies.election.leave()
        self._telling.stop()
        self._guards.close()
        with self._ended:
            self._ended.notify_all()

    def request_cycle(self, reason: str) -> None:
        """Request a cycle and return without waiting for it.

        Raises:
            NotLeader: with the leader's address.
        """
        self._require_term()
        self._triggers.request(reason or "requested", origin=self._dependencies.tracer.origin())

    def submit_reassignment(self, wanted: Targets, timeout: timedelta, validate_only: bool = False) -> Submitted:
        """Throttle a reassignment, then submit it. Returns when Kafka has accepted it.

        Idempotent: partitions that already have or are moving to the wanted replicas are not submitted again.

        Args:
            wanted: target replicas of each partition.
            timeout: > 0. If the throttles are not in place by then, they are removed and nothing is submitted.
            validate_only: dry run: changes nothing.

        Raises:
            NotLeader: with the leader's address.
            Missing, Invalid: the request is wrong. Nothing was submitted.
            Conflict: the current state does not allow it, for example a pause. Nothing was submitted.
            Unavailable: it timed out. The message says whether it may have been submitted.
        """
        term, deadline = self._require_term(), self._clock() + timeout.total_seconds()
        snapshot = self._dependencies.snapshots.fetch_snapshot(
            min_version=self._newest_event, partitions=wanted.keys(), timeout=timeout
        )
        found = proposal(snapshot, wanted)
        if validate_only or not found.start:
            return Submitted(len(found.start), len(found.moving), len(found.there))
        if obstacle := obstacle_to_submissions(self._settings, self._dependencies.pauses.read_pause()):
            raise obstacle
        submission = self._submissions.propose(term.fence, wanted)
        self._triggers.request("a reassignment was requested", urgent=True)
        try:
            return submission.wait(timedelta(seconds=max(deadline - self._clock(), 0.001)))
        except Unavailable:
            self._triggers.request("a submission timed out")
            raise

    def cancel_reassignment(self, rows: Collection[TopicPartition], timeout: timedelta) -> Mapping[TopicPartition, str]:
        """Cancel the reassignment of partitions; return the refused ones, each with the reason.

        Raises:
            NotLeader: with the leader's address.
            Missing: none of them is being reassigned.
            Invalid: the backend cannot cancel.
            Conflict: this planner runs in shadow mode.
            Unavailable: the outcome is unknown.
        """
        term = self._require_term()
        if self._settings.shadow:
            raise Conflict(IN_SHADOW)
        refused = self._dependencies.reassigner.cancel_reassignments(term.fence, rows, timeout)
        if len(refused) == len(rows):
            more = f"; and {len(refused) - _PROBLEMS_SHOWN} more" if len(refused) > _PROBLEMS_SHOWN else ""
            raise Missing(f"nothing was cancelled: {'; '.join(list(refused.values())[:_PROBLEMS_SHOWN])}{more}")
        self._submissions.forget(rows)
        self._journal.note_cancelled()
        self._triggers.request("a reassignment was cancelled", urgent=True)
        log.info("Reassignment of %d partitions cancelled", len(rows) - len(refused))
        return refused

    def _require_term(self) -> Term:
        if (term := self._dependencies.election.term) is None:
            raise NotLeader("this planner is not the leader; call the leader", self.state().leader_address)
        return term

    def state(self) -> PlannerState:
        """Return the leader and the last cycle of this planner."""
        term = self._dependencies.election.term
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
        """The leader; None: unknown. A leading planner reads it once per term, since many callers need it."""
        known = self._leader
        if term is not None and known is not None and known.fence == term.fence:
            return known
        try:
            self._leader = found = self._dependencies.election.leader()
        except Unavailable:
            return None
        return found

    def next_cycle(
        self, after: CycleRecord | None, timeout: timedelta, cancelled: Callable[[], bool] = lambda: False
    ) -> CycleRecord | None:
        """Wait for the cycle that follows `after` and return it; None: timeout, or cancelled.

        If `after` is None or no longer kept, return the newest cycle. To cancel, let `cancelled` return True and call
        `wake_watches`.
        """
        with self._ended:
            self._ended.wait_for(lambda: self._last_cycle is not after or cancelled(), timeout.total_seconds())
            if self._last_cycle is after:
                return None
            kept = list(self._cycles)
            followers = [following for cycle, following in pairwise(kept) if cycle is after]
            return followers[0] if followers else kept[-1]

    def wake_watches(self) -> None:
        """Let all waiting watchers check their `cancelled` function."""
        with self._ended:
            self._ended.notify_all()

    @property
    def _last_cycle(self) -> CycleRecord | None:
        return self._cycles[-1] if self._cycles else None

    def _on_snapshot_event(self, event: SnapshotEvent) -> None:
        # The next discovery replica may lag behind the one that sent this event.
        self._newest_event = max(self._newest_event, event.version)
        self._triggers.request(event.reason, urgent=event.urgent)

    def _run(self) -> None:
        try:
            self._run_cycles()
        except Exception:  # without its thread, this planner would lead and never run a cycle again
            log.exception("The planner's loop failed; this process ends, and another planner can lead")
            self._submissions.fail(Unavailable("the planner failed: nothing was submitted; call the next leader"))
            self._dependencies.election.leave()
            self._dependencies.on_failure()

    def _run_cycles(self) -> None:
        while (trigger := self._triggers.wait()) is not None:
            term = self._dependencies.election.term
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
        """Write the ramp steps that are due.

        Does nothing while paused or in another term: the cycle that read the pause may have failed before it stopped
        the ramp.
        """
        if term is not None and term.fence == self._fence and self._memory.pause is None:
            self._ramps.step(term.fence, self._memory.cycles)

    def run_cycle(self, term: Term, trigger: Trigger) -> CycleRecord:
        """Run one cycle: decide on one consistent input, and write only what differs from the plan."""
        with self._dependencies.tracer.span("cycle", trigger.origins) as span:
            record = self._run_traced(term, trigger, span.trace_id)
            traces.describe_cycle(span, record, trigger.scheduled)
        return record

    def _run_traced(self, term: Term, trigger: Trigger, trace_id: str) -> CycleRecord:
        if term.fence != self._fence:
            log.info("Leading in term %d%s", term.fence, ", in shadow mode: nothing is written" * self._settings.shadow)
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
            with self._dependencies.tracer.span("plan"):
                self._decide(cycle)
            with traces.applying(self._dependencies.tracer, cycle.changes, cycle.outcomes):
                self._write(cycle, trigger)
            self._advance(cycle)
            self._telling.report(cycle, trigger, memory)
            self._purge_overrides(cycle)
            self._end_catch_ups(cycle)
            memory.troubles = memory.troubles + 1 if cycle.refused else 0
        except NotLeader as error:
            log.warning("The cycle ended early: %s", error)
            cycle.error = str(error)
            self._submissions.fail(error)
        except AutothrottleError as error:
            log.error("The cycle failed, nothing was removed: %s", error)
            cycle.error = str(error)
            memory.troubles += 1
            self._submissions.fail(Unavailable(f"nothing was submitted: {error}"))
        except Exception as error:  # a bug must not end the loop: no other planner can lead while we hold the term
            log.exception("The cycle failed unexpectedly")
            cycle.error = f"unexpected {type(error).__name__}; the log has the traceback"
            memory.troubles += 1
            self._submissions.fail(AutothrottleError(f"nothing was submitted: {cycle.error}"))
        if memory.troubles:
            wait = back_off(memory.troubles, self._settings.interval, self._chance())
            self._triggers.request("retrying after a failure", wait)
        record = cycle.record(start, self._now(), trigger.reason, self._settings.shadow)
        log.debug("cycle %d (%s): %s", record.number, record.reason, record.sentence or record.error)
        if cycle.is_read:
            rates = cycle.applied.rates
            self._journal.write(
                CycleSeen(record, cycle.read, cycle.copied, cycle.loads, memory.history, rates, trace_id=trace_id)
            )
        return record

    def _note_clock(self, memory: Memory, now: datetime) -> None:
        """Discard measurements when the wall clock was changed: their age is wrong then."""
        origin, memory.clock_origin = memory.clock_origin, now - timedelta(seconds=self._clock())
        if origin is None or abs(memory.clock_origin - origin) <= _MAX_CLOCK_DRIFT:
            return
        log.warning("The clock was changed by %s; discarding earlier measurements", memory.clock_origin - origin)
        memory.history, memory.policy = ThrottleHistory(), None
        self._guards.begin_term()

    # Decide.

    def _decide(self, cycle: CycleInHand) -> None:
        memory = self._memory
        # The lists of a failed submission or of a catch-up are not a reassignment that an autoremove override waits
        # for, however many cycles their removal takes.
        withdrawn = (memory.withdrawn or self._submissions.withdrawn) and had_reassignment(cycle.snapshot)
        memory.withdrawn = (withdrawn or self._catching_up.shows) and not cycle.read.reassignments
        if cycle.pause is not None:
            self._decide_paused(cycle, cycle.pause)
            return
        limits = self._limits()
        progress = cycle.snapshot.progress
        policy_input = PolicyObservation(self._now(), cycle.snapshot, cycle.loads, progress.growth if progress else {})
        memory.policy = (memory.policy or self._settings.policy).observe(policy_input)
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
        copied = self._catching_up.beside(cycle.read, proposed) if proposed else cycle.copied
        guarded = self._guards.keep(cycle.plan, copied, cycle.snapshot, limits, self._now())
        cycle.plan = guarded.plan
        cycle.findings += guarded.findings
        cycle.left = with_static_eta(
            cycle.left, cycle.copied, {(d.broker_id, d.role): d.rate for d in cycle.plan.decisions}
        )
        pace = None if self._settings.shadow else self._ramps.pace
        found = changes(cycle.plan, cycle.snapshot, cycle.term.fence, cycle.number, pace)
        cycle.changes, cycle.outcomes = list(found.changes), list(found.refused)
        cycle.findings += found.findings

    def _limits(self) -> Limits:
        """The operator's limits at this time. Requests a cycle for the next change of the schedule."""
        now = self._now()
        if (change := self._guards.next_change(now)) is not None:
            self._triggers.request("the schedule changes the share of headroom", change)
        return self._guards.limits(self._settings.limits, now)

    def _decide_paused(self, cycle: CycleInHand, pause: Pause) -> None:
        """Keep the current throttles, or remove ours, depending on the pause's mode."""
        if pause.mode is PauseMode.KEEP:
            if stale := stale_lists(cycle.snapshot, cycle.overrides, self._settings.limits.keep_throttles):
                cycle.findings.append(narration.stale_line(stale))
            return
        found = release_of_ours(cycle.snapshot, cycle.term.fence, cycle.number)
        cycle.changes, cycle.outcomes = list(found.changes), list(found.refused)
        cycle.findings += found.findings

    # Write.

    def _write(self, cycle: CycleInHand, trigger: Trigger) -> None:
        if self._cleanup_is_due(cycle, trigger):
            ours = {change.resource for change in cycle.changes}
            foreign = removal_of_foreign(cycle.snapshot, cycle.term.fence, cycle.number)
            # One change per resource: the next cycle removes what is left out here.
            cycle.changes += [change for change in foreign if change.resource not in ours]
        if self._settings.shadow:
            cycle.would = tuple(cycle.changes)
            cycle.changes.clear()
        if cycle.changes:
            fence, wanted = cycle.term.fence, cycle.changes
            cycle.outcomes += self._dependencies.writer.apply(fence, wanted, CLUSTER_TIMEOUT)
        cycle.applied = narration.Applied.of(cycle.changes, cycle.outcomes, cycle.snapshot.ledger)
        rates = current(cycle.snapshot) | {side: rate or 0 for side, rate in cycle.applied.rates.items()}
        self._memory.history = self._memory.history.observe(self._now(), rates, link_sides_of_reassignments(cycle.read))
        if not self._settings.shadow:
            self._ramps.follow(cycle.plan, cycle.snapshot, cycle.changes, cycle.outcomes)

    def _note_current(self, snapshot: Snapshot) -> None:
        """Add the rates after a ramp step to the throttle history."""
        self._memory.history = self._memory.history.observe(
            self._now(), current(snapshot), link_sides_of_reassignments(snapshot)
        )

    def _advance(self, cycle: CycleInHand) -> None:
        """Submit the proposed reassignment if its throttles are in place."""
        fence, reassigner = cycle.term.fence, self._dependencies.reassigner
        with self._dependencies.tracer.span("submit") if self._submissions.pending else nullcontext():
            after = self._submissions.advance(
                cycle.read, cycle.refused, lambda start: reassigner.submit_reassignments(fence, start, CLUSTER_TIMEOUT)
            )
        if after is not None:
            self._triggers.request("checking a submitted reassignment", after, urgent=True)

    def _cleanup_is_due(self, cycle: CycleInHand, trigger: Trigger) -> bool:
        """Whether to remove foreign throttles now; they are reported first, once."""
        memory, settings = self._memory, self._settings
        if cycle.pause is not None:
            return False
        idle = not cycle.snapshot.reassignments and not cycle.plan.hold
        foreign = foreign_throttles(cycle.snapshot) if idle else {}
        if not foreign:
            memory.foreign_cycles = 0
            return False
        # The cycle that finds them first is not a whole interval after their start.
        memory.foreign_cycles += trigger.scheduled
        is_due = settings.cleanup_foreign and memory.foreign_cycles > settings.cleanup_after
        if settings.shadow or not is_due:
            cycle.foreign = shown_foreign(foreign)
            cycle.findings.append(narration.foreign_line(foreign, settings.cleanup_foreign))
        return is_due

    def _purge_overrides(self, cycle: CycleInHand) -> None:
        """Remove finished and expired overrides, each at the version that was read."""
        overrides, fence = cycle.overrides, cycle.term.fence
        if cycle.pause is not None or self._settings.shadow:
            self._note_reassignment(cycle, purge_pending=True)
            return
        finished = cycle.plan.finished_override and overrides.cluster is not None
        if finished and overrides.cluster is not None and not cycle.refused:
            if self._dependencies.overrides.purge_override(fence, None, overrides.cluster.version, _NOTHING_LEFT):
                log.info("Throttle override removed: %s", _NOTHING_LEFT)
            finished = False
        self._note_reassignment(cycle, finished)
        for broker_id, override in overrides.brokers.items():
            if override.rate == 0 and broker_id not in overrides.unreadable:
                self._dependencies.overrides.purge_override(fence, broker_id, override.version, _MARKED)
        for broker_or_all, override in cycle.expired.items():
            if broker_or_all in overrides.unreadable:
                continue
            if self._dependencies.overrides.purge_override(fence, broker_or_all, override.version, _EXPIRED):
                log.info("Throttle override of %s removed: %s", override_owner(broker_or_all), _EXPIRED)

    def _end_catch_ups(self, cycle: CycleInHand) -> None:
        """End the catch-ups of brokers in sync, and request another cycle while others remain."""
        if cycle.pause is None and not (self._settings.shadow or cycle.snapshot.problems):
            self._catching_up.end(cycle.term.fence, {outcome.resource for outcome in cycle.refused})
        if self._catching_up.active:
            self._triggers.request("a broker catches up", CATCH_UP_POLL)

    def _note_reassignment(self, cycle: CycleInHand, purge_pending: bool) -> None:
        """Record whether an autoremove override has had its reassignment. An incomplete snapshot changes nothing."""
        if cycle.read.reassignments:
            self._memory.after_reassignment = True
        elif not (
            purge_pending
            or cycle.snapshot.reassignments
            or cycle.snapshot.problems
            or None in cycle.overrides.unreadable
        ):
            self._memory.after_reassignment = False


def back_off(troubles: int, interval: timedelta, chance: float) -> timedelta:
    """Return the wait before the next try after consecutive failed cycles.

    1 s, 2 s, 4 s and so on up to the interval, plus a jitter of up to 50 %, so that planners do not retry at the same
    moment.

    Args:
        troubles: consecutive failures, >= 1.
        interval: the longest wait; if it is shorter than 1 s, the wait is 1 s.
        chance: jitter in [0, 1).
    """
    wanted = timedelta(seconds=2 ** min(troubles - 1, 10) * (1 + chance / 2))
    return max(timedelta(seconds=1), min(interval, wanted))
