"""Safety rules applied to a plan before it is written, and what they remember from cycle to cycle.

Each rule maps a plan to a plan with findings. Throttles below the produce rate are raised, since a reassignment would
never end under them. Partitions below `min.insync.replicas` are exempt. With a deadline, throttles are limited to twice
the needed rate, so that small problems do not cost the deadline: after half of the time, a quarter of the bytes is
left. For fetches too large for a throttle there is only a warning.

A throttle that Kafka describes may not be in force: after a restart, a broker may report a config that is not active
(KAFKA-20890). It is judged by its effect, replication above the throttle. Kafka's own bursts are no reason for a
finding. The quota limits the mean over its window, and one round of fetch responses may exceed it. Only replicas in the
replica lists count, and in-sync replicas are never held back. The types to know are `GuardState` and `ThrottleEffect`.

Source: KIP-73 (questions 1, 4 and 5).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from autothrottle.core.cluster.configs import (
    DEFAULT_MIN_IN_SYNC_REPLICAS,
    KAFKA_DEFAULTS,
    ClusterSettings,
    ConfigResource,
    ReplicaRole,
    ResourceType,
    fill_seconds,
    fitting_response,
    is_large_response,
    largest_response,
)
from autothrottle.core.cluster.flows import Intervals, LinkSide, LinkTraffic, Progress, link_sides_of
from autothrottle.core.cluster.snapshot import NO_LEADER, Snapshot, TopicPartition, TopicReassignment, named
from autothrottle.core.forecast.eta import move_time, needed_rate
from autothrottle.core.forecast.progress import StallWatch
from autothrottle.core.policy.interface import Limits
from autothrottle.core.records import Basis, Decision, Outcome, Reason
from autothrottle.core.texts import excerpt
from autothrottle.core.throttles.changes import Change
from autothrottle.core.throttles.plan import DesiredReplicas, Plan, is_small_change
from autothrottle.core.traffic.loads import Loads, Utilization
from autothrottle.core.traffic.replication import (
    THROTTLE_WINDOW,
    Ingress,
    Replication,
    ThrottleHistory,
    ingress,
    link_side_growth,
)
from autothrottle.core.units import MEGABYTE, BytesPerSecond

DEADLINE_SLACK = 1.0
"""Rate above the rate that a deadline needs, as a fraction of it."""

_SHOWN = 3
"""Number of late link sides that a finding names, the latest first."""

_PRODUCE_RATE_WINDOW = timedelta(minutes=3)
"""The produce rate is the mean over this time."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A plan after a safety rule, and the rule's findings."""

    plan: Plan
    findings: tuple[str, ...] = ()
    """One sentence each."""


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
    return any(growth.get((d.broker_id, d.role), 0.0) * most >= max(d.rate_bytes_per_second, 1) for d in plan.decisions)


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
        if into is None or into.rate <= 0 or decision.rate_bytes_per_second > into.rate:
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
    if not decision.reason.is_measured or decision.basis is Basis.STATIC or decision.headroom_bytes_per_second is None:
        return False
    return limits.pause_over_capacity and decision.headroom_bytes_per_second < limits.min_rate


def _raised(decision: Decision, snapshot: Snapshot, limits: Limits, into: Ingress) -> Decision | None:
    """Return the decision with a rate at which the reassignment can end; None: not possible, or an override."""
    if decision.reason.is_override or decision.capacity_bytes_per_second is None:
        return None
    highest = highest_throttle(decision.capacity_bytes_per_second, into)
    if highest <= into.rate:
        return None
    rate = min(highest, into.rate + max(math.ceil(into.rate / 10), limits.min_rate))
    previous = snapshot.previous_rates.get((decision.broker_id, decision.role))
    if previous is not None and into.rate < previous and is_small_change(previous, rate, limits.change_threshold):
        rate = previous
    return replace(decision, rate_bytes_per_second=rate, reason=Reason.STARVATION)


