"""The last part of a cycle: what it found and did, as lines of the log and as events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from autothrottle.core.eta import SHORTEST_SPAN
from autothrottle.core.ownership import ForeignThrottle
from autothrottle.planner import narration
from autothrottle.planner.events import EventPoster
from autothrottle.planner.guards import Guards
from autothrottle.planner.memory import CycleInHand, Memory
from autothrottle.planner.reading import LONGEST_METRICS_WAIT
from autothrottle.planner.settings import PlannerSettings
from autothrottle.planner.triggers import Trigger, Triggers
from autothrottle.ports.metrics import Event, EventSink
from autothrottle.runtime.logs import together

log = logging.getLogger(__name__)

_FIRST_PROGRESS = SHORTEST_SPAN + timedelta(seconds=10)
"""So long after the start of a move its ETA is known."""

_FIRST_SIZES = timedelta(seconds=3)
"""So long after the start of a move it is known what is left of it: a reading every 2 s, and its answer."""


class Telling:
    """Tells for one planner, from its start to `stop`; what was told already is in the term's memory."""

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
        """Post what waits, for as long as one post may take."""
        self._poster.stop()

    def tell(self, cycle: CycleInHand, trigger: Trigger, memory: Memory) -> None:
        """Log a cycle, and post its events.

        Args:
            cycle: all of it; what is found now is added to its findings.
            trigger: why it ran; scheduled ones say again what moves.
            memory: what the term has told already, and from now on this too.
        """
        with together():
            self._tell(cycle, trigger, memory)

    def _tell(self, cycle: CycleInHand, trigger: Trigger, memory: Memory) -> None:
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
            self._tell_what_would_be(cycle, memory)
        defaults = snapshot.default_throttles
        cycle.findings += narration.default_lines(memory.defaults, defaults)
        cycle.findings += narration.default_in_force_lines(defaults, cycle.changes, cycle.outcomes)
        said, seen = self._guards.look(cycle.plan, snapshot, trigger.scheduled)
        cycle.findings += said
        self._tell_findings(cycle, memory)
        if not self._settings.shadow:
            self._post_events(cycle, memory.foreign, done, seen)
        memory.topics, memory.announced, memory.defaults = topics, lines, defaults
        memory.foreign = cycle.foreign

    def _post_events(
        self, cycle: CycleInHand, told: Sequence[ForeignThrottle], done: Sequence[str], seen: Sequence[Event]
    ) -> None:
        """Post what the cycle changed, and what others left: that when it appears or becomes another."""
        found = [*narration.events(cycle.plan, cycle.snapshot, cycle.applied, done), *seen]
        if cycle.foreign and cycle.foreign != told:
            found.append(narration.foreign_event(cycle.foreign, self._settings.cleanup_foreign))
        for event in found:
            self._poster.post(event)

    def _announce_progress(self, is_read: bool) -> None:
        """At the start of a move: let a cycle tell its ETA once there is one, or say that there will be none."""
        if is_read:
            if self._settings.finish_by is not None:
                self._triggers.request("what the deadline needs", _FIRST_SIZES)
            self._triggers.request("how far the move has come", _FIRST_PROGRESS)
        else:
            log.info("%s", narration.UNKNOWN_PROGRESS)

    def _tell_what_would_be(self, cycle: CycleInHand, memory: Memory) -> None:
        """Log what is not written, when it becomes another thing: it is worked out anew by each cycle."""
        lines = tuple(narration.would_lines(cycle.plan, cycle.would, self._settings.limits))
        for line in lines if lines != memory.would else ():
            log.info("%s", line)
        memory.would = lines

    def _tell_findings(self, cycle: CycleInHand, memory: Memory) -> None:
        """Log what was found, each thing when it appears and not again while it stays."""
        refused = [f"{o.resource}: not written: {o.reason}" for o in cycle.refused]
        findings = [*cycle.findings, *refused]
        for finding in findings:
            if finding not in memory.findings:
                log.warning("%s", finding)
        memory.findings = frozenset(findings)
