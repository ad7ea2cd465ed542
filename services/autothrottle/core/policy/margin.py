"""The error of client load forecasts, from which the policy derives the margin that it leaves free on a link."""

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
"""Factor on older weights for each metric interval: about 20 intervals count, by default 40 minutes."""
_PRIOR_SPREAD, _PRIOR_WEIGHT = 0.04, 5.0
"""The prior spread (relative error), and its weight in intervals."""
_QUANTILE = 0.84
"""One standard deviation of a normal error. It is a quantile, because few outliers would dominate a mean square."""
LEAST, MOST = 0.01, 0.15
"""Bounds of the spread."""


def _prior() -> tuple[float, ...]:
    weights = [math.exp(-(((i - _MIDDLE) * _BUCKET / _PRIOR_SPREAD) ** 2) / 2) for i in range(_BUCKETS)]
    return tuple(_PRIOR_WEIGHT * weight / sum(weights) for weight in weights)


_PRIOR = _prior()


@dataclass(frozen=True, slots=True)
class ErrorSpread:
    """The distribution of relative errors, in which recent ones weigh most; immutable."""

    weights: tuple[float, ...] = (0.0,) * _BUCKETS

    def observe(self, errors: Collection[float]) -> ErrorSpread:
        """Return the spread with the errors of one more interval; each is `(measured - forecast) / forecast`."""
        if not errors:
            return self
        weights = [weight * _DECAY for weight in self.weights]
        for error in errors:
            bucket = _MIDDLE + round(error / _BUCKET)
            weights[min(max(bucket, 0), _BUCKETS - 1)] += 1 / len(errors)
        return ErrorSpread(tuple(weights))

    @property
    def sigma(self) -> float:
        """One standard deviation of the client load above its forecast, relative, in [LEAST, MOST].

        >>> 0.035 <= ErrorSpread().sigma <= 0.045
        True
        """
        sums = list(accumulate(w + prior for w, prior in zip(self.weights, _PRIOR, strict=True)))
        bucket = next(i for i, total in enumerate(sums) if total >= _QUANTILE * sums[-1])
        return min(max((bucket - _MIDDLE) * _BUCKET, LEAST), MOST)
