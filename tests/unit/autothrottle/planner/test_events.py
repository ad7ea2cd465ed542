"""A background thread posts events one after the other until its owner stops it."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from autothrottle.planner.events import EventPoster
from autothrottle.ports.telemetry import Event
from tests.builders import eventually


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
    poster = EventPoster(sink, timedelta(seconds=10), "prod")
    events = [Event("first", "", ("cluster:prod",)), Event("second", "", ("cluster:prod",))]
    for event in events:
        poster.post(replace(event, tags=()))
    poster.stop()
    assert sink.posted == events
    assert "posting event first failed unexpectedly" in caplog.text


class WaitingSink:
    """A sink that waits for a gate before it accepts an event."""

    def __init__(self) -> None:
        self.gate, self.waits, self.posted = threading.Event(), threading.Event(), list[Event]()

    def post_event(self, event: Event, timeout: timedelta) -> None:
        self.waits.set()
        self.gate.wait()
        self.posted.append(event)


def test_events_beyond_the_limit_are_dropped_and_a_stop_does_not_wait_for_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = WaitingSink()
    poster = EventPoster(sink, timedelta(milliseconds=10), "prod")
    events = [Event(f"event {n}", "") for n in range(EventPoster._LIMIT + 2)]
    poster.post(events[0])
    assert sink.waits.wait(10)
    for event in events[1:]:
        poster.post(event)
    poster.stop()
    assert "event dropped, 100 events are already waiting: event 101" in caplog.text
    sink.gate.set()
    eventually(lambda: [event.title for event in sink.posted] == [event.title for event in events[:-1]])
    poster.stop()
