"""What moves now, how fast and why: the model of the page and of `throttlectl top`. Pure: the caller fetches the state.

The types to know are `Overview` and `LinkSideOverview`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.records import (
    Basis,
    Cycle,
    Decision,
    OutcomeStatus,
    Pause,
    Reason,
    Throttle,
    override_effect,
)
from autothrottle.core.texts import caller_name, capitalized, no_end_words
from autothrottle.core.units import format_size
from autothrottle_client.model import ClusterState, Override
from autothrottle_client.reassignments import ReassignmentPath, Reassignments
from autothrottle_client.tables import catch_up_words, failing_brokers
from autothrottle_client.texts import about_rate, duration

LinkSideKey = tuple[int, ReplicaRole]
"""Broker id and role."""


@dataclass(frozen=True, slots=True)
class LeaderOverview:
    """The leading planner."""

    address: str
    host: str
    """Empty: unknown."""
    since: datetime | None
    """Start of its term, UTC; None: unknown."""
    term: int


@dataclass(frozen=True, slots=True)
class CycleOverview:
    """The last cycle of the leading planner."""

    term: int
    number: int
    start: datetime
    end: datetime
    reason: str
    """What started it."""
    sentence: str
    """What it did; empty: it failed."""
    error: str
    """Why it failed; empty: it did not."""
    shadow: bool
    """Whether it ran in shadow mode, which writes nothing."""
    findings: tuple[str, ...]
    """Problems that the cycle found, one sentence each; also refused changes and throttles that others set."""


@dataclass(frozen=True, slots=True)
class PauseOverview:
    """The current pause."""

    mode: str
    reason: str
    author: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class OverrideOverview:
    """One override."""

    broker: int | None
    """None: the cluster override."""
    rate: int
    """Bytes per second."""
    autoremove: bool
    expires: datetime | None
    """None: never."""
    etag: str
    beyond: bool
    """Whether it applies also above the capacity of a link."""
    effect: str
    """When it acts; empty: unknown."""


@dataclass(frozen=True, slots=True)
class TopicOverview:
    """One topic in reassignment."""

    topic: str
    partitions: int
    bytes_copied: int | None
    bytes_left: int | None
    eta: datetime | None
    destinations: tuple[int, ...]
    """Ids of the brokers that receive replicas, also those that are in sync already."""


@dataclass(frozen=True, slots=True)
class Rise:
    """Where a throttle that rises in steps goes."""

    target: int
    """Bytes per second."""
    arrival: datetime | None
    """When it is there, UTC; None: it waits for its next step."""

    def __str__(self) -> str:
        by = "" if self.arrival is None else f" by {self.arrival:%H:%M:%SZ}"
        return f"rising to {about_rate(self.target)}{by}"


def rise_of(throttle: Throttle | None) -> Rise | None:
    """Return where a throttle rises to; None: it does not rise."""
    if throttle is None or throttle.target_bytes_per_second is None:
        return None
    return Rise(throttle.target_bytes_per_second, throttle.arrival_time)


@dataclass(frozen=True, slots=True)
class LinkSideOverview:
    """One direction of one broker's link. Rates are in bytes per second; None: unknown."""

    broker: int
    role: ReplicaRole
    capacity: int | None
    clients: int | None
    """Client load that the decision assumes."""
    replication: int | None
    """Bytes that the reassignments copied recently over this link side."""
    throttle: int | None
    """The rate in Kafka; None: not throttled."""
    headroom: int | None
    """Capacity that clients and replication leave free, >= 0."""
    reason: str
    """Why the throttle has this rate, in words and numbers."""
    rise: Rise | None = None
    """None: the throttle does not rise."""


