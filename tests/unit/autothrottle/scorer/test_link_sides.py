"""The kernel of the scorer agrees with the rules in plain Python."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autothrottle.adapters.decision_log.files import DECISIONS
from autothrottle.core.records import Reason
from autothrottle.core.scoring.score import OVERRIDES, Cause, LinkSideDemand, bound_seconds, link_side_seconds
from autothrottle.scorer.link_sides import Sides, beyond, reached, unused
from autothrottle.scorer.log import Recovery
from autothrottle.scorer.parts import RecoveryPart, from_bytes, plan_parts, score_part, split, to_bytes
from tests.unit.autothrottle.core.scoring import rules
from tests.unit.autothrottle.core.scoring.test_rules import stretches as any_stretch

BEGIN = datetime(2026, 11, 5, 12, tzinfo=UTC)


@given(st.lists(any_stretch(), min_size=1, max_size=30), st.floats(0.01, 1))
def test_causes_equal_the_rules(cases: list[rules.Stretch], ratio: float) -> None:
    names = ("capacity", "client", "forecast", "headroom", "decided", "applied", "achieved", "min_rate")
    values = {name: np.array([getattr(case, name) for case in cases], float) for name in names}
    lost = unused(values, np.array([case.reason in OVERRIDES for case in cases]), ratio)
    for index, case in enumerate(cases):
        by_cause = {cause: lost[f"lost_{cause}"][index] for cause in Cause}
        assert by_cause == pytest.approx(rules.unused(case, ratio), rel=1e-9, abs=1e-6)


PIECES = st.lists(st.tuples(st.floats(0.1, 100), st.floats(-10, 100)), min_size=1, max_size=8)


@given(st.lists(st.tuples(PIECES, st.floats(0, 5000)), min_size=1, max_size=10))
def test_link_side_times_equal_the_rules(cases: list[tuple[list[tuple[float, float]], float]]) -> None:
    starts = np.cumsum([0, *(len(pieces) for pieces, _ in cases)])
    sides = Sides(starts[:-1], int(starts[-1]))
    seconds, rate = (np.array([piece[i] for pieces, _ in cases for piece in pieces]) for i in (0, 1))
    amount = np.repeat(np.array([amount for _, amount in cases]), sides.lengths)
    within = sides.smallest(reached(amount, sides.earlier(rate * seconds), sides.earlier(seconds), seconds, rate))
    last = sides.starts + sides.lengths - 1
    after = beyond(amount[sides.starts], sides.total(rate * seconds), sides.total(seconds), rate[last])
    demands = [LinkSideDemand(amount, pieces) for pieces, amount in cases]
    times = np.where(np.isnan(within), after, within).tolist()
    expected = list(map(link_side_seconds, demands))
    assert times == pytest.approx(expected, rel=1e-6)
    assert bound_seconds(demands) >= max(filter(math.isfinite, expected), default=0.0)


MAYBE_RATE = st.none() | st.integers(0, 10**9)
DECISION = st.fixed_dictionaries(
    {
        "broker_id": st.integers(1, 3),
        "role": st.sampled_from(["leader", "follower"]),
        "term": st.integers(1, 2),
        "cycle": st.integers(1, 6),
        "capacity": MAYBE_RATE,
        "utilization": MAYBE_RATE,
        "replication": MAYBE_RATE,
        "mean_throttle": MAYBE_RATE,
        "standing": MAYBE_RATE,
        "headroom": MAYBE_RATE,
        "rate_decided": st.integers(0, 10**9),
        "rate_applied": MAYBE_RATE,
        "bytes_landed": st.none() | st.integers(0, 10**12),
        "min_rate": st.integers(0, 10**6),
        "reason": st.sampled_from([reason.value for reason in Reason]),
        "instance_type": st.sampled_from(["", "d2", "i3"]),
    }
)


def log_rows(decisions: list[dict[str, Any]], reassignment_id: str) -> pa.Table:
    """Return rows of the log, a decision every minute."""
    constant = {"cluster": "kafka", "schema_version": 1, "interval_seconds": 60.0, "trace_id": "", "policy": "adaptive"}
    constant |= {"max_ratio": 0.9, "change_threshold": 0.1, "reassignment_id": reassignment_id}
    rows = [
        {**constant, **row, "time": BEGIN + timedelta(minutes=row["cycle"] + 10 * row["term"])} for row in decisions
    ]
    columns = [
        pa.array([row.get(field.name) for row in rows], field.type)
        for field in DECISIONS
        if field.name not in ("cycle_id", "shadow", "outcome")
    ]
    names = [field.name for field in DECISIONS if field.name not in ("cycle_id", "shadow", "outcome")]
    table = pa.table(columns, names=names)
    for name in ("reassignment_id", "role", "reason", "instance_type", "trace_id", "policy"):
        encoded = table[name].dictionary_encode()
        table = table.set_column(table.schema.get_field_index(name), name, encoded)
    return table


def recovery(name: str, paths: int, cycles: int = 6) -> Recovery:
    """Return a recovery of half an hour; each path copies 1 GB."""
    links = tuple(
        {"leader": n + 1, "follower": n + 2, "bytes_landed": 10**9, "bytes_grown": 10**6} for n in range(paths)
    )
    finish = BEGIN + timedelta(minutes=30)
    return Recovery("kafka", name, frozenset({name}), BEGIN, finish, "done", ("t",), 1, 10**9, links, 1, cycles)


def scored(rows: pa.Table, recoveries: list[Recovery], chunks: int = 1) -> list[RecoveryPart]:
    """Score rows that come in several files."""
    plan = plan_parts(recoveries)
    by_part: dict[int, list[pa.Table]] = {}
    for n in range(chunks):
        for part, own in split(rows.take(pa.array(range(n, len(rows), chunks), pa.int64())), plan, plan.numbers):
            by_part.setdefault(part, []).append(from_bytes(to_bytes(own)))
    parts = {part.part: part for part in plan.parts()}
    return [score for part, own in by_part.items() for score in score_part(parts[part], pa.concat_tables(own), 0.9)]


@given(st.lists(DECISION, min_size=1, max_size=40), st.integers(0, 2), st.integers(1, 3))
def test_the_scores_of_a_recovery_do_not_depend_on_files_and_parts(
    decisions: list[dict[str, Any]], paths: int, chunks: int
) -> None:
    # Copies are equal, as in a log: which of them counts is not defined.
    distinct = {(d["broker_id"], d["role"], d["term"], d["cycle"]): d for d in decisions}
    rows = log_rows([distinct[d["broker_id"], d["role"], d["term"], d["cycle"]] for d in decisions], "r")
    (whole,) = scored(rows, [recovery("r", paths)])
    # With so many expected cycles, the recovery is split by link side.
    in_parts = scored(rows, [recovery("r", paths, cycles=200_000)], chunks)
    for name in ("decisions", "copies", "writes", "port_seconds", "over_seconds", "churn"):
        assert sum(part.summary[name] for part in in_parts) == pytest.approx(whole.summary[name])
    ports = [row for part in in_parts for row in part.ports.to_pylist()]
    key = ["broker_id", "role"]
    for mine, other in zip(
        sorted(ports, key=lambda row: [row[name] for name in key]),
        sorted(whole.ports.to_pylist(), key=lambda row: [row[name] for name in key]),
        strict=True,
    ):
        assert mine.keys() == other.keys()
        for name, value in other.items():
            assert mine[name] == (pytest.approx(value, nan_ok=True) if isinstance(value, float) else value), name
    slowest = max(part.summary.get("slowest", {}).get("bound_seconds", -1.0) for part in in_parts)
    assert slowest == pytest.approx(whole.summary.get("slowest", {}).get("bound_seconds", -1.0))


def test_a_side_without_any_metric_has_no_bound() -> None:
    decision = {"broker_id": 1, "role": "leader", "term": 1, "rate_decided": 5, "min_rate": 1, "reason": "minimum"}
    (score,) = scored(log_rows([{**decision, "cycle": cycle} for cycle in (1, 2)], "r"), [recovery("r", 1)])
    (port,) = score.ports.to_pylist()
    assert port["bound_seconds"] is None and port["budget_bytes"] is None
    assert "slowest" not in score.summary and len(score.timeline) == 0


def test_rows_outside_recoveries_are_left_out() -> None:
    decision = {"broker_id": 1, "role": "leader", "term": 1, "cycle": 1, "rate_decided": 5, "min_rate": 1}
    rows = log_rows([{**decision, "reason": "minimum"}], "")
    assert scored(rows, [recovery("r", 1)]) == []
