"""Traces, switched on by OpenTelemetry's own variables: OTEL_EXPORTER_OTLP_ENDPOINT and its companions.

Off by default, and then nothing of OpenTelemetry is imported, no thread runs and no call is wrapped. The type to know
is `Tracing`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import grpc

from autothrottle.adapters.endpoints import Interceptor
from autothrottle.ports.tracing import UNTRACED, Tracer
from autothrottle.runtime.logs import add_trace_ids

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXPORTER = "OTEL_TRACES_EXPORTER"


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Tracing:
    """What a process needs to trace; as made without arguments it traces nothing."""

    tracer: Tracer = UNTRACED
    client_interceptors: Sequence[Interceptor] = ()
    server_interceptors: Sequence[grpc.ServerInterceptor] = ()
    close: Callable[[], None] = _nothing
    """Exports what is left, within two seconds; to be called after everything that traces has ended."""


def configure_tracing(service_name: str) -> Tracing:
    """Return what the OTEL_* variables ask for; what they ask for in vain is a warning.

    Args:
        service_name: what this process is called, where OTEL_SERVICE_NAME does not say.
    """
    if not _wanted(os.environ):
        return Tracing()
    from autothrottle.adapters.tracing import OpenTelemetryTracer, current_trace_id

    try:
        tracer = OpenTelemetryTracer(service_name)
    except (ValueError, RuntimeError, OSError) as error:
        logger.warning("Nothing is traced: %s. Fix: correct the OTEL_* variable that says so", error)
        return Tracing()
    remove_trace_ids = add_trace_ids(current_trace_id)

    def close() -> None:
        tracer.close()
        remove_trace_ids()

    return Tracing(tracer, tracer.client_interceptors, tracer.server_interceptors, close)


def _wanted(environment: Mapping[str, str]) -> bool:
    """Whether traces are asked for, in a way that is possible."""
    exporter = environment.get(_EXPORTER, "").strip().lower()
    asked = exporter == "otlp" or (not exporter and any(environment.get(name) for name in _ENDPOINTS))
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return False
    if exporter not in ("", "otlp"):
        logger.warning("Nothing is traced: %s=%s is not possible; use otlp, or none", _EXPORTER, exporter)
        return False
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), "grpc")
    if asked and protocol != "grpc":
        logger.warning("Nothing is traced: the protocol %s is not possible; use grpc (port 4317)", protocol)
        return False
    return asked
