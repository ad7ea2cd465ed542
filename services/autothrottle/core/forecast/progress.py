"""The progress of reassignments: bytes copied, bytes left and the ETA.

It is computed from log sizes alone: the bytes left are the size of the leader's log minus that of the follower's. This
is wrong if the sizes differ for another reason. With tiered storage only a part of a log is copied (KIP-1023), so the
ETA is too late. Each replica cleans a compacted log at its own time. Retention may delete at the leader first; bytes
left are never below 0. The type to know is `ProgressHistory`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import CopiedMark, Flow, FlowProgress, Progress, TopicProgress
from autothrottle.core.cluster.snapshot import NO_LEADER, REMEMBERED, SET_BACK, LogSizes, Snapshot, TopicReassignment
from autothrottle.core.forecast.eta import Forecast, forecast_all, last_of, sizes_needed, static_end, with_topics
from autothrottle.core.operators.sources import NOTHING_LAGS, Lagging
from autothrottle.core.records import Decision, Throttle
from autothrottle.core.texts import excerpt
from autothrottle.core.traffic.replication import LONGEST_STRETCH
from autothrottle.core.units import MEGABYTE

WINDOW = timedelta(minutes=3)
"""Time over which the copy rate is averaged: long enough for the bursts of a throttle, short enough for its changes."""

SAMPLES_APART = timedelta(seconds=10)
"""Least time between the samples for an ETA; closer ones add no information."""

_SPACINGS = ((timedelta(seconds=30), timedelta(0)), (timedelta(minutes=2), timedelta(seconds=10)))
"""(age, spacing): marks up to this age are kept this far apart; older ones `_SPARSE`."""

_SPARSE = timedelta(seconds=30)

_MOST_MARKS = 60
"""Largest number of marks of one flow before they are thinned, which leaves about 40."""

_FEWEST_MARKS = 16
"""The same with many flows; then the marks are half a minute apart at any age."""

_MARKS_OF_ALL = 100_000
"""Largest number of marks of all flows together, because every snapshot contains them."""

KEPT = timedelta(minutes=10)
"""How long the last count of a finished flow is kept; a metric that covers its end arrives minutes later."""


@dataclass(frozen=True, slots=True)
class Remainder:
    """The bytes left of the reassignments in one snapshot."""

    bytes_left: int
    """Sum over the known flows."""
    unknown_flows: int
    """Number of flows that `bytes_left` does not include."""
    eta: datetime | None
    """When the last byte is copied, UTC; None: unknown."""
    at: datetime
    """When the log sizes were read, UTC."""
    eta_low: datetime | None = None
    """Earliest end that the rates of the last minutes allow, UTC; None: unknown."""
    eta_high: datetime | None = None
    """Latest end that the rates of the last minutes allow, UTC; None: unknown."""
    eta_is_static: bool = False
    """Whether `eta` is not measured yet, but computed as bytes left divided by the current throttles."""
    down: tuple[int, ...] = ()
    """Destinations that are down. `bytes_left` contains their last known bytes, and the ETA is unknown."""


def remainder(snapshot: Snapshot) -> Remainder | None:
    """Return the bytes left of the reassignments in a snapshot; None: no reassignment, or nothing is known.

    The snapshot may be newer than its progress: flows that have since ended do not count, new ones are unknown. Data
    that a stopped broker shall catch up on does not count.
    """
    progress = snapshot.progress
    if progress is None or progress.at is None or not snapshot.reassignments:
        return None
    moving = snapshot.running_flows
    if not moving and snapshot.flows:
        return None
    counted = [progress.flows[flow].bytes_left for flow in moving if flow in progress.flows]
    unknown = len(moving) - len(counted) + _offline(snapshot.reassignments)
    if unknown and not counted:
        return None
    if unknown:
        return Remainder(sum(counted), unknown, None, progress.at)
    end = _end(snapshot.topics, progress)
    return Remainder(sum(counted), 0, end.eta, progress.at, end.low, end.high)


def _end(topics: Collection[str], progress: Progress) -> Forecast:
    """Return the end of these topics; the progress may contain others, which catch up or have finished."""
    if progress.topics.keys() <= set(topics):
        return Forecast(progress.eta, progress.eta_low, progress.eta_high)
    progress_of_topics = (progress.topics.get(topic, TopicProgress(0, 0)) for topic in topics)
    return last_of(Forecast(topic.eta, topic.eta_low, topic.eta_high) for topic in progress_of_topics)


def with_static_eta(remainder: Remainder | None, snapshot: Snapshot, throttles: Iterable[Throttle]) -> Remainder | None:
    """Return the remainder with an ETA from the throttles in Kafka, if a new reassignment has no measured ETA yet."""
    if remainder is None or remainder.eta is not None or remainder.unknown_flows or remainder.down:
        return remainder
    if snapshot.progress is None:
        return remainder
    sides = {(throttle.broker_id, throttle.role): throttle for throttle in throttles}
    end = static_end(snapshot.progress, snapshot.running_flows, sides)
    return remainder if end is None else replace(remainder, eta=end, eta_is_static=True)


def _offline(reassignments: Iterable[TopicReassignment]) -> int:
    """Return the number of offline partitions that are still to be copied."""
    return sum(
        leader == NO_LEADER and bool(pending)
        for reassignment in reassignments
        if NO_LEADER in reassignment.leaders
        for _, leader, _, pending in reassignment.rows()
    )


class _Copy(NamedTuple):
    """The state of one adding replica at its last sample."""

    leader: int
    size: int
    """Size of its log, bytes."""
    leader_size: int | None
    """Size of the leader's log, bytes; None: unknown."""
    pending: bool
    """Whether it was out of sync; an in-sync replica may leave the ISR again."""