def _starving(decision: Decision, raised: Decision | None, into: Ingress, scheduled: bool, is_left: bool) -> str:
    where = f"broker {decision.broker_id} [{decision.role.value}]"
    rate, in_rate = _rounded(decision.rate_bytes_per_second), _rounded(into.rate)
    why = f"{where}: at {rate} its reassignment would never end, because clients produce {in_rate} to it"
    if raised is not None:
        return f"{why}; raised to {_rounded(raised.rate_bytes_per_second)}"
    if decision.reason.is_override:
        return f"{why}; the override is kept: raise it above that"
    if scheduled:
        return f"{why}; the schedule is kept: raise its share, or wait for the end of its window"
    if is_left:
        return f"{why}; not raised, because clients need the link"
    if decision.capacity_bytes_per_second is None:
        return f"{why}; not raised without metrics"
    highest = _rounded(highest_throttle(decision.capacity_bytes_per_second, into))
    return (
        f"{why}; a link of {_rounded(decision.capacity_bytes_per_second)} allows it at most {highest} (N - IN/R): "
        "reassign fewer of its partitions at a time, or when clients produce less"
    )


def below_min_isr(reassignments: Iterable[TopicReassignment], settings: ClusterSettings) -> frozenset[TopicPartition]:
    """Return the partitions being copied whose ISR is smaller than `min.insync.replicas`, so that acks=all fails.

    Offline partitions are not among them: nothing is copied, and their throttle must be there when they have a leader.
    """
    below: set[TopicPartition] = set()
    for reassignment in reassignments:
        topic = reassignment.topic
        least = settings.min_in_sync_replicas.get(topic, DEFAULT_MIN_IN_SYNC_REPLICAS)
        if least > min(map(len, reassignment.isr), default=least):
            below |= {
                (topic, p)
                for p, leader, isr, pending in reassignment.rows()
                if pending and leader != NO_LEADER and len(isr) < least
            }
    return frozenset(below)


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
    shown = excerpt([named(row) for row in sorted(free)], 5)
    finding = f"partitions below min.insync.replicas are not throttled: {shown}"
    return Guarded(replace(plan, decisions=decisions, replicas=replicas), (finding,))


def _without(lists: DesiredReplicas, exempt: Collection[str]) -> DesiredReplicas:
    if not exempt:
        return lists
    leader, follower = (
        frozenset(entry for entry in entries if entry.partition(":")[0] not in exempt)
        for entries in (lists.leader, lists.follower)
    )
    free = lists.moving & frozenset(map(int, exempt))
    return replace(lists, leader=leader, follower=follower, free=free)


def _shares(reassignments: Iterable[TopicReassignment], free: Collection[TopicPartition]) -> Mapping[LinkSide, float]:
    """Return link side -> share of its copies that belongs to exempt partitions."""
    copies: dict[LinkSide, list[bool]] = {}
    for reassignment in reassignments:
        for partition, leader, _, pending in reassignment.rows():
            is_free = (reassignment.topic, partition) in free
            for follower in pending:
                copies.setdefault((follower, ReplicaRole.FOLLOWER), []).append(is_free)
                copies.setdefault((leader, ReplicaRole.LEADER), []).append(is_free)
    return {side: sum(flags) / len(flags) for side, flags in copies.items()}


def _reserved(decision: Decision, snapshot: Snapshot, limits: Limits, share: float) -> Decision:
    headroom = decision.headroom_bytes_per_second
    if not share or not decision.reason.is_measured or headroom is None:
        return decision
    # A static rate may be below the floor; it is not raised to the floor.
    rate = max(min(limits.floor, headroom), round(headroom * (1 - share)))
    previous = snapshot.previous_rates.get((decision.broker_id, decision.role))
    if previous is not None and is_small_change(previous, rate, limits.change_threshold):
        return replace(decision, rate_bytes_per_second=previous, reason=Reason.UNCHANGED)
    return replace(decision, rate_bytes_per_second=rate, reason=Reason.HEADROOM)


def without_raises(plan: Plan, snapshot: Snapshot) -> Plan:
    """Return the plan without raises, except those of overrides: flows that are not read yet may need the link."""
    return replace(plan, decisions=tuple(_not_raised(decision, snapshot) for decision in plan.decisions))


def _not_raised(decision: Decision, snapshot: Snapshot) -> Decision:
    previous = snapshot.previous_rates.get((decision.broker_id, decision.role))
    if previous is None or decision.rate_bytes_per_second <= previous or decision.reason.is_override:
        return decision
    return replace(decision, rate_bytes_per_second=previous, reason=Reason.UNCHANGED)


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
    responses = large_responses(plan, snapshot, settings)
    return responses[0].warning(len(responses) - 1) if responses else ""


