"""The end of a cycle, or of ramp steps between cycles: `settle` records what became of a decision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from autothrottle.core.cycle.contribution import WakeUp
from autothrottle.core.cycle.decision import CycleDecision
from autothrottle.core.cycle.results import CycleResults, Settled
from autothrottle.core.cycle.settings import PlannerSettings
from autothrottle.core.cycle.state import ControllerState
from autothrottle.core.errors import NotLeader
from autothrottle.core.forecast.eta import SHORTEST_SPAN
from autothrottle.core.operators.endings import is_after_reassignment
from autothrottle.core.operators.submission_step import settled_submission
from autothrottle.core.throttles.changes import Applied, with_records
from autothrottle.core.throttles.ramp_state import applied

CATCH_UP_POLL = timedelta(seconds=2)
"""Time to the next cycle while a broker catches up: Kafka sends no event when a replica outside a reassignment joins
the ISR."""

_FIRST_ETA = SHORTEST_SPAN + timedelta(seconds=10)
"""Time from the start of a reassignment until its ETA is known."""

_FIRST_SIZES = timedelta(seconds=3)
"""Time from the start of a reassignment until its bytes left are known: one read every 2 s, and its answer."""


def settle(
    settings: PlannerSettings, decision: CycleDecision, results: CycleResults
) -> tuple[ControllerState, Settled]:
    """Return the state after the changes were written, and what to report of them.

    After a failed cycle the state keeps what `step` has learned, and counts one more failure. Ramp steps between cycles
    change only the histories and the ramps.
    """
    state, term = decision.state, decision.state.term
    ledger = decision.view.to_throttle.ledger
    settled = Settled(results.outcomes, Applied.of(decision.changes, results.outcomes, ledger))
    if decision.error is None and results.are_written:
        state = _with_writes(settings, decision, settled, results)
        if decision.between_cycles:
            return state, settled
        submissions, answer, checks = settled_submission(decision, settled.refused, results)
        settled = replace(settled, answer=answer, wake_ups=(*_first_figures(settings, decision), *checks))
        after_reassignment = is_after_reassignment(settings.shadow, decision, results)
        throttles = replace(state.term.throttles, after_reassignment=after_reassignment)
        has_reassignments = bool(decision.view.snapshot.reassignments)
        term = replace(state.term, submissions=submissions, throttles=throttles, has_reassignments=has_reassignments)
    elif decision.ticket:
        term = replace(term, submissions=term.submissions.without(decision.view.proposed))
    error = decision.error or results.error
    if error is None and term.sources.catch_ups:
        settled = replace(settled, wake_ups=(*settled.wake_ups, WakeUp("a broker catches up", CATCH_UP_POLL)))
    if error is None:
        troubles = term.troubles + 1 if settled.refused else 0
    else:
        troubles = term.troubles + (not isinstance(error, NotLeader))
    return ControllerState(replace(term, troubles=troubles), state.written), settled


def _with_writes(
    settings: PlannerSettings, decision: CycleDecision, settled: Settled, results: CycleResults
) -> ControllerState:
    """Enter the written changes into the histories, and continue the ramps from them."""
    term, snapshot = decision.state.term, decision.view.to_throttle
    rates = {**snapshot.rates, **{side: rate or 0 for side, rate in settled.applied.rates.items()}}
    history = term.throttles.history.observe(results.at, rates, decision.view.snapshot.link_sides)
    term = replace(term, throttles=replace(term.throttles, history=history))
    if settings.shadow:
        return ControllerState(term, decision.state.written)
    changes = applied(decision.changes, settled.outcomes)
    ramp = decision.ramp.after_writes(decision.changes, settled.outcomes, results.clock)
    written = decision.state.written.add(results.clock, sum(bool(change.edits) for change in changes))
    return ControllerState(replace(term, ramp=ramp, ledger=with_records(term.ledger, changes)), written)


def _first_figures(settings: PlannerSettings, decision: CycleDecision) -> Iterator[WakeUp]:
    """Request cycles for the first bytes left and the first ETA of a reassignment that has started."""
    snapshot, term = decision.view.snapshot, decision.state.term
    if snapshot.reassignments and not term.has_reassignments and snapshot.progress is not None:
        if settings.finish_by is not None:
            yield WakeUp("first bytes left for the deadline", _FIRST_SIZES)
        yield WakeUp("first ETA of the reassignment", _FIRST_ETA)
