"""Tracing through OpenTelemetry. The type to know is `opentelemetry.OpenTelemetryTracer`."""
