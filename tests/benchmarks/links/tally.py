"""What a move over shaped links is judged by: pure functions of what was sampled, and the table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autothrottle.lab.links import Count

Port = tuple[int, str]
"""Broker id, and "rx" (what it receives) or "tx" (what it sends)."""

ALL, DESTINATIONS, MOVING = "all", "destination's", "moving"
"""Groups of partitions that are produced to: all steady ones, those of them with a replica on the destination; and
those that move."""

SATURATED = 0.98
"""Share of its rate from which on a link counts as full: nine tenths of what clients at half of it leave and their own
half are 0.95, however evenly they flow."""

_FIRST_SECONDS = 3

FINISH_SECONDS = (1.0, 4.0)
"""Before and after a partition has joined the ISR: what was due then belongs to the finish."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The links at one moment."""

    at: float
    """`time.monotonic()`."""
    carried: Mapping[Port, Count]
    """What has passed; each port's count has a moment of its own."""
    landed: int
    """Bytes of the moving partitions in the destination's logs."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How long records took to be acknowledged by all, from when they were due, seconds."""

    count: int
    p50: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True)
class Run:
    """One move, judged."""

    policy: str
    ratio: float
    number: int
    """1 is the first of its kind."""
    second: str
    """How a second destination was; "none": there was none, and what follows is of the only one."""
    makespan: float
    """From the call that submits the move until the last replica is in sync, seconds."""
    bound: float
    """The least that the links allow with that ratio, `core.bound`, seconds."""
    simulated: float
    """How long the simulator takes for it, seconds."""
    quiet: Mapping[str, Waits]
    """Group of partitions -> waits before the move."""
    moving: Mapping[str, Waits]
    """The same during the move, and until a little after its end."""
    at_finishes: float
    """The longest wait around the moments in which replicas joined the ISR, seconds."""
    saturated: float
    """Share of the move's seconds in which the destination's link was full."""
    saturated_any: float
    """The same of any link in either direction."""
    worst_second: float
    """Most that was copied in a second / what the ratio leaves for it."""
    lost: int
    """Records that were not acknowledged at all."""
    load: float
    """Runnable processes of the machine, the mean of the minute before the end."""
    throttles: Sequence[tuple[float, int | None]]
    """(seconds since the begin, bytes/s that stood on the destination's follower side), at each change."""
    received: Sequence[int]
    """What landed on the destination in each second, bytes/s."""
    carried: Sequence[int]
    """What the destination's link carried to it in each second, bytes/s."""
    slowest: Sequence[float]
    """The longest wait of what was due in each second, of partitions with a replica on the destination, seconds."""

    def times(self, group: str) -> float:
        """The 99th percentile of a group's waits by that of the quiet time."""
        return self.moving[group].p99 / self.quiet[group].p99


def waits(seconds: Iterable[float]) -> Waits:
    """Sum up waits.

    >>> waits([0.4, 0.1, 0.2, 0.3])
    Waits(count=4, p50=0.2, p99=0.4, most=0.4)
    """
    ordered = sorted(seconds)
    if not ordered:
        return Waits(0, 0.0, 0.0, 0.0)
    return Waits(len(ordered), _rank(ordered, 50), _rank(ordered, 99), ordered[-1])


