"""Telemetry: broker loads, events, traces and the decision log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from autothrottle.core.scoring.cycle_records import UnpackedCycle
from autothrottle.core.scoring.decision_records import DecisionRecord, ReassignmentRecord
from autothrottle.core.traffic.loads import Loads


class LoadSource(Protocol):
    """Reads the loads of brokers."""

    def fetch_loads(self, timeout: timedelta) -> Loads:
        """Return the newest complete load of every broker that the source knows.

        Missing or unusable data of one broker is listed under `problems`; it is not an error.

        Raises:
            Unavailable: the source does not answer within `timeout`, or answers with an error.
        """


class NoLoads:
    """A `LoadSource` that knows no broker, for policies that need no loads."""

    def fetch_loads(self, timeout: timedelta) -> Loads:
        """Return no load."""
        return Loads()


@dataclass(frozen=True, slots=True)
class Event:
    """An event on the operators' dashboards."""

    title: str
    """Without the program's name; the sink prepends `[kafka-autothrottle]`."""
    text: str
    tags: tuple[str, ...] = ()
    """`name:value` tags in addition to the configured ones."""


class EventSink(Protocol):
    """Posts events."""

    def post_event(self, event: Event, timeout: timedelta) -> None:
        """Post one event.

        Raises:
            Unavailable: the event could not be posted within `timeout`; the caller may retry.
        """


Attribute = str | bool | int | float | Sequence[str]

Origin = object
"""A reference to a span of any trace, for links from other spans; opaque outside its tracer."""


class Span(Protocol):
    """A span of a trace; no call raises or blocks."""

    @property
    def recording(self) -> bool:
        """Whether the span is recorded; if not, callers may skip its attributes."""

    @property
    def trace_id(self) -> str:
        """Id of its trace, 32 hexadecimal digits; empty: none."""

    def describe(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes."""

    def fail(self, reason: str) -> None:
        """Mark the span as failed; the last reason wins."""

    def event(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        """Add an event at the current time."""

    def child(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        """Add a child span that started with this span and ends now."""


class Tracer(Protocol):
    """Creates spans."""

    def span(self, name: str, origins: Sequence[Origin] = ()) -> AbstractContextManager[Span]:
        """Return a span for a `with` statement.

        The span is a child of this thread's current span, or the root of a new trace. An exception that leaves the
        `with` block marks the span as failed. Calls to other services propagate its trace context.

        Args:
            name: name of the operation.
            origins: spans that requested the operation; the new span links to them.
        """

    def origin(self) -> Origin | None:
        """Return a reference to this thread's current span, for later links; None: no current span."""


class Untraced:
    """A tracer and span that record nothing."""

    recording = False
    trace_id = ""

    def span(self, name: str, origins: Sequence[Origin] = ()) -> AbstractContextManager[Untraced]:
        """Return itself for a `with` statement."""
        return nullcontext(self)

    def origin(self) -> Origin | None:
        """Return None."""
        return None

    def describe(self, attributes: Mapping[str, Attribute]) -> None:
        """Do nothing."""

    def fail(self, reason: str) -> None:
        """Do nothing."""

    def event(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        """Do nothing."""

    def child(self, name: str, attributes: Mapping[str, Attribute]) -> None:
        """Do nothing."""


UNTRACED = Untraced()
"""Use it where tracing is off."""


class DecisionSink(Protocol):
    """Writes the records of cycles to the decision log; no call raises or blocks."""

    def append(
        self,
        decisions: Sequence[DecisionRecord],
        reassignments: Sequence[ReassignmentRecord],
        cycle: UnpackedCycle | None = None,
    ) -> None:
        """Queue the records of one cycle; if the queue is full, they are dropped and counted.

        Args:
            decisions: its decisions.
            reassignments: the reassignments that began or ended in it.
            cycle: its inputs, for a replay; None: they are unknown.
        """
