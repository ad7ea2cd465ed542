"""What the newest part of a metric says, where its interval overlaps with that of the one before.

Metrics of two minutes that are read every half minute tell more than their means: what one has that the one before has
not is half a minute, and a step of the clients' load stands there in full a minute earlier than in the mean. The type
to know is `LoadParts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autothrottle.core.policy.series import Series

_LEAST_SECONDS = 20.0
"""A part that is shorter is the difference of two means that are almost the same: noise."""


@dataclass(frozen=True, slots=True)
class MeanLoad:
    """A mean over an interval."""

    rate: float
    """Bytes/s."""
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long the interval is."""
        return self.end - self.start

    @property
    def total(self) -> float:
        """Bytes in it."""
        return self.rate * self.seconds


@dataclass(frozen=True, slots=True)
class LoadParts:
    """A load over time, in parts as short as metrics follow one another; a value."""

    known: Series = field(default_factory=Series)
    """What has come up to the end of each metric, bytes."""
    newest: MeanLoad | None = None
    """The newest part; None: nothing clear that its metric's mean does not say."""
    clear_since: float | None = None
    """Begin of the first part that differed."""

    @staticmethod
    def of(mean: MeanLoad) -> LoadParts:
        """The parts of a metric that no other overlaps with: it is the only one."""
        return LoadParts(Series().plus(mean.start, 0.0).plus(mean.end, mean.total))

    def plus(self, before: MeanLoad, new: MeanLoad, clear: float, off: float = 0.0) -> LoadParts:
        """Return the parts with those of a metric that came after `before`, the last one.

        The new one has all that the last one had but for what came before it begins, which earlier parts tell. Errors
        do not live on: a part that is not clear is believed to be as the mean, and a step is in the mean as soon as the
        metric begins behind it, when all is forgotten.

        Args:
            before: the metric that came last.
            new: the metric.
            clear: bytes/s by which the part has to differ from the mean.
            off: bytes that both together may be wrong by.
        """
        if new.end == before.end:
            return self
        follows = before.start <= new.start < before.end < new.end and self.known.covers(before.start, before.end)
        if not follows or (self.clear_since is not None and self.clear_since < new.start):
            return LoadParts.of(new)
        seconds = new.end - before.end
        if seconds < _LEAST_SECONDS:
            same = self.newest.rate if self.newest else new.rate
            return replace(self, known=self.known.plus(new.end, same * seconds))
        gone = self.known.at(new.start) - self.known.at(before.start)
        rate = max((new.total - (before.total - gone)) / seconds, 0.0)
        if abs(rate - new.rate) <= clear + off / seconds:
            return replace(self, known=self.known.plus(new.end, new.rate * seconds), newest=None)
        since = before.end if self.clear_since is None else self.clear_since
        return LoadParts(self.known.plus(new.end, rate * seconds), MeanLoad(rate, before.end, new.end), since)
