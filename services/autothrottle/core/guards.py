"""What a plan is held to before it is written: moves that could never end, and partitions that nothing may hold back.

Each of these rules is a function from a plan to a plan with what there is to say; fetches too large for a throttle to
hold are only told of. The type to know is `Guarded`.

Source: KIP-73 (questions 1, 4 and 5).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.fetching import ClusterSettings, fill_seconds, largest_response
from autothrottle.core.flows import Flow, FlowProgress, Progress
from autothrottle.core.limits import Limits
from autothrottle.core.loads import MEGABYTE, BytesPerSecond, Port
from autothrottle.core.plan import Decision, DesiredReplicas, Plan, Reason, is_small_change, previous_rate
from autothrottle.core.policy.interface import Basis
from autothrottle.core.topology import NO_LEADER, Snapshot, TopicPartition, TopicReassignment, flows


@dataclass(frozen=True, slots=True)
class Guarded:
    """A plan that keeps to a rule."""

    plan: Plan
    findings: tuple[str, ...] = ()
    """What there is to say, a sentence each."""


@dataclass(frozen=True, slots=True)
class Ingress:
    """What is produced to the partitions of one port's moves."""

    rate: BytesPerSecond
    """KIP-73's IN: what counts against the throttle without bringing the move on, in-sync followers included."""
    replication_factor: float
    """KIP-73's R: the mean of these partitions, >= 1."""


def ingress(readings: Sequence[Progress], moves: Iterable[TopicReassignment]) -> Mapping[Port, Ingress]:
    """Return what is produced to what moves, by port; a port of which a flow is unknown is not here.

    Args:
        readings: of the last minutes, the newest last.
        moves: what is being copied.
    """
    growth = _growth(readings)
    found: dict[Port, float] = {}
    factors: dict[Port, list[float]] = {}
    unknown: set[Port] = set()
    for flow, mean in _means(moves).items():
        leader, follower = flow.ports
        rate = growth.get(flow)
        if rate is None:
            unknown |= {leader, follower}
            continue
        found[follower] = found.get(follower, 0.0) + rate
        found[leader] = found.get(leader, 0.0) + rate * (1 + mean.in_sync_per_copy)
        for port in (leader, follower):
            factors.setdefault(port, []).append(mean.replication_factor)
    return {
        port: Ingress(round(rate), sum(factors[port]) / len(factors[port]))
        for port, rate in found.items()
        if port not in unknown
    }


def port_growth(readings: Sequence[Progress]) -> Mapping[Port, float]:
    """Return what is produced to the flows of each port, bytes/s, without what counts at a leader besides."""
    leaders: dict[int, float] = {}
    followers: dict[int, float] = {}
    for flow, rate in _growth(readings).items():
        if rate:
            leaders[flow.leader] = leaders.get(flow.leader, 0.0) + rate
            followers[flow.follower] = followers.get(flow.follower, 0.0) + rate
    sides = ((ReplicaRole.LEADER, leaders), (ReplicaRole.FOLLOWER, followers))
    return {(broker_id, role): rate for role, found in sides for broker_id, rate in found.items()}


def may_starve(plan: Plan, growth: Mapping[Port, float], moves: Iterable[TopicReassignment]) -> bool:
    """Return whether `kept_from_starving` could find anything; of 100,000 partitions far sooner than by `ingress`.

    Every in-sync replica is taken for one that counts at the leader.

    Args:
        plan: what was decided.
        growth: see `port_growth`.
        moves: what is being copied.
    """
    if not growth:
        return False
    most = 1 + max((len(isr) for move in moves for isr in move.isr), default=0)
    return any(growth.get((d.broker_id, d.role), 0.0) * most >= max(d.rate, 1) for d in plan.decisions)


@dataclass(frozen=True, slots=True)
class _Means:
    """Of the partitions of one flow."""

    in_sync_per_copy: float
    replication_factor: float


def _means(moves: Iterable[TopicReassignment]) -> Mapping[Flow, _Means]:
    rows: dict[Flow, list[tuple[float, int]]] = {}
    for move in moves:
        columns = zip(move.leaders, move.isr, move.adding_replicas, move.removing_replicas, strict=True)
        for leader, isr, adding, removing in columns:
            pending = [b for b in adding if b not in isr]
            if leader == NO_LEADER or not pending:
                continue
            # A leader's list names it for all copies at once: its in-sync followers count once, not once a copy.
            in_sync = sum(b != leader for b in isr) / len(pending)
            factor = max(1, len({*isr, *adding}) - len(removing))
            for follower in pending:
                rows.setdefault(Flow(leader, follower), []).append((in_sync, factor))
    return {
        flow: _Means(sum(one for one, _ in found) / len(found), sum(factor for _, factor in found) / len(found))
        for flow, found in rows.items()
    }


