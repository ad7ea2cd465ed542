"""A decision log in memory."""

from __future__ import annotations

from collections.abc import Sequence

from autothrottle.core.scoring.decision_records import DecisionRecord, ReassignmentRecord


class MemoryDecisions:
    """A decision log that keeps all records (a `DecisionSink`)."""

    def __init__(self) -> None:
        self.decisions: list[DecisionRecord] = []
        self.reassignments: list[ReassignmentRecord] = []

    def append(self, decisions: Sequence[DecisionRecord], reassignments: Sequence[ReassignmentRecord]) -> None:
        self.decisions += decisions
        self.reassignments += reassignments
