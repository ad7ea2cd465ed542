"""A stub of an OpenTelemetry collector that keeps the spans it receives over OTLP."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """A received span."""

    service: str
    """The service name of the process that made it."""
    instance: str
    """The instance id, unique for each process."""
    name: str
    trace_id: str
    """32 hexadecimal digits."""
    span_id: bytes
    parent_id: bytes
    """Empty: a root span."""
    links: Sequence[bytes]
    """Ids of linked spans of other traces."""
    attributes: Mapping[str, Any]
    failed: bool
    failure: str
    events: Sequence[tuple[str, Mapping[str, Any]]]
    start: int
    """Nanoseconds since 1970."""
    end: int


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Listens on the loopback interface; a context manager."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None, port: int = 0) -> None:
        """Choose the port.

        Args:
            credentials: those of TLS; None: it listens without TLS.
            port: where it listens; 0: any free port.
        """
        self.refuses = False
        """Whether it answers with an error that clients must not retry."""
        self.refused = 0
        """The number of requests answered with this error."""
        self.clients: list[str] = []
        """The common names in the certificates of its clients, one for each request."""
        self._lock = threading.Lock()
        self._spans: list[CollectedSpan] = []
        self._server = grpc.server(ThreadPoolExecutor(2, thread_name_prefix="collector"))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        address = f"127.0.0.1:{port}"
        if credentials:
            self.port = self._server.add_secure_port(address, credentials)
        else:
            self.port = self._server.add_insecure_port(address)
        self.endpoint = f"{'https' if credentials else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Collector:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(0).wait()

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        if self.refuses:
            self.refused += 1
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the stub refuses")
        with self._lock:
            names: Any = context.auth_context().get("x509_common_name", ())  # the type stubs say bytes
            self.clients += [name.decode() for name in names]
            for resource_spans in request.resource_spans:
                process = _values(resource_spans.resource.attributes)
                found = [span for scope in resource_spans.scope_spans for span in scope.spans]
                self._spans += [_collected(process, span) for span in found]
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[CollectedSpan]:
        """All received spans."""
        with self._lock:
            return list(self._spans)

    def traces(self) -> list[list[CollectedSpan]]:
        """All received spans by trace. The spans of a trace are sorted by start, parents first."""
        found: dict[str, list[CollectedSpan]] = defaultdict(list)
        for span in self.spans:
            found[span.trace_id].append(span)
        return [sorted(trace, key=lambda span: (span.start, -span.end)) for trace in found.values()]


def path(span: CollectedSpan, trace: Sequence[CollectedSpan]) -> list[str]:
    """Return the span names from the root to this span; fails if a parent is missing."""
    by_id = {other.span_id: other for other in trace}
    ancestors = path(by_id[span.parent_id], trace) if span.parent_id else []
    return [*ancestors, span.name]


def _collected(process: Mapping[str, Any], span: SpanMessage) -> CollectedSpan:
    return CollectedSpan(
        service=process["service.name"],
        instance=process["service.instance.id"],
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id,
        parent_id=span.parent_span_id,
        links=[link.span_id for link in span.links],
        attributes=_values(span.attributes),
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        failure=span.status.message,
        events=[(event.name, _values(event.attributes)) for event in span.events],
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
    )


def _values(pairs: Sequence[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None
