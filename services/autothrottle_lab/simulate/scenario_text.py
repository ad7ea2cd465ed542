"""Writes scenario files, which `scenario_file` reads: from a running cluster, or from the decision log.

- `fetch_scenario`: the rest of the current reassignments, from the admin service. The client load is that of the
  planner's last cycle, or the utilization less the current copy rate. The scenario assumes that it stays constant.
- `logged_scenario`: a past reassignment, to play again under another policy or configuration. The client load is the
  measured utilization less replication. The bytes of each path are those that were copied. Two things are not in the
  log, and the file says so: link sides that took no part, and sizes of single partitions.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.credentials import ServiceCertificates
from autothrottle.adapters.grpc import AdminServiceClient
from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.errors import Missing
from autothrottle.core.policy.headroom import StaticPolicy
from autothrottle.core.records import Decision
from autothrottle.core.scoring.decision_records import DecisionRecord, ReassignmentRecord, ReassignmentStatus
from autothrottle.core.units import MEGABYTE
from autothrottle.v1 import admin_pb2
from autothrottle.wire.common import SAME_NAMES
from autothrottle_lab.simulate.scenario_file import MOST_PARTITIONS, SMALLEST

_Step = tuple[float, float]
"""(seconds since the start of the reassignment, MB/s)."""

_PATIENCE = timedelta(seconds=30)
_NOTICEABLE_CHANGE = 0.2
"""MB/s: a smaller change of the client load does not start a new step."""

_IDLE_SIDES = "# A link side that took no part has no client load and the capacity of the other side."

_Path = admin_pb2.ReassignmentPath


# From a running cluster


def fetch_scenario(addresses: Sequence[str], tls: ServiceCertificates | None = None) -> str:
    """Return the scenario file of the current reassignments of a cluster.

    Args:
        addresses: replicas of the admin service.
        tls: this process's certificate; None: connections are plaintext.

    Raises:
        Missing: nothing is left to copy, the bytes left or a load are unknown, or there are too many paths.
        Unavailable: no replica of the admin service answers.
    """
    client = AdminServiceClient(addresses, tls=tls)
    try:
        state = client.call("GetClusterState", admin_pb2.GetClusterStateRequest(), _PATIENCE)
        reassignments = client.call("ListReassignments", admin_pb2.ListReassignmentsRequest(with_paths=True), _PATIENCE)
    finally:
        client.close()
    assert isinstance(state, admin_pb2.GetClusterStateResponse)
    assert isinstance(reassignments, admin_pb2.ListReassignmentsResponse)
    return live_scenario(state, reassignments, datetime.now(UTC))


def live_scenario(
    state: admin_pb2.GetClusterStateResponse, reassignments: admin_pb2.ListReassignmentsResponse, now: datetime
) -> str:
    """Return the scenario file of a cluster in its current state.

    Raises:
        Missing: nothing is left to copy, the bytes left or a load are unknown, or there are too many paths.
    """
    paths = [path for path in reassignments.paths if path.bytes_left or not path.HasField("bytes_left")]
    if not paths:
        raise Missing(
            "no reassignment has bytes left to copy; cannot write a scenario. Fix: start a reassignment first"
        )
    unknown = next((path for path in paths if not path.HasField("bytes_left")), None)
    if unknown is not None:
        raise Missing(
            f"the bytes left from broker {unknown.leader} to broker {unknown.follower} are unknown: discovery has read "
            "no log sizes yet. Fix: start discovery with --bootstrap-servers, or retry in a few seconds"
        )
    counts = fitting([max(path.partitions, 1) for path in paths])
    decided = (SAME_NAMES.from_message(Decision, decision) for decision in state.last_cycle.decisions)
    decisions = {(decision.broker_id, decision.role): decision for decision in decided}
    lines = [
        f"# Bytes left to copy at {now:%Y-%m-%dT%H:%M:%SZ}. The client load stays as in the planner's last cycle.",
        _IDLE_SIDES,
        "# Add planner options in the table [planner], or as flags.",
        f"# The cluster has {sum(path.partitions for path in paths)} partitions to copy; this file has {sum(counts)}.",
        f"begin = {now:%Y-%m-%dT%H:%M:%SZ}",
    ]
    for broker_id in sorted({path.leader for path in paths} | {path.follower for path in paths}):
        lines += _live_broker(broker_id, decisions, paths)
    topics = [entry.topic for entry in reassignments.topics]
    for path, count in zip(paths, counts, strict=True):
        size = max(path.bytes_left / MEGABYTE / count, SMALLEST)
        produce = path.produced_bytes_per_second / MEGABYTE / count
        lines += _reassignment_lines(topics, count, size, path.leader, path.follower, produce)
    return "\n".join(lines) + "\n"


def _live_broker(broker_id: int, decisions: Mapping[LinkSide, Decision], paths: Sequence[_Path]) -> list[str]:
    own = [d for role in ReplicaRole if (d := decisions.get((broker_id, role)))]
    measured = [d for d in own if d.capacity_bytes_per_second]
    if not measured:
        raise Missing(
            f"the last cycle has no load of broker {broker_id}, which takes part. Fix: check its metrics (throttlectl "
            "state), and retry after the next cycle"
        )
    capacities = {decision.role: decision.capacity_bytes_per_second or 0 for decision in measured}
    loads = {decision.role: [(0.0, round(_live_load(decision, paths) / MEGABYTE, 3))] for decision in measured}
    return _broker_lines(broker_id, capacities, loads)


def _live_load(decision: Decision, paths: Sequence[_Path]) -> int:
    """The client load of one link side, bytes/s."""
    if decision.client_bytes_per_second is not None:
        return decision.client_bytes_per_second
    sends = decision.role is ReplicaRole.LEADER
    own = [path for path in paths if decision.broker_id == (path.leader if sends else path.follower)]
    return max((decision.utilization_bytes_per_second or 0) - sum(path.copied_bytes_per_second for path in own), 0)


# From the decision log


def choose(records: Iterable[ReassignmentRecord], reassignment_id: str = "") -> ReassignmentRecord:
    """Return the reassignment with this id, or the one that reached its target last.

    Raises:
        Missing: no such reassignment has ended with known bytes.
    """
    ended = [record for record in records if record.paths and record.finish and record.start < record.finish]
    # What was copied until a reassignment was cancelled is only played on request.
    reached = [record for record in ended if record.status in (ReassignmentStatus.DONE, ReassignmentStatus.MIXED)]
    matching = [record for record in ended if record.reassignment_id == reassignment_id] if reassignment_id else reached
    if not matching:
        newest = sorted(ended, key=lambda record: record.finish or record.start)[-10:]
        shown = ", ".join(f"{record.reassignment_id} ({record.status})" for record in newest) or "none"
        which = (
            f"the reassignment {reassignment_id!r}" if reassignment_id else "any reassignment that reached its target"
        )
        raise Missing(
            f"the log lacks the end or the bytes of {which}; those with both are: {shown}"
            + ". Fix: name one with --reassignment" * bool(newest)
        )
    return max(matching, key=lambda record: record.finish or record.start)


def logged_scenario(reassignment: ReassignmentRecord, decisions: Sequence[DecisionRecord]) -> str:
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
        _IDLE_SIDES,
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
        lines += _logged_broker(broker_id, by_broker[broker_id], reassignment.start)
    return "\n".join(lines + _reassignments(reassignment)) + "\n"


def _planner(last: DecisionRecord, decisions: Iterable[DecisionRecord]) -> list[str]:
    ratios = {d.role: 100 * d.max_ratio for d in sorted(decisions, key=lambda d: d.time)}
    assert last.measured_from and last.measured_to
    window = max(round((last.measured_to - last.measured_from).total_seconds()), 1)
    lines = ["[planner]"]
    if last.policy and last.policy != StaticPolicy.name:  # the static rate is not in the log
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


def _logged_broker(broker_id: int, decisions: Sequence[DecisionRecord], start: datetime) -> list[str]:
    by_role = {role: [d for d in decisions if d.role == role.value] for role in ReplicaRole}
    capacities = {role: max(d.capacity or 0 for d in own) for role, own in by_role.items() if own}
    loads = {role: _logged_load(own, start) for role, own in by_role.items() if own}
    return _broker_lines(broker_id, capacities, loads)


def _logged_load(decisions: Sequence[DecisionRecord], start: datetime) -> list[_Step]:
    """The client load of one link side: each measurement starts halfway between the previous one and itself."""
    points: dict[float, float] = {}
    for decision in decisions:
        assert decision.measured_from and decision.measured_to and decision.utilization is not None
        middle = decision.measured_from + (decision.measured_to - decision.measured_from) / 2
        copied = decision.mean_throttle or 0 if decision.replication is None else decision.replication
        points[(middle - start).total_seconds()] = max(decision.utilization - copied, 0) / MEGABYTE
    steps: list[_Step] = []
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
        produce = path.bytes_grown / MEGABYTE / each / seconds
        lines += _reassignment_lines(reassignment.topics, each, size, path.leader, path.follower, produce)
    return lines


# The tables of a file


def fitting(partitions: Sequence[int]) -> list[int]:
    """Return the number of partitions that a scenario file gives each path: scaled down if the sum is too large.

    >>> fitting([3, 1]), fitting([60_000, 20_000, 1])
    ([3, 1], [3747, 1249, 1])

    Args:
        partitions: number of partitions of each path, >= 1.

    Raises:
        Missing: there are more paths than a file may have partitions.
    """
    total, paths = sum(partitions), len(partitions)
    if paths > MOST_PARTITIONS:
        raise Missing(
            f"{paths} paths from a leader to a follower have bytes to copy; a scenario holds at most "
            f"{MOST_PARTITIONS}. Fix: use a smaller reassignment, or retry when fewer paths are left"
        )
    if total <= MOST_PARTITIONS:
        return list(partitions)
    return [max(count * (MOST_PARTITIONS - paths) // total, 1) for count in partitions]


def _broker_lines(
    broker_id: int, capacities: Mapping[ReplicaRole, int], loads: Mapping[ReplicaRole, Sequence[_Step]]
) -> list[str]:
    """Return the table of one broker.

    Args:
        broker_id: its id.
        capacities: capacity of at least one of its link sides, bytes/s; the other side gets the same.
        loads: client load of the same link sides, ascending by time; the other side gets none.
    """
    roles, widest = (ReplicaRole.LEADER, ReplicaRole.FOLLOWER), max(capacities.values())
    outbound, inbound = (capacities.get(role, widest) / MEGABYTE for role in roles)
    sent, received = (loads.get(role, ()) for role in roles)
    times = sorted({at for steps in loads.values() for at, _ in steps})
    return [
        "",
        "[[broker]]",
        f"id = {broker_id}",
        f"capacity = {{ tx = {outbound:g}, rx = {inbound:g} }}",
        "traffic = [",
        *(f"  {{ at = {at:.1f}, tx = {_rate(sent, at):g}, rx = {_rate(received, at):g} }}," for at in times),
        "]",
    ]


def _rate(steps: Sequence[_Step], at: float) -> float:
    return next((rate for since, rate in reversed(steps) if since <= at), 0.0)


def _reassignment_lines(
    topics: Sequence[str], partitions: int, megabytes: float, leader: int, follower: int, produce: float
) -> list[str]:
    """Return the table of the partitions that one follower copies from one leader.

    Args:
        topics: names of all topics of the reassignment.
        partitions: number of partitions.
        megabytes: size of each partition, MB.
        leader: broker id of the leader.
        follower: broker id of the adding replica.
        produce: rate at which producers append to each partition, MB/s.
    """
    return [
        "",
        "[[move]]",
        f"topic = {json.dumps(topics[0] if len(topics) == 1 else 'all')}",
        f"partitions = {partitions}",
        f"megabytes = {megabytes:.3f}",
        f"replicas = [{leader}]",
        f"to = [{leader}, {follower}]",
        f"produce = {produce:.4f}",
    ]
