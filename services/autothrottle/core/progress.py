"""How far a move has come: bytes that landed, bytes that are left, and when the last one lands.

Worked out from the sizes of logs alone: what the leader's log holds and the destination's does not is left. So it
is wrong where the sizes of two replicas' logs differ for another reason: with tiered storage only a part of a log is
copied (KIP-1023: the ETA comes out too late), a compacted log is cleaned at its own time on each replica, and
retention may delete at the leader first (never less than 0 is left). The type to know is `ProgressHistory`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from autothrottle.core.catch_up import NOTHING_LAGS, Lagging
from autothrottle.core.eta import Forecast, Rates, forecast_all, last_of, static_end, with_topics
from autothrottle.core.flows import Flow, FlowProgress, LandedMark, Progress, TopicProgress
from autothrottle.core.replication import LONGEST_STRETCH
from autothrottle.core.topology import NO_LEADER, Snapshot, TopicPartition, TopicReassignment, flows, running_flows

WINDOW = timedelta(minutes=3)
"""Over which the rate of landing is taken: long enough for the bursts of a throttle, short enough for its changes."""

READINGS_APART = timedelta(seconds=10)
"""Between the readings that an ETA is taken from: closer ones say no more."""

REMEMBERED = timedelta(minutes=8)
"""How far the earlier counts of a flow go back: a metric may be 2 minutes late, cover 2, and be used for 2 more."""

_SPACINGS = ((timedelta(seconds=30), timedelta(0)), (timedelta(minutes=2), timedelta(seconds=10)))
"""Earlier counts up to this age are kept this far apart; older ones `_SPARSE`."""

_SPARSE = timedelta(seconds=30)

_MOST_MARKS = 60
"""Of one flow before they are thinned, which leaves about 40."""

_FEWEST_MARKS = 16
"""The same where there are many flows: then they are half a minute apart at any age."""

_MARKS_OF_ALL = 100_000
"""Of all flows together: they are sent with every snapshot."""

SET_BACK = timedelta(seconds=1)
"""A reading that is older than the last one by more says that the clock was set back: what was counted before, in
moments that are still to come, would keep all counts where they are until then."""

KEPT = timedelta(minutes=10)
"""How long the last count of a flow that ended is still there: a metric that covers its end comes minutes later."""


@dataclass(frozen=True, slots=True)
class BrokerLogSizes:
    """The sizes of the logs on one broker at one moment."""

    at: datetime
    """When the broker answered, UTC."""
    sizes: Mapping[TopicPartition, int]
    """(topic, partition) -> bytes of the log; absent: the broker has no replica."""


@dataclass(frozen=True, slots=True)
class LogSizes:
    """One reading of the sizes of logs."""

    brokers: Mapping[int, BrokerLogSizes] = field(default_factory=dict)
    """Broker id -> its logs; absent: it was not asked, or see `problems`."""
    problems: Mapping[int, str] = field(default_factory=dict)
    """Broker id -> why it did not answer, in one sentence."""


@dataclass(frozen=True, slots=True)
class Remainder:
    """What is left of the moves of one snapshot."""

    bytes_left: int
    """Of the flows that are known."""
    unknown_flows: int
    """How many flows more there are: what they have left comes on top."""
    eta: datetime | None
    """When the last byte lands, UTC; None: unknown."""
    at: datetime
    """When the sizes were read, UTC."""
    eta_low: datetime | None = None
    """Not before this, as far as the rates of the last minutes tell, UTC; None: unknown."""
    eta_high: datetime | None = None
    """Not after this, likewise."""
    eta_is_static: bool = False
    """Whether `eta` is no measurement yet but what is left by the throttles that stand."""


def remainder(snapshot: Snapshot) -> Remainder | None:
    """Return what is left of what moves in a snapshot; None: nothing moves, or nothing is known.

    The snapshot may be newer than its progress: flows that have ended since count no longer, new ones are unknown.
    What a broker lacks that is to catch up and is down is in none of it.
    """
    progress = snapshot.progress
    if progress is None or progress.at is None or not snapshot.reassignments:
        return None
    moving = running_flows(snapshot)
    if not moving and flows(snapshot):
        return None
    known = [progress.flows[flow].bytes_left for flow in moving if flow in progress.flows]
    unknown = len(moving) - len(known) + _offline(snapshot.reassignments)
    if unknown and not known:
        return None
    if unknown:
        return Remainder(sum(known), unknown, None, progress.at)
    end = _end(snapshot.topics, progress)
    return Remainder(sum(known), 0, end.eta, progress.at, end.low, end.high)


def _end(topics: Collection[str], progress: Progress) -> Forecast:
    """When these topics are there: the progress may be of others, too, that catch up or have come to their end."""
    if progress.topics.keys() <= set(topics):
        return Forecast(progress.eta, progress.eta_low, progress.eta_high)
    known = (progress.topics.get(topic, TopicProgress(0, 0)) for topic in topics)
    return last_of(Forecast(topic.eta, topic.eta_low, topic.eta_high) for topic in known)


def foreseen(left: Remainder | None, snapshot: Snapshot, rates: Rates) -> Remainder | None:
    """Return what is left with an ETA by the throttles, where a move has only begun and none is measured yet."""
    if left is None or left.eta is not None or left.unknown_flows or snapshot.progress is None:
        return left
    end = static_end(snapshot.progress, running_flows(snapshot), rates)
    return left if end is None else replace(left, eta=end, eta_is_static=True)


def _offline(reassignments: Iterable[TopicReassignment]) -> int:
    """How many partitions without leader are still to be copied."""
    return sum(
        leader == NO_LEADER and any(b not in isr for b in adding)
        for reassignment in reassignments
        if NO_LEADER in reassignment.leaders
        for leader, isr, adding in zip(
            reassignment.leaders, reassignment.isr, reassignment.adding_replicas, strict=True
        )
    )


class _Copy(NamedTuple):
    """What one adding replica had when it was last read."""

    leader: int
    size: int
    leader_size: int | None
    pending: bool
    """Whether it was still to be copied: a replica that is in sync may fall out of the ISR again."""


_Replica = tuple[str, int, int]
"""Topic, partition number and the destination's broker id."""


