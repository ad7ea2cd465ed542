"""Posts events in the background, so that no cycle waits for the events service."""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from datetime import timedelta

from autothrottle.core.errors import AutothrottleError
from autothrottle.ports.telemetry import Event, EventSink

log = logging.getLogger(__name__)


class EventPoster:
    """Posts events from its own thread: a slow sink never delays a cycle."""

    _LIMIT = 100

    def __init__(self, sink: EventSink, timeout: timedelta) -> None:
        self._sink, self._timeout = sink, timeout
        self._waiting: queue.Queue[tuple[Event, contextvars.Context] | None] = queue.Queue(self._LIMIT)
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def post(self, event: Event) -> None:
        """Queue an event. With `_LIMIT` events in the queue it is dropped and logged."""
        try:
            self._waiting.put_nowait((event, contextvars.copy_context()))  # Keeps the event in the cycle's trace.
        except queue.Full:
            log.warning("event dropped, %d events are already waiting: %s", self._LIMIT, event.title)

    @property
    def waiting(self) -> int:
        """Number of queued events."""
        return self._waiting.qsize()

    def stop(self) -> None:
        """Post the queued events for at most the timeout of one post, then end the thread."""
        try:
            self._waiting.put(None, timeout=self._timeout.total_seconds())
        except queue.Full:
            return
        self._thread.join(self._timeout.total_seconds())

    def _run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            event, context = waiting
            try:
                context.run(self._sink.post_event, event, self._timeout)
            except AutothrottleError as error:
                log.warning("event was not posted (%s): %s", error, event.title)
            except Exception:  # a bug must not end the thread: all later events would be lost
                log.exception("posting event %s failed unexpectedly", event.title)
