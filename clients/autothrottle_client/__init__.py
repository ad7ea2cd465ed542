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

from autothrottle.core.cluster.configs import ReplicaRole as ReplicaRole
from autothrottle.core.members import Member as Member
from autothrottle.core.quotas.yielding import YieldRule as YieldRule
from autothrottle.core.records import Allowances as Allowances
from autothrottle.core.records import AuditAction as AuditAction
from autothrottle.core.records import Basis as Basis
from autothrottle.core.records import CancelEffect as CancelEffect
from autothrottle.core.records import CatchUp as CatchUp
from autothrottle.core.records import Cycle as Cycle
from autothrottle.core.records import Decision as Decision
from autothrottle.core.records import Estimate as Estimate
from autothrottle.core.records import ForeignThrottle as ForeignThrottle
from autothrottle.core.records import LeftOut as LeftOut
from autothrottle.core.records import LinkSideEstimate as LinkSideEstimate
from autothrottle.core.records import Outcome as Outcome
from autothrottle.core.records import OutcomeStatus as OutcomeStatus
from autothrottle.core.records import Pause as Pause
from autothrottle.core.records import PauseMode as PauseMode
from autothrottle.core.records import PlannerState as PlannerState
from autothrottle.core.records import Reason as Reason
from autothrottle.core.records import RunningMove as RunningMove
from autothrottle.core.records import Submission as Submission
from autothrottle.core.records import Throttle as Throttle
from autothrottle_client.admin import AdminClient as AdminClient
from autothrottle_client.call_metadata import ThrottleTimes as ThrottleTimes
from autothrottle_client.client import CycleWatch as CycleWatch
from autothrottle_client.client import PlannerClient as PlannerClient
from autothrottle_client.errors import AutothrottleError as AutothrottleError
from autothrottle_client.errors import Conflict as Conflict
from autothrottle_client.errors import Forbidden as Forbidden
from autothrottle_client.errors import Incomplete as Incomplete
from autothrottle_client.errors import Invalid as Invalid
from autothrottle_client.errors import Missing as Missing
from autothrottle_client.errors import NotLeader as NotLeader
from autothrottle_client.errors import Unauthenticated as Unauthenticated
from autothrottle_client.errors import Unavailable as Unavailable
from autothrottle_client.model import AuditRecord as AuditRecord
from autothrottle_client.model import ClusterState as ClusterState
from autothrottle_client.model import Override as Override
from autothrottle_client.model import RequestQuota as RequestQuota
from autothrottle_client.quotas import EffectiveQuota as EffectiveQuota
from autothrottle_client.quotas import Quota as Quota
from autothrottle_client.quotas import QuotaCalls as QuotaCalls
from autothrottle_client.quotas import QuotaChange as QuotaChange
from autothrottle_client.quotas import QuotaEntity as QuotaEntity
from autothrottle_client.quotas import QuotaValues as QuotaValues
from autothrottle_client.quotas import YieldRuleChange as YieldRuleChange
from autothrottle_client.reassignments import ReassigningTopic as ReassigningTopic
from autothrottle_client.reassignments import Reassignments as Reassignments
from autothrottle_client.reassignments import parse_reassignment as parse_reassignment
from autothrottle_client.tls import Tls as Tls