@dataclass(frozen=True, slots=True)
class ProgressHistory:
    """The readings of the last minutes as counts; a value: an observation returns a new one."""

    readings: tuple[Progress, ...] = ()
    """Of `WINDOW`, the newest last; but for that one `READINGS_APART`."""
    counts: Mapping[Flow, FlowProgress] = field(default_factory=dict)
    """All flows, those included that are unknown at the moment: `bytes_left` of these is an old one."""
    landed: Mapping[str, int] = field(default_factory=dict)
    """Topic in reassignment -> bytes that landed."""
    copies: Mapping[_Replica, _Copy] = field(default_factory=dict)

    @property
    def progress(self) -> Progress:
        """The newest reading."""
        return self.readings[-1] if self.readings else Progress()

    def wanted(self, reassignments: Iterable[TopicReassignment]) -> Mapping[int, Mapping[str, frozenset[int]]]:
        """Return broker id -> topic -> partitions whose logs the next reading needs.

        These are both ends of everything that is still to be copied, and the destinations of what was when it was last
        read: the last bytes before a replica joined the ISR count.
        """
        found: dict[int, dict[str, set[int]]] = {}
        for reassignment in reassignments:
            asked: dict[int, set[int]] = {}
            for partition, leader, _, pending in reassignment.rows():
                for broker_id in (leader, *pending) if pending else ():
                    asked.setdefault(broker_id, set()).add(partition)
            for broker_id, partitions in asked.items():
                found.setdefault(broker_id, {})[reassignment.topic] = partitions
        for (topic, partition, follower), copy in self.copies.items():
            if copy.pending:
                found.setdefault(follower, {}).setdefault(topic, set()).add(partition)
        found.pop(NO_LEADER, None)
        return {b: {topic: frozenset(p) for topic, p in topics.items()} for b, topics in found.items()}

    def observe(
        self,
        reassignments: Sequence[TopicReassignment],
        sizes: LogSizes,
        now: datetime,
        unmoved_until: datetime | None = None,
        lagging: Lagging = NOTHING_LAGS,
        were_down: Collection[int] = (),
    ) -> ProgressHistory:
        """Return the history with one more reading.

        Args:
            reassignments: what moved when the sizes were read.
            sizes: of what was `wanted`; brokers that did not answer make their own flows unknown, and no other.
            now: UTC, when the reading was complete; where that is before the last one, since the clock was set back,
                counting begins anew.
            unmoved_until: when it was last known that flows which are new in this reading did not move yet, UTC; None:
                nobody knows, they may have moved for hours.
            lagging: those of the replicas to be copied that are in no reassignment: what they hold when they are first
                seen to lag did not land now, but may have at any time before.
            were_down: brokers that did not run a moment ago: nothing landed there for as long as matters.
        """
        if self.progress.at is not None and now < self.progress.at - SET_BACK:
            return ProgressHistory().observe(reassignments, sizes, now, None, lagging, were_down)
        seen = _Observation(self, sizes, unmoved_until, lagging, were_down)
        for reassignment in reassignments:
            for partition, leader, _, pending in reassignment.rows():
                for follower in pending:
                    seen.take(reassignment.topic, partition, leader, follower)
        topics = {reassignment.topic for reassignment in reassignments}
        seen.take_last(topics)
        counts, landed = seen.counts(now), seen.landed(topics)
        progress = Progress(
            flows={flow: count for flow, count in counts.items() if flow not in seen.unknown},
            topics=seen.topics(landed),
            at=now,
        )
        readings = (*_apart(r for r in self.readings if r.at is not None and r.at > now - WINDOW), progress)
        end = Forecast() if seen.unknown else forecast_all(readings)
        known = replace(progress, topics=with_topics(readings, end), eta=end.eta, eta_low=end.low, eta_high=end.high)
        return ProgressHistory((*readings[:-1], known), counts, landed, seen.copies)


