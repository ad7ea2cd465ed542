"""The second part of a cycle: carries out its decision. The types to know are `Applier` and `Submissions`.

A caller proposes a reassignment and waits. Cycles see its `SubmissionRequest`, throttle it and, when its throttles are
in place, claim it: from then on its caller can no longer withdraw it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cluster.snapshot import TopicPartition
from autothrottle.core.cycle.contribution import Action, PurgeCatchUp, PurgeOverride, PurgeQuota
from autothrottle.core.cycle.decision import CycleDecision
from autothrottle.core.cycle.results import ActionResult, CycleResults
from autothrottle.core.errors import AutothrottleError, Conflict, NotLeader, Unavailable
from autothrottle.core.operators.submission import CHECK_FIRST, SubmissionRequest, Targets
from autothrottle.core.records import Outcome, OutcomeStatus, Submission
from autothrottle.core.throttles.changes import Change
from autothrottle.planner.dependencies import CLUSTER_TIMEOUT, PlannerDependencies
from autothrottle.planner.watchdog import Watchdog
from autothrottle.ports.kafka import Term
from autothrottle.ports.telemetry import UNTRACED, Attribute, Span, Tracer

MAX_CHANGE_SPANS = 50
"""With more changes each one is an event instead of a span: a trace of a thousand spans is unreadable."""


class Submissions:
    """The current submission, and cancellations for the next cycle. Thread-safe.

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
        try:
            return end.result(seconds)
        except TimeoutError:
            pass
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
            with traced_changes(tracer, decision.changes, outcomes):
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


@contextmanager
def traced_changes(tracer: Tracer, changes: Sequence[Change], outcomes: Sequence[Outcome]) -> Iterator[None]:
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
