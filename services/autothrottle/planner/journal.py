"""Hands what a cycle decided over to the decision log."""

from __future__ import annotations

import logging

from autothrottle.core.decisions import CycleSeen, LogSettings, ReassignmentSeen, decision_records
from autothrottle.ports.decisions import DecisionSink

log = logging.getLogger(__name__)


class Journal:
    """What one planner logs of its cycles; nothing in it ever fails or delays one."""

    def __init__(self, sink: DecisionSink | None, settings: LogSettings) -> None:
        """Begin.

        Args:
            sink: takes the records; None: nothing is logged.
            settings: what every record says alike.
        """
        self._sink, self._settings = sink, settings
        self._term = 0
        self._moving = ReassignmentSeen()
        self._cancelled = False

    def note_cancelled(self) -> None:
        """Remember that what moves was cancelled, or a part of it."""
        self._cancelled = True

    def write(self, seen: CycleSeen) -> None:
        """Log a cycle that has read the cluster."""
        if self._sink is None:
            return
        try:
            self._write(self._sink, seen)
        except Exception:  # a bug in what is written down must not end the loop that it is about
            log.exception("A cycle cannot be logged")

    def _write(self, sink: DecisionSink, seen: CycleSeen) -> None:
        if seen.record.term != self._term:
            self._term, self._moving, self._cancelled = seen.record.term, ReassignmentSeen(), False
        was = self._moving
        self._moving, ended = was.observe(seen, self._settings.cluster, self._cancelled)
        if not self._moving.opening:
            self._cancelled = False
        decisions = decision_records(seen, self._settings, self._moving.reassignment_id)
        sink.append(decisions, ended)
