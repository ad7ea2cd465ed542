"""Reads and appends of the state topic when a broker answers in unusual ways; no test needs a Kafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from autothrottle.adapters.kafka_admin.connections import kafka
from autothrottle.adapters.kafka_admin.record_batches import DAMAGED
from autothrottle.adapters.kafka_admin.topic_log import TopicLog
from autothrottle.adapters.kafka_admin.values import KafkaSettings
from autothrottle.adapters.kafka_state.topic import LostTail, OutOfLog, Records
from autothrottle.core.errors import Invalid, Unavailable
from tests.unit.autothrottle.adapters.kafka_admin.test_record_batches import encoded

TOPIC_ID = uuid.uuid4()
OUT_OF_RANGE = kafka.errors.OffsetOutOfRangeError.errno
WRONG_TIME = kafka.errors.InvalidTimestampError.errno
NOT_AVAILABLE = kafka.errors.OffsetNotAvailableError.errno


def fetched(data: bytes = b"", end: int = 100, error_code: int = 0, diverging: Any = None) -> Any:
    """Return an answer to a fetch, with the log's beginning at offset 1."""
    partition = SimpleNamespace(
        error_code=error_code, high_watermark=end, log_start_offset=1, records=data, diverging_epoch=diverging
    )
    return SimpleNamespace(error_code=0, throttle_time_ms=0, responses=[SimpleNamespace(partitions=[partition])])


def throttled(milliseconds: int) -> Any:
    """Return the answer to a fetch of a client that has used up its quota: it has no partition."""
    return SimpleNamespace(error_code=0, throttle_time_ms=milliseconds, responses=[])


class ScriptedBroker:
    """The leader of the topic, which answers fetches from a list; the last one again and again (a `Routing`)."""

    def __init__(self) -> None:
        self.fetches: list[Any] = []
        self.fetch_times: list[float] = []
        self.offsets = {-2: 1, -1: 100}
        self.offset_error = self.produce_throttle = 0
        self.accepts: Callable[[int], bool] = lambda milliseconds: True
        self.append_time: Callable[[], int] = lambda: -1
        """Returns the time in the answer to an append, milliseconds since 1970."""
        self.times: list[int] = []
        """Of the records that were sent."""

    def ask_any(self, build: Callable[[], Any], deadline: float, *, again: bool = True) -> Any:
        partition = SimpleNamespace(leader_id=1, replica_nodes=[1])
        return SimpleNamespace(topics=[SimpleNamespace(error_code=0, topic_id=TOPIC_ID, partitions=[partition])])

    def each(self, builds: Mapping[int, Callable[[], Any]], deadline: float, **_: Any) -> Mapping[int, Any]:
        return {broker_id: self._answer(build()) for broker_id, build in builds.items()}

    def _answer(self, request: Any) -> Any:
        match type(request).__name__:
            case "FetchRequest":
                self.fetch_times.append(time.monotonic())
                return self.fetches.pop(0) if len(self.fetches) > 1 else self.fetches[0]
            case "ListOffsetsRequest":
                offset = self.offsets[request.topics[0].partitions[0].timestamp]
                part = SimpleNamespace(error_code=self.offset_error, offset=offset)
                return SimpleNamespace(topics=[SimpleNamespace(partitions=[part])])
            case "ProduceRequest":
                (batch,) = kafka.record.MemoryRecords(request.topic_data[0].partition_data[0].records)
                self.times.append(batch.first_timestamp)
                code = 0 if self.accepts(batch.first_timestamp) else WRONG_TIME
                part = SimpleNamespace(
                    error_code=code,
                    error_message="too far ahead" if code else None,
                    log_append_time_ms=self.append_time(),
                )
                topics = [SimpleNamespace(partition_responses=[part])]
                return SimpleNamespace(throttle_time_ms=self.produce_throttle, responses=topics)
        raise NotImplementedError(type(request).__name__)

    def close(self) -> None:
        pass


@pytest.fixture
def broker() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture
def log(broker: ScriptedBroker) -> Iterator[TopicLog]:
    with closing(TopicLog(KafkaSettings(("127.0.0.1:1",)), "state")) as log:
        log._reads.close()
        log._appends.close()
        log._reads = log._appends = broker  # type: ignore[assignment]
        yield log


def read(log: TopicLog, offset: int = 5, epoch: int = 3, within: float = 10.0) -> Records:
    return log.read(str(TOPIC_ID), offset, epoch, 0.0, time.monotonic() + within)


