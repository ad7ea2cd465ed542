"""The last part of a cycle: writes its report to the log, the events and the decision log.

`cycle_report` makes the report. The types to know are `Reporter` and `Journal`.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from autothrottle.core.cycle.input import PlannerSettings
from autothrottle.core.errors import AutothrottleError
from autothrottle.core.exported_metrics import QUEUE_LENGTH, MetricSample
from autothrottle.core.scoring.decision_records import CycleSeen, LogSettings, ReassignmentSeen, decision_records
from autothrottle.planner.calls import LONGEST_METRICS_WAIT
from autothrottle.planner.cycle_report import CycleReport, Reported
from autothrottle.ports.telemetry import DecisionSink, Event, EventSink

log = logging.getLogger(__name__)


class Reporter:
    """Logs the cycles of one planner and posts their events. Only for the planner's thread."""

    def __init__(self, events: EventSink, settings: PlannerSettings) -> None:
        """Begin without a term.

        Args:
            events: receives the events, in the background.
            settings: the operator's configuration.
        """
        self._is_shadow = settings.shadow
        self._poster = EventPoster(events, min(settings.interval / 2, LONGEST_METRICS_WAIT), settings.cluster)
        self.reported = Reported()

    def stop(self) -> None:
        """Post the queued events for at most one second."""
        self._poster.stop()

    def queue_length(self) -> MetricSample:
        """Return the number of events that wait to be posted."""
        return QUEUE_LENGTH.sample(self._poster.waiting, "events")

    def begin_term(self, fence: int) -> None:
        """Forget what was reported."""
        log.info("Leading in term %d%s", fence, ", in shadow mode: nothing is written" * self._is_shadow)
        self.reported = self.reported.begin_term()

    def report(self, report: CycleReport) -> None:
        """Log a cycle and post its events."""
        for line in report.lines:
            log.log(line.level, "%s", line.text, exc_info=line.cause)
        for event in report.events:
            self._poster.post(event)
        self.reported = report.reported


class EventPoster:
    """Posts events from its own thread: a slow sink never delays a cycle."""

    _LIMIT = 100
    _STOP_SECONDS = 1.0

    def __init__(self, sink: EventSink, timeout: timedelta, cluster: str) -> None:
        """Start the thread.

        Args:
            sink: destination of the events.
            timeout: of one post.
            cluster: name of the Kafka cluster; each event has it as a tag.
        """
        self._sink, self._timeout, self._tag = sink, timeout, f"cluster:{cluster}"
        self._waiting: queue.Queue[tuple[Event, contextvars.Context] | None] = queue.Queue(self._LIMIT)
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def post(self, event: Event) -> None:
        """Queue an event with the cluster's tag. With `_LIMIT` events in the queue it is dropped and logged."""
        try:
            tagged = replace(event, tags=(*event.tags, self._tag))
            self._waiting.put_nowait((tagged, contextvars.copy_context()))  # Keeps the event in the cycle's trace.
        except queue.Full:
            log.warning("Event dropped, %d events are already waiting: %s", self._LIMIT, event.title)

    @property
    def waiting(self) -> int:
        """Number of queued events."""
        return self._waiting.qsize()

    def stop(self) -> None:
        """Post the queued events for at most one second; the rest is lost. With a full queue, do not wait."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
            self._thread.join(self._STOP_SECONDS)

    def _run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            event, context = waiting
            try:
                context.run(self._sink.post_event, event, self._timeout)
            except AutothrottleError as error:
                log.warning("Event was not posted (%s): %s", error, event.title)
            except Exception:  # a bug must not end the thread: all later events would be lost
                log.exception("Posting event %s failed unexpectedly", event.title)


class Journal:
    """Writes one planner's decisions. It never fails or delays a cycle."""

    def __init__(self, sink: DecisionSink | None, settings: LogSettings) -> None:
        """Begin without state.

        Args:
            sink: receives the records; None: nothing is logged.
            settings: fields that all records share.
        """
        self._sink, self._settings = sink, settings
        self._term = 0
        self._moving = ReassignmentSeen()
        self._cancelled = False

    def note_cancelled(self) -> None:
        """Record that the current reassignment was cancelled, at least in part."""
        self._cancelled = True

    def write(self, report: CycleReport, trace_id: str) -> None:
        """Log a cycle, if its snapshot was read."""
        view = report.decision.view
        if self._sink is None or not view.snapshot.version:
            return
        try:
            history, rates = report.term.throttles.history, report.settled.applied.rates
            cycle = CycleSeen(
                report.record, view.snapshot, view.copying, report.decision.loads, history, rates, trace_id=trace_id
            )
            self._write(self._sink, cycle)
        except Exception:  # a bug in the log must not end the planner's loop
            log.exception("Writing a cycle to the decision log failed")

    def _write(self, sink: DecisionSink, cycle: CycleSeen) -> None:
        if cycle.record.term != self._term:
            self._term, self._moving, self._cancelled = cycle.record.term, ReassignmentSeen(), False
        previous = self._moving
        self._moving, ended = previous.observe(cycle, self._settings.cluster, self._cancelled)
        if not self._moving.opening:
            self._cancelled = False
        decisions = decision_records(cycle, self._settings, self._moving.reassignment_id)
        sink.append(decisions, ended)