_Replica = tuple[str, int, int]
"""(topic, partition number, broker id of the follower)."""


@dataclass(frozen=True, slots=True)
class ProgressHistory:
    """The samples of the last minutes as counts; immutable, `observe` returns a new history."""

    samples: tuple[Progress, ...] = ()
    """The samples of the last `WINDOW`, ascending; all but the newest are `SAMPLES_APART`."""
    counts: Mapping[Flow, FlowProgress] = field(default_factory=dict)
    """Flow -> its counts; includes flows that are unknown at the moment, whose `bytes_left` is outdated."""
    copied: Mapping[str, int] = field(default_factory=dict)
    """Topic in reassignment -> bytes copied."""
    copies: Mapping[_Replica, _Copy] = field(default_factory=dict)
    """Adding replica -> its state at the last sample."""

    @property
    def progress(self) -> Progress:
        """The newest sample."""
        return self.samples[-1] if self.samples else Progress()

    def sizes_needed(self, reassignments: Iterable[TopicReassignment]) -> Mapping[int, Mapping[str, frozenset[int]]]:
        """Return broker id -> topic -> partitions whose log sizes the next sample needs.

        These are the leader and follower of every replica still to copy, and the followers that were pending at the
        last sample: the last bytes before a replica joined the ISR count.
        """
        return sizes_needed(reassignments, (replica for replica, copy in self.copies.items() if copy.pending))

    def observe(
        self,
        reassignments: Sequence[TopicReassignment],
        sizes: LogSizes,
        now: datetime,
        unchanged_until: datetime | None = None,
        lagging: Lagging = NOTHING_LAGS,
        were_down: Collection[int] = (),
    ) -> ProgressHistory:
        """Return the history with one more sample.

        Args:
            reassignments: the reassignments at the time of the sample.
            sizes: sizes of the `sizes_needed` logs; brokers that did not answer make only their own flows unknown.
            now: when the sample was complete, UTC; if it is before the last sample, because the clock was set back,
                counting restarts.
            unchanged_until: last time at which the flows that are new in this sample were known not to exist yet, UTC;
                None: unknown, they may have run for hours.
            lagging: the pending replicas that are not part of a reassignment. Bytes that they hold when first seen
                were not copied now, but at an unknown earlier time.
            were_down: brokers that were down until just now, so nothing was copied there recently.
        """
        if self.progress.at is not None and now < self.progress.at - SET_BACK:
            return ProgressHistory().observe(reassignments, sizes, now, None, lagging, were_down)
        observation = _Observation(self, sizes, unchanged_until, lagging, were_down)
        for reassignment in reassignments:
            for partition, leader, _, pending in reassignment.rows():
                for follower in pending:
                    observation.take(reassignment.topic, partition, leader, follower)
        topics = {reassignment.topic for reassignment in reassignments}
        observation.take_last(topics)
        counts, copied = observation.counts(now), observation.copied(topics)
        progress = Progress(
            flows={flow: count for flow, count in counts.items() if flow not in observation.unknown},
            topics=observation.topics(copied),
            at=now,
            last_bytes_left=_last_bytes_left(counts, observation.unknown),
        )
        samples = (*_apart(r for r in self.samples if r.at is not None and r.at > now - WINDOW), progress)
        end = Forecast() if observation.unknown else forecast_all(samples)
        complete = replace(progress, topics=with_topics(samples, end), eta=end.eta, eta_low=end.low, eta_high=end.high)
        return ProgressHistory((*samples[:-1], complete), counts, copied, observation.copies)