@dataclass(frozen=True, slots=True, order=True)
class LargeResponse:
    """Fetch responses of one follower that are too large for its throttle."""

    fitting: int
    """A `replica.fetch.response.max.bytes` that fits, bytes."""
    follower: int
    text: str

    def warning(self, others: int = 0) -> str:
        """Return a sentence with the fix; `others`: the number of further followers with such responses."""
        more = f" and {others} more" if others else ""
        return (
            f"broker {self.follower} [follower]: {self.text}; set replica.fetch.response.max.bytes={self.fitting} and "
            f"replica.fetch.max.bytes={self.fitting // 2} in server.properties of this broker{more}, and restart: "
            "Kafka does not change them dynamically"
        )


def large_responses(plan: Plan, snapshot: Snapshot, settings: ClusterSettings) -> list[LargeResponse]:
    """Return the followers of `fetch_warning`, those that need the smallest responses first."""
    if _surely_fit(plan, snapshot, settings):
        return []
    quotas = {d.broker_id: d.rate_bytes_per_second for d in plan.decisions if d.role is ReplicaRole.LEADER}
    followers = {d.broker_id: d for d in plan.decisions if d.role is ReplicaRole.FOLLOWER}
    leaders: dict[int, list[int]] = {}
    for leader, follower in snapshot.flows:
        leaders.setdefault(follower, []).append(leader)
    responses = []
    for follower, broker_ids in leaders.items():
        rates = [quotas[b] for b in broker_ids if b in quotas]
        own, count, size = followers.get(follower), len(broker_ids), settings.brokers.get(follower, KAFKA_DEFAULTS)
        quota = min(rates, default=0)
        if quota <= 0:
            continue
        rate = min(sum(rates), own.rate_bytes_per_second) if own else sum(rates)
        network = own.capacity_bytes_per_second if own and own.capacity_bytes_per_second else quota * count
        seconds = fill_seconds(size.response_max_bytes, count, quota, network)
        if seconds >= size.window_seconds:
            effect = f"take {seconds:.0f} s, the quota window is only {size.window_seconds} s: they exceed the throttle"
        elif rate > 0 and follower in settings.brokers and is_large_response(size.response_max_bytes, count, rate):
            share = size.response_max_bytes * count / rate
            effect = f"are {share:.2g} s of its throttle, {_rounded(rate)}: meanwhile they fill the link"
        else:
            continue
        most = largest_response(count, quota, network, size.window_seconds) // 2
        origin = "" if follower in settings.brokers else " (Kafka's defaults: its settings are unknown)"
        text = f"the responses to one round of fetches, {count} x {size.response_max_bytes} bytes{origin}, {effect}"
        responses.append(LargeResponse(min(fitting_response(count, rate), most), follower, text))
    return sorted(responses)


def _surely_fit(plan: Plan, snapshot: Snapshot, settings: ClusterSettings) -> bool:
    """Return whether the responses fit even if every leader sends to every follower; it does not read the flows."""
    leaders = sum(ReplicaRole.LEADER in roles for roles in snapshot.participants.values())
    quota = min((d.rate_bytes_per_second for d in plan.decisions if d.role is ReplicaRole.LEADER), default=0)
    if not leaders or quota <= 0:
        return False

    def fits(broker_id: int, rate: BytesPerSecond, network: BytesPerSecond) -> bool:
        size = settings.brokers.get(broker_id, KAFKA_DEFAULTS)
        if fill_seconds(size.response_max_bytes, leaders, quota, network) >= size.window_seconds:
            return False
        is_large = is_large_response(size.response_max_bytes, leaders, min(quota, rate))
        return broker_id not in settings.brokers or not is_large

    sides = (
        (d.broker_id, d.rate_bytes_per_second, d.capacity_bytes_per_second)
        for d in plan.decisions
        if d.role is ReplicaRole.FOLLOWER
    )
    fitting = {broker_id for broker_id, rate, network in sides if network and fits(broker_id, rate, network)}
    return all(b in fitting for b, roles in snapshot.participants.items() if ReplicaRole.FOLLOWER in roles)


def _rounded(rate: BytesPerSecond) -> str:
    """Return a rate with two significant digits, so that a finding does not change with every small rate change."""
    return f"{float(f'{rate / MEGABYTE:.2g}'):g} MB/s"


