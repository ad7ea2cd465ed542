"""Progress and ETA of a reassignment. Pure: the caller queries and waits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta

from autothrottle.core.units import format_size
from autothrottle_client.reassignments import Reassignments, Targets
from autothrottle_client.texts import duration

_WINDOW = timedelta(minutes=5)
"""Time window of the completion rate."""

_BAR_WIDTH = 24


@dataclass(frozen=True, slots=True)
class ReassignmentProgress:
    """Progress of a reassignment."""

    partitions: int
    """All requested partitions."""
    done: int
    """Partitions whose reassignment is complete."""
    bytes_left: int | None = None
    """Bytes left in its topics that are still reassigned; None: unknown."""
    bytes_copied: int | None = None
    """Bytes copied in its topics that are still reassigned; None: unknown."""
    eta: datetime | None = None
    """Expected end, UTC; None: unknown."""


class ProgressTracker:
    """Computes the progress of a reassignment from successive samples of the ongoing reassignments."""

    def __init__(self, targets: Targets) -> None:
        self._partitions = frozenset(targets)
        self._topics = frozenset(topic for topic, _ in targets)
        self._paces: deque[tuple[datetime, int]] = deque()

    def progress(self, now: datetime, reassignments: Reassignments) -> ReassignmentProgress:
        """Return the progress, from the reassignments that are ongoing now."""
        moving = len(self._partitions & reassignments.partitions())
        done = len(self._partitions) - moving
        self._paces.append((now, done))
        while now - self._paces[0][0] > _WINDOW:
            self._paces.popleft()
        eta = (self._service_eta(reassignments) or self._eta_by_rate(now, moving)) if moving else None
        bytes_left = self._sum([topic.bytes_left for topic in reassignments.topics if topic.topic in self._topics])
        copied = self._sum([topic.bytes_copied for topic in reassignments.topics if topic.topic in self._topics])
        return ReassignmentProgress(len(self._partitions), done, bytes_left, copied, eta)

    def _service_eta(self, reassignments: Reassignments) -> datetime | None:
        """The service's ETA of these partitions. The overall ETA may include other reassignments."""
        own = [
            topic
            for topic in reassignments.topics
            if any((topic.topic, p) in self._partitions for p in topic.partitions)
        ]
        if len(own) == len(reassignments.topics):
            return reassignments.eta
        etas = [topic.eta for topic in own if topic.eta is not None]
        return max(etas) if etas and len(etas) == len(own) else None

    def _eta_by_rate(self, now: datetime, moving: int) -> datetime | None:
        """When the last partition is done if the completion rate of the window continues."""
        begin, done_then = self._paces[0]
        done = self._paces[-1][1] - done_then
        return now + (now - begin) * moving / done if done > 0 else None

    @staticmethod
    def _sum(values: list[int | None]) -> int | None:
        numbers = [value for value in values if value is not None]
        return sum(numbers) if numbers and len(numbers) == len(values) else None


def progress_line(progress: ReassignmentProgress, now: datetime) -> str:
    """Return progress as one line: a bar, partitions, bytes, remaining time.

    >>> from datetime import UTC
    >>> noon = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
    >>> progress_line(ReassignmentProgress(8, 2, 1_500_000_000, 500_000_000, noon + timedelta(seconds=90)), noon)
    '[######..................] 2/8 partitions, 1.50 GB left, ETA 1 min 30 s'
    """
    share = progress.done / progress.partitions
    filled = int(_BAR_WIDTH * share)
    parts = [f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {progress.done}/{progress.partitions} partitions"]
    if progress.bytes_left is not None:
        parts.append(f"{format_size(progress.bytes_left)} left")
    if progress.done < progress.partitions:
        parts.append(f"ETA {'unknown' if progress.eta is None else duration(progress.eta - now)}")
    return ", ".join(parts)
