"""Parts of the log that are scored one by one, so that the work spreads over tasks and needs little memory.

A part has all rows of its link sides. A small recovery is in one part; a large one is split by link side. The driver
plans the parts from the records of the reassignments, before any decision is read. The types to know are `ScorePlan`
and `RecoveryPart`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from autothrottle.scorer.link_sides import (
    LOST,
    ROLES,
    RecoverySpan,
    Stretches,
    numbers_of,
    runs,
    side_scores,
    stretches,
)
from autothrottle.scorer.log import Recovery
from autothrottle.scorer.tables import PORTS, TIMELINE

ROWS = 250_000
"""Approximate number of rows of a part."""

BYTES_PER_TASK = 8_000_000
"""Size of the files that a task or a thread reads, bytes."""

_LONGEST_CYCLE = 30.0
"""Seconds between two cycles where the records do not tell their number."""

_FEWEST_SIDES = 20
"""Assumed number of link sides of a recovery whose paths are unknown."""


@dataclass(frozen=True, slots=True)
class ScorePlan:
    """Which part each row belongs to."""

    recoveries: tuple[Recovery, ...]
    """Those with a start and a later end; a number of a recovery is its index here."""
    first_part: tuple[int, ...]
    """Recovery -> its first part."""
    part_count: tuple[int, ...]
    """Recovery -> number of its parts, >= 1."""

    @property
    def numbers(self) -> Mapping[str, int]:
        """`reassignment_id` -> number of its recovery."""
        return {name: number for number, r in enumerate(self.recoveries) for name in r.reassignment_ids}

    def parts(self) -> Iterator[PartPlan]:
        """Return what each part needs to know of its recoveries."""
        numbers_of: dict[int, list[int]] = {}
        sides_of: dict[int, dict[tuple[int, int, int], tuple[float, float]]] = {}
        for number, (first, count) in enumerate(zip(self.first_part, self.part_count, strict=True)):
            for part in range(first, first + count):
                numbers_of.setdefault(part, []).append(number)
            for (broker_id, role), amounts in self.recoveries[number].link_side_bytes.items():
                part = first + _share(broker_id, role, count)
                sides_of.setdefault(part, {})[number, broker_id, role] = amounts
        for part, numbers in numbers_of.items():
            recoveries = self.recoveries[numbers[0] : numbers[-1] + 1]
            slim = tuple(replace(recovery, paths=()) for recovery in recoveries)
            yield PartPlan(part, numbers[0], slim, sides_of.get(part, {}))


@dataclass(frozen=True, slots=True)
class PartPlan:
    """What one part needs to know of its recoveries, which have consecutive numbers."""

    part: int
    first: int
    """Number of its first recovery."""
    recoveries: tuple[Recovery, ...]
    """Without their paths."""
    sides: Mapping[tuple[int, int, int], tuple[float, float]]
    """See `RecoverySpan`."""

    @property
    def span(self) -> RecoverySpan:
        finish = [r.finish.timestamp() if r.finish else math.nan for r in self.recoveries]
        return RecoverySpan(
            self.first, np.array([r.start.timestamp() for r in self.recoveries]), np.array(finish), self.sides
        )


def plan_parts(recoveries: Sequence[Recovery]) -> ScorePlan:
    """Return the parts of recoveries; ongoing ones, and ones without a duration, are left out."""
    complete = [r for r in recoveries if r.finish is not None and r.finish > r.start]
    first, counts, part, rows_of_part = [], [], 0, 0.0
    for recovery in complete:
        rows = _expected_rows(recovery)
        if rows_of_part and rows_of_part + rows > ROWS:
            part, rows_of_part = part + 1, 0.0
        count = max(1, round(rows / ROWS))
        first.append(part)
        counts.append(count)
        rows_of_part += rows
        if count > 1:
            part, rows_of_part = part + count, 0.0
    return ScorePlan(tuple(complete), tuple(first), tuple(counts))


def _expected_rows(recovery: Recovery) -> float:
    assert recovery.finish is not None
    sides = len(recovery.link_side_bytes) or _FEWEST_SIDES
    cycles = recovery.cycles
    if cycles <= recovery.terms:
        cycles = round((recovery.finish - recovery.start).total_seconds() / _LONGEST_CYCLE)
    return float(sides * max(cycles, 1))


def _share(broker_id: Any, role: Any, count: Any) -> Any:
    """Return in which of `count` parts a link side is; for numbers or arrays of numpy."""
    return ((broker_id * 2 + role) * 2654435761 >> 7) % count


# Rows.

ROW_COLUMNS = (
    *("recovery", "broker_id", "role", "term", "cycle", "time", "instance_type", "reason", "trace_id", "policy"),
    *("capacity", "utilization", "replication", "mean_throttle", "standing", "headroom", "rate_decided"),
    *("rate_applied", "bytes_landed", "eta", "max_ratio", "min_rate", "change_threshold", "interval_seconds"),
    *("measured_from", "measured_to"),
)


def split(rows: pa.Table, plan: ScorePlan, numbers: Mapping[str, int]) -> Iterator[tuple[int, pa.Table]]:
    """Return the rows of each part, with the column `recovery`; rows outside recoveries are left out.

    Args:
        rows: usable rows of decision files.
        plan: the parts.
        numbers: `ScorePlan.numbers`.
    """
    if not len(rows):
        return
    rows = rows.unify_dictionaries()
    number = numbers_of(rows["reassignment_id"], numbers)
    is_follower = pc.equal(rows["role"].cast(pa.string()), ROLES[1]).to_numpy().astype(np.int64)
    first, count = np.array([*plan.first_part, 0]), np.array([*plan.part_count, 1])
    part = first[number] + _share(rows["broker_id"].to_numpy(), is_follower, count[number])
    part[number < 0] = -1
    rows = rows.append_column("recovery", pa.array(number.astype(np.int32))).select(ROW_COLUMNS)
    order = np.argsort(part, kind="stable")
    in_order, ordered_parts = rows.take(pa.array(order)), part[order]
    for begin, end in runs(ordered_parts):
        if ordered_parts[begin] >= 0:
            yield int(ordered_parts[begin]), in_order.slice(begin, end - begin)


# Scores.


@dataclass(frozen=True, slots=True)
class RecoveryPart:
    """The scores of the link sides of one recovery in one part."""

    number: int
    """Number of the recovery in the plan."""
    part: int
    summary: Mapping[str, Any]
    """Sums over the link sides, and the slowest link side; see `scores.recovery_scores`."""
    ports: pa.Table
    """Columns: `tables.PORTS`."""
    timeline: pa.Table
    """The stretches of the slowest link side; columns: `tables.TIMELINE`."""


SUMMED = ("over_seconds", "saturated_seconds", "port_seconds", "decisions", "copies", "writes", "churn")


def score_part(plan: PartPlan, rows: pa.Table, ratio: float) -> Iterator[RecoveryPart]:
    """Return the scores of a part, one item per recovery.

    Args:
        plan: the part.
        rows: its rows, from `split`.
        ratio: the reference share, in (0, 1].
    """
    of_rows = stretches(rows, plan.span, ratio)
    scores = side_scores(of_rows)
    for begin, end in runs(scores["recovery"]):
        number = int(scores["recovery"][begin])
        recovery = plan.recoveries[number - plan.first]
        own = {name: values[begin:end] for name, values in scores.items()}
        slowest = _slowest(own["bound_seconds"])
        timeline = TIMELINE.empty_table() if slowest is None else _timeline(of_rows, begin + slowest, recovery)
        yield RecoveryPart(number, plan.part, _summary(own, slowest), _ports(own, recovery), timeline)


def _slowest(bound_seconds: npt.NDArray[np.float64]) -> int | None:
    """Return the index of the largest bound; None: nothing was measured."""
    return None if np.isnan(bound_seconds).all() else int(np.nanargmax(bound_seconds))


def _summary(own: Mapping[str, Any], slowest: int | None) -> dict[str, Any]:
    summary: dict[str, Any] = {name: own[name].sum().item() for name in SUMMED}
    errors = own["eta_error"][~np.isnan(own["eta_error"])]
    summary |= {"eta_errors": errors.sum().item(), "etas": len(errors)}
    summary |= {"skew_seconds": float(own["skew_seconds"].max()), "is_estimated": bool(own["is_estimated"].any())}
    if slowest is not None:
        names = ("bound_seconds", "budget_bytes", "broker_id", *LOST)
        summary["slowest"] = {name: own[name][slowest].item() for name in names}
        summary["slowest"]["role"] = ROLES[own["role"][slowest]]
    return summary


def _ports(own: Mapping[str, Any], recovery: Recovery) -> pa.Table:
    count = len(own["recovery"])
    constant = {"recovery_id": recovery.recovery_id, "start": recovery.start, "finish": recovery.finish}
    constant |= {"status": recovery.status, "cluster": recovery.cluster, "date": recovery.date}
    columns = {name: [value] * count for name, value in constant.items()}
    columns |= {**own, "role": [ROLES[role] for role in own["role"]]}
    return _arrow(columns, PORTS)


def _timeline(of_rows: Stretches, side: int, recovery: Recovery) -> pa.Table:
    begin = int(of_rows.sides.starts[side])
    count = int(of_rows.sides.lengths[side])
    of_side = slice(begin, begin + count)
    rows = of_rows.rows.take(pa.array(of_rows.order[of_side]))
    constant = {"recovery_id": recovery.recovery_id, "cluster": recovery.cluster, "date": recovery.date}
    columns: dict[str, Any] = {name: [value] * count for name, value in constant.items()}
    columns |= {name: rows[name] for name in TIMELINE.names if name in rows.column_names}
    columns |= {name: values[of_side] for name, values in of_rows.values.items() if name in TIMELINE.names}
    columns |= {"time": rows["time"], "standing": rows["standing"]}  # as logged, and not as floats
    columns["cycle_id"] = [
        f"{recovery.cluster}/{term}/{cycle}"
        for term, cycle in zip(rows["term"].to_pylist(), rows["cycle"].to_pylist(), strict=True)
    ]
    return _arrow(columns, TIMELINE)


def _arrow(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Return columns as a table; NaN becomes null."""
    return pa.table([_array(columns[field.name], field.type) for field in schema], schema=schema)


def _array(values: Any, kind: pa.DataType) -> Any:
    if isinstance(values, np.ndarray):
        return pa.array(values, from_pandas=True).cast(kind)
    return values.cast(kind) if isinstance(values, pa.ChunkedArray) else pa.array(values, kind)


# Tables as bytes, for a shuffle.


def to_bytes(table: pa.Table) -> bytes:
    """Return a table as a compressed Arrow stream."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4", unify_dictionaries=True)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def from_bytes(data: bytes | pa.Buffer) -> pa.Table:
    """Return the table of `to_bytes`."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
