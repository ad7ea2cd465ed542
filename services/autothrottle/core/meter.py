"""What the meter of a throttle has not seen, and the rate that keeps it from going out at once.

A broker holds the mean of about 11 s to its rate: after a gap, when partitions finish or an answer is late, it lets
through at the speed of the link what was not used, and the burst, and the silence after it, come back every 11 s. The
rate that lets no more than the usual through in the next second is lower by what is unspent, and is back at its target
when the gap has left the meter's window. The type to know is `Meter`.

Source: KIP-73; Kafka's ReplicationQuotaManager keeps samples of a second, eleven and the one in hand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from autothrottle.core.loads import BytesPerSecond
from autothrottle.core.policy.series import Series

SPAN_SECONDS = 11.5
"""Of the meter's window: eleven seconds when the oldest one has just left, twelve right before."""

_AHEAD_SECONDS = 1.0
"""A rate that is written now stands for so long."""

_FREE_SECONDS = 0.05
"""Of the usual flow that may stay unspent: so little is no burst, and a meter in balance is not quite even."""

_GAP_SECONDS = 1.0
"""Of the usual flow that has to be unspent before a rate is lowered for it, and at least the answers under way: a quota
that is on or off leaves some tenths of a second unspent all along."""

_OLDEST_SECONDS = 2.0
"""Of the newest reading, for it to tell anything of the meter."""

_SHARES_SECONDS = 60.0
"""How long it is remembered which share of a rate was used."""

_LEAST_SHARE = 0.6
"""Of the rate that has to be used: what uses less is held back by something else."""


@dataclass(frozen=True, slots=True)
class Meter:
    """What has passed one throttle, as far as the sizes of logs tell; a value."""

    passed: Series = Series()  # noqa: RUF009 (frozen)
    """Bytes, cumulative, by seconds of a monotonic clock."""
    rate: BytesPerSecond = 0
    """That stands."""
    since: float = 0.0
    """From when on it has."""
    shares: tuple[tuple[float, float], ...] = ()
    """(when, share of the rate that passed in the window before), of windows in which it stood; ascending."""

    def observe(self, at: float, gained: float, rate: BytesPerSecond) -> Meter:
        """Return the meter after one more reading.

        Args:
            at: seconds of the clock; not before the last reading.
            gained: bytes that have passed since the last reading.
            rate: that stands now, bytes/s.
        """
        passed = self.passed.plus(at, gained)
        since = self.since if rate == self.rate else at
        shares = tuple(one for one in self.shares if one[0] > at - _SHARES_SECONDS)
        if rate > 0 and at - since >= SPAN_SECONDS and passed.covers(at - SPAN_SECONDS, at):
            shares = (*shares, (at, passed.rate(at - SPAN_SECONDS, at) / rate))
        # What was learned is kept while a rate that changes again and again says nothing new.
        return Meter(passed, rate, since, shares or self.shares)

    def held(self, target: BytesPerSecond, now: float, under_way: int = 0) -> BytesPerSecond:
        """Return the rate to stand for the next second, so that it lets through what is usual: at most the target.

        `target * (1 - unspent / (usual * SPAN))`, `unspent` being what usually passes in a window less what has; the
        usual is a share of the target, since what a fetch cuts off counts and does not land.

        Args:
            target: what shall stand, bytes/s, > 0.
            now: seconds of the clock.
            under_way: bytes that are fetched at once: as much as that is now too little and now too much, which no
                rate makes even.

        >>> meter = Meter(Series((0.0, 12.0, 14.0, 20.0), (0.0, 120.0, 120.0, 180.0)), 10, 0.0, ((12.0, 1.0),))
        >>> meter.held(10, 20.0), meter.held(10, 26.0)
        (8, 10)
        """
        usual = _upper_quartile([share for _, share in self.shares]) * target
        if usual < _LEAST_SHARE * target or now - self.passed.times[-1] > _OLDEST_SECONDS:
            return target
        begin = now + _AHEAD_SECONDS - SPAN_SECONDS
        if begin < self.passed.times[0]:
            return target
        seen = self.passed.counts[-1] - self.passed.at(begin) + usual * (now - self.passed.times[-1])
        unspent = usual * (now - begin) - seen
        if unspent < max(_GAP_SECONDS * usual, under_way):
            return target
        return round(target * (1 - (unspent - _FREE_SECONDS * usual) / (usual * SPAN_SECONDS)))


def _upper_quartile(shares: Sequence[float]) -> float:
    """At most 1; 0 without any. Not the mean: gaps lower some, and bursts echo."""
    ordered = sorted(shares)
    if not ordered:
        return 0.0
    return min(ordered[bisect_left(range(len(ordered)), 0.75 * (len(ordered) - 1))], 1.0)
