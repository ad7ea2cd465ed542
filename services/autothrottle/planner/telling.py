"""The last part of a cycle: logs and posts its results and findings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from autothrottle.core.control.ownership import ForeignThrottle
from autothrottle.core.forecast.eta import SHORTEST_SPAN
from autothrottle.planner import narration
from autothrottle.planner.events import EventPoster
from autothrottle.planner.guards import Guards
from autothrottle.planner.memory import CycleInHand, Memory
from autothrottle.planner.reading import LONGEST_METRICS_WAIT
from autothrottle.planner.settings import PlannerSettings
from autothrottle.planner.triggers import Trigger, Triggers
from autothrottle.ports.telemetry import Event, EventSink
from autothrottle.runtime.logs import batched_lines

log = logging.getLogger(__name__)

_FIRST_PROGRESS = SHORTEST_SPAN + timedelta(seconds=10)
"""Time from the start of a reassignment until its ETA is known."""

_FIRST_SIZES = timedelta(seconds=3)
"""Time from the start of a reassignment until its bytes left are known: one read every 2 s, and its answer."""


class Telling:
    """Logs and posts the cycles of one planner. `Memory` records what was already reported."""

    def __init__(
        self,
        events: EventSink,
        settings: PlannerSettings,
        triggers: Triggers,
        guards: Guards,
        now: Callable[[], datetime],
    ) -> None:
        self._settings, self._triggers, self._guards, self._now = settings, triggers, guards, now
        self._poster = EventPoster(events, min(settings.interval / 2, LONGEST_METRICS_WAIT))

    def stop(self) -> None:
        """Post the queued events for at most the timeout of one post."""
        self._poster.stop()

    def report(self, cycle: CycleInHand, trigger: Trigger, memory: Memory) -> None:
        """Log a cycle and post its events.

        Args:
            cycle: the finished cycle; its findings are extended.
            trigger: why it ran. Scheduled cycles log the topics in reassignment again.
            memory: what the term has already reported; updated.
        """
        with batched_lines():
            self._report(cycle, trigger, memory)

    def _report(self, cycle: CycleInHand, trigger: Trigger, memory: Memory) -> None:
        snapshot = cycle.snapshot
        topics = frozenset(cycle.read.topics)
        done = sorted(memory.topics - topics)
        if done:
            log.info("%s", narration.done_line(done))
        lines = tuple(narration.topic_lines(snapshot))
        if lines != memory.announced or trigger.scheduled:
            for line in (*lines, *narration.progress_lines(cycle.left)):
                log.info("%s", line)
        if topics and not memory.topics:
            self._announce_progress(cycle.read.progress is not None)
        limits = self._guards.limits(self._settings.limits, self._now())
        for line in narration.rate_lines(cycle.plan, cycle.applied, limits):
            log.info("%s", line)
        for line in narration.removal_lines(cycle.plan, cycle.applied):
            log.info("%s", line)
        if self._settings.shadow:
            self._report_shadow(cycle, memory)
        defaults = snapshot.default_throttles
        cycle.findings += narration.default_lines(memory.defaults, defaults)
        cycle.findings += narration.default_in_force_lines(defaults, cycle.changes, cycle.outcomes)
        found, found_events = self._guards.findings(cycle.plan, snapshot, trigger.scheduled)
        cycle.findings += found
        self._report_findings(cycle, memory)
        if not self._settings.shadow:
            self._post_events(cycle, memory.foreign, done, found_events)
        memory.topics, memory.announced, memory.defaults = topics, lines, defaults
        memory.foreign = cycle.foreign

    def _post_events(
        self, cycle: CycleInHand, reported: Sequence[ForeignThrottle], done: Sequence[str], more: Sequence[Event]
    ) -> None:
        """Post the events of a cycle, and new or changed foreign throttles."""
        found = [*narration.events(cycle.plan, cycle.snapshot, cycle.applied, done), *more]
        if cycle.foreign and cycle.foreign != reported:
            found.append(narration.foreign_event(cycle.foreign, self._settings.cleanup_foreign))
        for event in found:
            self._poster.post(event)

    def _announce_progress(self, is_read: bool) -> None:
        """At the start of a reassignment: request a cycle for its first ETA, or log that the progress is unknown."""
        if is_read:
            if self._settings.finish_by is not None:
                self._triggers.request("first bytes left for the deadline", _FIRST_SIZES)
            self._triggers.request("first ETA of the reassignment", _FIRST_PROGRESS)
        else:
            log.info("%s", narration.UNKNOWN_PROGRESS)

    def _report_shadow(self, cycle: CycleInHand, memory: Memory) -> None:
        """Log what is not written when it differs from the last cycle: each cycle computes it again."""
        lines = tuple(narration.would_lines(cycle.plan, cycle.would, self._settings.limits))
        for line in lines if lines != memory.would else ():
            log.info("%s", line)
        memory.would = lines

    def _report_findings(self, cycle: CycleInHand, memory: Memory) -> None:
        """Log each finding when it appears, and not again while it stays."""
        refused = [f"{o.resource}: not written: {o.reason}" for o in cycle.refused]
        findings = [*cycle.findings, *refused]
        for finding in findings:
            if finding not in memory.findings:
                log.warning("%s", finding)
        memory.findings = frozenset(findings)
