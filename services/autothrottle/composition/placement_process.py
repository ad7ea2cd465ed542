"""The program of the processes that answer calls of the placement service: it computes one answer, and ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from autothrottle.runtime.child_processes import answer_work

if TYPE_CHECKING:
    from autothrottle.placement.processes import PlacementWork


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

    from autothrottle.composition.cluster import new_cluster, new_state
    from autothrottle.placement.servicer import PlacementServicer
    from autothrottle.runtime.shutdown import Shutdown
    from autothrottle.v1 import placement_pb2

    method = placement_pb2.DESCRIPTOR.services_by_name["PlacementService"].methods_by_name[work.method]
    request = GetMessageClass(method.input_type).FromString(work.request)
    with Shutdown() as stack:
        source: Any = None
        metrics: Any = None
        if work.method != "GetCapacity":  # which reads no cluster
            cluster = new_cluster(work.configuration, stack, new_state(work.configuration, stack, writes=False))
            source, metrics = cluster.source(), cluster.storage_metrics()
        servicer = PlacementServicer(source, metrics, work.pools, work.forecaster)
        message = getattr(servicer, work.method)(request, _CallTime(work.seconds))
        return cast(bytes, message.SerializeToString())


if __name__ == "__main__":
    answer_work(answer)
