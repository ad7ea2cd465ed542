"""Rules of limiters for any limit, batch sizes and times, in virtual time."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.autothrottle.virtual_task import ALL, VirtualTask

LIMITS = st.floats(0.001, 1e5)
SIZES = st.lists(st.integers(1, 5_000), min_size=1, max_size=20)
TIMED_BATCHES = st.lists(st.tuples(st.floats(0, 20), st.integers(0, 2_000)), min_size=1, max_size=30)
MICROSECOND = 1e-6
"""Resolution of a pause."""


@given(LIMITS, SIZES, st.floats(0, 0.99))
def test_long_run_rate_is_the_limit_for_any_batch_sizes(limit: float, sizes: list[int], busy: float) -> None:
    """`busy` is the share of the time that the task needs to move its records at the limit."""
    task = VirtualTask({"record.rate.limit": limit})
    task.run(sizes * 20, busy / limit)
    assert task.records / task.elapsed == pytest.approx(limit, rel=0.01)


@given(st.floats(10, 1e6), st.lists(st.floats(0.01, 1), min_size=1), st.lists(st.floats(0, 0.9), min_size=1))
def test_stalls_of_less_than_a_second_do_not_lower_the_long_run_rate(
    limit: float, shares: list[float], stalls: list[float]
) -> None:
    """The task makes up for a stall. `shares` are batch sizes as seconds at the limit."""
    task = VirtualTask({"record.rate.limit": limit})
    batches = [int(limit * share) + 1 for share in shares]
    for stall in (*stalls, *stalls):
        task.now += stall
        begin = task.records
        while task.records < begin + 2 * limit:
            task.run(batches)
    assert task.records == pytest.approx(limit * task.elapsed, rel=0.01)


@given(st.floats(0.1, 1e4), TIMED_BATCHES)
def test_no_pause_while_no_span_of_time_exceeds_the_limit(limit: float, batches: list[tuple[float, int]]) -> None:
    """A task that ignores its pauses: a pause is due only if some span that ends now exceeds the limit."""
    task = VirtualTask({"record.rate.limit": limit})
    moved: list[tuple[float, int]] = []
    for seconds, records in batches:
        begin = task.now
        task.move(records, seconds)
        moved.append((begin, records))
        totals = list(accumulate(records for _, records in reversed(moved)))
        spans = [(task.now - start, total) for (start, _), total in zip(reversed(moved), totals, strict=True)]
        if all(total <= limit * span for span, total in spans):
            assert task.pause_seconds <= MICROSECOND
        longest = max(total / limit - span for span, total in spans)
        assert task.pause_seconds <= max(0.0, longest) + MICROSECOND, "no penalty beyond the shortest sufficient pause"


@given(LIMITS, SIZES)
def test_after_its_pause_a_task_may_continue_at_once(limit: float, sizes: list[int]) -> None:
    task = VirtualTask({"record.rate.limit": limit})
    for records in sizes:
        task.move(records)
        task.pause()
        assert task.pause_seconds <= max(MICROSECOND, 1e-9 * task.elapsed)


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e3), st.floats(1, 1e6), TIMED_BATCHES)
def test_combined_pause_is_the_longest_single_pause(
    records: float, batches: float, size_bytes: float, moved: list[tuple[float, int]]
) -> None:
    limits = {"record.rate.limit": records, "record.batch.rate.limit": batches, "byte.rate.limit": size_bytes}
    alone = [VirtualTask({"rate.limiters": ALL, key: limit}) for key, limit in limits.items()]
    together = VirtualTask({"rate.limiters": ALL, **limits})
    for seconds, count in moved:
        for task in (*alone, together):
            task.move(count, seconds)
        assert together.pause_seconds == max(task.pause_seconds for task in alone)


@given(st.integers(1, 5_000), st.floats(10, 1e4), st.floats(0.01, 100), st.floats(100, 1e6))
def test_of_several_limits_the_tightest_is_reached(
    size: int, records: float, batches: float, size_bytes: float
) -> None:
    limits = {"record.rate.limit": records, "record.batch.rate.limit": batches, "byte.rate.limit": size_bytes}
    task = VirtualTask({"rate.limiters": ALL, **limits})
    task.run([size] * 200)
    used = [task.records / records, task.batches / batches, task.size_bytes / size_bytes]
    assert max(used) / task.elapsed == pytest.approx(1, rel=0.01)


@given(SIZES, SIZES, st.floats(10, 1e5), st.floats(10, 1e5))
def test_a_changed_limit_is_reached_without_a_penalty(
    before: list[int], after: list[int], old: float, new: float
) -> None:
    task = VirtualTask({"record.rate.limit": old})
    task.run(before)
    task.move(before[-1])
    pause = task.pause_seconds
    (limiter, _) = task.limiters._limiters
    limiter.change_limit(new)  # type: ignore[attr-defined]
    assert task.pause_seconds <= pause + MICROSECOND
    task.pause()
    begin, records = task.now, task.records
    task.run(after * 20)
    assert (task.records - records) / (task.now - begin) == pytest.approx(new, rel=0.01)
