"""Tracing through OpenTelemetry: the tracer, its exporter, and trace context in gRPC metadata.

The import takes 0.1 s, so only `runtime.tracing` imports it, and only when tracing is on. A server creates a span only
for a call with a trace context. Health checks, watches and operators' calls have none. The type to know is
`OpenTelemetryTracer`.

opentelemetry-instrumentation-grpc 0.66b2 cannot do this. Its client interceptor returns streams that have no `cancel`.
It adds a client span to every call, and a filter that removes the span also removes the trace context. Its server
interceptor does not mark refusals like NOT_FOUND as failed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import grpc
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_SPAN_EVENT_COUNT_LIMIT
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from autothrottle import __version__
from autothrottle.adapters.tracing.exports import OutageLog, RenewedExporter, restore_library_log, silence_library
from autothrottle.core.texts import without_secrets
from autothrottle.ports.telemetry import Attribute, Origin, Span
from autothrottle_client.call_metadata import AddedMetadata

SHUTDOWN_PATIENCE = timedelta(seconds=1.5)
"""Time to export the remaining spans when the process ends; the rest is dropped."""

_ABORT_PATIENCE = timedelta(seconds=0.3)

_MAX_EVENTS = 10_000
"""Events of one span; the SDK's limit of 128 would drop most changes of a large cluster."""

_PROPAGATOR = TraceContextTextMapPropagator()

_NewSpan = Callable[[grpc.ServicerContext], AbstractContextManager[trace.Span]]


class OpenTelemetryTracer:
    """Exports spans in batches, in a background thread (a `Tracer`).

    An export failure is one warning for each outage and never an error. No caller waits for the collector.
    """

    def __init__(self, service_name: str) -> None:
        """Read the OTEL_* environment variables; the first export connects.

        Args:
            service_name: the service name, unless the variables set one.

        Raises:
            ValueError: a variable has no usable value.
            Invalid: a file that a variable names cannot be read, or has other content.
        """
        self._exporter = _LoggedExporter()
        self.credentials = self._exporter.credentials
        attributes = dict(OTELResourceDetector().detect().attributes)
        self._provider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: service_name, **attributes}),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_events=None if OTEL_SPAN_EVENT_COUNT_LIMIT in os.environ else _MAX_EVENTS),
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("autothrottle", __version__)
        silence_library()
        self.client_interceptors = (TraceSender(),)
        self.server_interceptors = (TraceReceiver(self._tracer),)

    @contextmanager
    def span(self, name: str, origins: Sequence[Origin] = ()) -> Iterator[Span]:
        links = [trace.Link(origin) for origin in origins if isinstance(origin, trace.SpanContext)]
        with self._tracer.start_as_current_span(name, links=links, record_exception=False) as span:
            yield _Span(span, self._tracer)

    def origin(self) -> Origin | None:
        context = trace.get_current_span().get_span_context()
        return context if context.is_valid else None

    def close(self) -> None:
        """Export the remaining spans, within two seconds even if the collector hangs."""
        flushing = threading.Thread(target=self._provider.shutdown, name="traces-shutdown", daemon=True)
        flushing.start()
        flushing.join(SHUTDOWN_PATIENCE.total_seconds())
        if flushing.is_alive():
            self._exporter.shutdown()  # Aborts the running export and all later ones.
            flushing.join(_ABORT_PATIENCE.total_seconds())
        if not flushing.is_alive():
            restore_library_log()


def current_trace_id() -> str | None:
    """Return the trace id of this thread as 32 hexadecimal digits; None: no current span."""
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


class _Span:
    """An OpenTelemetry span as a `Span`."""

    def __init__(self, span: trace.Span, tracer: trace.Tracer) -> None:
        self._span, self._tracer = span, tracer

    @property
    def recording(self) -> bool:
        return self._span.is_recording()

    @property
    def trace_id(self) -> str:
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    def describe(self, attributes: Mapping[str, Attribute]) -> None:
        self._span.set_attributes(attributes)

    def fail(self, reason: str) -> None:
        self._span.set_status(trace.StatusCode.ERROR, without_secrets(reason))

    def event(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        self._span.add_event(name, attributes)

    def child(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        start = self._span.start_time if isinstance(self._span, ReadableSpan) else None
        context = trace.set_span_in_context(self._span)
        self._tracer.start_span(name, context, attributes=attributes, start_time=start).end()


class _LoggedExporter(SpanExporter):
    """The exporter, with a log of its outages."""

    def __init__(self) -> None:
        self._exporter = RenewedExporter("TRACES", lambda credentials: OTLPSpanExporter(credentials=credentials))
        self.credentials = self._exporter.credentials
        self._log = OutageLog("Traces", "spans are lost", "OTEL_TRACES_EXPORTER")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        ok = self._log.succeeds(lambda: self._exporter.exports(spans))
        return SpanExportResult.SUCCESS if ok else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._exporter.shutdown()


# Trace context in gRPC metadata.


class TraceSender(AddedMetadata):
    """Adds the trace context of the calling thread to calls (W3C `traceparent`); without one, calls are unchanged."""

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return AddedMetadata(*carrier.items()).intercept_unary_unary(continuation, client_call_details, request)

    intercept_unary_stream = intercept_unary_unary


class TraceReceiver(grpc.ServerInterceptor):
    """Runs each call with a trace context inside a span of that trace, in the thread that answers."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = continuation(handler_call_details)
        metadata = handler_call_details.invocation_metadata
        caller = _PROPAGATOR.extract({key: value for key, value in metadata if isinstance(value, str)}, Context())
        if handler is None or not trace.get_current_span(caller).get_span_context().is_valid:
            return handler
        span = partial(self._span, caller, handler_call_details.method)
        codecs = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(_traced(handler.unary_unary, span), *codecs)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(_traced_stream(handler.unary_stream, span), *codecs)
        return handler  # our services have no client streaming

    @contextmanager
    def _span(self, caller: Context, method: str, context: grpc.ServicerContext) -> Iterator[trace.Span]:
        """Trace one call of a method such as `/autothrottle.v1.DiscoveryService/GetSnapshot`."""
        _, service, name = method.split("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
        span = self._tracer.start_span(method[1:], caller, trace.SpanKind.SERVER, attributes)
        try:
            yield span
        except Exception:
            code = context.code()  # type: ignore[attr-defined]
            span.set_status(trace.StatusCode.ERROR, _details(context) or getattr(code, "name", None))
            raise
        finally:
            span.end()


def _traced(behavior: Callable[..., Any], new_span: _NewSpan) -> Callable[..., Any]:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        with new_span(context) as span, _current(span):
            return behavior(request, context)

    return answer


def _traced_stream(behavior: Callable[..., Any], new_span: _NewSpan) -> Callable[..., Iterator[Any]]:
    # The span is current only while this thread computes: another thread may close an abandoned stream.
    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with new_span(context) as span, closing(behavior(request, context)) as answers:
            while True:
                with _current(span):
                    following = next(answers, None)
                if following is None:
                    return
                yield following

    return answer


def _current(span: trace.Span) -> Any:
    return trace.use_span(span, record_exception=False, set_status_on_exception=False)


def _details(context: grpc.ServicerContext) -> str:
    details = context.details()  # type: ignore[attr-defined]
    return details.decode(errors="replace") if isinstance(details, bytes) else details or ""