def limited_by_deadline(
    plan: Plan,
    snapshot: Snapshot,
    limits: Limits,
    produced: Mapping[LinkSide, Ingress],
    finish_by: datetime,
    now: datetime,
) -> Guarded:
    """Return the plan with measured throttles limited to twice the rate that the deadline needs, and findings.

    Findings name the link sides that cannot meet the deadline. The limit does not apply after the deadline, while the
    bytes left are unknown, or to brokers that catch up.

    Args:
        plan: the plan so far.
        snapshot: the snapshot of the cycle, with its progress.
        limits: the operator's limits; no throttle falls below the minimum.
        produced: link side -> produce traffic to its partitions; absent: counts as 0.
        finish_by: deadline of all reassignments, UTC.
        now: UTC.
    """
    within = finish_by - now
    bytes_left = _bytes_left(snapshot)
    if within <= timedelta(0) or not bytes_left:
        return Guarded(plan)
    decisions = []
    late: list[tuple[timedelta, str]] = []
    for decision in plan.decisions:
        side = decision.broker_id, decision.role
        if side not in bytes_left or side in snapshot.catching_up:
            decisions.append(decision)
            continue
        growth = produced[side].rate if side in produced else 0
        time = move_time(bytes_left[side], decision.rate_bytes_per_second, growth)
        if time is None or time > within:
            late.append((timedelta.max if time is None else time, _late(decision, bytes_left[side], now, time)))
        need = needed_rate(bytes_left[side], growth, within)
        decisions.append(_limited(decision, snapshot, limits, math.ceil((1 + DEADLINE_SLACK) * need)))
    deadline = f"{finish_by:%Y-%m-%dT%H:%M:%SZ}"
    findings = (f"the reassignments cannot finish by {deadline}: {_latest(late)}",) if late else ()
    return Guarded(replace(plan, decisions=tuple(decisions)), findings)


def _latest(late: list[tuple[timedelta, str]]) -> str:
    ordered = [sentence for _, sentence in sorted(late, key=lambda item: item[0], reverse=True)]
    more = f"; and {len(late) - _SHOWN} more link sides" if len(late) > _SHOWN else ""
    return "; ".join(ordered[:_SHOWN]) + more


def _bytes_left(snapshot: Snapshot) -> Mapping[LinkSide, int]:
    """Return link side -> bytes left; absent: one of its flows is unknown."""
    if snapshot.progress is None:
        return {}
    counted = link_sides_of(snapshot.flows) - snapshot.uncounted_sides
    return {side: snapshot.progress.link_traffic[side].bytes_left for side in counted}


def _limited(decision: Decision, snapshot: Snapshot, limits: Limits, most: int) -> Decision:
    most = max(most, limits.min_rate)
    if not decision.reason.is_measured or decision.rate_bytes_per_second <= most:
        return decision
    previous = snapshot.previous_rates.get((decision.broker_id, decision.role))
    if previous is not None and is_small_change(previous, most, limits.change_threshold):
        most = min(previous, decision.rate_bytes_per_second)
    return replace(decision, rate_bytes_per_second=most, reason=Reason.FINISH_BY)


def _late(decision: Decision, bytes_left: int, now: datetime, time: timedelta | None) -> str:
    end = "never finish" if time is None else f"take until {now + time:%Y-%m-%dT%H:%M:%SZ}"
    return (
        f"broker {decision.broker_id} [{decision.role.value}] has {bytes_left / MEGABYTE:.0f} MB left, which at "
        f"{decision.rate_bytes_per_second / MEGABYTE:.2f} MB/s {end}"
    )