@dataclass(frozen=True, slots=True)
class FlowOverview:
    """The data that one leader sends to one follower."""

    leader: int
    follower: int
    partitions: int
    bytes_left: int | None
    rate: int | None
    """Recent copy rate in bytes per second; None: unknown."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of one cluster at one time."""

    cluster: str
    """Empty: unknown."""
    at: datetime
    """When the state was read."""
    leader: LeaderOverview | None
    """None: no planner leads."""
    cycle: CycleOverview | None
    """None: no cycle has run yet."""
    bytes_left: int | None
    """Bytes left to copy, summed over the known flows; None: nothing moves, or nothing is known."""
    eta: datetime | None
    eta_low: datetime | None
    eta_high: datetime | None
    eta_is_static: bool
    """Whether the ETA is computed from the throttles, since no rate is measured yet."""
    down_brokers: tuple[int, ...]
    """Destinations that are down, so that the reassignments have no end."""
    limited_by: str
    """The link side that determines the end, as one sentence; empty: unknown."""
    pause: PauseOverview | None
    overrides: tuple[OverrideOverview, ...]
    warnings: tuple[str, ...]
    catch_ups: tuple[str, ...]
    """Brokers that catch up under a throttle, one sentence each."""
    topics: tuple[TopicOverview, ...]
    sides: tuple[LinkSideOverview, ...]
    """Ordered by broker and role."""
    flows: tuple[FlowOverview, ...]
    """Ordered by leader and follower."""


def overview(state: ClusterState, reassignments: Reassignments, now: datetime) -> Overview:
    """Return what moves, how fast and why.

    Args:
        state: the state of the cluster.
        reassignments: the ongoing reassignments, with their paths.
        now: when both were read, UTC.
    """
    cycle, paths = state.last_cycle, reassignments.paths
    is_moving = bool(reassignments.topics or state.catch_ups)
    eta = reassignments if reassignments.eta is not None else cycle if is_moving else None
    down_brokers = cycle.down_brokers if cycle and is_moving else ()
    return Overview(
        cluster=state.cluster_name,
        at=now,
        leader=_leader(state),
        cycle=None if cycle is None else _cycle(cycle),
        bytes_left=_bytes_left(cycle, reassignments) if is_moving else None,
        eta=eta.eta if eta else None,
        eta_low=eta.eta_low if eta else None,
        eta_high=eta.eta_high if eta else None,
        eta_is_static=isinstance(eta, Cycle) and eta.eta_is_static,
        down_brokers=down_brokers,
        limited_by=capitalized(no_end_words(down_brokers)) or _limited_by(state.current_throttles, paths, now),
        pause=_pause(state.pause),
        overrides=tuple(_override(override, state) for override in state.overrides),
        warnings=(*state.warnings, *failure_sentences(state.failures)),
        catch_ups=tuple(f"B{catch_up_words(c)[1:]}, catches up under a throttle" for c in state.catch_ups),
        topics=tuple(
            TopicOverview(t.topic, len(t.partitions), t.bytes_copied, t.bytes_left, t.eta, t.adding_replicas)
            for t in reassignments.topics
        ),
        sides=_sides(state, paths),
        flows=tuple(
            FlowOverview(
                p.leader,
                p.follower,
                p.partitions,
                p.bytes_left,
                0 if p.follower in down_brokers else p.copied_bytes_per_second,
            )
            for p in paths
        ),
    )


def _leader(state: ClusterState) -> LeaderOverview | None:
    if not state.leader_address:
        return None
    return LeaderOverview(state.leader_address, state.leader_host, state.leader_since, state.term)


def _cycle(cycle: Cycle) -> CycleOverview:
    return CycleOverview(
        cycle.term,
        cycle.number,
        cycle.start_time,
        cycle.end_time,
        cycle.reason,
        cycle.sentence,
        cycle.error,
        cycle.shadow,
        (
            *cycle.findings,
            *(f"{o.resource} was refused: {o.reason}" for o in cycle.outcomes if o.status is OutcomeStatus.REFUSED),
            *(f"{f.resource} has {f.key}={f.value}, which others set" for f in cycle.foreign_throttles),
        ),
    )


def _pause(pause: Pause | None) -> PauseOverview | None:
    return (
        None if pause is None else PauseOverview(pause.mode.value, pause.reason, caller_name(pause.author), pause.time)
    )


def _override(override: Override, state: ClusterState) -> OverrideOverview:
    return OverrideOverview(
        override.broker_id,
        override.rate_bytes_per_second,
        override.autoremove,
        override.expire_time,
        override.etag,
        override.beyond_capacity,
        override_effect_in(state, override),
    )


