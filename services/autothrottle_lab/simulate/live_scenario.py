"""A scenario file from a running cluster: the rest of its reassignments, to play under another configuration.

All input comes from the admin service. The client load is that of the planner's last cycle, or the utilization less the
current copy rate. The scenario assumes that it stays constant. The planner's configuration is not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from autothrottle.adapters.credentials import ServiceCertificates
from autothrottle.adapters.grpc import AdminServiceClient
from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.cluster.flows import LinkSide
from autothrottle.core.errors import Missing
from autothrottle.core.records import Decision
from autothrottle.core.units import MEGABYTE
from autothrottle.v1 import admin_pb2
from autothrottle.wire.common import SAME_NAMES
from autothrottle_lab.simulate.scenario_text import SMALLEST, broker_lines, fitting, reassignment_lines

_PATIENCE = timedelta(seconds=30)
_Path = admin_pb2.ReassignmentPath


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
    return scenario_text(state, reassignments, datetime.now(UTC))


def scenario_text(
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
        "# A link side that took no part has no client load and the capacity of the other side.",
        "# Add planner options in the table [planner], or as flags.",
        f"# The cluster has {sum(path.partitions for path in paths)} partitions to copy; this file has {sum(counts)}.",
        f"begin = {now:%Y-%m-%dT%H:%M:%SZ}",
    ]
    for broker_id in sorted({path.leader for path in paths} | {path.follower for path in paths}):
        lines += _broker(broker_id, decisions, paths)
    topic = reassignments.topics[0].topic if len(reassignments.topics) == 1 else "all"
    for path, count in zip(paths, counts, strict=True):
        size = max(path.bytes_left / MEGABYTE / count, SMALLEST)
        produce = path.produced_bytes_per_second / MEGABYTE / count
        lines += reassignment_lines(topic, count, size, path.leader, path.follower, produce)
    return "\n".join(lines) + "\n"


def _broker(broker_id: int, decisions: Mapping[LinkSide, Decision], paths: Sequence[_Path]) -> list[str]:
    own = [d for role in ReplicaRole if (d := decisions.get((broker_id, role)))]
    measured = [d for d in own if d.capacity_bytes_per_second]
    if not measured and any(d.reason.is_override for d in own):
        raise Missing(
            f"the last cycle has no load of broker {broker_id} because an override sets its throttle. Fix: remove the "
            "override (throttlectl remove), and retry after the next cycle"
        )
    if not measured:
        raise Missing(
            f"the last cycle has no load of broker {broker_id}, which takes part. Fix: check its metrics "
            "(throttlectl state), and retry after the next cycle"
        )
    capacities = {decision.role: decision.capacity_bytes_per_second or 0 for decision in measured}
    loads = {decision.role: [(0.0, round(_clients(decision, paths) / MEGABYTE, 3))] for decision in measured}
    return broker_lines(broker_id, capacities, loads)


def _clients(decision: Decision, paths: Sequence[_Path]) -> int:
    """The client load of one link side, bytes/s."""
    if decision.client_bytes_per_second is not None:
        return decision.client_bytes_per_second
    sends = decision.role is ReplicaRole.LEADER
    own = [path for path in paths if decision.broker_id == (path.leader if sends else path.follower)]
    return max((decision.utilization_bytes_per_second or 0) - sum(path.copied_bytes_per_second for path in own), 0)
