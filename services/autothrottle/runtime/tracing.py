"""Traces and metrics over OTLP, configured by OpenTelemetry's variables: OTEL_EXPORTER_OTLP_ENDPOINT and others.

Both are off by default. Then OpenTelemetry is not imported, no thread runs and no call is wrapped. The type to know is
`Tracing`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import grpc

from autothrottle.adapters.credentials import CredentialFiles
from autothrottle.core.errors import Invalid
from autothrottle.core.exported_metrics import SampleSource
from autothrottle.ports.telemetry import UNTRACED, Tracer
from autothrottle.runtime.logs import add_trace_ids
from autothrottle.runtime.option_kinds import has_user
from autothrottle_client.replicas import Interceptor

logger = logging.getLogger(__name__)

_TRACES, _METRICS = "TRACES", "METRICS"
_OFF = {_TRACES: "Tracing is off", _METRICS: "The export of metrics over OTLP is off"}
"""Part of the names of a signal's variables -> what a log line says if it is off."""


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
    credentials: Sequence[CredentialFiles] = ()
    """The files that the OTEL_* variables name."""


@dataclass(frozen=True, slots=True)
class MetricsExport:
    """An export of metrics; the defaults export nothing."""

    close: Callable[[], None] = _nothing
    credentials: Sequence[CredentialFiles] = ()
    """The files that the OTEL_* variables name."""


def configure_tracing(service_name: str) -> Tracing:
    """Return the tracing that the OTEL_* variables configure; log a warning for invalid settings.

    Args:
        service_name: name of this process unless OTEL_SERVICE_NAME is set.
    """
    if not _is_enabled(os.environ, _TRACES):
        return Tracing()
    from autothrottle.adapters.tracing.opentelemetry import OpenTelemetryTracer, current_trace_id

    try:
        tracer = OpenTelemetryTracer(service_name)
    except (ValueError, RuntimeError, OSError, Invalid) as error:
        _warn_of(error, _TRACES)
        return Tracing()
    add_trace_ids(current_trace_id)
    return Tracing(tracer, tracer.client_interceptors, tracer.server_interceptors, tracer.close, tracer.credentials)


def export_metrics(service_name: str, source: SampleSource, cluster: str) -> MetricsExport:
    """Export metrics as the OTEL_* variables configure, until it is closed. Log a warning for invalid settings.

    Args:
        service_name: name of this process unless OTEL_SERVICE_NAME is set.
        source: the metrics.
        cluster: name of the cluster.
    """
    if not _is_enabled(os.environ, _METRICS):
        return MetricsExport()
    from autothrottle.adapters.exposition.otlp import OtlpMetrics

    try:
        metrics = OtlpMetrics(service_name, source, cluster)
    except (ValueError, RuntimeError, OSError, Invalid) as error:
        _warn_of(error, _METRICS)
        return MetricsExport()
    return MetricsExport(metrics.close, metrics.credentials)


def _warn_of(error: Exception, signal: str) -> None:
    fix = "" if isinstance(error, Invalid) else ". Fix: correct the OTEL_* variable named in the error"
    logger.warning("%s: %s%s", _OFF[signal], error, fix)


def _is_enabled(environment: Mapping[str, str], signal: str) -> bool:
    """Whether the variables turn a signal on with supported settings."""
    variable = f"OTEL_{signal}_EXPORTER"
    exporter = environment.get(variable, "").strip().lower()
    endpoints = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    protocols = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    is_requested = exporter == "otlp" or (not exporter and any(environment.get(name) for name in endpoints))
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return False
    protocol = next((environment[name] for name in protocols if environment.get(name)), "grpc")
    with_user = [name for name in endpoints if has_user(environment.get(name, ""))]
    if exporter not in ("", "otlp"):
        problem = f"{variable}={exporter} is not supported; use otlp, or none"
    elif not is_requested:
        return False
    elif protocol != "grpc":
        problem = f"the protocol {protocol} is not supported; use grpc (port 4317)"
    elif with_user:
        fix = "give scheme, host and port only, and the credentials in OTEL_EXPORTER_OTLP_HEADERS"
        problem = f"{with_user[0]} contains a user. Fix: {fix}"
    else:
        return True
    logger.warning("%s: %s", _OFF[signal], problem)
    return False
