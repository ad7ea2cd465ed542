"""How far forecasts of the clients' load were off: the margin that a link keeps free for what nobody foresaw."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate

_BUCKET = 0.005
"""Relative error that one bucket spans."""
_BUCKETS = 81
_MIDDLE = _BUCKETS // 2
_DECAY = 0.95
"""What a metric's interval leaves of the weight of older ones: about 20 intervals count, 40 minutes by default."""
_PRIOR_SPREAD, _PRIOR_WEIGHT = 0.04, 5.0
"""What is believed before anything was learned, and how many intervals it is worth."""
_QUANTILE = 0.84
"""Of a normal error: one standard deviation. A quantile, since the square mean of few wild errors blows up."""
LEAST, MOST = 0.01, 0.15
"""Bounds of the spread."""


def _prior() -> tuple[float, ...]:
    weights = [math.exp(-(((i - _MIDDLE) * _BUCKET / _PRIOR_SPREAD) ** 2) / 2) for i in range(_BUCKETS)]
    return tuple(_PRIOR_WEIGHT * weight / sum(weights) for weight in weights)


_PRIOR = _prior()


@dataclass(frozen=True, slots=True)
class ErrorSpread:
    """The distribution of relative errors, recent ones first; a value."""

    weights: tuple[float, ...] = (0.0,) * _BUCKETS

    def observe(self, errors: Collection[float]) -> ErrorSpread:
        """Return the spread with the errors of one more interval: (measured - forecast) / forecast each."""
        if not errors:
            return self
        weights = [weight * _DECAY for weight in self.weights]
        for error in errors:
            bucket = _MIDDLE + round(error / _BUCKET)
            weights[min(max(bucket, 0), _BUCKETS - 1)] += 1 / len(errors)
        return ErrorSpread(tuple(weights))

    @property
    def sigma(self) -> float:
        """How far the clients' load may lie above its forecast, relative, in [LEAST, MOST].

        >>> 0.035 <= ErrorSpread().sigma <= 0.045
        True
        """
        sums = list(accumulate(w + prior for w, prior in zip(self.weights, _PRIOR, strict=True)))
        bucket = next(i for i, total in enumerate(sums) if total >= _QUANTILE * sums[-1])
        return min(max((bucket - _MIDDLE) * _BUCKET, LEAST), MOST)
