"""Moves that need not end before some time: then they take of the links what that needs, and leave the rest to clients.

A move ends at T at the earliest, with what clients leave; by a deadline D its throttles are those of max(T, D). Each is
twice what the port needs, so that a little that goes wrong does not cost the deadline: with half of the time over, a
quarter is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from autothrottle.core.guards import Guarded, Ingress
from autothrottle.core.limits import Limits
from autothrottle.core.loads import MEGABYTE, Port
from autothrottle.core.move_time import move_time, needed_rate
from autothrottle.core.plan import Decision, Plan, Reason, is_small_change, previous_rate
from autothrottle.core.topology import Snapshot, flows

SLACK = 1.0
"""So much more than it needs a port gets, as a share of it."""

_SHOWN = 3
"""How many ports that are late are named, the latest first."""


def held_to_deadline(
    plan: Plan, snapshot: Snapshot, limits: Limits, produced: Mapping[Port, Ingress], finish_by: datetime, now: datetime
) -> Guarded:
    """Return the plan with no measured throttle above twice what the deadline needs, and what cannot be done by it.

    Nothing is held to a deadline that is over, nor while it is unknown how much is left, nor where a broker catches up.

    Args:
        plan: what was decided.
        snapshot: what was decided on, with its progress.
        limits: what the operator allows; no throttle falls below the minimum.
        produced: port -> what is produced to its partitions; until that is known nothing is.
        finish_by: when all moves shall be done, UTC.
        now: UTC.
    """
    within = finish_by - now
    left = _left(snapshot)
    if within <= timedelta(0) or not left:
        return Guarded(plan)
    decisions = []
    late: list[tuple[timedelta, str]] = []
    for decision in plan.decisions:
        port = decision.broker_id, decision.role
        if port not in left or port in snapshot.catching_up:
            decisions.append(decision)
            continue
        growth = produced[port].rate if port in produced else 0
        time = move_time(left[port], decision.rate, growth)
        if time is None or time > within:
            late.append((timedelta.max if time is None else time, _late(decision, left[port], now, time)))
        need = needed_rate(left[port], growth, within)
        decisions.append(_held(decision, snapshot, limits, math.ceil((1 + SLACK) * need)))
    findings = (f"the moves cannot be done by {finish_by:%Y-%m-%dT%H:%M:%SZ}: {_latest(late)}",) if late else ()
    return Guarded(replace(plan, decisions=tuple(decisions)), findings)


def _latest(late: list[tuple[timedelta, str]]) -> str:
    ordered = [said for _, said in sorted(late, key=lambda one: one[0], reverse=True)]
    more = f"; and {len(late) - _SHOWN} directions of links more" if len(late) > _SHOWN else ""
    return "; ".join(ordered[:_SHOWN]) + more


def _left(snapshot: Snapshot) -> Mapping[Port, int]:
    """Port -> bytes that it has left; without those of which a flow is unknown."""
    known = snapshot.progress.flows if snapshot.progress else {}
    found: dict[Port, int] = {}
    unknown: set[Port] = set()
    for flow in flows(snapshot):
        for port in flow.ports:
            if flow in known:
                found[port] = found.get(port, 0) + known[flow].bytes_left
            else:
                unknown.add(port)
    return {port: size for port, size in found.items() if port not in unknown}


def _held(decision: Decision, snapshot: Snapshot, limits: Limits, most: int) -> Decision:
    most = max(most, limits.min_rate)
    if not decision.reason.is_measured or decision.rate <= most:
        return decision
    previous = previous_rate(snapshot, decision.broker_id, decision.role)
    if previous is not None and is_small_change(previous, most, limits.change_threshold):
        most = min(previous, decision.rate)
    return replace(decision, rate=most, reason=Reason.FINISH_BY)


def _late(decision: Decision, left: int, now: datetime, time: timedelta | None) -> str:
    end = "never end" if time is None else f"take until {now + time:%Y-%m-%dT%H:%M:%SZ}"
    return (
        f"broker {decision.broker_id} [{decision.role.value}] has {left / MEGABYTE:.0f} MB left, which at "
        f"{decision.rate / MEGABYTE:.2f} MB/s {end}"
    )