@dataclass(frozen=True, slots=True)
class GuardState:
    """The guards' state of one term."""

    samples: tuple[Progress, ...] = ()
    """Progress of the last minutes, the newest last."""
    growth: Mapping[LinkSide, float] = field(default_factory=dict)
    """Link side -> produce rate of its flows, bytes/s."""
    missed_deadline: str = ""
    """The first finding about a deadline that cannot be met; "": it can."""
    stalls: StallWatch = StallWatch()  # noqa: RUF009 (frozen)
    stalled: Mapping[int, str] = field(default_factory=dict)
    """Follower -> finding about its stall."""
    large_fetches: str = ""
    """The first finding about fetches that are too large for the throttles of these participants; "": they fit."""
    checked_fetches: bool = False
    """Whether `large_fetches` was computed with the settings of all participants."""

    def observe(self, progress: Progress | None) -> GuardState:
        """Return the state with a new sample of the progress; a sample that is already known changes nothing."""
        if progress is None or progress.at is None or (self.samples and self.samples[-1].at == progress.at):
            return self
        oldest = progress.at - _PRODUCE_RATE_WINDOW
        samples = (*(s for s in self.samples if s.at is not None and s.at >= oldest), progress)
        return replace(self, samples=samples, growth=link_side_growth(samples))

    def apply(
        self,
        plan: Plan,
        snapshot: Snapshot,
        limits: Limits,
        exempt: Collection[TopicPartition],
        finish_by: datetime | None,
        scheduled: bool,
        now: datetime,
    ) -> tuple[GuardState, Guarded]:
        """Return the plan with all rules applied, in order.

        Args:
            plan: the decisions.
            snapshot: the input of the decisions.
            limits: the operator's limits at this time.
            exempt: partitions below min.insync.replicas, which must not be throttled.
            finish_by: deadline, UTC; None: none.
            scheduled: whether a window of the schedule is active.
            now: UTC.
        """
        freed = with_exempt_partitions(plan, snapshot, limits, exempt)
        reassignments, produced = snapshot.reassignments, dict[LinkSide, Ingress]()
        if finish_by is not None or may_starve(freed.plan, self.growth, reassignments):
            produced.update(ingress(self.samples, reassignments))
        limited = Guarded(freed.plan)
        if finish_by is not None:
            limited = limited_by_deadline(freed.plan, snapshot, limits, produced, finish_by, now)
        missed = (self.missed_deadline or limited.findings[0]) if limited.findings else ""
        deadline = missed or _ineffective_deadline(snapshot, finish_by, now)
        fed = without_starvation(limited.plan, snapshot, limits, produced, scheduled)
        if snapshot.unread_partitions:
            fed = replace(fed, plan=without_raises(fed.plan, snapshot))
        findings = (*freed.findings, *([deadline] if deadline else []), *fed.findings)
        return replace(self, missed_deadline=missed), Guarded(fed.plan, findings)

    def watch(
        self, plan: Plan, snapshot: Snapshot, scheduled: bool, settings: ClusterSettings | None
    ) -> tuple[GuardState, tuple[str, ...]]:
        """Return the state after a cycle, and its new stalls, a sentence each.

        A finding that persists keeps its text, so that it is logged once.

        Args:
            plan: the cycle's plan.
            snapshot: the input of the decisions.
            scheduled: whether the cycle is the regular one of an interval.
            settings: the brokers' settings; None: those of the participants are still being read.
        """
        stalls = self.stalls.observe(snapshot.progress) if scheduled else self.stalls
        stalled = stalls.stalled(plan.decisions, snapshot.progress)
        new = tuple(sentence for follower, sentence in stalled.items() if follower not in self.stalled)
        large, checked = self.large_fetches, self.checked_fetches and settings is not None
        if settings is not None and (scheduled or not checked):
            warning = fetch_warning(plan, snapshot, settings)
            large, checked = (large if checked and large and warning else warning), True
        after = replace(
            self,
            stalls=stalls,
            stalled={follower: self.stalled.get(follower, sentence) for follower, sentence in stalled.items()},
            large_fetches=large,
            checked_fetches=checked,
        )
        return after, new


def _ineffective_deadline(snapshot: Snapshot, finish_by: datetime | None, now: datetime) -> str:
    """Why the configured deadline has no effect. Empty: it has one, no deadline is set, or no reassignment runs."""
    if finish_by is None or not snapshot.reassignments:
        return ""
    if now >= finish_by:
        return f"finish-by {finish_by:%Y-%m-%dT%H:%M:%SZ} has passed: rates follow the headroom"
    if snapshot.progress is None:
        return (
            f"finish-by {finish_by:%Y-%m-%dT%H:%M:%SZ} has no effect, since log sizes are unknown: "
            "rates follow the headroom; in ZooKeeper mode set --bootstrap-servers"
        )
    return ""


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
    snapshot: Snapshot,
    plan: Plan,
    changes: Iterable[Change],
    refused: Iterable[Outcome],
    held_resources: Iterable[ConfigResource] = (),
) -> frozenset[LinkSide]:
    """Return the link sides in reassignment that have a throttle, and whose topics need no change of a replica list."""
    edited = [change.resource for change in changes if change.edits]
    resources = (*edited, *(outcome.resource for outcome in refused), *held_resources)
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
