"""Evaluation of a reassignment over shaped links: pure functions of the samples, and the table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autothrottle.core.units import MEGABYTE
from tests.benchmarks.links.shaped_links import Count

LinkDirection = tuple[int, str]
"""(broker id, "rx" for inbound or "tx" for outbound)."""

ALL, ON_FOLLOWER, REASSIGNED = "all", "destination's", "moving"
"""Groups of partitions with producers: all steady ones, the steady ones with a replica on the follower, and the
reassigned ones. The values are columns in results/links.csv."""

SATURATED = 0.98
"""A link counts as full from this share of its rate. Clients at half of the link and replication at nine tenths of the
rest are together a steady 0.95."""

DEFERRED_SECONDS = 1.0
"""A record that waits longer is deferred: the link had no room for it in its second."""

_FIRST_SECONDS = 3

FINISH_SECONDS = (1.0, 4.0)
"""Seconds before and after a partition joins the ISR. Records due in this time belong to the finish."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of the links and bytes copied at one time."""

    at: float
    """`time.monotonic()`."""
    carried: Mapping[LinkDirection, Count]
    """Bytes transferred so far. Each count has its own time."""
    copied: int
    """Bytes of the reassigned partitions in the logs of the follower."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds from the due time of a record to its acknowledgement by all replicas."""

    count: int
    p50: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True)
class Run:
    """The evaluation of one run."""

    policy: str
    ratio: float
    number: int
    """Number of the run among those of the same kind, from 1."""
    second: str
    """State of the second follower (`SECOND_KINDS`). All other fields refer to the first follower."""
    makespan: float
    """Seconds from the submit call until the last replica is in sync."""
    bound: float
    """Shortest duration that the links permit at this ratio (`core.scoring.score`), seconds."""
    simulated: float
    """Duration of the same reassignment in the simulator, seconds."""
    quiet: Mapping[str, Waits]
    """Group of partitions -> waits before the reassignment."""
    moving: Mapping[str, Waits]
    """Group of partitions -> waits during the reassignment and shortly after it."""
    at_finishes: float
    """Longest wait around the times at which replicas joined the ISR, seconds."""
    saturated: float
    """Share of seconds in which the inbound link of the follower was full."""
    saturated_any: float
    """Share of seconds in which any link was full in either direction."""
    worst_second: float
    """Largest copy rate of a second / rate that the ratio permits."""
    lost: int
    """Number of records without acknowledgement."""
    load: float
    """Load average of the machine over the last minute."""
    throttles: Sequence[tuple[float, int | None]]
    """(seconds since the start, inbound throttle of the follower in bytes/s or None), at each change."""
    received: Sequence[int]
    """Copy rate of the follower in each second, bytes/s."""
    carried: Sequence[int]
    """Traffic of the inbound link of the follower in each second, bytes/s."""
    slowest: Sequence[float]
    """Longest wait of records due in each second, of steady partitions with a replica on the follower, seconds."""
    source: str = "datadog"
    """Metrics source of the product."""
    deferred: float = 0.0
    """Share of the steady clients' records that waited longer than `DEFERRED_SECONDS`."""
    fanout_factor: float | None = None
    """Consumer fan-out that the source `kafka` assumes / the true one; None: there are no consumers."""
    deferred_reads: float | None = None
    """Share of records that a consumer got later than `DEFERRED_SECONDS` after they were sent; None: no consumers."""
    longest_read: float | None = None
    """Longest time from sending a record until a consumer had it, seconds; None: no consumers."""

    def times(self, group: str) -> float:
        """Ratio of the 99th percentile of the waits to that of the quiet time, for one group."""
        return self.moving[group].p99 / self.quiet[group].p99


def deferred_share(seconds: Iterable[float]) -> float:
    """Return the share of records that waited longer than `DEFERRED_SECONDS`.

    >>> deferred_share([0.1, 0.2, 1.5, 0.3])
    0.25
    """
    waited = [*seconds]
    return sum(one > DEFERRED_SECONDS for one in waited) / len(waited) if waited else 0.0


def waits(seconds: Iterable[float]) -> Waits:
    """Summarise waits in seconds.

    >>> waits([0.4, 0.1, 0.2, 0.3])
    Waits(count=4, p50=0.2, p99=0.4, most=0.4)
    """
    ordered = sorted(seconds)
    if not ordered:
        return Waits(0, 0.0, 0.0, 0.0)
    return Waits(len(ordered), _rank(ordered, 50), _rank(ordered, 99), ordered[-1])


