"""A generator of daily peaks of a storage that fills: trend, weekly rhythm, changed retention, noise and outliers."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class GrowthTrace:
    """Daily peaks up to today, and the day on which the limit is reached."""

    peaks: list[float]
    limit: float
    days: int
    """From today to the first day whose peak is at or above the limit, without noise."""


def growth_trace(seed: int, horizon: int = 30) -> GrowthTrace:
    """Return a trace whose limit is reached `horizon` days after its end, give or take the weekly rhythm.

    Four kinds in turn: a straight trend, one that compounds, one with a weekly rhythm, and one with a retention that
    changes during the trace. Every kind has noise, and some days are absent or are outliers.
    """
    draw = random.Random(f"growth {seed}")
    history = draw.randint(60, 120)
    level, kind = draw.uniform(1e11, 5e12), seed % 4
    growth = draw.uniform(0.004, 0.02)
    rhythm = draw.uniform(0.03, 0.10) if kind in (2, 3) else draw.uniform(0, 0.02)
    busy = draw.sample(range(7), 5)
    change, factor = draw.randint(history // 3, history - 21), draw.choice([0.6, 1.4, 1.8])

    def peak(day: int) -> float:
        trend = (1 + growth / 2) ** day if kind == 1 else 1 + growth * day
        share = (1 if day % 7 in busy else 1 - rhythm) * trend
        if kind == 3 and day >= change:
            # The storage reaches its new level within three days.
            share *= 1 + (factor - 1) * min((day - change) / 3, 1)
        return level * share

    limit = max(peak(history - 1 + horizon - ahead) for ahead in range(7))
    days = next(ahead for ahead in range(1, horizon + 1) if peak(history - 1 + ahead) >= limit)
    noise = draw.uniform(0.002, 0.01)
    peaks = [peak(day) * draw.gauss(1, noise) for day in range(history)]
    for day in draw.sample(range(history - 1), 3):
        peaks[day] *= draw.choice([0.3, 1.5])
    return GrowthTrace(peaks, limit, days)
