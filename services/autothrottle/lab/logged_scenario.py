"""A scenario file from the decision log: a move as it was, to be played again under another policy or configuration.

Clients are what was measured less replication; the bytes of each path are what landed. What the log does not tell is
left out, and said in the file: directions of links that took no part, the sizes of single partitions.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from autothrottle.core.configs import ReplicaRole
from autothrottle.core.decisions import DecisionRecord, ReassignmentRecord, ReassignmentStatus
from autothrottle.core.errors import Missing
from autothrottle.core.loads import MEGABYTE
from autothrottle.lab.scenario_text import SMALLEST, broker_lines, fitting, move_lines

_SAME = 0.2
"""MB/s: a client load that changes by less does not change."""

_Step = tuple[float, float]
"""(seconds since the start of the move, MB/s)."""


def choose(records: Iterable[ReassignmentRecord], reassignment_id: str = "") -> ReassignmentRecord:
    """Return the reassignment with this id, or the one that ended last.

    Raises:
        Missing: there is none that ended and whose bytes are known.
    """
    ended = [
        one
        for one in records
        if one.status == ReassignmentStatus.DONE and one.paths and one.finish and one.start < one.finish
    ]
    wanted = [one for one in ended if reassignment_id in ("", one.reassignment_id)]
    if not wanted:
        known = ", ".join(sorted({one.reassignment_id for one in ended})[-10:]) or "none"
        which = f"the reassignment {reassignment_id!r}" if reassignment_id else "any reassignment"
        raise Missing(f"the log does not know the end and the bytes of {which}; it knows those of: {known}")
    return max(wanted, key=lambda one: one.finish or one.start)


def scenario_text(move: ReassignmentRecord, decisions: Sequence[DecisionRecord]) -> str:
    """Return the scenario file of a move.

    Args:
        move: that ended.
        decisions: that were taken for it; copies do no harm.

    Raises:
        Missing: no decision knows the load of one of its brokers, or it has too many paths.
    """
    measured = [d for d in decisions if d.capacity and d.utilization is not None and d.measured_from and d.measured_to]
    if not measured:
        raise Missing(f"no decision for {move.reassignment_id} knows a load: no scenario can be made of it")
    last = max(measured, key=lambda d: d.time)
    delays = [(d.time - d.measured_to).total_seconds() for d in measured if d.measured_to]
    lines = [
        f"# Reassignment {move.reassignment_id}, from {move.start:%Y-%m-%dT%H:%M:%SZ} on: of each path, what landed.",
        "# Traffic is what was measured less replication; a direction that took no part is idle and as wide.",
        f"metrics-delay = {min(max(statistics.median(delays), 0), 3600):g}",
        f"begin = {move.start:%Y-%m-%dT%H:%M:%SZ}",
        "",
        *_planner(last, measured),
    ]
    by_broker: dict[int, list[DecisionRecord]] = {}
    for decision in measured:
        by_broker.setdefault(decision.broker_id, []).append(decision)
    for path in move.paths:
        for broker_id in (path.leader, path.follower):
            if broker_id not in by_broker:
                raise Missing(f"no decision for {move.reassignment_id} knows the load of broker {broker_id}")
    for broker_id in sorted(by_broker):
        lines += _broker(broker_id, by_broker[broker_id], move.start)
    return "\n".join(lines + _moves(move)) + "\n"


def _planner(last: DecisionRecord, decisions: Iterable[DecisionRecord]) -> list[str]:
    ratios = {d.role: 100 * d.max_ratio for d in sorted(decisions, key=lambda d: d.time)}
    assert last.measured_from and last.measured_to
    window = max(round((last.measured_to - last.measured_from).total_seconds()), 1)
    lines = ["[planner]"]
    if last.policy and last.policy != "static":  # the static rate is not in the log
        lines.append(f'policy = "{last.policy}"')
    return [
        *lines,
        f"interval = {last.interval_seconds:g}",
        f"metrics-window = {window}",
        f"min-rate = {last.min_rate / MEGABYTE:g}",
        f"max-tx-rate = {ratios.get(ReplicaRole.LEADER.value, 100 * last.max_ratio):g}",
        f"max-rx-rate = {ratios.get(ReplicaRole.FOLLOWER.value, 100 * last.max_ratio):g}",
        f"change-threshold = {100 * last.change_threshold:g}",
        f"failure-threshold = {last.failure_threshold}",
    ]


def _broker(broker_id: int, decisions: Sequence[DecisionRecord], start: datetime) -> list[str]:
    links: dict[ReplicaRole, int] = {}
    loads: dict[ReplicaRole, Sequence[_Step]] = {}
    for role in ReplicaRole:
        own = [d for d in decisions if d.role == role.value]
        if own:
            links[role] = max(d.capacity or 0 for d in own)
            loads[role] = _client_load(own, start)
    tx = links.get(ReplicaRole.LEADER) or links[ReplicaRole.FOLLOWER]
    return broker_lines(broker_id, tx, links.get(ReplicaRole.FOLLOWER) or tx, _joined(loads))


def _client_load(decisions: Sequence[DecisionRecord], start: datetime) -> list[_Step]:
    """What clients used of one port: a measurement holds from half way to the one before."""
    points: dict[float, float] = {}
    for one in decisions:
        assert one.measured_from and one.measured_to and one.utilization is not None
        middle = one.measured_from + (one.measured_to - one.measured_from) / 2
        copied = one.mean_throttle or 0 if one.replication is None else one.replication
        points[(middle - start).total_seconds()] = max(one.utilization - copied, 0) / MEGABYTE
    found: list[_Step] = []
    before = None
    for at, rate in sorted(points.items()):
        since = 0.0 if before is None else max((before + at) / 2, 0.0)
        before = at
        if found and since <= found[-1][0]:
            found[-1] = (since, round(rate, 1))
        elif not found or abs(rate - found[-1][1]) >= _SAME:
            found.append((round(since, 1), round(rate, 1)))
    return found


def _joined(loads: Mapping[ReplicaRole, Sequence[_Step]]) -> list[tuple[float, float, float]]:
    """Steps of both directions as one list of (at, tx, rx)."""
    times = sorted({at for steps in loads.values() for at, _ in steps})
    sides = [loads.get(role, ()) for role in (ReplicaRole.LEADER, ReplicaRole.FOLLOWER)]
    return [(at, *(_at(steps, at) for steps in sides)) for at in times]  # type: ignore[misc]


def _at(steps: Sequence[_Step], at: float) -> float:
    return next((rate for since, rate in reversed(steps) if since <= at), 0.0)


def _moves(move: ReassignmentRecord) -> list[str]:
    assert move.finish
    seconds, lines = (move.finish - move.start).total_seconds(), []
    counts = fitting([max(round(move.partitions / len(move.paths)), 1)] * len(move.paths))
    for path, each in zip(move.paths, counts, strict=True):
        size = (path.bytes_landed - path.bytes_grown) / MEGABYTE / each
        if size < SMALLEST:
            continue
        topic = move.topics[0] if len(move.topics) == 1 else "all"
        produce = path.bytes_grown / MEGABYTE / each / seconds
        lines += move_lines(topic, each, size, path.leader, path.follower, produce)
    return lines