def _rank(ordered: Sequence[float], percent: int) -> float:
    """Smallest value that at least `percent` percent of the values do not exceed."""
    return ordered[max(-(-len(ordered) * percent // 100), 1) - 1]


def seconds(samples: Sequence[Sample], at_least: float = 0.9) -> list[tuple[Sample, Sample]]:
    """Return consecutive pairs of samples at least `at_least` seconds apart. A late sample makes its pair longer."""
    found, first = [], samples[0]
    for sample in samples[1:]:
        if sample.at - first.at >= at_least:
            found.append((first, sample))
            first = sample
    return found


def full_share(samples: Sequence[Sample], rates: Mapping[LinkDirection, float]) -> float:
    """Return the share of seconds with at least one full link direction, in [0, 1].

    Args:
        samples: samples of the whole reassignment, at least one per second.
        rates: link direction -> its rate in bytes/s, for all directions to check.
    """
    pairs = seconds(samples)
    full = [
        any(
            after.carried[direction].rate_since(before.carried[direction]) >= SATURATED * rate
            for direction, rate in rates.items()
        )
        for before, after in pairs
    ]
    return sum(full) / len(full) if full else 0.0


def copy_rates(samples: Sequence[Sample]) -> list[float]:
    """Return the bytes copied in each second, bytes/s."""
    return [(after.copied - before.copied) / (after.at - before.at) for before, after in seconds(samples)]


def carried_rates(samples: Sequence[Sample], direction: LinkDirection) -> list[float]:
    """Return the traffic of a link direction in each second, bytes/s."""
    return [after.carried[direction].rate_since(before.carried[direction]) for before, after in seconds(samples)]


def slowest_by_second(waited: Iterable[tuple[float, float]], length: float) -> list[float]:
    """Return the longest wait of each second, seconds; 0 without due records.

    Args:
        waited: (due time in seconds from the start, seconds until the acknowledgement) of each record.
        length: duration in seconds; an incomplete last second counts.

    >>> slowest_by_second([(0.2, 0.1), (0.9, 0.3), (2.5, 0.2)], 2.6)
    [0.3, 0.0, 0.2]
    """
    found = [0.0] * math.ceil(length)
    for at, seconds_waited in waited:
        if 0 <= at < length:
            found[int(at)] = max(found[int(at)], seconds_waited)
    return found


def at_finishes(waited: Iterable[tuple[float, float]], finishes: Sequence[float]) -> float:
    """Return the longest wait of records due around a finish, seconds; 0 without such records.

    Args:
        waited: (due time, seconds until the acknowledgement) of each record.
        finishes: times at which replicas joined the ISR, on the same clock.
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
    "follower's: p99 ms",
    "x quiet",
    "max s",
    "reassigned: max s",
    "at finishes s",
    "full s",
    "any link",
    "worst s",
    "lost",
    "load",
)


def cells(run: Run) -> list[str]:
    """Return the cells of a run. full, any link: shares of seconds; worst: multiple of the permitted rate."""
    every, near, reassigned = (run.moving[group] for group in (ALL, ON_FOLLOWER, REASSIGNED))
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
        f"{run.times(ON_FOLLOWER):.1f}",
        f"{near.most:.2f}",
        f"{reassigned.most:.2f}",
        f"{run.at_finishes:.2f}",
        f"{run.saturated:.2f}",
        f"{run.saturated_any:.2f}",
        f"{run.worst_second:.1f}",
        str(run.lost),
        f"{run.load:.1f}",
    ]


def lines(runs: Iterable[Run]) -> list[str]:
    """Return the table as lines of text."""
    rows = [COLUMNS, *map(cells, runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def source_lines(runs: Iterable[Run]) -> list[str]:
    """Return a table of the metrics sources in Markdown; `first`: the first throttle of the follower."""
    rows = [
        "| source | first throttle | throttles, MB/s at s | deferred records | longest wait, s | deferred reads | "
        "longest read, s | makespan, s | / bound |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        rates = [(at, rate) for at, rate in run.throttles if rate is not None]
        first = f"{rates[0][1] / MEGABYTE:.1f} MB/s at {rates[0][0]:.1f} s" if rates else "none"
        shown = ", ".join(f"{rate / MEGABYTE:.1f} at {at:.0f}" for at, rate in rates)
        source = run.source if run.fanout_factor is None else f"{run.source}, {run.fanout_factor:g} x fan-out"
        waited = f"{100 * run.deferred:.2f} % | {run.moving[ALL].most:.2f}"
        reads = " | "
        if run.deferred_reads is not None:
            reads = f"{100 * run.deferred_reads:.2f} % | {run.longest_read:.2f}"
        makespan = f"{run.makespan:.1f} | {run.makespan / run.bound:.2f}"
        rows.append(f"| {source} | {first} | {shown} | {waited} | {reads} | {makespan} |")
    return rows


def claims(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Compare the runs of the adaptive policy at ratio 0.9 with the goals; [] without such runs."""
    chosen = [run for run in runs if (run.policy, run.ratio, run.second) == ("adaptive", 0.9, "none")]
    if not chosen:
        return []
    wanted = (
        ("makespan / the links' bound", 1.15, [run.makespan / run.bound for run in chosen]),
        ("p99 / quiet, all steady partitions", 6.0, [run.times(ALL) for run in chosen]),
        ("p99 / quiet, partitions with a replica on the follower", 10.0, [run.times(ON_FOLLOWER) for run in chosen]),
        ("longest wait of a record, s", 1.0, [max(w.most for w in run.moving.values()) for run in chosen]),
        ("share of seconds in which the link of the follower was full", 0.1, [run.saturated for run in chosen]),
    )
    return [
        {
            "claim": name,
            "wanted": most,
            "median": round(statistics.median(reached), 3),
            "runs": [round(one, 3) for one in reached],
            "met": max(reached) <= most,
        }
        for name, most, reached in wanted
    ]


def rate_next_to_full_follower(runs: Sequence[Run]) -> dict[tuple[str, float], float]:
    """Return (policy, ratio) -> copy rate next to a second follower with a full link / with an open link.

    The first seconds do not count, since the policy is still finding the rates.
    """
    found: dict[tuple[str, float], dict[str, list[Run]]] = {}
    for run in runs:
        found.setdefault((run.policy, run.ratio), {}).setdefault(run.second, []).append(run)
    both = {key: kinds for key, kinds in found.items() if {"open", "full"} <= kinds.keys()}
    return {key: _mean_copy_rate(kinds["full"]) / _mean_copy_rate(kinds["open"]) for key, kinds in both.items()}


def _mean_copy_rate(runs: Sequence[Run]) -> float:
    """Mean copy rate from the fourth second to the second to last, bytes/s."""
    return statistics.mean(statistics.mean(run.received[_FIRST_SECONDS:-1]) for run in runs)
