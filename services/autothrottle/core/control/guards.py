"""Safety rules applied to a plan before it is written.

They raise throttles below the produce rate, under which a reassignment would never end, and exempt partitions below
`min.insync.replicas`. Each rule maps a plan to a plan with findings. For fetches too large for a throttle there is only
a warning. The type to know is `Guarded`.

Source: KIP-73 (questions 1, 4 and 5).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.fetch_settings import (
    ClusterSettings,
    fill_seconds,
    fitting_response,
    is_large_response,
    largest_response,
)
from autothrottle.core.cluster.flows import Flow, FlowProgress, LinkSide, Progress
from autothrottle.core.cluster.snapshot import NO_LEADER, Snapshot, TopicPartition, TopicReassignment, flows
from autothrottle.core.control.plan import Decision, DesiredReplicas, Plan, Reason, is_small_change, previous_rate
from autothrottle.core.policy.interface import Basis
from autothrottle.core.policy.limits import Limits
from autothrottle.core.units import MEGABYTE, BytesPerSecond


@dataclass(frozen=True, slots=True)
class Guarded:
    """A plan after a safety rule, and the rule's findings."""

    plan: Plan
    findings: tuple[str, ...] = ()
    """One sentence each."""


@dataclass(frozen=True, slots=True)
class Ingress:
    """Produce traffic to the partitions that a link side is copying."""

    rate: BytesPerSecond
    """KIP-73's IN, bytes/s: traffic that counts against the throttle without progress of the reassignment. It includes
    the fetches of in-sync followers."""
    replication_factor: float
    """KIP-73's R: mean over these partitions, >= 1."""


def ingress(samples: Sequence[Progress], reassignments: Iterable[TopicReassignment]) -> Mapping[LinkSide, Ingress]:
    """Return link side -> produce traffic to the partitions in reassignment; absent: one of its flows is unknown.

    Args:
        samples: progress of the last minutes, the newest last.
        reassignments: the reassignments being copied.
    """
    growth = _growth(samples)
    found: dict[LinkSide, float] = {}
    factors: dict[LinkSide, list[float]] = {}
    unknown: set[LinkSide] = set()
    for flow, mean in _means(reassignments).items():
        leader, follower = flow.sides
        rate = growth.get(flow)
        if rate is None:
            unknown |= {leader, follower}
            continue
        found[follower] = found.get(follower, 0.0) + rate
        found[leader] = found.get(leader, 0.0) + rate * (1 + mean.in_sync_per_copy)
        for side in (leader, follower):
            factors.setdefault(side, []).append(mean.replication_factor)
    return {
        side: Ingress(round(rate), sum(factors[side]) / len(factors[side]))
        for side, rate in found.items()
        if side not in unknown
    }


def link_side_growth(samples: Sequence[Progress]) -> Mapping[LinkSide, float]:
    """Return link side -> produce rate of its flows, bytes/s, without the fetches of in-sync followers."""
    leaders: dict[int, float] = {}
    followers: dict[int, float] = {}
    for flow, rate in _growth(samples).items():
        if rate:
            leaders[flow.leader] = leaders.get(flow.leader, 0.0) + rate
            followers[flow.follower] = followers.get(flow.follower, 0.0) + rate
    sides = ((ReplicaRole.LEADER, leaders), (ReplicaRole.FOLLOWER, followers))
    return {(broker_id, role): rate for role, found in sides for broker_id, rate in found.items()}


def may_starve(plan: Plan, growth: Mapping[LinkSide, float], reassignments: Iterable[TopicReassignment]) -> bool:
    """Return whether `without_starvation` could find anything; far cheaper than `ingress` for 100,000 partitions.

    It is an upper bound: every in-sync replica counts as one that fetches from the leader.

    Args:
        plan: the plan so far.
        growth: see `link_side_growth`.
        reassignments: the reassignments being copied.
    """
    if not growth:
        return False
    most = 1 + max((len(isr) for reassignment in reassignments for isr in reassignment.isr), default=0)
    return any(growth.get((d.broker_id, d.role), 0.0) * most >= max(d.rate, 1) for d in plan.decisions)


@dataclass(frozen=True, slots=True)
class _Means:
    """Means over the partitions of one flow."""

    in_sync_per_copy: float
    replication_factor: float


def _means(reassignments: Iterable[TopicReassignment]) -> Mapping[Flow, _Means]:
    rows: dict[Flow, list[tuple[float, int]]] = {}
    for reassignment in reassignments:
        columns = zip(
            reassignment.leaders,
            reassignment.isr,
            reassignment.adding_replicas,
            reassignment.removing_replicas,
            strict=True,
        )
        for leader, isr, adding, removing in columns:
            pending = [b for b in adding if b not in isr]
            if leader == NO_LEADER or not pending:
                continue
            # The leader's replica list covers all copies: its in-sync followers count once, not once per copy.
            in_sync = sum(b != leader for b in isr) / len(pending)
            factor = max(1, len({*isr, *adding}) - len(removing))
            for follower in pending:
                rows.setdefault(Flow(leader, follower), []).append((in_sync, factor))
    return {
        flow: _Means(sum(in_sync for in_sync, _ in found) / len(found), sum(factor for _, factor in found) / len(found))
        for flow, found in rows.items()
    }


