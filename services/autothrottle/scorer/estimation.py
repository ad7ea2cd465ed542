"""Which settings would have been better: estimates of `core.scoring.estimates` for the slowest recoveries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from autothrottle.core.scoring.estimates import (
    GRID,
    MOST_RECOVERIES,
    Advice,
    LoggedRecovery,
    LoggedStretch,
    SettingEstimate,
    advice,
    resampled,
)
from autothrottle.core.scoring.score import Setting

Task = tuple[LoggedRecovery, Setting]

Estimate = Callable[[Sequence[Task]], Sequence[SettingEstimate]]
"""Estimates the result of each setting for its recovery, in the same order."""


def slowest(recoveries: pa.Table) -> list[str]:
    """Return the ids of the recoveries that are estimated."""
    order = pc.sort_indices(recoveries, [("seconds", "descending"), ("recovery_id", "ascending")])[:MOST_RECOVERIES]
    recovery_ids: list[str] = recoveries["recovery_id"].take(order).to_pylist()
    return recovery_ids


def advise(timeline: pa.Table, estimate: Estimate) -> list[dict[str, Any]]:
    """Return the advice for each cluster with one of the slowest recoveries, ordered by name.

    The rows have the fields of `Advice`, without its estimates.

    Args:
        timeline: that of the slowest recoveries; columns: `tables.TIMELINE`.
        estimate: estimates many settings.
    """
    logged = list(map(resampled, logged_recoveries(timeline)))
    tasks = [(recovery, setting) for recovery in logged for setting in dict.fromkeys((*GRID, recovery.setting))]
    names = [(recovery.recovery_id, setting) for recovery, setting in tasks]
    estimates = dict(zip(names, estimate(tasks), strict=True))
    return [
        {name: value for name, value in asdict(each).items() if name not in ("present", "proposed")}
        for each in _advices(logged, estimates)
    ]


def logged_recoveries(timeline: pa.Table) -> list[LoggedRecovery]:
    """Return the recoveries of a timeline as far as their link sides were measured, oldest first.

    Args:
        timeline: columns: `tables.TIMELINE`.
    """
    in_order = [("recovery_id", "ascending"), ("term", "ascending"), ("cycle", "ascending")]
    measured = timeline.select(_COLUMNS).filter(timeline["budget"].is_valid()).sort_by(in_order)
    recoveries = []
    for recovery_id in measured["recovery_id"].unique():
        own = measured.filter(pc.equal(measured["recovery_id"], recovery_id))
        recoveries.append((own["time"][0].as_py(), _logged_recovery(own)))
    return [recovery for _, recovery in sorted(recoveries, key=itemgetter(0))]


def _logged_recovery(rows: pa.Table) -> LoggedRecovery:
    newest = rows.slice(len(rows) - 1).to_pylist()[0]
    # A recovery may have a million rows, so only the values of stretches become objects.
    ages = map(_metric_ages, *(rows[name].to_pylist() for name in _METRIC_COLUMNS))
    stretches = list(map(LoggedStretch, *(rows[name].to_pylist() for name in _STRETCH_COLUMNS), ages))
    return LoggedRecovery(
        cluster=newest["cluster"],
        recovery_id=newest["recovery_id"],
        is_outbound=newest["role"] == "leader",
        duration=newest["duration"],
        amount=newest["amount"],
        growth=newest["growth"],
        setting=Setting(newest["max_ratio"], newest["change_threshold"], 1, newest["policy"]),
        interval_seconds=newest["interval_seconds"],
        stretches=stretches,
    )


_METRIC_COLUMNS = ("time", "measured_from", "measured_to")

_STRETCH_COLUMNS = tuple(
    "reach" if name == "seconds" else name for name in LoggedStretch.__dataclass_fields__ if name != "metric_ages"
)
"""The columns of the fields of `LoggedStretch`, in order; `metric_ages` is the last field.

The first stretch reaches back to the start of the recovery.
"""

_RECOVERY_COLUMNS = (
    *("recovery_id", "cluster", "role", "term", "cycle", "policy", "max_ratio", "change_threshold"),
    *("duration", "amount", "growth", "interval_seconds"),
)
_COLUMNS = [*dict.fromkeys((*_RECOVERY_COLUMNS, *_METRIC_COLUMNS, *_STRETCH_COLUMNS))]


def _metric_ages(time: datetime, start: datetime | None, end: datetime | None) -> tuple[float, float] | None:
    """Return the ages of the start and of the end of a metric's interval; None: not measured, or implausible."""
    if start is None or end is None:
        return None
    oldest, newest = (time - start).total_seconds(), (time - end).total_seconds()
    return (oldest, newest) if -_OLDEST_SECONDS <= newest < oldest <= _OLDEST_SECONDS else None


_OLDEST_SECONDS = 3600.0
"""Age of a metric beyond which clocks must differ."""


def _advices(
    recoveries: Sequence[LoggedRecovery], estimates: Mapping[tuple[str, Setting], SettingEstimate]
) -> Iterator[Advice]:
    for cluster in sorted({recovery.cluster for recovery in recoveries}):
        own = [recovery for recovery in recoveries if recovery.cluster == cluster]
        ids = [recovery.recovery_id for recovery in own]
        settings = dict.fromkeys(setting for recovery_id, setting in estimates if recovery_id in ids)
        # A logged setting outside the grid was estimated for its own recoveries only.
        common = {s: [estimates[i, s] for i in ids] for s in settings if all((i, s) in estimates for i in ids)}
        yield advice(own, common)