def override_effect_in(state: ClusterState, override: Override) -> str:
    """Return when an override acts; "": unknown. A state that was read without its cycle has no effects of its own."""
    catches_up = bool(state.catch_ups)
    return override_effect(override.broker_id, override.autoremove, state.last_cycle, state.pause, catches_up)


def failure_sentences(failures: Mapping[int, int]) -> tuple[str, ...]:
    """Return one sentence for the brokers whose loads have not been measured in the same number of cycles."""
    return tuple(
        f"{brokers} {'has' if is_one else 'have'} no usable metrics, {count} cycle{'s' * (count != 1)} in a row"
        for brokers, is_one, count in failing_brokers(failures)
    )


def _bytes_left(cycle: Cycle | None, reassignments: Reassignments) -> int | None:
    """Return the sum over the paths, or else the topics, or else as the last cycle knows it.

    Only the last cycle has the last known bytes of brokers that are down.
    """
    if cycle is not None and cycle.down_brokers and cycle.bytes_left is not None:
        return cycle.bytes_left
    for parts in (reassignments.paths, reassignments.topics):
        sizes = [part.bytes_left for part in parts if part.bytes_left is not None]
        if sizes:
            return sum(sizes)
    return None if cycle is None else cycle.bytes_left


def _sides(state: ClusterState, paths: Iterable[ReassignmentPath]) -> tuple[LinkSideOverview, ...]:
    replication = _sums((path, path.copied_bytes_per_second) for path in paths)
    cycle, throttles = state.last_cycle, state.current_throttles
    decisions = {(d.broker_id, d.role): d for d in (cycle.decisions if cycle else ())}
    undecided = why_undecided(state)
    return tuple(
        _side(side, cycle, decisions.get(side), replication.get(side), throttles.get(side), undecided)
        for side in sorted({*decisions, *replication, *throttles}, key=_order)
    )


def why_undecided(state: ClusterState) -> str:
    """Return why a link side has no decision, in words."""
    if state.pause is not None:
        return "as before: the planner is paused"
    if state.last_cycle is not None and state.last_cycle.error:
        return "as before: the last cycle failed"
    return "the last cycle decided no rate for it"


def _order(side: LinkSideKey) -> tuple[int, bool]:
    return side[0], side[1] is not ReplicaRole.LEADER


def _sums(values: Iterable[tuple[ReassignmentPath, int | None]]) -> dict[LinkSideKey, int | None]:
    """Return link side -> the sum over its paths of known value; None: all are unknown."""
    sums: dict[LinkSideKey, int | None] = {}
    for path, value in values:
        for side in ((path.leader, ReplicaRole.LEADER), (path.follower, ReplicaRole.FOLLOWER)):
            previous = sums.setdefault(side, None)
            if value is not None:
                sums[side] = (previous or 0) + value
    return sums


def _side(
    side: LinkSideKey,
    cycle: Cycle | None,
    decision: Decision | None,
    replication: int | None,
    throttle: Throttle | None,
    undecided: str,
) -> LinkSideOverview:
    broker_id, role = side
    rate = throttle.rate_bytes_per_second if throttle else None
    if cycle is None or decision is None:
        return LinkSideOverview(broker_id, role, None, None, replication, rate, None, undecided)
    capacity, clients = decision.capacity_bytes_per_second, client_load(decision)
    headroom = None if capacity is None or clients is None else max(capacity - clients - (replication or 0), 0)
    unwritten = unwritten_words(cycle, decision, throttle)
    return LinkSideOverview(
        broker_id,
        role,
        capacity,
        clients,
        replication,
        rate,
        headroom,
        f"{unwritten}: {reason_words(decision)}" if unwritten else reason_words(decision),
        rise_of(throttle),
    )


def unwritten_words(cycle: Cycle, decision: Decision, throttle: Throttle | None) -> str:
    """Return why a decided rate is not in Kafka; "": Kafka has it, or a ramp raises the throttle to it."""
    rate = decision.rate_bytes_per_second
    if cycle.pause is not None:
        return f"nothing is written while paused; without the pause {about_rate(rate)}"
    if throttle is not None and rate in (throttle.rate_bytes_per_second, throttle.target_bytes_per_second):
        return ""
    return f"{about_rate(rate)} is decided, but not written{' in shadow mode' * cycle.shadow}"


