"""What has been counted of the flows: what landed, what was produced meanwhile and what is left, by port.

The type to know is `FlowCounts`. Everything in it is in bytes and seconds (of the Unix epoch).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.flows import Flow, FlowProgress, Progress
from autothrottle.core.loads import Port
from autothrottle.core.policy.series import KEPT_SECONDS, Series


@dataclass(frozen=True, slots=True)
class FlowCounts:
    """What has been counted of the flows; a value."""

    flows: Mapping[Flow, FlowProgress] = field(default_factory=dict)
    landed: Mapping[Port, Series] = field(default_factory=dict)
    """Replication through each port that was seen in a flow."""
    grown: Mapping[Port, Series] = field(default_factory=dict)
    """What was produced to the partitions of its flows."""
    left: Mapping[Port, int] = field(default_factory=dict)
    """What its flows that are known have still to copy, bytes."""
    at: float = 0.0
    """When log sizes were read last; 0: never."""

    def plus(self, progress: Progress | None, unknown: Collection[Port] = ()) -> FlowCounts:
        """Return what is counted after one more reading of log sizes; one that is not newer changes nothing.

        Args:
            progress: the reading.
            unknown: ports with a flow that moves and is not in it: what landed there begins anew when it is counted
                again, since nobody can tell when the bytes of the meantime came.
        """
        if progress is None or progress.at is None or progress.at.timestamp() <= self.at:
            return self
        gains, known = _gains(self.flows, progress.flows), len(self.flows)
        old = {} if gains.matched == known else {f: c for f, c in self.flows.items() if f not in progress.flows}
        at = progress.at.timestamp()
        kept = {f: c for f, c in old.items() if c.at.timestamp() > at - KEPT_SECONDS}
        return FlowCounts(
            flows={**kept, **progress.flows} if kept else progress.flows,
            landed=_extended(_without(self.landed, unknown), _without(gains.landed, unknown), gains.times, at),
            grown=_extended(self.grown, gains.grown, gains.times, at, unknown),
            left=gains.left,
            at=at,
        )


@dataclass(slots=True)
class _Gains:
    """What came between two readings, by port."""

    landed: dict[Port, int]
    grown: dict[Port, int]
    left: dict[Port, int]
    times: dict[Port, float]
    matched: int = 0
    """How many of the flows known before were read again."""


def _gains(old: Mapping[Flow, FlowProgress], new: Mapping[Flow, FlowProgress]) -> _Gains:
    # By role and broker id apart: with 100,000 flows, to hash pairs would be half of the work.
    landed: dict[ReplicaRole, dict[int, int]] = {role: {} for role in ReplicaRole}
    grown: dict[ReplicaRole, dict[int, int]] = {role: {} for role in ReplicaRole}
    left: dict[ReplicaRole, dict[int, int]] = {role: {} for role in ReplicaRole}
    times: dict[int, float] = {}
    latest: dict[int, float] = {}
    matched = 0
    out, into = landed[ReplicaRole.LEADER], landed[ReplicaRole.FOLLOWER]
    left_out, left_into = left[ReplicaRole.LEADER], left[ReplicaRole.FOLLOWER]
    grown_out, grown_into = grown[ReplicaRole.LEADER], grown[ReplicaRole.FOLLOWER]
    for flow, count in new.items():
        before, came, produced = old.get(flow), 0, 0
        if before is not None:
            matched += 1
            if before.since == count.since:
                came, produced = count.bytes_landed - before.bytes_landed, count.bytes_grown - before.bytes_grown
        leader, follower = flow
        left_out[leader] = left_out.get(leader, 0) + count.bytes_left
        left_into[follower] = left_into.get(follower, 0) + count.bytes_left
        out[leader] = out.get(leader, 0) + came
        into[follower] = into.get(follower, 0) + came
        grown_out[leader] = grown_out.get(leader, 0) + produced
        grown_into[follower] = grown_into.get(follower, 0) + produced
        if follower not in times:  # one broker answers for all of its logs at once
            times[follower] = count.at.timestamp()
        if latest.get(leader, 0.0) < times[follower]:
            latest[leader] = times[follower]
    at = {(b, ReplicaRole.LEADER): t for b, t in latest.items()} | {
        (b, ReplicaRole.FOLLOWER): t for b, t in times.items()
    }
    return _Gains(_by_port(landed), _by_port(grown), _by_port(left), at, matched)


def _by_port(found: Mapping[ReplicaRole, Mapping[int, int]]) -> dict[Port, int]:
    return {(broker_id, role): amount for role, brokers in found.items() for broker_id, amount in brokers.items()}


_Value = TypeVar("_Value")


def _without(found: Mapping[Port, _Value], unknown: Collection[Port]) -> Mapping[Port, _Value]:
    return {port: value for port, value in found.items() if port not in unknown} if unknown else found


def _extended(
    series: Mapping[Port, Series],
    gains: Mapping[Port, int],
    times: Mapping[Port, float],
    at: float,
    unknown: Collection[Port] = (),
) -> dict[Port, Series]:
    """Every port with one more point; nothing comes through one that is in no flow any more."""
    found = {port: old if port in unknown else old.plus(at, 0.0) for port, old in series.items() if port not in gains}
    found = {port: one for port, one in found.items() if one.counts[0] != one.counts[-1]}
    for port, gained in gains.items():
        found[port] = series.get(port, Series()).plus(times[port], gained)
    return found