def _rank(ordered: Sequence[float], percent: int) -> float:
    """The least of them that so many percent do not exceed."""
    return ordered[max(-(-len(ordered) * percent // 100), 1) - 1]


def seconds(samples: Sequence[Sample], at_least: float = 0.9) -> list[tuple[Sample, Sample]]:
    """Pair samples that are a second apart, one pair after the other; a late sample makes its second longer."""
    found, first = [], samples[0]
    for sample in samples[1:]:
        if sample.at - first.at >= at_least:
            found.append((first, sample))
            first = sample
    return found


def full_share(samples: Sequence[Sample], rates: Mapping[Port, float]) -> float:
    """Return the share of seconds in which at least one of these ports carried `SATURATED` of its rate, in 0..1.

    Args:
        samples: of the whole move, at least once a second.
        rates: of the ports that are looked at, bytes/s.
    """
    pairs = seconds(samples)
    full = [
        any(after.carried[port].rate_since(before.carried[port]) >= SATURATED * rate for port, rate in rates.items())
        for before, after in pairs
    ]
    return sum(full) / len(full) if full else 0.0


def landing_rates(samples: Sequence[Sample]) -> list[float]:
    """Return what landed in each second, bytes/s."""
    return [(after.landed - before.landed) / (after.at - before.at) for before, after in seconds(samples)]


def carried_rates(samples: Sequence[Sample], port: Port) -> list[float]:
    """Return what a port carried in each second, bytes/s."""
    return [after.carried[port].rate_since(before.carried[port]) for before, after in seconds(samples)]


def slowest_by_second(waited: Iterable[tuple[float, float]], length: float) -> list[float]:
    """Return the longest wait of each second, seconds; 0 where nothing was due.

    Args:
        waited: (when it was due, seconds from the begin; seconds until it was acknowledged).
        length: seconds; a last one that is not whole counts.

    >>> slowest_by_second([(0.2, 0.1), (0.9, 0.3), (2.5, 0.2)], 2.6)
    [0.3, 0.0, 0.2]
    """
    found = [0.0] * math.ceil(length)
    for at, seconds_waited in waited:
        if 0 <= at < length:
            found[int(at)] = max(found[int(at)], seconds_waited)
    return found


def at_finishes(waited: Iterable[tuple[float, float]], finishes: Sequence[float]) -> float:
    """Return the longest wait of records that were due around a finish, seconds; 0 if none was.

    Args:
        waited: (when it was due, seconds until it was acknowledged).
        finishes: when replicas joined the ISR, on the same clock.
    """
    before, after = FINISH_SECONDS
    near = (waited_for for at, waited_for in waited if any(f - before <= at <= f + after for f in finishes))
    return max(near, default=0.0)


COLUMNS = (
    "policy",
    "ratio",
    "run",
    "second",
    "makespan s",
    "/ bound",
    "/ simulated",
    "quiet p99 ms",
    "all: p50 ms",
    "p99 ms",
    "x quiet",
    "max s",
    "destination's: p99 ms",
    "x quiet",
    "max s",
    "moving: max s",
    "at finishes s",
    "full s",
    "any link",
    "worst s",
    "lost",
    "load",
)


def cells(run: Run) -> list[str]:
    """The cells of a run's line; full and any link are shares of the seconds, worst is by what the ratio leaves."""
    every, near, moved = (run.moving[group] for group in (ALL, DESTINATIONS, MOVING))
    return [
        run.policy,
        f"{run.ratio:g}",
        str(run.number),
        run.second,
        f"{run.makespan:.1f}",
        f"{run.makespan / run.bound:.2f}",
        f"{run.makespan / run.simulated:.2f}",
        f"{1000 * run.quiet[ALL].p99:.0f}",
        f"{1000 * every.p50:.0f}",
        f"{1000 * every.p99:.0f}",
        f"{run.times(ALL):.1f}",
        f"{every.most:.2f}",
        f"{1000 * near.p99:.0f}",
        f"{run.times(DESTINATIONS):.1f}",
        f"{near.most:.2f}",
        f"{moved.most:.2f}",
        f"{run.at_finishes:.2f}",
        f"{run.saturated:.2f}",
        f"{run.saturated_any:.2f}",
        f"{run.worst_second:.1f}",
        str(run.lost),
        f"{run.load:.1f}",
    ]


def lines(runs: Iterable[Run]) -> list[str]:
    """The table as text."""
    rows = [COLUMNS, *map(cells, runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def claims(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What the adaptive policy was to show at a ratio of 0.9, run by run; [] without such runs."""
    chosen = [run for run in runs if (run.policy, run.ratio, run.second) == ("adaptive", 0.9, "none")]
    if not chosen:
        return []
    wanted = (
        ("makespan / the links' bound", 1.15, [run.makespan / run.bound for run in chosen]),
        ("p99 / quiet, all steady partitions", 6.0, [run.times(ALL) for run in chosen]),
        ("p99 / quiet, those with a replica on the destination", 10.0, [run.times(DESTINATIONS) for run in chosen]),
        ("longest wait of a record, s", 1.0, [max(w.most for w in run.moving.values()) for run in chosen]),
        ("share of seconds in which the destination's link was full", 0.1, [run.saturated for run in chosen]),
    )
    return [
        {
            "claim": what,
            "wanted": most,
            "median": round(statistics.median(reached), 3),
            "runs": [round(one, 3) for one in reached],
            "met": max(reached) <= most,
        }
        for what, most, reached in wanted
    ]


def beside_a_full_one(runs: Sequence[Run]) -> dict[tuple[str, float], float]:
    """Return (policy, ratio) -> what lands in a second while clients fill a second destination, by what does else.

    The first seconds, in which the rates are found, do not count.
    """
    found: dict[tuple[str, float], dict[str, list[Run]]] = {}
    for run in runs:
        found.setdefault((run.policy, run.ratio), {}).setdefault(run.second, []).append(run)
    both = {key: kinds for key, kinds in found.items() if {"open", "full"} <= kinds.keys()}
    return {key: _landed(kinds["full"]) / _landed(kinds["open"]) for key, kinds in both.items()}


def _landed(runs: Sequence[Run]) -> float:
    """Mean bytes/s from the fourth second to the last but one."""
    return statistics.mean(statistics.mean(run.received[_FIRST_SECONDS:-1]) for run in runs)