def client_load(decision: Decision) -> int | None:
    """Return the client load that a decision assumes, bytes/s; None: unknown.

    The original's formula does not report it: it is the measured traffic minus the throttle of that time.
    """
    if decision.client_bytes_per_second is not None or decision.utilization_bytes_per_second is None:
        return decision.client_bytes_per_second
    return max(decision.utilization_bytes_per_second - (decision.current_rate_bytes_per_second or 0), 0)


def reason_words(decision: Decision) -> str:
    """Return why a decision has its rate, in words and numbers."""
    share = _share_of_free(decision, decision.rate_bytes_per_second)
    match decision.reason:
        case Reason.HEADROOM if decision.basis is Basis.STATIC:
            return "the fixed rate of the static policy"
        case Reason.HEADROOM:
            return f"the policy's rate{share}"
        case Reason.UNCHANGED:
            proposed = decision.headroom_bytes_per_second
            if proposed is None or proposed == decision.rate_bytes_per_second:
                return f"still the policy's rate{share}"
            return f"unchanged{share}: the policy's {about_rate(proposed)} differs too little to be written"
        case Reason.KEPT:
            return "kept: the broker has no usable metrics"
        case Reason.MINIMUM:
            return "the minimum rate: the broker has had no usable metrics for too long"
        case Reason.CLUSTER_OVERRIDE:
            return f"set by the override of the cluster{_limited(decision)}"
        case Reason.BROKER_OVERRIDE:
            return f"set by the override of broker {decision.broker_id}{_limited(decision)}"
        case Reason.OVER_CAPACITY:
            return f"below the minimum rate{share}: clients need the link"
        case Reason.STARVATION:
            return f"above the headroom{share}: with less the reassignment would never end"
        case Reason.FINISH_BY:
            return f"below the headroom{share}: it is enough to meet the deadline"
        case other:
            return f"unknown to this version: {other.value}"


def _limited(decision: Decision) -> str:
    """Return the rate of an override that the capacity of the link limits; empty: not limited."""
    override = decision.override_bytes_per_second
    return "" if override is None else f" to {about_rate(override)}, limited by the capacity of the link"


def _share_of_free(decision: Decision, rate: int) -> str:
    """Return a rate as a share of the capacity that clients leave free; empty: unknown."""
    capacity, clients = decision.capacity_bytes_per_second, client_load(decision)
    if capacity is None or clients is None:
        return ""
    if clients >= capacity:
        return f" (clients use {about_rate(clients)} of {about_rate(capacity)})"
    return (
        f" ({100 * rate / (capacity - clients):.0f} % of the {about_rate(capacity - clients)} that clients leave free)"
    )


def _limited_by(throttles: Mapping[LinkSideKey, Throttle], paths: Iterable[ReassignmentPath], now: datetime) -> str:
    """Return the link side that needs the longest time for its bytes under its throttle in Kafka."""
    bytes_left = _sums((path, path.bytes_left) for path in paths)
    slowest: tuple[timedelta, Throttle, int] | None = None
    for side, throttle in throttles.items():
        if size := bytes_left.get(side):
            time = throttle.move_time(size, 0, now) or timedelta.max
            if slowest is None or time > slowest[0]:
                slowest = time, throttle, size
    return "" if slowest is None else _limit_sentence(*slowest)


def _limit_sentence(time: timedelta, throttle: Throttle, size: int) -> str:
    verb = "send" if throttle.role is ReplicaRole.LEADER else "receive"
    what = f"Broker {throttle.broker_id} [{throttle.role.value}] has {format_size(size)} to {verb}"
    rise = rise_of(throttle)
    rate = about_rate(throttle.rate_bytes_per_second) + (f", {rise}" if rise else "")
    if time == timedelta.max:
        return f"{what}, and its throttle of {rate} does not let it end within a year"
    return f"{what} at a throttle of {rate}: at least {duration(max(time, timedelta(seconds=1)))}"
