"""Posts events without making a cycle wait."""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from datetime import timedelta

from autothrottle.core.errors import AutothrottleError
from autothrottle.ports.metrics import Event, EventSink

log = logging.getLogger(__name__)


class EventPoster:
    """Posts events from a thread of its own: a slow sink never delays a cycle."""

    _LIMIT = 100

    def __init__(self, sink: EventSink, timeout: timedelta) -> None:
        self._sink, self._timeout = sink, timeout
        self._waiting: queue.Queue[tuple[Event, contextvars.Context] | None] = queue.Queue(self._LIMIT)
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def post(self, event: Event) -> None:
        """Take an event over; it is dropped, with a line in the log, when too many wait."""
        try:
            self._waiting.put_nowait((event, contextvars.copy_context()))  # It belongs to the cycle's trace.
        except queue.Full:
            log.warning("event dropped, %d wait already: %s", self._LIMIT, event.title)

    def stop(self) -> None:
        """Post what waits, for as long as one post may take, then end."""
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
                log.warning("event not posted (%s): %s", error, event.title)
            except Exception:  # a bug must not end it: every later event would be lost
                log.exception("posting the event %s failed unexpectedly", event.title)
