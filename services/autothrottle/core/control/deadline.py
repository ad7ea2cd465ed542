"""Reassignments with a deadline: they use only the rate that the deadline needs, and leave the rest to clients.

With the headroom that clients leave, a reassignment ends at T at the earliest. With a deadline D, its throttles are
those for max(T, D). Each throttle is twice the needed rate, so that small problems do not cost the deadline: after half
of the time, a quarter of the bytes is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from autothrottle.core.cluster.flows import LinkSide, link_sides_of
from autothrottle.core.cluster.snapshot import Snapshot, flows, link_sides_without_counts
from autothrottle.core.control.guards import Guarded, Ingress
from autothrottle.core.control.plan import Decision, Plan, Reason, is_small_change, previous_rate
from autothrottle.core.forecast.move_time import move_time, needed_rate
from autothrottle.core.policy.limits import Limits
from autothrottle.core.units import MEGABYTE

SLACK = 1.0
"""Rate above the needed rate, as a fraction of it."""

_SHOWN = 3
"""Number of late link sides that a finding names, the latest first."""


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
    left = _left(snapshot)
    if within <= timedelta(0) or not left:
        return Guarded(plan)
    decisions = []
    late: list[tuple[timedelta, str]] = []
    for decision in plan.decisions:
        side = decision.broker_id, decision.role
        if side not in left or side in snapshot.catching_up:
            decisions.append(decision)
            continue
        growth = produced[side].rate if side in produced else 0
        time = move_time(left[side], decision.rate, growth)
        if time is None or time > within:
            late.append((timedelta.max if time is None else time, _late(decision, left[side], now, time)))
        need = needed_rate(left[side], growth, within)
        decisions.append(_held(decision, snapshot, limits, math.ceil((1 + SLACK) * need)))
    deadline = f"{finish_by:%Y-%m-%dT%H:%M:%SZ}"
    findings = (f"the reassignments cannot finish by {deadline}: {_latest(late)}",) if late else ()
    return Guarded(replace(plan, decisions=tuple(decisions)), findings)


def _latest(late: list[tuple[timedelta, str]]) -> str:
    ordered = [sentence for _, sentence in sorted(late, key=lambda item: item[0], reverse=True)]
    more = f"; and {len(late) - _SHOWN} more link sides" if len(late) > _SHOWN else ""
    return "; ".join(ordered[:_SHOWN]) + more


def _left(snapshot: Snapshot) -> Mapping[LinkSide, int]:
    """Return link side -> bytes left; absent: one of its flows is unknown."""
    if snapshot.progress is None:
        return {}
    known = link_sides_of(flows(snapshot)) - link_sides_without_counts(snapshot, flows(snapshot))
    return {side: snapshot.progress.link_traffic[side].bytes_left for side in known}


def _held(decision: Decision, snapshot: Snapshot, limits: Limits, most: int) -> Decision:
    most = max(most, limits.min_rate)
    if not decision.reason.is_measured or decision.rate <= most:
        return decision
    previous = previous_rate(snapshot, decision.broker_id, decision.role)
    if previous is not None and is_small_change(previous, most, limits.change_threshold):
        most = min(previous, decision.rate)
    return replace(decision, rate=most, reason=Reason.FINISH_BY)


def _late(decision: Decision, left: int, now: datetime, time: timedelta | None) -> str:
    end = "never finish" if time is None else f"take until {now + time:%Y-%m-%dT%H:%M:%SZ}"
    return (
        f"broker {decision.broker_id} [{decision.role.value}] has {left / MEGABYTE:.0f} MB left, which at "
        f"{decision.rate / MEGABYTE:.2f} MB/s {end}"
    )
