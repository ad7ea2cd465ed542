"""Runs recorded cycles again, with this version or with other settings, and compares the decisions.

Each cycle gets the input that it got then, so a replay says what would have been decided there, not what would have
followed. If the decisions differ, the state continues from what was really written, which the next snapshot shows. The
types to know are `TermReplay` and `DecisionDifference`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from autothrottle.core.cluster.configs import THROTTLED_TYPES
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.cycle.decision import CycleDecision
from autothrottle.core.cycle.input import ControllerState, PlannerSettings, TermState
from autothrottle.core.cycle.step import ramp_steps, settle, step
from autothrottle.core.errors import AutothrottleError, Incomplete
from autothrottle.core.scoring.cycle_records import (
    CYCLE_VERSION,
    CycleRecord,
    ReplayInput,
    cycle_packing,
    fingerprint,
    replayed_results,
)
from autothrottle.core.throttles.changes import Change, Edit, RampState, WriteHistory

WARM_UP = timedelta(minutes=15)
"""How long the cycles after a gap are run without being compared: a planner remembers measurements for as long."""

LoggedRates = Mapping[LinkSide, tuple[int, str]]
"""Link side -> (rate in bytes/s, reason) of a decision in the log."""


@dataclass(frozen=True, slots=True)
class DecisionDifference:
    """One decision that differs, or one cycle whose other changes differ."""

    cluster: str
    term: int
    cycle: int
    time: datetime
    """When the cycle read everything, UTC."""
    side: LinkSide | None
    """None: the rates are the same, and other changes or actions differ, or this version fails."""
    rate_then: int | None = None
    """Bytes/s; None: the log has no decision for this link side."""
    reason_then: str = ""
    rate_now: int | None = None
    """Bytes/s; None: no decision for this link side."""
    reason_now: str = ""
    sentence: str = ""
    """What differs without a link side."""


@dataclass(frozen=True, slots=True)
class ReplayFinding:
    """A part of a term that cannot be replayed or compared."""

    cluster: str
    term: int
    sentence: str


@dataclass(slots=True)
class ReplaySummary:
    """The totals of a replay."""

    terms: int = 0
    cycles: int = 0
    """Number of compared cycles."""
    decisions: int = 0
    """Number of decisions in them."""
    differing_cycles: int = 0
    differences: int = 0
    skipped_cycles: int = 0
    """Number of cycles that could not be read, or whose state was not known yet."""


def unpacked(records: Iterable[CycleRecord]) -> Iterator[tuple[CycleRecord, ReplayInput | Incomplete]]:
    """Yield the records of one term with their inputs, or why these cannot be read.

    A record that is a difference needs the one before it. So after a damaged or missing one, the records up to the next
    whole one cannot be read either.
    """
    packing, layout = cycle_packing(), ""
    last: tuple[int, ReplayInput] | None = None
    for record in records:
        try:
            if record.schema_version > CYCLE_VERSION:
                raise Incomplete(
                    f"cycle {record.cycle} was written by a newer version (format {record.schema_version}, this one "
                    f"reads up to {CYCLE_VERSION}). Fix: replay it with that version"
                )
            if not record.is_whole and (last is None or last[0] != record.previous):
                raise Incomplete(f"cycle {record.previous}, on which cycle {record.cycle} is based, cannot be read")
            layout = record.layout if record.is_whole else layout
            earlier = None if record.is_whole or last is None else last[1]
            inputs = packing.unpack(record.packed, layout, earlier)
        except Incomplete as error:
            last = None
            yield record, error
        except AutothrottleError as error:
            last = None
            yield record, Incomplete(str(error))
        else:
            last = record.cycle, inputs
            yield record, inputs


@dataclass(slots=True)
class TermReplay:
    """Replays the cycles of one term."""

    cluster: str
    term: int
    changed: Callable[[PlannerSettings], PlannerSettings] = lambda settings: settings
    """Returns the settings to use instead of the recorded ones."""
    begin: datetime | None = None
    """Cycles before it are run, but not compared; None: all are compared."""
    summary: ReplaySummary = field(default_factory=ReplaySummary)
    findings: list[ReplayFinding] = field(default_factory=list)
    _state: ControllerState = ControllerState()  # noqa: RUF009 (frozen)
    _last_cycle: int = 0
    _warm_until: datetime | None = None
    _unread: int = 0

    def run(
        self, records: Iterable[CycleRecord], logged_rates: Callable[[int], LoggedRates]
    ) -> Iterator[DecisionDifference]:
        """Yield the differences of a term.

        Args:
            records: all of the term, ascending by cycle.
            logged_rates: returns the decisions of a cycle in the log; called for cycles that differ.
        """
        self.summary.terms += 1
        waiting: tuple[CycleRecord, ReplayInput] | None = None
        for record, inputs in unpacked(records):
            if isinstance(inputs, Incomplete):
                if waiting is not None:
                    yield from self._cycle(*waiting, None, logged_rates)
                    waiting = None
                self._note_unread(record, inputs)
                continue
            if waiting is not None:
                following = inputs.observation.snapshot if record.previous == waiting[0].cycle else None
                yield from self._cycle(*waiting, following, logged_rates)
            waiting = record, inputs
        if waiting is not None:
            yield from self._cycle(*waiting, None, logged_rates)

    def _note(self, sentence: str) -> None:
        self.findings.append(ReplayFinding(self.cluster, self.term, sentence))

    def _note_unread(self, record: CycleRecord, error: Incomplete) -> None:
        if not self._unread:
            self._note(f"cycles from {record.cycle} on are left out: {error}")
        self._unread = record.cycle
        self._last_cycle = 0
        self.summary.skipped_cycles += 1

    def _cycle(
        self,
        record: CycleRecord,
        inputs: ReplayInput,
        following: Snapshot | AutothrottleError | None,
        logged_rates: Callable[[int], LoggedRates],
    ) -> Iterator[DecisionDifference]:
        """Run one cycle; `following` is the snapshot of the next one."""
        self._continue(record, inputs)
        settings = self.changed(inputs.settings)
        try:
            self._run_steps(settings, inputs)
            decision = step(settings, self._state, inputs.observation)
            is_same = fingerprint(decision) == inputs.fingerprint
            carried_out = decision if is_same else _with_written(decision, following)
            results = replayed_results(carried_out, inputs.results)
            self._state, _ = settle(settings, carried_out, results)
        except Exception as error:  # of this version: the rest of the log must still be replayed
            sentence = f"this version fails with {type(error).__name__}: {error}"
            differences = [DecisionDifference(*_place(record), None, sentence=sentence)]
            decisions = 0
        else:
            differences = [] if is_same else _differences(record, decision, logged_rates(record.cycle))
            decisions = len(decision.plan.decisions)
        self._last_cycle, self._unread = record.cycle, 0
        if self._warm_until is not None and record.time < self._warm_until:
            self.summary.skipped_cycles += 1
            return
        if self.begin is not None and record.time < self.begin:
            return
        self.summary.cycles += 1
        self.summary.decisions += decisions
        self.summary.differing_cycles += bool(differences)
        self.summary.differences += len(differences)
        yield from differences

    def _continue(self, record: CycleRecord, inputs: ReplayInput) -> None:
        """Keep the state if the record continues it; otherwise begin without a state."""
        if record.previous and record.previous == self._last_cycle:
            return
        written = inputs.written or WriteHistory()
        self._state, self._warm_until = ControllerState(TermState(self.term), written), None
        if record.cycle > 1:
            self._state = replace(self._state, term=replace(self._state.term, cycles=record.cycle - 1))
            self._warm_until = record.time + WARM_UP
            self._note(
                f"the log lacks the state before cycle {record.cycle} of {record.time:%Y-%m-%dT%H:%M:%SZ}; cycles of "
                f"the {WARM_UP.seconds // 60} minutes from there are run, but not compared"
            )

    def _run_steps(self, settings: PlannerSettings, inputs: ReplayInput) -> None:
        """Run the ramp steps before a cycle."""
        for ramp_step in inputs.steps:
            decision = ramp_steps(self._state, ramp_step.at, ramp_step.clock)
            if ramp_step.results.error is not None:
                term = replace(self._state.term, ramp=RampState())
                self._state = replace(self._state, term=term)
            elif decision.changes:
                self._state, _ = settle(settings, decision, replayed_results(decision, ramp_step.results))


def _place(record: CycleRecord) -> tuple[str, int, int, datetime]:
    return record.cluster, record.term, record.cycle, record.time


def _differences(record: CycleRecord, decision: CycleDecision, logged: LoggedRates) -> list[DecisionDifference]:
    """Return the differing decisions of a cycle whose fingerprint differs, at least one."""
    place = _place(record)
    current = {(d.broker_id, d.role): (d.rate_bytes_per_second, d.reason.value) for d in decision.plan.decisions}
    nothing: tuple[int | None, str] = (None, "")
    differences = [
        DecisionDifference(*place, side, *logged.get(side, nothing), *current.get(side, nothing))
        for side in sorted(logged.keys() | current.keys(), key=lambda side: (side[0], side[1].value))
        if logged.get(side) != current.get(side)
    ]
    if differences:
        return differences
    sentence = f"the rates are the same, but other changes differ; now {len(decision.changes)} changes"
    return [DecisionDifference(*place, None, sentence=sentence)]


def _with_written(decision: CycleDecision, following: Snapshot | AutothrottleError | None) -> CycleDecision:
    """Return a decision with the changes that were really written, as the next snapshot shows them."""
    if not isinstance(following, Snapshot) or decision.error is not None:
        return decision
    snapshot = decision.view.snapshot
    resources = {
        resource
        for old, new in ((snapshot.throttles, following.throttles), (snapshot.ledger, following.ledger))
        for resource in old.keys() | new.keys()
        if old.get(resource) != new.get(resource)
    }
    others = [change for change in decision.changes if change.resource.type not in THROTTLED_TYPES]
    written = []
    for resource in sorted(resources, key=lambda resource: resource.order):
        old, new = snapshot.throttles.get(resource, {}), following.throttles.get(resource, {})
        edits = tuple(
            Edit(key, old.get(key), new.get(key))
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key)
        )
        written.append(Change(resource, edits, following.ledger.get(resource)))
    return replace(decision, changes=(*written, *others))
