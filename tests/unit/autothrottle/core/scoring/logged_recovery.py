"""Derives the slowest link side of a logged recovery in plain Python, as the scorer's table `timeline` has it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

from autothrottle.core.scoring.decision_records import DecisionRecord, ReassignmentRecord
from autothrottle.core.scoring.estimates import LoggedRecovery, LoggedStretch
from autothrottle.core.scoring.score import Setting


def logged_recovery(
    decisions: Sequence[DecisionRecord], reassignments: Sequence[ReassignmentRecord], broker_id: int, role: str
) -> LoggedRecovery:
    """Return the recovery of a log with one reassignment, for one of its link sides."""
    end = reassignments[-1]
    assert end.finish is not None
    rows = [row for row in decisions if (row.broker_id, row.role) == (broker_id, role) and row.reassignment_id]
    paths = [path for path in end.paths if broker_id == (path.leader if role == "leader" else path.follower)]
    duration = (end.finish - end.start).total_seconds()
    growth = sum(path.bytes_grown for path in paths)
    last = rows[-1]
    return LoggedRecovery(
        cluster=last.cluster,
        recovery_id=end.reassignment_id,
        is_outbound=role == "leader",
        duration=duration,
        amount=float(sum(path.bytes_landed for path in paths) - growth),
        growth=growth / duration,
        setting=Setting(last.max_ratio, last.change_threshold, 1, last.policy),
        interval_seconds=last.interval_seconds,
        stretches=_stretches(rows, end.start, end.finish),
    )


def _metric_ages(row: DecisionRecord) -> tuple[float, float] | None:
    if row.measured_from is None or row.measured_to is None:
        return None
    return (row.time - row.measured_from).total_seconds(), (row.time - row.measured_to).total_seconds()


def _stretches(rows: Sequence[DecisionRecord], start: datetime, finish: datetime) -> list[LoggedStretch]:
    forecasts = [_forecast(row) for row in rows]
    first = next((forecast for forecast in forecasts if forecast is not None), 0.0)
    capacity = max(row.capacity or 0 for row in rows)
    times = [start, *(row.time for row in rows[1:]), finish]
    stretches, client = [], first
    for number, (row, (begin, end)) in enumerate(zip(rows, pairwise(times), strict=True)):
        following = rows[number + 1] if number + 1 < len(rows) else None
        next_forecast = forecasts[number + 1] if following is not None else None
        client = next(load for load in (next_forecast, forecasts[number], client) if load is not None)
        seconds = max((end - begin).total_seconds(), 0.0)
        landed = (
            following.bytes_landed - row.bytes_landed
            if following and following.bytes_landed is not None and row.bytes_landed is not None
            else None
        )
        rate = row.rate_decided if row.rate_applied is None else row.rate_applied
        stretches.append(
            LoggedStretch(
                seconds=seconds,
                capacity=float(row.capacity or capacity),
                client=client,
                forecast=forecasts[number],
                decided=float(row.rate_decided),
                applied=None if row.rate_applied is None else float(row.rate_applied),
                achieved=float(rate) if landed is None or not seconds else landed / seconds,
                min_rate=float(row.min_rate),
                reason=row.reason,
                metric_ages=_metric_ages(row),
            )
        )
    return stretches


def _forecast(row: DecisionRecord) -> float | None:
    if row.utilization is None:
        return None
    replication = row.replication if row.replication is not None else row.mean_throttle
    return max(row.utilization - (replication or 0), 0.0)
