"""A metrics source in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from autothrottle.core.errors import Unavailable
from autothrottle.core.loads import BrokerLoad, Loads
from autothrottle.ports.metrics import Event


class MemoryMetrics:
    """A metrics source and an event sink that hold what they are given."""

    def __init__(self, *loads: BrokerLoad) -> None:
        self.loads = Loads({load.broker_id: load for load in loads})
        """What the next reading returns."""
        self.events: list[Event] = []
        """What was posted, in order."""
        self._down = False

    def set_loads(self, *loads: BrokerLoad) -> None:
        """Replace the loads of these brokers; a problem of theirs is over."""
        new = {load.broker_id: load for load in loads}
        problems = {b: reason for b, reason in self.loads.problems.items() if b not in new}
        self.loads = replace(self.loads, brokers={**self.loads.brokers, **new}, problems=problems)

    def lose(self, broker_id: int, reason: str) -> None:
        """Let one broker have no load for a reason."""
        left = {b: load for b, load in self.loads.brokers.items() if b != broker_id}
        self.loads = replace(self.loads, brokers=left, problems={**self.loads.problems, broker_id: reason})

    def unavailable(self, down: bool) -> None:
        """Whether the source and the sink answer nobody."""
        self._down = down

    def fetch_loads(self, timeout: timedelta) -> Loads:
        self._answer()
        return self.loads

    def post_event(self, event: Event, timeout: timedelta) -> None:
        self._answer()
        self.events.append(event)

    def _answer(self) -> None:
        if self._down:
            raise Unavailable("the metrics source does not answer; try again")
