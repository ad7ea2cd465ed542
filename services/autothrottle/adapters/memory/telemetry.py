"""A metrics source, a decision log and traces, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta

from autothrottle.adapters.memory.state_store import Outages
from autothrottle.core.scoring.cycle_records import CycleRecord, RecordPacker, UnpackedCycle
from autothrottle.core.scoring.decision_records import DecisionRecord, ReassignmentRecord
from autothrottle.core.traffic.loads import BrokerLoad, Loads
from autothrottle.ports.telemetry import Attribute, Event, Origin


class MemoryMetrics(Outages):
    """Settable loads and posted events (a `LoadSource` and an `EventSink`)."""

    _outage = "the metrics source does not answer; try again"

    def __init__(self, *loads: BrokerLoad) -> None:
        self.loads = Loads({load.broker_id: load for load in loads})
        """The result of the next `fetch_loads`."""
        self.events: list[Event] = []
        """The posted events, in order."""

    def set_loads(self, *loads: BrokerLoad) -> None:
        """Replace the loads of these brokers and clear their problems."""
        new = {load.broker_id: load for load in loads}
        problems = {b: reason for b, reason in self.loads.problems.items() if b not in new}
        self.loads = replace(self.loads, brokers={**self.loads.brokers, **new}, problems=problems)

    def lose(self, broker_id: int, reason: str) -> None:
        """Replace one broker's load with a problem."""
        left = {b: load for b, load in self.loads.brokers.items() if b != broker_id}
        self.loads = replace(self.loads, brokers=left, problems={**self.loads.problems, broker_id: reason})

    def fetch_loads(self, timeout: timedelta) -> Loads:
        self._raise_if_down()
        return self.loads

    def post_event(self, event: Event, timeout: timedelta) -> None:
        self._raise_if_down()
        self.events.append(event)


class MemoryDecisions:
    """A decision log that keeps all records (a `DecisionSink`)."""

    def __init__(self) -> None:
        self.decisions: list[DecisionRecord] = []
        self.reassignments: list[ReassignmentRecord] = []
        self.cycles: list[CycleRecord] = []
        self._packer = RecordPacker()

    def append(
        self,
        decisions: Sequence[DecisionRecord],
        reassignments: Sequence[ReassignmentRecord],
        cycle: UnpackedCycle | None = None,
    ) -> None:
        self.decisions += decisions
        self.reassignments += reassignments
        if cycle is not None:
            self.cycles.append(self._packer.pack(cycle))


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
