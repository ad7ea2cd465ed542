"""The policy that measures replication, projects the client load to the present, and learns its forecast error.

For each link side, in bytes/s:

1. `m = max(utilization - replication, 0)`, both over exactly the metric's interval. Replication is counted from log
   sizes, independently of the throttle.
2. `c` is `m` projected to the present: it adds the change in log growth since that interval, if all logs are read.
3. `h = max(floor, min(ratio * (C - c), C - c - 1.5 * sigma * c))`. `sigma` is the recent error of the forecasts. On a
   link that is as full as usual, the margin takes at most 15 % of the ratio's share. Link sides that are the bottleneck
   of the reassignment keep half of the margin (0.75 sigma), because there it costs time.
4. `rate = max(floor, min(h, (1 + slack) * need))`. The need is the rate at which the reassignment ends as soon as its
   bottleneck allows; it includes what the bottleneck's flows need on link sides that they share with other flows. The
   previous rate stays if it has 0.5 to 2 times the slack and is within `h`, or if the link side finishes within 30 s.
   For a broker that catches up the rate is `h`, since it does not depend on any reassignment.
5. A leader also gets the rate at which its in-sync followers fetch the partitions in reassignment, because the leader's
   quota counts those fetches.

The slack is 0.5, and up to 0.75 with fresh metrics (`freshness`). Bottlenecks keep no margin if metrics are fresh.

If an input is missing, each link side falls back on its own (`interface.Basis`). Without the growth of all logs,
`c = m`. While replication in the metric's interval is not counted, the original's formula replaces 1 to 3, and a
planner that has just started raises no rate. Without the bytes left, step 4 is skipped. The replication achieved at a
rate never lowers the rate, because limits that are not modelled would then drive it down without end.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import Flow, LinkSide, LinkTraffic
from autothrottle.core.policy.headroom import headroom_rate
from autothrottle.core.policy.interface import LinkSideInput, Policy, PolicyInput, PolicyObservation, RateProposal
from autothrottle.core.policy.measurements import ClientLoad, Experience
from autothrottle.core.records import Basis

OLD_SECONDS = 300.0
"""Beyond this age of a metric, the margin grows in proportion to its age."""

_FRESH_SECONDS = 15.0
"""Up to this delay of a metric, freshness is 1."""

_STALE_SECONDS = 60.0
"""From this delay of a metric on, freshness is 0."""

_ENDS_SOON_SECONDS = 30.0
"""Link sides that finish within this time keep their rate. Lowered, they would stall until the quota window drains."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Parameters chosen by a benchmark; not for operators."""

    slack: float = 0.5
    """Rate above the need, as a share of the need, >= 0."""
    slacks: tuple[float, float] = (0.25, 1.0)
    """(lowest, highest) slack at which the previous rate stays: a changed need alone does not cause a write."""
    least: float = 0.5
    """Share of the median headroom below which a link side counts less as a bottleneck, >= 0."""
    margin: float = 1.5
    """Margin that stays free, in standard deviations of the forecast error, >= 0."""
    margin_waited_for: float = 0.75
    """The same for bottleneck link sides; elsewhere the margin costs no time."""
    least_share: float = 0.85
    """Smallest share of `ratio * free` that the margin leaves while the link is as full as usual, in [0, 1]."""

    def towards(self, other: Tuning, share: float) -> Tuning:
        """Return this tuning with slack and bottleneck margin between its own (share 0) and another one's (share 1)."""

        def mixed(this: float, that: float) -> float:
            return this + share * (that - this)

        return replace(
            self,
            slack=mixed(self.slack, other.slack),
            slacks=(mixed(self.slacks[0], other.slacks[0]), mixed(self.slacks[1], other.slacks[1])),
            margin_waited_for=mixed(self.margin_waited_for, other.margin_waited_for),
        )


FRESH = Tuning(slack=0.75, slacks=(0.375, 1.5), margin_waited_for=0.0)
"""The tuning for fresh metrics."""


