"""Client of a running autothrottle: speaks `autothrottle.v1` over gRPC and shares its values and errors.

    from autothrottle_client import AdminClient

    with AdminClient(["10.0.0.1:8090", "10.0.0.2:8090"]) as admin:
        override, warnings = admin.set_override(50_000_000, broker_id=1001)
        for cycle in admin.watch_cycles():
            print(cycle.sentence or cycle.error)

- `AdminClient`: overrides, reassignments, cluster state, client quotas, requests for a cycle. `PlannerClient`: the
  planners themselves, one of which leads.
- Both accept the addresses of all replicas, `host:port` or `unix:path`, and skip replicas that do not answer.
- `tls=Tls(certificate, key, authorities)` makes every connection mutual TLS. `token=...` names the caller; it is sent
  only over TLS, to unix sockets and to loopback addresses.
- `client_id=...` names the program for request quotas. `throttle_times` has the average and maximum delay of responses.
- Every call has a deadline. A call that is safe to repeat is retried on "unavailable" until its deadline.
- Results are the frozen dataclasses of `model`: rates in bytes per second (1 MB/s is 1,000,000), times in UTC.
- A failed call raises one of the errors in `errors`.
- `throttlectl` offers the same on the command line.
"""

from autothrottle.core.cluster.configs import ReplicaRole
from autothrottle.core.members import Member
from autothrottle.core.quotas.yielding import YieldRule
from autothrottle.core.records import (
    AuditAction,
    Basis,
    CatchUp,
    Cycle,
    Decision,
    Estimate,
    ForeignThrottle,
    LinkSideEstimate,
    Outcome,
    OutcomeStatus,
    Pause,
    PauseMode,
    PlannerState,
    Reason,
    Submission,
)
from autothrottle_client.admin import AdminClient
from autothrottle_client.call_metadata import ThrottleTimes
from autothrottle_client.client import CycleWatch, PlannerClient
from autothrottle_client.errors import (
    AutothrottleError,
    Conflict,
    Forbidden,
    Incomplete,
    Invalid,
    Missing,
    NotLeader,
    Unauthenticated,
    Unavailable,
)
from autothrottle_client.model import AuditRecord, ClusterState, Override, RequestQuota
from autothrottle_client.quotas import (
    EffectiveQuota,
    Quota,
    QuotaCalls,
    QuotaChange,
    QuotaEntity,
    QuotaValues,
    YieldRuleChange,
)
from autothrottle_client.reassignments import ReassigningTopic, Reassignments, parse_reassignment
from autothrottle_client.tls import Tls

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
    "EffectiveQuota",
    "Estimate",
    "Forbidden",
    "ForeignThrottle",
    "Incomplete",
    "Invalid",
    "LinkSideEstimate",
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
    "Quota",
    "QuotaCalls",
    "QuotaChange",
    "QuotaEntity",
    "QuotaValues",
    "Reason",
    "ReassigningTopic",
    "Reassignments",
    "ReplicaRole",
    "RequestQuota",
    "Submission",
    "ThrottleTimes",
    "Tls",
    "Unauthenticated",
    "Unavailable",
    "YieldRule",
    "YieldRuleChange",
    "parse_reassignment",
]