def _apart(readings: Iterable[Progress]) -> list[Progress]:
    """The readings without the last one where it followed too closely."""
    kept = list(readings)
    last = [reading.at for reading in kept[-2:] if reading.at is not None]
    return kept[:-1] if len(last) == 2 and last[1] - last[0] < READINGS_APART else kept


def _marks(old: FlowProgress, flows: int) -> tuple[LandedMark, ...]:
    """The counts of one of so many flows up to one that is not the newest any more."""
    marks = (*old.recent, LandedMark(old.at, old.bytes_landed))
    most = min(_MOST_MARKS, max(_FEWEST_MARKS, _MARKS_OF_ALL // flows))
    return marks if len(marks) <= most else _thinned(marks, _SPACINGS if most == _MOST_MARKS else ())


def _thinned(
    marks: tuple[LandedMark, ...], spacings: tuple[tuple[timedelta, timedelta], ...]
) -> tuple[LandedMark, ...]:
    """The same counts, the older the sparser; the first two stay: until a throttle stands most lands in a second."""
    newest = marks[-1].at
    kept = [mark for mark in marks[:2] if mark.at > newest - REMEMBERED]
    for mark in marks[2:]:
        age = newest - mark.at
        spacing = next((spacing for oldest, spacing in spacings if age <= oldest), _SPARSE)
        if age < REMEMBERED and (not kept or mark.at - kept[-1].at >= spacing):
            kept.append(mark)
    return tuple(kept)


@dataclass(slots=True)
class _Tally:
    """What one reading says of one topic's part in one flow."""

    flow: Flow
    moving: bool = False
    """Whether anything of it is still to be copied."""
    lagging: bool = False
    """Whether anything of it is in no reassignment: it was there before, and may have been copied for hours."""
    held: int = 0
    """What was there already when it was first seen to lag: it landed, and nobody knows when."""
    landed: int = 0
    grown: int = 0
    left: int = 0


class _Observation:
    """One reading while it is being worked out: of 100,000 partitions, so by plain numbers."""

    def __init__(
        self,
        history: ProgressHistory,
        sizes: LogSizes,
        unmoved_until: datetime | None,
        lagging: Lagging,
        were_down: Collection[int],
    ) -> None:
        self._unmoved_until, self._lagging, self._were_down = unmoved_until, lagging, were_down
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
        # What came since the last reading was sent by whoever led then.
        credited = tally if same or old is None or not old.pending else self._tally(topic, old.leader, follower)
        was = old.size if old else 0
        if row in self._lagging.get(follower, ()):
            tally.lagging = True
            if old is None or not old.pending:
                was = size
                tally.held += 0 if follower in self._were_down else size
        # Retention and truncation make a log smaller; what has landed has landed.
        credited.landed += max(0, size - was)
        if leader_size is None:
            self.unknown.add(tally.flow)
            return
        tally.left += max(0, leader_size - size)
        if last_size is not None:
            tally.grown += max(0, leader_size - last_size)

    def take_last(self, moving: set[str]) -> None:
        """Count the last bytes of replicas that have come to their end, and remember those of topics that move."""
        for key, old in self._old.copies.items():
            if key in self.copies:
                continue
            topic, partition, follower = key
            size = self._logs.get(follower, {}).get((topic, partition)) if old.pending else None
            if size is not None:
                self._tally(topic, old.leader, follower).landed += max(0, size - old.size)
                old = old._replace(size=size)
            if topic in moving:
                self.copies[key] = old._replace(pending=False)

    def counts(self, now: datetime) -> dict[Flow, FlowProgress]:
        """All flows with what was counted; without those that ended long ago."""
        seen: dict[Flow, _Tally] = {}
        for tally in self._tallies.values():
            of_flow = seen.setdefault(tally.flow, _Tally(tally.flow))
            of_flow.moving |= tally.moving
            of_flow.lagging |= tally.lagging
            of_flow.held += tally.held
            of_flow.landed += tally.landed
            of_flow.grown += tally.grown
            of_flow.left += tally.left
        found = {}
        flows = self._old.counts.keys() | seen.keys()
        for flow in flows:
            old, tally = self._old.counts.get(flow), seen.get(flow, _Tally(flow))
            count = self._count(old, tally, flow in seen, now, len(flows))
            if count is not None:
                found[flow] = count
        return found

    def _count(
        self, old: FlowProgress | None, tally: _Tally, seen: bool, now: datetime, flows: int
    ) -> FlowProgress | None:
        """The count of one flow; None: it was never read, or ended long ago."""
        at = self._times.get(tally.flow.follower) if seen else None
        if old is None and (at is None or tally.flow.leader == NO_LEADER):
            return None
        if old is not None and not tally.moving and at is None and old.at <= now - KEPT:
            return None
        if old is not None and at is not None and tally.held and at - old.at > LONGEST_STRETCH:
            old = None  # what landed meanwhile nobody saw
        unknown = tally.flow in self.unknown
        latest = max(time for time in (at, old.at if old else None) if time is not None)
        if old is None:
            unmoved = None if tally.lagging else self._unmoved_until
            unmoved = unmoved if unmoved and unmoved < latest else None
            recent = (LandedMark(unmoved, 0),) if unmoved else ()
            landed = tally.held + tally.landed
            return FlowProgress(landed, tally.grown, tally.left, latest, unmoved or latest, recent)
        return FlowProgress(
            bytes_landed=old.bytes_landed + tally.landed,
            bytes_grown=old.bytes_grown + tally.grown,
            bytes_left=old.bytes_left if unknown else tally.left,
            at=latest,
            since=old.since,
            recent=_marks(old, flows) if latest > old.at else old.recent,
        )

    def landed(self, moving: set[str]) -> dict[str, int]:
        """Topic that moves -> what landed of it."""
        found = {topic: self._old.landed.get(topic, 0) for topic in sorted(moving)}
        for (topic, _, _), tally in self._tallies.items():
            if topic in found:
                found[topic] += tally.landed
        return found

    def topics(self, landed: Mapping[str, int]) -> dict[str, TopicProgress]:
        """The topics that move and of which all flows are known."""
        unknown, left = set(), dict.fromkeys(landed, 0)
        for (topic, _, _), tally in self._tallies.items():
            if tally.moving and tally.flow in self.unknown:
                unknown.add(topic)
            if topic in left:
                left[topic] += tally.left
        return {topic: TopicProgress(landed[topic], left[topic]) for topic in landed if topic not in unknown}

    def _tally(self, topic: str, leader: int, follower: int) -> _Tally:
        key = (topic, leader, follower)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = _Tally(Flow(leader, follower))
        return tally
