"""The planner's loop. Each cycle observes, decides, applies, settles and reports; `core.cycle.step` decides.

A cycle runs once per interval, and immediately on events; `Triggers` collects the requests.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from autothrottle.core.cluster.snapshot import Snapshot, SnapshotRequest, TopicPartition, TopicReassignment, named
from autothrottle.core.cycle.decision import CycleDecision, CycleResults, WakeUp
from autothrottle.core.cycle.input import ControllerState, CycleObservation, PlannerSettings
from autothrottle.core.cycle.requests import IN_SHADOW, obstacle_to_submissions
from autothrottle.core.cycle.step import ramp_steps, settle, step
from autothrottle.core.errors import AutothrottleError, Conflict, Missing, NotLeader, Unavailable
from autothrottle.core.exported_metrics import MetricSample
from autothrottle.core.operators.submission import Targets, postponement, proposal, with_one_exchange
from autothrottle.core.records import Cycle, PlannerState, Submission, Throttle
from autothrottle.core.retries import CYCLE
from autothrottle.core.scoring.cycle_records import ReplayInput
from autothrottle.core.scoring.decision_records import LogSettings
from autothrottle.core.texts import excerpt
from autothrottle.core.throttles.changes import RampState, WriteHistory
from autothrottle.core.throttles.guards import below_min_isr
from autothrottle.planner.calls import (
    CLUSTER_TIMEOUT,
    Applier,
    LoadsProbe,
    Observer,
    PlannerDependencies,
    SettingsReader,
    Submissions,
    Watchdog,
)
from autothrottle.planner.cycle_report import CycleReport, Reported, RunningCycle, cycle_report
from autothrottle.planner.report import Journal, PlannerMetrics, Reporter, describe_cycle
from autothrottle.ports.kafka import SnapshotEvent, Term
from autothrottle.ports.state_store import Leader
from autothrottle.ports.telemetry import Origin
from autothrottle.runtime.shutdown import places

SPACING = timedelta(seconds=1)
"""Minimum time between the starts of two event cycles."""

URGENT_SPACING = timedelta(seconds=0.2)
"""`SPACING` while bytes move unthrottled: a controller starts a reassignment partition by partition."""

_MAX_ORIGINS = 32
"""Maximum number of links in the trace of a cycle."""

_MAX_REASON = 200
"""Longest reason, in characters."""

_MAX_REQUESTS = 8
"""Immediate requests to keep with their own reason. More of them share one."""

_MORE = "and more requests"


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why a cycle runs."""

    reason: str
    """What happened, or `interval`."""
    scheduled: bool
    """Whether this is the regular cycle of an interval. Only those count failures and idle intervals."""
    origins: tuple[Origin, ...] = ()
    """The newest traced calls that requested the cycle."""
    step: bool = False
    """Whether only the next ramp step is due, not a cycle."""


class _Request(NamedTuple):
    due: float
    urgent: bool
    origins: tuple[Origin, ...] = ()


