"""Traces, configured by OpenTelemetry's own variables: OTEL_EXPORTER_OTLP_ENDPOINT and its companions.

Tracing is off by default. Then OpenTelemetry is not imported, no thread runs and no call is wrapped. The type to know
is `Tracing`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import grpc

from autothrottle.ports.telemetry import UNTRACED, Tracer
from autothrottle.runtime.logs import add_trace_ids
from autothrottle_client.replicas import Interceptor

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXPORTER = "OTEL_TRACES_EXPORTER"


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Tracing:
    """The parts of a process that trace; the defaults trace nothing."""

    tracer: Tracer = UNTRACED
    client_interceptors: Sequence[Interceptor] = ()
    server_interceptors: Sequence[grpc.ServerInterceptor] = ()
    close: Callable[[], None] = _nothing
    """Export the remaining spans, within two seconds. Call it after all traced work has ended."""


def configure_tracing(service_name: str) -> Tracing:
    """Return the tracing that the OTEL_* variables configure; log a warning for invalid settings.

    Args:
        service_name: name of this process unless OTEL_SERVICE_NAME is set.
    """
    if not _wanted(os.environ):
        return Tracing()
    from autothrottle.adapters.tracing.opentelemetry import OpenTelemetryTracer, current_trace_id

    try:
        tracer = OpenTelemetryTracer(service_name)
    except (ValueError, RuntimeError, OSError) as error:
        logger.warning("Tracing is off: %s. Fix: correct the OTEL_* variable named in the error", error)
        return Tracing()
    remove_trace_ids = add_trace_ids(current_trace_id)

    def close() -> None:
        tracer.close()
        remove_trace_ids()

    return Tracing(tracer, tracer.client_interceptors, tracer.server_interceptors, close)


def _wanted(environment: Mapping[str, str]) -> bool:
    """Whether the variables turn tracing on with supported settings."""
    exporter = environment.get(_EXPORTER, "").strip().lower()
    asked = exporter == "otlp" or (not exporter and any(environment.get(name) for name in _ENDPOINTS))
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return False
    if exporter not in ("", "otlp"):
        logger.warning("Tracing is off: %s=%s is not supported; use otlp, or none", _EXPORTER, exporter)
        return False
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), "grpc")
    if asked and protocol != "grpc":
        logger.warning("Tracing is off: the protocol %s is not supported; use grpc (port 4317)", protocol)
        return False
    return asked
