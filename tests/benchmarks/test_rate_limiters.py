"""CPU time of a rate limiter for each record batch: `accumulate` and `throttle_time`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pytest

from autothrottle.rate_limiters import RecordBatch
from autothrottle_client.kafka_pacing import _consumed_bytes
from autothrottle_client.pacing import Pacer
from tests.benchmarks.figures import Figures
from tests.unit.autothrottle_client.test_pacing import record

RUNS, BATCHES = 5, 20_000
ALL: Mapping[str, object] = {
    "rate.limiters": "RecordRateLimiter,RecordBatchRateLimiter,ByteRateLimiter",
    "record.rate.limit": 1e6,
    "record.batch.rate.limit": 1e3,
    "byte.rate.limit": 1e9,
}
"""A busy task: the bench exceeds these limits, so that every call computes a pause."""


def microseconds(count: int, work: Callable[[], object]) -> float:
    """Return the CPU time of one call, which does not depend on other load on the machine."""
    begin = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - begin) / count * 1e6


@pytest.mark.parametrize(("name", "configs"), [("the default limiters, no limit", {}), ("three limits", ALL)])
def test_cost_of_a_batch(figures: Figures, name: str, configs: Mapping[str, object]) -> None:
    with Pacer(configs) as pacer:
        batch = RecordBatch(range(500), 500_000)

        def account() -> None:
            pacer.accumulate(batch)
            pacer.throttle_time()

        samples = [microseconds(BATCHES, account) for _ in range(RUNS)]
    figures.add(f"rate limiters: a batch, {name}", "500 records of known size", "us", samples)


def test_cost_of_measuring_a_polled_batch(figures: Figures) -> None:
    records = [record(10, 1_000, 0) for _ in range(500)]
    samples = [microseconds(200, lambda: RecordBatch(records, size_of=_consumed_bytes).size_bytes) for _ in range(RUNS)]
    figures.add("rate limiters: bytes of a polled batch", "500 records", "us", samples)
