"""A metrics source in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from autothrottle.adapters.memory.outages import Outages
from autothrottle.core.traffic.loads import BrokerLoad, Loads
from autothrottle.ports.telemetry import Event


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
