"""Counts of the flows by link side: bytes copied and bytes produced.

The type to know is `FlowCounts`. All values are in bytes and seconds (of the Unix epoch).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Flow, FlowProgress, LinkSide, Progress
from autothrottle.core.policy.series import KEPT_SECONDS, CumulativeSeries


@dataclass(frozen=True, slots=True)
class FlowCounts:
    """The counts of all flows; immutable, `plus` returns new counts."""

    flows: Mapping[Flow, FlowProgress] = field(default_factory=dict)
    copied: Mapping[LinkSide, CumulativeSeries] = field(default_factory=dict)
    """Link side -> bytes copied, for each link side that any flow has used."""
    produced: Mapping[LinkSide, CumulativeSeries] = field(default_factory=dict)
    """Link side -> bytes produced to the partitions of its flows."""
    at: float = 0.0
    """When log sizes were last read; 0: never."""

    def plus(self, progress: Progress | None, unknown: Collection[LinkSide] = ()) -> FlowCounts:
        """Return the counts after one more sample of log sizes; a sample that is not newer changes nothing.

        Args:
            progress: the sample.
            unknown: link sides with an active flow that is not in the sample. Their copied series restart when they
                are counted again, because it is unknown when the bytes in between were copied.
        """
        if progress is None or progress.at is None or progress.at.timestamp() <= self.at:
            return self
        gains, known = _gains(self.flows, progress.flows), len(self.flows)
        old = {} if gains.matched == known else {f: c for f, c in self.flows.items() if f not in progress.flows}
        at = progress.at.timestamp()
        kept = {f: c for f, c in old.items() if c.at.timestamp() > at - KEPT_SECONDS}
        return FlowCounts(
            flows={**kept, **progress.flows} if kept else progress.flows,
            copied=_extended(_without(self.copied, unknown), _without(gains.copied, unknown), gains.times, at),
            produced=_extended(self.produced, gains.produced, gains.times, at, unknown),
            at=at,
        )


@dataclass(slots=True)
class _Gains:
    """The bytes gained between two samples, by link side."""

    copied: dict[LinkSide, int]
    produced: dict[LinkSide, int]
    times: dict[LinkSide, float]
    matched: int = 0
    """Number of previously known flows that are in the new sample."""


def _gains(old: Mapping[Flow, FlowProgress], new: Mapping[Flow, FlowProgress]) -> _Gains:
    # Nested by role, then broker id: with 100,000 flows, hashing pairs would be half of the work.
    copied: dict[ReplicaRole, dict[int, int]] = {role: {} for role in ReplicaRole}
    produced: dict[ReplicaRole, dict[int, int]] = {role: {} for role in ReplicaRole}
    times: dict[int, float] = {}
    latest: dict[int, float] = {}
    matched = 0
    out, into = copied[ReplicaRole.LEADER], copied[ReplicaRole.FOLLOWER]
    produced_out, produced_into = produced[ReplicaRole.LEADER], produced[ReplicaRole.FOLLOWER]
    for flow, count in new.items():
        before, new_copied, new_produced = old.get(flow), 0, 0
        if before is not None:
            matched += 1
            if before.since == count.since:
                new_copied = count.bytes_copied - before.bytes_copied
                new_produced = count.bytes_produced - before.bytes_produced
        leader, follower = flow
        out[leader] = out.get(leader, 0) + new_copied
        into[follower] = into.get(follower, 0) + new_copied
        produced_out[leader] = produced_out.get(leader, 0) + new_produced
        produced_into[follower] = produced_into.get(follower, 0) + new_produced
        if follower not in times:  # a broker reports all of its logs at once
            times[follower] = count.at.timestamp()
        if latest.get(leader, 0.0) < times[follower]:
            latest[leader] = times[follower]
    at = {(b, ReplicaRole.LEADER): t for b, t in latest.items()} | {
        (b, ReplicaRole.FOLLOWER): t for b, t in times.items()
    }
    return _Gains(_by_link_side(copied), _by_link_side(produced), at, matched)


def _by_link_side(found: Mapping[ReplicaRole, Mapping[int, int]]) -> dict[LinkSide, int]:
    return {(broker_id, role): amount for role, brokers in found.items() for broker_id, amount in brokers.items()}


_Value = TypeVar("_Value")


def _without(found: Mapping[LinkSide, _Value], unknown: Collection[LinkSide]) -> Mapping[LinkSide, _Value]:
    return {side: value for side, value in found.items() if side not in unknown} if unknown else found


def _extended(
    series: Mapping[LinkSide, CumulativeSeries],
    gains: Mapping[LinkSide, int],
    times: Mapping[LinkSide, float],
    at: float,
    unknown: Collection[LinkSide] = (),
) -> dict[LinkSide, CumulativeSeries]:
    """Return each series with one more point; a link side that no longer has a flow gains nothing."""
    found = {side: old if side in unknown else old.plus(at, 0.0) for side, old in series.items() if side not in gains}
    found = {side: one for side, one in found.items() if one.counts[0] != one.counts[-1]}
    for side, gained in gains.items():
        found[side] = series.get(side, CumulativeSeries()).plus(times[side], gained)
    return found