def values(answer: Records) -> list[tuple[int, bytes]]:
    return [(record.offset, record.value) for record in answer.records]


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_throttled_read_waits_and_goes_on(log: TopicLog, broker: ScriptedBroker) -> None:
    """A fetch beyond a client quota is answered without a partition, which raised IndexError: the term was lost."""
    broker.fetches = [throttled(200), throttled(100), fetched(encoded([b"a"], 5, 3))]
    began = time.monotonic()
    assert values(read(log)) == [(5, b"a")]
    assert time.monotonic() - began >= 0.3


def test_delays_by_a_quota_are_problems_for_a_minute(
    log: TopicLog, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker.fetches = [throttled(1), throttled(1), fetched()]
    assert not log.problems
    read(log)
    fix = "Fix: `autothrottle check` names the quota, and the command that exempts this client"
    assert log.problems == [f"A client quota of Kafka delays reads of topic state. {fix}"]
    broker.produce_throttle = 5
    log.append([b"a"], time.monotonic() + 10)
    (problem,) = log.problems
    assert "delays appends and reads of topic state" in problem
    assert caplog.messages == [f"A client quota of Kafka delays reads of topic state. {fix}"]
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 61)
    assert not log.problems


@pytest.mark.parametrize(
    ("broker_ahead", "finding"),
    [
        (-5.0, "is 5.0 s ahead of that of the broker"),
        (5.0, "is 5.0 s behind that of the broker"),
        (0.9, ""),
        (-0.9, ""),
    ],
)
def test_clock_that_differs_from_the_brokers_is_a_problem_for_a_minute(
    log: TopicLog,
    broker: ScriptedBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broker_ahead: float,
    finding: str,
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)  # nothing takes any time
    broker.append_time = lambda: 10**12 + int(broker_ahead * 1000)
    log.append([b"a"], time.monotonic() + 10)
    log.append([b"b"], time.monotonic() + 10)
    assert list(log.problems) == caplog.messages
    assert len(log.problems) == bool(finding) and all(finding in problem for problem in log.problems)
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 61)
    assert not log.problems


