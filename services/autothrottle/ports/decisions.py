"""Where decisions are logged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autothrottle.core.decisions import DecisionRecord, ReassignmentRecord


class DecisionSink(Protocol):
    """Takes the records of cycles; no call raises, and none waits."""

    def append(self, decisions: Sequence[DecisionRecord], reassignments: Sequence[ReassignmentRecord]) -> None:
        """Take over the records of one cycle; they are dropped, and counted, when too many wait."""
        ...
