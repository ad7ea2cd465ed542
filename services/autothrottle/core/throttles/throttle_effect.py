"""Throttles that Kafka describes but a broker does not apply, judged by their effect: replication above the throttle.

After a restart, a broker may report a config that is not active (KAFKA-20890). Kafka's own bursts are no reason for a
finding. The quota limits the mean over its window, and one round of fetch responses may exceed it. Only replicas in the
replica lists count, and in-sync replicas are never held back. The type to know is `ThrottleEffect`.

Source: KIP-73.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from autothrottle.core.cluster.configs import ConfigResource, ReplicaRole, ResourceType
from autothrottle.core.cluster.fetch_settings import KAFKA_DEFAULTS, ClusterSettings
from autothrottle.core.cluster.flows import Intervals, LinkSide, LinkTraffic, Progress
from autothrottle.core.cluster.snapshot import Snapshot
from autothrottle.core.records import Outcome
from autothrottle.core.throttles.changes import Change
from autothrottle.core.throttles.plan import Plan
from autothrottle.core.traffic.loads import Loads, Utilization
from autothrottle.core.traffic.replication import Replication
from autothrottle.core.traffic.throttle_history import THROTTLE_WINDOW, ThrottleHistory
from autothrottle.core.units import MEGABYTE, BytesPerSecond

LEAST_EXCESS = 1.25
"""Replication above this multiple of the throttle is more than the quota's inaccuracy."""

_LENGTHS = (1, 2)
"""Lengths of the compared windows, in quota windows: with few log sizes, a short window is too uncertain."""

_MOST_FLOWS = 10_000
"""With more flows than this, only the brokers' own quota rates are compared: summing the counts takes too long."""


@dataclass(frozen=True, slots=True)
class EffectObservation:
    """The throttles of a cycle, and what replicates under them."""

    at: datetime
    """UTC."""
    sides: Collection[LinkSide]
    """The link sides to judge, see `throttled_link_sides`."""
    history: ThrottleHistory
    progress: Progress
    settings: ClusterSettings
    quota_rates: Mapping[LinkSide, Utilization] = field(default_factory=dict)
    """Link side -> its throttled replication as the broker's quota measures it; absent: not reported."""
    in_sync: Mapping[LinkSide, float] = field(default_factory=dict)
    """Link side -> bytes/s in its quota rate that in-sync replicas fetch."""

    def window(self, side: LinkSide) -> timedelta:
        """Return the quota window: two in succession must be above the throttle, which was in place for one before."""
        own = self.settings.brokers.get(side[0], KAFKA_DEFAULTS)
        return max(THROTTLE_WINDOW, timedelta(seconds=own.window_seconds))

    def highest_rates(self, intervals: Intervals) -> dict[LinkSide, BytesPerSecond]:
        """Return link side -> the highest rate that a throttle in force allows; absent: not throttled all the time."""
        quota_intervals = {side: (start - self.window(side), end) for side, (start, end) in intervals.items()}
        throttles = self.history.highest(quota_intervals)
        return {side: self._with_burst(side, throttle) for side, throttle in throttles.items()}

    def _with_burst(self, side: LinkSide, throttle: BytesPerSecond) -> BytesPerSecond:
        own = self.settings.brokers.get(side[0], KAFKA_DEFAULTS)
        fetches = [own] if side[1] is ReplicaRole.FOLLOWER else self.settings.brokers.values() or [own]
        traffic = self.progress.link_traffic.get(side, LinkTraffic())
        burst = sum(count.bytes_left > 0 for count in traffic.counts) * max(s.response_max_bytes for s in fetches)
        return round(LEAST_EXCESS * throttle + burst / own.window_seconds)


def throttled_link_sides(
    snapshot: Snapshot, plan: Plan, changes: Iterable[Change], refused: Iterable[Outcome]
) -> frozenset[LinkSide]:
    """Return the link sides in reassignment that have a throttle, and whose topics need no change of a replica list."""
    resources = [change.resource for change in changes if change.edits] + [outcome.resource for outcome in refused]
    changing = {resource.name for resource in resources if resource.type is ResourceType.TOPIC}
    throttled = {topic for topic, lists in plan.replicas.items() if not lists.free} - changing
    unthrottled = [topic.copying for topic in snapshot.reassignments if topic.topic not in throttled]
    leaders = {(b, ReplicaRole.LEADER) for b in frozenset[int]().union(*(c.leaders for c in unthrottled))}
    followers = {(b, ReplicaRole.FOLLOWER) for b in frozenset[int]().union(*(c.followers for c in unthrottled))}
    rates = {side for side, rate in snapshot.rates.items() if rate > 0}
    return snapshot.link_sides & rates - leaders - followers


