"""The client of a running autothrottle: it speaks `autothrottle.v1` over gRPC and needs no library of the services.

    from autothrottle_client import AdminClient

    with AdminClient(["10.0.0.1:8090", "10.0.0.2:8090"]) as admin:
        override, warnings = admin.set_override(50_000_000, broker_id=1001)
        for cycle in admin.watch_cycles():
            print(cycle.sentence or cycle.error)

- `AdminClient`: overrides, reassignments, the state, a cycle at once. `PlannerClient`: the planners themselves, of
  which one leads.
- Both take every address of their service, `host:port` or `unix:path`, and pass over those that do not answer.
- With `tls=Tls(certificate, key, authorities)` connections are mutual TLS.
- Every call has a deadline. Until it is over, what may be repeated is tried again while the answer is "unavailable".
- Answers are the frozen dataclasses of `model`: rates in bytes per second (1 MB/s is 1,000,000), times in UTC.
- What fails raises an error of the tree in `errors`.
- `throttlectl` is the same as a command.
"""

from autothrottle_client.admin import AdminClient
from autothrottle_client.errors import (
    AutothrottleError,
    Conflict,
    Incomplete,
    Invalid,
    Missing,
    NotLeader,
    Unavailable,
)
from autothrottle_client.estimates import Estimate, PortEstimate
from autothrottle_client.model import (
    AuditAction,
    AuditRecord,
    Basis,
    CatchUp,
    ClusterState,
    Cycle,
    Decision,
    ForeignThrottle,
    Member,
    Outcome,
    OutcomeStatus,
    Override,
    Pause,
    PauseMode,
    PlannerState,
    Reason,
    ReplicaRole,
)
from autothrottle_client.planner import PlannerClient
from autothrottle_client.reassignments import ReassigningTopic, Reassignments, Submission, parse_reassignment
from autothrottle_client.tls import Tls
from autothrottle_client.watch import CycleWatch

__all__ = [
    "AdminClient",
    "AuditAction",
    "AuditRecord",
    "AutothrottleError",
    "Basis",
    "CatchUp",
    "ClusterState",
    "Conflict",
    "Cycle",
    "CycleWatch",
    "Decision",
    "Estimate",
    "ForeignThrottle",
    "Incomplete",
    "Invalid",
    "Member",
    "Missing",
    "NotLeader",
    "Outcome",
    "OutcomeStatus",
    "Override",
    "Pause",
    "PauseMode",
    "PlannerClient",
    "PlannerState",
    "PortEstimate",
    "Reason",
    "ReassigningTopic",
    "Reassignments",
    "ReplicaRole",
    "Submission",
    "Tls",
    "Unavailable",
    "parse_reassignment",
]
