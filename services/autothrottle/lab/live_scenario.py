"""A scenario file from a cluster that is moving now: what is left of it, to be played under another configuration.

The admin service tells it all. Clients are what its last cycle counted on, or measured less what landed lately, and are
taken to go on like that; what the planner is configured to do it does not tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.rpc import AdminClient
from autothrottle.adapters.tls import Tls
from autothrottle.core.configs import ReplicaRole
from autothrottle.core.errors import Missing
from autothrottle.core.loads import MEGABYTE, Port
from autothrottle.core.plan import Decision
from autothrottle.lab.scenario_text import SMALLEST, broker_lines, fitting, move_lines
from autothrottle.v1 import admin_pb2
from autothrottle.wire.cycles import decision_from_message

_PATIENCE = timedelta(seconds=30)
_Path = admin_pb2.ReassignmentPath


def fetch_scenario(addresses: Sequence[str], tls: Tls | None = None) -> str:
    """Return the scenario file of what moves in the cluster whose admin service answers there.

    Args:
        addresses: of replicas of it.
        tls: this process's certificate; None: connections are plain.

    Raises:
        Missing: nothing moves, some of it is unknown, or it is too much; the message says what.
        Unavailable: nobody answers.
    """
    client = AdminClient(addresses, tls=tls)
    try:
        state = client.call("GetClusterState", admin_pb2.GetClusterStateRequest(), _PATIENCE)
        moves = client.call("ListReassignments", admin_pb2.ListReassignmentsRequest(with_paths=True), _PATIENCE)
    finally:
        client.close()
    assert isinstance(state, admin_pb2.GetClusterStateResponse)
    assert isinstance(moves, admin_pb2.ListReassignmentsResponse)
    return scenario_text(state, moves, datetime.now(UTC))


def scenario_text(
    state: admin_pb2.GetClusterStateResponse, moves: admin_pb2.ListReassignmentsResponse, now: datetime
) -> str:
    """Return the scenario file of a cluster as it is.

    Raises:
        Missing: nothing moves, some of it is unknown, or it is too much.
    """
    paths = [path for path in moves.paths if path.bytes_left or not path.HasField("bytes_left")]
    if not paths:
        raise Missing("nothing moves that is still to be copied: no scenario can be made of it. Fix: start the move")
    unknown = next((path for path in paths if not path.HasField("bytes_left")), None)
    if unknown is not None:
        raise Missing(
            f"what broker {unknown.leader} has still to send to broker {unknown.follower} is unknown: discovery reads "
            "no sizes of logs yet. Fix: give it --bootstrap-servers, or try again in some seconds"
        )
    counts = fitting([max(path.partitions, 1) for path in paths])
    decisions = {(d.broker_id, d.role): d for d in map(decision_from_message, state.last_cycle.decisions)}
    lines = [
        f"# What was left to be copied at {now:%Y-%m-%dT%H:%M:%SZ}; clients go on as they were in the last cycle.",
        "# A direction that took no part is idle and as wide. Options of the planner are for [planner], or flags.",
        f"# {sum(path.partitions for path in paths)} partitions are to be copied; here they are {sum(counts)}.",
        f"begin = {now:%Y-%m-%dT%H:%M:%SZ}",
    ]
    for broker_id in sorted({path.leader for path in paths} | {path.follower for path in paths}):
        lines += _broker(broker_id, decisions, paths)
    topic = moves.topics[0].topic if len(moves.topics) == 1 else "all"
    for path, count in zip(paths, counts, strict=True):
        size = max(path.bytes_left / MEGABYTE / count, SMALLEST)
        produce = path.growth_bytes_per_second / MEGABYTE / count
        lines += move_lines(topic, count, size, path.leader, path.follower, produce)
    return "\n".join(lines) + "\n"


def _broker(broker_id: int, decisions: Mapping[Port, Decision], paths: Sequence[_Path]) -> list[str]:
    own = [d for role in ReplicaRole if (d := decisions.get((broker_id, role)))]
    known = [d for d in own if d.capacity]
    if not known and any(d.reason.is_override for d in own):
        raise Missing(
            f"the last cycle did not look at the load of broker {broker_id}, which an override rules. Fix: remove the "
            "override (throttlectl remove), and try again after the next cycle"
        )
    if not known:
        raise Missing(
            f"the last cycle knows no load of broker {broker_id}, which takes part. Fix: see its metrics "
            "(throttlectl state), and try again after the next cycle"
        )
    links = {decision.role: decision.capacity or 0 for decision in known}
    clients = {decision.role: round(_clients(decision, paths) / MEGABYTE, 3) for decision in known}
    widest = max(links.values())
    tx, rx = (links.get(role, widest) for role in (ReplicaRole.LEADER, ReplicaRole.FOLLOWER))
    sent, got = (clients.get(role, 0.0) for role in (ReplicaRole.LEADER, ReplicaRole.FOLLOWER))
    return broker_lines(broker_id, tx, rx, [(0.0, sent, got)])


def _clients(decision: Decision, paths: Sequence[_Path]) -> int:
    """What clients use of one port, bytes/s."""
    if decision.client is not None:
        return decision.client
    sends = decision.role is ReplicaRole.LEADER
    own = [path for path in paths if decision.broker_id == (path.leader if sends else path.follower)]
    return max((decision.utilization or 0) - sum(path.bytes_per_second for path in own), 0)
