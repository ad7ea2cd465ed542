"""The trace of a cycle: spans, each a stretch of time and what is known of it.

`UNTRACED` is the tracer of whoever does not trace: it stands here, not among the twins, since it is what a service has
when it is given none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

Attribute = str | bool | int | float | Sequence[str]


Origin = object
"""A span of any trace, as something to point to; only its tracer knows what it is."""


class Span(Protocol):
    """One stretch of time; no call raises or waits."""

    @property
    def recording(self) -> bool:
        """Whether anybody keeps what it is told; else it need not be told anything."""
        ...

    @property
    def trace_id(self) -> str:
        """The trace that it is a part of, 32 hexadecimal digits; empty: none."""
        ...

    def describe(self, attributes: Mapping[str, Attribute]) -> None:
        """Add what is known of it."""
        ...

    def fail(self, reason: str) -> None:
        """Say that it did not succeed; the last reason stays."""
        ...

    def event(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        """Add something that happens now."""
        ...

    def part(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        """Add a child that began with this span and ends now."""
        ...


class Tracer(Protocol):
    """What makes spans."""

    def span(self, name: str, origins: Sequence[Origin] = ()) -> AbstractContextManager[Span]:
        """Return a span for a `with`: a child of the one around it in this thread, a trace of its own without one.

        An exception that leaves it fails it. Calls to other services go along with it.

        Args:
            name: what is done.
            origins: what asked for it; it is linked to them.
        """
        ...

    def origin(self) -> Origin | None:
        """Return the span around this thread as the origin of what begins later; None: there is none."""
        ...


class Untraced:
    """The tracer, and the span, that nobody keeps."""

    recording = False
    trace_id = ""

    def span(self, name: str, origins: Sequence[Origin] = ()) -> Untraced:
        """Return itself."""
        return self

    def origin(self) -> Origin | None:
        """Return None."""
        return None

    def describe(self, attributes: Mapping[str, Attribute]) -> None:
        """Do nothing."""

    def fail(self, reason: str) -> None:
        """Do nothing."""

    def event(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        """Do nothing."""

    def part(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        """Do nothing."""

    def __enter__(self) -> Untraced:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


UNTRACED = Untraced()
