"""When a resource reaches its limit: a robust trend of its daily peaks. The function to know is `exhaustion`."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from statistics import median

from autothrottle.core.errors import Invalid

LEAST_DAYS = 14
"""Days that a trend needs."""

MOST_DAYS = 365
"""A limit that is further away counts as never reached."""

_WEEK = 7
_SIGMAS_80 = 1.2816
_MAD_TO_SIGMA = 1.4826
_ROUNDS = 8
_TUKEY = 4.685
"""Values further away than this many standard deviations have no weight."""
_LEAST_SIGMA = 1e-6
_CHANGE = 0.05
"""Growth itself changes: the standard deviation of a date, as a share of its distance."""
_DOUBT = 0.2
_WHOLE_DAY = 1 / 4
"""Variance of a date that is a whole day."""
_RIDGE = 1e-9
"""Keeps the products invertible if a day of the week was never measured."""
MOST_HISTORY = 180
"""Days of the past that count."""
_JUMP_SIGMAS = 5.0
"""A level that jumps by more than this many standard deviations begins a new trend."""


@dataclass(frozen=True, slots=True)
class Exhaustion:
    """When the daily peak of a resource reaches its limit, in days from the last peak; inf: not within a year."""

    days: float
    earliest: float
    """It is between `earliest` and `latest` with a probability of 80 %."""
    latest: float


def exhaustion(peaks: Sequence[float | None], limit: float) -> Exhaustion:
    """Return when the peaks reach a limit.

    The trend is a straight or a compounding one, whichever fits better. Days of the week have levels of their own. A
    new level, for example after a change of the retention, scales the older peaks.

    Args:
        peaks: largest value of each day, the oldest first; None or < 1: not measured.
        limit: >= 1, in the same unit.

    Raises:
        Invalid: fewer than `LEAST_DAYS` days are measured.
    """
    peaks = peaks[-MOST_HISTORY:]
    days = [day for day, peak in enumerate(peaks) if peak is not None and peak >= 1]
    if len(days) < LEAST_DAYS:
        raise Invalid(f"{len(days)} days are measured, and a trend needs {LEAST_DAYS}. Fix: wait for more samples")
    logs = [log(peaks[day] or 1.0) for day in days]
    last = len(peaks) - 1
    changes = _level_changes(dict(zip(days, logs, strict=True)), last)
    # The square follows the curve of a straight trend on the logarithmic scale.
    rows = [
        [1.0, day / last, (day / last) ** 2, *_weekday(day), *(float(day < each) for each in changes)] for day in days
    ]
    full = _fit(rows, logs)
    rhythm = [0.0, *full.coefficients[3:9]]
    shifts = full.coefficients[9:]
    adjusted = [
        value - rhythm[day % _WEEK] - sum(shift for each, shift in zip(changes, shifts, strict=True) if day < each)
        for day, value in zip(days, logs, strict=True)
    ]
    line = [[1.0, day / last] for day in days]
    compound, straight = _fit(line, adjusted), _fit(line, [exp(value) for value in adjusted])
    middle = exp(median(adjusted))
    targets = [log(limit) - each for each in rhythm]
    crossings = [_crossing(compound, last, targets), _crossing(straight, last, [exp(each) for each in targets])]
    sigmas = compound.sigma, straight.sigma / middle
    best = int(sigmas[1] < sigmas[0])
    doubt = (min(sigmas) / max(max(sigmas), _LEAST_SIGMA)) ** (len(days) / 2)
    return _interval(crossings[best], crossings[1 - best], doubt / (1 + doubt))


def _weekday(day: int) -> list[float]:
    return [float(day % _WEEK == each) for each in range(1, _WEEK)]


def _level_changes(logs: Mapping[int, float], last: int) -> list[int]:
    """Return the first day of each new level: the values of a week differ from those of the week before it."""
    steps = {day: logs[day] - logs[day - _WEEK] for day in logs if day - _WEEK in logs}
    usual = median(steps.values()) if steps else 0.0
    sigma = _MAD_TO_SIGMA * median([abs(step - usual) for step in steps.values()] or [0.0])
    unusual = {day: step > usual for day, step in steps.items() if abs(step - usual) > _JUMP_SIGMAS * sigma}
    changes = []
    day = 0
    while day <= last:
        run = [each for each in range(day, day + _WEEK) if each in unusual and unusual[each] == unusual.get(day)]
        if day in unusual and len(run) >= _WEEK - 2:
            end = max(run)
            while any(each in unusual and unusual[each] == unusual[day] for each in (end + 1, end + 2)):
                end += 1
            changes.append(end - _WEEK + 1)
            day = end
        day += 1
    return [each for each in changes if each < last]


@dataclass(frozen=True, slots=True)
class _Fit:
    """A linear model of values, fitted without regard to outliers."""

    coefficients: list[float]
    covariance: list[list[float]]
    sigma: float
    """Standard deviation of a value from the model."""


def _fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> _Fit:
    """Return the model by least squares, repeated with Tukey's weights of the distances."""
    weights = [1.0] * len(rows)
    width = len(rows[0])
    coefficients, inverse, sigma = [0.0] * width, [[0.0] * width], 0.0
    for _ in range(_ROUNDS):
        products = [
            [sum(w * row[i] * row[j] for w, row in zip(weights, rows, strict=True)) for j in range(width)]
            for i in range(width)
        ]
        for i in range(width):
            products[i][i] += _RIDGE
        inverse = _inverse(products)
        sides = [
            sum(w * row[i] * value for w, row, value in zip(weights, rows, values, strict=True)) for i in range(width)
        ]
        coefficients = [sum(map(operator.mul, line, sides)) for line in inverse]
        distances = [
            abs(value - sum(map(operator.mul, coefficients, row))) for row, value in zip(rows, values, strict=True)
        ]
        sigma = max(_MAD_TO_SIGMA * median(distances), _LEAST_SIGMA * max(abs(values[-1]), 1.0))
        weights = [max(1 - (distance / (_TUKEY * sigma)) ** 2, 0.0) ** 2 for distance in distances]
    sigma *= sqrt(len(rows) / max(len(rows) - width, 1))
    return _Fit(coefficients, [[sigma**2 * value for value in line] for line in inverse], sigma)


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the inverse of a positive definite matrix, by Gauss and Jordan."""
    size = len(matrix)
    table = [[*line, *(float(i == j) for j in range(size))] for i, line in enumerate(matrix)]
    for pivot in range(size):
        factor = table[pivot][pivot]
        table[pivot] = [value / factor for value in table[pivot]]
        for i in range(size):
            if i != pivot:
                share = table[i][pivot]
                table[i] = [value - share * other for value, other in zip(table[i], table[pivot], strict=True)]
    return [line[size:] for line in table]


def _crossing(fit: _Fit, last: int, targets: Sequence[float]) -> tuple[float, float]:
    """Return the days until a line reaches the target of its weekday, and the standard deviation of that number."""
    level, slope = fit.coefficients
    for ahead in range(MOST_DAYS + 1):
        x = (last + ahead) / last
        target = targets[(last + ahead) % _WEEK]
        if level + slope * x >= target - _LEAST_SIGMA * abs(target):
            (level_variance, both), (_, slope_variance) = fit.covariance
            variance = level_variance + 2 * x * both + x * x * slope_variance
            return float(ahead), sqrt(max(variance, 0.0)) / (max(slope, 1e-12) / last) if ahead else 0.0
    return inf, 0.0


def _interval(best: tuple[float, float], other: tuple[float, float], doubt: float) -> Exhaustion:
    """Return the crossing of the better trend; `doubt` is the probability that the other one is right."""
    days, sigma = best
    if days == inf:
        return Exhaustion(inf, other[0] if doubt > _DOUBT else inf, inf)
    if not days:
        return Exhaustion(0.0, 0.0, 0.0)
    other_days = min(other[0], 2 * days)
    variance = sigma**2 + doubt * (other_days - days) ** 2 + (_CHANGE * days) ** 2 + _WHOLE_DAY
    margin = _SIGMAS_80 * sqrt(variance)
    return Exhaustion(days, max(days - margin, 0.0), days + margin)
