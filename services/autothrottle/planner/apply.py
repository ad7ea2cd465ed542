"""The second part of a cycle: carries out its decision."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta

from autothrottle.core.cluster.configs import ConfigResource
from autothrottle.core.cycle.decision import (
    Action,
    ActionResult,
    CycleDecision,
    CycleResults,
    PurgeCatchUp,
    PurgeOverride,
    PurgeQuota,
)
from autothrottle.core.errors import AutothrottleError, NotLeader, Unavailable
from autothrottle.core.operators.submission import SubmissionRequest
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.throttles.changes import Change
from autothrottle.planner import traces
from autothrottle.planner.calls import CLUSTER_TIMEOUT, PlannerDependencies, Submissions, Watchdog
from autothrottle.ports.kafka import Term
from autothrottle.ports.telemetry import UNTRACED


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
            with traces.applying(tracer, decision.changes, outcomes):
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