def _growth(readings: Sequence[Progress]) -> Mapping[Flow, float]:
    """Bytes/s that are produced to the partitions of each flow, since the oldest reading that counts alike."""
    found = {}
    oldest = readings[0].flows if readings else {}
    for flow, newest in (readings[-1].flows if readings else {}).items():
        old = oldest.get(flow)
        if old is None or old.since != newest.since:
            old = _oldest_alike(readings, flow, newest)
        if newest.at > old.at:
            found[flow] = max(0, newest.bytes_grown - old.bytes_grown) / (newest.at - old.at).total_seconds()
    return found


def _oldest_alike(readings: Sequence[Progress], flow: Flow, newest: FlowProgress) -> FlowProgress:
    olds = (reading.flows.get(flow) for reading in readings)
    return next((one for one in olds if one is not None and one.since == newest.since), newest)


def highest_throttle(capacity: BytesPerSecond, produced: Ingress) -> BytesPerSecond:
    """Return the highest throttle of KIP-73's `IN < T < N - IN/R`: what leaves the link to what clients produce.

    >>> highest_throttle(100_000_000, Ingress(rate=30_000_000, replication_factor=3))
    90000000
    """
    return max(0, round(capacity - produced.rate / produced.replication_factor))


def kept_from_starving(
    plan: Plan, snapshot: Snapshot, limits: Limits, produced: Mapping[Port, Ingress], scheduled: bool = False
) -> Guarded:
    """Return the plan with every throttle high enough that its move can end, by KIP-73's `IN < T < N - IN/R`.

    A throttle that is not above what is produced is raised a little above it, at most to `N - IN/R`. Not raised, only
    reported, is an override, one that a schedule rules, one that leaves the link to clients, and one without metrics.

    Args:
        plan: what was decided.
        snapshot: with what stands.
        limits: what the operator allows.
        produced: port -> what is produced to its partitions.
        scheduled: whether a window of the schedule holds now.
    """
    decisions, findings = [], []
    for decision in plan.decisions:
        into = produced.get((decision.broker_id, decision.role))
        if into is None or into.rate <= 0 or decision.rate > into.rate:
            decisions.append(decision)
            continue
        is_left = _is_left_to_clients(decision, limits)
        raised = None if scheduled or is_left else _raised(decision, snapshot, limits, into)
        decisions.append(raised or decision)
        findings.append(_starving(decision, raised, into, scheduled, is_left))
    return Guarded(replace(plan, decisions=tuple(decisions)), tuple(findings))


def _is_left_to_clients(decision: Decision, limits: Limits) -> bool:
    """Whether clients need the link: a rate below the minimum that stays, since little has changed, is one, too."""
    if decision.reason is Reason.OVER_CAPACITY:
        return True
    if not decision.reason.is_measured or decision.basis is Basis.STATIC or decision.headroom is None:
        return False
    return limits.pause_over_capacity and decision.headroom < limits.min_rate


def _raised(decision: Decision, snapshot: Snapshot, limits: Limits, into: Ingress) -> Decision | None:
    """The decision with a rate that lets the move end; None: there is none, or somebody does not want it."""
    if decision.reason.is_override or decision.capacity is None:
        return None
    highest = highest_throttle(decision.capacity, into)
    if highest <= into.rate:
        return None
    wanted = min(highest, into.rate + max(math.ceil(into.rate / 10), limits.min_rate))
    previous = previous_rate(snapshot, decision.broker_id, decision.role)
    if previous is not None and into.rate < previous and is_small_change(previous, wanted, limits.change_threshold):
        wanted = previous
    return replace(decision, rate=wanted, reason=Reason.STARVATION)


def _starving(decision: Decision, raised: Decision | None, into: Ingress, scheduled: bool, is_left: bool) -> str:
    where = f"broker {decision.broker_id} [{decision.role.value}]"
    why = f"{where}: {_about(decision.rate)} would never let its move end, since {_about(into.rate)} is produced to it"
    if raised is not None:
        return f"{why}; raised to {_about(raised.rate)}"
    if decision.reason.is_override:
        return f"{why}; it is an override, which stays: raise it above that"
    if scheduled:
        return f"{why}; the schedule stays: let it allow more, or wait for its end"
    if is_left:
        return f"{why}; clients need the link"
    if decision.capacity is None:
        return f"{why}; without metrics it is not raised"
    highest = _about(highest_throttle(decision.capacity, into))
    return (
        f"{why}; of a link of {_about(decision.capacity)} at most {highest} may go to it (N - IN/R): move fewer of its "
        "partitions at a time, or when less is produced"
    )


def below_min_isr(moves: Iterable[TopicReassignment], settings: ClusterSettings) -> frozenset[TopicPartition]:
    """Return the partitions that have too few in-sync replicas for acks=all, of those that are being copied."""
    return frozenset(
        (move.topic, partition)
        for move in moves
        if (least := settings.least_in_sync(move.topic)) > min(map(len, move.isr), default=least)
        for partition, _, isr, pending in move.rows()
        if pending and len(isr) < least
    )


