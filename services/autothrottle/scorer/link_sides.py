"""Scores of link sides, from the rows of the decision log; with numpy, in one pass over many link sides.

A link side is a broker in a role, in one recovery. Its time is split into stretches, one from each decision to the
next. The rules of a single stretch are those of `core.scoring.score`; a property test compares both. The functions to
know are `stretches` and `side_scores`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from autothrottle.core.scoring.score import OVERRIDES, Cause

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

CAUSES = tuple(cause.value for cause in Cause)

LOST = tuple(f"lost_{cause}" for cause in CAUSES)
"""Columns of the unused budget, by cause."""

ROLES = ("leader", "follower")

_SATURATED = 0.99
"""A link is saturated from this share of its capacity."""

_NOISE = 0.01
"""Tolerance above the target utilization, as a share of the capacity."""


@dataclass(frozen=True)
class Sides:
    """Rows of link sides, sorted by link side and time. The class has no slots, so that derived values are cached."""

    starts: Integers
    """Index of the first row of each link side, ascending; the first is 0."""
    count: int
    """Number of rows."""

    @cached_property
    def lengths(self) -> Integers:
        return np.diff(np.append(self.starts, self.count))

    @cached_property
    def of_row(self) -> Integers:
        """Row -> number of its link side."""
        return np.repeat(np.arange(len(self.starts)), self.lengths)

    @cached_property
    def is_first(self) -> Flags:
        return _at(self.starts, self.count)

    @cached_property
    def is_last(self) -> Flags:
        return _at(self.starts + self.lengths - 1, self.count)

    def following(self, values: Floats) -> Floats:
        """Return the value of the next row of the same link side; NaN after the last row."""
        shifted = np.append(values[1:], np.nan)
        shifted[self.is_last] = np.nan
        return shifted

    def last_known(self, values: Floats) -> Floats:
        """Return the newest value that is not NaN, up to and including each row of a link side."""
        rows = np.where(np.isnan(values), 0, np.arange(self.count))
        rows = np.maximum.accumulate(np.maximum(rows, np.repeat(self.starts, self.lengths)))
        return values[rows]

    def first_known(self, values: Floats) -> Floats:
        """Return for each row the first value of its link side that is not NaN."""
        rows = np.where(np.isnan(values), self.count, np.arange(self.count))
        first = np.minimum.reduceat(rows, self.starts)
        known = np.append(values, np.nan)[first]
        return np.repeat(known, self.lengths)

    def earlier(self, values: Floats) -> Floats:
        """Return the sum of the earlier rows of the same link side; NaN counts as 0."""
        total = np.cumsum(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf))
        total = np.append(0.0, total[:-1])
        return total - np.repeat(total[self.starts], self.lengths)

    def total(self, values: Floats) -> Floats:
        """Return the sum of each link side without NaN; NaN: it has no other value."""
        is_missing = np.isnan(values)
        total: Floats = np.add.reduceat(np.where(is_missing, 0.0, values), self.starts)
        if is_missing.any():
            total[np.add.reduceat(~is_missing, self.starts, dtype=np.int64) == 0] = np.nan
        return total

    def largest(self, values: Floats) -> Floats:
        """Return the largest value of each link side that is not NaN; NaN if all are."""
        return np.asarray(np.fmax.reduceat(values, self.starts))

    def smallest(self, values: Floats) -> Floats:
        """Return the smallest value of each link side that is not NaN; NaN if all are."""
        return np.asarray(np.fmin.reduceat(values, self.starts))


def runs(values: Integers) -> Iterator[tuple[int, int]]:
    """Return (first index, index after the last) of each run of equal values.

    >>> list(runs(np.array([7, 7, 3])))
    [(0, 2), (2, 3)]
    """
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1])).tolist() if len(values) else []
    return zip(starts, [*starts[1:], len(values)], strict=True)


def _at(rows: Integers, count: int) -> Flags:
    flags = np.zeros(count, bool)
    flags[rows] = True
    return flags


@dataclass(frozen=True, slots=True)
class RecoverySpan:
    """The times of consecutive recoveries, and the bytes of their link sides."""

    first: int
    """Number of the first recovery."""
    start: Floats
    """Their starts, in seconds since 1970."""
    finish: Floats
    """Their ends, in seconds since 1970."""
    sides: Mapping[tuple[int, int, int], tuple[float, float]]
    """(recovery, broker id, index in `ROLES`) -> bytes copied and bytes produced; absent: unknown."""


@dataclass(frozen=True)
class Stretches:
    """The stretches of link sides, sorted by recovery, link side and time; one row for each decision."""

    rows: pa.Table
    """The logged rows, in any order."""
    order: Integers
    """Index in `rows` of each stretch."""
    sides: Sides
    recovery: Integers
    broker_id: Integers
    role: Integers
    """Index in `ROLES`."""
    records: Integers
    """Link side -> number of its records, including duplicates."""
    values: Mapping[str, Floats]
    """Column -> values, NaN: unknown; see `stretches`."""


def stretches(rows: pa.Table, span: RecoverySpan, ratio: float) -> Stretches:
    """Return one row per decision without duplicates: the stretch until the next decision of the same link side.

    Values, in bytes/s where nothing else is said: `seconds` (>= 0), `capacity`, `client` (actual mean client load),
    `forecast` (client load that the decision assumed; NaN: no metrics), `headroom` (rate from the headroom alone; NaN:
    no metrics, or under an override), `decided`, `applied` (throttle in force; NaN: none), `achieved` (mean
    replication), `min_rate` (the floor), `budget`, `used` (total traffic of the link), `behind` (seconds by which the
    next decision is earlier, because the clocks of two leaders differ), `duration` (seconds of the recovery),
    `lost_<cause>` per cause, and the inputs of the bound: `amount` (bytes to replicate, without produced bytes),
    `growth` (produce rate), `free` (budget minus produce rate), `at` (total seconds of earlier stretches; the first one
    reaches back to the recovery's start), `reach` (seconds of this stretch), `before` (bytes that earlier stretches
    could carry at `free`), `is_estimated` (1: log sizes are unknown, and `amount` is the achieved amount).

    The client load of a stretch is the next cycle's measurement. Without metrics it is the last known load, otherwise
    the first known one. If log sizes are unknown, the throttle counts as achieved.

    Args:
        rows: usable rows of the log, in any order, at least one; with the column `recovery`, a number of `span`.
        span: the recoveries.
        ratio: the reference share, in (0, 1].
    """
    order, sides, keys, records = _in_order(rows)
    recovery, broker_id, role = keys
    start, finish = span.start[recovery - span.first], span.finish[recovery - span.first]
    values = {name: _floats(rows[name])[order] for name in _LOGGED}
    values["decided"], values["applied"] = values.pop("rate_decided"), values.pop("rate_applied")
    time, eta = (_seconds(rows[name])[order] for name in ("time", "eta"))
    utilization = values.pop("utilization")
    replication = _first_known(values.pop("replication"), values.pop("mean_throttle"))
    forecast = np.where(np.isnan(utilization), np.nan, np.fmax(utilization - replication, 0.0))
    capacity = _first_known(
        values["capacity"],
        sides.last_known(values["capacity"]),
        np.repeat(sides.largest(values["capacity"]), sides.lengths),
    )
    client = _first_known(sides.following(forecast), forecast, sides.last_known(forecast), sides.first_known(forecast))
    passed = _first_known(sides.following(time), finish) - time
    seconds = np.maximum(passed, 0.0)
    budget = available_rate(capacity, client, ratio, values["min_rate"])
    landed = values.pop("bytes_landed")
    # After a restart, discovery counts from 0.
    carried = sides.following(landed) - landed
    measured = _divided(np.where(carried >= 0, carried, np.nan), seconds)
    throttle = _first_known(values["applied"], values["decided"])
    # The last stretch ends with the last byte; nothing is counted after it.
    achieved = _first_known(measured, np.fmin(throttle, budget), values["decided"])
    values |= {"time": time, "capacity": capacity, "client": client, "forecast": forecast, "budget": budget}
    values |= {"seconds": seconds, "behind": np.maximum(-passed, 0.0), "achieved": achieved}
    values |= {"used": sides.following(utilization), "finish": finish, "duration": finish - start}
    values["eta"] = eta
    values |= unused(values, _is_override(rows)[order], ratio)
    known_bytes = [span.sides.get(key, (np.nan, np.nan)) for key in _side_keys(sides, keys)]
    values |= _bound_inputs(sides, values, time - start, np.array(known_bytes).reshape(-1, 2))
    return Stretches(rows, order, sides, recovery, broker_id, role, records, values)


_LOGGED = (
    *("capacity", "utilization", "replication", "mean_throttle", "standing", "headroom", "rate_decided"),
    *("rate_applied", "min_rate", "bytes_landed"),
)


def _in_order(rows: pa.Table) -> tuple[Integers, Sides, tuple[Integers, Integers, Integers], Integers]:
    """Return the indices of the rows, sorted and without duplicates; their link sides, keys and numbers of records.

    Of duplicates the last one stays.
    """
    recovery, broker_id, term, cycle = (_integers(rows[name]) for name in ("recovery", "broker_id", "term", "cycle"))
    role = numbers_of(rows["role"], {text: number for number, text in enumerate(ROLES)})
    order = np.lexsort((cycle, term, role, broker_id, recovery))
    keys = [column[order] for column in (recovery, broker_id, role, term, cycle)]
    changes = [np.append(True, column[1:] != column[:-1]) for column in keys]
    is_new_side = changes[0] | changes[1] | changes[2]
    is_new_decision = is_new_side | changes[3] | changes[4]
    is_newest = np.append(is_new_decision[1:], True)
    records = np.add.reduceat(np.ones(len(order), np.int64), np.flatnonzero(is_new_side))
    number = np.cumsum(is_new_side)[is_newest]
    starts = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
    newest = order[is_newest]
    sorted_keys = (recovery[newest], broker_id[newest], role[newest])
    return newest, Sides(starts, len(newest)), sorted_keys, records


def _side_keys(sides: Sides, keys: tuple[Integers, Integers, Integers]) -> list[tuple[int, int, int]]:
    return list(zip(*(column[sides.starts].tolist() for column in keys), strict=True))


def _bound_inputs(sides: Sides, values: Mapping[str, Floats], age: Floats, known_bytes: Floats) -> dict[str, Floats]:
    """Return the inputs of the bound, see `stretches`.

    Args:
        sides: the link sides.
        values: the values of the stretches.
        age: seconds from the recovery's start to the decision.
        known_bytes: bytes copied and produced, for each link side; NaN: unknown.
    """
    landed, grown = (np.repeat(column, sides.lengths) for column in known_bytes.T)
    growth = np.nan_to_num(_divided(grown, values["duration"]))
    free = values["budget"] - growth
    reach = values["seconds"] + np.where(sides.is_first, np.maximum(age, 0.0), 0.0)
    estimate = np.repeat(sides.total(values["achieved"] * values["seconds"]), sides.lengths)
    return {
        "growth": growth,
        "free": free,
        "reach": reach,
        "at": sides.earlier(reach),
        "before": sides.earlier(free * reach),
        "amount": _first_known(landed - grown, estimate),
        "is_estimated": np.isnan(landed).astype(float),
    }


def _is_override(rows: pa.Table) -> Flags:
    return numbers_of(rows["reason"], dict.fromkeys(OVERRIDES, 0)) >= 0


# The rules of a single stretch. A property test compares them with plain Python.


def available_rate(capacity: Floats, client: Floats, ratio: float, min_rate: Floats) -> Floats:
    """Return `core.scoring.score.available_rate`, bytes/s; NaN if capacity or client load is NaN."""
    return np.asarray(np.maximum(ratio * np.maximum(capacity - client, 0.0), min_rate))


def unused(values: Mapping[str, Floats], is_override: Flags, ratio: float) -> dict[str, Floats]:
    """Return `lost_<cause>` -> unused part of the available rate, bytes/s; the sum is `available_rate - achieved`.

    A negative value offsets another cause, for example if the rate was above the available rate.

    Args:
        values: see `stretches`.
        is_override: whether an override decided.
        ratio: the reference share, in (0, 1].
    """
    capacity, forecast, headroom, decided = (values[c] for c in ("capacity", "forecast", "headroom", "decided"))
    min_rate, applied = values["min_rate"], _first_known(values["applied"], decided)
    whole = available_rate(capacity, values["client"], ratio, min_rate)
    forecast_headroom = available_rate(capacity, forecast, ratio, min_rate)
    is_blind = ~is_override & (np.isnan(forecast) | np.isnan(headroom))
    is_measured = ~is_override & ~is_blind
    by_cause = {
        Cause.METRICS_LATE: np.where(is_measured, whole - forecast_headroom, 0.0),
        Cause.HEADROOM_UNUSED: np.where(is_measured, forecast_headroom - headroom, 0.0),
        Cause.CHANGE_THRESHOLD: np.where(is_measured, headroom - decided, 0.0),
        Cause.FAIL_SAFE: np.where(is_blind, whole - decided, 0.0),
        Cause.OVERRIDE: np.where(is_override, whole - decided, 0.0),
        Cause.NOT_APPLIED: decided - applied,
        Cause.ELSEWHERE: applied - values["achieved"],
    }
    return {f"lost_{cause.value}": rate for cause, rate in by_cause.items()}


def reached(amount: Floats, carried: Floats, at: Floats, seconds: Floats, rate: Floats) -> Floats:
    """Return the time at which a link side has carried an amount, if within this stretch; otherwise NaN.

    Args:
        amount: bytes.
        carried: bytes carried in earlier stretches.
        at: total seconds of earlier stretches.
        seconds: duration of this stretch.
        rate: budget minus produce rate, bytes/s.
    """
    is_reached = (rate > 0) & (carried < amount) & (carried + rate * seconds >= amount)
    return np.where(amount <= 0, 0.0, np.where(is_reached, at + _divided(amount - carried, rate), np.nan))


def beyond(amount: Floats, carried: Floats, at: Floats, rate: Floats) -> Floats:
    """Return the time at which a link side has carried an amount after all stretches, at its last rate."""
    return np.where(amount <= 0, 0.0, np.where(rate > 0, at + _divided(amount - carried, rate), np.inf))


# Scores.


def side_scores(stretches: Stretches) -> dict[str, Any]:
    """Return one value per link side and column.

    Columns: `recovery`, `broker_id`, `role`, `instance_type`, `seconds` (of the recovery), `bound_seconds` (of this
    link side alone; NaN: never measured), `amount` (bytes), `budget_bytes`, `lost_<cause>` per cause (unused bytes of
    the budget), `over_seconds` (over the target utilization), `saturated_seconds`, `port_seconds` (measured seconds),
    `decisions`, `copies` (duplicate records), `writes`, `churn` (sum of all throttle changes, each as a share of the
    current throttle), `eta_error` (mean of |ETA - end| / remaining time; NaN: no ETA), `skew_seconds` (lower limit of
    the delay of a later term's clock), `is_estimated`.
    """
    sides, values, rows = stretches.sides, stretches.values, stretches.rows
    seconds, free, reach, amount = (values[name] for name in ("seconds", "free", "reach", "amount"))
    time_left = values["finish"] - values["time"]
    eta_error = np.where(time_left > 0, _divided(np.abs(values["eta"] - values["finish"]), time_left), np.nan)
    applied, standing = values["applied"], values["standing"]
    is_write = ~((applied == standing) | (np.isnan(applied) & np.isnan(standing)))
    is_over = values["achieved"] > values["budget"] + _NOISE * values["capacity"]
    is_saturated = values["used"] >= _SATURATED * values["capacity"]
    budget_bytes = sides.total(values["budget"] * seconds)
    first, last = sides.starts, sides.starts + sides.lengths - 1
    within = sides.smallest(reached(amount, values["before"], values["at"], reach, free))
    after = beyond(amount[first], sides.total(free * reach), sides.total(reach), free[last])
    return {
        "recovery": stretches.recovery[first],
        "broker_id": stretches.broker_id[first],
        "role": stretches.role[first],
        "instance_type": _largest_texts(sides, rows["instance_type"], stretches.order),
        "seconds": values["duration"][first],
        "bound_seconds": np.where(np.isnan(budget_bytes), np.nan, _first_known(within, after)),
        "amount": amount[first],
        "budget_bytes": budget_bytes,
        **{lost: sides.total(values[lost] * seconds) for lost in LOST},
        "over_seconds": sides.total(np.where(is_over, seconds, 0.0)),
        "saturated_seconds": sides.total(np.where(is_saturated, seconds, 0.0)),
        "port_seconds": sides.total(seconds),
        "decisions": sides.lengths,
        "copies": stretches.records - sides.lengths,
        "writes": np.add.reduceat(is_write, sides.starts, dtype=np.int64),
        "churn": sides.total(np.nan_to_num(_divided(np.abs(applied - standing), standing))),
        "eta_error": _divided(sides.total(eta_error), sides.total(np.where(np.isnan(eta_error), np.nan, 1.0))),
        "skew_seconds": sides.largest(values["behind"]),
        "is_estimated": values["is_estimated"][first] > 0,
    }


def _largest_texts(sides: Sides, column: pa.ChunkedArray, order: Integers) -> list[str]:
    """Return the last text of each link side in alphabetical order; it usually has one only."""
    encoded = _encoded(column)
    texts = [text or "" for text in encoded.dictionary.to_pylist()] + [""]
    in_order = sorted(set(texts))
    ranks = np.array([in_order.index(text) for text in texts])
    codes = encoded.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)
    return [in_order[rank] for rank in np.maximum.reduceat(ranks[codes][order], sides.starts).tolist()]


# Columns of Arrow as arrays of numpy.


def _floats(column: pa.ChunkedArray) -> Floats:
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), np.float64)


def _integers(column: pa.ChunkedArray) -> Integers:
    return np.asarray(column.to_numpy(), np.int64)


def _seconds(column: pa.ChunkedArray) -> Floats:
    """Return times as seconds since 1970."""
    return _floats(column.cast(pa.int64())) / 1e6


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.unify_dictionaries().combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def numbers_of(column: pa.ChunkedArray, numbers: Mapping[str, int]) -> Integers:
    """Return for each row the number of its text, or -1."""
    encoded = _encoded(column)
    by_code = np.array([numbers.get(text, -1) for text in encoded.dictionary.to_pylist()] + [-1], np.int64)
    codes = encoded.indices.fill_null(len(by_code) - 1).to_numpy(zero_copy_only=False)
    return np.asarray(by_code[codes], np.int64)


def _first_known(*columns: Floats) -> Floats:
    """Return for each row the first value that is not NaN."""
    values = columns[0]
    for column in columns[1:]:
        values = np.where(np.isnan(values), column, values)
    return values


def _divided(amount: Floats, by: Floats) -> Floats:
    """Return the quotient; NaN where the divisor is 0."""
    with np.errstate(over="ignore"):
        quotient: Floats = np.divide(amount, by, out=np.full(len(amount), np.nan), where=by != 0)
    return quotient
