"""Spans in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from autothrottle.ports.telemetry import Attribute, Origin


@dataclass(eq=False, slots=True)
class MemorySpan:
    """A recorded span (a `Span`)."""

    name: str
    parent: MemorySpan | None
    """None: the root of a trace."""
    attributes: dict[str, Attribute] = field(default_factory=dict)
    failure: str = ""
    events: list[tuple[str, Mapping[str, Attribute]]] = field(default_factory=list)
    ended: bool = False
    children: list[MemorySpan] = field(default_factory=list)
    """Child spans, by start."""
    origins: Sequence[Origin] = ()

    @property
    def recording(self) -> bool:
        return not self.ended

    @property
    def trace_id(self) -> str:
        return f"{id(self.parent or self):032x}"

    def describe(self, attributes: Mapping[str, Attribute]) -> None:
        self.attributes |= attributes

    def fail(self, reason: str) -> None:
        self.failure = reason

    def event(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        self.events.append((name, attributes))

    def child(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        self.children.append(MemorySpan(name, self, dict(attributes), ended=True))


class MemoryTracer:
    """Keeps all traces (a `Tracer`)."""

    def __init__(self) -> None:
        self.traces: list[MemorySpan] = []
        """The root span of each trace, by start."""
        self._current: ContextVar[MemorySpan | None] = ContextVar("current_span", default=None)

    @contextmanager
    def span(self, name: str, origins: Sequence[Origin] = ()) -> Iterator[MemorySpan]:
        parent = self._current.get()
        span = MemorySpan(name, parent, origins=origins)
        before = self._current.set(span)
        (parent.children if parent else self.traces).append(span)
        try:
            yield span
        except Exception as error:
            span.fail(f"{type(error).__name__}: {error}")
            raise
        finally:
            span.ended = True
            self._current.reset(before)

    def origin(self) -> Origin | None:
        return self._current.get()
