"""The program of the processes that answer calls of the placement service: it computes one answer, and ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from autothrottle.runtime.child_processes import answer_work

if TYPE_CHECKING:
    from autothrottle.placement.processes import PlacementWork
    from autothrottle.ports.services import ClusterSource, StorageMetricsSource
    from autothrottle.runtime.configuration import Configuration
    from autothrottle.runtime.shutdown import Shutdown


class _CallTime:
    """What the methods of the service use of a call's context."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def time_remaining(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)


def answer(work: PlacementWork) -> bytes:
    """Return the encoded answer to a call.

    Raises:
        AutothrottleError: that of the method.
    """
    from google.protobuf.message_factory import GetMessageClass

    from autothrottle.placement.servicer import PlacementServicer
    from autothrottle.runtime.shutdown import Shutdown
    from autothrottle.v1 import placement_pb2

    method = placement_pb2.DESCRIPTOR.services_by_name["PlacementService"].methods_by_name[work.method]
    request = GetMessageClass(method.input_type).FromString(work.request)
    with Shutdown() as stack:
        source: Any = None
        metrics: Any = None
        if work.method != "GetCapacity":  # which reads no cluster
            source, metrics = _sources(work.configuration, stack)
        servicer = PlacementServicer(source, metrics, work.pools, work.forecaster)
        message = getattr(servicer, work.method)(request, _CallTime(work.seconds))
        return cast(bytes, message.SerializeToString())


def _sources(configuration: Configuration, stack: Shutdown) -> tuple[ClusterSource, StorageMetricsSource]:
    """Return the sources of a cluster and of its storage, without the state store, which a plan does not read."""
    from autothrottle.runtime.configuration import KafkaBackend

    if configuration.kafka_backend is KafkaBackend.ADMIN:
        from autothrottle.adapters.kafka_admin.client import KafkaAdmin
        from autothrottle.adapters.kafka_admin.placement import AdminClusterSource, LogDirMetrics
        from autothrottle.composition.admin_cluster import kafka_settings

        kafka = stack.cancellable(KafkaAdmin(kafka_settings(configuration)))
        return AdminClusterSource(kafka), LogDirMetrics(kafka)
    from autothrottle.composition.cluster import new_cluster, new_state

    cluster = new_cluster(configuration, stack, new_state(configuration, stack, writes=False))
    return cluster.source(), cluster.storage_metrics()


if __name__ == "__main__":
    answer_work(answer)
