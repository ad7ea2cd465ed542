"""Spans through OpenTelemetry: the tracer, its exporter, and the context that goes along with gRPC calls.

It takes a tenth of a second to import: `runtime.tracing` alone does so, and only when tracing is on. A span of the
server side is made only for a call that brings a trace along: health checks, watches and operators' calls make none.
The type to know is `OpenTelemetryTracer`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

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
from autothrottle.ports.tracing import Attribute, Origin, Span

logger = logging.getLogger(__name__)

SHUTDOWN_PATIENCE = timedelta(seconds=1.5)
"""For what was not exported yet when the process ends; then it is dropped."""

_ABORT_PATIENCE = timedelta(seconds=0.3)

_MOST_EVENTS = 10_000
"""Of one span; the SDK's 128 would drop most changes of a large cluster."""

_PROPAGATOR = TraceContextTextMapPropagator()

_LIBRARY = "opentelemetry"

_T = TypeVar("_T")


class OpenTelemetryTracer:
    """Spans that are exported in batches, by a thread of their own (a `Tracer`).

    What cannot be exported is one warning for each outage, never an error, and nothing waits for the collector.
    """

    def __init__(self, service_name: str) -> None:
        """Read the OTEL_* variables; nothing connects before the first spans have ended.

        Args:
            service_name: what the process is called where the variables do not say.

        Raises:
            ValueError: a variable has no usable value.
        """
        self._exporter = OTLPSpanExporter()
        given = dict(OTELResourceDetector().detect().attributes)
        self._provider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: service_name, **given}),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_events=None if OTEL_SPAN_EVENT_COUNT_LIMIT in os.environ else _MOST_EVENTS),
        )
        self._provider.add_span_processor(BatchSpanProcessor(_Reporting(self._exporter)))
        self._tracer = self._provider.get_tracer("autothrottle", __version__)
        self._unmute = _muted(logging.getLogger(_LIBRARY))
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
        """Export what is left, within two seconds whatever the collector does."""
        flushing = threading.Thread(target=self._provider.shutdown, name="traces-shutdown", daemon=True)
        flushing.start()
        flushing.join(SHUTDOWN_PATIENCE.total_seconds())
        if flushing.is_alive():
            self._exporter.shutdown()  # Ends the export under way, and every one after it at once.
            flushing.join(_ABORT_PATIENCE.total_seconds())
        if not flushing.is_alive():
            self._unmute()


def current_trace_id() -> str | None:
    """Return the trace of this thread as 32 hexadecimal digits; None: there is none."""
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


class _Span:
    """A span of OpenTelemetry behind the port."""

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
        self._span.set_status(trace.StatusCode.ERROR, reason)

    def event(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        self._span.add_event(name, attributes)

    def part(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        start = self._span.start_time if isinstance(self._span, ReadableSpan) else None
        around = trace.set_span_in_context(self._span)
        self._tracer.start_span(name, around, attributes=attributes, start_time=start).end()


class _Reporting(SpanExporter):
    """Tells the log when exporting begins to fail and when it succeeds again; the library tells of every attempt."""

    def __init__(self, exporter: OTLPSpanExporter) -> None:
        self._exporter = exporter
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result, why = self._exporter.export(spans), "the collector does not answer or refuses them"
        except Exception as error:  # Whatever is wrong with a collector, a trace is all that may be lost.
            result, why = SpanExportResult.FAILURE, f"{type(error).__name__}: {error}"
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            logger.warning(
                "Traces cannot be exported, spans are lost meanwhile (%s). "
                "Fix: check OTEL_EXPORTER_OTLP_ENDPOINT and the collector, or set OTEL_TRACES_EXPORTER=none.",
                why,
            )
        elif self._failing and not failed:
            logger.info("Traces are exported again")
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _muted(library: logging.Logger) -> Callable[[], None]:
    """Silence a library's log; return what gives it back its voice."""
    before, silence = library.propagate, logging.NullHandler()
    library.propagate = False
    library.addHandler(silence)

    def unmute() -> None:
        library.propagate = before
        library.removeHandler(silence)

    return unmute


# The context over gRPC.


@dataclass(frozen=True, slots=True)
class _CallDetails(grpc.ClientCallDetails):
    """A call with further metadata."""

    method: str
    timeout: float | None
    metadata: tuple[tuple[str, str | bytes], ...] | None
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class TraceSender(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Sends the trace of the calling thread along (W3C `traceparent`); without one a call is as it was."""

    def intercept_unary_unary(
        self, continuation: Callable[..., _T], client_call_details: grpc.ClientCallDetails, request: Any
    ) -> _T:
        return continuation(_with_trace(client_call_details), request)

    def intercept_unary_stream(
        self, continuation: Callable[..., _T], client_call_details: grpc.ClientCallDetails, request: Any
    ) -> _T:
        return continuation(_with_trace(client_call_details), request)


def _with_trace(details: grpc.ClientCallDetails) -> grpc.ClientCallDetails:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    if not carrier:
        return details
    return _CallDetails(
        method=details.method,
        timeout=details.timeout,
        metadata=(*(details.metadata or ()), *carrier.items()),
        credentials=details.credentials,
        wait_for_ready=details.wait_for_ready,
        compression=details.compression,
    )


class TraceReceiver(grpc.ServerInterceptor):
    """Answers calls that bring a trace along within a span of it, in the thread that answers."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        found = continuation(handler_call_details)
        metadata = handler_call_details.invocation_metadata
        caller = _PROPAGATOR.extract({key: value for key, value in metadata if isinstance(value, str)}, Context())
        if found is None or not trace.get_current_span(caller).get_span_context().is_valid:
            return found
        return _TracedCall(self._tracer, caller, handler_call_details.method).wrapped(found)


@dataclass(frozen=True, slots=True)
class _TracedCall:
    """One call and the trace that it came with."""

    tracer: trace.Tracer
    caller: Context
    method: str
    """`/autothrottle.v1.DiscoveryService/GetSnapshot`."""

    def wrapped(self, found: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the method with its function inside the span; none of ours is streamed to."""
        codecs = (found.request_deserializer, found.response_serializer)
        if found.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._unary(found.unary_unary), *codecs)
        if found.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._stream(found.unary_stream), *codecs)
        return found

    def _unary(self, behavior: Callable[..., Any]) -> Callable[..., Any]:
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            with self._span(context) as span, _current(span):
                return behavior(request, context)

        return answer

    def _stream(self, behavior: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        # The context is the thread's only while it computes: a stream that is given up may be closed in another one.
        def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._span(context) as span, closing(behavior(request, context)) as answers:
                while True:
                    with _current(span):
                        following = next(answers, None)
                    if following is None:
                        return
                    yield following

        return answer

    @contextmanager
    def _span(self, context: grpc.ServicerContext) -> Iterator[trace.Span]:
        _, service, name = self.method.split("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
        span = self.tracer.start_span(self.method[1:], self.caller, trace.SpanKind.SERVER, attributes)
        try:
            yield span
        except Exception:
            code = context.code()  # type: ignore[attr-defined]
            span.set_status(trace.StatusCode.ERROR, _sentence(context) or getattr(code, "name", None))
            raise
        finally:
            span.end()


def _current(span: trace.Span) -> Any:
    return trace.use_span(span, record_exception=False, set_status_on_exception=False)


def _sentence(context: grpc.ServicerContext) -> str:
    details = context.details()  # type: ignore[attr-defined]
    return details.decode(errors="replace") if isinstance(details, bytes) else details or ""
