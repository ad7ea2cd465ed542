"""A task in virtual time: it pauses as its limiters say, and moves batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autothrottle.rate_limiters import RateLimiters, RecordBatch, configured_limiters

ALL = "RecordRateLimiter,RecordBatchRateLimiter,ByteRateLimiter"


@dataclass
class VirtualTask:
    """One task and its clock."""

    configs: Mapping[str, object] = field(default_factory=dict)
    now: float = 1_000.0
    """Seconds."""

    def __post_init__(self) -> None:
        self.start = self.now
        self.limiters = RateLimiters(configured_limiters(self.configs), lambda: self.now)
        self.records = self.batches = self.size_bytes = 0

    @property
    def elapsed(self) -> float:
        return self.now - self.start

    @property
    def pause_seconds(self) -> float:
        """The pause that is needed now."""
        return self.limiters.throttle_time().total_seconds()

    def pause(self) -> None:
        """Pause as long as needed."""
        seconds = self.pause_seconds
        self.now += seconds
        self.limiters.note_pause(seconds)

    def move(self, records: int, seconds: float = 0.0, record_bytes: int = 100) -> None:
        """Move one batch, which takes some time."""
        self.now += seconds
        self.limiters.accumulate(RecordBatch(range(records), records * record_bytes))
        self.records, self.batches = self.records + records, self.batches + 1
        self.size_bytes += records * record_bytes

    def run(self, batches: Sequence[int], seconds_per_record: float = 0.0) -> None:
        """Pause before each batch and after the last one."""
        for records in batches:
            self.pause()
            self.move(records, records * seconds_per_record)
        self.pause()