def freshness(delay: float) -> float:
    """Return how far `FRESH` applies, in [0, 1], for a metric whose interval began `delay` seconds ago.

    A surge shows in full only after this delay. Until then, a rate above the need defers client bytes; afterwards, the
    bytes that this rate copied early save time. So more slack is affordable if the delay is short.

    >>> [freshness(delay) for delay in (5.0, 15.0, 37.5, 60.0, 240.0)]
    [1.0, 1.0, 0.5, 0.0, 0.0]
    """
    return min(max((_STALE_SECONDS - delay) / (_STALE_SECONDS - _FRESH_SECONDS), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class _Headroom:
    """The rate that one link side may carry."""

    current_rate: float
    """Bytes/s, at least the floor."""
    long_view: float
    """Bytes/s expected over the rest of the reassignment."""
    load: ClientLoad | None
    """None: unknown; the original's formula gave the rates."""
    tuning: Tuning
    """The tuning for the age of its metric."""
    guessed_client: int | None = None
    """The client load that the original's formula assumes, bytes/s; None: `load` is known."""


@dataclass(frozen=True, slots=True)
class AdaptivePolicy(Policy):
    """Learns from every cycle; immutable, `observe` returns a new policy."""

    name = "adaptive"
    experience: Experience = field(default_factory=Experience)
    tuning: Tuning = field(default_factory=Tuning)
    """The tuning for metrics that are a minute old or older."""

    def observe(self, observation: PolicyObservation) -> AdaptivePolicy:
        return replace(self, experience=self.experience.observe(observation))

    def propose(self, policy_input: PolicyInput) -> Mapping[LinkSide, RateProposal]:
        headrooms = {
            side: self._headroom(side_input, policy_input, is_bottleneck=False)
            for side, side_input in policy_input.sides.items()
        }
        produced = {side: self.experience.produced(side) for side in headrooms}
        works = self._works(policy_input, headrooms, produced)
        for side in bottlenecks(works):
            headrooms[side] = self._headroom(policy_input.sides[side], policy_input, is_bottleneck=True)
        needed_rates = self._needs(policy_input, works)
        in_sync, floor = policy_input.snapshot.in_sync_followers, float(policy_input.limits.floor)
        return {
            side: self._proposal(
                policy_input.sides[side],
                headroom,
                needed_rates.get(side),
                works[side].bytes_left if side in works else 0.0,
                in_sync.get(side[0], 0.0) * produced[side] if side[1] is ReplicaRole.LEADER else 0.0,
                floor,
            )
            for side, headroom in headrooms.items()
        }

    def _headroom(self, side_input: LinkSideInput, policy_input: PolicyInput, *, is_bottleneck: bool) -> _Headroom:
        history = self.experience.sides.get(side_input.side)
        load = history.load if history else None
        if load is None:
            is_counted = policy_input.snapshot.progress is not None
            rate, client = headroom_rate(side_input, policy_input.limits, policy_input.history, None, is_counted)
            guess = float(rate)
            if self.experience.is_counted_soon(side_input.side) and side_input.previous is not None:
                # Its counts will soon cover the metric's interval. Until then do not raise the rate on a guess.
                guess = min(guess, float(max(side_input.previous, policy_input.limits.floor)))
            return _Headroom(guess, guess, None, self.tuning, client)
        tuning = self.tuning.towards(FRESH, freshness(load.delay))
        ratio, floor = policy_input.limits.max_ratio[side_input.side[1]], float(policy_input.limits.floor)
        margin = tuning.margin_waited_for if is_bottleneck else tuning.margin
        spread = margin * self.experience.spread.sigma * max(load.age / OLD_SECONDS, 1.0)
        free = side_input.capacity - load.rate
        # On a link that clients nearly fill all the time, the margin would take most of the headroom and the
        # reassignment would hardly progress. On a link that is full only temporarily, the reassignment can wait.
        usual = side_input.capacity - load.long_view
        least_share = tuning.least_share * (min(free / usual, 1.0) if usual > 0 else 1.0)
        headroom = max(floor, min(ratio * free, max(free - spread * load.rate, least_share * ratio * free)))
        return _Headroom(headroom, max(headroom, ratio * (side_input.capacity - load.long_view)), load, tuning)

    @staticmethod
    def _works(
        policy_input: PolicyInput, headrooms: Mapping[LinkSide, _Headroom], produced: Mapping[LinkSide, float]
    ) -> Mapping[LinkSide, Work]:
        """Return the work of each link side, except of brokers that catch up; empty if the bytes left are unknown."""
        if policy_input.snapshot.progress is None:
            return {}
        traffic = policy_input.snapshot.progress.link_traffic
        usual = [headroom.long_view / policy_input.sides[side].capacity for side, headroom in headrooms.items()]
        median = statistics.median(usual) if usual else 0.0
        return {
            side: Work(
                bytes_left=float(traffic.get(side, LinkTraffic()).bytes_left),
                headroom=headroom.long_view,
                produced=produced[side],
                least=headroom.tuning.least * median * policy_input.sides[side].capacity,
            )
            for side, headroom in headrooms.items()
            if side not in policy_input.snapshot.catching_up
        }

    @staticmethod
    def _needs(policy_input: PolicyInput, works: Mapping[LinkSide, Work]) -> Mapping[LinkSide, float]:
        """Return link side -> the rate that it needs, bytes/s; absent: one of its flows has no counts."""
        progress = policy_input.snapshot.progress
        if progress is None:
            return {}
        unknown = policy_input.snapshot.uncounted_sides
        bytes_left = [(flow, float(count.bytes_left)) for flow, count in progress.flows.items()]
        return {side: need for side, need in needs(bytes_left, works).items() if side not in unknown}

    @staticmethod
    def _proposal(
        side_input: LinkSideInput,
        headroom: _Headroom,
        need: float | None,
        bytes_left: float,
        on_top: float,
        floor: float,
    ) -> RateProposal:
        rate = headroom.current_rate
        if need is not None:
            rate = min(rate, _need_with_slack(headroom.tuning, side_input.previous, need, bytes_left, on_top))
        rate = max(rate, floor) + on_top
        load = headroom.load
        if load is None:
            return RateProposal(round(rate), headroom.guessed_client, basis=Basis.GUESSED)
        return RateProposal(round(rate), round(load.rate), max(round(load.age), 0), load.basis)


def _need_with_slack(tuning: Tuning, previous: int | None, need: float, bytes_left: float, on_top: float) -> float:
    """Return the need plus slack, bytes/s; the previous rate if it is near enough or the link side ends soon."""
    with_slack = (1 + tuning.slack) * need
    if previous is None:
        return with_slack
    least, most = tuning.slacks
    unchanged = previous - on_top
    if (1 + least) * need <= unchanged <= (1 + most) * need:
        return unchanged
    ends_soon = bytes_left <= unchanged * _ENDS_SOON_SECONDS
    return max(with_slack, unchanged) if ends_soon else with_slack


_LEAST_SHARE = 0.05
"""Smallest share of its headroom that a link side can use for the bytes left, however fast clients produce."""

_NARROW = 0.8
"""Share of the longest wait from which a link side counts as a bottleneck."""


@dataclass(frozen=True, slots=True)
class Work:
    """The bytes that one link side still has to copy, and its headroom."""

    bytes_left: float
    """Bytes to copy, >= 0."""
    headroom: float
    """Headroom in the long run, bytes/s, >= 0."""
    produced: float = 0.0
    """Produce rate to the same partitions, which must be copied, too, bytes/s."""
    least: float = 0.0
    """Headroom below which this link side counts less as a bottleneck, bytes/s: see `needs`."""

    @property
    def seconds(self) -> float:
        """How long the link side alone takes; more headroom never makes it longer.

        >>> Work(bytes_left=900.0, headroom=100.0, produced=10.0).seconds
        10.0
        """
        return self.bytes_left / max(self.headroom - self.produced, _LEAST_SHARE * self.headroom, 1.0)

    @property
    def waited_for(self) -> float:
        """How long other link sides wait for it, seconds; close to 0 if clients leave it hardly any headroom."""
        return self.seconds * (min(self.headroom / self.least, 1.0) ** 2 if self.least > 0 else 1.0)


def bottlenecks(sides: Mapping[LinkSide, Work]) -> frozenset[LinkSide]:
    """Return the bottlenecks: the link sides whose rate determines when the whole reassignment ends."""
    whole = _longest_wait(sides)
    return frozenset(side for side, work in sides.items() if whole and work.waited_for >= _NARROW * whole)


def needs(flows: Collection[tuple[Flow, float]], sides: Mapping[LinkSide, Work]) -> dict[LinkSide, float]:
    """Return link side -> the rate that it needs, bytes/s, so that only bottlenecks determine the end.

    Every flow may take as long as the whole reassignment: link sides that are not bottlenecks leave the rest to
    clients.
    A link side with hardly any headroom must not slow the others down: below `least` they wait for it less and less.
    The peers of such a slow link side need only the rate that it can take. Small flows must not crowd out the flows of
    a bottleneck at their other end: see `_beside`.

    Args:
        flows: each flow with the bytes that it has left.
        sides: the participating link sides; a flow with only one end among them counts at that end.
    """
    whole = _longest_wait(sides)
    slow = {side: work.seconds for side, work in sides.items() if work.seconds > whole}
    rates = {side: work.bytes_left / whole if whole else 0.0 for side, work in sides.items()}
    for flow, bytes_left in flows if slow and whole else ():
        seconds = max(slow.get(side, 0.0) for side in flow.sides)
        for side in flow.sides if seconds else ():
            if side in rates and side not in slow:
                rates[side] -= bytes_left / whole - bytes_left / seconds
    beside = _beside(flows, sides, whole) if whole else {}
    return {
        side: max(rate, min(beside.get(side, 0.0), sides[side].headroom)) + sides[side].produced
        for side, rate in rates.items()
    }


def _longest_wait(sides: Mapping[LinkSide, Work]) -> float:
    return max((work.waited_for for work in sides.values()), default=0.0)


def _beside(
    flows: Collection[tuple[Flow, float]], sides: Mapping[LinkSide, Work], whole: float
) -> Mapping[LinkSide, float]:
    """Return link side -> the rate that it needs for the flows of the bottlenecks, bytes/s.

    In Kafka, flows share a link side evenly, regardless of their bytes left. A bottleneck's flow gets no more than the
    small flows beside it. So the link side needs the rate of that flow times the number of flows.
    """
    narrow = bottlenecks(sides)
    narrow_leaders = {broker_id for broker_id, role in narrow if role is ReplicaRole.LEADER}
    narrow_followers = {broker_id for broker_id, role in narrow if role is ReplicaRole.FOLLOWER}
    into: dict[int, float] = {}
    out: dict[int, float] = {}
    for (leader, follower), bytes_left in flows:
        if leader in narrow_leaders and bytes_left > into.get(follower, 0.0):
            into[follower] = bytes_left
        if follower in narrow_followers and bytes_left > out.get(leader, 0.0):
            out[leader] = bytes_left
    arriving = Counter(flow.follower for flow, bytes_left in flows if bytes_left > 0 and flow.follower in into)
    leaving = Counter(flow.leader for flow, bytes_left in flows if bytes_left > 0 and flow.leader in out)
    follower_rates = {(b, ReplicaRole.FOLLOWER): arriving[b] * bytes_left / whole for b, bytes_left in into.items()}
    return follower_rates | {(b, ReplicaRole.LEADER): leaving[b] * bytes_left / whole for b, bytes_left in out.items()}
