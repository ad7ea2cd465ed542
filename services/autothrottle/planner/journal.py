"""Writes the decisions of each cycle to the decision log."""

from __future__ import annotations

import logging

from autothrottle.core.scoring.decision_records import CycleSeen, LogSettings, ReassignmentSeen, decision_records
from autothrottle.ports.telemetry import DecisionSink

log = logging.getLogger(__name__)


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

    def write(self, seen: CycleSeen) -> None:
        """Log a cycle whose snapshot was read."""
        if self._sink is None:
            return
        try:
            self._write(self._sink, seen)
        except Exception:  # a bug in the log must not end the planner's loop
            log.exception("Writing a cycle to the decision log failed")

    def _write(self, sink: DecisionSink, seen: CycleSeen) -> None:
        if seen.record.term != self._term:
            self._term, self._moving, self._cancelled = seen.record.term, ReassignmentSeen(), False
        previous = self._moving
        self._moving, ended = previous.observe(seen, self._settings.cluster, self._cancelled)
        if not self._moving.opening:
            self._cancelled = False
        decisions = decision_records(seen, self._settings, self._moving.reassignment_id)
        sink.append(decisions, ended)