def in_sync_rates(
    snapshot: Snapshot, sides: Collection[LinkSide], growth: Mapping[LinkSide, float], loads: Loads
) -> dict[LinkSide, float]:
    """Return link side -> bytes/s that in-sync replicas of its partitions fetch, at most; infinite: unknown.

    Args:
        snapshot: the snapshot of the cycle.
        sides: the link sides.
        growth: link side -> produce rate of its flows, bytes/s.
        loads: their inbound traffic is at least the produce rate, if log sizes are not read.
    """
    followers = snapshot.in_sync_followers if sides else {}
    rates: dict[LinkSide, float] = {}
    for side in sides:
        broker_id, role = side
        produced = growth.get(side, 0.0)
        if snapshot.progress is None and role is ReplicaRole.LEADER:
            produced = loads.brokers[broker_id].inbound.rate if broker_id in loads.brokers else math.inf
        in_sync = followers.get(broker_id, 0.0) if role is ReplicaRole.LEADER else 1
        rates[side] = produced * in_sync if in_sync else 0.0
    return rates


@dataclass(frozen=True, slots=True)
class ThrottleEffect:
    """What a term remembers of the effect of its throttles; immutable, `observe` returns the next one."""

    since: Mapping[LinkSide, datetime] = field(default_factory=dict)
    """Link side -> first of the successive cycles that judged it."""
    above: Mapping[LinkSide, datetime] = field(default_factory=dict)
    """Link side -> end of the first of the successive quota rates that are above the throttle."""
    ineffective: Mapping[LinkSide, str] = field(default_factory=dict)
    """Link side with a throttle that is not in force -> the finding, which keeps its first text."""
    compared: datetime | None = None
    """When the bytes copied were last compared: for 10,000 flows it takes 0.4 s, so it is not done in each cycle."""

    def observe(self, observation: EffectObservation) -> ThrottleEffect:
        """Return the state after a cycle."""
        since = {side: self.since.get(side, observation.at) for side in observation.sides}
        above: dict[LinkSide, datetime] = {}
        is_due = self.compared is None or observation.at - self.compared >= THROTTLE_WINDOW
        ineffective = {} if is_due else {side: text for side, text in self.ineffective.items() if side in since}
        ordered = sorted(since, key=lambda side: (side[0], side[1].value))
        rates = {side: self._quota_excess(side, since[side], observation, above) for side in ordered}
        if is_due:
            rates |= _copied_excesses({side: since[side] for side in ordered if rates[side] is None}, observation)
        excesses = {side: rate for side, rate in rates.items() if rate is not None}
        throttles = observation.history.highest({side: (observation.at, observation.at) for side in excesses})
        for side, rate in excesses.items():
            ineffective[side] = self.ineffective.get(side) or _finding(side, rate, throttles.get(side, 0))
        return ThrottleEffect(since, above, ineffective, observation.at if is_due else self.compared)

    def _quota_excess(
        self, side: LinkSide, since: datetime, observation: EffectObservation, above: dict[LinkSide, datetime]
    ) -> BytesPerSecond | None:
        """Return the quota's own rate if it is above the throttle for two windows; note it in `above` if for one."""
        measured = observation.quota_rates.get(side)
        window = observation.window(side)
        if measured is None or measured.start - window < since:
            return None
        highest = observation.highest_rates({side: (measured.start, measured.end)}).get(side)
        if highest is None or measured.rate - observation.in_sync.get(side, 0.0) <= highest:
            return None
        above[side] = self.above.get(side, measured.end)
        return measured.rate if measured.end - above[side] >= window else None


def _copied_excesses(
    since: Mapping[LinkSide, datetime], observation: EffectObservation
) -> dict[LinkSide, BytesPerSecond]:
    """Return link side -> the rate at which bytes were copied, if it is above the throttle for two windows."""
    end, excesses = observation.progress.at, dict[LinkSide, BytesPerSecond]()
    if end is None or len(observation.progress.flows) > _MOST_FLOWS:
        return {}
    windows = {side: observation.window(side) for side in since}
    for length in _LENGTHS:
        spans = {
            side: length * window
            for side, window in windows.items()
            if side not in excesses and end - 2 * length * window - window >= since[side]
        }
        newest = _excesses({side: (end - span, end) for side, span in spans.items()}, observation)
        if not newest:
            continue
        earlier = _excesses({side: (end - 2 * spans[side], end - spans[side]) for side in newest}, observation)
        excesses |= {side: min(newest[side], rate) for side, rate in earlier.items()}
    return excesses


def _excesses(intervals: Intervals, observation: EffectObservation) -> dict[LinkSide, BytesPerSecond]:
    """Return link side -> the rate at which bytes were copied, if it is certainly above the throttle."""
    means = Replication(observation.progress).means(intervals)
    highest = observation.highest_rates({side: intervals[side] for side in means})
    return {side: mean.rate for side, mean in means.items() if side in highest and mean.rate - mean.off > highest[side]}


def _finding(side: LinkSide, rate: BytesPerSecond, throttle: BytesPerSecond) -> str:
    broker_id, role = side
    return (
        f"broker {broker_id} [{role.value}]: its throttle is not in force. It replicates {_shown(rate)}, "
        f"and Kafka reports a throttle of {_shown(throttle)} ({ConfigResource.broker(broker_id)}, "
        f"{role.rate_key}). autothrottle continues to set throttles. Fix: set another rate with throttlectl set RATE "
        f"--broker {broker_id}, so that the broker reads its config again. If that has no effect, restart the broker"
    )


def _shown(rate: BytesPerSecond) -> str:
    return f"{rate / MEGABYTE:.1f} MB/s" if rate >= MEGABYTE / 10 else f"{rate} bytes/s"
