"""A background thread posts events one after the other until its owner stops it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autothrottle.planner.events import EventPoster
from autothrottle.ports.telemetry import Event


class BuggySink:
    """A sink that raises an unexpected error on the first event."""

    def __init__(self) -> None:
        self.posted: list[Event] = []

    def post_event(self, event: Event, timeout: timedelta) -> None:
        self.posted.append(event)
        if len(self.posted) == 1:
            raise KeyError("a field of the answer")


def test_a_bug_in_a_sink_loses_only_one_event(caplog: pytest.LogCaptureFixture) -> None:
    """The error ended the thread. All later events were dropped, and the planner's stop waited in vain."""
    sink = BuggySink()
    poster = EventPoster(sink, timedelta(seconds=10))
    events = [Event("first", ""), Event("second", "")]
    for event in events:
        poster.post(event)
    poster.stop()
    assert sink.posted == events
    assert "posting event first failed unexpectedly" in caplog.text
