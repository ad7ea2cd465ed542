"""A pacer in real time, its limiters by entry point, and paced consumers and producers."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autothrottle.rate_limiters import RecordBatch, RecordRateLimiter
from autothrottle_client.errors import Invalid
from autothrottle_client.kafka_pacing import PacedConsumer, PacedProducer
from autothrottle_client.pacing import Pacer

ONE = RecordBatch([b"record"])
BYTES = {"rate.limiters": "ByteRateLimiter", "byte.rate.limit": 1}
"""So low that the time of a test does not matter."""


def test_a_paced_task_reaches_its_limit_and_does_not_exceed_it() -> None:
    begin = time.monotonic()
    with Pacer({"record.rate.limit": 200}) as pacer:
        for _ in range(100):
            pacer.pause()
            pacer.accumulate(ONE)
        pacer.pause()
        seconds = time.monotonic() - begin
        assert seconds >= 0.5
        found = pacer.metrics()
    assert 0 < found["record-rate-avg"] <= found["record-rate-max"] <= 100
    assert found["throttled-ratio"] > 0


def test_threads_share_the_limit_of_their_pacer() -> None:
    begin = time.monotonic()
    with Pacer({"record.rate.limit": 400}) as pacer:

        def work() -> None:
            for _ in range(50):
                pacer.pause()
                pacer.accumulate(ONE)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pacer.pause()
    assert time.monotonic() - begin >= 0.5


def test_closing_ends_a_long_pause() -> None:
    pacer = Pacer({"record.rate.limit": 0.001})
    pacer.accumulate(ONE)
    thread = threading.Thread(target=pacer.pause)
    thread.start()
    pacer.close()
    thread.join(10)
    assert not thread.is_alive()


def test_bad_configuration_is_an_error_of_the_client() -> None:
    with pytest.raises(Invalid, match=r"record\.rate\.limit is '-1'"):
        Pacer({"record.rate.limit": -1})
    with pytest.raises(Invalid, match="'Absent', which is not installed"):
        Pacer({"rate.limiters": "Absent"})


def test_an_entry_point_adds_a_limiter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "plug-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(
        "[autothrottle.rate_limiters]\nHalfLimiter = half:HalfLimiter\nAbsent = half:Absent\nNumber = half:NUMBER\n"
    )
    (tmp_path / "half.py").write_text(
        "from autothrottle.rate_limiters import ConfigKey, RecordRateLimiter, rate\n"
        "NUMBER = 5\n"
        "class HalfLimiter(RecordRateLimiter):\n"
        "    key = ConfigKey('half.rate.limit', 'Pairs of records per second', rate)\n"
        "    def amount(self, batch): return len(batch.records) / 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with Pacer({"rate.limiters": "RecordRateLimiter, HalfLimiter", "half.rate.limit": 1}) as pacer:
        pacer.accumulate(RecordBatch([b""] * 8_000))
        assert pacer.throttle_time().total_seconds() == pytest.approx(4_000, abs=60)
    for name, reason in (("Absent", "cannot be loaded from half:Absent"), ("Number", "not a subclass of RateLimiter")):
        with pytest.raises(Invalid, match=reason):
            Pacer({"rate.limiters": name})


def test_limiters_may_be_passed_as_objects() -> None:
    limiter = RecordRateLimiter()
    limiter.configure({"record.rate.limit": 1})
    with Pacer(limiters=[limiter]) as pacer:
        pacer.accumulate(ONE)
        assert pacer.throttle_time().total_seconds() > 0


class Polled:
    """A consumer whose polls return these results, or raise them."""

    def __init__(self, *results: Mapping[str, Sequence[Any]] | Exception) -> None:
        self._results = iter(results)
        self.arguments: list[Mapping[str, Any]] = []

    def poll(self, **arguments: Any) -> Mapping[str, Sequence[Any]]:
        self.arguments.append(arguments)
        result = next(self._results)
        if isinstance(result, Exception):
            raise result
        return result

    def commit(self) -> str:
        return "committed"


def record(key: int, value: int, header: int = 0) -> SimpleNamespace:
    """A record of kafka-python with these sizes; -1: absent."""
    return SimpleNamespace(serialized_key_size=key, serialized_value_size=value, serialized_header_size=header)


def test_a_paced_consumer_counts_keys_values_and_headers() -> None:
    wrapped = Polled({"a-0": [record(-1, 300), record(100, 500, 50)], "a-1": [record(-1, -1, -1), record(0, 1050)]})
    with Pacer(BYTES) as pacer:
        consumer = PacedConsumer(wrapped, pacer)
        assert len(consumer.poll(timeout_ms=5)["a-0"]) == 2
        assert pacer.throttle_time().total_seconds() == pytest.approx(2_000, abs=60)
        assert wrapped.arguments == [{"timeout_ms": 5}]
        assert consumer.commit() == "committed"


def test_failed_polls_count_as_batches_and_empty_polls_do_not() -> None:
    wrapped = Polled({}, {}, OSError("reset"), OSError("reset"), {"a-0": [record(1, 1)]})
    with Pacer({"record.batch.rate.limit": 5}) as pacer:
        consumer = PacedConsumer(wrapped, pacer)
        begin = time.monotonic()
        assert [consumer.poll(), consumer.poll()] == [{}, {}]
        assert pacer.throttle_time().total_seconds() == 0
        for _ in range(2):
            with pytest.raises(OSError, match="reset"):
                consumer.poll()
        consumer.poll()
        assert time.monotonic() - begin >= 0.4


class Sent:
    """A producer that records what it sends, or fails."""

    def __init__(self, *sizes: tuple[int, ...] | None) -> None:
        self._sizes = iter(sizes)

    def send(self, topic: str, value: bytes | None = None) -> SimpleNamespace:
        if (sizes := next(self._sizes)) is None:
            raise BufferError(topic)
        return SimpleNamespace(args=(0, 0, None, *sizes))


@pytest.mark.parametrize(("sizes", "seconds"), [((-1, 900, 0), 900), ((600, 500, 70), 1_170)])
def test_a_paced_producer_counts_key_value_and_headers(sizes: tuple[int, ...], seconds: float) -> None:
    with Pacer(BYTES) as pacer:
        PacedProducer(Sent(sizes), pacer).send("mirror", value=b"v")
        assert pacer.throttle_time().total_seconds() == pytest.approx(seconds, abs=60)


def test_a_failed_send_counts_as_a_batch() -> None:
    with Pacer({"record.batch.rate.limit": 0.001}) as pacer:
        with pytest.raises(BufferError):
            PacedProducer(Sent(None), pacer).send("mirror")
        assert pacer.throttle_time().total_seconds() == pytest.approx(1_000, abs=60)
