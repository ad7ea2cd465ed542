"""A scenario file from the decision log: a past reassignment, to play again under another policy or configuration.

The client load is the measured utilization less replication. The bytes of each path are those that were copied.
Two things are not in the log, and the file says so: link sides that took no part, and sizes of single partitions.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.errors import Missing
from autothrottle.core.scoring.decision_records import DecisionRecord, ReassignmentRecord, ReassignmentStatus
from autothrottle.core.units import MEGABYTE
from autothrottle_lab.simulate.scenario_text import SMALLEST, Step, broker_lines, fitting, reassignment_lines

_NOTICEABLE_CHANGE = 0.2
"""MB/s: a smaller change of the client load does not start a new step."""


def choose(records: Iterable[ReassignmentRecord], reassignment_id: str = "") -> ReassignmentRecord:
    """Return the reassignment with this id, or the one that ended last.

    Raises:
        Missing: no such reassignment has ended with known bytes.
    """
    ended = [
        record
        for record in records
        if record.status == ReassignmentStatus.DONE and record.paths and record.finish and record.start < record.finish
    ]
    matching = [record for record in ended if reassignment_id in ("", record.reassignment_id)]
    if not matching:
        complete_ids = ", ".join(sorted({record.reassignment_id for record in ended})[-10:]) or "none"
        which = f"the reassignment {reassignment_id!r}" if reassignment_id else "any reassignment"
        raise Missing(f"the log lacks the end or the bytes of {which}; complete reassignments are: {complete_ids}")
    return max(matching, key=lambda record: record.finish or record.start)


def scenario_text(reassignment: ReassignmentRecord, decisions: Sequence[DecisionRecord]) -> str:
    """Return the scenario file of a reassignment.

    Args:
        reassignment: a reassignment that ended.
        decisions: the planner's decisions for it; duplicates do no harm.

    Raises:
        Missing: the decisions lack the load of one of its brokers, or it has too many paths.
    """
    measured = [d for d in decisions if d.capacity and d.utilization is not None and d.measured_from and d.measured_to]
    if not measured:
        raise Missing(f"no decision for {reassignment.reassignment_id} has a load; cannot write a scenario")
    last = max(measured, key=lambda d: d.time)
    delays = [(d.time - d.measured_to).total_seconds() for d in measured if d.measured_to]
    lines = [
        f"# Reassignment {reassignment.reassignment_id}, started at {reassignment.start:%Y-%m-%dT%H:%M:%SZ}.",
        "# Each path has the bytes that were copied. Traffic is the measured utilization less replication.",
        "# A link side that took no part has no client load and the capacity of the other side.",
        f"metrics-delay = {min(max(statistics.median(delays), 0), 3600):g}",
        f"begin = {reassignment.start:%Y-%m-%dT%H:%M:%SZ}",
        "",
        *_planner(last, measured),
    ]
    by_broker: dict[int, list[DecisionRecord]] = {}
    for decision in measured:
        by_broker.setdefault(decision.broker_id, []).append(decision)
    for path in reassignment.paths:
        for broker_id in (path.leader, path.follower):
            if broker_id not in by_broker:
                raise Missing(f"no decision for {reassignment.reassignment_id} has the load of broker {broker_id}")
    for broker_id in sorted(by_broker):
        lines += _broker(broker_id, by_broker[broker_id], reassignment.start)
    return "\n".join(lines + _reassignments(reassignment)) + "\n"


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
    by_role = {role: [d for d in decisions if d.role == role.value] for role in ReplicaRole}
    capacities = {role: max(d.capacity or 0 for d in own) for role, own in by_role.items() if own}
    loads = {role: _client_load(own, start) for role, own in by_role.items() if own}
    return broker_lines(broker_id, capacities, loads)


def _client_load(decisions: Sequence[DecisionRecord], start: datetime) -> list[Step]:
    """The client load of one link side: each measurement starts halfway between the previous one and itself."""
    points: dict[float, float] = {}
    for decision in decisions:
        assert decision.measured_from and decision.measured_to and decision.utilization is not None
        middle = decision.measured_from + (decision.measured_to - decision.measured_from) / 2
        copied = decision.mean_throttle or 0 if decision.replication is None else decision.replication
        points[(middle - start).total_seconds()] = max(decision.utilization - copied, 0) / MEGABYTE
    steps: list[Step] = []
    previous = None
    for at, rate in sorted(points.items()):
        since = 0.0 if previous is None else max((previous + at) / 2, 0.0)
        previous = at
        if steps and since <= steps[-1][0]:
            steps[-1] = (since, round(rate, 1))
        elif not steps or abs(rate - steps[-1][1]) >= _NOTICEABLE_CHANGE:
            steps.append((round(since, 1), round(rate, 1)))
    return steps


def _reassignments(reassignment: ReassignmentRecord) -> list[str]:
    assert reassignment.finish
    seconds, lines = (reassignment.finish - reassignment.start).total_seconds(), []
    counts = fitting([max(round(reassignment.partitions / len(reassignment.paths)), 1)] * len(reassignment.paths))
    for path, each in zip(reassignment.paths, counts, strict=True):
        size = (path.bytes_landed - path.bytes_grown) / MEGABYTE / each
        if size < SMALLEST:
            continue
        topic = reassignment.topics[0] if len(reassignment.topics) == 1 else "all"
        produce = path.bytes_grown / MEGABYTE / each / seconds
        lines += reassignment_lines(topic, each, size, path.leader, path.follower, produce)
    return lines