def _growth(samples: Sequence[Progress]) -> Mapping[Flow, float]:
    """Return flow -> produce rate of its partitions, bytes/s, since the oldest sample with the same `since`."""
    found = {}
    oldest = samples[0].flows if samples else {}
    for flow, newest in (samples[-1].flows if samples else {}).items():
        old = oldest.get(flow)
        if old is None or old.since != newest.since:
            old = _oldest_comparable(samples, flow, newest)
        if newest.at > old.at:
            found[flow] = max(0, newest.bytes_produced - old.bytes_produced) / (newest.at - old.at).total_seconds()
    return found


def _oldest_comparable(samples: Sequence[Progress], flow: Flow, newest: FlowProgress) -> FlowProgress:
    olds = (sample.flows.get(flow) for sample in samples)
    return next((old for old in olds if old is not None and old.since == newest.since), newest)


def highest_throttle(capacity: BytesPerSecond, produced: Ingress) -> BytesPerSecond:
    """Return the highest throttle by KIP-73's `IN < T < N - IN/R`, which leaves room for the produce traffic.

    >>> highest_throttle(100_000_000, Ingress(rate=30_000_000, replication_factor=3))
    90000000
    """
    return max(0, round(capacity - produced.rate / produced.replication_factor))


def without_starvation(
    plan: Plan, snapshot: Snapshot, limits: Limits, produced: Mapping[LinkSide, Ingress], scheduled: bool = False
) -> Guarded:
    """Return the plan with every throttle high enough for its reassignment to end, by KIP-73's `IN < T < N - IN/R`.

    A throttle at or below the produce rate is raised slightly above it, at most to `N - IN/R`. Some throttles are only
    reported: overrides, throttles in a schedule window, throttles that leave the link to clients, and throttles without
    metrics.

    Args:
        plan: the plan so far.
        snapshot: the snapshot of the cycle.
        limits: the operator's limits.
        produced: link side -> produce traffic to its partitions.
        scheduled: whether a schedule window is active.
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
    """Return whether a rate is below the minimum because clients need the link; includes rates kept as unchanged."""
    if decision.reason is Reason.OVER_CAPACITY:
        return True
    if not decision.reason.is_measured or decision.basis is Basis.STATIC or decision.headroom is None:
        return False
    return limits.pause_over_capacity and decision.headroom < limits.min_rate


def _raised(decision: Decision, snapshot: Snapshot, limits: Limits, into: Ingress) -> Decision | None:
    """Return the decision with a rate at which the reassignment can end; None: not possible, or an override."""
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
    rate, in_rate = _rounded(decision.rate), _rounded(into.rate)
    why = f"{where}: at {rate} its reassignment would never end, because clients produce {in_rate} to it"
    if raised is not None:
        return f"{why}; raised to {_rounded(raised.rate)}"
    if decision.reason.is_override:
        return f"{why}; the override is kept: raise it above that"
    if scheduled:
        return f"{why}; the schedule is kept: raise its share, or wait for the end of its window"
    if is_left:
        return f"{why}; not raised, because clients need the link"
    if decision.capacity is None:
        return f"{why}; not raised without metrics"
    highest = _rounded(highest_throttle(decision.capacity, into))
    return (
        f"{why}; a link of {_rounded(decision.capacity)} allows it at most {highest} (N - IN/R): reassign fewer of its "
        "partitions at a time, or when clients produce less"
    )


def below_min_isr(reassignments: Iterable[TopicReassignment], settings: ClusterSettings) -> frozenset[TopicPartition]:
    """Return the partitions being copied whose ISR is smaller than `min.insync.replicas`, so that acks=all fails."""
    return frozenset(
        (reassignment.topic, partition)
        for reassignment in reassignments
        if (least := settings.least_in_sync(reassignment.topic)) > min(map(len, reassignment.isr), default=least)
        for partition, _, isr, pending in reassignment.rows()
        if pending and len(isr) < least
    )


def with_exempt_partitions(plan: Plan, snapshot: Snapshot, limits: Limits, free: Collection[TopicPartition]) -> Guarded:
    """Return the plan without these partitions in any replica list, and with throttles reduced by their share.

    Their share of a link side's headroom is their share of its copies; it stays free for them. Throttles that are not
    measured stay.
    """
    if not free:
        return Guarded(plan)
    exempt: dict[str, set[str]] = {}
    for topic, partition in free:
        exempt.setdefault(topic, set()).add(f"{partition}")
    replicas = {topic: _without(lists, exempt.get(topic, set())) for topic, lists in plan.replicas.items()}
    shares = _shares(snapshot.reassignments, free)
    decisions = tuple(
        _reserved(decision, snapshot, limits, shares.get((decision.broker_id, decision.role), 0.0))
        for decision in plan.decisions
    )
    shown = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(free)[:5])
    more = f" and {len(free) - 5} more" if len(free) > 5 else ""
    finding = f"partitions below min.insync.replicas are not throttled: {shown}{more}"
    return Guarded(replace(plan, decisions=decisions, replicas=replicas), (finding,))


def _without(lists: DesiredReplicas, exempt: Collection[str]) -> DesiredReplicas:
    if not exempt:
        return lists
    leader, follower = (
        frozenset(entry for entry in entries if entry.partition(":")[0] not in exempt)
        for entries in (lists.leader, lists.follower)
    )
    free = lists.moving & frozenset(map(int, exempt))
    return replace(lists, leader=leader, follower=follower, free=free, texts={})


def _shares(reassignments: Iterable[TopicReassignment], free: Collection[TopicPartition]) -> Mapping[LinkSide, float]:
    """Return link side -> share of its copies that belongs to exempt partitions."""
    copies: dict[LinkSide, list[bool]] = {}
    for reassignment in reassignments:
        for partition, leader, _, pending in reassignment.rows():
            is_free = (reassignment.topic, partition) in free
            for follower in pending:
                copies.setdefault((follower, ReplicaRole.FOLLOWER), []).append(is_free)
                copies.setdefault((leader, ReplicaRole.LEADER), []).append(is_free)
    return {side: sum(found) / len(found) for side, found in copies.items()}


def _reserved(decision: Decision, snapshot: Snapshot, limits: Limits, share: float) -> Decision:
    if not share or not decision.reason.is_measured or decision.headroom is None:
        return decision
    # A static rate may be below the floor; it is not raised to the floor.
    left = max(min(limits.floor, decision.headroom), round(decision.headroom * (1 - share)))
    previous = previous_rate(snapshot, decision.broker_id, decision.role)
    if previous is not None and is_small_change(previous, left, limits.change_threshold):
        return replace(decision, rate=previous, reason=Reason.UNCHANGED)
    return replace(decision, rate=left, reason=Reason.HEADROOM)


def fetch_warning(plan: Plan, snapshot: Snapshot, settings: ClusterSettings) -> str:
    """Return a sentence about fetch responses that are too large for the throttles, with sizes that fit; "": they fit.

    Such responses fill a follower's link while they arrive. At worst, the first ones exceed the quota before it acts
    (KIP-73, question 5). The sentence describes the follower that needs the smallest ones.

    Args:
        plan: the plan, with the desired throttles.
        snapshot: the snapshot of the cycle.
        settings: the brokers' settings. For a broker that did not report them, Kafka's defaults count, but only for
            the quota window, and the warning says so.
    """
    decided = {(d.broker_id, d.role): d for d in plan.decisions}
    leaders: dict[int, set[int]] = {}
    for flow in flows(snapshot):
        leaders.setdefault(flow.follower, set()).add(flow.leader)
    found = []
    for follower, broker_ids in leaders.items():
        rates = [d.rate for b in broker_ids if (d := decided.get((b, ReplicaRole.LEADER)))]
        own, count, size = decided.get((follower, ReplicaRole.FOLLOWER)), len(broker_ids), settings.of(follower)
        quota = min(rates, default=0)
        if quota <= 0:
            continue
        rate = min(sum(rates), own.rate) if own else sum(rates)
        network = own.capacity if own and own.capacity else quota * count
        seconds = fill_seconds(size.response_max_bytes, count, quota, network)
        if seconds >= size.window_seconds:
            effect = f"take {seconds:.0f} s, the quota window is only {size.window_seconds} s: they exceed the throttle"
        elif follower in settings.brokers and is_large_response(size.response_max_bytes, count, rate):
            share = size.response_max_bytes * count / rate
            effect = f"are {share:.2g} s of its throttle, {_rounded(rate)}: meanwhile they fill the link"
        else:
            continue
        most = largest_response(count, quota, network, size.window_seconds) // 2
        origin = "" if follower in settings.brokers else " (Kafka's defaults: its settings are unknown)"
        text = f"the responses to one round of fetches, {count} x {size.response_max_bytes} bytes{origin}, {effect}"
        found.append((min(fitting_response(count, rate), most), follower, text))
    if not found:
        return ""
    fitting, follower, text = min(found)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"broker {follower} [follower]: {text}; set replica.fetch.response.max.bytes={fitting} and "
        f"replica.fetch.max.bytes={fitting // 2} in server.properties of this broker{more}, and restart: "
        "Kafka does not change them dynamically"
    )


def _rounded(rate: BytesPerSecond) -> str:
    """Return a rate with two significant digits, so that a finding does not change with every small rate change."""
    return f"{float(f'{rate / MEGABYTE:.2g}'):g} MB/s"