def never_held_back(plan: Plan, snapshot: Snapshot, limits: Limits, free: Collection[TopicPartition]) -> Guarded:
    """Return the plan with these partitions in no list, and with their part of every throttle left to them.

    Their part of a port's headroom is their part of its copies. A throttle that is no measurement stays as it is.
    """
    if not free:
        return Guarded(plan)
    gone: dict[str, set[str]] = {}
    for topic, partition in free:
        gone.setdefault(topic, set()).add(f"{partition}")
    replicas = {topic: _without(lists, gone.get(topic, set())) for topic, lists in plan.replicas.items()}
    shares = _shares(snapshot.reassignments, free)
    decisions = tuple(
        _reserved(decision, snapshot, limits, shares.get((decision.broker_id, decision.role), 0.0))
        for decision in plan.decisions
    )
    shown = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(free)[:5])
    more = f" and {len(free) - 5} more" if len(free) > 5 else ""
    said = f"partitions below min.insync.replicas are not held back: {shown}{more}"
    return Guarded(replace(plan, decisions=decisions, replicas=replicas), (said,))


def _without(lists: DesiredReplicas, gone: Collection[str]) -> DesiredReplicas:
    if not gone:
        return lists
    leader, follower = (
        frozenset(entry for entry in entries if entry.partition(":")[0] not in gone)
        for entries in (lists.leader, lists.follower)
    )
    free = lists.moving & frozenset(map(int, gone))
    return replace(lists, leader=leader, follower=follower, free=free, texts={})


def _shares(moves: Iterable[TopicReassignment], free: Collection[TopicPartition]) -> Mapping[Port, float]:
    """Port -> the part of its copies that belongs to free partitions."""
    copies: dict[Port, list[bool]] = {}
    for move in moves:
        for partition, leader, _, pending in move.rows():
            is_free = (move.topic, partition) in free
            for follower in pending:
                copies.setdefault((follower, ReplicaRole.FOLLOWER), []).append(is_free)
                copies.setdefault((leader, ReplicaRole.LEADER), []).append(is_free)
    return {port: sum(found) / len(found) for port, found in copies.items()}


def _reserved(decision: Decision, snapshot: Snapshot, limits: Limits, share: float) -> Decision:
    if not share or not decision.reason.is_measured or decision.headroom is None:
        return decision
    # A static rate may be below the floor, and is not raised to it.
    left = max(min(limits.floor, decision.headroom), round(decision.headroom * (1 - share)))
    previous = previous_rate(snapshot, decision.broker_id, decision.role)
    if previous is not None and is_small_change(previous, left, limits.change_threshold):
        return replace(decision, rate=previous, reason=Reason.UNCHANGED)
    return replace(decision, rate=left, reason=Reason.HEADROOM)


def window_warnings(plan: Plan, snapshot: Snapshot, settings: ClusterSettings) -> Mapping[int, str]:
    """Return destination -> a sentence, where the first responses exceed the quota before it acts (KIP-73, question 5).

    Args:
        plan: with the throttles that are to stand.
        snapshot: with what is being copied.
        settings: of the brokers; where one did not tell its own, Kafka's defaults count, and the sentence says so.
    """
    if _surely_within(plan, settings):
        return {}
    decided = {(d.broker_id, d.role): d for d in plan.decisions}
    leaders: dict[int, set[int]] = {}
    for flow in flows(snapshot):
        leaders.setdefault(flow.follower, set()).add(flow.leader)
    found = {}
    for follower, senders in sorted(leaders.items()):
        rates = [d.rate for b in senders if (d := decided.get((b, ReplicaRole.LEADER)))]
        receiving, own = decided.get((follower, ReplicaRole.FOLLOWER)), settings.of(follower)
        quota = min(rates, default=0)
        if quota <= 0:
            continue
        network = receiving.capacity if receiving and receiving.capacity else quota * len(senders)
        seconds = fill_seconds(own.response_max_bytes, len(senders), quota, network)
        if seconds >= own.window_seconds:
            most = largest_response(len(senders), quota, network, own.window_seconds)
            origin = "" if follower in settings.brokers else " (Kafka's defaults: its settings are unknown)"
            found[follower] = (
                f"broker {follower} [follower]: the first responses of {len(senders)} leaders, "
                f"{own.response_max_bytes} bytes each, take {seconds:.0f} s of the quota's window of "
                f"{own.window_seconds} s{origin}: the throttle is exceeded at first; "
                f"set replica.fetch.response.max.bytes to less than {most}"
            )
    return found


def _surely_within(plan: Plan, settings: ClusterSettings) -> bool:
    """Whether the window holds even if every leader sent to every destination: known without a look at the flows."""
    leaders = [d.rate for d in plan.decisions if d.role is ReplicaRole.LEADER]
    followers = [d for d in plan.decisions if d.role is ReplicaRole.FOLLOWER]
    return all(
        own.response_max_bytes < min(leaders, default=0) * own.window_seconds
        and d.capacity is not None
        and len(leaders) * own.response_max_bytes < d.capacity * own.window_seconds
        for d in followers
        if (own := settings.of(d.broker_id))
    )


def _about(rate: BytesPerSecond) -> str:
    """A rate in few digits: what is said again at every small change is not read."""
    return f"{float(f'{rate / MEGABYTE:.2g}'):g} MB/s"
