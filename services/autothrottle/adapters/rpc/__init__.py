"""The other services behind the ports: gRPC clients that find a living replica by themselves.

Every client takes the addresses of all replicas, `host:port` or `unix:path`. A replica that cannot be reached
is passed over within the call's deadline; nothing waits for one to come up (`endpoints`). Discovery is asked at the
same replica for as long as that answers, since it has read the cluster already, and a planner since it leads; the calls
of the other services go round.
"""

from autothrottle.adapters.rpc.discovery import DiscoveryClient
from autothrottle.adapters.rpc.planner import PlannerClient
from autothrottle.adapters.rpc.services import AdminClient, ApplierClient, MetricsClient

__all__ = ["AdminClient", "ApplierClient", "DiscoveryClient", "MetricsClient", "PlannerClient"]
