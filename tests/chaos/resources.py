"""Counts the descriptors and threads of the services during a run, and finds those that faults have left behind.

The bound is relative to the quiet state before the faults. The type to know is `ResourceWatch`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autothrottle_lab.servers.processes import Process

_SAMPLE_SECONDS = 0.5

EXTRA = 24
"""Descriptors, and threads, that a process may have beyond the largest number of any process before the faults.

A process that becomes the leader opens up to a dozen of connections, and starts as many threads.
"""


@dataclass(frozen=True, slots=True)
class ResourceCount:
    """What one process uses, or the largest numbers of several."""

    descriptors: int = 0
    threads: int = 0

    def __or__(self, other: ResourceCount) -> ResourceCount:
        """Return the larger number of each kind."""
        return ResourceCount(max(self.descriptors, other.descriptors), max(self.threads, other.threads))

    def __str__(self) -> str:
        return f"{self.descriptors} descriptors and {self.threads} threads"


def resource_count(pid: int) -> ResourceCount:
    """Return what a process uses; 0 of each if it has ended."""
    try:
        return ResourceCount(len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return ResourceCount()


class ResourceWatch:
    """The numbers of all processes of a run. Its owner calls `sample` again and again."""

    def __init__(self, processes: Mapping[str, Process]) -> None:
        """Prepare; processes may start, end and restart at any time."""
        self._processes = processes
        self._next_sample = 0.0
        self.most = ResourceCount()
        """The largest numbers of any process so far."""
        self.quiet = ResourceCount()
        """The largest numbers of any process before the faults."""

    def sample(self) -> None:
        """Count, unless that was done a moment ago."""
        if time.monotonic() >= self._next_sample:
            for count in self._counts().values():
                self.most |= count
            self._next_sample = time.monotonic() + _SAMPLE_SECONDS

    def begin_faults(self) -> None:
        """Take the numbers so far as those of the quiet state."""
        self._next_sample = 0.0
        self.sample()
        self.quiet = self.most

    def excess(self) -> Iterator[str]:
        """Yield a sentence for each process that uses more now than the bound allows."""
        for name, count in self._counts().items():
            if count.descriptors > self.quiet.descriptors + EXTRA or count.threads > self.quiet.threads + EXTRA:
                yield f"{name} has {count}; before the faults, no process had more than {self.quiet}"

    def _counts(self) -> dict[str, ResourceCount]:
        return {name: resource_count(process.pid) for name, process in self._processes.items() if process.running}