def _last_bytes_left(counts: Mapping[Flow, FlowProgress], unknown: Iterable[Flow]) -> dict[int, int]:
    """Return follower -> bytes left of its unknown flows, as last known."""
    last: dict[int, int] = {}
    for flow in unknown:
        if count := counts.get(flow):
            last[flow.follower] = last.get(flow.follower, 0) + count.bytes_left
    return last


def _apart(samples: Iterable[Progress]) -> list[Progress]:
    """Return the samples, without the last one if it is too close to the one before."""
    samples_apart = list(samples)
    last = [sample.at for sample in samples_apart[-2:] if sample.at is not None]
    return samples_apart[:-1] if len(last) == 2 and last[1] - last[0] < SAMPLES_APART else samples_apart


def _marks(old: FlowProgress, flows: int) -> tuple[CopiedMark, ...]:
    """Return a flow's marks with its previous count added; `flows` is the number of all flows."""
    marks = (*old.recent, CopiedMark(old.at, old.bytes_copied))
    most = min(_MOST_MARKS, max(_FEWEST_MARKS, _MARKS_OF_ALL // flows))
    return marks if len(marks) <= most else _thinned(marks, _SPACINGS if most == _MOST_MARKS else ())


def _thinned(
    marks: tuple[CopiedMark, ...], spacings: tuple[tuple[timedelta, timedelta], ...]
) -> tuple[CopiedMark, ...]:
    """Return the marks, thinned with age. The first two stay, because without a throttle most is copied in a second."""
    newest = marks[-1].at
    thinned = [mark for mark in marks[:2] if mark.at > newest - REMEMBERED]
    for mark in marks[2:]:
        age = newest - mark.at
        spacing = next((spacing for oldest, spacing in spacings if age <= oldest), _SPARSE)
        if age < REMEMBERED and (not thinned or mark.at - thinned[-1].at >= spacing):
            thinned.append(mark)
    return tuple(thinned)


@dataclass(slots=True)
class _Tally:
    """One topic's part of one flow in one sample."""

    flow: Flow
    moving: bool = False
    """Whether it still has replicas to copy."""
    lagging: bool = False
    """Whether it has replicas outside any reassignment, which may have been copied for hours."""
    initial_bytes: int = 0
    """Bytes that lagging replicas held when first seen; they were copied at an unknown time."""
    copied: int = 0
    produced: int = 0
    bytes_left: int = 0


class _Observation:
    """One sample while it is being evaluated; mutable and with plain numbers, because it has 100,000 partitions."""

    def __init__(
        self,
        history: ProgressHistory,
        sizes: LogSizes,
        unchanged_until: datetime | None,
        lagging: Lagging,
        were_down: Collection[int],
    ) -> None:
        self._unchanged_until, self._lagging, self._were_down = unchanged_until, lagging, were_down
        self._old, self._logs = history, {b: logs.sizes for b, logs in sizes.brokers.items()}
        self._times = {b: logs.at for b, logs in sizes.brokers.items()}
        self._tallies: dict[tuple[str, int, int], _Tally] = {}
        self.unknown: set[Flow] = set()
        self.copies: dict[_Replica, _Copy] = {}

    def take(self, topic: str, partition: int, leader: int, follower: int) -> None:
        """Count one replica that is still to be copied."""
        key, tally = (topic, partition, follower), self._tally(topic, leader, follower)
        tally.moving = True
        old, logs = self._old.copies.get(key), self._logs.get(follower)
        if logs is None or leader == NO_LEADER:
            self.unknown.add(tally.flow)
            if old is not None:
                self.copies[key] = old
            return
        row = (topic, partition)
        size, leader_logs = logs.get(row, 0), self._logs.get(leader)
        leader_size = leader_logs.get(row) if leader_logs else None
        same = old is not None and old.pending and old.leader == leader
        last_size = old.leader_size if same and old is not None else None
        self.copies[key] = _Copy(leader, size, last_size if leader_size is None else leader_size, True)
        # The leader at the last sample sent the bytes copied since then.
        credited = tally if same or old is None or not old.pending else self._tally(topic, old.leader, follower)
        was = old.size if old else 0
        if row in self._lagging.get(follower, ()):
            tally.lagging = True
            if old is None or not old.pending:
                was = size
                tally.initial_bytes += 0 if follower in self._were_down else size
        # Retention and truncation shrink a log, but its bytes were copied nevertheless.
        credited.copied += max(0, size - was)
        if leader_size is None:
            self.unknown.add(tally.flow)
            return
        tally.bytes_left += max(0, leader_size - size)
        if last_size is not None:
            tally.produced += max(0, leader_size - last_size)

    def take_last(self, moving: set[str]) -> None:
        """Count the last bytes of finished replicas, and keep the finished replicas of topics in reassignment."""
        for key, old in self._old.copies.items():
            if key in self.copies:
                continue
            topic, partition, follower = key
            size = self._logs.get(follower, {}).get((topic, partition)) if old.pending else None
            if size is not None:
                self._tally(topic, old.leader, follower).copied += max(0, size - old.size)
                old = old._replace(size=size)
            if topic in moving:
                self.copies[key] = old._replace(pending=False)

    def counts(self, now: datetime) -> dict[Flow, FlowProgress]:
        """Return flow -> its counts, without flows that ended long ago."""
        by_flow: dict[Flow, _Tally] = {}
        for tally in self._tallies.values():
            of_flow = by_flow.setdefault(tally.flow, _Tally(tally.flow))
            of_flow.moving |= tally.moving
            of_flow.lagging |= tally.lagging
            of_flow.initial_bytes += tally.initial_bytes
            of_flow.copied += tally.copied
            of_flow.produced += tally.produced
            of_flow.bytes_left += tally.bytes_left
        counts = {}
        flows = self._old.counts.keys() | by_flow.keys()
        for flow in flows:
            old, tally = self._old.counts.get(flow), by_flow.get(flow, _Tally(flow))
            count = self._count(old, tally, flow in by_flow, now, len(flows))
            if count is not None:
                counts[flow] = count
        return counts

    def _count(
        self, old: FlowProgress | None, tally: _Tally, is_sampled: bool, now: datetime, flows: int
    ) -> FlowProgress | None:
        """Return the counts of one flow; None: it was never sampled, or ended long ago."""
        at = self._times.get(tally.flow.follower) if is_sampled else None
        if old is None and (at is None or tally.flow.leader == NO_LEADER):
            return None
        if old is not None and not tally.moving and at is None and old.at <= now - KEPT:
            return None
        if old is not None and at is not None and tally.initial_bytes and at - old.at > LONGEST_STRETCH:
            old = None  # the bytes copied in between were not observed
        unknown = tally.flow in self.unknown
        latest = max(time for time in (at, old.at if old else None) if time is not None)
        if old is None:
            unchanged = None if tally.lagging else self._unchanged_until
            unchanged = unchanged if unchanged and unchanged < latest else None
            recent = (CopiedMark(unchanged, 0),) if unchanged else ()
            copied = tally.initial_bytes + tally.copied
            return FlowProgress(copied, tally.produced, tally.bytes_left, latest, unchanged or latest, recent)
        return FlowProgress(
            bytes_copied=old.bytes_copied + tally.copied,
            bytes_produced=old.bytes_produced + tally.produced,
            bytes_left=old.bytes_left if unknown else tally.bytes_left,
            at=latest,
            since=old.since,
            recent=_marks(old, flows) if latest > old.at else old.recent,
        )

    def copied(self, moving: set[str]) -> dict[str, int]:
        """Return topic in reassignment -> bytes copied."""
        copied = {topic: self._old.copied.get(topic, 0) for topic in sorted(moving)}
        for (topic, _, _), tally in self._tallies.items():
            if topic in copied:
                copied[topic] += tally.copied
        return copied

    def topics(self, copied: Mapping[str, int]) -> dict[str, TopicProgress]:
        """Return the progress of the topics in reassignment whose flows are all known."""
        unknown, bytes_left = set(), dict.fromkeys(copied, 0)
        for (topic, _, _), tally in self._tallies.items():
            if tally.moving and tally.flow in self.unknown:
                unknown.add(topic)
            if topic in bytes_left:
                bytes_left[topic] += tally.bytes_left
        return {topic: TopicProgress(copied[topic], bytes_left[topic]) for topic in copied if topic not in unknown}

    def _tally(self, topic: str, leader: int, follower: int) -> _Tally:
        key = (topic, leader, follower)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = _Tally(Flow(leader, follower))
        return tally


CYCLES = 3
"""Number of scheduled cycles without any progress that make a stall."""

FREE_SHARE = 0.1
"""Free share of a link's capacity above which the link is not the bottleneck."""


@dataclass(frozen=True, slots=True)
class _FollowerBroker:
    """The bytes left of one follower at the last scheduled cycle."""

    bytes_left: int
    """Bytes."""
    cycles: int = 0
    """Consecutive cycles in which `left` did not decrease."""


@dataclass(frozen=True, slots=True)
class StallWatch:
    """The bytes left at the last scheduled cycles; immutable, `observe` returns a new watch."""

    followers: Mapping[int, _FollowerBroker] = field(default_factory=dict)
    """Broker id of a follower -> its bytes left; absent: 0."""
    at: datetime | None = None
    """Time of the last sample."""

    def observe(self, progress: Progress | None) -> StallWatch:
        """Return the watch after one more scheduled cycle; a sample that was already observed changes nothing."""
        if progress is None or progress.at is None or progress.at == self.at:
            return self
        bytes_left = {
            broker_id: traffic.bytes_left
            for (broker_id, role), traffic in progress.link_traffic.items()
            if role is ReplicaRole.FOLLOWER and traffic.bytes_left
        }
        return StallWatch(
            {follower: self._follower(follower, size) for follower, size in bytes_left.items()}, progress.at
        )

    def _follower(self, follower: int, bytes_left: int) -> _FollowerBroker:
        old = self.followers.get(follower)
        return _FollowerBroker(bytes_left, old.cycles + 1 if old is not None and bytes_left >= old.bytes_left else 0)

    def stalled(self, decisions: Iterable[Decision], progress: Progress | None) -> Mapping[int, str]:
        """Return follower -> a finding, for followers that stall while their link has free capacity."""
        current = {follower: broker for follower, broker in self.followers.items() if broker.cycles >= CYCLES}
        if not current or progress is None:
            return {}
        decided = {d.broker_id: d for d in decisions if d.role is ReplicaRole.FOLLOWER}
        leaders: dict[int, list[int]] = {follower: [] for follower in current}
        for flow, count in progress.flows.items():
            if count.bytes_left and flow.follower in leaders:
                leaders[flow.follower].append(flow.leader)
        return {
            follower: _sentence(follower, broker, decision, sorted(leaders[follower]))
            for follower, broker in sorted(current.items())
            if (decision := decided.get(follower)) and _has_free_capacity(decision)
        }


def _has_free_capacity(decision: Decision) -> bool:
    capacity, utilization = decision.capacity_bytes_per_second, decision.utilization_bytes_per_second
    return capacity is not None and utilization is not None and capacity - utilization >= FREE_SHARE * capacity


def _sentence(follower: int, broker: _FollowerBroker, decision: Decision, leaders: Sequence[int]) -> str:
    capacity = decision.capacity_bytes_per_second or 0
    free = capacity - (decision.utilization_bytes_per_second or 0)
    return (
        f"broker {follower} [follower] is stalled: {broker.bytes_left / MEGABYTE:.2f} MB are left, no less than "
        f"{CYCLES} cycles ago, although {free / MEGABYTE:.0f} of its {capacity / MEGABYTE:.0f} MB/s are free under "
        f"a throttle of {decision.rate_bytes_per_second / MEGABYTE:.0f} MB/s; check its log, its disks and leaders "
        f"[{excerpt(leaders, 10)}]"
    )