def test_slow_answer_is_no_difference_of_clocks(
    log: TopicLog, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([10**18, 10**18 + 8 * 10**9])
    monkeypatch.setattr(time, "time_ns", lambda: next(times))
    broker.append_time = lambda: 10**12 + 4000
    log.append([b"a"], time.monotonic() + 10)
    assert not log.problems


def test_throttled_read_is_empty_at_its_deadline_and_is_not_the_end_of_the_log(
    log: TopicLog, broker: ScriptedBroker
) -> None:
    broker.fetches = [fetched(encoded([b"a"], 5, 3))]
    read(log)
    broker.fetches = [throttled(60_000)]
    began = time.monotonic()
    assert read(log, 6, within=0.2) == Records((), 6, 1, throttle_seconds=60.0)
    assert 0.2 <= time.monotonic() - began < 5 and len(broker.fetch_times) == 2


def test_flipped_bit_on_the_way_is_read_again(log: TopicLog, broker: ScriptedBroker) -> None:
    """Two answers differ, so neither is believed; the next read is right."""
    data = encoded([b"a", b"b"], 5, 3)
    for bit in (60, 8 * 9 + 7, 8 * 15 + 7, 8 * 50, 8 * len(data) - 1):
        broker.fetches = [fetched(flipped(data, bit)), fetched(data)]
        with pytest.raises(Unavailable, match="two answers of Kafka for topic state differ"):
            read(log)
        assert values(read(log)) == [(5, b"a"), (6, b"b")]


def test_batch_that_stays_broken_is_skipped_by_its_offsets_after_pauses(log: TopicLog, broker: ScriptedBroker) -> None:
    """A position before a broken batch was read again and again without a pause, for good."""
    broken = flipped(encoded([b"b", b"c"], 6, 3), 8 * 70)
    broker.fetches = [fetched(encoded([b"a"], 5, 3) + broken + encoded([b"d"], 8, 3))]
    first = read(log)
    assert values(first) == [(5, b"a")] and not first.skipped
    broker.fetches, broker.fetch_times = [fetched(broken + encoded([b"d"], 8, 3))], []
    skipped = read(log, first.next_offset)
    assert (values(skipped), skipped.next_offset, skipped.skipped) == ([], 8, {6: DAMAGED}), "others may have read it"
    assert len(broker.fetch_times) == 5 and broker.fetch_times[-1] - broker.fetch_times[0] >= 3 * 0.05
    broker.fetches = [fetched(encoded([b"d"], 8, 3))]
    assert values(read(log, skipped.next_offset)) == [(8, b"d")]


def test_batch_without_an_end_is_skipped_up_to_the_end_of_the_log(log: TopicLog, broker: ScriptedBroker) -> None:
    broker.fetches = [fetched(flipped(encoded([b"a"], 5, 3), 8 * 23), end=7)]
    answer = read(log)
    assert (values(answer), answer.next_offset, answer.skipped) == ([], 7, {5: DAMAGED})


def test_records_above_the_high_watermark_of_their_answer_are_read_by_that_of_the_next(
    log: TopicLog, broker: ScriptedBroker
) -> None:
    """A broker reads the high watermark of an answer before its records, which may be newer.

    They counted as damaged in the process that asked just then, and its tree differed from all others.
    """
    data = encoded([b"a"], 5, 3)
    broker.fetches = [fetched(data, end=5), fetched(data, end=6)]
    answer = read(log)
    assert values(answer) == [(5, b"a")] and not answer.skipped


def test_what_kafka_answers_twice_is_its_truth(log: TopicLog, broker: ScriptedBroker) -> None:
    """Another leader begins another epoch, and compaction leaves gaps."""
    broker.fetches = [fetched(encoded([b"a"], 5, 3) + encoded([b"b"], 9, 4))]
    answer = read(log)
    assert values(answer) == [(5, b"a"), (9, b"b")] and [r.epoch for r in answer.records] == [3, 4]
    assert len(broker.fetch_times) == 2
    broker.fetches = [fetched(encoded([b"c"], 10, 4))]
    assert values(read(log, 10, 4)) == [(10, b"c")] and len(broker.fetch_times) == 3, "read once"


def test_unreadable_batch_is_skipped_with_its_reason(log: TopicLog, broker: ScriptedBroker) -> None:
    broker.fetches = [fetched(encoded([b"a", b"b"], 5, 3, codec=4) + encoded([b"c"], 7, 3))]
    answer = read(log, 6)
    assert values(answer) == [(6, b""), (7, b"c")]
    assert answer.skipped == {6: "is compressed by zstd, and not by gzip"}


def test_log_that_grew_again_after_a_loss_has_another_epoch_before_the_position(
    log: TopicLog, broker: ScriptedBroker
) -> None:
    broker.fetches = [fetched(diverging=SimpleNamespace(epoch=2, end_offset=4))]
    with pytest.raises(LostTail, match="the log ends before the position: its last records were lost"):
        read(log)


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [(101, 3, LostTail), (101, -1, LostTail), (50, 3, LostTail), (0, 3, OutOfLog), (50, -1, Unavailable)],
    ids=["beyond the end", "without an epoch", "epoch that the log has never seen", "before the start", "end moved"],
)
def test_position_that_the_log_does_not_have_is_lost_or_was_deleted(
    log: TopicLog, broker: ScriptedBroker, offset: int, epoch: int, expected: type[Unavailable]
) -> None:
    broker.fetches = [fetched(error_code=OUT_OF_RANGE)]
    with pytest.raises(Unavailable) as caught:
        read(log, offset, epoch)
    assert type(caught.value) is expected


def test_new_leader_that_does_not_know_the_end_yet_has_lost_nothing(log: TopicLog, broker: ScriptedBroker) -> None:
    broker.fetches, broker.offset_error = [fetched(error_code=OUT_OF_RANGE)], NOT_AVAILABLE
    with pytest.raises(Unavailable) as caught:
        read(log)
    assert not isinstance(caught.value, OutOfLog)


def test_refused_time_is_replaced_by_the_newest_one_that_was_read(log: TopicLog, broker: ScriptedBroker) -> None:
    """A clock 65 minutes ahead of the brokers' ended the process at its start."""
    broker.accepts = lambda milliseconds: milliseconds < 2_000
    log.append([b"a"], time.monotonic() + 10)
    assert broker.times[-1] == 0, "nothing was read"
    broker.fetches = [fetched(encoded([b"a", b"b"], 5, 3, time=1_500))]
    read(log)
    log.append([b"b"], time.monotonic() + 10)
    assert broker.times[-1] == 1_501
    broker.accepts = lambda milliseconds: False
    with pytest.raises(Invalid, match="InvalidTimestampError, too far ahead"):
        log.append([b"c"], time.monotonic() + 10)


def test_answer_without_the_topic_is_asked_for_again(log: TopicLog, broker: ScriptedBroker) -> None:
    broker.fetches = [fetched()]
    broker.fetches[0].responses[0].partitions = []
    with pytest.raises(Unavailable, match="lacks topic state"):
        read(log)