class Triggers:
    """Collects requests for cycles; one thread waits for them. Thread-safe; `request` never blocks."""

    def __init__(self, interval: timedelta, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval.total_seconds()
        self._clock = clock
        self._condition = threading.Condition()
        self._requests: dict[str, _Request] = {}
        self._next_scheduled = clock()
        self._last_event = clock() - SPACING.total_seconds()
        self._step_due: float | None = None
        self._stopped = False

    def request(
        self,
        reason: str,
        after: timedelta = timedelta(0),
        urgent: bool = False,
        origin: Origin | None = None,
    ) -> None:
        """Request a cycle now or after a delay. Requests that are due together share one cycle.

        Any number of callers takes bounded memory: a reason is cut, and beyond a few reasons they share one. A delayed
        request is the planner's own and keeps its time.
        """
        due = self._clock() + after.total_seconds()
        origins = () if origin is None else (origin,)
        reason = reason if len(reason) <= _MAX_REASON else f"{reason[: _MAX_REASON - 3]}..."
        with self._condition:
            if not after and reason not in self._requests and len(self._requests) >= _MAX_REQUESTS:
                reason = _MORE
            known = self._requests.get(reason)
            if known is not None:
                due, urgent = min(due, known.due), urgent or known.urgent
                origins = (*known.origins, *origins)[-_MAX_ORIGINS:]
            self._requests[reason] = _Request(due, urgent, origins)
            self._condition.notify_all()

    def step_in(self, delay: timedelta | None) -> None:
        """Schedule the next ramp step, replacing any other; None: no step."""
        with self._condition:
            self._step_due = None if delay is None else self._clock() + delay.total_seconds()
            self._condition.notify_all()

    def restart(self) -> None:
        """Make a scheduled cycle due at once, and drop all earlier requests."""
        with self._condition:
            self._requests.clear()
            self._step_due = None
            self._next_scheduled = self._clock()
            self._condition.notify_all()

    def stop(self) -> None:
        """Make `wait` return None from now on."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def poll(self) -> Trigger | None:
        """Return the trigger that is due now, as `wait` does; None: nothing is due."""
        with self._condition:
            return self._due(self._clock())

    def wait(self) -> Trigger | None:
        """Block until a cycle is due; None: stopped."""
        with self._condition:
            while not self._stopped:
                now = self._clock()
                if (trigger := self._due(now)) is not None:
                    return trigger
                self._condition.wait(max(0.0, self._next_due() - now))
        return None

    def _due(self, now: float) -> Trigger | None:
        due = [reason for reason, request in self._requests.items() if request.due <= now]
        scheduled = self._next_scheduled <= now
        if scheduled:
            # From now, not from the due time: otherwise two cycles run back to back after a long one.
            self._next_scheduled = now + self._interval
        elif any(self._earliest(self._requests[reason]) <= now for reason in due):
            self._last_event = now
        elif self._step_due is not None and self._step_due <= now:
            self._step_due = None
            return Trigger("ramp step", scheduled=False, step=True)
        else:
            return None
        origins = [origin for reason in due for origin in self._requests.pop(reason).origins]
        return Trigger("; ".join(due) or "interval", scheduled, tuple(origins[-_MAX_ORIGINS:]))

    def _earliest(self, request: _Request) -> float:
        """The earliest time at which the requested cycle may run."""
        spacing = URGENT_SPACING if request.urgent else SPACING
        return max(request.due, self._last_event + spacing.total_seconds())

    def _next_due(self) -> float:
        steps = [] if self._step_due is None else [self._step_due]
        return min([self._next_scheduled, *steps, *map(self._earliest, self._requests.values())])


log = logging.getLogger(__name__)

_STEP_TIMEOUT = timedelta(seconds=10)
"""Timeout of one ramp step."""

_PROBLEMS_SHOWN = 5
"""Maximum number of problems in an error."""

_STALL_INTERVALS, _STALL_LEAST = 3, timedelta(minutes=1)
"""A loop without a turn for this many intervals, and this time at least, counts as stalled."""

_CYCLES_KEPT = 100
"""Cycles to keep for watchers that are slower than the cycles."""

_NOT_READY, _GIVES_UP = 3, 6
"""Unexpected failures in a row after which a leader is not ready, and after which it gives up its term."""

_NO_FAILURES = {"cycles": 0, "ramp steps": 0}

_REST = timedelta(minutes=1)
"""Time until a leader that has given up its term stands again."""

_STOP_SECONDS = 3.0
"""How long `stop` waits for the current cycle; calls to other services are cancelled before."""


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
        self._dependencies, self._settings = dependencies, settings
        self._now, self._clock, self._chance = now, clock, chance
        self._triggers = Triggers(settings.interval, clock)
        self._submissions = Submissions()
        self._state = ControllerState()
        self._copying: tuple[TopicReassignment, ...] = ()
        self._reader = SettingsReader(dependencies.settings, self._on_settings)
        self._probe = LoadsProbe(dependencies.loads, lambda: self._triggers.request("the metrics source answers again"))
        self._watchdog = Watchdog(self._on_stall, self._on_recovery)
        self._observer = Observer(
            dependencies, settings, self._submissions, self._reader, self._probe, self._watchdog, now, clock
        )
        self._applier = Applier(dependencies, self._submissions, self._watchdog, now, clock)
        self._reporter = Reporter(dependencies.events, settings)
        self._metrics = PlannerMetrics(settings.interval, now, clock, dependencies.broker_pools)
        log_settings = LogSettings(settings.cluster, settings.limits, settings.interval, settings.policy.name)
        self._journal = Journal(dependencies.decisions, log_settings)
        self._newest_event = 0
        self._leader: Leader | None = None
        self._last_turn = clock()
        self._unreadable = ""
        self._address, self._host = "", ""
        self._failures = Counter(_NO_FAILURES)
        """Unexpected failures in a row."""
        self._cycles: deque[Cycle] = deque(maxlen=_CYCLES_KEPT)
        self._stepped: tuple[Cycle | None, tuple[Throttle, ...]] = None, ()
        """The throttles that ramp steps have changed since a cycle, and that cycle. One value for other threads."""
        self._ended = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="planner", daemon=True)
        self._watches = [
            dependencies.snapshots.watch_snapshots(self._on_snapshot_event),
            dependencies.overrides.watch_overrides(lambda: self._triggers.request("an override changed")),
            dependencies.pauses.watch_pause(lambda: self._triggers.request("paused or resumed")),
            dependencies.catch_ups.watch(lambda: self._triggers.request("a catch-up began or ended", urgent=True)),
            dependencies.temporary_quotas.watch(lambda: self._triggers.request("a temporary quota changed")),
            dependencies.yield_rules.watch(lambda: self._triggers.request("a yield rule changed")),
        ]

    def start(self, address: str, host: str = "") -> None:
        """Join the election as `address` on `host`, and run a cycle whenever one is due."""
        self._address, self._host = address, host
        self._thread.start()
        self._dependencies.election.join(address, self._triggers.restart, host)

    def stop(self) -> None:
        """Finish the current cycle and give up the leadership, so that another planner can lead at once."""
        for watch in self._watches:
            watch.close()
        self._triggers.stop()
        self._submissions.fail(
            Unavailable("the planner is stopping: nothing was submitted; try again in a few seconds")
        )
        if self._thread.is_alive():  # it is not if a step before `start` failed
            self._thread.join(_STOP_SECONDS)
        self._watchdog.close()
        if self._thread.is_alive():
            self._abandon_term()
        self._dependencies.election.leave()
        self._reporter.stop()
        self._reader.close()
        self._probe.close()
        self.wake_watches()

    def stall(self) -> str:
        """Return why the loop counts as stuck, and the fix; "": it is not stuck."""
        if where := self._watchdog.stall:
            return f"the planner's loop is stuck in {where}; restart the process"
        age = timedelta(seconds=self._clock() - self._last_turn)
        limit = max(_STALL_INTERVALS * self._settings.interval, _STALL_LEAST)
        if age <= limit:
            return ""
        return f"the planner's loop has not finished a cycle for {age.total_seconds():.0f} s; restart the process"

    def unreadable(self) -> str:
        """Return why the last snapshot failed; "": it succeeded, or this planner does not lead."""
        return self._unreadable

    def failing(self) -> str:
        """Return why this leader does not control the cluster, although it leads; "": it does, or it does not lead."""
        what, count = self._failures.most_common(1)[0]
        if count < _NOT_READY or self._dependencies.election.term is None:
            return ""
        return f"{count} {what} in a row failed unexpectedly; the log has the traceback. Fix: report it"

    def request_cycle(self, reason: str) -> None:
        """Request a cycle and return without waiting for it.

        Raises:
            NotLeader: with the leader's address.
        """
        self._require_term()
        self._triggers.request(reason or "requested", origin=self._dependencies.tracer.origin())

    def submit_reassignment(self, wanted: Targets, timeout: timedelta, validate_only: bool = False) -> Submission:
        """Throttle a reassignment, then submit it. Returns when Kafka has accepted it.

        Idempotent: partitions that already have or are moving to the wanted replicas are not submitted again. The
        topic of our own state exchanges one replica at a time: the same call, repeated, continues.

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
            SnapshotRequest(self._newest_event, partitions=wanted.keys()), timeout=timeout
        )
        step_targets = with_one_exchange(snapshot, wanted, self._settings.state_topic)
        proposed = proposal(snapshot, step_targets)
        postponed, warnings = postponement(wanted, step_targets)
        if validate_only or not proposed.start:
            counts = len(proposed.start), len(proposed.moving), len(proposed.in_place)
            return Submission(*counts, warnings=warnings, postponed=postponed)
        if obstacle := obstacle_to_submissions(self._settings.shadow, self._dependencies.pauses.read_pause()):
            raise obstacle
        end = self._submissions.propose(term.fence, step_targets)
        self._triggers.request("a reassignment was requested", urgent=True)
        try:
            done = self._submissions.wait(end, timedelta(seconds=max(deadline - self._clock(), 0.001)))
        except Unavailable:
            self._triggers.request("a submission timed out")
            raise
        return replace(done, warnings=(*done.warnings, *warnings), postponed=postponed)

    def cancel_reassignment(self, rows: Collection[TopicPartition], timeout: timedelta) -> Mapping[TopicPartition, str]:
        """Cancel the reassignment of partitions; return those that are not cancelled, each with the reason.

        Those whose original replicas are not safe go on, see `CancelRule`.

        Raises:
            NotLeader: with the leader's address.
            Missing: none of them is being reassigned.
            Invalid: the backend cannot cancel.
            Conflict: this planner runs in shadow mode, or the safety of the partitions cannot be checked now.
            Unavailable: the outcome is unknown.
        """
        term = self._require_term()
        if self._settings.shadow:
            raise Conflict(IN_SHADOW)
        cancellation = self._dependencies.reassigner.cancel_reassignments(term, rows, timeout)
        if len(cancellation.refused) == len(rows):
            reasons = excerpt(list(cancellation.refused.values()), _PROBLEMS_SHOWN, "; ")
            raise Missing(f"nothing was cancelled: {reasons}")
        not_cancelled = cancellation.not_cancelled
        for row, reason in list(cancellation.unsafe.items())[:_PROBLEMS_SHOWN]:
            log.warning("The reassignment of %s was not cancelled: %s", named(row), reason)
        log.info("Reassignment of %d of %d partitions cancelled", len(rows) - len(not_cancelled), len(rows))
        if cancelled := [row for row in rows if row not in not_cancelled]:
            self._submissions.cancel(cancelled)
            self._triggers.request("a reassignment was cancelled", urgent=True)
        return not_cancelled

    def _require_term(self) -> Term:
        if (term := self._dependencies.election.term) is None:
            raise NotLeader("this planner is not the leader; call the leader", self.state().leader_address)
        return term

    def state(self) -> PlannerState:
        """Return the leader and the last cycle of this planner."""
        term = self._dependencies.election.term
        leader, last_cycle, (cycle, throttles) = self._leader_of(term), self._last_cycle, self._stepped
        return PlannerState(
            leading=term is not None,
            term=leader.fence if leader else 0,
            leader_address=leader.address if leader else "",
            last_cycle=last_cycle,
            failures=dict(self._state.term.throttles.failures),
            leader_since=leader.since if leader else None,
            leader_host=leader.host if leader else "",
            cluster_name=self._settings.cluster,
            last_cycle_end=last_cycle.end_time if last_cycle else None,
            throttles=throttles if cycle is last_cycle else (),
        )

    def samples(self) -> Iterator[MetricSample]:
        """Return the exported metrics of this planner, without waiting."""
        term = self._dependencies.election.term
        yield from self._metrics.samples(term.fence if term else 0)
        yield self._reporter.queue_length()

    def _leader_of(self, term: Term | None) -> Leader | None:
        """The leader; None: unknown. A leading planner reads it once per term, since many callers need it."""
        last = self._leader
        if term is not None and last is not None and last.fence == term.fence:
            return last
        try:
            self._leader = leader = self._dependencies.election.leader()
        except Unavailable:
            return None
        return leader

    def next_cycle(
        self, after: Cycle | None, timeout: timedelta, cancelled: Callable[[], bool] = lambda: False
    ) -> Cycle | None:
        """Wait for the cycle that follows `after` and return it; None: timeout, or cancelled.

        If `after` is None or no longer kept, return the newest cycle. To cancel, let `cancelled` return True and call
        `wake_watches`.
        """
        with self._ended:
            self._ended.wait_for(lambda: self._last_cycle is not after or cancelled(), timeout.total_seconds())
            if self._last_cycle is after:
                return None
            cycles = list(self._cycles)
            followers = [following for cycle, following in pairwise(cycles) if cycle is after]
            return followers[0] if followers else cycles[-1]

    def wake_watches(self) -> None:
        """Let all waiting watchers check their `cancelled` function."""
        with self._ended:
            self._ended.notify_all()

    @property
    def _last_cycle(self) -> Cycle | None:
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
            self._watchdog.close()
            self._dependencies.on_failure()

    def _run_cycles(self) -> None:
        self._watchdog.start()
        while (trigger := self._triggers.wait()) is not None:
            self._watchdog.enter("the beginning of a cycle")
            term = self._dependencies.election.term
            if trigger.step:
                self.run_step(term)
            elif term is not None:
                self._publish(self.run_cycle(term, trigger))
                self._last_turn = self._clock()
            else:
                self._submissions.begin_term(0)
                self._probe.follow(False)
                self._last_turn, self._unreadable = self._clock(), ""
                self._metrics.note_idle()
            if max(self._failures.values()) >= _GIVES_UP:
                self._resign()
            self._watchdog.rest()

    def _resign(self) -> None:
        """Give up the term, if another candidate can lead: this one fails, perhaps for a reason of its own."""
        what, count = self._failures.most_common(1)[0]
        with self._watchdog.waiting("the election", CLUSTER_TIMEOUT):
            if not self._dependencies.election.resign(_REST):
                return
        self._failures = Counter(_NO_FAILURES)
        self._submissions.fail(Unavailable("the planner failed: nothing was submitted; call the next leader"))
        log.error(
            "%d %s in a row failed unexpectedly: giving up the term, throttles stay. This planner stands for election "
            "again in %g s. Fix: report the traceback above",
            count,
            what,
            _REST.total_seconds(),
        )

    def _on_stall(self, where: str) -> None:
        """End the candidacy of a planner whose loop is stuck. Called from the watchdog's thread."""
        place = places((self._thread,))
        self._abandon_term()
        self._dependencies.election.leave()
        log.error(
            "The planner's loop is stuck in %s, at %s: the term is given up, throttles stay, another planner can lead. "
            "Fix: restart the process, and report this line",
            where,
            place,
        )

    def _abandon_term(self) -> None:
        """Let the current cycle, which is stuck, write nothing when it continues."""
        term = self._dependencies.election.term
        self._watchdog.abandoned_fence = max(self._state.term.fence, term.fence if term else 0)
        self._submissions.fail(Unavailable("the planner is stuck: nothing was submitted; call the next leader"))

    def _on_recovery(self) -> None:
        log.warning("The planner's loop turns again: this planner stands for election again")
        self._dependencies.election.join(self._address, self._triggers.restart, self._host)

    def _publish(self, record: Cycle) -> None:
        with self._ended:
            self._cycles.append(record)
            self._ended.notify_all()

    def run_step(self, term: Term | None) -> None:
        """Write the ramp steps that are due. If one fails, request a cycle, which reads the current throttles."""
        if term is None or term.fence != self._state.term.fence:
            return
        try:
            self._run_step(term)
            self._failures["ramp steps"] = 0
        except NotLeader as error:
            log.warning("The ramp ended: %s", error)
            self._end_ramp()
        except AutothrottleError as error:
            self._end_ramp()
            self._retry_step(str(error))
        except Exception:  # a bug must not end the loop: no other planner can lead while we hold the term
            log.exception("A ramp step failed unexpectedly")
            self._journal.note_bug()
            self._failures["ramp steps"] += 1
            self._end_ramp()
            self._retry_step("the log has the traceback")

    def _run_step(self, term: Term) -> None:
        clock = self._clock()
        decision = ramp_steps(self._state, self._now(), clock)
        if decision.changes:
            results = self._applier.apply(term, decision, _STEP_TIMEOUT)
            self._journal.note_step(decision.at, clock, results)
            if results.error is not None:
                raise results.error
            self._state, settled = settle(self._settings, decision, results)
            if settled.refused:
                self._retry_step(f"{settled.refused[0].resource}: {settled.refused[0].reason}")
            self._metrics.note_writes(settled.outcomes)
            self._note_throttles(decision.at, clock)
        self._schedule_step()

    def _note_throttles(self, at: datetime, clock: float) -> None:
        """Note the throttles in Kafka after a ramp step, for the state and the metrics."""
        throttles, last_cycle = self._state.term.ramp.throttles(self._state.written, at, clock), self._last_cycle
        of_cycle = frozenset(last_cycle.throttles if last_cycle else ())
        self._stepped = last_cycle, tuple(throttle for throttle in throttles if throttle not in of_cycle)
        self._metrics.note_throttles(throttles)

    def _retry_step(self, reason: str) -> None:
        log.warning("Ramp step failed; the next cycle retries it: %s", reason)
        self._triggers.request("a ramp step failed")

    def _end_ramp(self) -> None:
        self._state = replace(self._state, term=replace(self._state.term, ramp=RampState()))
        self._schedule_step()

    def _schedule_step(self) -> None:
        self._triggers.step_in(self._state.term.ramp.due_in(self._state.written, self._clock()))

    def run_cycle(self, term: Term, trigger: Trigger) -> Cycle:
        """Run one cycle: decide on one consistent input, and write only what differs from the plan."""
        with self._dependencies.tracer.span("cycle", trigger.origins) as span:
            record = self._run_traced(term, trigger, span.trace_id)
            describe_cycle(span, record, trigger.scheduled, self._settings.cluster)
        return record

    def _run_traced(self, term: Term, trigger: Trigger, trace_id: str) -> Cycle:
        now, report = self._now(), None
        cycle = RunningCycle(self._state, now, now, trigger.reason, trigger.scheduled)
        written = self._state.written
        with self._contained(cycle):
            self._run_parts(term, cycle)
        with self._contained(cycle):
            decision = cycle.decision
            self._watchdog.enter("reporting", decision.view.snapshot.reassignments if decision else ())
            cycle.state, cycle.end = self._state, self._now()
            cycle.access_problems = tuple(self._dependencies.access_problems())
            report = cycle_report(self._settings, self._reporter.reported, cycle)
            self._report(report, cycle, trace_id, written)
        for bug in cycle.bugs:
            log.error("The cycle failed unexpectedly", exc_info=bug)
        if cycle.has_failed_unexpectedly or cycle.failure is None:
            self._failures["cycles"] = self._failures["cycles"] + 1 if cycle.has_failed_unexpectedly else 0
        if troubles := max(self._state.term.troubles, self._failures["cycles"]):
            wait = back_off(troubles, self._settings.interval, self._chance())
            self._triggers.request("retrying after a failure", wait)
        if report is None:
            unreported = RunningCycle(self._state, now, self._now(), trigger.reason, trigger.scheduled)
            report = cycle_report(self._settings, Reported(), unreported)
        record = report.record
        return replace(record, error=cycle.error, sentence="") if cycle.has_failed_unexpectedly else record

    @contextmanager
    def _contained(self, cycle: RunningCycle) -> Iterator[None]:
        """Let an unexpected error fail this cycle only: no other planner can lead while we hold the term."""
        try:
            yield
        except Exception as error:
            is_counted = cycle.decision is not None or cycle.has_failed_unexpectedly
            cycle.error = f"unexpected {type(error).__name__}; the log has the traceback"
            cycle.bugs.append(error)
            cycle.has_failed_unexpectedly = True
            self._journal.note_bug()
            self._state = self._state.after_bug(is_counted)
            self._submissions.fail(AutothrottleError(f"nothing was submitted: {cycle.error}"))

    def _report(self, report: CycleReport, cycle: RunningCycle, trace_id: str, written: WriteHistory) -> None:
        """Write a report to the log, the events, the metrics and the decision log."""
        self._reporter.report(report)
        cycle.bugs.clear()
        self._metrics.note_cycle(report)
        record = report.record
        log.debug("Cycle %d (%s): %s", record.number, record.reason, record.sentence or record.error)
        observation, results = cycle.observation, cycle.results
        inputs = None
        if observation is not None and results is not None and not cycle.has_failed_unexpectedly:
            inputs = ReplayInput(self._settings, observation, results, written=written)
        self._journal.write(report, trace_id, inputs)

    def _run_parts(self, term: Term, cycle: RunningCycle) -> None:
        """Observe, decide, apply and settle."""
        if term.fence != self._state.term.fence:
            self._begin_term(term.fence)
        enter = self._watchdog.enter
        enter("observing", self._copying)
        observation = self._observer.observe(self._state.term, cycle.is_scheduled, self._newest_event)
        cycle.observation = observation
        snapshot = observation.snapshot if isinstance(observation.snapshot, Snapshot) else None
        self._unreadable = "" if snapshot else str(observation.snapshot)
        enter("deciding", snapshot.reassignments if snapshot else ())
        with self._dependencies.tracer.span("plan") if snapshot else nullcontext():
            cycle.decision = decision = step(self._settings, self._state, observation)
        self._state = decision.state
        self._follow(decision, observation)
        enter("applying", decision.view.snapshot.reassignments)
        if decision.error is None:
            results = self._applier.apply(term, decision)
        else:
            results = CycleResults(observation.at, observation.clock, error=decision.error, are_written=False)
        enter("settling", decision.view.snapshot.reassignments)
        self._settle(cycle, decision, results)
        cycle.results = results

    def _follow(self, decision: CycleDecision, observation: CycleObservation) -> None:
        """Request the cycles and the settings that a decision asks for, and answer the caller that it refuses."""
        for wake_up in decision.wake_ups:
            self._request(wake_up)
        if decision.answer is not None and observation.request is not None:
            self._submissions.answer(observation.request.ticket, decision.answer)
        if decision.limits is not None:
            self._copying = decision.view.copying.reassignments
            snapshot = decision.view.to_throttle
            self._reader.want(snapshot.participants.keys(), snapshot.topics)
            are_lost = bool(snapshot.participants) and self._state.term.loads.are_lost
            self._probe.follow(are_lost and self._thread.is_alive())
        elif decision.pause is not None:  # until its end no rate follows the loads
            self._probe.follow(False)

    def _settle(self, cycle: RunningCycle, decision: CycleDecision, results: CycleResults) -> None:
        """Record what became of a decision, answer its caller, and request the cycles that follow."""
        self._state, cycle.settled = settle(self._settings, decision, results)
        if decision.ticket and cycle.settled.answer is not None:
            self._submissions.answer(decision.ticket, cycle.settled.answer)
        if results.error is not None:
            cycle.error, cycle.failure = str(results.error), results.error
            is_over = isinstance(results.error, NotLeader)
            self._submissions.fail(results.error if is_over else Unavailable(f"nothing was submitted: {results.error}"))
        if results.are_written and not self._settings.shadow:
            self._schedule_step()
        for wake_up in cycle.settled.wake_ups:
            self._request(wake_up)

    def _begin_term(self, fence: int) -> None:
        self._state, self._newest_event = self._state.begin_term(fence), 0
        self._reporter.begin_term(fence)
        self._metrics.note_idle()
        self._submissions.begin_term(fence)
        self._triggers.step_in(None)
        self._failures = Counter(_NO_FAILURES)

    def _request(self, wake_up: WakeUp) -> None:
        self._triggers.request(wake_up.reason, wake_up.after, wake_up.urgent)

    def _on_settings(self) -> None:
        """Request a cycle if partitions are below min.insync.replicas. Called from the reader's thread."""
        if below_min_isr(self._copying, self._reader.reading.settings):
            self._triggers.request("partitions are below min.insync.replicas", urgent=True)


def back_off(troubles: int, interval: timedelta, chance: float) -> timedelta:
    """Return the wait before the next try after consecutive failed cycles.

    1 s, 2 s, 4 s and so on up to the interval, plus a jitter of up to 50 %, so that planners do not retry at the same
    moment.

    Args:
        troubles: consecutive failures, >= 1.
        interval: the longest wait; if it is shorter than 1 s, the wait is 1 s.
        chance: jitter in [0, 1).
    """
    wait = timedelta(seconds=CYCLE.wait(troubles, chance))
    return max(timedelta(seconds=CYCLE.first), min(interval, wait))
