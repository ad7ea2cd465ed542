"""Metrics service: reports load and capacity of each broker, and posts events."""

from __future__ import annotations

import logging

import grpc

from autothrottle.core.errors import Invalid
from autothrottle.core.traffic.loads import Loads
from autothrottle.ports.telemetry import Event, EventSink, LoadSource
from autothrottle.runtime.server import time_left
from autothrottle.v1 import metrics_pb2, metrics_pb2_grpc
from autothrottle.wire.common import SAME_NAMES
from autothrottle.wire.metrics import loads_to_message

log = logging.getLogger(__name__)

_MAX_TITLE_LENGTH = 200


class MetricsServicer(metrics_pb2_grpc.MetricsServiceServicer):
    def __init__(self, loads: LoadSource, events: EventSink | None) -> None:
        """Serve one source.

        Args:
            loads: the metrics source.
            events: destination of events; None: they are dropped.
        """
        self._loads, self._events = loads, events
        self._logged_devices: dict[int, tuple[str, ...]] = {}

    def GetLoads(
        self, request: metrics_pb2.GetLoadsRequest, context: grpc.ServicerContext
    ) -> metrics_pb2.GetLoadsResponse:
        loads = self._loads.fetch_loads(time_left(context))
        self._log_devices(loads)
        return loads_to_message(loads)

    def _log_devices(self, loads: Loads) -> None:
        """Log the network devices of each broker that count, once and after a change."""
        for broker_id, devices in loads.devices.items():
            if self._logged_devices.get(broker_id) != devices:
                self._logged_devices[broker_id] = devices
                names = ", ".join(devices)
                log.info("Network devices of broker %d that count: %s; --net-devices changes them", broker_id, names)

    def PostEvent(
        self, request: metrics_pb2.PostEventRequest, context: grpc.ServicerContext
    ) -> metrics_pb2.PostEventResponse:
        if not 0 < len(request.title) <= _MAX_TITLE_LENGTH:
            raise Invalid(f"an event's title has {len(request.title)} characters; give 1 to {_MAX_TITLE_LENGTH}")
        if self._events:
            self._events.post_event(SAME_NAMES.from_message(Event, request), time_left(context))
        return metrics_pb2.PostEventResponse()
