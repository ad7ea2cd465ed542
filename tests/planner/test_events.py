"""Events are posted one after the other by a thread that nothing ends but its owner."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autothrottle.planner.events import EventPoster
from autothrottle.ports.metrics import Event


class Broken:
    """A sink with a bug, which the first event meets."""

    def __init__(self) -> None:
        self.posted: list[Event] = []

    def post_event(self, event: Event, timeout: timedelta) -> None:
        self.posted.append(event)
        if len(self.posted) == 1:
            raise KeyError("a field of the answer")


def test_a_bug_in_a_sink_costs_one_event_and_not_all_that_follow(caplog: pytest.LogCaptureFixture) -> None:
    """It ended the thread: from then on every event was dropped, and the end of the planner waited for nobody."""
    sink = Broken()
    poster = EventPoster(sink, timedelta(seconds=10))
    events = [Event("first", ""), Event("second", "")]
    for event in events:
        poster.post(event)
    poster.stop()
    assert sink.posted == events
    assert "posting the event first failed unexpectedly" in caplog.text
