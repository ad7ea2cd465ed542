"""Configuration, metrics and life of limiters."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from autothrottle.rate_limiters import (
    RATE_LIMITERS,
    Clock,
    RateLimiter,
    RateLimiters,
    RecordBatch,
    RecordBatchRateLimiter,
    RecordRateLimiter,
    configured_limiters,
)
from tests.unit.autothrottle.virtual_task import ALL, VirtualTask


def test_both_limiters_of_kip_731_are_enabled_by_default_and_do_nothing_without_a_limit() -> None:
    assert [type(limiter) for limiter in configured_limiters({})] == [RecordRateLimiter, RecordBatchRateLimiter]
    task = VirtualTask()
    for _ in range(1_000):
        task.move(5_000)
    assert task.pause_seconds == 0


@pytest.mark.parametrize(
    ("configs", "seconds"),
    [
        ({"record.rate.limit": 100}, 5.0),
        ({"record.rate.limit": "100"}, 5.0),
        ({"record.batch.rate.limit": 0.5}, 2.0),
        ({"rate.limiters": "ByteRateLimiter", "byte.rate.limit": 25_000}, 2.0),
        ({"record.rate.limit": 100, "record.batch.rate.limit": 0.1}, 10.0),
        ({"record.rate.limit": None}, 0.0),
        ({"rate.limiters": ""}, 0.0),
        ({"rate.limiters": ["RecordRateLimiter", " ByteRateLimiter "], "byte.rate.limit": 5_000}, 10.0),
    ],
)
def test_pause_after_one_batch_of_500_records(configs: Mapping[str, object], seconds: float) -> None:
    task = VirtualTask(configs)
    task.move(500, record_bytes=100)
    assert task.pause_seconds == pytest.approx(seconds)


def test_failed_batches_are_paced_like_successful_ones() -> None:
    """KIP-731: no retry storm. A failed batch has no records, but counts as a batch."""
    task = VirtualTask({"record.batch.rate.limit": 4})
    task.run([0, 500, 0, 0, 500, 0, 0, 0])
    assert task.elapsed == pytest.approx(2.0)


def test_a_task_limited_to_one_batch_per_hour_waits_an_hour() -> None:
    """KIP-731's extreme case: the limit supersedes a maximum delay of one minute between retries."""
    task = VirtualTask({"record.batch.rate.limit": 1 / 3600})
    task.move(1)
    assert task.pause_seconds == pytest.approx(3600)


def test_after_an_idle_hour_at_most_one_second_is_made_up() -> None:
    task = VirtualTask({"record.rate.limit": 100})
    task.now += 3600
    assert task.pause_seconds == 0
    task.move(150)
    assert task.pause_seconds == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("configs", "text"),
    [
        ({"record.rate.limit": 0}, "record.rate.limit is '0'; it must be a number above 0"),
        ({"record.rate.limit": -1.5}, "record.rate.limit is '-1.5'"),
        ({"record.rate.limit": True}, "record.rate.limit is 'True'"),
        ({"record.rate.limit": "nan"}, "record.rate.limit is 'nan'"),
        ({"record.rate.limit": float("inf")}, "record.rate.limit is 'inf'"),
        ({"record.rate.limit": 10**400}, "record.rate.limit is '1000"),
        ({"record.batch.rate.limit": "10/s"}, "record.batch.rate.limit is '10/s'"),
        (
            {"record.rate.limits": 5},
            "'record.rate.limits' is not a key of the enabled limiters; they have rate",
        ),
        ({"byte.rate.limit": 5}, "add its limiter to rate.limiters"),
        ({"rate.limiters": "Missing"}, "rate.limiters names 'Missing', which is not installed"),
        ({"rate.limiters": 5}, "rate.limiters is '5'; it must be a list of names"),
        ({"rate.limiters": [5]}, "it must be a list of names"),
        ({"rate.limiters": "RecordRateLimiter,RecordRateLimiter"}, "names a limiter twice"),
    ],
)
def test_bad_configuration_names_the_value_and_the_fix(configs: Mapping[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        configured_limiters(configs)
    assert "Fix: " in str(caught.value)


def test_every_key_has_its_documentation() -> None:
    keys = [key for limiter in configured_limiters({"rate.limiters": ALL}) for key in limiter.config()]
    assert [key.name for key in keys] == ["record.rate.limit", "record.batch.rate.limit", "byte.rate.limit"]
    assert all("Default: " in key.documentation for key in (*keys, RATE_LIMITERS))


def test_the_size_of_a_batch_is_computed_once_and_only_for_a_byte_limit() -> None:
    asked: list[bytes] = []

    def size(record: bytes) -> int:
        asked.append(record)
        return len(record)

    without = RecordBatch([b"a", b"bc"], size_of=size)
    VirtualTask({"rate.limiters": ALL}).limiters.accumulate(without)
    assert asked == []
    assert (without.size_bytes, without.size_bytes) == (3, 3)
    assert asked == [b"a", b"bc"]
    assert RecordBatch([b"a", b"bc"]).size_bytes == 3
    assert RecordBatch().size_bytes == 0


def test_metrics_have_the_average_the_maximum_and_the_throttled_ratio() -> None:
    task = VirtualTask({"record.rate.limit": 100})
    assert task.limiters.metrics() == {"record-rate-avg": 0.0, "record-rate-max": 0.0, "throttled-ratio": 0.0}
    task.run([50] * 40)
    found = task.limiters.metrics()
    assert found["record-rate-avg"] == pytest.approx(100, rel=0.01)
    assert found["record-rate-max"] == pytest.approx(100, rel=0.5)
    assert found["throttled-ratio"] == pytest.approx(1.0, rel=0.01)


def test_metrics_cover_the_last_30_seconds() -> None:
    task = VirtualTask()
    for records in [*[1_000] * 10, *[30] * 40]:
        task.move(records, seconds=1.0)
    task.limiters.note_pause(6.0)
    found = task.limiters.metrics()
    assert found["record-rate-avg"] == pytest.approx(30, rel=0.05)
    assert found["record-rate-max"] == 30
    assert found["throttled-ratio"] == pytest.approx(6 / 29)
    task.now += 100
    assert task.limiters.metrics() == {"record-rate-avg": 0.0, "record-rate-max": 0.0, "throttled-ratio": 0.0}


class _Refusing(RecordRateLimiter):
    """Fails at its start."""

    def start(self, clock: Clock) -> None:
        raise OSError("no route")


class _Closing(RecordRateLimiter):
    """Counts its closings."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_limiters_are_closed_together_and_after_a_failed_start() -> None:
    first = _Closing()
    with pytest.raises(OSError, match="no route"):
        RateLimiters([first, _Refusing()], lambda: 0.0)
    assert first.closed == 1
    RateLimiters([first], lambda: 0.0).close()
    assert first.closed == 2


def test_a_custom_limiter_needs_only_the_interface() -> None:
    kinds: dict[str, type[RateLimiter]] = {"Custom": _Closing}
    (limiter,) = configured_limiters({"rate.limiters": "Custom", "record.rate.limit": 5}, kinds.__getitem__)
    assert isinstance(limiter, _Closing) and limiter.limit == 5
