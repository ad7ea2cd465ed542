"""Spans in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from autothrottle.ports.tracing import Attribute, Origin


@dataclass(eq=False, slots=True)
class MemorySpan:
    """A span that is kept."""

    name: str
    parent: MemorySpan | None
    """None: a trace of its own."""
    attributes: dict[str, Attribute] = field(default_factory=dict)
    failure: str = ""
    events: list[tuple[str, Mapping[str, Attribute]]] = field(default_factory=list)
    ended: bool = False
    parts: list[MemorySpan] = field(default_factory=list)
    """Its children, in the order in which they began."""
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

    def part(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        self.parts.append(MemorySpan(name, self, dict(attributes), ended=True))


class MemoryTracer:
    """Keeps all traces."""

    def __init__(self) -> None:
        self.traces: list[MemorySpan] = []
        """The root of each, in the order in which they began."""
        self._around: ContextVar[MemorySpan | None] = ContextVar("around", default=None)

    @contextmanager
    def span(self, name: str, origins: Sequence[Origin] = ()) -> Iterator[MemorySpan]:
        parent = self._around.get()
        span = MemorySpan(name, parent, origins=origins)
        before = self._around.set(span)
        (parent.parts if parent else self.traces).append(span)
        try:
            yield span
        except Exception as error:
            span.fail(f"{type(error).__name__}: {error}")
            raise
        finally:
            span.ended = True
            self._around.reset(before)

    def origin(self) -> Origin | None:
        return self._around.get()
