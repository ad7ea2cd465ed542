"""The records of whole cycles: all that `core.cycle.step` and `settle` got, so that `replay` can run them again.

A record is the difference from the previous cycle of its term; the first one of a term and of a date is whole. It has
no credentials: the settings of a planner contain none. The types to know are `ReplayInput`, `CycleRecord` and
`RecordPacker`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache

from autothrottle.core.cycle.decision import CycleDecision, CycleResults
from autothrottle.core.cycle.input import CycleObservation, PlannerSettings
from autothrottle.core.records import Outcome, OutcomeStatus
from autothrottle.core.scoring.packing import ColumnPacking
from autothrottle.core.throttles.changes import Change, WriteHistory

CYCLE_VERSION = 1
"""Version of the records of cycles; increased when an older program cannot read a newer record any more."""


@dataclass(frozen=True, slots=True)
class RampStep:
    """The ramp steps that were due at one time between two cycles."""

    at: datetime
    """UTC."""
    clock: float
    """Monotonic time at the same moment, in seconds."""
    results: CycleResults


@dataclass(frozen=True, slots=True)
class ReplayInput:
    """What the pure functions of one cycle got, and what they returned in short."""

    settings: PlannerSettings
    observation: CycleObservation
    results: CycleResults
    """What `settle` got. Outcomes that are as usual are left out, see `recorded_results`."""
    fingerprint: int = 0
    """Of the decision, see the function `fingerprint`."""
    steps: tuple[RampStep, ...] = ()
    """The ramp steps since the previous cycle, ascending."""
    written: WriteHistory | None = None
    """The writes of earlier terms; only in the first cycle of a term, and after a gap."""


@dataclass(frozen=True, slots=True)
class UnpackedCycle:
    """A cycle for the decision log, before it is packed."""

    cluster: str
    term: int
    cycle: int
    inputs: ReplayInput
    decision: CycleDecision
    previous: int = 0
    """The previous cycle of the term in the log; 0: none, or its state was lost."""


@dataclass(frozen=True, slots=True)
class CycleRecord:
    """One cycle as it is stored."""

    schema_version: int
    cluster: str
    """The name that the operator gave the cluster."""
    term: int
    cycle: int
    """Number within the term, from 1."""
    time: datetime
    """When everything was read, UTC."""
    previous: int
    """The previous cycle of the term, whose state it continues; 0: none, or cycles before it are missing."""
    is_whole: bool
    """Whether `packed` is the whole input; otherwise it is the difference from that of `previous`."""
    layout: str
    """The names of the columns in `packed`, one per line; "": those of `previous`."""
    packed: bytes
    """The `ReplayInput`."""


@cache
def cycle_packing() -> ColumnPacking[ReplayInput]:
    """Return the packing of this version; it is built once, when the first cycle is logged or read."""
    return ColumnPacking(ReplayInput)


def fingerprint(decision: CycleDecision) -> int:
    """Return a checksum of the rates, changes and actions of a decision: equal decisions have the same.

    The ledger entries of the changes do not count, as they follow from the edits.
    """
    rates = [(d.broker_id, d.role.value, d.rate_bytes_per_second, d.reason.value) for d in decision.plan.decisions]
    checksum = zlib.crc32(repr(sorted(rates)).encode())
    for change in (*decision.changes, *decision.would):
        edits = "\0".join(f"{edit.key}={edit.value}" for edit in change.edits)
        checksum = zlib.crc32(f"{change.resource}\0{edits}\n".encode(errors="surrogatepass"), checksum)
    for action in decision.actions:
        checksum = zlib.crc32(type(action).__name__.encode(), checksum)
    return checksum


def _usual_outcomes(refused: Sequence[Outcome], changes: Sequence[Change]) -> list[Outcome]:
    """Return the outcomes if every change is carried out; a change without edits has one, too."""
    return [*refused, *(Outcome(change.resource, OutcomeStatus.APPLIED) for change in changes)]


def recorded_results(decision: CycleDecision, results: CycleResults) -> CycleResults:
    """Return the results without the outcomes that are as usual: the change was carried out.

    If the changes were not written, all outcomes stay.
    """
    if not results.are_written:
        return results
    usual = _usual_outcomes(decision.refused, decision.changes)
    if list(results.outcomes) == usual:
        return replace(results, outcomes=())
    common = set(usual)
    return replace(results, outcomes=tuple(outcome for outcome in results.outcomes if outcome not in common))


def replayed_results(decision: CycleDecision, recorded: CycleResults) -> CycleResults:
    """Return the results of a decision that is carried out again: the recorded outcomes, and the usual ones."""
    if not recorded.are_written:
        return recorded
    unusual = {outcome.resource: outcome for outcome in recorded.outcomes}
    usual = _usual_outcomes(decision.refused, decision.changes)
    outcomes = tuple(unusual.get(outcome.resource, outcome) for outcome in usual)
    return replace(recorded, outcomes=outcomes)


@dataclass(slots=True)
class RecordPacker:
    """Packs the cycles of one planner, one after the other."""

    _last: CycleRecord | None = None
    _inputs: ReplayInput | None = field(default=None, repr=False)

    def pack(self, cycle: UnpackedCycle) -> CycleRecord:
        """Return the record of a cycle. It follows the record that this method returned last, unless one was lost."""
        last, inputs = self._last, cycle.inputs
        results = recorded_results(cycle.decision, inputs.results)
        inputs = replace(inputs, results=results, fingerprint=fingerprint(cycle.decision))
        follows = last is not None and (last.cluster, last.term, last.cycle) == (
            cycle.cluster,
            cycle.term,
            cycle.previous,
        )
        time = inputs.observation.at
        is_whole = last is None or not follows or _date(last.time) != _date(time)
        packing = cycle_packing()
        self._last = record = CycleRecord(
            schema_version=CYCLE_VERSION,
            cluster=cycle.cluster,
            term=cycle.term,
            cycle=cycle.cycle,
            time=time,
            previous=cycle.previous if follows else 0,
            is_whole=is_whole,
            layout=packing.layout if is_whole else "",
            packed=packing.pack(inputs, None if is_whole else self._inputs),
        )
        self._inputs = inputs
        return record

    def forget(self) -> None:
        """Let the next record be whole, because the last one may be lost."""
        self._last = self._inputs = None


def _date(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d}"
