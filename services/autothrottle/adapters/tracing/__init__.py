"""Tracing through OpenTelemetry. The type to know is `opentelemetry.OpenTelemetryTracer`.

`exports` is shared with the export of metrics over OTLP.
"""
