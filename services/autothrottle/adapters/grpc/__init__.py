"""gRPC clients of the other services, as implementations of their ports, with failover between replicas.

The connection is the client package's (`autothrottle_client.replicas`). Every client takes the addresses of all
replicas, `host:port` or `unix:path`. A call skips unreachable replicas within its deadline and does not wait for one to
start. Calls to discovery stay with one replica while it answers, because it has already read the cluster. Calls to the
planner stay with the leader. Calls to the other services rotate over the replicas.
"""

from autothrottle.adapters.grpc.services import (
    AdminServiceClient,
    ApplierClient,
    DiscoveryClient,
    MetricsClient,
    PlannerServiceClient,
)

__all__ = ["AdminServiceClient", "ApplierClient", "DiscoveryClient", "MetricsClient", "PlannerServiceClient"]
