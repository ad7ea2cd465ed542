"""Answers for the metrics source over gRPC."""

from __future__ import annotations

import grpc

from autothrottle.core.errors import Invalid
from autothrottle.ports.metrics import EventSink, LoadSource
from autothrottle.runtime.server import time_left
from autothrottle.v1 import metrics_pb2, metrics_pb2_grpc
from autothrottle.wire.loads import event_from_message, loads_to_message

_TITLE_LENGTH = 200


class MetricsServicer(metrics_pb2_grpc.MetricsServiceServicer):
    """MetricsService."""

    def __init__(self, loads: LoadSource, events: EventSink) -> None:
        self._loads, self._events = loads, events

    def GetLoads(
        self, request: metrics_pb2.GetLoadsRequest, context: grpc.ServicerContext
    ) -> metrics_pb2.GetLoadsResponse:
        """Return the newest load of every broker."""
        return loads_to_message(self._loads.fetch_loads(time_left(context)))

    def PostEvent(
        self, request: metrics_pb2.PostEventRequest, context: grpc.ServicerContext
    ) -> metrics_pb2.PostEventResponse:
        """Post an event."""
        if not 0 < len(request.title) <= _TITLE_LENGTH:
            raise Invalid(f"an event's title has {len(request.title)} characters; give 1 to {_TITLE_LENGTH}")
        self._events.post_event(event_from_message(request), time_left(context))
        return metrics_pb2.PostEventResponse()
